"""The ledger against a simple model: any sequence of steps keeps the limit and every at-most-one."""

import shutil
import tempfile
from collections import Counter
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pipeline.accounting.accountant import LeftOutTest, with_left_out_test
from pipeline.accounting.references import Limit, Reference
from pipeline.base.errors import BudgetRefused, PrdpError, StateError
from pipeline.ledger import admission, datasets, fold, summaries
from pipeline.ledger.database import Connection
from pipeline.ledger.datasets import Budget
from pipeline.ledger.entries import Entry
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import create_ledger
from pipeline.ledger.summaries import Kept
from tests.support.ledger_model import SHARE_OF_UNIT, Model
from tests.support.ledgers import FACTS, MEMORY, UNIT, policy, raw, reservation

# The dataset "one" is not registered, and has the limits of its plans; the others are, and make a family.
DATASETS = {"a": "one", "b": "one", "c": "one", "d": "two", "e": "two", "g": "three", "h": "three"}
FAMILY = {"two": "kin", "three": "kin"}
NAMES = st.sampled_from(sorted(DATASETS))
RARELY = st.integers(0, 4).map(lambda number: number == 4)
# Charges of a release without a test that the limits fit at first.
CAPACITY = {"one": Fraction(2), "two": Fraction(5, 4), "three": Fraction(5), "kin": Fraction(5, 2)}
ENDED = ("aborted", "rejected", "withdrawn")
TESTED = "deh"  # releases that are reserved with a test of records left out
TEST = LeftOutTest(sigma=Fraction(1))
REFUSALS = {"one": 10, "two": 4, "three": 4, "kin": 6}
PIN, OTHER_PIN = "sha256:pin", "sha256:other"
OUTCOMES: Counter[tuple[str, type[PrdpError] | None]] = Counter()


class LedgerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY))
        self.ledger = create_ledger(str(self.folder / "ledger.sqlite"))
        self.models = {name: Model() for name in DATASETS}
        self.capacity = dict(CAPACITY)
        for name in ("kin", "two", "three"):
            self.ledger.register(self.budget(name, CAPACITY[name]))
        self.refusals: Counter[str] = Counter()
        self.length = 3
        self.edited = False  # whether what the ledger keeps beside the chain was changed and not replaced since

    @initialize(name=NAMES)
    def begin(self, name: str) -> None:
        self.reserve(name, None, other_plan=False, hold=False)
        self.draw(name)

    def teardown(self) -> None:
        if self.edited:
            with pytest.raises(StateError, match="summaries are not those"):
                self.ledger.verify()
        else:
            self.ledger.verify()
        assert self.ledger.refusals() == self.refusals
        shutil.rmtree(self.folder)

    def budget(self, name: str, draws: Fraction | int) -> Budget:
        limits = [Limit(Reference.of({}), draws * UNIT, "any record")]
        own: dict[str, Any] = {"facts": FACTS, "source": f"/micro/{name}", "family": FAMILY.get(name)}
        return Budget(
            name=name, unit="record", limits=limits, refusals=REFUSALS[name], **(own if name in FAMILY else {})
        )

    def spent(self, owner: str) -> Fraction:
        """What the releases of a dataset, or of all datasets of a family, have spent."""
        return sum((m.cost for other, m in self.models.items() if owner in self.owners(other)), Fraction(0))

    def refused_enough(self, name: str) -> bool:
        open_in = Counter(o for other, m in self.models.items() if m.open and other != name for o in self.owners(other))
        return any(self.refusals[owner] + open_in[owner] >= REFUSALS[owner] for owner in self.owners(name))

    def owners(self, name: str) -> set[str]:
        """The dataset of a release, and its family if it has one."""
        return {DATASETS[name], FAMILY.get(DATASETS[name], DATASETS[name])}

    def fits(self, name: str, more: Fraction) -> bool:
        return all(self.spent(owner) + more <= self.capacity[owner] for owner in self.owners(name))

    def expect(self, refusal: type[PrdpError] | None, step: str, *arguments: object, entries: int = 1) -> object:
        """Do the step; it must raise `refusal` and write nothing, or succeed and write `entries`."""
        OUTCOMES[step, refusal] += 1
        act = getattr(self.ledger, step)
        if refusal is not None:
            with pytest.raises(refusal):
                act(*arguments)
            assert self.ledger.head()[0] == self.length
            return None
        found = act(*arguments)
        self.length += entries
        assert self.ledger.head()[0] == self.length
        return found

    @rule(name=NAMES, supersedes=st.none() | st.none() | NAMES, other_plan=RARELY, hold=st.booleans())
    def reserve(self, name: str, supersedes: str | None, other_plan: bool, hold: bool) -> None:
        model = self.models[name]
        wanted = reservation(
            name,
            draws=CAPACITY["one"] if DATASETS[name] == "one" else 100,
            dataset=DATASETS[name],
            source=f"/micro/{DATASETS[name]}",
            hold=hold,
            supersedes=supersedes,
            digest="sha256:other" if other_plan and not model.free else f"sha256:{name}",
            **({"test": TEST, "policy": with_left_out_test(policy(), TEST)} if name in TESTED else {}),
        )
        refusal: type[PrdpError] | None = None
        if not model.free:
            refusal = StateError if model.status in ENDED or other_plan else None
            if refusal is None and model.open and self.refused_enough(name):
                refusal = BudgetRefused
            self.expect(refusal, "reserve", wanted, entries=0)
            return
        if supersedes is not None:
            old = self.models[supersedes]
            same = DATASETS[supersedes] == DATASETS[name]
            refusal = None if same and old.status in ("published", "settled", "withdrawn") else StateError
        cost = 1 + (name in TESTED) * SHARE_OF_UNIT
        if refusal is None and (self.refused_enough(name) or not self.fits(name, cost)):
            refusal = BudgetRefused
        self.expect(refusal, "reserve", wanted)
        if refusal is None:
            alone = model.alone + model.paid
            known = {"has_test": name in TESTED, "found": model.found, "alone": alone}
            self.edited = False
            self.models[name] = Model(status="reserved", charges=1, hold=hold, **known)

    @rule(name=NAMES, pin=st.sampled_from([PIN, OTHER_PIN]), passed=st.booleans())
    def test(self, name: str, pin: str, passed: bool) -> None:
        model = self.models[name]
        refusal: type[PrdpError] | None = None
        if not model.open:
            refusal = StateError
        elif model.paid and not self.fits(name, SHARE_OF_UNIT):
            refusal = BudgetRefused
        elif not model.has_test or pin in model.found:
            refusal = StateError
        self.expect(refusal, "test", name, pin, *((5000, 0) if passed else (0, 5000)))
        if refusal is None:
            model.found[pin] = passed
            model.paid += 1
            if not passed:
                self.refusals.update(self.owners(name))
                model.end_undrawn("refused")

    @rule(name=st.sampled_from(TESTED), passed=st.sampled_from([[True, True], [False], [True, False]]))
    def reserve_and_test(self, name: str, passed: list[bool]) -> None:
        self.reserve(name, None, other_plan=False, hold=False)
        for pin, success in zip((PIN, OTHER_PIN), passed, strict=False):
            self.test(name, pin, success)

    @rule(name=NAMES)
    def refuse(self, name: str) -> None:
        model = self.models[name]
        self.expect(None if model.open else StateError, "refuse", name)
        if model.open:
            self.refusals.update(self.owners(name))
            model.end_undrawn("refused")

    @rule(names=st.permutations(sorted(DATASETS)))
    def reserve_all(self, names: list[str]) -> None:
        for name in names:
            self.reserve(name, None, other_plan=False, hold=False)

    @rule(name=NAMES)
    def draw(self, name: str) -> None:
        model = self.models[name]
        if model.open and model.has_test and PIN not in model.found:
            self.test(name, PIN, passed=True)
        self.draw_at_once(name)

    @rule(name=NAMES)
    def draw_at_once(self, name: str) -> None:
        model = self.models[name]
        refusal: type[PrdpError] | None = None
        due = model.charges
        if not model.open or (model.has_test and not model.found.get(PIN)):
            refusal = StateError
        else:
            if model.draws + 1 > 3 or model.exposed:
                due = max(due, model.draws + 1)
            more = (due - model.charges) * (1 + model.has_test * SHARE_OF_UNIT)
            if due > model.charges and not self.fits(name, more):
                refusal = BudgetRefused
        entries = 1 if due == model.charges else 2
        attempt = self.expect(refusal, "draw", name, PIN, entries=entries)
        if refusal is None:
            assert attempt not in model.attempts
            model.attempts.append(str(attempt))
            model.status, model.draws, model.charges, model.live = "drawn", model.draws + 1, due, str(attempt)

    def attempt(self, name: str, stale: bool) -> str:
        known = self.models[name].attempts or ["0" * 16]
        return known[0] if stale else known[-1]

    def done(self, step: str, name: str, stale: bool, due: bool, *arguments: object) -> bool:
        """Do a step of an attempt; return whether it was due: it must succeed just if `due`, of the live attempt."""
        attempt = self.attempt(name, stale)
        due = due and self.models[name].live == attempt
        self.expect(None if due else StateError, step, name, attempt, *arguments)
        return due

    @rule(name=NAMES, stale=RARELY, exposed=RARELY)
    def destroy(self, name: str, stale: bool, exposed: bool) -> None:
        model = self.models[name]
        if self.done("destroyed", name, stale, model.status == "drawn", "incomplete", exposed):
            model.live, model.exposed = None, model.exposed or exposed

    @rule(name=NAMES, times=st.integers(1, 3))
    def destroy_and_draw_again(self, name: str, times: int) -> None:
        for _ in range(times):
            self.destroy(name, stale=False, exposed=False)
            self.draw(name)

    @rule(name=NAMES, stale=RARELY)
    def hold(self, name: str, stale: bool) -> None:
        model = self.models[name]
        if self.done("hold", name, stale, model.status == "drawn", "sha256:contents"):
            model.status = "held"

    @rule(name=NAMES, stale=RARELY)
    def approve(self, name: str, stale: bool) -> None:
        model = self.models[name]
        if self.done("approve", name, stale, model.status == "held" and not model.approved):
            model.approved = True

    @rule(name=NAMES, stale=RARELY)
    def reject(self, name: str, stale: bool) -> None:
        model = self.models[name]
        if self.done("reject", name, stale, model.status == "held", "why"):
            model.status, model.live = "rejected", None

    @rule(name=NAMES, stale=RARELY)
    def withdraw(self, name: str, stale: bool) -> None:
        model = self.models[name]
        if self.done("withdraw", name, stale, model.status in ("published", "settled"), "why"):
            model.status = "withdrawn"

    @rule(name=NAMES, stale=RARELY)
    def purge(self, name: str, stale: bool) -> None:
        model, attempt = self.models[name], self.attempt(name, stale)
        live = model.status in ("drawn", "held", "published") and model.live == attempt
        self.expect(StateError if model.free or live else None, "purged", name, None, [attempt])

    @rule(owner=st.sampled_from(sorted({*FAMILY, "kin"})), draws=st.integers(0, 9))
    def raise_limits(self, owner: str, draws: int) -> None:
        refusal = BudgetRefused if self.spent(owner) > draws else None
        self.expect(refusal, "raise_limits", self.budget(owner, draws), "why")
        if refusal is None:
            self.capacity[owner] = draws

    @rule(name=NAMES, stale=RARELY)
    def publish(self, name: str, stale: bool) -> None:
        model = self.models[name]
        free = model.status == "drawn" and not model.hold
        if self.done("publish", name, stale, free or (model.status == "held" and model.approved), "sha256:contents"):
            model.status = "published"
            model.seen.append(str(model.live))

    @rule(name=NAMES, stale=RARELY)
    def settle(self, name: str, stale: bool) -> None:
        model = self.models[name]
        if self.done("settle", name, stale, model.status == "published"):
            model.status = "settled"

    @rule(name=NAMES, withdraw=st.booleans())
    def draw_and_finish(self, name: str, withdraw: bool) -> None:
        self.draw(name)
        if self.models[name].hold:
            self.hold(name, stale=False)
            self.approve(name, stale=False)
        self.publish(name, stale=False)
        self.settle(name, stale=False)
        if withdraw:
            self.withdraw(name, stale=False)

    @rule(name=NAMES, decide=st.sampled_from(["later", "approve", "reject"]))
    def draw_and_hold(self, name: str, decide: str) -> None:
        self.draw(name)
        self.hold(name, stale=False)
        if decide != "later":
            (self.approve if decide == "approve" else self.reject)(name, stale=False)

    @rule(name=NAMES)
    def abort(self, name: str) -> None:
        model = self.models[name]
        due = model.status in ("reserved", "drawn", "held")
        self.expect(None if due else StateError, "abort", name)
        if due:
            model.status, model.live = "aborted", None
            model.end_undrawn("aborted")

    @rule(words=st.sampled_from(["{}", '{"about":[],"references":[],"refusals":[],"rows":[]}']))
    def change_the_summaries(self, words: str) -> None:
        with closing(raw(self.ledger)) as connection:
            changed = connection.execute("UPDATE summaries SET content = ?", [words]).rowcount
        self.edited = self.edited or changed > 0

    @rule()
    def crash_and_open_again(self) -> None:
        self.ledger = create_ledger(str(self.folder / "ledger.sqlite"))

    @invariant()
    def the_ledger_says_what_the_model_says(self) -> None:
        states = {state.release: state for state in self.ledger.states()}
        for name, model in self.models.items():
            state = states.get(name)
            if state is None:
                assert model.status == "none"
                continue
            assert (state.status, state.draws, state.charges) == (model.status, model.draws, model.charges)
            assert (state.attempt, state.exposed) == (model.live, model.exposed)
            assert {test.pin: test.passed for test in state.tests} == model.found
            assert not model.approved or state.approved or state.status in ENDED

    @invariant()
    def no_limit_is_exceeded_and_at_most_one_draw_is_seen(self) -> None:
        for name, model in self.models.items():
            assert all(self.spent(owner) <= self.capacity[owner] for owner in self.owners(name))
            assert len(model.seen) <= 1
            # Nothing is seen that was to be held and that no officer approved.
            assert model.approved or not (model.hold and model.seen)
            # Draws that others may have seen are paid for, the published one too.
            assert model.charges >= (1 if model.draws else 0)
            # Nothing is drawn from microdata that failed, and what was tested stays charged.
            assert not (model.has_test and model.draws) or model.found[PIN]
            assert model.cost >= model.has_test * SHARE_OF_UNIT * (model.alone + model.paid > 0)


