"""The state of a release, a fold of its entries: which event may follow which, and what each costs.

reserved ─► drawn ─► published ─► settled ─► withdrawn      one charge, made with `reserved`
              ├─► destroyed: drawn without a live attempt, to be drawn again; beyond MAX_DRAWS draws, or where one
              │              was exposed, only after `charged` has added a charge for every draw
              └─► held ─► approved ─► published; or rejected, which ends it and keeps the charge
                       (by as many roles as the ledger asks for; `revoked` takes back one of them)
reserved ─► aborted          refunds the charge and frees the name
drawn, held ─► aborted       ends it and keeps the charge
reserved ─► refused          because of the records: as `aborted`, and counted against the dataset's limit of refusals

Where a test of records left out was reserved, `tested` records it before the first draw, once for each plan and input.
What was tested stays charged, whatever follows. A test that fails ends a reservation as `refused` does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from pipeline.accounting.accountant import LeftOutTest
from pipeline.base.errors import StateError
from pipeline.ledger.database import Connection
from pipeline.ledger.entries import Act, Approval, Entry, Required, append, entries, require_may_approve, unknown

MAX_DRAWS = 3  # so many draws, of which at most one is ever seen, cost one charge; with one more, each is charged

RUNS = ("reserved", "tested", "charged", "drawn", "destroyed", "held")  # who appends one of these runs the release

Status = Literal["reserved", "drawn", "held", "published", "settled", "aborted", "refused", "rejected", "withdrawn"]
PUBLIC = ("published", "settled")  # what stands at the output location

ENDED = {  # of releases for which nothing more is drawn, and whose names stay taken
    "aborted": "aborted after a draw and stays charged",
    "rejected": "rejected by an officer and stays charged",
    "withdrawn": "withdrawn and stays charged",
}


def ended(state: "ReleaseState") -> str:
    """Return the message that refuses to go on with a release that has ended."""
    return (
        f"release {state.release}: was {ENDED[state.status]}: nothing more is drawn under it, and whatever is released "
        "of its dataset next is charged in full on top"
    )


@dataclass(frozen=True, kw_only=True)
class Tested:
    """A recorded test of records left out: what it was, of which plan and input, and what it said."""

    digest: str
    pin: str
    test: LeftOutTest
    kept: int  # noisy, as `left_out`
    left_out: int
    passed: bool
    since: int  # the number of the entry that reserved what it was charged to
    reserved_on: str  # when that was, as of ReleaseState
    reservation: Mapping[str, Any]
    role: str | None = None  # as whom the ledger's server knew who ran it


@dataclass(frozen=True, kw_only=True)
class ReleaseState:
    """What the ledger records of one release; dates are UTC days, YYYY-MM-DD."""

    release: str
    dataset: str
    status: Status
    reservation: Mapping[str, Any]  # the facts that were reserved, as JSON
    attempt: str | None = None  # the live draw; none before the first, and after it was destroyed
    draws: int = 0
    charges: int = 1  # how often its policy counts against the budget; 0 after a refund
    tests: tuple[Tested, ...] = ()  # in order, of all reservations under the name
    exposed: bool = False  # whether others may have seen the staging of a draw
    stagings: tuple[str | None, ...] = ()  # the roots of the draws, as URIs; None: beside the ledger
    contents: str | None = None  # the digest of the staged files, from the held or the published entry
    approved: bool = False  # by as many officers as are asked for
    approvals: tuple[Approval, ...] = ()
    runners: frozenset[str | None] = frozenset()  # roles that ran it, or a test that stands; None: of a file
    reason: str | None = None  # why it was rejected or withdrawn
    withdrawn_on: str | None = None
    withdrawal: str | None = None  # the hash of the entry that withdrew it
    since: int = 0  # the number of the entry that reserved it
    reserved_on: str = ""  # its losses count in the year of this day
    head: str | None = None  # the hash of the published entry
    date: str | None = None

    @property
    def digest(self) -> str:
        """The digest of the plan."""
        return str(self.reservation["digest"])

    @property
    def out(self) -> str:
        """The output location, absolute."""
        return str(self.reservation["out"])

    @property
    def check(self) -> Mapping[str, Any] | None:
        """The check of the dataset's microdata that came before: its entry, time and plan's digest; None: none did."""
        return self.reservation.get("check")

    @property
    def hold(self) -> bool:
        """Whether it was reserved to be held: nothing of it is published before an officer approves."""
        return bool(self.reservation.get("hold")) or self.required is not None

    @property
    def required(self) -> Required | None:
        """The approvals that the ledger asked for when it was reserved; None: one, by anybody, if it is held."""
        return Required.of(self.reservation)

    @property
    def awaits_scan(self) -> bool:
        """Whether its microdata are being read, or will be, so that it may still be refused because of its records."""
        return self.status in ("reserved", "drawn") and self.attempt is None

    @property
    def refunded(self) -> bool:
        """Whether the release ended before any draw: its queries cost nothing, and its name is free again."""
        return self.status in ("aborted", "refused") and self.draws == 0

    @property
    def test(self) -> LeftOutTest | None:
        """The test of records left out that was reserved; None of reservations that are older than it."""
        facts = self.reservation.get("left_out_test")
        return None if facts is None else LeftOutTest.from_json(facts)

    def tested(self, digest: str, test: LeftOutTest | None, pin: str) -> Tested | None:
        """Return the recorded test of this plan and input, which is never drawn again; None where there is none."""
        return next((one for one in self.tests if (one.digest, one.test, one.pin) == (digest, test, pin)), None)

    @property
    def tests_alone(self) -> tuple[Tested, ...]:
        """The tests that no charge of the release's policy pays for: of refunded reservations, and repeated ones."""
        mine = [test for test in self.tests if test.since == self.since]
        earlier = [test for test in self.tests if test.since != self.since]
        return (*earlier, *mine[1 if self.charges else 0 :])

    @property
    def charged_since(self) -> set[int]:
        """The numbers of the entries that reserved anything that counts against the budget."""
        return {test.since for test in self.tests} | ({self.since} if self.charges else set())

    @property
    def counts(self) -> bool:
        """Whether anything of it counts against the budget."""
        return self.charges > 0 or bool(self.tests_alone)


