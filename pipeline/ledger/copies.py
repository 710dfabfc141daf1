"""Whether a file of microdata is known as one of another dataset: copies at another place would be counted apart.

Reservations and registrations keep the fingerprints of their files' contents, each entry under a salt of its own, so
that nobody who sees one entry compares it with another, or with files, but by hashing anew.
"""

import hmac
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from pipeline.errors import StateError
from pipeline.ledger.database import ENTRIES
from pipeline.ledger.datasets import Budget, members
from pipeline.ledger.entries import FINGERPRINTS, Entry, entries
from pipeline.ledger.summaries import Summaries


def require_no_copies(
    kept: Summaries, dataset: str, fingerprints: Collection[str], budgets: Mapping[str, Budget]
) -> None:
    """Raise StateError where a file is one of another dataset that is registered or has charged releases.

    Not where both are in one family, over which losses are added up. Older entries know no files.
    """
    if not fingerprints:
        return
    family = budgets[dataset].family if dataset in budgets else None
    kin = {dataset, *(members(budgets, family) if family is not None else ())}
    others = (budget for budget in budgets.values() if budget.name not in kin)
    other = next((budget.name for budget in others if _holds(budget.fingerprints, fingerprints)), None)
    other = other or _released_as(kept, kin, fingerprints)
    if other is not None:
        raise StateError(
            f"dataset {dataset}: a file of its microdata is a copy of one of dataset {other}, whose losses would be "
            "counted apart: name that dataset"
        )


def known_as(connection: Connection, fingerprints: Collection[str], budgets: Mapping[str, Budget]) -> str | None:
    """Return a dataset, registered or ever reserved, of which one of the files is; None where none is known."""
    registered = (budget.name for budget in budgets.values() if _holds(budget.fingerprints, fingerprints))
    reserved = (e.dataset for e in _with_files(connection) if _holds(e.facts.get(FINGERPRINTS), fingerprints))
    return next(registered, None) or next(reserved, None)


def _with_files(connection: Connection) -> Iterator[Entry]:
    """Yield the reservations that know fingerprints."""
    with_files = ENTRIES.c.payload.contains(f'"{FINGERPRINTS}"')
    return entries(connection, (ENTRIES.c.event == "reserved") & with_files)


def _released_as(kept: Summaries, kin: Collection[str], fingerprints: Collection[str]) -> str | None:
    """Return a dataset beside `kin` of which a charged release, or a charged test, had one of the files."""
    others = (dataset for dataset in kept.datasets if dataset not in kin)
    return next((name for name in others if any(_holds(each, fingerprints) for each in kept.of(name).files())), None)


def salted(fingerprints: Sequence[str]) -> dict[str, Any]:
    """Return fingerprints as a fact of an entry: HMAC-SHA-256 of each with a fresh salt, sorted; {} of none."""
    if not fingerprints:
        return {}
    salt = os.urandom(16)
    return {FINGERPRINTS: {"salt": salt.hex(), "files": _hashed(salt, fingerprints)}}


def same_files(known: Mapping[str, Any] | None, fingerprints: Collection[str]) -> bool:
    """Return whether the fact of an entry, None where it has none, is of exactly these files."""
    if known is None:
        return not fingerprints
    return bool(known["files"] == _hashed(bytes.fromhex(known["salt"]), fingerprints))


def _holds(known: Mapping[str, Any] | None, fingerprints: Collection[str]) -> bool:
    if known is None:
        return False
    return not set(known["files"]).isdisjoint(_hashed(bytes.fromhex(known["salt"]), fingerprints))


def _hashed(salt: bytes, fingerprints: Collection[str]) -> list[str]:
    return sorted({hmac.digest(salt, each.encode(), "sha256").hex() for each in fingerprints})
