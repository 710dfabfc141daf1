"""The durable accountant: one append-only, hash-chained table, written in whole transactions."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, insert, select

from pipeline.accounting.accountant import BudgetLimit, Charged, check
from pipeline.accounting.tightest import tightest
from pipeline.errors import StateError
from pipeline.ledger.database import Database
from pipeline.ledger.databases import database_at
from pipeline.ledger.diagnosed import Diagnosed
from pipeline.ledger.entries import DIAGNOSED, GENESIS, Act, Entry, next_entry
from pipeline.ledger.fold import ReleaseState, charges_with_next_draw, fold, require_free_for_draw, step
from pipeline.ledger.reservation import Reservation, charged, limits_of, require_dataset, require_same
from pipeline.ledger.schema import ENTRIES


def open_ledger(url: str | None = None, wait: float = 30.0) -> "Ledger":
    """Return the ledger at `url`, made where it is absent; None for the user's own, in the state directory.

    A path or sqlite:///path names a file, postgresql://user@host/database a server's database. A step waits at most
    `wait` seconds for another process, which takes milliseconds. Raises PlanError for another kind of database and for
    a server beyond this machine without a verified connection, StateError where it cannot be a ledger of this user.
    """
    database = database_at(url, wait)
    database.require_version()
    return Ledger(database)


def migrate_ledger(url: str | None = None, wait: float = 30.0) -> tuple[int, "Ledger"]:
    """Bring the schema of the ledger at `url` to this prdp's version; return the one it had, and the ledger.

    Its chain is verified first and stays as it is. Older versions of prdp refuse the ledger afterwards.
    """
    database = database_at(url, wait)
    Ledger(database).verify()
    before = database.migrate()
    database.require_version()
    return before, Ledger(database)


class Ledger:
    """One ledger: what was reserved, drawn, charged and published, and nothing that was drawn twice.

    Guarantee: each method that writes reads, checks and appends in one transaction that no other can enter, so
    that no two processes together exceed a limit, and of two attempts at a release one is published at most. A
    method that raises wrote nothing; where a server is lost while it commits, it wrote all or nothing, and the next
    run goes on from either. All raise StateError, in one line, where the release's state forbids the step, where the
    database cannot be used, and where a lock that this ledger gave out was lost.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def path(self) -> Path | None:
        """The file that holds the ledger; None where a server does."""
        return self._database.path

    @property
    def staging_root(self) -> Path:
        """The folder under which attempts are staged unless a run names another place: beside a ledger's file."""
        return self._database.staging_root

    def lock(self, release: str) -> AbstractContextManager[None]:
        """Hold the lock on `release` for a block; StateError at once where another attempt is alive."""
        return self._database.lock(release)

    def state(self, release: str) -> ReleaseState | None:
        """Return what the ledger says of `release`, None where it was never reserved."""
        with self._reading() as connection:
            return _state(connection, release)

    def states(self) -> list[ReleaseState]:
        """Return the states of all releases, in the order of first reservation."""
        with self._reading() as connection:
            return list(_states(connection, None).values())

    def diagnoses(self) -> list[Diagnosed]:
        """Return all runs of diagnostics, in order."""
        with self._reading() as connection:
            return [Diagnosed.of(entry) for entry in _entries(connection, ENTRIES.c.event == DIAGNOSED)]

    def head(self) -> tuple[int, str]:
        """Return the last entry's number and hash; (0, 64 zeros) for an empty ledger."""
        with self._reading() as connection:
            return _head(connection)

    def verify(self) -> tuple[int, str]:
        """Return the head after checking every entry: its hash, its link, no gap, and a legal history.

        Raises StateError that names the first bad entry. Entries cut from the end leave no trace in the file: compare
        the head with one that was published.
        """
        seq, head = 0, GENESIS
        states: dict[str, ReleaseState] = {}
        with self._reading() as connection:
            for entry in _entries(connection, None):
                if not entry.follows(seq, head):
                    raise _changed(seq + 1)
                try:
                    if entry.of_release:
                        states[entry.release] = step(states.get(entry.release), entry)
                    else:
                        Diagnosed.of(entry)
                except (StateError, ValueError, KeyError, TypeError) as error:
                    raise StateError(f"the ledger breaks its own rules at entry {entry.seq}: {error}") from None
                seq, head = entry.seq, entry.hash
        return seq, head

    def reserve(self, wanted: Reservation) -> ReleaseState:
        """Reserve a release and charge its policy once; return its state.

        The same release with the same digest and output place is not reserved again: its present state is returned.
        The limits of the dataset's earlier releases bind as well: they were fixed before this plan was written. Raises
        BudgetRefused where a limit would be exceeded; StateError where the name is taken with another digest
        or place or was aborted after a draw, where the dataset's facts disagree, or where what it supersedes is no
        published release of the dataset.
        """
        with self._writing() as connection:
            state = _state(connection, wanted.release)
            if state is not None and not state.refunded:
                if state.status == "aborted":
                    raise StateError(
                        f"release {wanted.release}: was aborted after a draw and stays charged: choose another name"
                    )
                require_same(state, wanted)
                return state
            others = _charged_states(connection, wanted.dataset)
            _require_published(wanted, others)
            if others:  # the first that counts fixes the dataset's facts
                require_dataset(others[0].reservation["dataset_facts"], wanted)
            requested = Charged(wanted.release, wanted.policy, 1)
            spent = [charged(other, other.charges) for other in others]
            check(_binding(wanted.limits, others), spent, requested)
            act = Act("reserved", wanted.dataset, wanted.release, None, wanted.facts())
            return _append(connection, state, act)

    def draw(self, release: str, pin: str, staging: str | None = None) -> str:
        """Record that a draw on the pinned input is about to be made, and return its attempt: 16 hexadecimal digits.

        Call it after the totals are materialised and before a key exists. The attempt is public and says nothing of
        any key. One charge pays for three draws of which none was exposed; a further draw is made only after every
        draw is charged: raises BudgetRefused where that exceeds a limit. `pin` is the digest of the input, `staging`
        the root under which the attempt will be staged, None for the one beside the ledger.
        """
        with self._writing() as connection:
            state = _require(connection, release)
            require_free_for_draw(state)
            charges = charges_with_next_draw(state)
            if charges > state.charges:
                others = [s for s in _charged_states(connection, state.dataset) if s.release != release]
                spent = [charged(other, other.charges) for other in others]
                # This release is requested anew with all its draws, so its earlier charge is not counted as spent.
                check(_binding(limits_of(state), others), spent, charged(state, charges))
                state = _record(connection, state, "charged", {"charges": charges}, None)
            attempt = os.urandom(8).hex()
            facts: dict[str, Any] = {"draw": state.draws + 1, "pin": pin}
            if staging is not None:
                facts["staging"] = staging
            _record(connection, state, "drawn", facts, attempt)
            return attempt

    def destroyed(self, release: str, attempt: str, reason: str, exposed: bool) -> ReleaseState:
        """Record that the staging of the live `attempt` was destroyed, and whether others may have seen it."""
        facts = {"reason": reason, "exposed": exposed}
        return self._advance(release, "destroyed", facts, attempt)

    def publish(self, release: str, attempt: str, contents: str) -> ReleaseState:
        """Choose `attempt` as the one that is seen, where it is the live one (compare-and-set).

        `contents` is the digest of the staged files; the returned state's `head` is the ledger's head hash.
        """
        return self._advance(release, "published", {"contents": contents}, attempt)

    def settle(self, release: str, attempt: str) -> ReleaseState:
        """Record that the published attempt stands whole in its output place."""
        return self._advance(release, "settled", {}, attempt)

    def abort(self, release: str) -> ReleaseState:
        """Give up a release that is not published; its charge is given back only where nothing was drawn."""
        return self._advance(release, "aborted", {}, None)

    def diagnosed(self, run: Diagnosed) -> None:
        """Record that confidential diagnostics of a plan are about to be made; call it before any result exists.

        The run's own time is not used: the entry is dated as every other. It says nothing of what is in the microdata
        but the digest of the pinned input.
        """
        with self._writing() as connection:
            seq, head = _head(connection)
            entry = next_entry(seq, head, Act(DIAGNOSED, run.dataset, run.release, None, run.facts()))
            connection.execute(insert(ENTRIES).values(entry.columns))

    def _advance(self, release: str, event: str, facts: Mapping[str, Any], attempt: str | None) -> ReleaseState:
        with self._writing() as connection:
            return _record(connection, _require(connection, release), event, facts, attempt)

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._database.reading()

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._database.writing()


