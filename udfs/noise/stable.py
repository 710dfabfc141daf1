"""Log-weights of symmetric α-stable noise: w(k) = ln(p(k/s)/p(0)), p the density of scale 1, s = `scale` steps.

p is symmetric and falls from its peak (stable densities are unimodal: Wintner 1936, Yamazato 1978), so w does too. It
is not convex: the policy of additive mechanisms in docs/mathematics.md, section 3, w(0) − w(Δ), is not its own
(udfs.losses.stable).
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from udfs.noise.stable_density import Curve, curve
from udfs.noise.stable_series import log_ratio, tail_integral
from udfs.noise.weights import LogWeights, Moments, bracketed, moments
from udfs.numbers.bounds import ln
from udfs.numbers.exact import real

STRAIGHT = 40.0  # e^{−40} is no part of a double


@final
@dataclass(frozen=True, kw_only=True)
class CauchyWeights(LogWeights):
    """w(k) = −ln(1 + (k/s)²), α = 1."""

    scale: Fraction

    @property
    def power_law_from(self) -> float:
        """From s·e^20 on e^w = (s/k)² to the last bit."""
        return STRAIGHT / 2 + ln(self.scale)

    def fast(self, k: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return −ln(1 + (k/s)²)."""
        x = k * float(1 / self.scale)
        return -np.log1p(x * x)

    def fast_at_log(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return −ln(1 + e^{2(t − ln s)})."""
        return -np.logaddexp(0.0, 2 * (t - ln(self.scale)))

    def high(self, k: int, ctx: Any) -> Any:
        """Return −ln(1 + (k/s)²)."""
        return -ctx.log1p(real(ctx, (k / self.scale) ** 2))

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Bound the sum with ∫_n^∞ dx/(1 + (x/s)²) = s·arctan(s/n)."""
        return bracketed(self, k, ctx, lambda n: real(ctx, self.scale) * ctx.atan(real(ctx, self.scale / n)))


@final
@dataclass(frozen=True, kw_only=True)
class StableWeights(LogWeights):
    """w(k) = ln(p(k/s)/p(0)), 1 < α < 2."""

    alpha: Fraction
    scale: Fraction

    @cached_property
    def curve(self) -> Curve:
        """ln(p/p(0)) in doubles; pickled along, so that workers need not build it anew."""
        return curve(self.alpha)

    @property
    def fast_error(self) -> float:
        """That of the curve, which counts the errors of k and of k/s."""
        return self.curve.error

    @property
    def power_law_from(self) -> float:
        """Where the second term of the far series, of x^−α beside the first, is no part of a double."""
        return max(STRAIGHT / float(self.alpha), math.log(self.curve.far_from)) + ln(self.scale)

    def fast(self, k: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return w from the curve."""
        return self.curve.log_ratio(k * float(1 / self.scale))

    def fast_at_log(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return w from the curve; beyond the doubles its far series needs the logarithm alone."""
        log_x = t - ln(self.scale)
        far = log_x >= math.log(self.curve.far_from) + STRAIGHT * 2.0**-50
        if far.all():
            return self.curve.log_ratio_far(log_x)
        result = self.curve.log_ratio(np.exp(np.where(far, 0.0, log_x)))
        result[far] = self.curve.log_ratio_far(log_x[far])
        return result

    def high(self, k: int, ctx: Any) -> Any:
        """Return ln(p(k/s)/p(0))."""
        return log_ratio(self.alpha, k / self.scale, ctx)

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Bound the sum with ∫_n^∞ p(x/s)/p(0) dx."""
        return bracketed(self, k, ctx, lambda n: real(ctx, self.scale) * tail_integral(self.alpha, n / self.scale, ctx))

    @property
    def moments(self) -> Moments:
        """As for every family; the variance is infinite, however little of it a double sees."""
        return replace(moments(self), variance=math.inf, variance_beyond=1.0)
