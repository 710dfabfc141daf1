"""Which microdata a dataset may take: no copies of another's, all synthetic or none, and few refusals by records.

Reservations and registrations keep the fingerprints of their files' contents, each entry under a salt of its own, so
that nobody who sees one entry compares it with another, or with files, but by hashing anew.
"""

import hmac
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from pipeline.base.errors import BudgetRefused, StateError
from pipeline.ledger.database import Connection
from pipeline.ledger.datasets import REFUSALS, Budget, members, same_microdata
from pipeline.ledger.entries import FINGERPRINTS, entries
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.reservation import Origin, Reservation
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
    registered = [(budget.name, [budget.fingerprints]) for budget in budgets.values()]
    charged = ((name, kept.of(name).files()) for name in kept.datasets if name not in kin)
    others = ((name, files) for name, files in chain(registered, charged) if name not in kin)
    other = next((name for name, files in others if any(_holds(known, fingerprints) for known in files)), None)
    if other is not None:
        raise StateError(
            f"dataset {dataset}: a file of its microdata is a copy of one of dataset {other}, whose losses would be "
            "counted apart: name that dataset"
        )


def known_as(connection: Connection, fingerprints: Collection[str], budgets: Mapping[str, Budget]) -> str | None:
    """Return a dataset, registered or ever reserved, of which one of the files is; None where none is known."""
    registered = (budget.name for budget in budgets.values() if _holds(budget.fingerprints, fingerprints))
    known = entries(connection, "event = ? AND payload LIKE ?", "reserved", f'%"{FINGERPRINTS}"%')
    reserved = (entry.dataset for entry in known if _holds(entry.facts.get(FINGERPRINTS), fingerprints))
    return next(registered, None) or next(reserved, None)


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
    return sorted({hmac.digest(salt, fingerprint.encode(), "sha256").hex() for fingerprint in fingerprints})


# Whether microdata may go under a dataset: synthetic ones, by the mark of `prdp generate`, and others do not mix.

REHEARSE = "prdp try rehearses a plan on synthetic microdata, and charges nothing"


def require_one_kind(
    dataset: str, synthetic: bool | None, budget: Budget | None, states: Iterable[ReleaseState], mend: str = ""
) -> None:
    """Raise StateError where microdata are synthetic and the dataset's are not, or the other way round.

    `synthetic` None, and releases that say nothing of it, agree with both; but a dataset that is registered as
    synthetic takes marked microdata alone. `mend`: what may be changed beside the microdata.
    """
    if budget is not None and budget.synthetic and not synthetic:
        raise StateError(
            f"dataset {dataset}: is registered as synthetic, but its microdata carry no mark of prdp generate: "
            f"use those that it was registered for{mend}"
        )
    if budget is not None and synthetic and not budget.synthetic:
        raise StateError(
            f"dataset {dataset}: its microdata carry the mark of prdp generate, but it is registered without "
            f"synthetic: true: {REHEARSE}{mend}"
        )
    require_released_alike(dataset, synthetic, states)


def require_released_alike(dataset: str, synthetic: bool | None, states: Iterable[ReleaseState]) -> None:
    """Raise StateError where a release of the dataset that is charged says otherwise."""
    if synthetic is None:
        return
    charged = (state for state in states if state.counts)
    other = next((s for s in charged if s.reservation.get("synthetic") not in (None, synthetic)), None)
    if other is not None and synthetic:
        raise StateError(
            f"dataset {dataset}: its microdata carry the mark of prdp generate, those of release {other.release} "
            f"do not: {REHEARSE}"
        )
    if other is not None:
        raise StateError(
            f"dataset {dataset}: release {other.release} was of microdata with the mark of prdp generate, these have "
            "none, and the two do not mix: use microdata with the mark"
        )


# Refusals that depend on records: a public number of them is allowed to a dataset, and to a family of datasets.

Counts = Callable[[str, Origin], bool]  # of a dataset and an origin: whether what was refused of them counts


def refusals_of(kept: Summaries) -> dict[str, int]:
    """Return how many releases were refused because of their records, by dataset and by family."""
    by_dataset = {name: kept.of(name).refusals.total() for name in kept.datasets}
    families = [budget.name for budget in kept.budgets.values() if budget.kind == "family"]
    by_family = {family: _refused(kept, _of_family(kept.kin, family)) for family in families}
    return {name: number for name, number in {**by_dataset, **by_family}.items() if number}


def require_refusals_left(kept: Summaries, wanted: Reservation, kin: Mapping[str, Budget]) -> None:
    """Return if `wanted` may be refused beside all that was, and all that may be; raises BudgetRefused otherwise.

    `kin`: the registered datasets and families, and the datasets that releases, and `wanted`, make one of a family.
    """
    for name, counts in _bounds(wanted, kin):
        counted = _refused(kept, counts)
        scanned = [
            release
            for dataset in kept.datasets
            for release, origin in kept.of(dataset).scans
            if release != wanted.release and counts(dataset, origin)
        ]
        budget = kept.budgets.get(name)
        allowed = REFUSALS if budget is None else budget.refusals
        if counted + len(scanned) >= allowed:
            act = "register it (prdp ledger init)" if budget is None else "state its budget anew (prdp ledger raise)"
            may_be = f" and {len(scanned)} may still be ({', '.join(scanned)}: run or abort them)" if scanned else ""
            raise BudgetRefused(
                f"{budget.kind if budget else 'dataset'} {name}: {counted} of its releases were refused because of "
                f"their records{may_be}, {allowed} may be: have an officer {act} with a larger number as refusals"
            )


def _bounds(wanted: Reservation, kin: Mapping[str, Budget]) -> Iterator[tuple[str, Counts]]:
    """Yield whose number of refusals binds a release, and what counts against it."""
    dataset, source = wanted.dataset, wanted.source
    yield dataset, lambda name, origin: name == dataset or same_microdata(origin.source, source)
    family = kin[dataset].family if dataset in kin else None
    if family is not None:
        yield family, _of_family(kin, family)


def _of_family(kin: Mapping[str, Budget], family: str) -> Counts:
    datasets = set(members(kin, family))
    return lambda name, origin: name in datasets or origin.family == family


def _refused(kept: Summaries, counts: Counts) -> int:
    return sum(n for name in kept.datasets for origin, n in kept.of(name).refusals.items() if counts(name, origin))
