"""Log-weights of symmetric noise on the integers: what the one lattice sampler needs to know of a family.

Noise Z on the integers has probability proportional to exp(w(|k|)), w(0) = 0 and w non-increasing. Scales are
rational numbers of lattice steps, so a weight is one definite real number, whatever machine evaluates it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

import numpy as np

from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context, ln, real

FAST_ERROR = 2.0**-49  # relative error of `fast`: under 8 last bits of a double, for |k| up to 2⁶⁴
DIRECT_SCALE = 2**14  # quantiles of narrower noise are summed term by term


class LogWeights(ABC):
    """w of one family; `fast` within `fast_error` (relative) of `high`, which is right to the context's last bits.

    Final classes are frozen dataclasses: they are keys of caches.
    """

    @property
    def fast_error(self) -> float:
        """The largest relative error of `fast` up to 2⁶⁴ steps."""
        return FAST_ERROR

    @abstractmethod
    def fast(self, k: Floats) -> Floats:
        """Return w at the distances `k` ≥ 0 (in steps), in double precision."""

    @abstractmethod
    def fast_at_log(self, t: Floats) -> Floats:
        """Return w at the distances e^t, which may lie beyond the doubles; −∞ where w does."""

    @abstractmethod
    def high(self, k: int, ctx: Any) -> Any:
        """Return w(k) in the precision of the mpmath context `ctx`."""

    @abstractmethod
    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Return bounds of Σ exp(w(j)) over j ≥ k: at most a term apart, and what the context's last digits leave."""

    def term(self, k: int, ctx: Any) -> Any:
        """Return exp(w(k)), right to a few last bits of the context for each nat of w(k)."""
        return ctx.exp(self.high(k, ctx))

    @property
    def power_law_from(self) -> float:
        """The t from which w(e^t) is a straight line in t to the last bit: that of a power law, else infinite."""
        return math.inf

    def log_sum(self, n: int, order: int) -> float:
        """Return ln Σ k^order·exp(w(k)) over k ≥ n ≥ 1; infinite where the sum is, −∞ where it is nothing."""
        return log_sum(self, n, order)

    @property
    def moments(self) -> "Moments":
        """Normaliser, E|Z|, variance, and what lies beyond the range of released values (udfs.noise.weights)."""
        return moments(self)

    def variance(self) -> float:
        """Return the variance of Z, in squared steps; infinite where there is none."""
        return self.moments.variance

    def quantile(self, beta: Fraction) -> int:
        """Return a c with P(|Z| > c) ≤ `beta`: the smallest, or barely above it for wide noise; at most 2⁶⁴."""
        wanted = float(beta) * (1 - 4 * ERROR)  # it covers in spite of the errors here
        near = DIRECT - 2  # up to it one tail serves all sums
        low, high = (-1, near) if beyond(self, near) <= wanted else (near, FARTHEST)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if beyond(self, middle) <= wanted else (middle, high)
        return high


def bracketed(weights: LogWeights, k: int, ctx: Any, integral: Callable[[int], Any]) -> tuple[Any, Any]:
    """Return bounds of Σ exp(w(j)) over j ≥ k: as many terms as the context has digits, then integrals (w falls).

    ∫_n^∞ e^{w(x)} dx  ≤  Σ_{j ≥ n} e^{w(j)}  ≤  e^{w(n)} + ∫_n^∞ e^{w(x)} dx,        `integral(n)` = ∫_n^∞
    """
    end = k + ctx.prec
    terms = ctx.fsum(weights.term(j, ctx) for j in range(k, end))
    rest = integral(end)
    error = ctx.ldexp(1 + abs(weights.high(k, ctx)), 16 - ctx.prec)
    return (terms + rest) * (1 - error), (terms + rest + ctx.exp(weights.high(end, ctx))) * (1 + error)


