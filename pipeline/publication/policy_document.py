"""What a release promises, for everyone: in words and formula, as its manifest states it, and as data in policy.json.

The data can be evaluated without prdp (docs/mathematics.md, sections 1, 5 and 6).
"""

import re
from collections.abc import Collection
from typing import Any

from pipeline.accounting.accountant import LeftOutTest
from pipeline.accounting.policy import PolicySum, curve_json
from pipeline.accounting.references import Reference, spans_json
from pipeline.plan.model import Plan, Query, UnitNames
from pipeline.plan.total_policy import classes_decide, left_out_test_loss, losses_at, no_larger, total_loss
from udfs.mechanisms.base import Mechanism
from udfs.numbers.exact import as_json
from udfs.records.statistics import Count

CLASSES, COUNTS, CODES = "classes", "counts", "codes"  # of a measure; of owners
UNITS = ("record", "records", "firm", "firms")
UNIT_WORDS = re.compile(r"(?<![-`_])\b([Aa]n? )?(records?|firms?)\b(?![`_])", re.IGNORECASE)
DEFAULT_NAMES = UnitNames()

ADDED = (
    "Over several releases whose plans were all fixed before any of them was seen, a {0}'s losses add up. Where later "
    "plans were chosen by what earlier releases showed, their sum is no bound; then a limit on the sum holds that was "
    "fixed before the first release and has refused whatever would exceed it: the {0} loses at most that limit."
)

WORDS = (
    "Per-record zero-concentrated differential privacy. For each record r, what this release shows would have been "
    "about as likely without r, or with r added: the Rényi divergence between the two distributions of the release "
    "is at most α·P(r), for every order α above 1 and in both directions. Neighbouring databases differ by one whole "
    "record, added or removed. P is the policy function in policy.json: public, and fixed before any record was read; "
    "P(r) depends on r's influences and, where public parts of a table have mechanisms of their own, on the part that "
    "r is in; it grows with every influence{within}, and is {least} for a record in no query. The value P(r) of an "
    f"actual record is confidential. {ADDED.format('record')} A group of records r_1 to r_J has divergence at most "
    "α·J·(P(r_1) + … + P(r_J)). A record is protected one by one: a firm with several records is protected as such a "
    "group. Whatever is computed from the release alone has the same guarantee."
)

FORMULA = (
    "D_α(M(D) ‖ M(D′)) ≤ α·P(r) and D_α(M(D′) ‖ M(D)) ≤ α·P(r) for all α > 1 and all D, D′ with D′ = D ∪ {r}; "
    "P(r) = Σ_q P_q(Δ_q(r)) over the queries q of this release; Δ_q(r) = |x_q(r)| for a sum of x_q, 1 for a count of "
    "records, where r is in a cell of q, and 0 where it is in none, with P_q(0) = 0{test}"
)

FIRM_WORDS = (
    "Zero-concentrated differential privacy of whole firms. A firm is all records with one value of the column "
    "{owner}. For each firm f, what this release shows would have been about as likely without all records of f, or "
    "with them added: the Rényi divergence between the two distributions of the release is at most α·P(f), for every "
    "order α above 1 and in both directions. Neighbouring databases differ by all records of one firm, added or "
    "removed. P follows from the policy functions in policy.json, which are public and were fixed before any record "
    "was read: in a cell of a query the influences of a firm's records add up, and the losses of cells and queries "
    "add up. P(f) grows with every record of f and its influence{within}, and is {least} for a firm in no query. "
    "The value "
    f"P(f) of an actual firm is confidential. {ADDED.format('firm')} Several "
    "firms f_1 to f_J together have divergence at most α·J·(P(f_1) + … + P(f_J)). {alone} "
    "Whatever is computed from the release alone has the same guarantee."
)

