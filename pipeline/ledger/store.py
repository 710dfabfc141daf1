"""The ledger: the durable accountant, one append-only, hash-chained table, written in single transactions.

The way of a release: `reserve` charges its policy, `draw` begins an attempt, `publish` chooses the one that is seen,
`settle` closes it; fold.py holds which step may follow which.
"""

import copy
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, func, insert, select

from pipeline.errors import PlanError, StateError
from pipeline.ledger.address import database_at
from pipeline.ledger.admission import require_covers, require_fits, require_reservable, standing
from pipeline.ledger.approvals import MOST, Required, required_by, required_step
from pipeline.ledger.copies import known_as, require_no_copies, salted
from pipeline.ledger.database import ENTRIES, Database
from pipeline.ledger.datasets import (
    CORRECT,
    INIT,
    RAISE,
    Budget,
    budget_step,
    budgets_of,
    require_correctable,
    require_fits_releases,
    require_like_records,
    require_new,
    require_same_record,
    rules_of,
)
from pipeline.ledger.entries import (
    CHECKED,
    CLOSED,
    DIAGNOSED,
    REOPENED,
    Act,
    Diagnosed,
    Entry,
    append,
    changed,
    closed_by,
    entries,
    head_of,
)
from pipeline.ledger.fold import (
    ReleaseState,
    advance,
    charges_with_next_draw,
    require_free_for_draw,
    require_state,
    state_of,
    states_of,
)
from pipeline.ledger.limits import Account, accounts
from pipeline.ledger.refusals import refusals_of
from pipeline.ledger.reservation import Reservation, charged, limits_of, with_another_test
from pipeline.ledger.summaries import Kept, Summaries, require_true
from pipeline.ledger.summary import Row
from pipeline.ledger.synthetic import require_released_alike
from pipeline.ledger.verification import verified


def open_ledger(url: str | None = None, wait: float = 30.0, *, first_use: bool = True) -> "Ledger":
    """Return the ledger at `url`; None for the user's own, in the state directory, which its `first_use` makes.

    A path or sqlite:///path names a file, postgresql://user@host/database a server's database: a ledger there is made
    by `create_ledger` alone, so that a mistyped address never begins one in which nothing was spent. A step waits at
    most `wait` seconds for another process, which takes milliseconds. Raises PlanError for another kind of database and
    for a server beyond this machine without a verified connection, StateError where there is no ledger, or none that
    this user may keep.
    """
    return _opened(database_at(url, wait, make=url is None and first_use))


def create_ledger(url: str | None = None, wait: float = 30.0) -> "Ledger":
    """Return the ledger at `url`, made where it is absent; takes and raises what `open_ledger` does."""
    return _opened(database_at(url, wait, make=True))


def migrate_ledger(url: str | None = None, wait: float = 30.0) -> tuple[int, "Ledger"]:
    """Bring the schema of the ledger at `url` to this prdp's version; return the one it had, and the ledger.

    Its chain is verified first and stays as it is. Older versions of prdp refuse the ledger afterwards.
    """
    database = database_at(url, wait, make=False)
    Ledger(database).verify()
    before = database.migrate()
    return before, _opened(database)


def import_ledger(chain: Sequence[Entry], url: str | None = None, wait: float = 30.0) -> "Ledger":
    """Return the ledger at `url`, made where it is absent, with the whole `chain` of another one, closed.

    Its identity is that of the other: entries keep their hashes. Raises StateError where an entry is not what was
    written or could not follow, and where the ledger at `url` has entries already.
    """
    if not chain:  # before a ledger is made: an empty one would let everything be spent again
        raise StateError("the export holds no entry")
    verified(chain)
    wrong = next((entry.seq for entry in chain if entry.hash != entry.hash_due()), None)
    if wrong is not None:
        raise changed(wrong)
    made: list[str] = []

    def fill(connection: Connection) -> None:
        if head_of(connection)[0] != 0:
            raise StateError("the ledger has entries already: import into a new one")
        for entry in chain:
            connection.execute(insert(ENTRIES).values(entry.columns))
        if closed_by(connection) is None:
            append(connection, Act(CLOSED, "", "", None, {"reason": "imported"}))
        made.append(chain[0].hash)

    # A ledger that is made for it is there with the whole chain, closed, or not at all: an empty one would be open.
    ledger = _opened(database_at(url, wait, make=True, fill=fill))
    if made != [ledger.identity()]:
        with ledger._writing() as connection:
            fill(connection)
    return ledger


def _opened(database: Database) -> "Ledger":
    database.require_version()
    return Ledger(database)


