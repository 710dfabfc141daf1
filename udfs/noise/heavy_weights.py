"""Log-weights of the heavy-tailed families: generalized Gaussian and exponential polylogarithmic
(docs/mathematics.md, section 3).
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, final

import numpy as np

from udfs.noise.stable_density import Curve, curve
from udfs.noise.stable_series import log_ratio, tail_integral
from udfs.noise.weights import LogWeights, Moments, bracketed, moments
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import ln, real

ULP = 2.0**-53
LOG_REACH = 64 * math.log(2)
STRAIGHT = 45.0  # ln(1 + e^{−45}) is no part of a double
PANEL_NATS = 8  # change of the exponent within a panel of quadrature
POWERS = 1024  # d of the powers that are taken as such: last bits of the base move them by d last bits, far below 2¹⁶


@final
@dataclass(frozen=True, kw_only=True)
class GeneralizedGaussianWeights(LogWeights):
    """w(k) = −(k/s)^p, 0 < p ≤ 1, s = `scale` steps."""

    p: Fraction
    scale: Fraction

    @property
    def fast_error(self) -> float:
        """An error ε of k/s or of p makes one of p·ε, or of p·|ln(k/s)|·ε, in the power."""
        return ULP * (16 + 4 * float(self.p) * (LOG_REACH + abs(ln(self.scale))))

    def fast(self, k: Floats) -> Floats:
        return -np.power(k * float(1 / self.scale), float(self.p))

    def fall(self, k: Floats, steps: Floats) -> Floats:
        """Return w(k) − w(k + steps), steps ≥ 0, within 4·`fast_error` (relative) for numbers up to 2⁶⁴.

        (k/s)^p·((1 + steps/k)^p − 1), where nothing cancels.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            fall = -self.fast(k) * np.expm1(float(self.p) * np.log1p(steps / k))
        return np.where(k > 0, fall, -self.fast(steps))

    def bend(self, k: Floats, steps: Floats) -> Floats:
        """Return 0: w(j) − w(j + steps) is convex in j, since w‴ ≤ 0."""
        return np.zeros_like(k)

    def fast_at_log(self, t: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return -np.exp(float(self.p) * (t - ln(self.scale)))

    def high(self, k: int, ctx: Any) -> Any:
        return -(real(ctx, k / self.scale) ** real(ctx, self.p))

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Bound the sum with ∫_n^∞ e^{−(x/s)^p} dx = (s/p)·Γ(1/p, (n/s)^p)."""
        return bracketed(
            self,
            k,
            ctx,
            lambda n: real(ctx, self.scale / self.p) * ctx.gammainc(real(ctx, 1 / self.p), -self.high(n, ctx)),
        )


@final
@dataclass(frozen=True, kw_only=True)
class PolylogWeights(LogWeights):
    """w(k) = −d·(ln(k/s + a)^p − ln(a)^p), p ≥ 1, d > 0, a > 1 (a ≥ 1 for p = 1), s = `scale` steps."""

    p: Fraction
    d: Fraction
    a: Fraction
    scale: Fraction

    @cached_property
    def log_a(self) -> float:
        """ln a, to the last bit."""
        return ln(self.a)

    @property
    def fast_error(self) -> float:
        """An error ε of ln(k/s + a)/ln a makes one of p·ε in its power, one of p p·|ln(…)|·ε; and so in ln(a)^p."""
        if self.p == 1:
            return 16 * ULP
        largest = max(0.0, LOG_REACH - ln(self.scale)) / self.log_a + 1 / self.log_a
        of_log_a = float(self.p) * (1 + abs(math.log(self.log_a)))
        return ULP * (16 * (2 + float(self.p) * math.log1p(largest)) + 4 * of_log_a)

    @cached_property
    def _log_unit(self) -> float:
        return ln(self.scale * self.a)

    @cached_property
    def power_law_from(self) -> float:
        """For p = 1 e^w = (k/(s·a) + 1)^{−d} is a power of k for k far above s·a."""
        return STRAIGHT + self._log_unit if self.p == 1 else math.inf

    def fast(self, k: Floats) -> Floats:
        return self._of_rise(np.log1p(k * float(1 / (self.scale * self.a))))

    def fall(self, k: Floats, steps: Floats) -> Floats:
        """Return w(k) − w(k + steps), steps ≥ 0, within 4·`fast_error` (relative) for numbers up to 2⁶⁴.

        d·t^p·((1 + r/t)^p − 1), t = ln(k/s + a), r = ln(1 + steps/(k + s·a)), where nothing cancels.
        """
        r = np.log1p(steps / (k + float(self.scale * self.a)))
        if self.p == 1:
            return float(self.d) * r
        p, t = float(self.p), self._log(k)
        return float(self.d) * np.power(t, p) * np.expm1(p * np.log1p(r / t))

    def bend(self, k: Floats, steps: Floats) -> Floats:
        """Bound minus the second derivative of w(j) − w(j + steps) over all j ≥ k, where ln(k/s + a) ≥ p − 1.

        It is w″(j + steps) − w″(j). With t = ln(j/s + a), y = j + s·a, and t ≥ p − 1,

            w″ = d·p·t^{p−2}·(t − (p − 1))/y² ≤ d·p·t^{p−1}/y²,
            w‴ = d·p·t^{p−3}·(−2t² + 3(p − 1)t − (p − 1)(p − 2))/y³ ≤ d·p·(p − 1)·t^{p−3}/y³,

        both bounds falling in j, and w″ ≥ 0: so it is at most the first, and at most `steps` times the second.
        """
        if self.p == 1:
            return np.zeros_like(k)
        p, d, t, y = float(self.p), float(self.d), self._log(k), k + float(self.scale * self.a)
        second = d * p * np.power(t, p - 1) / y**2
        third = d * p * (p - 1) * np.power(t, p - 3) / y**3
        return np.minimum(second, steps * third)

    def _log(self, k: Floats) -> Floats:
        # ln(k/s + a): both terms are positive
        return self.log_a + np.log1p(k * float(1 / (self.scale * self.a)))

    def fast_at_log(self, t: Floats) -> Floats:
        return self._of_rise(np.logaddexp(0.0, t - self._log_unit))

    def _of_rise(self, r: Floats) -> Floats:
        # (ln a + r)^p − ln(a)^p = ln(a)^p·((1 + r/ln a)^p − 1)
        if self.p == 1:
            return -float(self.d) * r
        p = float(self.p)
        with np.errstate(over="ignore"):
            rise: Floats = np.expm1(p * np.log1p(r / self.log_a))
            fall: Floats = -float(self.d) * self.log_a**p * rise
        return fall

    def high(self, k: int, ctx: Any) -> Any:
        """Return −d·(ln(k/s + a)^p − ln(a)^p); digits that cancel are taken care of."""
        rise = ctx.log1p(real(ctx, k / (self.scale * self.a)))
        if self.p == 1:
            return -real(ctx, self.d) * rise
        log_a = _logarithm(self.a, ctx, ctx.prec)
        if self.p == 2:  # half of the digits' work
            return -real(ctx, self.d) * rise * (rise + 2 * log_a)
        p = real(ctx, self.p)
        return -real(ctx, self.d) * log_a**p * ctx.expm1(p * ctx.log1p(rise / log_a))

    def term(self, k: int, ctx: Any) -> Any:
        if self.p == 1 and self.d.denominator == 1 and self.d <= POWERS:  # (1 + k/(s·a))^{−d}, without a logarithm
            return real(ctx, 1 + k / (self.scale * self.a)) ** -self.d.numerator
        return super().term(k, ctx)

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Bound the sum with ∫_n^∞ e^{w(x)} dx = s·e^{d·ln(a)^p}·∫_T^∞ e^{t − d·t^p} dt, T = ln(n/s + a)."""
        return bracketed(self, k, ctx, lambda n: self._integral(n, ctx))

    def _integral(self, n: int, ctx: Any) -> Any:
        p, d, nats = float(self.p), float(self.d), ctx.prec * 0.7
        largest = max(1.0, 1 / d, d * max(self.log_a, ln(n / self.scale + self.a)) ** p)
        with ctx.extraprec(64 * math.ceil((8 + math.log2(largest)) / 64)):  # digits that d·ln(a)^p − d·T^p cancels
            return self._digits_of_integral(n, ctx, nats)

    def _digits_of_integral(self, n: int, ctx: Any, nats: float) -> Any:
        p, d, s = (real(ctx, number) for number in (self.p, self.d, self.scale))
        lift = d * ctx.log(real(ctx, self.a)) ** p
        start = ctx.log(real(ctx, n / self.scale + self.a))
        if self.p == 1:
            return s * ctx.exp(lift + (1 - d) * start) / (d - 1)
        if self.p == 2:
            erfc = ctx.erfc(ctx.sqrt(d) * (start - 1 / (2 * d)))
            return s * ctx.exp(lift + 1 / (4 * d)) * ctx.sqrt(ctx.pi / d) / 2 * erfc
        return s * ctx.exp(lift) * _panels(p, d, start, nats, ctx)


@lru_cache(maxsize=16)  # of a few contexts at a time: a table asks for the same one some hundred times
def _logarithm(a: Fraction, ctx: Any, bits: int) -> Any:
    return ctx.log(real(ctx, a)) if a > 2 else ctx.log1p(real(ctx, a - 1))


def _panels(p: Any, d: Any, start: Any, nats: float, ctx: Any) -> Any:
    """Return ∫_start^∞ e^{h(t)} dt, h(t) = t − d·t^p, start > 0, by panels, but for its share e^{−nats}."""

    def h(t: Any) -> Any:
        return t - d * t**p

    t, total = start, ctx.mpf(0)
    top = highest = h(t)
    while True:
        pull = d * p * t ** (p - 1)  # h′ = 1 − pull, h″ = −(p − 1)·pull/t
        if pull > 1 and top < highest - nats:
            return total
        bend = ctx.sqrt((p - 1) * pull / t / PANEL_NATS)
        end = t + 1 / (abs(1 - pull) / PANEL_NATS + bend + 1 / t)  # at most 2t: a power of t is not smooth at 0
        total += _panel(h, t, end, ctx)
        t, top = end, h(end)
        highest = max(highest, top)


def _panel(h: Any, t: Any, end: Any, ctx: Any) -> Any:
    top = h(t)  # quadrature stops at an absolute error: what it is given is 1 where it starts
    return ctx.exp(top) * ctx.quad(lambda u: ctx.exp(h(u) - top), [t, end], method="gauss-legendre")


# Log-weights of symmetric α-stable noise: w(k) = ln(p(k/s)/p(0)), p the density of scale 1, s = `scale` steps.
#
# p is symmetric and falls from its peak (stable densities are unimodal: Wintner 1936, Yamazato 1978), so w does too. It
# is not convex: the policy of additive mechanisms in docs/mathematics.md, section 3, w(0) − w(Δ), is not its own
# (udfs.losses.stable_policy).

LOG_OF_NOTHING = 40.0  # e^{−40} is no part of a double


@final
@dataclass(frozen=True, kw_only=True)
class CauchyWeights(LogWeights):
    """w(k) = −ln(1 + (k/s)²), α = 1."""

    scale: Fraction

    @property
    def power_law_from(self) -> float:
        return LOG_OF_NOTHING / 2 + ln(self.scale)

    def fast(self, k: Floats) -> Floats:
        x = k * float(1 / self.scale)
        return -np.log1p(x * x)

    def fast_at_log(self, t: Floats) -> Floats:
        return -np.logaddexp(0.0, 2 * (t - ln(self.scale)))

    def high(self, k: int, ctx: Any) -> Any:
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
        return self.curve.error

    @property
    def power_law_from(self) -> float:
        """Where the second term of the far series, of x^−α beside the first, is no part of a double."""
        return max(LOG_OF_NOTHING / float(self.alpha), math.log(self.curve.far_from)) + ln(self.scale)

    def fast(self, k: Floats) -> Floats:
        return self.curve.log_ratio(k * float(1 / self.scale))

    def fast_at_log(self, t: Floats) -> Floats:
        """Return w from the curve; beyond the doubles its far series needs the logarithm alone."""
        log_x = t - ln(self.scale)
        far = log_x >= math.log(self.curve.far_from) + LOG_OF_NOTHING * 2.0**-50
        if far.all():
            return self.curve.log_ratio_far(log_x)
        result = self.curve.log_ratio(np.exp(np.where(far, 0.0, log_x)))
        result[far] = self.curve.log_ratio_far(log_x[far])
        return result

    def high(self, k: int, ctx: Any) -> Any:
        return log_ratio(self.alpha, k / self.scale, ctx)

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        """Bound the sum with ∫_n^∞ p(x/s)/p(0) dx."""
        return bracketed(self, k, ctx, lambda n: real(ctx, self.scale) * tail_integral(self.alpha, n / self.scale, ctx))

    @property
    def moments(self) -> Moments:
        """As for every family; the variance is infinite, however little of it a double sees."""
        return replace(moments(self), variance=math.inf, variance_beyond=1.0)
