"""Losses in words that people use: (ε, δ), and what the best test of an attacker could achieve.

All are upper bounds: each order α of the Rényi divergence bounds them by itself, so looking at some orders alone is
safe, and arithmetic in doubles is met by a slack far above its error.
"""

from math import exp, expm1, inf, isfinite, log

import numpy as np
from numpy.typing import NDArray

SIZE = 0.05  # how often the test may accuse wrongly
SLACK = 1e-9
ROUNDING = 1e-13  # far above the error of ln(1/δ) − ln α, of which little may be left
ORDERS_BETWEEN = (1e-4, 1e8)  # of α − 1
ORDERS = 400
HALVINGS = 45
SURE = 36.0  # log-odds beyond which a power shows as 1 in doubles


def approximate_epsilon(rho: float, delta: float, pure: float | None = None) -> float:
    """Return an ε such that a loss ρ (zCDP), and a pure loss where there is one, implies (ε, δ)-DP for its record.

        ε = min over α > 1 of  αρ + [ln(1/δ) + (α − 1)·ln(1 − 1/α) − ln α] / (α − 1),     and at most the pure loss

    (Canonne, Kamath, Steinke 2020, proposition 12). Within a thousandth of that minimum. Raises ValueError unless
    ρ ≥ 0 and 0 < δ < 1.
    """
    _require(rho)
    if not 0 < delta < 1:
        raise ValueError("delta: must be above 0 and below 1")
    known = inf if pure is None else pure
    if rho == 0 or not isfinite(rho):
        return 0.0 if rho == 0 else known
    best = 0.0
    low, high = log(ORDERS_BETWEEN[0]), log(ORDERS_BETWEEN[1])
    for _ in range(2):  # all orders, then those about the best
        t = np.exp(np.linspace(low, high, ORDERS))
        bounds = (t + 1) * rho + (-log(delta) - np.log1p(t) + ROUNDING) / t - np.log1p(1 / t)
        best = float(bounds.min())
        step = (high - low) / (ORDERS - 1)
        middle = log(t[bounds.argmin()])
        low, high = middle - step, middle + step
    return min(known, max(best, 0.0) * (1 + SLACK))


def best_power(rho: float, pure: float | None = None, size: float = SIZE) -> float:
    """Return a bound on the power, at false-alarm rate `size`, of every test of whether a record of loss ρ is there.

    It is the largest y for which two coins, of heads y and `size`, have Rényi divergences of at most αρ for the orders
    α > 1 and in both directions, and at most e^ε·size and 1 − e^(−ε)·(1 − size), ε being the pure loss: the outcome of
    a test is post-processing. Raises ValueError unless ρ ≥ 0 and 0 < size < 1.
    """
    _require(rho)
    if not 0 < size < 1:
        raise ValueError("size: must be above 0 and below 1")
    by_pure = 1.0 if pure is None else min(exp(min(pure, 700.0)) * size, size - expm1(-pure) * (1 - size))
    by_pure *= 1 + SLACK
    allowed, refused = log(size) - log(1 - size), SURE  # log-odds of y
    if not isfinite(rho) or _possible(SURE, size, rho):
        return min(by_pure, 1.0)
    for _ in range(HALVINGS):
        middle = (allowed + refused) / 2
        if _possible(middle, size, rho):
            allowed = middle
        else:
            refused = middle
    return min(by_pure, 1 / (1 + exp(-refused)) * (1 + SLACK), 1.0)


def _possible(odds: float, size: float, rho: float) -> bool:
    """Whether coins of log-odds `odds` and of heads `size` keep every bound that is looked at."""
    t = np.geomspace(*ORDERS_BETWEEN, ORDERS)
    one = np.array([-np.logaddexp(0, -odds), -np.logaddexp(0, odds)])  # logarithms of heads and tails
    other = np.log([size, 1 - size])
    bound = (t + 1) * rho * (1 + SLACK) + SLACK
    return bool((_divergence(one, other, t) <= bound).all() and (_divergence(other, one, t) <= bound).all())


def _divergence(p: NDArray[np.float64], q: NDArray[np.float64], t: NDArray[np.float64]) -> NDArray[np.float64]:
    """D_α = ln(Σ p^α q^(1 − α)) / (α − 1) of two coins, given by logarithms, at α = 1 + t."""
    terms = p[:, None] + t * (p - q)[:, None]
    divergence: NDArray[np.float64] = np.logaddexp(terms[0], terms[1]) / t
    return divergence


def _require(rho: float) -> None:
    if not rho >= 0:
        raise ValueError("rho: must be at least 0")
