"""Tight losses as a table: lazily the same, above every loss, and what a mechanism and its workers make of it."""

import json
import pickle
from fractions import Fraction
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.families import weights_of
from tests.support.kinds import three_of
from tests.support.mechanisms import EXAMPLES, ONE
from tests.support.tight import HALF, SQUARE
from udfs.losses import curve as of_curves
from udfs.losses.curve import KNOTS_A_RISE, TightCurve, curve_at, knots, tight_curve
from udfs.losses.tight import pure_above, tight_loss
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.noise.heavy_weights import GeneralizedGaussianWeights, PolylogWeights, StableWeights
from udfs.noise.weights import LaplaceWeights
from udfs.numbers.exact import exact, up_float
from udfs.records.influence import QueryLoss

NARROW = weights_of(SQUARE)
FAMILIES = [
    weights_of(HALF),
    NARROW,
    StableWeights(alpha=Fraction("1.5"), scale=Fraction(20)),
    PolylogWeights(p=Fraction(1), d=Fraction(3), a=Fraction(1), scale=Fraction(2)),
    GeneralizedGaussianWeights(p=Fraction(1), scale=Fraction(1000)),
]
HEAVY = [
    {"kind": "generalized_gaussian", "p": 0.5, "sigma": 5, "policy": "tight"},
    {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 2.718281828459045, "sigma": 20, "policy": "tight"},
]
LOSSES = (0.001, 0.002, 0.002, 0.004)
RAISED = tuple(up_float(exact(loss)) for loss in LOSSES)
TABLED = ("generalized_gaussian", "exponential_polylog", "symmetric_stable")
ULP = 2.0**-52
STEPPED = TightCurve((1, 5, 8), (0.001, 0.002, 0.004))


@pytest.mark.parametrize("weights", three_of(FAMILIES))
def test_one_value_by_itself_is_that_of_the_whole_curve(weights: Any) -> None:
    random, curve = Random(1), tight_curve(weights)
    assert curve.steps == knots(weights)
    some = [*range(8), *(random.randrange(1 << random.randint(1, 44)) for _ in range(100)), *curve.steps[-3:]]
    assert [curve_at(weights, step) for step in some] == [curve.at(step) for step in some]
    doubles = [up_float(at) if isinstance(at, Fraction) else at for at in map(curve.at, some)]
    assert curve.over(np.array(some)).tolist() == curve.over(np.array(some, dtype=np.float64)).tolist() == doubles
    assert curve.rho == tuple(tight_loss(weights, step) for step in curve.steps)  # none had to be raised


@pytest.mark.parametrize("weights", FAMILIES)
def test_a_curve_is_above_every_loss_and_near_it(weights: Any) -> None:
    random, curve = Random(2), tight_curve(weights)
    for step in (random.randrange(1, 1 << random.randint(1, 40)) for _ in range(100)):
        exactly, bound = tight_loss(weights, step), float(curve.at(step))
        assert exactly <= bound
        assert bound <= exactly * 1.006 or (bound == inf and step > curve.steps[-1])
    apart = [(high / low, rho) for low, high, rho in zip(curve.rho, curve.rho[1:], curve.steps, strict=False)]
    assert all(rise < 1.006 for rise, step in apart if step > 2 * KNOTS_A_RISE)


@pytest.mark.parametrize("p", ["0.25", "0.5", "0.75"])
def test_last_bits_do_not_move_knots(p: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = GeneralizedGaussianWeights(p=Fraction(p), scale=Fraction(7))

    def knots_of(bits: int) -> tuple[int, ...]:
        random = Random(bits)
        with monkeypatch.context() as patched:
            patched.setattr(
                of_curves, "pure_above", lambda w, n: pure_above(w, n) * (1 + random.randint(-bits, bits) * ULP)
            )
            return knots.__wrapped__(weights)

    assert knots_of(2) == knots_of(1) == knots_of(0)
    monkeypatch.setattr(of_curves, "HAIR", 0.0)
    assert len({knots_of(bits) for bits in range(8)}) > 1


@pytest.mark.parametrize("weights", FAMILIES)
def test_losses_have_seven_digits(weights: Any) -> None:
    assert all(float(f"{rho:.7g}") == rho for rho in tight_curve(weights).rho)


def test_beyond_its_knots_a_curve_says_nothing() -> None:
    assert [STEPPED.at(step) for step in (0, 1, 2, 5, 8, 9, 10**30)] == [0, *map(exact, LOSSES), inf, inf]
    assert STEPPED.over(np.array([0, 1, 2, 5, 8, 9, 1 << 62])).tolist() == [0, *RAISED, inf, inf]
    assert STEPPED.over(np.array([0.0, 8.0, 1e300, inf])).tolist() == [0, RAISED[-1], inf, inf]


def test_curves_are_json() -> None:
    for curve in (STEPPED, tight_curve(NARROW)):
        text = json.dumps(curve.to_json())
        assert TightCurve.from_json(json.loads(text)) == curve
        assert json.dumps(TightCurve.from_json(json.loads(text)).to_json()) == text
        assert len(text) < 30 * len(curve.steps) + 50


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"steps": [], "rho": []},
        {"steps": [1], "rho": [0.5, 0.6]},
        {"steps": [0, 1], "rho": [0.5, 0.6]},
        {"steps": [2, 2], "rho": [0.5, 0.6]},
        {"steps": [1, 2], "rho": [0.6, 0.5]},
        {"steps": [1, 2], "rho": [0.0, 0.5]},
        {"steps": [1, 2], "rho": [0.5, inf]},
        {"steps": [1, 2], "rho": [0.5, float("nan")]},
        {"steps": [1.0, 2], "rho": [0.5, 0.6]},
        {"steps": [True, 2], "rho": [0.5, 0.6]},
        {"steps": [1, 2], "rho": ["0.5", 0.6]},
        {"steps": [1, 2], "rho": [0.5, 0.6], "more": 1},
        {"steps": 1, "rho": 0.5},
    ],
)
def test_what_is_no_curve_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="curve of losses"):
        TightCurve.from_json(document)


