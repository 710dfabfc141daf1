"""Noise with a table of log-weights: its loss against sums over every integer in high precision."""

import math
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from tests.support.divergence import max_divergence, renyi
from tests.support.kinds import FLAT, NARROW, STAIRS, random_table, three_a_kind
from tests.support.piecewise import Piecewise, of_table
from udfs.losses import curve
from udfs.losses.curve import curve_at, loss_below, tight_curve
from udfs.losses.nodes import log_moment, pure_exactly, pure_of
from udfs.losses.tight import renyi_curve, tight_loss
from udfs.mechanisms.additive_kinds import WeightTable
from udfs.mechanisms.catalogue import build
from udfs.noise.piecewise import PiecewiseWeights
from udfs.numbers.arrays import Floats

ORDERS = [Fraction(text) for text in ("1.0001", "1.01", "1.3", "2", "7", "40", "500")]
SHIFTS = (1, 2, 7, 30, 95)


def tables() -> list[Piecewise]:
    random, result = Random(7), [STAIRS, NARROW, FLAT]
    for _ in range(5):
        spec: dict[str, object] = {}
        random_table(spec, random)  # type: ignore[arg-type]
        result.append(spec["weights"])  # type: ignore[arg-type]
    return [of_table(table) for table in result]


def weights_of(noise: Piecewise) -> PiecewiseWeights:
    return PiecewiseWeights(steps=noise.steps, logs=noise.logs)


def broken(noise: Piecewise, loss: dict[int, float]) -> list[tuple[int, Fraction]]:
    """Where a divergence of some order exceeds what is stated."""
    return [(n, a) for n in SHIFTS for a in ORDERS if renyi(noise, n, a) > float(a) * loss[n]]


@pytest.mark.parametrize("noise", three_a_kind(tables(), type))
def test_the_stated_loss_is_the_least_that_bounds_every_order(noise: Piecewise) -> None:
    stated = {n: tight_loss(weights_of(noise), n) for n in SHIFTS}
    assert broken(noise, stated) == []
    for n in SHIFTS:  # a hundredth less is exceeded, at an order between those above, and the bound from below says so
        assert stated[n] * 0.99 <= loss_below(weights_of(noise), n) <= stated[n]
    assert broken(noise, {n: 0.5 * loss for n, loss in stated.items()})
    smaller = {n: tight_loss(weights_of(noise), n - 1) for n in SHIFTS}  # the twin that is off by a step
    assert broken(noise, smaller)


def test_sums_over_few_distances_are_below_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curve, "moment_below", lambda *given: 0.0)
    monkeypatch.setattr(curve, "GRID", np.unique([0.0, 1.0, *np.round(1.3 ** np.arange(1, 60) + 1)]))
    weights, known = [weights_of(noise) for noise in tables()], curve._probabilities

    def largest_share() -> float:
        return max(loss_below.__wrapped__(w, n) / tight_loss(w, n) for w in weights for n in SHIFTS)

    assert 0.99 < largest_share() <= 1
    monkeypatch.setattr(curve, "_probabilities", lambda *given: _nearer(*known(*given)))
    assert largest_share() > 1  # the twin: each block has the mass of its nearer end


def _nearer(k: Floats, density: Floats) -> tuple[Floats, Floats]:
    return k, np.append(density[:1], density[:-1])


@pytest.mark.parametrize("noise", three_a_kind(tables(), type))
def test_whole_curves_are_the_divergences(noise: Piecewise) -> None:
    orders = np.array([float(a) for a in ORDERS])
    for n in SHIFTS:
        curve = renyi_curve(weights_of(noise), n, orders)
        exact = np.array([float(renyi(noise, n, a)) for a in ORDERS])
        assert np.all(curve >= exact * (1 - 1e-12))
        pure = float(pure_exactly(weights_of(noise), n))
        pure = np.where((orders - 1) * pure > 2**14, pure, 0.0)  # where no sum is taken
        assert np.all(curve <= np.maximum(exact * (1 + 1e-6) + 1e-7, pure * (1 + 1e-6)))


@pytest.mark.parametrize("noise", three_a_kind(tables(), type))
def test_pure_losses_are_the_largest_difference(noise: Piecewise) -> None:
    weights = weights_of(noise)
    shifts = np.arange(0.0, 130)
    exact = [pure_exactly(weights, int(n)) for n in shifts]
    assert exact == [noise.pure(int(n)) if n < 100 else exact[int(n)] for n in shifts]
    assert all(low <= high for low, high in pairwise(exact))
    assert np.allclose(pure_of(weights, shifts), [float(p) for p in exact], rtol=1e-12, atol=1e-15)
    assert max_divergence(noise, 400) <= float(pure_exactly(weights, 400)) * (1 + 1e-12)


