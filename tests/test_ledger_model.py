"""The ledger against a simple model: any sequence of steps keeps the limit and every at-most-one."""

import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pipeline.errors import BudgetRefused, PrdpError, StateError
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.store import open_ledger
from tests.support.ledgers import reservation

DATASETS = {"a": "one", "b": "one", "c": "one", "d": "two"}
NAMES = st.sampled_from(sorted(DATASETS))
RARELY = st.integers(0, 4).map(lambda number: number == 4)
CAPACITY = {"one": 2, "two": 5}  # charges that the limit of a dataset fits
OUTCOMES: Counter[tuple[str, type[PrdpError] | None]] = Counter()


@dataclass
class Model:
    """What a release should be, told without reference to the fold under test."""

    status: str = "none"
    draws: int = 0
    charges: int = 0
    exposed: bool = False
    live: str | None = None
    attempts: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)

    @property
    def free(self) -> bool:
        return self.status == "none" or (self.status == "aborted" and self.draws == 0)


class LedgerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.ledger = open_ledger(str(self.folder / "ledger.sqlite"))
        self.models = {name: Model() for name in DATASETS}
        self.length = 0

    @initialize(name=NAMES)
    def begin(self, name: str) -> None:
        self.reserve(name, None, other_plan=False)
        self.draw(name)

    def teardown(self) -> None:
        self.ledger.verify()
        shutil.rmtree(self.folder)

    def spent(self, name: str) -> int:
        return sum(m.charges for other, m in self.models.items() if DATASETS[other] == DATASETS[name])

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

    @rule(name=NAMES, supersedes=st.none() | st.none() | NAMES, other_plan=RARELY)
    def reserve(self, name: str, supersedes: str | None, other_plan: bool) -> None:
        model = self.models[name]
        wanted = reservation(
            name,
            draws=CAPACITY[DATASETS[name]],
            dataset=DATASETS[name],
            supersedes=supersedes,
            digest="sha256:other" if other_plan and not model.free else f"sha256:{name}",
        )
        refusal: type[PrdpError] | None = None
        if not model.free:
            refusal = StateError if model.status == "aborted" or other_plan else None
            self.expect(refusal, "reserve", wanted, entries=0)
            return
        if supersedes is not None:
            old = self.models[supersedes]
            same = DATASETS[supersedes] == DATASETS[name]
            refusal = None if same and old.status in ("published", "settled") else StateError
        if refusal is None and self.spent(name) + 1 > CAPACITY[DATASETS[name]]:
            refusal = BudgetRefused
        self.expect(refusal, "reserve", wanted)
        if refusal is None:
            self.models[name] = Model(status="reserved", charges=1)

    @rule(name=NAMES)
    def draw(self, name: str) -> None:
        model = self.models[name]
        refusal: type[PrdpError] | None = None
        due = model.charges
        if model.status not in ("reserved", "drawn") or model.live is not None:
            refusal = StateError
        else:
            if model.draws + 1 > 3 or model.exposed:
                due = max(due, model.draws + 1)
            if self.spent(name) - model.charges + due > CAPACITY[DATASETS[name]]:
                refusal = BudgetRefused
        entries = 1 if due == model.charges else 2
        attempt = self.expect(refusal, "draw", name, "sha256:pin", entries=entries)
        if refusal is None:
            assert attempt not in model.attempts
            model.attempts.append(str(attempt))
            model.status, model.draws, model.charges, model.live = "drawn", model.draws + 1, due, str(attempt)

    def attempt(self, name: str, stale: bool) -> str:
        known = self.models[name].attempts or ["0" * 16]
        return known[0] if stale else known[-1]

    @rule(name=NAMES, stale=RARELY, exposed=RARELY)
    def destroy(self, name: str, stale: bool, exposed: bool) -> None:
        model, attempt = self.models[name], self.attempt(name, stale)
        due = model.status == "drawn" and model.live == attempt
        self.expect(None if due else StateError, "destroyed", name, attempt, "incomplete", exposed)
        if due:
            model.live, model.exposed = None, model.exposed or exposed

    @rule(name=NAMES, times=st.integers(1, 3))
    def destroy_and_draw_again(self, name: str, times: int) -> None:
        for _ in range(times):
            self.destroy(name, stale=False, exposed=False)
            self.draw(name)

    @rule(name=NAMES, stale=RARELY)
    def publish(self, name: str, stale: bool) -> None:
        model, attempt = self.models[name], self.attempt(name, stale)
        due = model.status == "drawn" and model.live == attempt
        self.expect(None if due else StateError, "publish", name, attempt, "sha256:contents")
        if due:
            model.status = "published"
            model.seen.append(attempt)

    @rule(name=NAMES, stale=RARELY)
    def settle(self, name: str, stale: bool) -> None:
        model, attempt = self.models[name], self.attempt(name, stale)
        due = model.status == "published" and model.live == attempt
        self.expect(None if due else StateError, "settle", name, attempt)
        if due:
            model.status = "settled"

    @rule(name=NAMES)
    def draw_and_finish(self, name: str) -> None:
        self.draw(name)
        self.publish(name, stale=False)
        self.settle(name, stale=False)

    @rule(name=NAMES)
    def abort(self, name: str) -> None:
        model = self.models[name]
        due = model.status in ("reserved", "drawn")
        self.expect(None if due else StateError, "abort", name)
        if due:
            model.status, model.live = "aborted", None
            model.charges = model.charges if model.draws else 0

    @rule()
    def crash_and_open_again(self) -> None:
        self.ledger = open_ledger(str(self.folder / "ledger.sqlite"))

    @invariant()
    def the_ledger_says_what_the_model_says(self) -> None:
        for name, model in self.models.items():
            state: ReleaseState | None = self.ledger.state(name)
            if state is None:
                assert model.status == "none"
                continue
            assert (state.status, state.draws, state.charges) == (model.status, model.draws, model.charges)
            assert (state.attempt, state.exposed) == (model.live, model.exposed)

    @invariant()
    def no_limit_is_exceeded_and_at_most_one_draw_is_seen(self) -> None:
        for name, model in self.models.items():
            assert self.spent(name) <= CAPACITY[DATASETS[name]]
            assert len(model.seen) <= 1
            # Draws that others may have seen are paid for, the published one too.
            assert model.charges >= (1 if model.draws else 0)


def test_any_sequence_of_steps_keeps_every_limit_and_every_at_most_one() -> None:
    OUTCOMES.clear()
    quiet = settings(
        max_examples=70,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    run_state_machine_as_test(LedgerModel, settings=quiet)
    # The sequences went everywhere, or the test would say little.
    refused = {(step, StateError) for step in ("reserve", "draw", "destroyed", "publish", "settle", "abort")}
    done = {(step, None) for step, _ in refused}
    assert OUTCOMES.keys() == refused | done | {("reserve", BudgetRefused), ("draw", BudgetRefused)}