def _entries(connection: Connection, where: ColumnElement[bool] | None) -> Iterator[Entry]:
    """The entries that meet `where` (None: all), in order; StateError at one that is not what was written."""
    query = select(ENTRIES).order_by(ENTRIES.c.seq)
    for row in connection.execute(query if where is None else query.where(where)).mappings():
        entry = Entry(**row)
        if entry.hash != entry.hash_due():
            raise _changed(entry.seq)
        yield entry


def _changed(seq: int) -> StateError:
    return StateError(f"the ledger was changed at entry {seq}: restore it from a backup")


def _state(connection: Connection, release: str) -> ReleaseState | None:
    return fold(entry for entry in _entries(connection, ENTRIES.c.release == release) if entry.of_release)


def _require(connection: Connection, release: str) -> ReleaseState:
    state = _state(connection, release)
    if state is None:
        raise StateError(f"release {release}: is not in the ledger: reserve it first")
    return state


def _charged_states(connection: Connection, dataset: str) -> list[ReleaseState]:
    """Every release of the dataset that counts against its budget, in the order of first reservation."""
    states = _states(connection, ENTRIES.c.dataset == dataset)
    return [state for state in states.values() if state.charges > 0]


def _states(connection: Connection, where: ColumnElement[bool] | None) -> dict[str, ReleaseState]:
    states: dict[str, ReleaseState] = {}
    for entry in _entries(connection, where):
        if entry.of_release:
            states[entry.release] = step(states.get(entry.release), entry)
    return states


