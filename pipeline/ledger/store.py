"""The ledger: the durable accountant, one append-only, hash-chained table, written in single transactions.

The way of a release: `reserve` charges its policy, `draw` begins an attempt, `publish` chooses the one that is seen,
`settle` closes it; fold.py holds which step may follow which.
"""

import copy
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from pipeline.base.errors import PlanError, StateError, arg
from pipeline.base.plain import checked_reason
from pipeline.ledger import datasets, entries, fold
from pipeline.ledger.admission import accounts, require_covers, require_fits, require_reservable, standing
from pipeline.ledger.database import Connection, Database
from pipeline.ledger.database.address import database_at
from pipeline.ledger.datasets import CORRECT, INIT, OF_OFFICERS, RAISE, Budget, budget_step, budgets_of
from pipeline.ledger.entries import Act, Diagnosed, Entry, Required, append
from pipeline.ledger.fold import ReleaseState, advance, require_state
from pipeline.ledger.microdata_rules import require_no_copies, require_released_alike, salted
from pipeline.ledger.reading import ReadLedger, verified
from pipeline.ledger.reservation import Reservation, charged, limits_of, with_another_test
from pipeline.ledger.summaries import Kept, Summaries


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


def migrate_ledger(url: str | None = None, wait: float = 30.0, *, leave_drawn: bool = False) -> tuple[int, "Ledger"]:
    """Bring the schema of the ledger at `url` to this prdp's version; return the one it had, and the ledger.

    Its chain is verified first and stays as it is. Older versions of prdp refuse the ledger afterwards, and no other
    build goes on with what one has drawn: raises StateError where a release is `drawn`, unless with `leave_drawn`.
    """
    database = database_at(url, wait, make=False)
    ledger = Ledger(database)
    ledger.verify()
    drawn = [state.release for state in ledger.states() if state.status == "drawn"]
    if drawn and not leave_drawn and not database.is_current():
        raise StateError(
            f"the ledger {database.name}: {', '.join(drawn)} is drawn, and another build of prdp may not finish it: "
            f"run it with the one that drew it, or leave it as it is ({arg('leave_drawn')}): aborted, it stays charged"
        )
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
        raise entries.changed(wrong)
    made: list[str] = []

    def fill(connection: Connection) -> None:
        if entries.head_of(connection)[0] != 0:
            raise StateError("the ledger has entries already: import into a new one")
        for entry in chain:
            entries.write(connection, entry)
        if entries.closed_by(connection) is None:
            append(connection, Act(entries.CLOSED, "", "", None, {"reason": "imported"}))
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


