"""Designed noise: it keeps its limits by its own certified loss, and has less error than the named noise beside it."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import prdp
from pipeline.base.errors import PlanError
from pipeline.plan.plan_mechanisms import digest_of, read_weights
from pipeline.planning.study.design import Wish, best_start, design
from pipeline.planning.study.design_program import ORDERS, Cost, Knots, Program
from udfs.losses.curve import stated_at
from udfs.mechanisms.parameters import ParameterError


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
