"""What lattice noise is like: its normaliser, mean absolute value, variance and quantiles, from log-weights alone.

Distances below DIRECT are summed term by term. Beyond, sums are integrals with two corrections (Euler–Maclaurin),

    Σ_{k ≥ n} f(k)  =  ∫_n^∞ f + f(n)/2 − f′(n)/12 + …,        f(k) = k^j·exp(w(k)),

and with t = ln k an integral is that of exp((j + 1)t + w(e^t)), whose logarithm is concave for every family here: it
rises to one peak and falls, and Gauss–Legendre panels that change by a few nats each follow it. Results are right to
about ERROR relatively, whatever the scale; they describe noise, and decide nothing that is drawn.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from udfs.weights import LogWeights

DIRECT = 1 << 16
ERROR = 1e-11
FARTHEST = 2**64
RANGE = 2**63 - 1  # released lattice values lie within it
LARGEST_LOG = 709.0  # e to it is still a double
NOTHING = -5000.0  # logarithm of a term that no sum here feels
NATS = 60.0  # what lies this far below the peak is left out
PANEL_NATS = 4.0
FAR = 5e3  # logarithm beyond which a sum counts as infinite
FLAT = 1e-9  # slopes that are none
STEP = 1e-4  # of t, for slopes
NODES, NODE_MASSES = np.polynomial.legendre.leggauss(32)


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Noise Z on the integers: ln Σ exp(w(|k|)), E|Z| and Var Z in steps (may be infinite), P(|Z| > 2⁶³ − 1).

    `variance_beyond`: the share of the variance that lies beyond 2⁶³ − 1 and is lost where values saturate there.
    """

    log_normaliser: float
    mean_abs: float
    variance: float
    beyond: float
    variance_beyond: float


@lru_cache(maxsize=1024)
def moments(weights: "LogWeights") -> Moments:
    """Return the moments of the noise with these log-weights."""
    half = [log_sum(weights, 1, order) for order in (0, 1, 2)]
    normaliser = float(np.logaddexp(0.0, math.log(2) + half[0]))

    def mean(log_half: float) -> float:
        log = math.log(2) + log_half - normaliser
        return math.exp(log) if log < LARGEST_LOG else math.inf

    if half[0] == math.inf:
        return Moments(log_normaliser=math.inf, mean_abs=math.inf, variance=math.inf, beyond=1.0, variance_beyond=1.0)
    lost = log_sum(weights, RANGE + 1, 2)
    return Moments(
        log_normaliser=normaliser,
        mean_abs=mean(half[1]),
        variance=mean(half[2]),
        beyond=min(1.0, mean(log_sum(weights, RANGE + 1, 0))),
        variance_beyond=_share(lost, half[2]),
    )


def _share(part: float, whole: float) -> float:
    """Return e^{part}/e^{whole}: 1 of an infinite whole, 0 of nothing."""
    if whole == math.inf:
        return 1.0
    return 0.0 if part == -math.inf else math.exp(min(0.0, part - whole))


def beyond(weights: "LogWeights", c: int) -> float:
    """Return P(|Z| > c), c ≥ 0."""
    return math.exp(min(0.0, math.log(2) + log_sum(weights, c + 1, 0) - moments(weights).log_normaliser))


def quantile(weights: "LogWeights", beta: Fraction) -> int:
    """Return the smallest c ≤ 2⁶⁴ with P(|Z| > c) ≤ β·(1 − 4·ERROR): it covers in spite of the errors here."""
    wanted = float(beta) * (1 - 4 * ERROR)
    near = DIRECT - 2  # up to it one tail serves all sums
    low, high = (-1, near) if beyond(weights, near) <= wanted else (near, FARTHEST)
    while high - low > 1:
        middle = (low + high) // 2
        if beyond(weights, middle) <= wanted:
            high = middle
        else:
            low = middle
    return high


def log_sum(weights: "LogWeights", n: int, order: int) -> float:
    """Return ln Σ k^order·exp(w(k)) over k ≥ n ≥ 1; infinite where the sum is, −∞ where it is nothing."""
    if n >= DIRECT:
        return _log_tail(weights, n, order)
    near = _near_sums(weights, order)
    return float(np.logaddexp(near[n - 1], _log_tail(weights, DIRECT, order)))


@lru_cache(maxsize=64)
def _near_sums(weights: "LogWeights", order: int) -> NDArray[np.float64]:
    """Return ln Σ k^order·exp(w(k)) over n ≤ k < DIRECT, for n = 1, 2, …: scaled by its first term, never nothing."""
    k = np.arange(1, DIRECT, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        logs = weights.fast(k) + order * np.log(k)
    top = max(float(logs.max()), NOTHING)
    sums = np.cumsum(np.exp(np.maximum(logs - top, 2 * NOTHING))[::-1])[::-1]
    with np.errstate(divide="ignore"):
        logs_of_sums: NDArray[np.float64] = np.log(sums) + top
    return logs_of_sums


@lru_cache(maxsize=1024)
def _log_tail(weights: "LogWeights", n: int, order: int) -> float:
    t = math.log(n)
    value, slope = _value_and_slope(weights, t, order)
    if value < NOTHING and slope < 0:
        return -math.inf
    integral = _log_integral(weights, t, order)
    if integral == math.inf:
        return math.inf
    # with f = e^{value}/n: f(n)/2 − f′(n)/12, where f′(n) = f(n)·(slope − 1)/n
    corrections = 0.5 - (slope - 1) / (12 * n)
    return integral + math.log1p(corrections * math.exp(value - t - integral))


def _log_integral(weights: "LogWeights", start: float, order: int) -> float:
    """Return ln ∫ exp(h(t)) dt from `start` on, h(t) = (order + 1)·t + w(e^t); infinite where it is vast."""
    t, total, highest = start, -math.inf, -math.inf
    while True:
        value, slope = _value_and_slope(weights, t, order)
        highest = max(highest, value)
        if slope < 0 and value < highest - NATS:
            return total
        if value > FAR:
            return math.inf
        if t >= weights.power_law_from:  # h is a straight line: ∫ e^{h(t) + slope·(u − t)} du
            slope = (_log_term(weights, t + 64, order) - value) / 64
            return float(np.logaddexp(total, value - math.log(-slope))) if slope < -FLAT else math.inf
        width = min(PANEL_NATS / max(abs(slope), FLAT), max(1.0, t / 8))
        panel = _log_panel(weights, t, width, order)
        while panel is None:
            width /= 2
            panel = _log_panel(weights, t, width, order)
        total = float(np.logaddexp(total, panel))
        t += width


def _log_panel(weights: "LogWeights", t: float, width: float, order: int) -> float | None:
    """Return ln ∫ exp(h) over [t, t + width], or None where h changes too much for the nodes to follow."""
    at = t + width * (NODES + 1) / 2
    logs = (order + 1) * at + weights.fast_at_log(at)
    top = float(logs.max())
    if top - float(logs.min()) > 4 * PANEL_NATS:
        return None
    return top + math.log(width / 2 * float(np.dot(NODE_MASSES, np.exp(logs - top))))


def _log_term(weights: "LogWeights", t: float, order: int) -> float:
    return (order + 1) * t + float(weights.fast_at_log(np.array([t]))[0])


def _value_and_slope(weights: "LogWeights", t: float, order: int) -> tuple[float, float]:
    value, ahead = _log_term(weights, t, order), _log_term(weights, t + STEP, order)
    return value, (ahead - value) / STEP if ahead > -math.inf else -math.inf
