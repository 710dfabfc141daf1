"""The kinds of transformed mechanisms: noise on a k-th root, and noise on the logarithm.

Losses of the root grow like Δ^{2/k} (Gaussian noise) or Δ^{1/k} (Laplace), those of the logarithm like ln(Δ)² or ln(Δ).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from udfs.mechanisms.base import ZERO, ParameterError, above, at_least
from udfs.mechanisms.transformed import TransformedMechanism, estimator_choice, noise_choice
from udfs.noise.powers import clipped_variance, power, unbiased_estimate, unit_variance_of_power
from udfs.numbers import arrays
from udfs.numbers.arrays import FINENESS, LARGEST, Floats, Int64s, exp, floor_log2, lattice_step, round_decided
from udfs.numbers.exact import context, fraction, log1p_above, power_above, real, root_rise_above

if TYPE_CHECKING:
    from udfs.noise.continuous import LogEstimate, RootEstimate

DIGITS = 61  # binary digits of the largest transformed total, in lattice steps
EVALUATION = Fraction(1, 2**80)  # relative error of a root in double-doubles


@final
@dataclass(frozen=True, kw_only=True)
class Root(TransformedMechanism):
    """ṽ = (q + a)^{1/k} + noise on a fine lattice of step λ; the value is a polynomial in ṽ, or a power, less a.

    Losses as in udfs.mechanisms.transformed with D = (Δ + a)^{1/k} − a^{1/k} + λ, for contributions ≥ 0. λ is a power
    of two near σ·2⁻³⁰. k = 1 is the identity: noise on the measure's own lattice, no rounding, D = Δ, whatever a.

    Mean-unbiased values: σ^k·He_k(ṽ/σ) − a (Gaussian), ṽ^k − σ²k(k − 1)ṽ^{k−2} − a (Laplace); median-unbiased: ṽ^k − a,
    for even k with ṽ cut at 0. The standard error is the root of an unbiased estimate of the value's variance (of the
    uncut power), raised to the variance at total 0 where it falls below it. Sources: paper 1, table 2, whose
    (−σ)^k·He_k(−ṽ/σ) is the same; docs/mathematics.md, section 4.
    """

    k: Fraction = at_least(1, "which root", integral=True, at_most=100)
    a: Fraction = at_least(0, "offset added to a total before the root, in the measure's unit")
    sigma: Fraction = above(0, "noise scale of the root")
    noise: str = noise_choice()
    estimator: str = estimator_choice()

    kind: ClassVar[str] = "root"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(map(math.isfinite, (*self.variance_terms, self.least_error))):
            raise ParameterError("sigma", "smaller, or k smaller: the variance must be below the largest double")

    @cached_property
    def power(self) -> int:
        return int(self.k)

    @cached_property
    def offset(self) -> Fraction:
        """What is added before the root: a, which cancels and is left out for k = 1."""
        return self.a if self.k > 1 else ZERO

    @property
    def rise_formula(self) -> str:
        return "D = (Δ + a)^(1/k) − a^(1/k) + λ for Δ > 0, D = 0 for Δ = 0" if self.power > 1 else "D = Δ"

    @cached_property
    def lattice_step(self) -> Fraction:
        """λ, a power of two near σ·2⁻³⁰ with which the largest root has at most 61 digits; the measure's for k = 1."""
        if self.power == 1:
            return self.step
        largest = -(
            -(floor_log2(LARGEST * self.step + self.offset) + 1) // self.power
        )  # the largest root is below 2^it
        return Fraction(2) ** max(floor_log2(self.sigma) - FINENESS, largest - DIGITS)

    @property
    def rounding(self) -> Fraction:
        return self.lattice_step if self.power > 1 else Fraction(0)

    def rise_at(self, influence: Fraction, above: Fraction = ZERO) -> Fraction:
        return root_rise_above(influence, above + self.offset, self.power) + self.rounding

    def rise(self, influence: Floats) -> Floats:
        """Return (Δ + a)^{1/k} − a^{1/k} + λ, as a^{1/k}·((1 + Δ/a)^{1/k} − 1) + λ where a > 0."""
        p, a = 1 / self.power, float(self.offset)
        grown = a**p * np.expm1(p * np.log1p(influence / a)) if a else np.power(influence, p)
        return grown + float(self.rounding)

    def transform(self, total: float) -> float:
        return float((total + float(self.offset)) ** (1 / self.power))

    def estimate(self, v: Floats) -> Floats:
        if self.estimator == "median":
            return self.inverse(v)
        return unbiased_estimate(v, self.power, float(self.sigma), self.noise) - float(self.offset)

    def inverse(self, v: Floats) -> Floats:
        return power(v if self.power % 2 else np.maximum(v, 0.0), self.power) - float(self.offset)

    def error_estimate(self, v: Floats) -> Floats:
        sigma = float(self.sigma)
        terms = (c * unbiased_estimate(v, 2 * i, sigma, self.noise) for i, c in enumerate(self.variance_terms))
        return np.sqrt(np.clip(sum(terms, np.zeros_like(v)), self.least_error**2, np.finfo(np.float64).max))

    def variance(self, total: float) -> float:
        v = self.transform(total)
        if self.estimator == "median" and self.power % 2 == 0:
            cut = clipped_variance(v, self.power, float(self.sigma), self.noise)
            if cut is not None:
                return cut
        return _evaluated(self.variance_terms, v)

    def mean_absolute_error(self, total: float) -> float:
        if self.power == 1:
            return self.lattice_noise.mean_absolute_error(total)
        reach = 2 * self.power + 45 if self.noise == "laplace" else math.sqrt(2 * self.power) + 9
        return self.summed_absolute_error(total, reach)

    @property
    def continuous(self) -> "RootEstimate | None":
        """The errors of the mean-unbiased value with continuous noise; None for another, and for k above 20."""
        from udfs.noise.continuous import RootEstimate  # noqa: PLC0415 — SciPy, which `prdp explain` does without

        if self.estimator != "mean" or self.power > RootEstimate.LARGEST_ROOT:
            return None
        return RootEstimate(k=self.power, a=float(self.offset), noise=self.lattice_noise.continuous)

    def on_lattice(self, totals: Int64s) -> Int64s:
        if self.power == 1:
            return totals
        leading, rest = self._roots(totals)
        per_step = 1 / float(self.lattice_step)
        error = float(EVALUATION * 2**DIGITS)
        return round_decided(totals, leading * per_step, error, self.exactly_on_lattice, rest * per_step)

    def exactly_on_lattice(self, total: int) -> int:
        """Return one total on the lattice by integers: the largest n with (2n − 1)^k ≤ (q + a)·(2/λ)^k."""
        root = _whole_root(
            math.floor((total * self.step + self.offset) * (2 / self.lattice_step) ** self.power), self.power
        )
        return (root + 1) // 2

    def _roots(self, totals: Int64s) -> arrays.Pair:
        # One Newton step in double-doubles from r ≈ x^{1/k}:  r + (x − r^k)/(k·r^{k−1})
        step, a = (tuple(np.full(totals.shape, part) for part in arrays.pair_of(x)) for x in (self.step, self.offset))
        x = arrays.add(arrays.multiply(arrays.integers(totals), (step[0], step[1])), (a[0], a[1]))
        r = np.power(x[0], 1 / self.power)
        high, low = arrays.power(r, self.power)
        miss = arrays.add(x, (-high, -low))
        with np.errstate(divide="ignore", invalid="ignore"):
            correction = np.where(r > 0, miss[0] * r / (self.power * x[0]), 0.0)
        return arrays.two_sum(r, correction)

    @cached_property
    def variance_terms(self) -> tuple[float, ...]:
        """The coefficients of v^{2i} in the variance of the estimator at f(q + a) = v, the power being uncut."""
        if self.power == 1:
            return (self.lattice_noise.noise_variance,)
        units = unit_variance_of_power(self.power, self.noise, unbiased=self.estimator == "mean")
        return tuple(_float(c * self.sigma ** (2 * (self.power - i))) for i, c in enumerate(units))

    @cached_property
    def least_error(self) -> float:
        """The standard error at total 0."""
        return math.sqrt(_evaluated(self.variance_terms, float(power_above(self.offset, Fraction(1, self.power)))))


def _evaluated(terms: Sequence[float], v: float) -> float:
    """Return Σ terms[i]·v^{2i}, infinite beyond the doubles."""
    total = 0.0
    for term in reversed(terms):
        total = total * v * v + term
    return total if math.isfinite(total) else math.inf


def _float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


def _whole_root(x: int, k: int) -> int:
    """Return ⌊x^{1/k}⌋ of an integer x ≥ 0, by Newton's method from above."""
    if x == 0:
        return 0
    root = 1 << -(-x.bit_length() // k)
    while True:
        lower = ((k - 1) * root + x // root ** (k - 1)) // k
        if lower >= root:
            return root
        root = lower


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
        """Return one total on the lattice, from as many digits as it takes."""
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