def charges_with_next_draw(state: ReleaseState) -> int:
    """Return how often the policy of `state` must be charged once one more draw is made; never fewer than now.

    At most one draw is ever seen while staging stays private and draws are few: one charge. Otherwise each draw
    counts as if it had been seen.
    """
    draws = state.draws + 1
    return max(state.charges, draws if draws > MAX_DRAWS or state.exposed else 1)


def require_free_for_draw(state: ReleaseState) -> None:
    """Raise StateError unless the release is reserved, or drawn with no live attempt left."""
    if state.status not in ("reserved", "drawn"):
        raise StateError(f"release {state.release}: is {state.status}: nothing more can be drawn")
    if state.attempt is not None:
        raise StateError(
            f"release {state.release}: attempt {state.attempt} is drawn: publish it, or destroy it and record that"
        )


def step(state: ReleaseState | None, entry: Entry) -> ReleaseState:
    """Return the state after `entry` where it may follow `state`; raises StateError where it may not.

    Nothing else decides what is legal: the ledger appends nothing that is refused here.
    """
    after = _step(state, entry)
    return replace(after, runners=after.runners | {entry.role}) if entry.event in RUNS else after


def _step(state: ReleaseState | None, entry: Entry) -> ReleaseState:
    if entry.event == "reserved":
        return _reserved(state, entry)
    follow = _EVENTS.get(entry.event)
    if follow is None:
        raise StateError(f"release {entry.release}: the event {entry.event} is unknown to this version of prdp")
    if state is None or state.refunded:
        raise StateError(f"release {entry.release}: is not reserved")
    if entry.dataset != state.dataset:
        raise StateError(f"release {entry.release}: belongs to dataset {state.dataset}, not {entry.dataset}")
    return follow(state, entry)


def _reserved(state: ReleaseState | None, entry: Entry) -> ReleaseState:
    if state is not None and not state.refunded:
        taken = f"release {entry.release}: is {state.status} already"
        raise StateError(ended(state) if state.status in ENDED else taken)
    return ReleaseState(
        release=entry.release,
        dataset=entry.dataset,
        status="reserved",
        reservation=entry.facts,
        tests=() if state is None else state.tests,
        runners=frozenset() if state is None else frozenset(tested.role for tested in state.tests),
        since=entry.seq,
        reserved_on=entry.time[:10],
    )


