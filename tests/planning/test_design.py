"""Designed noise: it keeps its limits by its own certified loss, and has less error than the named noise beside it."""

import json
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import prdp
from pipeline.base.errors import PlanError
from pipeline.plan.plan_mechanisms import digest_of, read_weights
from pipeline.planning.study.design import Wish, best_start, design
from pipeline.planning.study.design_bound import FALLS as FLOORS
from pipeline.planning.study.design_bound import Certificate
from pipeline.planning.study.design_program import ORDERS, Cost, Knots, Program
from udfs.losses.curve import stated_at
from udfs.mechanisms.base import ParameterError
from udfs.noise.piecewise import PiecewiseWeights


@pytest.fixture(scope="module")
def designed() -> prdp.Design:
    return prdp.design({4: 1, 12: 3})


def test_limits_are_kept_and_the_error_is_less(designed: prdp.Design) -> None:
    facts = designed.to_json()
    assert [limit["influence"] for limit in facts["limits"]] == [4, 12]
    for limit in facts["limits"]:
        assert 0.98 * limit["rho"] < limit["certified"] <= limit["rho"]
        assert designed.mechanism.loss_at(limit["influence"]) == limit["certified"]
    start = prdp.mechanisms.ExponentialPolylog(**{name: facts["start"][name] for name in ("p", "d", "a", "sigma")})
    assert all(start.loss_at(x) <= rho for x, rho in ((4, 1), (12, 3)))
    assert facts["ratio"] == pytest.approx(designed.mechanism.variance() / start.variance())
    assert facts["ratio"] < 0.9
    assert 0.8 * facts["variance"] < facts["lower_bound"] < facts["variance"]


def test_the_program_s_gradients_are_differences_of_its_values() -> None:
    knots = Knots(np.array([1, 2, 4, 7, 11, 20, 40]), np.array([80, 400, 2**20]), np.array([-3.0, -9.0, -40.0]))
    program = Program(knots, [(3, 0.5), (10, 2.0)], Cost(power=2))
    v = -np.linspace(0.1, 9, len(knots.free))
    value, gradient = program.objective(v)
    slack, rows = program.slack(v), program.slack_gradient(v)
    assert len(slack) == 2 * len(ORDERS) + len(v)
    for i in range(len(v)):
        moved = v + 1e-6 * (np.arange(len(v)) == i)
        assert (program.objective(moved)[0] - value) / 1e-6 == pytest.approx(gradient[i], rel=1e-3, abs=1e-6)
        np.testing.assert_allclose((program.slack(moved) - slack) / 1e-6, rows[:, i], rtol=1e-3, atol=1e-5)


def test_one_limit_of_small_loss_is_nearly_gaussian_noise() -> None:
    # Under a single limit Gaussian noise is nearly best: its variance Δ²/(2ρ) is the yardstick.
    found = design(Wish(((Fraction(3), Fraction("0.1")),)))
    gaussian = 3**2 / (2 * 0.1)
    assert 0.9 * gaussian < found.mechanism.variance(0.0) < best_start(found.wish).variance(0.0)


def test_the_narrowest_interval_is_narrower_than_that_of_least_variance(designed: prdp.Design) -> None:
    found = prdp.design({4: 1, 12: 3}, minimise="interval", coverage="0.95")
    facts = found.to_json()
    lower, upper = found.mechanism.interval_around(0, 0.95)
    assert facts["interval"] == upper - lower
    other_lower, other_upper = designed.mechanism.interval_around(0, 0.95)
    assert 0 < facts["lower_bound"] <= facts["interval"] < other_upper - other_lower
    assert all(limit["certified"] <= limit["rho"] for limit in facts["limits"])
    with pytest.raises(PlanError, match="coverage: must be"):
        prdp.design({4: 1}, coverage=1)


def test_a_limit_whose_loss_is_stated_at_a_larger_influence_costs_little() -> None:
    found = design(Wish(((Fraction(2), Fraction(1)), (Fraction(3001), Fraction(30)))))
    assert found.lower_bound is not None
    assert stated_at(found.mechanism.weights.weights, 3001) > 3001
    assert 29 < found.mechanism.loss_at(Fraction(3001)) <= 30
    # a search that looks at 3001 alone ends at a cliff just beyond, and is flattened to keep the stated loss
    assert found.mechanism.variance(0.0) < 1.3 * found.lower_bound


@pytest.mark.parametrize(
    ("limits", "what"),
    [
        ({}, "from 1 to"),
        ({10: 0.5, 20: 0.4}, "must rise"),
        ({10: 0}, "above 0"),
        ({-1: 1}, "above 0"),
        ({0.5: 1}, "whole number of steps"),
        ({"x": 1}, "must be a number"),
        ({10**14: 1}, "too many steps"),
    ],
)
def test_wrong_limits_are_refused(limits: dict[object, object], what: str) -> None:
    with pytest.raises(PlanError, match=what):
        prdp.design(limits)  # type: ignore[arg-type]


