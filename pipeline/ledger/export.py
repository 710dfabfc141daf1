"""Entries for other programs: one JSON object each, without what only the enclave may know unless it is asked for."""

from typing import Any

from pipeline.ledger.entries import Entry

# A pin is a digest of the input, against which guesses of it could be tested; a salt keeps them from the hashes. Places
# say nothing of a record, but how the enclave is built.
CONFIDENTIAL = ("pin", "source", "staging")


def exported(entry: Entry, confidential: bool = False) -> dict[str, Any]:
    """Return an entry as JSON, with its hash and its link; `withheld` names the facts that are left out.

    With `confidential` nothing is, and the hash can be computed again from all other columns (docs/ledger.md).
    """
    facts = dict(entry.facts)
    line: dict[str, Any] = {
        "seq": entry.seq,
        "time": entry.time,
        "event": entry.event,
        "dataset": entry.dataset,
        "release": entry.release or None,
        "attempt": entry.attempt,
    }
    chain = {"previous": entry.previous, "hash": entry.hash}
    if confidential:
        return line | {"facts": facts, "payload": entry.payload, "salt": entry.salt} | chain | {"confidential": True}
    withheld = [name for name in CONFIDENTIAL if facts.get(name) is not None]
    kept = {name: value for name, value in facts.items() if name not in CONFIDENTIAL}
    return line | {"facts": kept} | chain | {"withheld": ["salt", *withheld]}
