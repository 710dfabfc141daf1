"""Log-weights of symmetric noise on the integers: what the one lattice sampler needs to know of a family.

Noise Z on the integers has probability proportional to exp(w(|k|)), w(0) = 0 and w non-increasing. Scales are
rational numbers of lattice steps, so a weight is one definite real number, whatever machine evaluates it.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from udfs.highprec import context, real

FAST_ERROR = 2.0**-49  # relative error of `fast`: under 8 last bits of a double, for |k| up to 2⁶⁴
DIRECT_SCALE = 2**14  # quantiles of narrower noise are summed term by term


class LogWeights(ABC):
    """w of one family; `fast` within FAST_ERROR (relative) of `high`, which is right to the context's last bits."""

    @abstractmethod
    def fast(self, k: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return w at the distances `k` ≥ 0 (in steps), in double precision."""

    @abstractmethod
    def high(self, k: int, ctx: Any) -> Any:
        """Return w(k) in the precision of the mpmath context `ctx`."""

    @abstractmethod
    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Return bounds of Σ exp(w(j)) over j ≥ k, whose gap vanishes as the context's precision grows."""

    @abstractmethod
    def variance(self) -> float:
        """Return the variance of Z, in squared steps."""

    @abstractmethod
    def quantile(self, beta: Fraction) -> int:
        """Return a c with P(|Z| > c) ≤ `beta`: the smallest, or at most one or two above it for wide noise."""


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

    def high(self, k: int, ctx: Any) -> Any:
        """Return −k²/(2s²)."""
        return real(ctx, -(k**2) / (2 * self.scale**2))

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Sum as many terms as the context has digits, then bound the rest by integrals (w falls).

        ∫_n^∞ e^{−x²/(2s²)} dx  ≤  Σ_{j ≥ n} e^{w(j)}  ≤  ∫_{n−1}^∞ e^{−x²/(2s²)} dx  = s√(π/2)·erfc((n−1)/(s√2))
        """
        terms = ctx.fsum(ctx.exp(self.high(j, ctx)) for j in range(k, k + ctx.prec))
        s = real(ctx, self.scale)

        def integral(n: int) -> Any:
            return s * ctx.sqrt(ctx.pi / 2) * ctx.erfc(n / (s * ctx.sqrt(2)))

        error = ctx.ldexp(1 + abs(self.high(k, ctx)), 16 - ctx.prec)
        lower, upper = terms + integral(k + ctx.prec), terms + integral(k + ctx.prec - 1)
        return lower * (1 - error), upper * (1 + error)

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
