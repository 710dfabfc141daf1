"""The chain of all entries, checked from its beginning."""

from collections.abc import Iterable

from pipeline.errors import StateError
from pipeline.ledger.datasets import Budget, budget_step
from pipeline.ledger.diagnosed import Diagnosed
from pipeline.ledger.entries import BUDGETED, GENESIS, Entry
from pipeline.ledger.fold import ReleaseState, step
from pipeline.ledger.rows import changed


def verified(entries: Iterable[Entry]) -> tuple[int, str]:
    """Return the number and hash of the last of `entries`, each of which has its own hash, after checking the rest.

    That is their links, that none is missing between, and that each could legally follow. Raises StateError that
    names the first bad one.
    """
    seq, head = 0, GENESIS
    states: dict[str, ReleaseState] = {}
    budgets: dict[str, Budget] = {}
    for entry in entries:
        if not entry.follows(seq, head):
            raise changed(seq + 1)
        try:
            if entry.of_release:
                states[entry.release] = step(states.get(entry.release), entry)
            elif entry.event == BUDGETED:
                budgets[entry.dataset] = budget_step(budgets.get(entry.dataset), entry)
            else:
                Diagnosed.of(entry)
        except (StateError, ValueError, KeyError, TypeError) as error:
            raise StateError(f"the ledger breaks its own rules at entry {entry.seq}: {error}") from None
        seq, head = entry.seq, entry.hash
    return seq, head