def _check_before(connection: Connection, dataset: str) -> dict[str, Any]:
    """Return the facts of a reservation that name the last check of its dataset's microdata; none without one."""
    of_dataset = (ENTRIES.c.event == CHECKED) & (ENTRIES.c.dataset == dataset)
    last = connection.execute(select(func.max(ENTRIES.c.seq)).where(of_dataset)).scalar()
    check = next(entries(connection, ENTRIES.c.seq == last), None)
    return {} if check is None else {"check": {"entry": last, "time": check.time, "digest": check.facts["digest"]}}


class Ledger:
    """One ledger: what was reserved, charged, drawn and published.

    Guarantee: each method that writes reads, checks and appends in one transaction that no other can enter, so
    that no two processes together exceed a limit, and of two attempts at a release one is published at most. A
    method that raises wrote nothing; where a server is lost while it commits, it wrote all or nothing, and the next
    run goes on from either. All raise StateError, in one line, where the release's state forbids the step, where the
    database cannot be used, and where a lock of this ledger was lost; PrdpError where no server answers.
    """

    operator: str | None = None

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def address(self) -> str:
        """The file, or the server's address without password, as messages name the ledger."""
        return self._database.name

    @property
    def path(self) -> Path | None:
        """The file that holds the ledger; None where a server does."""
        return self._database.path

    @property
    def staging_root(self) -> Path:
        """The folder under which attempts are staged unless a run names another: beside a ledger's file."""
        return self._database.staging_root

    def connection_files(self) -> Mapping[str, Path]:
        """The files that a connection to a server reads, by the names of its settings; none for a file."""
        return self._database.connection_files()

    def served_certificate(self) -> bytes | None:
        """The certificate, in DER, that the ledger's server shows; None for a file, and where it shows none."""
        return self._database.served_certificate()

    def server_time(self) -> datetime | None:
        """Return what the server's clock says, with its zone; None where the ledger is a file of this machine."""
        with self._reading() as connection:
            return None if self.path else connection.execute(select(func.clock_timestamp())).scalar_one()

    def lock(self, release: str) -> AbstractContextManager[None]:
        """Hold the lock on `release` for a block; StateError at once where another attempt is alive."""
        return self._database.lock(release)

    def state(self, release: str) -> ReleaseState | None:
        """Return the state of `release`, None where it was never reserved."""
        with self._reading() as connection:
            return state_of(connection, release)

    def states(self) -> list[ReleaseState]:
        """Return the states of all releases, in the order of first reservation."""
        with self._reading() as connection:
            return list(states_of(connection).values())

    def diagnoses(self) -> list[Diagnosed]:
        """Return all runs of diagnostics, and all checks of microdata, in order."""
        with self._reading() as connection:
            of_runs = ENTRIES.c.event.in_((DIAGNOSED, CHECKED))
            return [Diagnosed.of(entry) for entry in entries(connection, of_runs)]

    def head(self) -> tuple[int, str]:
        """Return the last entry's number and hash; (0, 64 zeros) for an empty ledger."""
        with self._reading() as connection:
            return head_of(connection)

    def identity(self) -> str | None:
        """Return the hash of the first entry, which no other ledger has, wherever this one lies; None while empty."""
        with self._reading() as connection:
            return next((entry.hash for entry in entries(connection, ENTRIES.c.seq == 1)), None)

    def budgets(self) -> dict[str, Budget]:
        """Return the registered datasets and families by name."""
        with self._reading() as connection:
            return budgets_of(connection)

    def dataset_with(self, fingerprints: Sequence[str]) -> str | None:
        """Return a dataset, registered or ever reserved, of which a file with one of the fingerprints is; else None."""
        with self._reading() as connection:
            return known_as(connection, fingerprints, budgets_of(connection))

    def entries(self, release: str | None = None) -> list[Entry]:
        """Return all entries in order, or those that name a release; each is checked against its hash."""
        with self._reading() as connection:
            return list(entries(connection, None if release is None else ENTRIES.c.release == release))

    def overview(self) -> tuple[list[tuple[str, Row]], list[Account]]:
        """Return all releases in brief with their datasets, in order, and the accounts of datasets and families."""
        with self._reading() as connection:
            summaries = Summaries(connection)
            return summaries.rows(), accounts(summaries.budgets, summaries.states())

    def sources(self) -> set[tuple[str, str | None]]:
        """Return each dataset of which a release is charged, with where the microdata of one lay."""
        with self._reading() as connection:
            charged = (state for state in Summaries(connection).states() if state.charges > 0)
            return {(state.dataset, state.reservation.get("source")) for state in charged}

    def verify(self) -> tuple[int, str]:
        """Return the head after checking every entry: its hash, its link, no gap, and a legal history.

        Raises StateError that names the first bad entry. Entries cut from the end leave no trace in the file: compare
        the head with one that was published.
        """
        with self._reading() as connection:
            head = verified(entries(connection))
            require_true(connection)
            return head

    def register(self, budget: Budget, fingerprints: Sequence[str] = ()) -> None:
        """Register a dataset or a family with its limits, before or after its first release.

        `fingerprints` are those of its files' contents, where they can be read. Raises StateError where the name, the
        microdata or a release disagree, BudgetRefused where more is spent already.
        """
        with self._writing() as connection:
            self._register(connection, INIT, budget, fingerprints)

    def correct(self, budget: Budget, fingerprints: Sequence[str] = ()) -> None:
        """Register a dataset or a family anew, in all but its name, while nothing was released under it.

        Raises StateError where something was, or where it is not registered, and as `register`.
        """
        with self._writing() as connection:
            summaries = Summaries(connection)
            require_correctable(summaries.kin, budget, summaries.states())
            self._register(connection, CORRECT, budget, fingerprints)

    def _register(self, connection: Connection, act: str, budget: Budget, fingerprints: Sequence[str]) -> None:
        budgets = budgets_of(connection)
        before = budgets.pop(budget.name, None) if act == CORRECT else None
        summaries = Summaries(connection)
        joined = summaries.joined(budgets)
        require_new(budgets, budget, joined)
        states = summaries.states()
        require_fits_releases(budget, states)
        kin = joined | {budget.name: budget}
        require_like_records(budget.name, rules_of(budget.facts), kin, states, "the budget's file")
        require_no_copies(summaries, budget.name, fingerprints, kin)
        require_released_alike(budget.name, budget.synthetic, (s for s in states if s.dataset == budget.name))
        require_covers(summaries, joined, budget)
        registered = budget.act(act)
        signed = self._signed(replace(registered, facts={**registered.facts, **salted(fingerprints)}))
        append(connection, signed, partial(budget_step, before))

    def raise_limits(self, wanted: Budget, reason: str) -> None:
        """State the limits of a registered dataset or family anew, higher or lower, for a recorded reason.

        The new limits replace all earlier ones, those of earlier plans too. Raises StateError where it is
        not registered or `wanted` differs in more than the limits, BudgetRefused where more is spent already.
        """
        with self._writing() as connection:
            budgets = budgets_of(connection)
            before = budgets.get(wanted.name)
            stated = require_same_record(before, wanted)
            summaries = Summaries(connection)
            states = summaries.states([wanted.name])
            require_like_records(wanted.name, rules_of(wanted.facts), summaries.kin, states, "the budget's file")
            require_covers(summaries, summaries.kin, stated)
            append(connection, self._signed(stated.act(RAISE, reason)), partial(budget_step, before))

    def reserve(self, wanted: Reservation, registered_only: bool = False) -> ReleaseState:
        """Reserve a release and charge its policy once; return its state.

        The same release with the same digest and output location is not reserved again: its present state is returned.
        The limits of the dataset and its family bind on top of the plan's own; where it is not registered, or was not
        yet, those of its earlier releases do: they were fixed before this plan was written. The last check of the
        dataset's microdata, if any, is named in the reservation. Raises BudgetRefused where
        a limit would be exceeded; StateError where the name is taken with another digest or location or was aborted
        after a draw, where the dataset's facts or source disagree, where it is not registered but `registered_only`,
        or where what it supersedes is no published release of the dataset.
        """
        computed = self._computed(wanted, registered_only)
        with self._writing() as connection:
            summaries = Summaries(connection, computed)
            state = standing(summaries, wanted, registered_only)
            if state is not None:
                return state
            stated = require_reservable(summaries, wanted)
            files = salted(wanted.fingerprints) | self._required(connection)
            facts = wanted.facts(stated) | files | _check_before(connection, wanted.dataset) | summaries.keep()
            act = Act("reserved", wanted.dataset, wanted.release, None, facts)
            return advance(connection, state_of(connection, wanted.release), self._signed(act))

    def check(self, wanted: Reservation, registered_only: bool = False) -> ReleaseState | None:
        """Return the state of a reservation that stands already, None where `reserve` would make it; writes nothing.

        Raises what `reserve` would. Another release may come before this one: `reserve` alone decides.
        """
        with self._reading() as connection:
            summaries = Summaries(connection)
            state = standing(summaries, wanted, registered_only)
            if state is None:
                require_reservable(summaries, wanted)
                self._required(connection)
            return state

    def _required(self, connection: Connection) -> dict[str, Any]:
        """Return the facts of a reservation that say which approvals it takes; none where the ledger asks for none."""
        required = required_by(connection)
        if required is None:
            return {}
        self._require_roles(required)
        return required.facts

    def _require_roles(self, required: Required) -> None:
        """Raise StateError where the ledger is a file: there a name that is typed is all there is."""
        if self._database.role is None:
            raise StateError(
                f"the ledger {self.address} is a file, where nothing proves who approves: {required.words} are for "
                "ledgers on PostgreSQL"
            )

    def _computed(self, wanted: Reservation, registered_only: bool) -> Kept | None:
        """Return summaries that may take minutes to compute, before others are kept waiting; None where they are kept.

        Raises what `reserve` does where it would refuse `wanted` now.
        """
        with self._reading() as connection:
            summaries = Summaries(connection)
            if summaries.vouched or standing(summaries, wanted, registered_only) is not None:
                return None
            require_reservable(summaries, wanted)
            accounts(summaries.budgets, summaries.states())  # of all datasets, so that showing evaluates none again
            return summaries.current()

    def test(self, release: str, pin: str, kept: int, left_out: int) -> ReleaseState:
        """Record the test of records left out that was drawn on the pinned input; return the state after it.

        Call it with noisy counts that nobody has seen. The reservation pays for its first test; another one, of an
        input that has changed since, is charged by itself: raises BudgetRefused where that exceeds a limit.
        """
        with self._writing() as connection:
            state = require_state(connection, release)
            require_free_for_draw(state)
            if any(test.since == state.since for test in state.tests):  # whatever this one says
                require_fits(Summaries(connection), state.dataset, with_another_test(state), limits_of(state))
            passed = state.test is not None and state.test.passes(kept, left_out)
            facts = {"kept": kept, "left_out": left_out, "passed": passed, "pin": pin}
            return self._record(connection, state, "tested", facts, None)

    def refuse(self, release: str) -> ReleaseState:
        """Record that a release was refused because of its records; its charge is refunded if nothing was drawn."""
        return self._advance(release, "refused", {}, None)

    def refusals(self) -> dict[str, int]:
        """Return how many releases were refused because of their records, by dataset."""
        with self._reading() as connection:
            return refusals_of(Summaries(connection))

    def draw(self, release: str, pin: str, staging: str | None = None) -> str:
        """Record that a draw on the pinned input is about to be made, and return its attempt: 16 hexadecimal digits.

        Call it after the totals are materialised and before a key exists. The attempt is public and says nothing of
        any key. One charge pays for three draws of which none was exposed; a further draw is made only after every
        draw is charged: raises BudgetRefused where that exceeds a limit. `pin` is the digest of the input, `staging`
        the root under which the attempt will be staged, None for the one beside the ledger.
        """
        with self._writing() as connection:
            state = require_state(connection, release)
            require_free_for_draw(state)
            charges = charges_with_next_draw(state)
            if charges > state.charges:
                # This release is requested anew with all its draws, so its earlier charge is not counted as spent.
                require_fits(Summaries(connection), state.dataset, charged(state, charges), limits_of(state))
                state = self._record(connection, state, "charged", {"charges": charges}, None)
            attempt = os.urandom(8).hex()
            facts: dict[str, Any] = {"draw": state.draws + 1, "pin": pin}
            if staging is not None:
                facts["staging"] = staging
            self._record(connection, state, "drawn", facts, attempt)
            return attempt

    def require_live(self, release: str, attempt: str) -> None:
        """Raise StateError unless `attempt` is drawn and live, and this process holds its lock; writes nothing.

        Call it before each file of a draw: another host may have destroyed it while this process stood still.
        """
        with self._writing() as connection:
            if require_state(connection, release).attempt != attempt:
                raise StateError(f"release {release}: attempt {attempt} was destroyed by another run: run again")

    def destroyed(self, release: str, attempt: str, reason: str, exposed: bool) -> ReleaseState:
        """Record that the staging of the live `attempt` was destroyed, and whether others may have seen it."""
        facts = {"reason": reason, "exposed": exposed}
        return self._advance(release, "destroyed", facts, attempt)

    def hold(self, release: str, attempt: str, contents: str) -> ReleaseState:
        """Hold the live `attempt`, complete and private, for an officer; `contents` is the digest of its files."""
        return self._advance(release, "held", {"contents": contents}, attempt)

    def required(self) -> Required | None:
        """Return the approvals that releases take which are reserved now; None: one, of those that are held."""
        with self._reading() as connection:
            return required_by(connection)

    def require_approvals(self, required: Required) -> None:
        """Ask for approvals by several roles of every release that is reserved from now on; never lowered again.

        Raises PlanError where the number is none from 1 to 9, StateError where the ledger asks for more already, and
        where it is a file: it knows no roles.
        """
        if type(required.number) is not int or not 1 <= required.number <= MOST:
            raise PlanError(f"approvals: must be by 1 to {MOST} roles, a whole number")
        self._require_roles(required)
        with self._writing() as connection:
            before = required_by(connection)
            if required != before:
                append(connection, self._signed(required.act), partial(required_step, before))

    def approve(self, release: str, attempt: str) -> ReleaseState:
        """Record an officer's approval of the held `attempt`, and of its files by their digest.

        The state that is returned is `approved`, and lets it be published, once there are as many as are asked for.
        """
        with self._writing() as connection:
            state = require_state(connection, release)
            return self._record(connection, state, "approved", {"contents": state.contents}, attempt)

    def revoke(self, release: str, attempt: str) -> ReleaseState:
        """Record that an approval of the held `attempt` is taken back, by the role that gave it."""
        return self._advance(release, "revoked", {}, attempt)

    def reject(self, release: str, attempt: str, reason: str) -> ReleaseState:
        """Record an officer's rejection of the held `attempt`: the charge stays, nothing more is drawn."""
        return self._advance(release, "rejected", {"reason": reason}, attempt)

    def withdraw(self, release: str, attempt: str, reason: str) -> ReleaseState:
        """Record that the published `attempt` is withdrawn: its loss stays, for it was seen."""
        return self._advance(release, "withdrawn", {"reason": reason}, attempt)

    def purged(self, release: str, staging: str | None, names: Sequence[str]) -> ReleaseState:
        """Record that what a release staged under the root `staging` by these `names` is removed."""
        return self._advance(release, "purged", {"staging": staging, "names": list(names)}, None)

    def publish(self, release: str, attempt: str, contents: str) -> ReleaseState:
        """Choose `attempt` as the one that is seen, where it is the live one (compare-and-set).

        `contents` is the digest of the staged files; the returned state's `head` is the ledger's head hash.
        """
        return self._advance(release, "published", {"contents": contents}, attempt)

    def settle(self, release: str, attempt: str) -> ReleaseState:
        """Record that the published attempt is complete at its output location."""
        return self._advance(release, "settled", {}, attempt)

    def abort(self, release: str) -> ReleaseState:
        """Abort a release that is not published; its charge is refunded only where nothing was drawn."""
        return self._advance(release, "aborted", {}, None)

    def diagnosed(self, run: Diagnosed) -> None:
        """Record that confidential diagnostics or a check of a plan are about to be made; before any result exists.

        The entry is dated as every other, and holds nothing of the microdata but the digest of the pinned input.
        """
        with self._writing() as connection:
            append(connection, self._signed(run.act()))

    def closed(self) -> Entry | None:
        """Return the entry that closed the ledger; None where it is open."""
        with self._reading() as connection:
            return closed_by(connection)

    def close(self, reason: str) -> None:
        """Close the ledger, for a recorded reason: nothing is written before it is opened again."""
        with self._writing() as connection:
            append(connection, self._signed(Act(CLOSED, "", "", None, {"reason": reason})))

    def reopen(self, found: Sequence[str]) -> None:
        """Open the closed ledger again; `found` are the releases whose published heads were found in its chain."""
        with self._writing() as connection:
            append(connection, self._signed(Act(REOPENED, "", "", None, {"found": list(found)})))

    def signed(self, operator: str) -> "Ledger":
        """Return this ledger with an operator to record, a person or program, in each entry; it proves nothing."""
        mine = copy.copy(self)
        mine.operator = operator
        return mine

    def _signed(self, act: Act) -> Act:
        named = {"operator": self.operator, "role": self._database.role}
        return replace(act, facts={**act.facts, **{name: who for name, who in named.items() if who is not None}})

    def _record(
        self, connection: Connection, state: ReleaseState, event: str, facts: Mapping[str, Any], attempt: str | None
    ) -> ReleaseState:
        return advance(connection, state, self._signed(Act(event, state.dataset, state.release, attempt, facts)))

    def _advance(self, release: str, event: str, facts: Mapping[str, Any], attempt: str | None) -> ReleaseState:
        with self._writing() as connection:
            return self._record(connection, require_state(connection, release), event, facts, attempt)

    def _reading(self) -> AbstractContextManager[Connection]:
        return self._database.reading()

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._database.writing()
