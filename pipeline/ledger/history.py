"""What the ledger shows officers: the history of each release, and what a dataset has spent at a reference."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any

from pipeline.accounting.accountant import Charged
from pipeline.accounting.convert import DELTA, interpretation
from pipeline.accounting.references import Limit, Names, Reference, UnknownName, typed_reference
from pipeline.errors import PlanError, StateError
from pipeline.ledger.admission import binding, of_plans
from pipeline.ledger.approvals import Required
from pipeline.ledger.datasets import Budget, members, with_joined
from pipeline.ledger.entries import Entry, unknown
from pipeline.ledger.fold import ReleaseState, Tested, step
from pipeline.ledger.reservation import charged
from pipeline.ledger.store import Ledger
from pipeline.plan.model import owner_of
from udfs.numbers.exact import as_json, up_float

# An entry of these ends the live attempt, or records how far it came.
_STAGES = ("held", "destroyed", "rejected", "published", "settled", "withdrawn")

# What is shown of a release, as `prdp ledger show --json` and `prdp.Ledger.show` have it.
COLUMNS = (
    *("release", "dataset", "state", "attempt", "draws", "charges", "tests", "plan_digest", "out", "supersedes"),
    *("code", "hold", "check", "approved", "approvals", "reason", "attempts", "acts"),
)


@dataclass(frozen=True)
class Attempt:
    """One draw: when, on what staging root, how far it came, and whether others may have seen its staging."""

    attempt: str
    draw: int
    time: str
    stage: str
    staging: str | None
    exposed: bool = False
    ended: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The attempt as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class History:
    """A release: its state, its attempts in order, its acts as (time, event, operator or None)."""

    state: ReleaseState
    attempts: tuple[Attempt, ...]
    acts: tuple[tuple[str, str, str | None], ...]

    def to_json(self) -> dict[str, Any]:
        """The release as JSON, a key for each of COLUMNS."""
        state = self.state
        values = (
            *(state.release, state.dataset, state.status, state.attempt, state.draws, state.charges),
            [_test_json(test) for test in state.tests],
            *(state.digest, state.out, state.reservation["supersedes"], state.reservation["code"]),
            *(state.hold, state.check, state.approved, _approvals_json(state), state.reason),
            [attempt.to_json() for attempt in self.attempts],
            [{"time": time, "event": event, "operator": operator} for time, event, operator in self.acts],
        )
        return dict(zip(COLUMNS, values, strict=True))


def approval_lines(state: ReleaseState) -> list[str]:
    """Return who approved a release, where several must, and who may still, in lines for people."""
    required, given = state.required, state.approvals
    if required is None:
        return []
    lines = [f"approved by role {each.role} ({each.operator or '-'}) at {each.time[:19]}" for each in given]
    if state.status == "held" and not state.approved:
        runners = state.runners if required.by_others else frozenset[str | None]()
        known = sorted({str(each.role) for each in given} | set(map(str, runners)))
        missing, others = required.number - len(given), f", other than {' and '.join(known)}" if known else ""
        more = "1 more role approves it" if missing == 1 else f"{missing} more roles approve it"
        lines.append(f"{len(given)} of {required.number} approvals: it stays held until {more}{others}")
    return lines


def _approvals_json(state: ReleaseState) -> dict[str, Any]:
    required = state.required or Required(int(state.hold))
    return asdict(required) | {"by": [asdict(approval) for approval in state.approvals]}


def _test_json(tested: Tested) -> dict[str, Any]:
    counts = {"kept": tested.kept, "left_out": tested.left_out, "passed": tested.passed}
    return counts | tested.test.to_json()


def histories(entries: Iterable[Entry]) -> dict[str, History]:
    """Return the history of every release in `entries`, in the order of first reservation; StateError as `step`."""
    releases: dict[str, History] = {}
    for entry in entries:
        if entry.of_release:
            releases[entry.release] = _continued(releases.get(entry.release), entry)
    return releases


def _continued(before: History | None, entry: Entry) -> History:
    state = step(before.state if before else None, entry)
    # A name that was refunded and reserved anew has the history of both reservations, as in the ledger.
    attempts, acts = (before.attempts, before.acts) if before else ((), ())
    if entry.event == "drawn":
        facts = entry.facts
        drawn = Attempt(str(entry.attempt), facts["draw"], entry.time, "drawn", facts.get("staging"))
        attempts = (*attempts, drawn)
    elif attempts and (entry.event in _STAGES or (entry.event == "aborted" and attempts[-1].ended is None)):
        exposed = bool(entry.facts.get("exposed", attempts[-1].exposed))
        ended = None if entry.event in ("held", "published") else entry.time
        attempts = (*attempts[:-1], replace(attempts[-1], stage=entry.event, exposed=exposed, ended=ended))
    return History(state, attempts, (*acts, (entry.time, entry.event, entry.facts.get("operator"))))


@dataclass(frozen=True)
class Spending:
    """What releases cost the reference `at`, and `left`: what later ones can cost it at most (None: no limit binds).

    `spent`: (release, state, loss) of every release that is charged, in order. `limit` is the one that leaves least;
    what it leaves at its own reference is left to every smaller record. `promised` is the lowest limit that was fixed
    before the first release that it counts: the only one that says what all of them lose together, for later ones may
    have been chosen by what earlier ones showed (docs/mathematics.md, section 5). All losses are upper bounds.
    `excess`: of each release, by query, the share by which its mechanism's stated loss may be too high, at most; None
    where it is not known. `found`: what several records lose by each release at least in some placement; 0: not known.
    """

    dataset: str
    at: Reference
    spent: tuple[tuple[ReleaseState, Fraction], ...]
    limit: Limit | None
    left: Fraction | None
    promised: Limit | None
    excess: tuple[dict[str, float | None], ...]
    found: tuple[Fraction, ...]

    @property
    def total(self) -> Fraction:
        """The accumulated loss."""
        return sum((loss for _, loss in self.spent), Fraction(0))

    @property
    def means(self) -> dict[str, Any] | None:
        """What the promised limit implies, as (ε, δ) and the power of the best test; None where no limit is one."""
        if self.promised is None:
            return None
        limit = {"at": self.promised.label, "rho": as_json(self.promised.rho)}
        return {"limit": limit} | interpretation(None, up_float(self.promised.rho), None, DELTA)

    def to_json(self) -> dict[str, Any]:
        """The spending as JSON; spent is rounded up, left down."""
        return {
            "dataset": self.dataset,
            "at": self.at.to_json(),
            "spent": up_float(self.total),
            "releases": [
                {"release": state.release, "state": state.status, "charges": state.charges, "rho": up_float(loss)}
                | {"excess": shares}
                | ({"rho_found": -up_float(-found)} if found else {})
                for (state, loss), shares, found in zip(self.spent, self.excess, self.found, strict=True)
            ],
            "limit": None if self.limit is None else {"at": self.limit.label, "rho": as_json(self.limit.rho)},
            "left": None if self.left is None else -up_float(-self.left),
            "means": self.means,
        }


def spendings(ledger: Ledger, text: str, dataset: str | None = None) -> list[Spending]:
    """Return the spending of every dataset, or of one, at the reference that `text` names.

    Raises StateError where the dataset, or a measure of it, is unknown, PlanError where the reference names too few.
    """
    budgets = ledger.budgets()
    of_all = ledger.states()
    states = [state for state in of_all if state.counts]
    known = dict.fromkeys([*(b.name for b in budgets.values() if b.kind == "dataset"), *(s.dataset for s in states)])
    refunded = {state.dataset for state in of_all} - known.keys()
    if dataset in refunded or (dataset is None and refunded and not known):
        named = ", ".join(sorted(refunded)) if dataset is None else dataset
        raise StateError(
            f"--at {text}: nothing is spent: all releases of {named} were refunded, and no limit is registered"
        )
    if dataset is not None and dataset not in known:
        raise unknown("dataset", dataset, [*known, *refunded])
    if not known:
        raise StateError(f"--at {text}: the ledger holds no dataset")
    return [_spending(budgets, states, text, name) for name in ([dataset] if dataset else known)]


def _spending(budgets: dict[str, Budget], states: Sequence[ReleaseState], text: str, dataset: str) -> Spending:
    budget = budgets.get(dataset)
    mine = [state for state in states if state.dataset == dataset]
    facts = budget.facts if budget is not None and budget.facts is not None else mine[0].reservation["dataset_facts"]
    listed = owner_of(facts["unit"]) is not None
    try:
        at = typed_reference("--at", text, Names(facts["measures"]), listed)
    except UnknownName as error:  # what a ledger holds is its state
        raise StateError(f"dataset {dataset}: {error}") from None
    if len(at.records) > 1 and not listed:
        raise PlanError(f"--at {text}: the dataset's unit is the record: give one, without ;")
    limits = [(limit, mine) for limit in binding(budget, mine)]
    fixed = _fixed_in_advance(budget, mine)
    kin = with_joined(budgets, states)
    family = kin[dataset].family if dataset in kin else None
    if family is not None:
        of_kin = [state for state in states if state.dataset in set(members(kin, family))]
        limits += [(limit, of_kin) for limit in budgets[family].stated]
        fixed += _fixed_in_advance(budgets[family], of_kin)
    left = [(limit.rho - _lost(limit, among), limit) for limit, among in limits if limit.at.covers(at)]
    least, limit = min(left, key=lambda each: each[0], default=(None, None))
    promised = min((each for each in fixed if each.at.covers(at)), key=lambda each: each.rho, default=None)
    releases = [charged(state, state.charges) for state in mine]
    spent = tuple((state, _loss(at, release)) for state, release in zip(mine, releases, strict=True))
    excess = tuple(
        {q.name: release.policy.excess_at(at, q.name) for q in release.policy.queries} for release in releases
    )
    found = tuple(release.found_at(at) for release in releases)
    return Spending(dataset, at, spent, limit, least, promised, excess, found)


def _fixed_in_advance(budget: Budget | None, states: Sequence[ReleaseState]) -> list[Limit]:
    """Return the limits that were stated before the first of the releases, and have bound all of them ever since.

    An officer's `raise` after a release states all limits anew, those of plans too.
    """
    seen = [number for state in states for number in (state.since, *(test.since for test in state.tests))]
    first = min(seen, default=None)
    if budget is not None and budget.raised is not None:
        return budget.stated if first is None or budget.raised < first else []
    registered = budget.stated if budget is not None and (first is None or budget.since < first) else []
    return [*registered, *of_plans(budget, [state for state in states if state.since == first])]


def _lost(limit: Limit, states: Sequence[ReleaseState]) -> Fraction:
    return sum((_loss(limit.at.anywhere(), charged(state, state.charges)) for state in states), Fraction(0))


def _loss(at: Reference, release: Charged) -> Fraction:
    missing = at.missing(release.measures)
    if missing:
        raise PlanError(f"--at {at.label}: must also name {', '.join(missing)}, which {release.release} uses")
    return release.loss_at(at)