@pytest.mark.parametrize("spec", HEAVY)
@pytest.mark.parametrize("step", ["1", "0.01"])
def test_arrays_and_single_influences_lose_the_same(spec: dict[str, Any], step: str) -> None:
    random, unit = Random(5), Fraction(step)
    m = build({**spec, "sigma": exact(spec["sigma"]) * unit}, unit)
    steps = [0, 1, 2, 3, *(random.randrange(1 << random.randint(1, 62)) for _ in range(300))]
    single = [m.loss_at(n * unit) for n in steps]
    few = np.array([float(n * unit) for n in steps[:60]])
    assert "loss_curve" not in vars(m.lattice_noise)  # single losses and short arrays need no curve
    assert m.loss(few).tolist() == pytest.approx([float(x) for x in single[:60]], rel=1e-11)
    assert "loss_curve" not in vars(m.lattice_noise)
    whole = m.loss(np.array([float(n * unit) for n in steps]))
    assert m.loss_curve == tight_curve(m.log_weights)
    assert whole.tolist() == m.loss(np.array([float(n * unit) for n in steps])).tolist()  # by the table, now
    paper = build({**spec, "sigma": exact(spec["sigma"]) * unit, "policy": "paper"}, unit)
    for n, loss, array in zip(steps, single, whole.tolist(), strict=True):
        bound = paper.loss_at(n * unit)
        assert loss == min(bound, Fraction(curve_at(m.log_weights, n)) if n <= knots(m.log_weights)[-1] else bound)
        assert loss <= Fraction(array) <= loss * (1 + Fraction(1, 10**11))
    assert single[1] < paper.loss_at(unit)


@pytest.mark.parametrize("spec", HEAVY)
def test_influences_between_two_steps_lose_what_the_next_one_does(spec: dict[str, Any]) -> None:
    m = build(spec, ONE)
    steps = m.with_curve(STEPPED)
    assert steps.loss_at(Fraction(21, 4)) == steps.loss_at(Fraction(8)) > steps.loss_at(Fraction(5))
    assert steps.loss(np.array([5.25])).tolist() == [RAISED[-1]]
    near = np.array([5.0, 5 * (1 + 2.0**-49), 5 * (1 - 2.0**-52), 5 * (1 + 2.0**-40)])  # three last bits are none
    assert steps.loss(near).tolist() == [*RAISED[1:2] * 3, RAISED[-1]]


@pytest.mark.parametrize("spec", HEAVY)
def test_a_stored_curve_is_read_and_travels(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    m = build(spec, ONE).with_curve(STEPPED)
    paper = build(spec | {"policy": "paper"}, ONE)
    monkeypatch.setattr(of_curves, "tight_curve", None)  # whatever computes one fails
    query = QueryLoss("q", 0, "x", ONE, {}, (m,))
    there = pickle.loads(pickle.dumps(query)).mechanisms[0]
    assert there == m
    assert there.loss_curve == STEPPED
    large = Fraction(10**6)
    for held in (m, there):
        assert held.loss_at(Fraction(4)) == Fraction(1, 500) < paper.loss_at(Fraction(4))
        assert held.loss_at(large) == paper.loss_at(large)
        assert held.loss(np.full(100, 4.0)).tolist() == [up_float(held.loss_at(Fraction(4)))] * 100
    with pytest.raises(TypeError):
        QueryLoss("q", 0, "x", ONE, {}, (build(spec, ONE),))


def test_policies_that_are_formulas_take_no_curve() -> None:
    for kind, given in EXAMPLES.items():
        m = build({"kind": kind, **given} | ({"policy": "paper"} if kind in (*TABLED, "designed") else {}), ONE)
        assert m.loss_curve is None
        with pytest.raises(TypeError, match=kind):
            m.with_curve(STEPPED)
    laplace = build({"kind": "laplace", "sigma": 4, "policy": "tight"}, ONE)
    assert laplace.loss_curve is None
    assert float(laplace.loss_at(Fraction(3))) == pytest.approx(tight_loss(LaplaceWeights(scale=Fraction(4)), 3))


@pytest.mark.parametrize("kind", ["laplace", *TABLED])
def test_the_tight_policy_is_described_and_smaller(kind: str) -> None:
    assert CATALOGUE[kind].parameters()["policy"].choices == ("tight", "paper")
    paper, tight = (build({"kind": kind, **EXAMPLES[kind], "policy": policy}, ONE) for policy in ("paper", "tight"))
    assert build({"kind": kind, **EXAMPLES[kind]}, ONE) == tight
    assert tight.describe() == paper.describe() | {"policy": "tight"}
    assert tight.formula != paper.formula
    assert tight.pure_formula == paper.pure_formula
    for influence in (1, 2, 3, 40, 10**5, 10**13, 1 << 62):
        assert tight.loss_at(Fraction(influence)) <= paper.loss_at(Fraction(influence))
        assert tight.pure_loss_at(Fraction(influence)) == paper.pure_loss_at(Fraction(influence))
    assert tight.loss_at(Fraction(3)) < paper.loss_at(Fraction(3)) * Fraction(99, 100)


@pytest.mark.parametrize("kind", ["gaussian", "root", "log"])
def test_other_policies_are_exact_or_have_no_tight_one(kind: str) -> None:
    policy = CATALOGUE[kind].parameters().get("policy")
    assert policy is None or policy.choices == ("paper",)