def test_a_shift_beyond_the_doubles_has_the_pure_loss() -> None:
    weights = weights_of(of_table(STAIRS))
    pure = float(pure_exactly(weights, 2**60))
    assert log_moment(weights, 2**60, pure)(np.array([0.5]))[0] == 0.5 * pure


def test_one_knot_and_the_whole_curve_state_the_same() -> None:
    weights = weights_of(of_table(STAIRS))
    curve = tight_curve(weights)
    for n in (1, 2, 10, 41, 333, 5000):
        assert curve.at(n) == curve_at(weights, n)
        assert float(curve.at(n)) >= tight_loss(weights, n)


@pytest.mark.parametrize("noise", three_a_kind(tables(), type))
def test_moments_and_quantiles_are_sums(noise: Piecewise) -> None:
    weights = weights_of(noise)
    known = weights.moments
    assert known.mean_abs == pytest.approx(float(noise.moment(1)), rel=1e-13)
    assert weights.variance() == pytest.approx(float(noise.moment(2)), rel=1e-13)
    c = weights.quantile(Fraction(1, 20))
    assert noise.beyond(c) <= Fraction(1, 20) < noise.beyond(c - 1) if c else noise.beyond(0) <= Fraction(1, 20)


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"steps": [0, 1], "log_weights": [0, 1]}, "must not rise"),
        ({"steps": [0, 1, 2], "log_weights": [0, -1, -1]}, "must fall at the end"),
        ({"steps": [0, 2, 1], "log_weights": [0, -1, -2]}, "must rise from 0"),
        ({"steps": [1, 2], "log_weights": [0, -1]}, "must rise from 0"),
        ({"steps": [0, 2**53], "log_weights": [0, -1]}, "at most 2"),
        ({"steps": [0, 1], "log_weights": [0, -1, -2]}, "as many"),
        ({"steps": [0, 1], "log_weights": [-1, -2]}, "begin with 0"),
        ({"steps": [0, 1], "log_weights": [0, float("nan")]}, "finite"),
        ({"steps": [0, 1], "log_weights": [0, "-1"]}, "numbers"),
        ({"steps": [0, 1.5], "log_weights": [0, -1]}, "whole"),
        ({"steps": [0, 1]}, "a table of steps and log_weights"),
        ("noise.json", "a table of steps and log_weights"),
    ],
)
def test_a_wrong_table_is_refused(table: object, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        WeightTable.from_json(table)


def test_log_weights_that_barely_fall_weigh_as_flat_ones() -> None:
    """The sum of a sequence whose fall no precision shows: a table's normaliser, and with it its loss, hangs on it."""
    flat, barely = (
        PiecewiseWeights(steps=(0, 200, 220), logs=(Fraction(0), -fall, Fraction(-20)))
        for fall in (Fraction(0), Fraction("2.8e-179"))
    )
    for order in range(3):
        assert math.isclose(barely.log_sum(1, order), flat.log_sum(1, order), rel_tol=1e-14)
    assert math.isclose(tight_loss(barely, 1), tight_loss(flat, 1), rel_tol=1e-6)


def test_pure_losses_of_arrays_are_not_below_the_exact_ones() -> None:
    """Log-weights that are large beside what they fall a step; a cliff where doubles of influences are coarse."""
    shifts = np.array([0.0, 1, 3, 7, 100, 10**6])
    for wide in (10**6, 10**9, 10**12):
        table = {"steps": [0, wide, wide + wide // 2], "log_weights": [0, -4000, -9999]}
        m = build({"kind": "designed", "weights": table}, Fraction(1))
        exact = [m.pure_loss_at(Fraction(int(n))) for n in shifts]
        assert all(Fraction(p) >= q for p, q in zip(m.pure_loss(shifts).tolist(), exact, strict=True))
        assert m.pure_loss(shifts)[0] == 0
    far = 2**50
    table = {"steps": [0, 1, far, far + 1, 2 * far], "log_weights": [0, -500, -501, -1000, -1001]}
    m = build({"kind": "designed", "weights": table}, Fraction(1))
    assert m.pure_loss(np.array([far + 1.0]))[0] >= m.pure_loss_at(Fraction(far + 1)) == 1000


@pytest.mark.parametrize("steps", [1, 30, 1000])
def test_no_loss_from_below_exceeds_that_of_any_mechanism_with_this_pure_loss(steps: int) -> None:
    """Of wide noise the logarithm of the normaliser is large beside all that is summed."""
    logs = (Fraction(0), Fraction(-3, 250), Fraction(-1139, 1000))
    wide = PiecewiseWeights(steps=(0, 259_717, 31_048_280), logs=logs)
    pure = steps * Fraction(3, 250) / 259_717
    assert 0.3 * pure**2 < loss_below(wide, steps) <= pure**2 / 2