@final
@dataclass(frozen=True, kw_only=True)
class GaussianWeights(LogWeights):
    """w(k) = −k²/(2s²): the discrete Gaussian of scale s = `scale` steps."""

    scale: Fraction

    def fast(self, k: Floats) -> Floats:
        z = k * float(1 / self.scale)
        z *= z
        z *= -0.5
        return z

    def fast_at_log(self, t: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return -0.5 * np.exp(2 * (t - ln(self.scale)))

    def high(self, k: int, ctx: Any) -> Any:
        return real(ctx, -(k**2) / (2 * self.scale**2))

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Bound the sum with ∫_n^∞ e^{−x²/(2s²)} dx = s√(π/2)·erfc(n/(s√2))."""
        s = real(ctx, self.scale)
        return bracketed(self, k, ctx, lambda n: s * ctx.sqrt(ctx.pi / 2) * ctx.erfc(n / (s * ctx.sqrt(2))))

    def variance(self) -> float:
        """Return s² where Poisson summation makes it right beyond any double (s ≥ 4), else the sum itself."""
        if self.scale >= 4:
            return float(self.scale**2)
        ctx = context(120)  # not NumPy's exp, whose last bit depends on the processor: this figure is published
        mass = [ctx.exp(self.high(k, ctx)) for k in range(1, 100)]
        squares = ctx.fsum(k * k * m for k, m in enumerate(mass, start=1))
        return float(2 * squares / (1 + 2 * ctx.fsum(mass)))

    def quantile(self, beta: Fraction) -> int:
        """Sum the weights; for wide noise ⌈z·s⌉, since P(Z ≥ c + 1) ≤ P(N(0, s²) ≥ c).

        Source of the bound: Canonne, Kamath, Steinke, "The discrete Gaussian for differential privacy", prop. 25.
        """
        ctx = context(400)
        z = ctx.sqrt(2) * ctx.erfinv(1 - real(ctx, beta))
        bound = int(ctx.ceil(z * real(ctx, self.scale)))
        if self.scale > DIRECT_SCALE:
            return bound
        mass = np.exp(self.fast(np.arange(int(40 * self.scale) + 2, dtype=np.float64)))
        mass[1:] *= 2
        beyond = np.cumsum(mass[::-1])[::-1] / np.sum(mass)  # P(|Z| ≥ k)
        c = int(np.count_nonzero(beyond[1:] > float(beta) * (1 - 1e-12)))
        return min(c, bound)


@final
@dataclass(frozen=True, kw_only=True)
class LaplaceWeights(LogWeights):
    """w(k) = −k/s: the discrete Laplace (two-sided geometric) of scale s = `scale` steps."""

    scale: Fraction

    def fast(self, k: Floats) -> Floats:
        return k * float(-1 / self.scale)

    def fast_at_log(self, t: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return -np.exp(t - ln(self.scale))

    def high(self, k: int, ctx: Any) -> Any:
        return real(ctx, -k / self.scale)

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Return e^{−k/s}/(1 − e^{−1/s}), widened by the context's last bits."""
        total = ctx.exp(self.high(k, ctx)) / -ctx.expm1(self.high(1, ctx))
        error = ctx.ldexp(1 + abs(self.high(k, ctx)), 16 - ctx.prec)
        return total * (1 - error), total * (1 + error)

    def variance(self) -> float:
        ctx = context(120)
        return float(1 / (2 * ctx.sinh(real(ctx, 1 / (2 * self.scale))) ** 2))

    def quantile(self, beta: Fraction) -> int:
        ctx = context(120)
        q = ctx.exp(self.high(1, ctx))
        c = real(ctx, self.scale) * ctx.log(2 / (real(ctx, beta) * (1 + q))) - 1
        return max(0, int(ctx.ceil(c * (1 + ctx.ldexp(1, -80)))))


# What lattice noise is like: its normaliser, mean absolute value, variance and quantiles, from log-weights alone.
#
# Distances below DIRECT are summed term by term. Beyond, sums are integrals with two corrections (Euler–Maclaurin),
#
#     Σ_{k ≥ n} f(k)  =  ∫_n^∞ f + f(n)/2 − f′(n)/12 + …,        f(k) = k^j·exp(w(k)),
#
# and with t = ln k an integral is that of exp((j + 1)t + w(e^t)), whose logarithm is concave for every family here: it
# rises to one peak and falls, and Gauss–Legendre panels that change by a few nats each follow it. Results are right to
# about ERROR relatively, whatever the scale; they describe noise, and decide nothing that is drawn.

DIRECT = 1 << 16
NEAR = np.arange(1, DIRECT, dtype=np.float64)
LOG_NEAR = np.log(NEAR)
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
    half = [weights.log_sum(1, order) for order in (0, 1, 2)]
    normaliser = float(np.logaddexp(0.0, math.log(2) + half[0]))

    def mean(log_half: float) -> float:
        log = math.log(2) + log_half - normaliser
        return math.exp(log) if log < LARGEST_LOG else math.inf

    if half[0] == math.inf:
        return Moments(log_normaliser=math.inf, mean_abs=math.inf, variance=math.inf, beyond=1.0, variance_beyond=1.0)
    lost = weights.log_sum(RANGE + 1, 2)
    return Moments(
        log_normaliser=normaliser,
        mean_abs=mean(half[1]),
        variance=mean(half[2]),
        beyond=min(1.0, mean(weights.log_sum(RANGE + 1, 0))),
        variance_beyond=_share(lost, half[2]),
    )


def _share(part: float, total: float) -> float:
    if total == math.inf:
        return 1.0
    return 0.0 if part == -math.inf else math.exp(min(0.0, part - total))


def beyond(weights: "LogWeights", c: int) -> float:
    """Return P(|Z| > c), c ≥ 0."""
    return math.exp(min(0.0, math.log(2) + weights.log_sum(c + 1, 0) - moments(weights).log_normaliser))


def log_sum(weights: "LogWeights", n: int, order: int) -> float:
    """Return ln Σ k^order·exp(w(k)) over k ≥ n ≥ 1; infinite where the sum is, −∞ where it is nothing."""
    if n >= DIRECT:
        return _log_tail(weights, n, order)
    sums, top = _near_sums(weights, order)
    with np.errstate(divide="ignore"):
        near = np.log(sums[n - 1 : n])[0] + top
    return float(np.logaddexp(near, _log_tail(weights, DIRECT, order)))


@lru_cache(maxsize=4)
def _near(weights: "LogWeights") -> Floats:
    return weights.fast(NEAR)


@lru_cache(maxsize=64)
def _near_sums(weights: "LogWeights", order: int) -> tuple[Floats, float]:
    """Return Σ k^order·exp(w(k) − t) over n ≤ k < DIRECT, for n = 1, 2, …, and t: the logarithm of the largest term."""
    with np.errstate(invalid="ignore"):
        logs = _near(weights) + order * LOG_NEAR
    top = max(float(logs.max()), NOTHING)
    sums: Floats = np.cumsum(np.exp(np.maximum(logs - top, 2 * NOTHING))[::-1])[::-1]
    return sums, top


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
    points = t + width * (NODES + 1) / 2
    logs = (order + 1) * points + weights.fast_at_log(points)
    top = float(logs.max())
    if top - float(logs.min()) > 4 * PANEL_NATS:
        return None
    return top + math.log(width / 2 * float(np.dot(NODE_MASSES, np.exp(logs - top))))


def _log_term(weights: "LogWeights", t: float, order: int) -> float:
    return (order + 1) * t + float(weights.fast_at_log(np.array([t]))[0])


def _value_and_slope(weights: "LogWeights", t: float, order: int) -> tuple[float, float]:
    value, ahead = _log_term(weights, t, order), _log_term(weights, t + STEP, order)
    return value, (ahead - value) / STEP if ahead > -math.inf else -math.inf
