"""Noise of a fine lattice, rounded to whole numbers of `n` fine steps: its moments, quantiles and the rounding itself.

n is odd, so that the nearest multiple of n is unique: rounding depends on the noisy value alone, which makes it
post-processing, and it is symmetric, which keeps the mean. With h = (n − 1)/2 a distance of k fine steps becomes
⌊(k + h)/n⌋ whole ones.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from udfs.moments import DIRECT, LARGEST_LOG, log_sum, moments
from udfs.weights import LogWeights


@dataclass(frozen=True, kw_only=True)
class RoundedMoments:
    """Of the rounded noise R, in whole steps: E|R| and Var R, infinite where there is none."""

    mean_abs: float
    variance: float


@lru_cache(maxsize=1024)
def rounded_moments(weights: LogWeights, n: int) -> RoundedMoments:
    """Return the moments of noise with `weights` on the fine lattice, rounded to multiples of n, which is odd.

    The first DIRECT distances are summed term by term, k as ⌊(k + h)/n⌋. Beyond, over whole blocks of n places that
    begin at x₀, with k − e the multiple of n next to k (Euler–Maclaurin, to second order in n/x₀, relatively):

        Σ |k − e|·f(k)  = Σ k·f(k)  + (n² − 1)/12·f(x₀)
        Σ (k − e)²·f(k) = Σ k²·f(k) + (n² − 1)/12·[Σ f(k) + 2·x₀·f(x₀)],        f(k) = exp(w(k)).
    """
    if n == 1:
        known = moments(weights)
        return RoundedMoments(mean_abs=known.mean_abs, variance=weights.variance())
    last = n * math.ceil(DIRECT / n) + (n - 1) // 2
    start = last + 0.5
    density = float(weights.fast(np.array([start]))[0])
    spread = math.log((n * n - 1) / 12)
    mass, first, second = (log_sum(weights, last + 1, order) for order in (0, 1, 2))
    beyond_first = _log_added(first, spread + density)
    beyond_second = _log_added(second, spread + mass, spread + math.log(2 * start) + density)
    near_first, near_second = _near(weights, n, last)
    normaliser = moments(weights).log_normaliser

    def mean(near: float, beyond: float, order: int) -> float:
        log = math.log(2) + _log_added(near, beyond - order * math.log(n)) - normaliser
        return math.exp(log) if log < LARGEST_LOG else math.inf

    return RoundedMoments(mean_abs=mean(near_first, beyond_first, 1), variance=mean(near_second, beyond_second, 2))


def _near(weights: LogWeights, n: int, last: int) -> tuple[float, float]:
    """Return ln Σ R·f(k) and ln Σ R²·f(k) over the distances k up to `last` that do not become 0."""
    k = np.arange((n + 1) // 2, last + 1, dtype=np.float64)
    log_steps = np.log(np.floor((k + (n - 1) // 2) / n))
    w = weights.fast(k)
    return float(np.logaddexp.reduce(w + log_steps)), float(np.logaddexp.reduce(w + 2 * log_steps))


def _log_added(*logs: float) -> float:
    return float(np.logaddexp.reduce(np.array(logs)))


def rounded_quantile(weights: LogWeights, n: int, beta: Fraction) -> int:
    """Return a c, in whole steps, with P(|R| > c) ≤ `beta`: that of the fine lattice, rounded up where it must be.

    |R| > c says that the fine distance is above n·c + h.
    """
    return max(0, math.ceil(Fraction(weights.quantile(beta) - (n - 1) // 2, n)))


def rounded_distance(distance: NDArray[np.uint64], n: int) -> NDArray[np.uint64]:
    """Return distances in fine steps as whole ones: ⌊(k + h)/n⌋, without leaving 64 bits."""
    whole, rest = np.divmod(distance, np.uint64(n))
    return whole + (rest > np.uint64((n - 1) // 2))
