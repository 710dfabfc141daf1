"""The metric view: what two values of one record cost, against exact divergences of the noise on both totals."""

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.cli import main
from pipeline.accounting.convert import approximate_epsilon, exact_scale
from tests.support.divergence import max_divergence, renyi
from tests.support.guarantee import CASES, ROUNDING, centres, is_pure, named, noise_of, three
from tests.support.lattice import CTX, LatticeNoise, real
from tests.support.world import write_world
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.mechanisms.transformed_kinds import Log

ORDERS = [Fraction(3, 2), Fraction(4), Fraction(64)]
CHANGES = [(0, 3), (5, 6), (10, 12), (7, 7), (1000, 1100), (3, 10**6)]  # of values in steps
OTHERS = (0, 1, 7, 123, 10**5)  # what other records add to the cell
TRANSFORMED = [m for m in CASES if m.needs_nonnegative]
Losses = Callable[[int, int], tuple[Fraction, Fraction | None]]


def violations(m: Mechanism, noise: LatticeNoise, losses: Losses, changes: list[tuple[int, int]]) -> Iterator[str]:
    """Where a divergence of the noise about the two totals exceeds what a change of `low` into `high` steps is to cost.

    Of transformations the widest shift over several other contributions is taken.
    """
    for low, high in changes:
        rho, epsilon = losses(low, high)
        rest = np.array(OTHERS, dtype=np.int64)
        shift = int((centres(m, rest + high) - centres(m, rest + low)).max())
        for order, sign in product(ORDERS, (1, -1)):
            if shift and not renyi(noise, sign * shift, order) <= real(order * rho) * ROUNDING:
                yield f"{low}:{high}, order {order}"
        if epsilon is not None and max_divergence(noise, shift) > real(epsilon) * (1 + CTX.ldexp(1, -300)):
            yield f"{low}:{high}, epsilon"


def stated(m: Mechanism) -> Losses:
    return lambda low, high: m.change_losses_at(low * m.step, high * m.step)


def near(m: Mechanism) -> list[tuple[int, int]]:
    """Changes that noise of pure mechanisms is not too narrow for: its sums over all integers take long."""
    return CHANGES if m.needs_nonnegative or not is_pure(m) else CHANGES[:-1]


@pytest.mark.parametrize("m", three(), ids=named)
def test_divergences_of_two_values_stay_within_what_a_change_costs(m: Mechanism) -> None:
    assert list(violations(m, noise_of(m), stated(m), near(m))) == []
    assert m.change_losses_at(7 * m.step, 7 * m.step) == (0, 0)


@pytest.mark.parametrize("m", three(), ids=named)
def test_less_than_a_change_costs_is_seen(m: Mechanism) -> None:
    """The twin: an epsilon, or where there is none a rho, that is smaller by a twentieth."""

    def less(low: int, high: int) -> tuple[Fraction, Fraction | None]:
        rho, epsilon = stated(m)(low, high)
        return (rho * Fraction(19, 20), None) if epsilon is None else (rho, epsilon * Fraction(19, 20))

    if not m.too_narrow:  # else rounding to the lattice hides it
        assert any(violations(m, noise_of(m), less, near(m)))


def test_a_total_that_is_taken_for_larger_than_it_is_is_seen() -> None:
    """The twin: other records are taken to add at least 10⁶ steps, where f rises less."""
    bent = 0
    for m in TRANSFORMED:
        right, wrong = stated(m)(3, 10**6), stated(m)(3 + 10**6, 2 * 10**6)
        if right[0] > wrong[0] * Fraction(6, 5):
            bent += 1
            assert any(violations(m, noise_of(m), lambda low, high, wrong=wrong: wrong, [(3, 10**6)]))  # type: ignore[misc]
    assert bent >= 10


