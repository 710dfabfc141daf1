"""Interpretations of a loss: (ε, δ), what the best test of an attacker could achieve, and posterior probabilities.

All are upper bounds: each order α of the Rényi divergence bounds them by itself, so looking at some orders alone is
safe, and arithmetic in doubles is met by a slack far above its error. A loss ρ is the curve D_α ≤ αρ; the functions
ending in `_of` take any curve, as bounds of D_α at orders α > 1, in both directions.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import exp, expm1, inf, isfinite, log, log1p, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from udfs.mechanisms.base import ParameterError
from udfs.numbers.exact import context, halved

Floats = NDArray[np.float64]

SIZE = 0.05  # the test's false-alarm rate
SLACK = 1e-9
ROUNDING = 1e-13  # relative, far above the error of a sum of a few doubles, of which little may be left
ORDERS_OF_RHO_BETWEEN = (1e-4, 1e8)  # of α − 1
ORDERS_OF_RHO = 400
HALVINGS = 45
SURE = 36.0  # log-odds beyond which a power shows as 1 in doubles


def approximate_epsilon_of(orders: ArrayLike, divergences: ArrayLike, delta: float, pure: float | None = None) -> float:
    """Return an ε such that D_α ≤ `divergences` at the `orders` α, and a pure loss if any, imply (ε, δ)-DP.

        ε = min over the orders of  D_α + [ln(1/δ) + (α − 1)·ln(1 − 1/α) − ln α] / (α − 1),   and at most the pure loss

    (Canonne, Kamath, Steinke 2020, proposition 12, at each order by itself). `orders` and `divergences`: two equally
    long arrays, at least one order, each finite and above 1; bounds at least 0, or infinite where none is known. Raises
    ValueError otherwise, and unless 0 < δ < 1.
    """
    alpha, bounds = curve(orders, divergences)
    _require_share("delta", delta)
    if not bounds.all():
        return 0.0  # D_α = 0 at one order: the two distributions are one
    return _stated(float(_epsilons(alpha, bounds, delta).min()), pure)


def approximate_epsilon(rho: float, delta: float, pure: float | None = None) -> float:
    """Return an ε such that a loss ρ (zCDP), and a pure loss where there is one, implies (ε, δ)-DP for its record.

    That of `approximate_epsilon_of` for D_α = αρ, within a thousandth of the minimum over all α > 1. Raises ValueError
    unless ρ ≥ 0 and 0 < δ < 1.
    """
    require_rho(rho)
    _require_share("delta", delta)
    if rho == 0:
        return 0.0
    best = inf
    low, high = log(ORDERS_OF_RHO_BETWEEN[0]), log(ORDERS_OF_RHO_BETWEEN[1])
    for _ in range(2):  # all orders, then those about the best
        logs = np.linspace(low, high, ORDERS_OF_RHO)
        orders = 1 + np.exp(logs)
        bounds = _epsilons(orders, _of_rho(orders, rho), delta)
        best = min(best, float(bounds.min()))
        step = (high - low) / (ORDERS_OF_RHO - 1)
        middle = float(logs[bounds.argmin()])
        low, high = middle - step, middle + step
    return _stated(best, pure)


def largest_rho(epsilon: float, delta: float) -> float:
    """Return a ρ of which `approximate_epsilon` at δ says at most `epsilon`, next to the largest: (ε, δ) follows.

    Raises ValueError unless ε ≥ 0 is finite and 0 < δ < 1.
    """
    if not 0 <= epsilon < inf:
        raise ValueError("epsilon: must be finite and at least 0")
    low, high = 0.0, max(epsilon, 1.0)
    while approximate_epsilon(high, delta) <= epsilon:
        low, high = high, 2 * high
    while approximate_epsilon(high / 2, delta) > epsilon:  # at 0 it is 0
        high /= 2
    return halved(max(low, high / 2), high, lambda rho: approximate_epsilon(rho, delta) <= epsilon, HALVINGS)[0]


def simple_epsilon(rho: float, delta: float, pure: float | None = None) -> float:
    """Return ε = ρ + 2√(ρ·ln(1/δ)), and at most the pure loss, rounded up: the bound that is easy to check by hand.

    With probability at least 1 − δ the log-likelihood ratio is at most ε, which is more than (ε, δ)-DP says (Bun and
    Steinke 2016, lemma 3.5). Raises ValueError unless ρ ≥ 0 and 0 < δ < 1.
    """
    require_rho(rho)
    _require_share("delta", delta)
    return _stated(rho + 2 * sqrt(-log(delta)) * sqrt(rho), pure)


def best_power_of(orders: ArrayLike, divergences: ArrayLike, pure: float | None = None, size: float = SIZE) -> float:
    """Return a bound on the power, at false-alarm rate `size`, of every test between distributions of this curve.

    It is the largest y for which two coins, of heads y and `size`, have Rényi divergences of at most `divergences` at
    the `orders`, in both directions, and at most e^ε·size and 1 − e^(−ε)·(1 − size), ε being the pure loss: the outcome
    of a test is post-processing. Arrays and errors as in `approximate_epsilon_of`; ValueError unless 0 < size < 1.
    """
    alpha, bounds = curve(orders, divergences)
    _require_share("size", size)
    by_pure = 1.0 if pure is None else min(exp(min(pure, 700.0)) * size, size - expm1(-pure) * (1 - size))
    by_pure *= 1 + SLACK
    if _possible(SURE, size, alpha, bounds):
        return min(by_pure, 1.0)
    even = log(size) - log(1 - size)  # log-odds of y
    _, refused = halved(even, SURE, lambda odds: _possible(odds, size, alpha, bounds), HALVINGS)
    return min(by_pure, 1 / (1 + exp(-refused)) * (1 + SLACK), 1.0)


def best_power(rho: float, pure: float | None = None, size: float = SIZE) -> float:
    """Return a bound on the power, at false-alarm rate `size`, of every test for a record of loss ρ.

    That of `best_power_of` for D_α = αρ, at orders from 1.0001 to 10⁸. Raises ValueError unless ρ ≥ 0 and 0 < size < 1.
    """
    require_rho(rho)
    orders = 1 + np.geomspace(*ORDERS_OF_RHO_BETWEEN, ORDERS_OF_RHO)
    return best_power_of(orders, _of_rho(orders, rho), pure, size)


def _epsilons(orders: Floats, divergences: Floats, delta: float) -> Floats:
    t = orders - 1  # exact up to α = 2, and nearly beyond
    surprise, order = -log(delta), np.log1p(t)
    less = (surprise - order + ROUNDING * (1 + surprise + order)) / t
    bounds: Floats = divergences * (1 + ROUNDING) + less - np.log1p(1 / t) * (1 - ROUNDING)
    return bounds


def _stated(epsilon: float, pure: float | None) -> float:
    return min(inf if pure is None else pure, max(epsilon, 0.0) * (1 + SLACK))


def _possible(odds: float, size: float, orders: Floats, divergences: Floats) -> bool:
    """Whether coins of log-odds `odds` and of heads `size` keep every bound that is looked at."""
    t = orders - 1
    one = np.array([-np.logaddexp(0, -odds), -np.logaddexp(0, odds)])  # logarithms of heads and tails
    other = np.log([size, 1 - size])
    bound = divergences * (1 + SLACK) + SLACK + ROUNDING / t
    return bool((_divergence(one, other, t) <= bound).all() and (_divergence(other, one, t) <= bound).all())


def _divergence(p: Floats, q: Floats, t: Floats) -> Floats:
    """D_α = ln(Σ p^α q^(1 − α)) / (α − 1) of two coins, in logarithms, at α = 1 + t."""
    terms = p[:, None] + t * (p - q)[:, None]
    divergence: Floats = np.logaddexp(terms[0], terms[1]) / t
    return divergence


def _of_rho(orders: Floats, rho: float) -> Floats:
    with np.errstate(over="ignore"):
        return orders * rho


def curve(orders: ArrayLike, divergences: ArrayLike) -> tuple[Floats, Floats]:
    """Return a curve as two arrays; raises ValueError where `approximate_epsilon_of` does."""
    alpha, bounds = np.asarray(orders, dtype=np.float64), np.asarray(divergences, dtype=np.float64)
    if alpha.ndim != 1 or not alpha.size or not ((alpha > 1) & np.isfinite(alpha)).all():
        raise ValueError("orders: must be at least one number, all finite and above 1")
    if bounds.shape != alpha.shape or not (bounds >= 0).all():
        raise ValueError("divergences: must be one number for each order, all at least 0")
    return alpha, bounds


def require_rho(rho: float) -> None:
    """Return if `rho` is a loss; raises ValueError otherwise."""
    if not rho >= 0:
        raise ValueError("rho: must be at least 0")


# Posterior probabilities that a record is there, from prior ones.
#
# Somebody knows all other records, and holds a prior probability π that this one is there. P and Q are the laws of
# the release with and without it; having seen an output, with L = dP/dQ there, the posterior is πL/(1 − π + πL).
# Likewise for the probability that it is not there, and for two values of a record. All results are rounded up.


def largest_posterior(prior: float, rho: float, delta: float, pure: float | None = None) -> float:
    """Return what the posterior exceeds with probability at most `delta`, whether the record is there or not.

        π·e^t / (1 − π + π·e^t),   t = ρ + 2√(ρ·ln(1/δ)), and at most the pure loss, with which it is never exceeded

    Proof. With the record, Markov's inequality gives P(ln L ≥ t) ≤ E_P[L^(α − 1)]·e^(−(α − 1)t) =
    e^((α − 1)(D_α − t)) ≤ e^((α − 1)(αρ − t)), which is δ at α = 1 + √(ln(1/δ)/ρ). Without it, Q(ln L ≥ t) ≤
    e^(−t)·P(ln L ≥ t) ≤ δ. (Bun and Steinke 2016, lemma 3.5; the odds are Bayes's rule.) An ε of (ε, δ)-DP would not
    do as t. Raises ValueError unless 0 < π < 1, ρ ≥ 0 and 0 < δ < 1.
    """
    _require_share("prior", prior)
    return _posterior(prior, simple_epsilon(rho, delta, pure))


def largest_posterior_of(
    prior: float, orders: ArrayLike, divergences: ArrayLike, delta: float, pure: float | None = None
) -> float:
    """Return `largest_posterior` for bounds `divergences` of D_α at `orders`: t = min over α of D_α + ln(1/δ)/(α − 1).

    Arrays and errors as in `approximate_epsilon_of`.
    """
    _require_share("prior", prior)
    alpha, bounds = curve(orders, divergences)
    _require_share("delta", delta)
    least = float((bounds - log(delta) / (alpha - 1)).min()) if bounds.all() else 0.0
    return _posterior(prior, min(least, inf if pure is None else pure))


def mean_posterior(prior: float, rho: float, pure: float | None = None) -> float:
    """Return a bound on the mean posterior where the record is there.

        π·e^t / (1 − π + π·e^t),   t = D_2 ≤ 2ρ, and at most ln[(e^(2ε) + e^(−ε))/(1 + e^ε)] with a pure loss ε

    Proof. The posterior is concave in L, so its mean under P is at most that at E_P[L] = e^(D_2) (Jensen). With a pure
    loss P and Q are post-processing of randomised response (Kairouz, Oh, Viswanath 2015), whose e^(D_2) is
    p²/q + q²/p, p = e^ε/(1 + e^ε) = 1 − q. Raises ValueError unless 0 < π < 1 and ρ ≥ 0.
    """
    _require_share("prior", prior)
    require_rho(rho)
    by_pure = inf if pure is None else float(np.logaddexp(2 * pure, -pure) - np.logaddexp(0, pure))
    return _posterior(prior, min(2 * rho, max(by_pure, 0.0)))


def _posterior(prior: float, log_odds: float) -> float:
    """π·e^t/(1 − π + π·e^t) = 1/(1 + (1 − π)/π·e^(−t))."""
    return min(1.0, 1 / (1 + (1 - prior) / prior * exp(-log_odds)) * (1 + SLACK))


def _require_share(name: str, share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"{name}: must be above 0 and below 1")


# Whole Rényi curves: what a record loses at every order, added over the queries of a plan, and converted once.
#
# At each order α the divergences of mechanisms that were fixed before any of them ran add up (Mironov 2017,
# proposition 1), so the sum of the curves of the queries that one cell meets bounds a record there, and the largest
# over the domain bounds it anywhere. A single loss ρ says αρ at all orders; the curve says less, so that (ε, δ) and
# the best test come out smaller. Limits of budgets are on ρ alone: they hold also where later plans are chosen after
# earlier outputs were seen, for which sums of curves carry no proof (docs/mathematics.md, section 5).


STEPS = ("1", "1.26", "1.58", "2", "2.51", "3.16", "3.98", "5.01", "6.31", "7.94")  # of α − 1, in a decade
ORDERS: Floats = np.array([1 + float(f"{step}e{power}") for power in range(-3, 6) for step in STEPS])
DELTA = 1e-9  # for which (ε, δ) is stated by default
SUM_ROUNDING = 1 + 2.0**-40  # far above the error of a sum of doubles


def added(curves: Iterable[Floats]) -> Floats:
    """Return the sum of bounds of D_α at ORDERS, rounded up."""
    total = np.zeros_like(ORDERS)
    for each in curves:
        total += each
    return total * SUM_ROUNDING


def interpretation(curve: Floats | None, rho: float, pure: float | None, delta: float) -> dict[str, Any]:
    """Return as JSON an (ε, δ) and the power of the best test, by the curve at ORDERS or ρ alone, whichever is less."""
    epsilon, power = approximate_epsilon(rho, delta, pure), best_power(rho, pure)
    if curve is not None:
        epsilon = min(epsilon, approximate_epsilon_of(ORDERS, curve, delta, pure))
        power = min(power, best_power_of(ORDERS, curve, pure))
    return {"epsilon": epsilon if isfinite(epsilon) else None, "delta": delta, "power": power, "size": SIZE}


# How wide Gaussian noise must be for (ε, δ)-DP of a record of given influence: in closed form, and exactly.
#
# Both hold for continuous noise of scale σ, added to a total that the record changes by `influence`. On a lattice that
# is coarse against σ the exact condition is another one. Sources: paper 3 for the closed form; Balle and Wang 2018,
# theorem 8, for the exact condition:
#
#     Φ(Δ/(2σ) − εσ/Δ) − e^ε·Φ(−Δ/(2σ) − εσ/Δ) ≤ δ

BITS = 330  # the two terms of the condition may agree in some sixty of them
BISECTIONS = 60


def closed_scale(epsilon: float, delta: float, influence: float = 1.0) -> float:
    """Return a scale σ that is enough for (ε, δ)-DP, in the unit of `influence`, rounded up.

        σ = Δ/(ε√2)·(√(az + ε) + s·√(az)),   z = −ln(4δ(1 − δ)),   (a, s) = (1, 1) for δ ≤ ½, else (π/4, −1)

    Raises ParameterError unless ε > 0, 0 < δ < 1 and influence > 0, all finite.
    """
    _require_positive(epsilon, delta, influence)
    surprise = _surprise(delta)
    if delta <= 0.5:
        scale = influence / sqrt(2) * ((sqrt(surprise + epsilon) + sqrt(surprise)) / epsilon)
    else:  # √(az + ε) − √(az) cancels; it is ε/(√(az + ε) + √(az))
        around = pi / 4 * surprise
        scale = influence / sqrt(2) / (sqrt(around + epsilon) + sqrt(around))
    return scale * (1 + ROUNDING)


def classical_scale(epsilon: float, delta: float, influence: float = 1.0) -> float:
    """Return Δ·√(2·ln(1.25/δ))/ε, rounded up: proved for ε < 1 (Dwork and Roth 2014, theorem A.1).

    It is not enough for every ε: not for 10. Arguments and errors as of `closed_scale`.
    """
    _require_positive(epsilon, delta, influence)
    return influence * sqrt(2 * (log(1.25) - log(delta))) / epsilon * (1 + ROUNDING)


@dataclass(frozen=True)
class GaussianScales:
    """Scales of continuous Gaussian noise for (ε, δ) of a record of `influence`, in its unit, all rounded up."""

    epsilon: float
    delta: float
    influence: float
    exact: float
    closed: float
    classical: float

    @property
    def classical_is_enough(self) -> bool:
        """Whether the classical scale is at least the exact one, which it is proved to be for ε < 1."""
        return self.classical >= self.exact

    def to_json(self) -> dict[str, float | bool]:
        """Return the scales, the ratio of the classical to the closed one, and the classical one's condition."""
        ratio = self.classical / self.closed
        return {**asdict(self), "ratio": ratio, "classical_is_enough": self.classical_is_enough}


def gaussian_scales(epsilon: float, delta: float, influence: float = 1.0) -> GaussianScales:
    """Return the exact, the closed and the classical scale; arguments and errors as of `closed_scale`."""
    of = epsilon, delta, influence
    return GaussianScales(*of, exact_scale(*of), closed_scale(*of), classical_scale(*of))


@lru_cache(maxsize=256)
def exact_scale(epsilon: float, delta: float, influence: float = 1.0) -> float:
    """Return the least scale σ that is enough for (ε, δ)-DP, within one part in 10¹⁵ and never below it.

    The condition falls in σ, and is decided in high precision at the number that is returned. Arguments and errors as
    of `closed_scale`.
    """
    _require_positive(epsilon, delta, influence)
    high = 1 / closed_scale(epsilon, delta)  # as Δ/σ: what a record moves the noise, in its scale
    low = high
    while not _meets(low, epsilon, delta):
        low /= 2
    while _meets(high, epsilon, delta):
        high *= 2
    low, _ = halved(low, high, lambda shift: _meets(shift, epsilon, delta), BISECTIONS)
    return influence / low * (1 + 2**-51)  # above the rounding of the division: a larger σ is only safer


def _surprise(delta: float) -> float:
    """z = −ln(4δ(1 − δ)) ≥ 0, to a few parts in 10¹⁵ also where it is nearly 0: 4δ(1 − δ) = 1 − (1 − 2δ)²."""
    if 0.25 <= delta <= 0.75:
        return -log1p(-((1 - 2 * delta) ** 2))
    return -(log(4) + log(delta) + log1p(-delta))


def _meets(shift: float, epsilon: float, delta: float) -> bool:
    ctx = context(BITS)
    mu, e = ctx.mpf(shift), ctx.mpf(epsilon)
    return bool(ctx.ncdf(mu / 2 - e / mu) - ctx.exp(e) * ctx.ncdf(-mu / 2 - e / mu) <= delta)


def _require_positive(epsilon: float, delta: float, influence: float) -> None:
    if not 0 < epsilon < inf:
        raise ParameterError("epsilon", "a finite number above 0")
    if not 0 < delta < 1:
        raise ParameterError("delta", "above 0 and below 1")
    if not 0 < influence < inf:
        raise ParameterError("influence", "a finite number above 0")