FIRM_FORMULA = (
    "D_α(M(D) ‖ M(D′)) ≤ α·P(f) and D_α(M(D′) ‖ M(D)) ≤ α·P(f) for all α > 1 and all D, D′ with D′ = D ∪ f, f all "
    "records with one value of {owner}; P(f) = Σ_q Σ_c P_q(Δ_qc(f)) over the queries q of this release and their cells "
    "c; Δ_qc(f) = Σ |x_q(r)| over the records r of f in cell c for a sum of x_q, their number for a count of "
    "records{counted}, with P_q(0) = 0{test}"
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

LEFT_OUT = (
    "Before any table was drawn, the release was tested once for records left out, which are bad and dropped or lie "
    "outside the domain: had their number exceeded {share} of all records by more than chance, it would have been "
    "refused. The test knows the numbers of records kept and left out with discrete {noise} noise of scale {sigma} "
    "each; that it was passed is a function of the two. P counts its loss: {cost}.",
    "That the microdata hold a record at all is public.",
)
COSTS = {  # of the test, by its noise
    "gaussian": "1/(2·{sigma}²) for a record, and at most n²/(2·{sigma}²) for n records together",
    "laplace": "that of a pure loss of 1/{sigma} for a record, and of n/{sigma} at most for n records together",
}

PURE = (
    " Every mechanism of this release has a pure loss too: for each {unit}, the logarithm of the ratio of the "
    "probabilities of anything that the release shows, with and without the {unit}, is in magnitude at most the sum of "
    "their pure losses, which policy.json states (per-record pure differential privacy)."
)
PURE_FORMULA = (
    "; D_∞(M(D) ‖ M(D′)) and D_∞(M(D′) ‖ M(D)) are at most the same sum of the pure losses, epsilon in policy.json"
)

ROWS = {
    "trust": "one row for each record identifier",
    "reject": "one row for each record identifier, which was checked",
    "combine": "one or more rows for each record identifier, equal in their codes (and owner, where units are firms)",
}

RECORDS = {
    "trust": "A record is a row. Identifiers were trusted: one that stands in two rows is two records.",
    "reject": "A record is all rows with one record identifier; one with several rows is in no table.",
    "combine": (
        "A record is all rows with one record identifier. Its x_q(r) is the sum of their values; it counts once. A "
        "record whose rows contradict each other is in no table."
    ),
}

COMPOSITION_OF_RECORDS = (
    "Parallel composition within a table: its cells are disjoint and a record lies in one of them at most, so all of "
    "them together cost the record what its own cell does. Sequential composition across tables: their losses add up, "
    "except of tables whose filters exclude each other, of which a record is in one at most."
)
COMPOSITION_OF_FIRMS = (
    "Parallel composition within a table holds for a single record, which lies in one of its disjoint cells at most. "
    "The records of a firm can lie in several: the losses of its cells add up, as those of tables do (sequential "
    "composition)."
)
OF_COUNTED_OWNERS = (
    "In a count of owners a firm adds 1 to each cell in which it has a record, however many it has there: its losses "
    "are P_q(1) a cell."
)
OF_OWNERS_CODES = (
    "Codes of {keys} follow from all records of a firm and are the same for all of them: a record that comes, goes or "
    "changes may move its whole firm to other cells, which costs at most (√P(f) + √P(f′))², f and f′ being the firm "
    "before and after."
)
ALONE = "A single record is protected as a firm of this one record would be."
MOVING = (
    "A single record that comes, goes or changes may move its whole firm to other cells: it is protected as its firm "
    "before and its firm after are, both together."
)
COUNTED = ", 1 for a count of firms"
AMONG = "among firms with the same codes of those that follow from all their records"
WITHIN = "within the classes of a record's values, each of which may have cells or mechanisms of its own"
OF_CLASSES = (
    "Classes of a measure have cells or mechanisms of their own, so that a smaller record may lose more, and so may a "
    "firm of smaller records: `no_larger` of a reference bounds every record, or firm, none of whose values is larger, "
    "whatever their classes. Where a reference has none, its own loss is this bound."
)
OF_A_RECORD = "P(r) = Σ P_q(Δ_q(r)) over the queries of one place; at a reference, the worst place"
CURVE = (
    "an influence above steps[i - 1] and at most steps[i] steps of the measure loses at most rho[i]; beyond the last "
    "of them, and wherever it is less, tanh(P/2)·P with the pure loss P"
)
OF_A_FIRM = (
    "P(f) = Σ P_q(Σ Δ_q(r)) over the queries and their cells, the inner sum over the firm's records r in the cell; at "
    "a reference an upper bound of this, wherever its records lie in the cells that their keys allow"
)


def named(text: str, names: UnitNames) -> str:
    """Return a text that speaks of records and firms with what the plan calls them, if it says so.

    Per-record privacy keeps the name of its definition, and `code` its own.
    """
    words = dict(zip(UNITS, (*names.record, *names.owner), strict=True))

    def put(match: re.Match[str]) -> str:
        article, word = match[1] or "", match[2]
        name = words[word.lower()]
        if article:
            article = f"{article[0]}{'n' if name[0].lower() in 'aeiou' else ''} "
        return article + (name[0].upper() + name[1:] if word[0].isupper() else name)

    counted = text.replace("count of owners", f"count of {names.owner[1]}")
    return UNIT_WORDS.sub(put, counted) if names.stated else text


def guarantee(
    owner: str | None = None,
    duplicates: str = "trust",
    test: LeftOutTest | None = None,
    *,
    traits: Collection[str] = (),
    names: UnitNames = DEFAULT_NAMES,
) -> dict[str, Any]:
    """Return the guarantee of a release as JSON: words, formula, assumptions, which call units by their `names`.

    `owner`: the column of which each value is one protected firm; None where the single record is protected. `test`:
    None of releases that were reserved before records left out were tested. `traits`: CLASSES
    where classes of a measure decide what a unit loses, so that a smaller one may lose more, and what `of_owners` says.
    """
    within = [text for text, trait in ((WITHIN, CLASSES), (AMONG, CODES)) if trait in traits]
    stated = {"{owner}": owner or "", "{rows}": ROWS[duplicates], "{least}": "0", "{test}": ""}
    stated |= {"{within}": " " + ", and ".join(within) if within else ""}
    stated |= {"{alone}": MOVING if CODES in traits else ALONE, "{counted}": COUNTED if COUNTS in traits else ""}
    if test is not None:
        stated |= {"{noise}": test.noise.title(), "{cost}": COSTS[test.noise]}
        stated |= {"{share}": str(as_json(test.share)), "{sigma}": str(as_json(test.sigma))}
        stated |= {"{least}": "that of the test of records left out"}
        stated |= {"{test}": "; the test of records left out is one more count, in which every record is"}

    def filled(text: str) -> str:
        text = named(text, names)
        for name, value in stated.items():
            text = text.replace(name, named(value, names) if name != "{owner}" else value)
        return text

    words, formula = (WORDS, FORMULA) if owner is None else (FIRM_WORDS, FIRM_FORMULA)
    if test is not None and test.pure:
        words += PURE.format(unit="record" if owner is None else "firm")
        formula += PURE_FORMULA
    assumptions = [*ASSUMPTIONS, RECORDS[duplicates], *(LEFT_OUT if test else ()), *(() if owner is None else (OWNED,))]
    return {"words": filled(words), "formula": filled(formula), "assumptions": [filled(text) for text in assumptions]}


def of_owners(plan: Plan) -> list[str]:
    """Return which of COUNTS and CODES follow from all records of an owner in the plan."""
    counts = any(not query.statistic.adds_up for query in plan.queries)
    codes = any(each.of_owner is not None for each in plan.domain.dimensions)
    return [name for name, there in ((COUNTS, counts), (CODES, codes)) if there]


def composition(plan: Plan) -> str:
    """Return how the losses of the plan's cells and tables are composed into one."""
    if plan.dataset.owner is None:
        return named(COMPOSITION_OF_RECORDS, plan.unit_names)
    owners = of_owners(plan)
    keys = ", ".join(each.key for each in plan.domain.dimensions if each.of_owner is not None)
    further = ((COUNTS, OF_COUNTED_OWNERS), (CODES, OF_OWNERS_CODES))
    texts = [COMPOSITION_OF_FIRMS, *(text for name, text in further if name in owners)]
    return named(" ".join(texts), plan.unit_names).replace("{keys}", keys)


def public_policy(plan: Plan, test: LeftOutTest, policy: PolicySum) -> dict[str, Any]:
    """Return policy.json as JSON; `policy`: that of the plan with the test."""
    references = [_at_reference(plan, policy, limit.at) for limit in plan.budget]
    of_classes = (
        {"of_classes": named(OF_CLASSES, plan.unit_names)} if any("no_larger" in each for each in references) else {}
    )
    return {
        "release": plan.release,
        "plan_digest": plan.digest,
        "unit": plan.dataset.unit,
        "interval": as_json(plan.interval),
        "guarantee": guarantee(
            plan.dataset.owner,
            plan.dataset.duplicates,
            test,
            traits=[*([CLASSES] if classes_decide(plan) else []), *of_owners(plan)],
            names=plan.unit_names,
        ),
        "queries": [_query(query, plan.unit_names) for query in plan.queries],
        "left_out_test": test.to_json()
        | {
            "mechanism": test.mechanism.describe(),
            "influence": Count().formula,
            "policy": {"rho": test.mechanism.formula, "epsilon": test.mechanism.pure_formula},
        },
        "sum": {
            "formula": named(OF_A_RECORD if plan.dataset.owner is None else OF_A_FIRM, plan.unit_names),
            "places": [[policy.queries[i].label for i in sorted(met)] for met in policy.query_sets],
            "composition": composition(plan),
        }
        | ({"classes": spans_json(policy.spans)} if policy.spans else {})
        | of_classes,
        "references": references,
    }


def _at_reference(plan: Plan, policy: PolicySum, at: Reference) -> dict[str, Any]:
    losses, total = losses_at(plan, policy, at)
    stated: dict[str, Any] = {
        "at": at.to_json(),
        "queries": {
            query.name: {"influence": as_json(influence)} | loss.to_json()
            for query, (influence, loss) in zip(plan.queries, losses, strict=True)
        },
        "left_out_test": left_out_test_loss(plan, policy, at).to_json(),
        "total": total.to_json(),
    }
    below = no_larger(plan, at)
    return stated if below is None else stated | {"no_larger": total_loss(policy, below).to_json()}


def _query(query: Query, names: UnitNames) -> dict[str, Any]:
    described = {
        "name": query.name,
        "statistic": query.statistic.to_json(),
        "by": list(query.by),
        "where": {level: list(codes) for level, codes in query.where.items()},
    }
    if query.split is None:
        return described | _mechanism(query, query.parts[0].mechanism, names)
    parts = [
        {"part": part.name, "codes": list(part.codes)} | _mechanism(query, part.mechanism, names)
        for part in query.parts
    ]
    return described | {"split": query.split, "parts": parts}


def _mechanism(query: Query, mechanism: Mechanism, names: UnitNames) -> dict[str, Any]:
    curve = curve_json(mechanism)
    return {
        "mechanism": mechanism.describe(),
        "step": as_json(mechanism.step),
        "lattice_step": float(mechanism.lattice_step),
        "influence": named(query.statistic.formula, names),
        "policy": {"rho": mechanism.formula, "epsilon": mechanism.pure_formula},
    } | (curve | {"curve_says": CURVE} if curve else {})