@pytest.mark.parametrize("m", three(), ids=named)
def test_a_change_from_nothing_costs_what_a_presence_does_and_others_no_more(m: Mechanism) -> None:
    random = Random(3)
    for _ in range(20):
        low, d = (Fraction(random.randrange(1, 1 << random.choice([5, 20, 40]))) * m.step for _ in range(2))
        rho, epsilon = m.change_losses_at(low, low + d)
        assert 0 < rho <= m.loss_at(d) * (1 + Fraction(1, 10**18))
        whole = m.pure_loss_at(d)
        assert (epsilon is None) == (whole is None)
        assert epsilon is None or whole is None or 0 < epsilon <= whole * (1 + Fraction(1, 10**18))
        if m.kind != "unit_splitting":  # of it the policy counts whole pieces
            assert m.change_losses_at(Fraction(0), d) == (m.loss_at(d), m.pure_loss_at(d))


@given(
    st.fractions(min_value=0, max_value=10**6, max_denominator=100),
    st.fractions(min_value=Fraction(1, 100), max_value=10**6, max_denominator=100),
    st.sampled_from([("log", 1), ("log", 50), ("root", 0), ("root", 9)]),
)
def test_the_formulas_of_gaussian_noise_in_high_precision(low: Fraction, d: Fraction, kind: tuple[str, int]) -> None:
    m = build({"kind": kind[0], "a": kind[1], "sigma": 0.3} | ({"k": 3} if kind[0] == "root" else {}), Fraction(1))
    f = CTX.log if kind[0] == "log" else lambda v: CTX.root(v, 3)
    rise = f(real(low + d + kind[1])) - f(real(low + kind[1])) + real(m.lattice_step)
    exact = rise**2 / 2 / real(Fraction(3, 10)) ** 2
    found = real(m.change_losses_at(low, low + d)[0])
    assert exact <= found * (1 + CTX.mpf(10) ** -60)
    assert found <= exact * (1 + CTX.mpf(10) ** -18)


# -- factors ---------------------------------------------------------------------------------------------------------


LOGS = [m for m in CASES if m.kind in ("log", "groupwise_log")]


def too_far(m: Log, factor: Fraction, losses: tuple[Fraction, Fraction | None] | None) -> bool:
    """Whether two totals within a factor cost more than stated, of many totals of all sizes."""
    assert losses is not None
    random = Random(8)
    small = np.array([*range(50), *(random.randrange(1 << bits) for bits in range(8, 55) for _ in range(5))])
    large = np.array([int(q * factor) for q in small.tolist()])  # rounded down to a step: within the factor
    shift, noise = int((centres(m, large) - centres(m, small)).max()), noise_of(m)
    if losses[1] is not None:
        return bool(max_divergence(noise, shift) > real(losses[1]))
    return any(renyi(noise, shift, order) > real(order * losses[0]) * ROUNDING for order in ORDERS)


@pytest.mark.parametrize("m", LOGS, ids=named)
@pytest.mark.parametrize("factor", ["1.01", "1.1", "3"])
def test_totals_within_a_factor_cost_a_logarithm_no_more_than_stated(m: Log, factor: str) -> None:
    c = Fraction(factor)
    assert not too_far(m, c, m.factor_losses_at(c))
    if not m.too_narrow:
        assert too_far(m, c, m.factor_losses_at(c * Fraction(995, 1000)))  # the twin


def test_a_factor_has_no_bound_beyond_logarithms() -> None:
    for m in CASES:
        assert m.factor_losses_at(Fraction(1)) == (0, 0)
        assert (m.factor_losses_at(Fraction(11, 10)) is None) == (m.kind not in ("log", "groupwise_log"))


# -- prdp explain ----------------------------------------------------------------------------------------------------


def query(name: str, mechanism: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "sum": "employment", "by": ["naics3", "county"], "mechanism": mechanism} | more


QUERIES = [
    {"name": "count", "count": "records", "by": ["naics2"], "mechanism": {"kind": "gaussian", "sigma": 2}},
    query("made", {"kind": "laplace", "sigma": 10}, where={"naics2": ["31-33"]}),
    query("sold", {"kind": "laplace", "sigma": 5}, where={"naics2": ["44-45"]}),
    query("relative", {"kind": "log", "a": 50, "sigma": 0.5}),
    query("payroll", {"kind": "gaussian", "sigma": 100}, sum="payroll"),
]


