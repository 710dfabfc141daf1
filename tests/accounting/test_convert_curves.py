"""Whole Rényi curves as (ε, δ) and as a test's power, against mechanisms whose trade-offs are known exactly."""

from math import exp, inf, log

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import laplace

from pipeline.accounting.convert import approximate_epsilon, approximate_epsilon_of, best_power, best_power_of

ORDERS = 1 + np.geomspace(1e-3, 1e5, 300)
PURES = (0.01, 0.5, 2.0, 20.0)


def laplace_curve(pure: float) -> list[float]:
    """D_α of continuous Laplace noise of pure loss ε (Mironov 2017, proposition 6), by mpmath.

    e^((α−1)D_α) = α/(2α − 1)·e^((α−1)ε) + (α − 1)/(2α − 1)·e^(−αε)
    """
    with mp.workdps(30):
        return [
            float(
                mp.log(a / (2 * a - 1) * mp.exp((a - 1) * pure) + (a - 1) / (2 * a - 1) * mp.exp(-a * pure)) / (a - 1)
            )
            for a in map(mp.mpf, ORDERS)
        ]


@pytest.mark.parametrize("pure", PURES)
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_epsilon_bounds_laplace_noise(pure: float, delta: float) -> None:
    curve = laplace_curve(pure)
    exact = pure + 2 * log(1 - delta)  # δ(ε') = 1 − e^((ε' − ε)/2), the exact trade-off
    assert exact <= approximate_epsilon_of(ORDERS, curve, delta) <= pure * 1.01
    assert exact <= approximate_epsilon_of(ORDERS, curve, delta, pure) <= pure
    understated = [bound / 2 for bound in curve]
    assert approximate_epsilon_of(ORDERS, understated, delta) < exact or exact <= 0


@pytest.mark.parametrize("pure", PURES)
@pytest.mark.parametrize("size", [0.01, 0.05, 0.3])
def test_power_bounds_the_best_test_of_laplace_noise(pure: float, size: float) -> None:
    curve = laplace_curve(pure)
    least = laplace.sf(laplace.isf(size) - pure)  # the likelihood ratio is monotone: Neyman and Pearson's test
    assert least <= best_power_of(ORDERS, curve, size=size) <= 1
    assert least <= best_power_of(ORDERS, curve, pure, size) <= min(1, exp(pure) * size * (1 + 2e-9))


def test_an_understated_curve_is_found_out() -> None:
    least = laplace.sf(laplace.isf(0.05) - 0.5)
    assert best_power_of(ORDERS, [bound / 2 for bound in laplace_curve(0.5)]) < least


@given(st.floats(1e-6, 1e3), st.sampled_from([1e-3, 1e-9]), st.sampled_from([None, 0.7]))
def test_a_loss_is_the_curve_of_its_multiples(rho: float, delta: float, pure: float | None) -> None:
    orders = 1 + np.geomspace(1e-4, 1e8, 2000)
    by_curve = approximate_epsilon_of(orders, orders * rho, delta, pure)
    assert by_curve == pytest.approx(approximate_epsilon(rho, delta, pure), rel=1e-2, abs=1e-12)
    assert best_power_of(orders, orders * rho, pure) == pytest.approx(best_power(rho, pure), rel=1e-3)


def test_one_order_bounds_by_itself() -> None:
    # Canonne, Kamath, Steinke 2020, proposition 12, by hand: α = 2, D_2 = 1, δ = 1e-3:  1 + ln 1000 − 2·ln 2
    assert approximate_epsilon_of([2.0], [1.0], 1e-3) == pytest.approx(1 + log(1000) - 2 * log(2), rel=1e-8)
    # coins of heads y and x: y²/x + (1 − y)²/(1 − x) = e, where that is the tighter direction
    y = best_power_of([2.0], [1.0], size=0.05)
    assert max(y**2 / 0.05 + (1 - y) ** 2 / 0.95, 0.05**2 / y + 0.95**2 / (1 - y)) == pytest.approx(exp(1), rel=1e-6)


def test_orders_without_a_bound_are_left_out() -> None:
    # a truncated guarantee: nothing is known beyond α = 4
    some = np.array([1.5, 2.0, 4.0])
    most = np.array([*some, 8.0, 100.0])
    bounds = np.where(most > 4, inf, most * 0.3)
    assert approximate_epsilon_of(most, bounds, 1e-4) == approximate_epsilon_of(some, some * 0.3, 1e-4)
    assert best_power_of(most, bounds) == best_power_of(some, some * 0.3)
    assert approximate_epsilon_of([2.0], [inf], 1e-4) == inf
    assert approximate_epsilon_of([2.0], [inf], 1e-4, pure=3.0) == 3.0
    assert best_power_of([2.0], [inf]) == 1


def test_distributions_without_divergence_are_one() -> None:
    assert approximate_epsilon_of([2.0, 3.0], [0.0, 0.0], 1e-4) == 0
    assert best_power_of([2.0, 3.0], [0.0, 0.0], size=0.2) == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize(
    ("orders", "divergences"),
    [
        ([], []),
        ([1.0], [1.0]),
        ([0.5], [1.0]),
        ([inf], [1.0]),
        ([float("nan")], [1.0]),
        ([2.0], [-1.0]),
        ([2.0], [float("nan")]),
        ([2.0, 3.0], [1.0]),
        ([[2.0]], [[1.0]]),
    ],
)
def test_what_is_no_curve_is_refused(orders: list[float], divergences: list[float]) -> None:
    for call in (lambda: approximate_epsilon_of(orders, divergences, 1e-6), lambda: best_power_of(orders, divergences)):
        with pytest.raises(ValueError, match="must be"):
            call()


def test_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="delta: must be"):
        approximate_epsilon_of([2.0], [1.0], 1.0)
    with pytest.raises(ValueError, match="size: must be"):
        best_power_of([2.0], [1.0], size=0.0)