def _tested(state: ReleaseState, entry: Entry) -> ReleaseState:
    require_free_for_draw(state)
    test, pin = state.test, str(entry.facts["pin"])
    if test is None:
        raise StateError(f"release {state.release}: was reserved without a test of records left out")
    if state.tested(state.digest, test, pin) is not None:
        raise StateError(f"release {state.release}: was tested with these microdata: no test is drawn twice")
    kept, left_out, passed = int(entry.facts["kept"]), int(entry.facts["left_out"]), bool(entry.facts["passed"])
    if passed != test.passes(kept, left_out):
        raise StateError(f"release {state.release}: the test of records left out says otherwise by its counts")
    counts: dict[str, Any] = {"kept": kept, "left_out": left_out, "passed": passed}
    of: dict[str, Any] = {"digest": state.digest, "pin": pin, "since": state.since, "reservation": state.reservation}
    of["reserved_on"] = state.reserved_on
    after = replace(state, tests=(*state.tests, Tested(test=test, role=entry.role, **counts, **of)))
    return after if passed else _without_charge(after)


def _refused(state: ReleaseState, entry: Entry) -> ReleaseState:
    require_free_for_draw(state)
    return _without_charge(state)


def _without_charge(state: ReleaseState) -> ReleaseState:
    # After a draw the charge stays, and so does the reservation: mended microdata can still be drawn from.
    return state if state.draws else replace(state, status="refused", charges=0)


def _charged(state: ReleaseState, entry: Entry) -> ReleaseState:
    require_free_for_draw(state)
    charges = int(entry.facts["charges"])
    if not charges > state.charges:
        raise StateError(f"release {state.release}: a charge can only be added, never taken back")
    return replace(state, charges=charges)


def _drawn(state: ReleaseState, entry: Entry) -> ReleaseState:
    require_free_for_draw(state)
    if entry.attempt is None or entry.facts["draw"] != state.draws + 1:
        raise StateError(f"release {state.release}: draw {entry.facts['draw']} follows draw {state.draws}")
    if charges_with_next_draw(state) > state.charges:
        raise StateError(f"release {state.release}: draw {state.draws + 1} must be charged before it is made")
    if state.test is not None:
        tested = state.tested(state.digest, state.test, str(entry.facts["pin"]))
        if tested is None or not tested.passed:
            raise StateError(f"release {state.release}: its test of records left out was not passed: nothing is drawn")
    stagings = (*state.stagings, entry.facts.get("staging"))  # older entries name none
    return replace(state, status="drawn", attempt=entry.attempt, draws=state.draws + 1, stagings=stagings)


def _destroyed(state: ReleaseState, entry: Entry) -> ReleaseState:
    _require_live(state, entry, "drawn")
    return replace(state, attempt=None, exposed=state.exposed or bool(entry.facts["exposed"]))


def _held(state: ReleaseState, entry: Entry) -> ReleaseState:
    _require_live(state, entry, "drawn")
    return replace(state, status="held", contents=str(entry.facts["contents"]))


def _approved(state: ReleaseState, entry: Entry) -> ReleaseState:
    _require_live(state, entry, "held")
    approval, required = Approval.of(entry), state.required
    if state.approved:
        raise StateError(f"release {state.release}: attempt {entry.attempt} is approved already")
    if entry.facts.get("contents", None if required else state.contents) != state.contents:  # older entries name none
        raise StateError(f"release {state.release}: what was approved are not the files that are held")
    if required is not None:
        require_may_approve(state.release, required, state.approvals, state.runners, approval.role)
    approvals = (*state.approvals, approval)
    return replace(state, approvals=approvals, approved=len(approvals) >= (required.number if required else 1))


def _revoked(state: ReleaseState, entry: Entry) -> ReleaseState:
    _require_live(state, entry, "held")
    role = Approval.of(entry).role
    others = tuple(approval for approval in state.approvals if approval.role != role)
    if len(others) == len(state.approvals):
        raise StateError(f"release {state.release}: has no approval{f' by {role}' if role else ''} to be taken back")
    return replace(state, approvals=others, approved=False)