def test_a_table_s_file_is_what_was_written(designed: prdp.Design, tmp_path: Path) -> None:
    path = designed.save(tmp_path / "noise.json")
    table = read_weights(path, "weights", Fraction(1))
    assert table == designed.mechanism.parameters["weights"]
    with pytest.raises(PlanError, match="exists already"):
        designed.save(path)
    with pytest.raises(ParameterError, match=r"step 5; noise\.json has 1"):
        read_weights(path, "weights", Fraction(5))
    document = json.loads(path.read_text())
    document["weights"]["log_weights"][3] += 0.001
    path.write_text(json.dumps(document))
    with pytest.raises(ParameterError, match="changed since"):
        read_weights(path, "weights", Fraction(1))
    document["digest"] = digest_of(document["weights"])
    document["kind"] = "noise"
    path.write_text(json.dumps(document))
    with pytest.raises(ParameterError, match=r"noise\.json is none"):
        read_weights(path, "weights", Fraction(1))
    with pytest.raises(ParameterError, match="No such file"):
        read_weights(tmp_path / "absent.json", "weights", Fraction(1))


SHIFT, RHO = 2, 1.0
FALLS = tuple(Fraction(i, 16) for i in range(25))  # of log-weights, to the distances 1, 2 and 3; the last one goes on
LATTICE = np.arange(-90, 91)
COSTS = (Cost(power=2), Cost(power=1), Cost(beyond=1))


def _least_by_brute_force(cost: Cost) -> tuple[float, PiecewiseWeights]:
    """Return the least error of noise within the limit, summed point by point, and that noise."""
    falls = np.array([some for some in product(FALLS, repeat=3) if some[2] >= Fraction(1, 4)], dtype=np.float64)
    distance = np.arange(LATTICE[-1] + SHIFT + 1)
    logs = -np.cumsum(falls, axis=1)[:, np.minimum(distance, 3) - 1] - np.outer(
        falls[:, 2], np.maximum(distance - 3, 0)
    )
    logs[:, 0] = 0
    logs -= np.log(2 * np.exp(logs[:, 1:]).sum(axis=1) + 1)[:, None]
    p, q = logs[:, np.abs(LATTICE)], logs[:, np.abs(LATTICE - SHIFT)]
    kept = np.ones(len(falls), dtype=np.bool_)
    for order in ORDERS:
        kept[kept] = np.log(np.exp(order * p[kept] - (order - 1) * q[kept]).sum(axis=1)) <= (order - 1) * order * RHO
    errors = np.where(kept, np.exp(p) @ cost.at(np.abs(LATTICE).astype(np.float64)), np.inf)
    best = int(errors.argmin())
    steps = [Fraction(x) for x in (0, *np.cumsum(falls[best]))]
    logs_of_best = (*(-x for x in steps), steps[2] - 2 * steps[3])
    return float(errors[best]), PiecewiseWeights(steps=(0, 1, 2, 3, 4), logs=logs_of_best)


@pytest.mark.parametrize("cost", COSTS)
def test_no_noise_is_below_the_bound_and_the_bound_is_near_the_best(cost: Cost) -> None:
    least, noise = _least_by_brute_force(cost)
    certificates = [Certificate(noise, [(SHIFT, RHO)], fall) for fall in FLOORS]
    assert all(certificate.least(cost) <= least for certificate in certificates)
    certificate = max(certificates, key=lambda some: some.least(cost))
    multipliers = certificate.multipliers(cost)
    assert 0.7 * least < certificate.bound(cost, multipliers) <= least
    # whatever the multipliers, and whatever the noise that they are taken with
    random = np.random.default_rng(1)
    for factor in random.exponential(size=20):
        assert certificate.bound(cost, factor * multipliers) <= least
    other = PiecewiseWeights(steps=(0, 3, 20), logs=(Fraction(0), Fraction(-1), Fraction(-9)))
    assert Certificate(other, [(SHIFT, RHO)], 4.0).least(cost) <= least
    # the broken twin: a multiplier that counts twice in the means and once in the price
    assert certificate.bound(cost, multipliers) + float(multipliers.sum()) / 2 > least


def test_the_bound_stands_where_no_order_is_active() -> None:
    steep = PiecewiseWeights(steps=(0, 1), logs=(Fraction(0), Fraction(-1, 8)))
    assert Certificate(steep, [(1, 50.0)], 4.0).least(Cost(power=2)) == 0
