"""Entries read and appended inside one transaction, and the states that they fold to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select

from pipeline.errors import StateError
from pipeline.ledger.database import ENTRIES
from pipeline.ledger.entries import GENESIS, Act, Entry, next_entry
from pipeline.ledger.fold import ReleaseState, fold, step


def entries(connection: Connection, where: ColumnElement[bool] | None = None) -> Iterator[Entry]:
    """Yield the entries that meet `where` (None: all), in order; StateError at one that is not what was written."""
    query = select(ENTRIES).order_by(ENTRIES.c.seq)
    for row in connection.execute(query if where is None else query.where(where)).mappings():
        entry = Entry(**row)
        if entry.hash != entry.hash_due():
            raise changed(entry.seq)
        yield entry


def changed(seq: int) -> StateError:
    """Return the error that entry `seq` is not what was written."""
    return StateError(f"the ledger was changed at entry {seq}: restore it from a backup")


def state_of(connection: Connection, release: str) -> ReleaseState | None:
    """Return the state of a release; None where it was never reserved."""
    return fold(entry for entry in entries(connection, ENTRIES.c.release == release) if entry.of_release)


def require_state(connection: Connection, release: str) -> ReleaseState:
    """Return the state of a release; StateError where it was never reserved."""
    state = state_of(connection, release)
    if state is None:
        raise StateError(f"release {release}: is not in the ledger: reserve it first")
    return state


def states_of(connection: Connection, where: ColumnElement[bool] | None = None) -> dict[str, ReleaseState]:
    """Return the states of the releases whose entries meet `where`, by name, in the order of first reservation."""
    states: dict[str, ReleaseState] = {}
    for entry in entries(connection, where):
        if entry.of_release:
            states[entry.release] = step(states.get(entry.release), entry)
    return states


def head_of(connection: Connection) -> tuple[int, str]:
    """Return the last entry's number and hash; (0, 64 zeros) where there is none."""
    last = connection.execute(
        select(ENTRIES.c.seq, ENTRIES.c.hash).order_by(ENTRIES.c.seq.desc()).limit(1)
    ).one_or_none()
    return (0, GENESIS) if last is None else (last.seq, last.hash)


def append(connection: Connection, act: Act, legal: Callable[[Entry], object] = bool) -> Entry:
    """Append `act` at the end of the chain, unless `legal` raises at its entry, and return the entry."""
    entry = next_entry(*head_of(connection), act)
    legal(entry)
    connection.execute(insert(ENTRIES).values(entry.columns))
    return entry


def advance(connection: Connection, state: ReleaseState | None, act: Act) -> ReleaseState:
    """Append `act` where `step` lets it follow `state`, and return the state after it."""
    return step(state, append(connection, act, partial(step, state)))


# A run of confidential diagnostics, as the ledger keeps it.


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """That diagnostics of a plan were made: a plan tuned on them would be outside the guarantee
    (docs/architecture.md, rule 2).

    `digest` is the plan's, `pin` that of the input, `code` that of the code; `compared` the attempt that was held
    against the truth (None: no release was). `time` is the entry's, UTC, ISO 8601; empty before it is recorded.
    `operator` is who is said to have made it: the ledger that records it fills it in.
    """

    dataset: str
    release: str
    digest: str
    pin: str
    code: str
    engine: str
    per_record: bool
    compared: str | None
    time: str = ""
    operator: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> "Diagnosed":
        """Return what an entry says; raises ValueError, KeyError or TypeError where it is none of these."""
        facts = dict(entry.facts)
        return cls(dataset=entry.dataset, release=entry.release, time=entry.time, **facts)

    def facts(self) -> dict[str, Any]:
        """The run as JSON, as the ledger keeps it."""
        return {
            "digest": self.digest,
            "pin": self.pin,
            "code": self.code,
            "engine": self.engine,
            "per_record": self.per_record,
            "compared": self.compared,
        }
