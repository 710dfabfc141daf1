"""Log-weights of symmetric noise on the integers: what the one lattice sampler needs to know of a family.

Noise Z on the integers has probability proportional to exp(w(|k|)), w(0) = 0 and w non-increasing. Scales are
rational numbers of lattice steps, so a weight is one definite real number, whatever machine evaluates it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from udfs.bounds import ln
from udfs.highprec import context, real
from udfs.moments import Moments, moments, quantile

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
    def fast(self, k: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return w at the distances `k` ≥ 0 (in steps), in double precision."""

    @abstractmethod
    def fast_at_log(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return w at the distances e^t, which may lie beyond the doubles; −∞ where w does."""

    @abstractmethod
    def high(self, k: int, ctx: Any) -> Any:
        """Return w(k) in the precision of the mpmath context `ctx`."""

    @abstractmethod
    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Return bounds of Σ exp(w(j)) over j ≥ k: at most a term apart, and what the context's last digits leave."""

    @property
    def power_law_from(self) -> float:
        """The t from which w(e^t) is a straight line in t to the last bit: that of a power law, else infinite."""
        return math.inf

    @property
    def moments(self) -> Moments:
        """Normaliser, E|Z|, variance, and what lies beyond the range of released values (udfs.moments)."""
        return moments(self)

    def variance(self) -> float:
        """Return the variance of Z, in squared steps; infinite where there is none."""
        return self.moments.variance

    def quantile(self, beta: Fraction) -> int:
        """Return a c with P(|Z| > c) ≤ `beta`: the smallest, or barely above it for wide noise; at most 2⁶⁴."""
        return quantile(self, beta)


def bracketed(weights: LogWeights, k: int, ctx: Any, integral: Callable[[int], Any]) -> tuple[Any, Any]:
    """Return bounds of Σ exp(w(j)) over j ≥ k: as many terms as the context has digits, then integrals (w falls).

    ∫_n^∞ e^{w(x)} dx  ≤  Σ_{j ≥ n} e^{w(j)}  ≤  e^{w(n)} + ∫_n^∞ e^{w(x)} dx,        `integral(n)` = ∫_n^∞
    """
    end = k + ctx.prec
    terms = ctx.fsum(ctx.exp(weights.high(j, ctx)) for j in range(k, end))
    rest = integral(end)
    error = ctx.ldexp(1 + abs(weights.high(k, ctx)), 16 - ctx.prec)
    return (terms + rest) * (1 - error), (terms + rest + ctx.exp(weights.high(end, ctx))) * (1 + error)


@final
@dataclass(frozen=True, kw_only=True)
class GaussianWeights(LogWeights):
    """w(k) = −k²/(2s²): the discrete Gaussian of scale s = `scale` steps."""

    scale: Fraction

    def fast(self, k: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return −(k/s)²/2."""
        z = k * float(1 / self.scale)
        z *= z
        z *= -0.5
        return z

    def fast_at_log(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return −e^{2(t − ln s)}/2."""
        with np.errstate(over="ignore"):
            return -0.5 * np.exp(2 * (t - ln(self.scale)))

    def high(self, k: int, ctx: Any) -> Any:
        """Return −k²/(2s²)."""
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

    def fast(self, k: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return −k/s."""
        return k * float(-1 / self.scale)

    def fast_at_log(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return −e^{t − ln s}."""
        with np.errstate(over="ignore"):
            return -np.exp(t - ln(self.scale))

    def high(self, k: int, ctx: Any) -> Any:
        """Return −k/s."""
        return real(ctx, -k / self.scale)

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Return e^{−k/s}/(1 − e^{−1/s}), widened by the context's last bits."""
        total = ctx.exp(self.high(k, ctx)) / -ctx.expm1(self.high(1, ctx))
        error = ctx.ldexp(1 + abs(self.high(k, ctx)), 16 - ctx.prec)
        return total * (1 - error), total * (1 + error)

    def variance(self) -> float:
        """Return 2q/(1 − q)² = 1/(2 sinh²(1/(2s))) with q = e^{−1/s}."""
        ctx = context(120)
        return float(1 / (2 * ctx.sinh(real(ctx, 1 / (2 * self.scale))) ** 2))

    def quantile(self, beta: Fraction) -> int:
        """Solve 2q^{c+1}/(1 + q) ≤ β for the smallest integer c ≥ 0."""
        ctx = context(120)
        q = ctx.exp(self.high(1, ctx))
        c = real(ctx, self.scale) * ctx.log(2 / (real(ctx, beta) * (1 + q))) - 1
        return max(0, int(ctx.ceil(c * (1 + ctx.ldexp(1, -80)))))