class Ledger(ReadLedger):
    """One ledger: what was reserved, charged, drawn and published.

    Guarantee: each method that writes reads, checks and appends in one transaction that no other can enter, so
    that no two processes together exceed a limit, and of two attempts at a release one is published at most. A
    method that raises wrote nothing; where a server is lost while it commits, it wrote all or nothing, and the next
    run goes on from either. All raise StateError, in one line, where the release's state forbids the step, where the
    database cannot be used, and where a lock of this ledger was lost; PrdpError where no server answers.
    """

    operator: str | None = None
    _live: tuple[tuple[int, str], str, str] | None = None  # the head under which an attempt was last seen to be live

    def register(self, budget: Budget, fingerprints: Sequence[str] = ()) -> None:
        """Register a dataset or a family with its limits, and the fingerprints of files that can be read.

        Raises StateError where name, microdata or a release disagree, BudgetRefused where more is spent already.
        """
        with self._writing() as connection:
            self._register(connection, INIT, budget, fingerprints)

    def correct(self, budget: Budget, fingerprints: Sequence[str] = ()) -> None:
        """Register a dataset or a family anew, in all but its name; StateError where it has a release."""
        with self._writing() as connection:
            summaries = Summaries(connection)
            datasets.require_correctable(summaries.kin, budget, summaries.states())
            self._register(connection, CORRECT, budget, fingerprints)

    def _register(self, connection: Connection, act: str, budget: Budget, fingerprints: Sequence[str]) -> None:
        budgets = budgets_of(connection)
        before = budgets.pop(budget.name, None) if act == CORRECT else None
        summaries = Summaries(connection)
        joined = summaries.joined(budgets)
        datasets.require_new(budgets, budget, joined)
        states = summaries.states()
        datasets.require_fits_releases(budget, states)
        kin = joined | {budget.name: budget}
        datasets.require_like_records(budget.name, datasets.rules_of(budget.facts), kin, states, OF_OFFICERS)
        require_no_copies(summaries, budget.name, fingerprints, kin)
        require_released_alike(budget.name, budget.synthetic, (s for s in states if s.dataset == budget.name))
        require_covers(summaries, joined, budget)
        registered = budget.act(act)
        signed = self._signed(replace(registered, facts={**registered.facts, **salted(fingerprints)}))
        append(connection, signed, partial(budget_step, before))

    def raise_limits(self, wanted: Budget, reason: str) -> None:
        """State the limits of a registered dataset or family anew; they replace all earlier ones, also those of plans.

        Raises StateError where `wanted` differs in more than the limits, BudgetRefused where more is spent already.
        """
        with self._writing() as connection:
            budgets = budgets_of(connection)
            before = budgets.get(wanted.name)
            stated = datasets.require_same_record(before, wanted)
            summaries = Summaries(connection)
            states = summaries.states([wanted.name])
            datasets.require_like_records(
                wanted.name, datasets.rules_of(wanted.facts), summaries.kin, states, OF_OFFICERS
            )
            require_covers(summaries, summaries.kin, stated)
            append(connection, self._signed(stated.act(RAISE, checked_reason(reason))), partial(budget_step, before))

    def reserve(self, wanted: Reservation, registered_only: bool = False) -> ReleaseState:
        """Reserve a release and charge its policy once; return its state.

        The same release with the same digest and output location is not reserved again: its present state is returned.
        The limits of the dataset and its family bind on top of the plan's own; where it is not registered, or was not
        yet, those of its earlier releases do: they were fixed before this plan was written. The last check of the
        dataset's microdata, if any, is named in the reservation. Raises BudgetRefused where a limit would be exceeded;
        StateError where the name is taken, the dataset's facts or source disagree, or it must be registered first.
        """
        computed = self._computed(wanted, registered_only)
        with self._writing() as connection:
            summaries = Summaries(connection, computed)
            state = standing(summaries, wanted, registered_only)
            if state is not None:
                return state
            stated = require_reservable(summaries, wanted)
            facts = wanted.facts(stated) | salted(wanted.fingerprints) | self._required(connection)
            of_dataset = "event = ? AND dataset = ?", entries.CHECKED, wanted.dataset
            if (check := entries.last_entry(connection, *of_dataset)) is not None:
                facts["check"] = {"entry": check.seq, "time": check.time, "digest": check.facts["digest"]}
            facts |= summaries.keep()
            act = Act("reserved", wanted.dataset, wanted.release, None, facts)
            return advance(connection, fold.state_of(connection, wanted.release), self._signed(act))

    def check(self, wanted: Reservation, registered_only: bool = False) -> ReleaseState | None:
        """Return the state of a reservation that stands already, None where `reserve` would make it now.

        Raises as `reserve`; nothing is written. Another release may come first: `reserve` alone decides.
        """
        with self.summaries() as summaries:
            state = standing(summaries, wanted, registered_only)
            if state is None:
                require_reservable(summaries, wanted)
                self._required(summaries.connection)
            return state

    def _required(self, connection: Connection) -> dict[str, Any]:
        required = entries.required_by(connection)
        if required is not None:
            self._require_roles(required)
        return {} if required is None else required.facts

    def _require_roles(self, required: Required) -> None:
        if self._database.role is None:  # there a name that is typed is all there is
            raise StateError(
                f"the ledger {self.address} is a file, where nothing proves who approves: {required.words} are for "
                "ledgers on PostgreSQL"
            )

    def _computed(self, wanted: Reservation, registered_only: bool) -> Kept | None:
        """Return summaries that may take minutes to compute, before others wait; None where they are kept."""
        with self.summaries() as summaries:
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
            fold.require_free_for_draw(state)
            if any(test.since == state.since for test in state.tests):  # whatever this one says
                require_fits(Summaries(connection), state.dataset, with_another_test(state), limits_of(state))
            passed = state.test is not None and state.test.passes(kept, left_out)
            facts = {"kept": kept, "left_out": left_out, "passed": passed, "pin": pin}
            return self._record(connection, state, "tested", facts, None)

    def refuse(self, release: str) -> ReleaseState:
        """Record that a release was refused because of its records; its charge is refunded if nothing was drawn."""
        return self._advance(release, "refused", {}, None)

    def draw(self, release: str, pin: str, staging: str | None = None) -> str:
        """Record that a draw on the pinned input is about to be made, and return its attempt: 16 hexadecimal digits.

        Call it after the totals are materialised and before a key exists. One charge pays for three draws of which none
        was exposed; a further draw is made only after every draw is charged: raises BudgetRefused where that exceeds a
        limit. `staging`: the root under which the attempt will be staged, None for the one beside the ledger.
        """
        with self._writing() as connection:
            state = require_state(connection, release)
            fold.require_free_for_draw(state)
            charges = fold.charges_with_next_draw(state)
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

        Call it before each file of a draw: another host may have destroyed it while this process stood still. While
        nothing was added to the ledger, nothing can have been.
        """
        with self._writing() as connection:
            head = entries.head_of(connection)
            if self._live == (head, release, attempt):
                return
            if require_state(connection, release).attempt != attempt:
                raise StateError(f"release {release}: attempt {attempt} was destroyed by another run: run again")
            self._live = head, release, attempt

    def destroyed(self, release: str, attempt: str, reason: str, exposed: bool) -> ReleaseState:
        """Record that the staging of the live `attempt` was destroyed, and whether others may have seen it."""
        facts = {"reason": reason, "exposed": exposed}
        return self._advance(release, "destroyed", facts, attempt)

    def hold(self, release: str, attempt: str, contents: str) -> ReleaseState:
        """Hold the live `attempt`, complete and private, for an officer; `contents` is the digest of its files."""
        return self._advance(release, "held", {"contents": contents}, attempt)

    def require_approvals(self, required: Required) -> None:
        """Ask for approvals by several roles of every release that is reserved from now on; never lowered again.

        Raises PlanError where the number is not 1 to 9, StateError where the ledger asks for more, or is a file.
        """
        if type(required.number) is not int or not 1 <= required.number <= entries.MOST:
            raise PlanError(f"approvals: must be by 1 to {entries.MOST} roles, a whole number")
        self._require_roles(required)
        with self._writing() as connection:
            before = entries.required_by(connection)
            if required != before:
                append(connection, self._signed(required.act), partial(entries.required_step, before))

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
        return self._advance(release, "rejected", {"reason": checked_reason(reason)}, attempt)

    def withdraw(self, release: str, attempt: str, reason: str) -> ReleaseState:
        """Record that the published `attempt` is withdrawn: its loss stays, for it was seen."""
        return self._advance(release, "withdrawn", {"reason": checked_reason(reason)}, attempt)

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
        """Record, before any result exists, that confidential diagnostics or a check of a plan are about to be made."""
        self._append(run.act())

    def close(self, reason: str) -> None:
        """Close the ledger, for a recorded reason: nothing is written before it is opened again."""
        self._append(Act(entries.CLOSED, "", "", None, {"reason": checked_reason(reason)}))

    def reopen(self, releases: Sequence[str]) -> None:
        """Open the closed ledger again; its chain has the published heads of these releases."""
        self._append(Act(entries.REOPENED, "", "", None, {"found": list(releases)}))

    def signed(self, operator: str) -> "Ledger":
        """Return this ledger with an operator to record, a person or program, in each entry; it proves nothing."""
        mine = copy.copy(self)
        mine.operator = operator
        return mine

    def _signed(self, act: Act) -> Act:
        named = {"operator": self.operator, "role": self._database.role}
        return replace(act, facts={**act.facts, **{name: who for name, who in named.items() if who is not None}})

    def _append(self, act: Act) -> None:
        with self._writing() as connection:
            append(connection, self._signed(act))

    def _record(
        self, connection: Connection, state: ReleaseState, event: str, facts: Mapping[str, Any], attempt: str | None
    ) -> ReleaseState:
        return advance(connection, state, self._signed(Act(event, state.dataset, state.release, attempt, facts)))

    def _advance(self, release: str, event: str, facts: Mapping[str, Any], attempt: str | None) -> ReleaseState:
        with self._writing() as connection:
            return self._record(connection, require_state(connection, release), event, facts, attempt)

    def _writing(self) -> AbstractContextManager[Connection]:
        return self._database.writing()
