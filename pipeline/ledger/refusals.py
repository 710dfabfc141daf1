"""Refusals that depend on records: each is counted by dataset, and a public number of them is allowed.

A refusal is not differentially private: it says of the records that a rule was broken. So few of them may be had.
"""

from collections import Counter

from sqlalchemy import Connection

from pipeline.errors import BudgetRefused
from pipeline.ledger.database import ENTRIES
from pipeline.ledger.datasets import REFUSALS, Budget
from pipeline.ledger.entries import REFUSAL_EVENTS, entries


def refusals_of(connection: Connection) -> dict[str, int]:
    """Return how many releases were refused because of their records, by dataset."""
    events = entries(connection, ENTRIES.c.event.in_(REFUSAL_EVENTS))
    return Counter(entry.dataset for entry in events if entry.refuses)


def require_refusals_left(connection: Connection, dataset: str, budget: Budget | None) -> None:
    """Return if a release of the dataset may be refused once more; raises BudgetRefused otherwise."""
    counted, allowed = refusals_of(connection).get(dataset, 0), REFUSALS if budget is None else budget.refusals
    if counted >= allowed:
        act = "register it (prdp ledger init)" if budget is None else "state its budget anew (prdp ledger raise)"
        raise BudgetRefused(
            f"dataset {dataset}: {counted} of its releases were refused because of their records, {allowed} may be: "
            f"have an officer {act} with a larger number as refusals"
        )