QUIET = settings(max_examples=100, stateful_step_count=40, derandomize=True, database=None, phases=[Phase.generate])


@pytest.mark.parametrize("examples", [10, pytest.param(300, marks=pytest.mark.drill)])
def test_any_sequence_of_steps_keeps_every_limit_and_every_at_most_one(examples: int) -> None:
    OUTCOMES.clear()
    # The sequences must go everywhere, or the test would say little. What a seed reaches depends on Hypothesis and on
    # the constants that it collects from the code, so several are tried.
    steps = ("reserve", "test", "refuse", "draw", "destroyed", "hold", "approve", "reject", "publish", "settle")
    steps = (*steps, "withdraw", "purged")
    refused = {(step, StateError) for step in (*steps, "abort")}
    over = {(step, BudgetRefused) for step in ("reserve", "test", "draw", "raise_limits")}
    everything = refused | over | {(step, None) for step in (*steps, "abort", "raise_limits")}
    for number in range(20):
        run_state_machine_as_test(seed(number)(LedgerModel), settings=settings(QUIET, max_examples=examples))
        if OUTCOMES.keys() == everything:
            break
    assert OUTCOMES.keys() == everything


def published_unseen(state: ReleaseState, entry: Entry) -> ReleaseState:
    return replace(state, status="published", contents="sha256:contents", head=entry.hash, date=entry.time[:10])


def withdrawn_for_free(state: ReleaseState, entry: Entry) -> ReleaseState:
    return replace(fold._withdrawn(state, entry), charges=0)


def without_its_test(state: ReleaseState, entry: Entry) -> ReleaseState:
    after = fold._tested(state, entry)
    return replace(after, tests=()) if after.refunded else after


def trusting(connection: Connection) -> Kept | None:
    return summaries.what_is_kept(connection)[0]


@pytest.mark.parametrize(
    ("place", "name", "broken"),
    [
        (fold._EVENTS, "published", published_unseen),
        (fold._EVENTS, "withdrawn", withdrawn_for_free),
        (fold._EVENTS, "tested", without_its_test),
        (vars(datasets), "members", lambda budgets, family: []),
        (vars(admission), "binding", lambda registered, releases: []),
        (vars(summaries), "_kept", trusting),
    ],
)
def test_the_model_rejects_a_ledger_that_is_broken(
    monkeypatch: pytest.MonkeyPatch, place: dict[str, object], name: str, broken: object
) -> None:
    monkeypatch.setitem(place, name, broken)
    with pytest.raises((AssertionError, pytest.fail.Exception, PrdpError, KeyError)):
        run_state_machine_as_test(LedgerModel, settings=QUIET)
