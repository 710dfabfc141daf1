"""Whether a chain of entries is whole: each linked to the one before it, and legal after all before it."""

from collections.abc import Iterable
from dataclasses import replace

from pipeline.errors import StateError
from pipeline.ledger.approvals import Required, require_carried, required_step
from pipeline.ledger.datasets import Budget, budget_step
from pipeline.ledger.entries import (
    BUDGETED,
    CHECKED,
    DIAGNOSED,
    GENESIS,
    REQUIRED,
    Diagnosed,
    Entry,
    changed,
    closed_after,
)
from pipeline.ledger.fold import ReleaseState, step

_UNCHANGING = ("settled", "rejected", "withdrawn")


def verified(chain: Iterable[Entry]) -> tuple[int, str]:
    """Return the number and hash of the last entry of the `chain`, each entry of which has its own hash.

    Raises StateError that names the first entry that is not linked to the one before it, or could not legally follow.
    """
    seq, head = 0, GENESIS
    closed: Entry | None = None
    states: dict[str, ReleaseState] = {}
    budgets: dict[str, Budget] = {}
    required: Required | None = None
    for entry in chain:
        if not entry.follows(seq, head):
            raise changed(seq + 1)
        try:
            closed = closed_after(closed, entry)
            if entry.event == "reserved":
                require_carried(required, entry)
            if entry.of_release:
                state = step(states.get(entry.release), entry)
                done = state.status in _UNCHANGING  # what was reserved and tested says nothing to later steps
                states[entry.release] = replace(state, reservation={}, tests=()) if done else state
            elif entry.event == BUDGETED:
                budgets[entry.dataset] = budget_step(budgets.get(entry.dataset), entry)
            elif entry.event == REQUIRED:
                required = required_step(required, entry)
            elif entry.event in (DIAGNOSED, CHECKED):
                Diagnosed.of(entry)
        except (StateError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"the ledger breaks its own rules at entry {entry.seq}: {error}") from None
        seq, head = entry.seq, entry.hash
    return seq, head
