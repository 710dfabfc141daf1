"""Losses in people's words: (ε, δ) and the best test, against exact mechanisms and high precision."""

from math import exp, inf, log, sqrt

import mpmath as mp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from pipeline.accounting import convert
from pipeline.accounting.convert import approximate_epsilon, best_power

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
    ],
)
def test_what_is_no_loss_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match="must be"):
        call()  # type: ignore[operator]


def test_the_guess_is_what_a_loss_of_nothing_leaves() -> None:
    assert best_power(0.0) == pytest.approx(convert.SIZE, rel=1e-6)