def _rejected(state: ReleaseState, entry: Entry) -> ReleaseState:
    _require_live(state, entry, "held")
    # The charge stays: whoever decided has seen the draw.
    return replace(state, status="rejected", attempt=None, approved=False, reason=_reason(entry))


def _published(state: ReleaseState, entry: Entry) -> ReleaseState:
    _require_live(state, entry, "held" if state.hold or state.status == "held" else "drawn")
    contents = str(entry.facts["contents"])
    if state.status == "held" and not state.approved:
        raise StateError(f"release {state.release}: attempt {entry.attempt} is held: an officer must approve it first")
    if state.contents not in (None, contents):
        raise StateError(f"release {state.release}: the staged files are not those that were held")
    return replace(state, status="published", contents=contents, head=entry.hash, date=entry.time[:10])


def _settled(state: ReleaseState, entry: Entry) -> ReleaseState:
    _require_live(state, entry, "published")
    return replace(state, status="settled")


def _withdrawn(state: ReleaseState, entry: Entry) -> ReleaseState:
    if state.status not in PUBLIC:
        raise StateError(f"release {state.release}: is {state.status}: what is not published cannot be withdrawn")
    if entry.attempt is None or entry.attempt != state.attempt:
        raise StateError(f"release {state.release}: attempt {entry.attempt} is not the published one")
    # The attempt stays named, for its files must go; and the charge stays: what was seen is seen.
    return replace(
        state, status="withdrawn", reason=_reason(entry), withdrawn_on=entry.time[:10], withdrawal=entry.hash
    )


def _purged(state: ReleaseState, entry: Entry) -> ReleaseState:
    live = state.attempt if state.status in ("drawn", "held", "published") else None
    if live is not None and live in entry.facts["names"]:
        raise StateError(f"release {state.release}: attempt {live} is {state.status} and cannot be purged")
    return state


def _aborted(state: ReleaseState, entry: Entry) -> ReleaseState:
    if state.status not in ("reserved", "drawn", "held"):
        raise StateError(f"release {state.release}: is {state.status} and cannot be aborted")
    # From `reserved` nothing was drawn and the charge is refunded; after a draw it stays.
    return replace(state, status="aborted", attempt=None, approved=False, charges=state.charges if state.draws else 0)


def _reason(entry: Entry) -> str:
    if not entry.facts["reason"]:
        raise StateError(f"release {entry.release}: state a reason")
    return str(entry.facts["reason"])


def _require_live(state: ReleaseState, entry: Entry, status: Status) -> None:
    cannot = f"cannot be {entry.event}"
    if state.status != status:
        raise StateError(f"release {state.release}: is {state.status}: attempt {entry.attempt} {cannot}")
    if entry.attempt is None or entry.attempt != state.attempt:
        raise StateError(f"release {state.release}: attempt {entry.attempt} is not the live one and {cannot}")


_FOLLOWS = (_tested, _refused, _charged, _drawn, _destroyed, _held, _approved, _revoked, _rejected, _published)
_EVENTS: Mapping[str, Callable[[ReleaseState, Entry], ReleaseState]] = {
    follow.__name__.removeprefix("_"): follow for follow in (*_FOLLOWS, _settled, _aborted, _withdrawn, _purged)
}


# The same, inside one transaction of the ledger's database.


def state_of(connection: Connection, release: str) -> ReleaseState | None:
    """Return the state of a release; None where it was never reserved."""
    return states_of(connection, "release = ?", release).get(release)


def require_state(connection: Connection, release: str) -> ReleaseState:
    """Return the state of a release; StateError where it was never reserved."""
    state = state_of(connection, release)
    if state is None:
        raise unknown("release", release, states_of(connection))
    return state


def states_of(connection: Connection, where: str = "TRUE", *values: object) -> dict[str, ReleaseState]:
    """Return the states of the releases whose entries meet `where`, by name, in the order of first reservation."""
    states: dict[str, ReleaseState] = {}
    for entry in entries(connection, where, *values):
        if entry.of_release:
            states[entry.release] = step(states.get(entry.release), entry)
    return states


def advance(connection: Connection, state: ReleaseState | None, act: Act) -> ReleaseState:
    """Append `act` where `step` lets it follow `state`, and return the state after it."""
    return step(state, append(connection, act, partial(step, state)))
