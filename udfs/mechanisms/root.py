"""The root mechanism: noise on a k-th root, whose loss grows like Δ^{2/k} (Gaussian noise) or Δ^{1/k} (Laplace)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from udfs.mechanisms.base import ZERO
from udfs.mechanisms.parameters import ParameterError, above, at_least
from udfs.mechanisms.transformed import TransformedMechanism, estimator_choice, noise_choice
from udfs.noise.powers import clipped_variance, power, unbiased_estimate, unit_variance_of_power
from udfs.numbers import floating as dd
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.bounds import power_above, root_rise_above
from udfs.numbers.floating import FINENESS, floor_log2, round_decided
from udfs.numbers.wide import LARGEST

if TYPE_CHECKING:
    from udfs.noise.continuous import RootEstimate

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

    k: Fraction = at_least(1, "which root", whole=True, at_most=100)
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
        """Return the same of one total by integers: the largest n with (2n − 1)^k ≤ (q + a)·(2/λ)^k."""
        root = _whole_root(
            math.floor((total * self.step + self.offset) * (2 / self.lattice_step) ** self.power), self.power
        )
        return (root + 1) // 2

    def _roots(self, totals: Int64s) -> dd.Pair:
        # One Newton step in double-doubles from r ≈ x^{1/k}:  r + (x − r^k)/(k·r^{k−1})
        step, a = (tuple(np.full(totals.shape, part) for part in dd.pair_of(x)) for x in (self.step, self.offset))
        x = dd.add(dd.multiply(dd.integers(totals), (step[0], step[1])), (a[0], a[1]))
        r = np.power(x[0], 1 / self.power)
        high, low = dd.power(r, self.power)
        miss = dd.add(x, (-high, -low))
        with np.errstate(divide="ignore", invalid="ignore"):
            correction = np.where(r > 0, miss[0] * r / (self.power * x[0]), 0.0)
        return dd.two_sum(r, correction)

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
