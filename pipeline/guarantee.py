"""What a release promises, in words and formula, as its manifest states it (MATH sections 1, 2 and 8)."""

from typing import Any

WORDS = (
    "Per-record zero-concentrated differential privacy. For each record r, what this release shows would have been "
    "about as likely without r, or with r added: the Rényi divergence between the two distributions of the release "
    "is at most α·P(r), for every order α above 1 and in both directions. Neighbouring databases differ by one whole "
    "record, added or removed. P is the policy function in policy.json: public, and fixed before any record was read; "
    "P(r) depends on r's influence alone, grows with it, and is 0 for a record in no query. The value P(r) of an "
    "actual record is confidential. Losses add up: a record's loss over several releases is at most the sum of their "
    "policies, and a group of records r_1 to r_J has divergence at most α·J·(P(r_1) + … + P(r_J)). A record is "
    "protected one by one: a firm with several records is protected as such a group. Whatever is computed from the "
    "release alone has the same guarantee."
)

FORMULA = (
    "D_α(M(D) ‖ M(D′)) ≤ α·P(r) and D_α(M(D′) ‖ M(D)) ≤ α·P(r) for all α > 1 and all D, D′ with D′ = D ∪ {r}; "
    "P(r) = Σ_q P_q(Δ_q(r)) over the queries q of this release; Δ_q(r) = |x_q(r)| for a sum of x_q, 1 for a count of "
    "records, where r is in a cell of q, and 0 where it is in none, with P_q(0) = 0"
)

FIRM_WORDS = (
    "Zero-concentrated differential privacy of whole firms. A firm is all records with one value of the column "
    "{owner}. For each firm f, what this release shows would have been about as likely without all records of f, or "
    "with them added: the Rényi divergence between the two distributions of the release is at most α·P(f), for every "
    "order α above 1 and in both directions. Neighbouring databases differ by all records of one firm, added or "
    "removed. P follows from the policy functions in policy.json, which are public and were fixed before any record "
    "was read: in a cell of a query the influences of a firm's records add up, and the losses of cells and queries "
    "add up. P(f) grows with every record of f and its influence, and is 0 for a firm in no query. The value P(f) of "
    "an actual firm is confidential. Losses add up: a firm's loss over several releases is at most the sum of their "
    "policies, and several firms f_1 to f_J together have divergence at most α·J·(P(f_1) + … + P(f_J)). A single "
    "record is protected as a firm of this one record would be. Whatever is computed from the release alone has the "
    "same guarantee."
)

FIRM_FORMULA = (
    "D_α(M(D) ‖ M(D′)) ≤ α·P(f) and D_α(M(D′) ‖ M(D)) ≤ α·P(f) for all α > 1 and all D, D′ with D′ = D ∪ f, f all "
    "records with one value of {owner}; P(f) = Σ_q Σ_c P_q(Δ_qc(f)) over the queries q of this release and their cells "
    "c; Δ_qc(f) = Σ |x_q(r)| over the records r of f in cell c for a sum of x_q, their number for a count of records, "
    "with P_q(0) = 0"
)

OWNED = (
    "Who owns a record stands in the column {owner}, in every record: records of one firm under several values are "
    "protected as several firms."
)

ASSUMPTIONS = (
    "AES-256 is a pseudo-random function: the noise is a function of a key of 32 bytes of the operating system's "
    "entropy, made afresh for this attempt, kept in memory only and never used for other data. The guarantee is "
    "therefore against computationally bounded readers.",
    "No implementation δ: given random bits, every noisy value follows its discrete distribution on a lattice exactly, "
    "tails included; sums are exact; the rounding of the mechanisms is counted in P; values outside the range of "
    "their type are clamped, which is post-processing.",
    "The guarantee covers records that meet the input contract of the plan: {rows}, codes well formed, measures of the "
    "declared type and on their step, non-negative where the mechanism needs it.",
    "A refusal is not private: that a run was refused or failed because a record or a sum broke the contract, and "
    "when and how long it ran, is outside the guarantee.",
    "Everything that shapes the release was chosen without looking at the confidential records: the cells are the "
    "plan's public domain, and every mechanism and its parameters were fixed in the plan before any record was read.",
    "At most one draw of the noise was seen by anyone outside the enclave, unless the accountant charged every draw.",
)


ROWS = {
    "trust": "one row for each record identifier",
    "reject": "one row for each record identifier, which was checked",
    "combine": "one or more rows for each record identifier, equal in their codes (and owner, where units are firms)",
}

RECORDS = {
    "trust": "A record is a row. Identifiers were trusted: an establishment with two rows is two records.",
    "reject": "A record is all rows with one record identifier; one with several rows is in no table.",
    "combine": (
        "A record is all rows with one record identifier. Its x_q(r) is the sum of their values; it counts once. A "
        "record whose rows contradict each other is in no table."
    ),
}


def guarantee(owner: str | None = None, duplicates: str = "trust") -> dict[str, Any]:
    """Return the guarantee of a release as JSON: words, formula, assumptions.

    `owner`: the column of which each value is one protected firm; None where the single record is protected.
    `duplicates`: what the plan says of row ids that stand twice, and so what a record is.
    """
    shared = [*(text.replace("{rows}", ROWS[duplicates]) for text in ASSUMPTIONS), RECORDS[duplicates]]
    if owner is None:
        return {"words": WORDS, "formula": FORMULA, "assumptions": shared}
    return {
        "words": FIRM_WORDS.replace("{owner}", owner),
        "formula": FIRM_FORMULA.replace("{owner}", owner),
        "assumptions": [*shared, OWNED.replace("{owner}", owner)],
    }
