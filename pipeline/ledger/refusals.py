"""Refusals that depend on records: each is counted by dataset, and a public number of them is allowed.

A refusal is not differentially private: it says of the records that a rule was broken. So few of them may be had.
"""

from pipeline.errors import BudgetRefused
from pipeline.ledger.datasets import REFUSALS, Budget
from pipeline.ledger.summaries import Summaries


def refusals_of(kept: Summaries) -> dict[str, int]:
    """Return how many releases were refused because of their records, by dataset."""
    return {name: number for name in kept.datasets if (number := kept.of(name).refusals)}


def require_refusals_left(kept: Summaries, dataset: str, budget: Budget | None) -> None:
    """Return if a release of the dataset may be refused once more; raises BudgetRefused otherwise."""
    counted, allowed = kept.of(dataset).refusals, REFUSALS if budget is None else budget.refusals
    if counted >= allowed:
        act = "register it (prdp ledger init)" if budget is None else "state its budget anew (prdp ledger raise)"
        raise BudgetRefused(
            f"dataset {dataset}: {counted} of its releases were refused because of their records, {allowed} may be: "
            f"have an officer {act} with a larger number as refusals"
        )
