"""Whether a chain of entries is intact, each linked to the one before and legal after all, and its summaries true."""

import json
from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import Connection

from pipeline.base.canonical import canonical_json
from pipeline.base.errors import StateError
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
from pipeline.ledger.summaries import Summaries, what_is_kept
from pipeline.ledger.summary import Summary

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


def require_true(connection: Connection) -> None:
    """Return if the summaries that are kept are those of the chain, computed anew; raises StateError otherwise.

    What was made by other code is not used, and so not looked at; nor is there anything to check where nothing is kept.
    """
    kept, due = what_is_kept(connection)
    if kept is None or not kept.texts:  # there are none in a ledger that was imported
        return
    if kept.digest != due:
        raise StateError(
            f"the ledger's summaries are not those that entry {kept.seq} vouches for: somebody changed them; they are "
            "not used, and the next reservation keeps new ones, computed from the chain"
        )
    anew = Summaries(connection, before=kept.seq)
    if set(anew.datasets) != set(kept.texts):
        raise _untrue(min(set(anew.datasets) ^ set(kept.texts)), kept.seq)
    for dataset, text in kept.texts.items():
        summary, known = anew.of(dataset), Summary(connection, dataset, text)
        summary.ask(known.references)
        if _only(summary.content(), text) != text:
            raise _untrue(dataset, kept.seq)


def _only(content: str, text: str) -> str:
    data, kept = json.loads(content), json.loads(text)
    for row, known in zip(data["rows"], kept["rows"], strict=False):
        row[-1] = [None if one is None else loss for loss, one in zip(row[-1], known[-1], strict=False)]
    return canonical_json(data)


def _untrue(dataset: str, seq: int) -> StateError:
    return StateError(
        f"the summary of dataset {dataset} that entry {seq} vouches for is not what the chain says: a release may have "
        "been reserved against a limit: compare the dataset's limits with prdp ledger show"
    )
