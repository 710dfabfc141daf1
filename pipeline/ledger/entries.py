"""One entry of the ledger, its hash, and the chain that the hashes make."""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pipeline.canonical import canonical_json

GENESIS = "0" * 64  # stands where the first entry has no previous hash
DIAGNOSED = "diagnosed"  # a run of diagnostics: it concerns the dataset, and changes no release's state
BUDGETED = "budgeted"  # a dataset, or a family of them, was registered or its limits were stated anew


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One row of the ledger: it is appended, and never changed or removed.

    `seq` counts from 1 without gaps; `time` is UTC, ISO 8601; `payload` is canonical JSON text; `salt` is 32
    hexadecimal digits of the operating system's entropy; `previous` and `hash` are 64 hexadecimal digits.
    """

    seq: int
    time: str
    event: str
    dataset: str
    release: str
    attempt: str | None
    payload: str
    # A head hash is published, and entries hold facts that depend on the microdata (the pin of the input). The
    # salt, which stays in the ledger, keeps an outsider from testing guesses of those facts against the head.
    salt: str
    previous: str
    hash: str

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The payload as a mapping; raises ValueError where the text is no JSON object."""
        facts = json.loads(self.payload)
        if not isinstance(facts, dict):
            raise ValueError("the payload is no JSON object")
        return facts

    @property
    def of_release(self) -> bool:
        """Whether the entry is a step of its release."""
        return self.event not in (DIAGNOSED, BUDGETED)

    @property
    def columns(self) -> dict[str, Any]:
        """All columns, `hash` included, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def hash_due(self) -> str:
        """Return the SHA-256 of the canonical JSON of every column but `hash`."""
        columns = self.columns
        del columns["hash"]
        return hashlib.sha256(canonical_json(columns).encode()).hexdigest()

    def follows(self, seq: int, head: str) -> bool:
        """Whether this entry comes right after entry `seq`, whose hash is `head`."""
        return self.seq == seq + 1 and self.previous == head


@dataclass(frozen=True)
class Act:
    """What an entry records: `event` on `release` of `dataset`, by `attempt` where one is meant, with JSON facts."""

    event: str
    dataset: str
    release: str
    attempt: str | None
    facts: Mapping[str, Any]


def next_entry(seq: int, head: str, act: Act) -> Entry:
    """Return the entry of `act` that follows entry `seq` with hash `head`, dated now, freshly salted."""
    bare = Entry(
        seq=seq + 1,
        time=datetime.now(UTC).isoformat(timespec="microseconds"),
        event=act.event,
        dataset=act.dataset,
        release=act.release,
        attempt=act.attempt,
        payload=canonical_json(act.facts),
        salt=os.urandom(16).hex(),
        previous=head,
        hash="",
    )
    return replace(bare, hash=bare.hash_due())


# Entries for other programs: one JSON object each, without what only the enclave may know unless it is asked for.


# A pin is a digest of the input, against which guesses of it could be tested; a salt keeps them from the hashes.
# Places
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
