"""Losses in people's words: (ε, δ) and the best test, against exact mechanisms and high precision."""

from math import exp, inf, log, sqrt

import mpmath as mp
import numpy as np
import pytest
from dp_accounting import get_sigma_gaussian
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import laplace, norm

from pipeline.accounting import convert
from pipeline.accounting.convert import (
    approximate_epsilon,
    approximate_epsilon_of,
    best_power,
    best_power_of,
    exact_scale,
)
from udfs.mechanisms.additive_kinds import Gaussian, Laplace

RHOS = (1e-6, 1e-3, 0.05, 0.5, 2.0, 10.0, 300.0)
DELTAS = (1e-3, 1e-6, 1e-10)


def gaussian_epsilon(rho: float, delta: float) -> float:
    """The exact ε of the Gaussian mechanism of zCDP loss ρ, from Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) = δ, μ = √(2ρ)."""
    with mp.workdps(40):
        mu = mp.sqrt(2 * mp.mpf(rho))

        def excess(epsilon: mp.mpf) -> mp.mpf:
            return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu) - delta

        low, high = mp.mpf(0), mp.mpf(rho) + 2 * mp.sqrt(rho * mp.log(1 / mp.mpf(delta))) + 1
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(low)


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_lies_between_the_gaussian_mechanisms_and_the_simple_bound(rho: float, delta: float) -> None:
    found = approximate_epsilon(rho, delta)
    assert gaussian_epsilon(rho, delta) <= found <= rho + 2 * sqrt(rho * log(1 / delta))


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("delta", DELTAS)
def test_epsilon_is_the_minimum_over_all_orders(rho: float, delta: float) -> None:
    def at(log_t: float) -> float:
        with mp.workdps(40):
            alpha = 1 + mp.exp(log_t)
            rest = mp.log(1 / mp.mpf(delta)) + (alpha - 1) * mp.log(1 - 1 / alpha) - mp.log(alpha)
            return float(alpha * rho + rest / (alpha - 1))

    least = minimize_scalar(at, bounds=(log(1e-4), log(1e8)), method="bounded", options={"xatol": 1e-10}).fun
    assert least <= approximate_epsilon(rho, delta) <= max(least, 0) * 1.001 + 1e-12


@pytest.mark.parametrize(
    ("rho", "delta"),
    [(7.224686305895254e-15, 1.858157800755727e-9), (2.2133975451098778e-15, 3.529353171500361e-10), (1e-12, 0.3)],
)
def test_epsilon_is_a_bound_where_almost_nothing_is_left_of_it(rho: float, delta: float) -> None:
    def at(log_t: mp.mpf) -> mp.mpf:
        alpha = 1 + mp.exp(log_t)
        rest = mp.log(1 / mp.mpf(delta)) + (alpha - 1) * mp.log(1 - 1 / alpha) - mp.log(alpha)
        return alpha * mp.mpf(rho) + rest / (alpha - 1)

    with mp.workdps(50):
        low, high = mp.log(1e-4), mp.log(1e60)
        for _ in range(300):  # it falls, then it rises
            third = (high - low) / 3
            low, high = (low, high - third) if at(low + third) < at(high - third) else (low + third, high)
        assert approximate_epsilon(rho, delta) >= max(at(low), 0)


def test_a_pure_loss_bounds_epsilon_too() -> None:
    assert approximate_epsilon(2.0, 1e-9, pure=1.5) == 1.5
    assert approximate_epsilon(2.0, 1e-9, pure=100.0) == approximate_epsilon(2.0, 1e-9)
    assert approximate_epsilon(inf, 1e-9, pure=3.0) == 3.0
    assert approximate_epsilon(inf, 1e-9) == inf
    assert approximate_epsilon(0.0, 1e-9) == 0.0


@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize("size", [0.01, 0.05, 0.3])
def test_the_best_test_against_gaussian_noise_keeps_the_bound(rho: float, size: float) -> None:
    power = norm.cdf(sqrt(2 * rho) - norm.isf(size))  # Neyman and Pearson's, exact
    assert power <= best_power(rho, size=size)
    assert size <= best_power(rho, size=size) <= 1


def test_a_smaller_loss_would_not_bound_gaussian_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = norm.cdf(sqrt(2.0) - norm.isf(0.05))
    assert best_power(0.6) < exact <= best_power(1.0)  # the broken twin: the loss of noise that is wider by a third


