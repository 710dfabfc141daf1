"""Whether microdata may go under a dataset: synthetic ones, by the mark of `prdp generate`, and others do not mix.

A mark refuses only. It excuses no charge, since it proves nothing.
"""

from collections.abc import Iterable

from pipeline.errors import StateError
from pipeline.ledger.datasets import Budget
from pipeline.ledger.fold import ReleaseState

OWN_LEDGER = "trials go to a ledger of their own (prdp ledger create FILE)"


def require_one_kind(
    dataset: str, synthetic: bool | None, budget: Budget | None, states: Iterable[ReleaseState]
) -> None:
    """Raise StateError where microdata are synthetic and the dataset's are not, or the other way round.

    `synthetic` None, and releases that say nothing of it, agree with both; but a dataset that is registered as
    synthetic takes marked microdata alone.
    """
    if budget is not None and budget.synthetic and not synthetic:
        raise StateError(
            f"dataset {dataset}: is registered as synthetic, but its microdata carry no mark of prdp generate: "
            "name another dataset"
        )
    if budget is not None and synthetic and not budget.synthetic:
        raise StateError(
            f"dataset {dataset}: its microdata carry the mark of prdp generate, but it is registered without "
            f"synthetic: true: {OWN_LEDGER}"
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
            f"do not: {OWN_LEDGER}"
        )
    if other is not None:
        raise StateError(
            f"dataset {dataset}: release {other.release} was of microdata with the mark of prdp generate, these have "
            f"none: name another dataset; {OWN_LEDGER}"
        )
