"""Of several limits on one reference the lowest alone can be the one that is exceeded."""

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.accounting.accountant import BudgetLimit


def tightest(limits: Iterable[BudgetLimit]) -> Sequence[BudgetLimit]:
    """Return the lowest limit on each reference and place, in the order in which references come first.

    All of `limits` hold where these do, whatever was spent. A dataset of n releases states n times its references;
    checking each of them against all n would take n² evaluations.
    """
    lowest: dict[Any, BudgetLimit] = {}
    for limit in limits:
        key = _reference(limit)
        if key not in lowest or limit.rho < lowest[key].rho:
            lowest[key] = limit
    return list(lowest.values())


def _reference(limit: BudgetLimit) -> Any:
    if isinstance(limit.at, tuple):
        return tuple((frozenset(row.at.items()), row.places, frozenset(row.cells.items())) for row in limit.at)
    return frozenset(limit.at.items()), limit.places