def laplace_loss(pure: float, s: float) -> float:
    """The loss of Laplace noise of scale 1/s in steps."""
    return pure + s / np.sinh(s) * np.expm1(-pure)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_world(tmp_path, None, queries=QUERIES)


def changes(capsys: pytest.CaptureFixture[str], plan: Path, *options: str) -> Any:
    assert main(["explain", str(plan), *options, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_queries_add_up_at_the_worst_place_and_counts_cost_nothing(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = changes(
        capsys, plan, "--change", "employment=10:12", "--change", "payroll=900:700,employment=10:12,naics3=311"
    )
    anywhere, placed = told["changes"]
    relative = (np.log(62 / 60) / 0.5) ** 2 / 2
    made, sold = laplace_loss(0.2, 0.1), laplace_loss(0.4, 0.2)
    assert [loss["rho"] for loss in anywhere["queries"]] == pytest.approx([0, made, sold, relative, 0], rel=1e-7)
    assert anywhere["total"]["rho"] == pytest.approx(sold + relative, rel=1e-7)  # filters exclude each other
    assert anywhere["total"]["epsilon"] is None
    assert placed["change"] == {"payroll": [900, 700], "employment": [10, 12], "naics3": "311"}
    assert placed["total"]["rho"] == pytest.approx(made + relative + 200**2 / (2 * 100**2), rel=1e-7)
    # the Gaussian noises are one; beside them the Laplace noise costs at most its pure loss of 0.2
    epsilon, gaussian = placed["means"]["epsilon"], 1 / np.sqrt(2 * relative + 4)
    assert exact_scale(epsilon, 1e-9) < gaussian <= exact_scale(epsilon - 0.201, 1e-9)
    assert epsilon < approximate_epsilon(placed["total"]["rho"], 1e-9)
    assert list(told)[:5] == ["verdict", "plan_digest", "unit", "size", "queries"]
    assert list(told)[5:] == ["left_out_test", "total", "total_means", "paper", "changes"]
    assert told == changes(capsys, plan) | {"changes": told["changes"]}  # the rest is what it was


def test_a_factor_is_bounded_where_all_queries_of_a_place_are(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (told,) = changes(capsys, plan, "--factor", "1.1")["changes"]
    relative = (np.log(1.1) / 0.5) ** 2 / 2
    assert [loss["rho"] for loss in told["queries"]] == [0, None, None, pytest.approx(relative, rel=1e-7), None]
    assert (told["total"], told["means"]) == ({"rho": None, "epsilon": None}, None)
    alone = write_world(plan.parent / "alone", None, queries=[QUERIES[0], QUERIES[3]])
    (told,) = changes(capsys, alone, "--factor", "1.1")["changes"]
    assert told["total"]["rho"] == pytest.approx(relative, rel=1e-7)
    assert main(["explain", str(plan), "--factor", "1.1", "--change", "employment=10:12"]) == 0
    shown = capsys.readouterr().out
    assert "change: employment 10 or 12" in shown
    assert "no bound" in shown


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--change=employment=10", "write both values"),
        ("--change=employment=10:-2", "at least 0"),
        ("--change=employment=1_0:2", "at least 0"),
        ("--change=employment=1:2,employment=1:3", "each measure once"),
        ("--change=employmnt=1:2", "nearest known: employment"),
        ("--change=employment=1:2,naics2=99", "99"),
        ("--change=naics2=31-33", "name a measure"),
        ("--change=", "name a measure"),
        ("--factor=0.9", "at least 1"),
        ("--factor=x", "at least 0"),
    ],
)
def test_what_is_no_change_is_told(plan: Path, capsys: pytest.CaptureFixture[str], option: str, words: str) -> None:
    assert main(["explain", str(plan), option]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: --")
    assert words in told