@pytest.mark.parametrize("pure", [1e-6, 0.1, 1.0, 5.0])
def test_randomised_response_reaches_the_pure_bound(pure: float) -> None:
    heads = exp(pure) / (1 + exp(pure))  # told truly; the test accuses on heads, of size 1 − heads
    assert heads <= best_power(inf, pure, size=1 - heads) <= heads * (1 + 2e-9)
    assert best_power(inf, pure, size=0.001) == pytest.approx(min(1, 0.001 * exp(pure)), rel=2e-9)


@given(st.floats(0, 1e6), st.floats(1.0001, 4))
def test_bounds_grow_with_the_loss(rho: float, factor: float) -> None:
    assert best_power(rho) <= best_power(rho * factor) * (1 + 1e-9)
    assert approximate_epsilon(rho, 1e-9) <= approximate_epsilon(rho * factor, 1e-9) * (1 + 1e-6)


def test_two_coins_at_the_bound_are_within_it_and_beyond_it_are_not() -> None:
    with mp.workdps(40):
        y, x, rho = mp.mpf(best_power(0.5)), mp.mpf("0.05"), mp.mpf("0.5")

        def worst(y: mp.mpf) -> mp.mpf:
            """The largest D_α − αρ in either direction, by a scan of orders in high precision."""
            return max(
                mp.log(p**a * q ** (1 - a) + (1 - p) ** a * (1 - q) ** (1 - a)) / (a - 1) - a * rho
                for a in (1 + mp.mpf(10) ** (mp.mpf(i) / 40) for i in range(-120, 200))
                for p, q in ((y, x), (x, y))
            )

        assert worst(y * mp.mpf("0.99")) < 0 < worst(y * mp.mpf("1.01"))


@pytest.mark.parametrize(
    "call",
    [
        lambda: approximate_epsilon(-1, 1e-9),
        lambda: approximate_epsilon(float("nan"), 1e-9),
        lambda: approximate_epsilon(1, 0),
        lambda: approximate_epsilon(1, 1),
        lambda: best_power(-1),
        lambda: best_power(1, size=0),
        lambda: best_power(1, size=float("nan")),
        lambda: approximate_epsilon_of([2.0], [1.0], 1.0),
    ],
)
def test_what_is_no_loss_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        call()  # type: ignore[operator]


def test_the_guess_is_what_a_loss_of_nothing_leaves() -> None:
    assert best_power(0.0) == pytest.approx(convert.SIZE, rel=1e-6)


# Whole Rényi curves as (ε, δ) and as a test's power, against mechanisms whose trade-offs are known exactly.

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


# Our conversions of losses beside those of another's library, dp-accounting.

THEIR_ORDERS = np.array([1.1, 1.5, 2, 3, 5, 8, 13, 21, 34, 55, 144, 1000], dtype=float)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
@pytest.mark.parametrize("rho", [1e-3, 0.1, 2.0])
def test_epsilon_of_a_curve_is_that_of_the_same_proposition(rho: float, delta: float) -> None:
    truncated = np.where(THEIR_ORDERS > 100, np.inf, THEIR_ORDERS * rho)
    for curve in (THEIR_ORDERS * rho, THEIR_ORDERS**1.5 * rho, truncated):
        theirs, _ = compute_epsilon(THEIR_ORDERS, curve, delta)
        ours = approximate_epsilon_of(THEIR_ORDERS, curve, delta)
        # theirs is 0 also where a bound of the total variation says so
        assert ours == pytest.approx(theirs, rel=1e-8) or theirs == 0


@pytest.mark.parametrize(("epsilon", "delta"), [(1, 1e-5), (0.1, 1e-6), (5, 1e-9)])
def test_the_exact_scale(epsilon: float, delta: float) -> None:
    assert exact_scale(epsilon, delta) == pytest.approx(get_sigma_gaussian(epsilon, delta), rel=1e-6)


@pytest.mark.parametrize("delta", [1e-3, 1e-8])
@pytest.mark.parametrize("sigma", [2, 7])
def test_epsilon_of_our_losses_bounds_the_exact_one_of_lattice_noise(sigma: int, delta: float) -> None:
    noise = {
        Gaussian: pld.from_discrete_gaussian_mechanism(sigma, pessimistic_estimate=False),
        Laplace: pld.from_discrete_laplace_mechanism(1 / sigma, pessimistic_estimate=False),
    }
    for kind, exact in noise.items():
        m = kind(sigma=sigma)  # type: ignore[arg-type]
        least = exact.get_epsilon_for_delta(delta)
        rho = float(m.loss_at(1))  # type: ignore[arg-type]
        assert least <= approximate_epsilon(rho, delta)
        assert least > approximate_epsilon(rho / 3, delta) or kind is Laplace  # the twin