def _binding(own: Sequence[BudgetLimit], others: Iterable[ReleaseState]) -> Sequence[BudgetLimit]:
    """Return the release's own limits, then those under which the dataset's other releases were charged.

    Places are those of the release that stated the limit, so another's limits are taken at the worst place.
    """
    earlier = (
        replace(limit.anywhere(), label=f"{limit.label} (a limit of release {other.release})")
        for other in others
        for limit in limits_of(other)
    )
    return tightest([*own, *earlier])


def _head(connection: Connection) -> tuple[int, str]:
    last = connection.execute(
        select(ENTRIES.c.seq, ENTRIES.c.hash).order_by(ENTRIES.c.seq.desc()).limit(1)
    ).one_or_none()
    return (0, GENESIS) if last is None else (last.seq, last.hash)


def _append(connection: Connection, state: ReleaseState | None, act: Act) -> ReleaseState:
    """Append `act` where `step` lets it follow `state`, and return the state after it."""
    seq, head = _head(connection)
    entry = next_entry(seq, head, act)
    after = step(state, entry)
    connection.execute(insert(ENTRIES).values(entry.columns))
    return after


def _record(
    connection: Connection, state: ReleaseState, event: str, facts: Mapping[str, Any], attempt: str | None
) -> ReleaseState:
    return _append(connection, state, Act(event, state.dataset, state.release, attempt, facts))


def _require_published(wanted: Reservation, others: list[ReleaseState]) -> None:
    published = {state.release for state in others if state.status in ("published", "settled")}
    if wanted.supersedes is not None and wanted.supersedes not in published:
        raise StateError(
            f"release {wanted.release}: supersedes {wanted.supersedes}, which is no published release "
            f"of dataset {wanted.dataset}: correct the name"
        )
