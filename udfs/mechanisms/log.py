"""Noise on the logarithm: relative noise, whose loss grows like the logarithm of the influence, or its square."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from udfs.mechanisms.base import ZERO
from udfs.mechanisms.parameters import ParameterError, above
from udfs.mechanisms.transformed import TransformedMechanism, estimator_choice, noise_choice
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.bounds import log1p_above
from udfs.numbers.exact import context, fraction, real
from udfs.numbers.floating import exp, floor_log2, lattice_step, round_decided
from udfs.numbers.wide import LARGEST

if TYPE_CHECKING:
    from udfs.noise.continuous import LogEstimate

CONSTANT_BITS = 160


class LogMechanism(TransformedMechanism):
    """ṽ = ln(q + a) + noise on a power of two near σ·2⁻³⁰, at least 2¹⁰ evaluation errors of ln at the largest total.

    Mean-unbiased values: e^{ṽ − σ²/2} − a (Gaussian), (1 − σ²)·e^ṽ − a (Laplace, σ < 1); median-unbiased: e^ṽ − a. The
    standard error is the root of an unbiased estimate of the value's variance; Laplace noise of σ ≥ ½ has none, which
    is shown as infinite. Source: paper 1, table 2; docs/mathematics.md, section 4.
    """

    rise_formula: ClassVar[str] = "D = ln(1 + Δ/a) + λ for Δ > 0, D = 0 for Δ = 0"
    power: ClassVar[int | None] = None

    @cached_property
    def lattice_step(self) -> Fraction:
        return lattice_step(self.sigma, self.evaluation_error)

    @cached_property
    def evaluation_error(self) -> Fraction:
        """A bound of the error of ln(q + a) in doubles."""
        # q + a has relative error ≤ 2⁻⁵⁰ (conversions, product, sum), the logarithm itself ≤ 8 last bits;
        # |ln x| ≤ (|⌊log₂ x⌋| + 1)·0.7
        ends = (self.a, LARGEST * self.step + self.a)
        return Fraction(1, 2**50) + max(abs(floor_log2(end)) + 1 for end in ends) * Fraction(7, 10) / 2**49

    def rise_at(self, influence: Fraction, above: Fraction = ZERO) -> Fraction:
        return log1p_above(influence / (above + self.a)) + self.lattice_step

    def rise(self, influence: Floats) -> Floats:
        return np.log1p(influence / float(self.a)) + float(self.lattice_step)

    def shift_by_factor(self, factor: Fraction) -> Fraction:
        """Return an upper bound of ln(factor) + λ, as (cq + a)/(q + a) ≤ c for every total q ≥ 0 and c ≥ 1."""
        return log1p_above(factor - 1) + self.lattice_step

    def transform(self, total: float) -> float:
        return math.log(total + float(self.a))

    def estimate(self, v: Floats) -> Floats:
        return exp(v + self._constants.value) - float(self.a)

    def inverse(self, v: Floats) -> Floats:
        return exp(v) - float(self.a)

    def error_estimate(self, v: Floats) -> Floats:
        shift = self._constants.error
        return np.full(v.shape, np.inf) if shift is None else exp(v + shift)

    def variance(self, total: float) -> float:
        try:
            return math.exp(self._constants.log_variance) * (total + float(self.a)) ** 2
        except OverflowError:
            return math.inf

    def mean_absolute_error(self, total: float) -> float:
        return self._constants.absolute_error * (total + float(self.a))

    @property
    def continuous(self) -> "LogEstimate | None":
        """The law of the mean-unbiased value with continuous noise; None for the median-unbiased one."""
        from udfs.noise.continuous import LogEstimate  # noqa: PLC0415 — SciPy, which `prdp explain` does without

        if self.estimator != "mean":
            return None
        return LogEstimate(a=float(self.a), noise=self.lattice_noise.continuous)

    def on_lattice(self, totals: Int64s) -> Int64s:
        per_step = 1 / float(self.lattice_step)
        v = np.log(totals.astype(np.float64) * float(self.step) + float(self.a)) * per_step
        return round_decided(totals, v, float(self.evaluation_error) * per_step, self.exactly_on_lattice)

    def exactly_on_lattice(self, total: int) -> int:
        """Return the same of one total, from as many digits as it takes."""
        shifted = total * self.step + self.a
        if shifted == 1:
            return 0  # ln 1 = 0; of any other rational number the logarithm is irrational: never halfway
        for bits in (2**n for n in count(7)):
            ctx = context(bits)
            middle = fraction(ctx.log(real(ctx, shifted))) / self.lattice_step + Fraction(1, 2)
            error = (1 + abs(middle) + 1 / self.lattice_step) / 2 ** (bits - 16)
            if math.floor(middle - error) == math.floor(middle + error):
                return math.floor(middle)
        raise AssertionError("unreachable")

    @cached_property
    def _constants(self) -> "_Constants":
        ctx = context(CONSTANT_BITS)
        of_noise = _of_laplace if self.noise == "laplace" else _of_gaussian
        return of_noise(ctx, real(ctx, self.sigma), self.estimator == "mean")


@final
@dataclass(frozen=True, kw_only=True)
class Log(LogMechanism):
    """ṽ = ln(q + a) + noise on a fine lattice of step λ; the value is e^ṽ times a constant, less a.

    Losses as in udfs.mechanisms.transformed with D = ln(1 + Δ/a) + λ, for contributions ≥ 0.
    """

    a: Fraction = above(0, "offset added to a total before the logarithm, in the measure's unit")
    sigma: Fraction = above(0, "noise scale of the logarithm: about the relative standard error of large totals")
    noise: str = noise_choice()
    estimator: str = estimator_choice()

    kind: ClassVar[str] = "log"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise == "laplace" and self.estimator == "mean" and not self.sigma < 1:
            rule = "below 1 with noise: laplace, or with estimator: median (else it has no mean)"
            raise ParameterError("sigma", rule)


@dataclass(frozen=True)
class _Constants:
    """Released e^{ṽ + value} − a and e^{ṽ + error}; variance e^{log_variance}·(q + a)², E|·| absolute_error·(q + a)."""

    value: float
    error: float | None
    log_variance: float
    absolute_error: float


def _of_gaussian(ctx: Any, sigma: Any, mean: bool) -> _Constants:
    """E e^{jZ} = e^{j²σ²/2}; E|e^{Z − σ²/2} − 1| = 2(2Φ(σ/2) − 1), E|e^Z − 1| = e^{σ²/2}·(2Φ(σ) − 1)."""
    square = sigma**2
    log_excess = ctx.log(ctx.expm1(square))  # Var e^{Z − σ²/2} = e^{σ²} − 1
    if mean:
        absolute = 2 * ctx.erf(sigma / (2 * ctx.sqrt(2)))
        return _Constants(float(-square / 2), float(log_excess / 2 - square), float(log_excess), float(absolute))
    absolute = ctx.exp(square / 2) * ctx.erf(sigma / ctx.sqrt(2))
    return _Constants(0.0, float((log_excess - square) / 2), float(log_excess + square), _finite(absolute))


def _of_laplace(ctx: Any, b: Any, mean: bool) -> _Constants:
    """E e^{jZ} = 1/(1 − j²b²), so Var((1 − b²)e^Z) = b²(2 + b²)/(1 − 4b²), estimated by b²(2 + b²)·e^{2ṽ}; b < ½."""
    square = b**2
    log_part = ctx.log(square * (2 + square))
    absolute = _absolute_error_of_laplace(ctx, b, mean)
    value = float(ctx.log1p(-square)) if mean else 0.0
    if not b < ctx.mpf(1) / 2:
        return _Constants(value, None, math.inf, absolute)
    log_error = log_part / 2 - (0 if mean else ctx.log1p(-square))  # the median's value is larger by 1/(1 − b²)
    return _Constants(value, float(log_error), float(2 * log_error - ctx.log1p(-4 * square)), absolute)


def _absolute_error_of_laplace(ctx: Any, b: Any, mean: bool) -> float:
    """E|m·e^Z − 1| with m = 1 − b² or 1, the kink at z₀ = −ln m ≥ 0; infinite for b ≥ 1.

    E|Y| = E Y + 2·E max(−Y, 0), E max(1 − m·e^Z, 0) = P(Z < z₀) − m·E[e^Z; Z < z₀]
    """
    if not b < 1:
        return math.inf
    m = 1 - b**2 if mean else ctx.mpf(1)
    kink = -ctx.log(m)
    below = 1 - ctx.exp(-kink / b) / 2
    part = 1 / (2 * (1 + b)) - ctx.expm1(-kink * (1 - b) / b) / (2 * (1 - b))
    return float(m / (1 - b**2) - 1 + 2 * (below - m * part))


def _finite(number: Any) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf
