"""Estimators of powers from a noisy root, and their variances: polynomials, with noise of scale σ
(docs/mathematics.md, section 4).

For ṽ = v + Z with E Z^{2j} = m_j·σ^{2j}, m_j = (2j)!/(2^j·j!) of Gaussian and (2j)! of Laplace noise,

    E ṽ^n = Σ_j C(n, 2j)·m_j·σ^{2j}·v^{n−2j},

and the polynomial with expectation v^n is σ^n·He_n(ṽ/σ), or ṽ^n − σ²n(n − 1)·ṽ^{n−2}.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.mechanisms.additive import lattice_mean_absolute_error, lattice_variance
from udfs.mechanisms.base import Mechanism, ParameterError, above, at_least, require_scale
from udfs.mechanisms.transformed import (
    NOTHING,
    absolute_error_of_transformed,
    estimator_choice,
    interval_of_transformed,
    noise_choice,
    release_transformed,
    transformed_change_losses_at,
    transformed_formula,
    transformed_loss,
    transformed_loss_at,
    transformed_pure_loss,
    transformed_pure_loss_at,
    transformed_too_narrow,
    transformed_weights,
)
from udfs.noise.lattice import LARGEST
from udfs.numbers import floating as dd
from udfs.numbers.bounds import power_above, root_rise_above
from udfs.numbers.exact import context
from udfs.numbers.floating import FINENESS, floor_log2, round_decided

Floats = NDArray[np.float64]
LARGEST_DOUBLE = float(np.finfo(np.float64).max)
MOMENT_BITS = 160
UNCUT = 40.0  # noise scales from which on no noise reaches below 0, as far as doubles tell


def power(v: Floats, n: int) -> Floats:
    """Return v^n, n ≥ 0, by products: the same bits on every processor."""
    result = np.ones_like(v)
    for _ in range(n):
        result = result * v
    return result


def unbiased(v: Floats, n: int, sigma: float, noise: str) -> Floats:
    """Return the polynomial in ṽ whose expectation is v^n."""
    square = sigma * sigma
    if noise == "laplace":
        return power(v, n) if n < 2 else power(v, n - 2) * (v * v - square * (n * (n - 1)))
    # H_{i+1} = ṽ·H_i − iσ²·H_{i−1},  H_0 = 1
    before, hermite = np.zeros_like(v), np.ones_like(v)
    for i in range(n):
        before, hermite = hermite, v * hermite - (i * square) * before
    return hermite


def evaluated(terms: Sequence[float], v: float) -> float:
    """Return Σ terms[i]·v^{2i}, infinite beyond the doubles."""
    total = 0.0
    for term in reversed(terms):
        total = total * v * v + term
    return total if math.isfinite(total) else math.inf


@lru_cache(maxsize=256)
def variance_polynomial(k: int, noise: str, estimator: str, sigma: Fraction) -> tuple[float, ...]:
    """Return the coefficients of v^{2i}, i < k, in the variance of the estimator of v^k (beyond doubles: infinite)."""
    return tuple(_float(c * sigma ** (2 * (k - i))) for i, c in enumerate(_unit_variance(k, noise, estimator)))


def clipped_variance(v: float, k: int, sigma: float, noise: str) -> float | None:
    """Return the variance of max(ṽ, 0)^k at v ≥ 0, or None where the cut is too far off to be felt.

    I_n = E[ṽ^n; ṽ > 0].  Gaussian: I_n = v·I_{n−1} + (n − 1)σ²·I_{n−2}, I_0 = Φ(v/σ), I_1 = v·Φ + σ·φ;
    Laplace: I_n = E ṽ^n − (−1)^n·n!·σ^n·e^{−v/σ}/2.
    """
    if v > UNCUT * sigma:
        return None
    ctx = context(MOMENT_BITS)  # of high powers the moments leave the doubles, and their difference need not
    z = ctx.mpf(v) / sigma
    if noise == "laplace":
        once, twice = (_cut_laplace_moment(z, n, ctx) for n in (k, 2 * k))
    else:
        moments = [ctx.ncdf(z), z * ctx.ncdf(z) + ctx.npdf(z)]
        for n in range(2, 2 * k + 1):
            moments.append(z * moments[-1] + (n - 1) * moments[-2])
        once, twice = moments[k], moments[2 * k]
    variance = (twice - once**2) * ctx.mpf(sigma) ** (2 * k)
    return float(variance) if variance <= LARGEST_DOUBLE else math.inf


def _cut_laplace_moment(z: Any, n: int, ctx: Any) -> Any:
    whole = ctx.fsum(math.perm(n, 2 * j) * z ** (n - 2 * j) for j in range(n // 2 + 1))
    return whole - (-1) ** n * ctx.factorial(n) * ctx.exp(-z) / 2


@lru_cache(maxsize=64)
def _unit_variance(k: int, noise: str, estimator: str) -> tuple[int, ...]:
    """Return the integer coefficients of v^{2i}, i < k, for σ = 1: Var G = E G² − (E G)² of the estimator G."""
    g = _estimator(k, noise) if estimator == "mean" else {k: 1}
    square: dict[int, int] = {}
    for n, c in g.items():
        for m, d in g.items():
            square[n + m] = square.get(n + m, 0) + c * d
    mean = _expectation(g, noise)
    variance = _expectation(square, noise)
    for n, c in mean.items():
        for m, d in mean.items():
            variance[n + m] = variance.get(n + m, 0) - c * d
    return tuple(variance.get(2 * i, 0) for i in range(k))


def _estimator(n: int, noise: str) -> dict[int, int]:
    """The unbiased polynomial of v^n for σ = 1, by power."""
    if noise == "laplace":
        return {n: 1} if n < 2 else {n: 1, n - 2: -n * (n - 1)}
    return {n - 2 * j: (-1) ** j * math.comb(n, 2 * j) * _moment(j, noise) for j in range(n // 2 + 1)}


def _expectation(polynomial: dict[int, int], noise: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for n, c in polynomial.items():
        for j in range(n // 2 + 1):
            found[n - 2 * j] = found.get(n - 2 * j, 0) + c * math.comb(n, 2 * j) * _moment(j, noise)
    return found


def _moment(j: int, noise: str) -> int:
    return math.factorial(2 * j) // (1 if noise == "laplace" else 2**j * math.factorial(j))


def _float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


# The root mechanism: noise on a k-th root, whose loss grows like Δ^{2/k} (Gaussian noise) or Δ^{1/k} (Laplace).


PLACES = 61  # binary digits of the largest transformed total, in lattice steps
EVALUATION = Fraction(1, 2**80)  # relative error of a root in double-doubles


@final
@dataclass(frozen=True, kw_only=True)
class Root(Mechanism):
    """ṽ = (q + a)^{1/k} + noise on a fine lattice of step λ; the value is a polynomial in ṽ, or a power, less a.

    Losses as in udfs.mechanisms.transformed with D = (Δ + a)^{1/k} − a^{1/k} + λ, for contributions ≥ 0. k = 1 is
    the identity: noise on the measure's own lattice, no rounding, D = Δ, whatever a.

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
    additive: ClassVar[bool] = False
    needs_nonnegative: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k == 1:
            require_scale("sigma", self.sigma / self.step)
        if not all(map(math.isfinite, (*self._variance_terms, self._least_error))):
            raise ParameterError("sigma", "smaller, or k smaller: the variance must be below the largest double")

    weights = transformed_weights
    loss_at = transformed_loss_at
    pure_loss_at = transformed_pure_loss_at
    change_losses_at = transformed_change_losses_at
    loss = transformed_loss
    pure_loss = transformed_pure_loss
    release = release_transformed
    interval_around = interval_of_transformed
    too_narrow = property(transformed_too_narrow)

    @property
    def degree(self) -> int:
        """K as an integer."""
        return int(self.k)

    @property
    def offset(self) -> Fraction:
        """What is added before the root: a, but nothing for k = 1, where it would cancel."""
        return self.a if self.k > 1 else Fraction(0)

    @property
    def formula(self) -> str:
        """The policy, with D spelled out."""
        return f"{transformed_formula(self)}, {self._rise_formula}"

    @property
    def pure_formula(self) -> str | None:
        """The pure loss of Laplace noise."""
        return f"D/σ, {self._rise_formula}" if self.noise == "laplace" else None

    @property
    def _rise_formula(self) -> str:
        return "D = (Δ + a)^(1/k) − a^(1/k) + λ for Δ > 0, D = 0 for Δ = 0" if self.k > 1 else "D = Δ"

    @property
    def lattice_step(self) -> Fraction:
        """λ, a power of two near σ·2⁻³⁰ with which the largest root has at most 61 digits; the measure's for k = 1."""
        if self.k == 1:
            return self.step
        largest = -(-(floor_log2(LARGEST * self.step + self.a) + 1) // self.degree)  # the largest root is below 2^it
        return Fraction(2) ** max(floor_log2(self.sigma) - FINENESS, largest - PLACES)

    @property
    def rounding(self) -> Fraction:
        """λ; nothing is rounded for k = 1."""
        return self.lattice_step if self.k > 1 else Fraction(0)

    def rise_at(self, influence: Fraction, above: Fraction = NOTHING) -> Fraction:
        """Return an upper bound of (Δ + above + a)^{1/k} − (above + a)^{1/k} + λ."""
        return root_rise_above(influence, above + self.offset, self.degree) + self.rounding

    def rise(self, influence: Floats) -> Floats:
        """Return (Δ + a)^{1/k} − a^{1/k} + λ, as a^{1/k}·((1 + Δ/a)^{1/k} − 1) + λ where a > 0."""
        p, a = 1 / self.degree, float(self.offset)
        grown = a**p * np.expm1(p * np.log1p(influence / a)) if a else np.power(influence, p)
        return grown + float(self.rounding)

    def curve(self, total: float) -> float:
        """Return (total + a)^{1/k}."""
        return float((total + float(self.offset)) ** (1 / self.degree))

    def estimate(self, v: Floats) -> Floats:
        """Return the mean- or median-unbiased values."""
        if self.estimator == "median":
            return self.inverse(v)
        return unbiased(v, self.degree, float(self.sigma), self.noise) - float(self.offset)

    def inverse(self, v: Floats) -> Floats:
        """Return v^k − a, v cut at 0 for even k."""
        return power(v if self.degree % 2 else np.maximum(v, 0.0), self.degree) - float(self.offset)

    def error_estimate(self, v: Floats) -> Floats:
        """Return the root of the unbiased estimate of the variance, at least the standard error at total 0."""
        terms, sigma = self._variance_terms, float(self.sigma)
        estimate = sum((c * unbiased(v, 2 * i, sigma, self.noise) for i, c in enumerate(terms)), np.zeros_like(v))
        least = self._least_error
        return np.sqrt(np.clip(estimate, least**2, np.finfo(np.float64).max))

    def variance(self, total: float) -> float:
        """Return the variance, of the cut power where v is cut at 0."""
        v = self.curve(total)
        if self.estimator == "median" and self.degree % 2 == 0:
            cut = clipped_variance(v, self.degree, float(self.sigma), self.noise)
            if cut is not None:
                return cut
        return evaluated(self._variance_terms, v)

    def mean_absolute_error(self, total: float) -> float:
        """Return E|value − total|, within one part in 10⁵."""
        if self.k == 1:
            return lattice_mean_absolute_error(self, total)
        tilt = math.sqrt(2 * self.degree) if self.noise == "gaussian" else 2 * self.degree
        return absolute_error_of_transformed(self, total, tilt + (45 if self.noise == "laplace" else 9))

    def transformed(self, totals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ⌊(q + a)^{1/k}/λ + ½⌋, exactly; the total itself for k = 1."""
        if self.k == 1:
            return totals
        leading, rest = self._roots(totals)
        per_step = 1 / float(self.lattice_step)
        error = float(EVALUATION * 2**PLACES)
        return round_decided(totals, leading * per_step, error, self._transformed_exactly, rest * per_step)

    def _roots(self, totals: NDArray[np.int64]) -> dd.Pair:
        # One Newton step in double-doubles from r ≈ x^{1/k}:  r + (x − r^k)/(k·r^{k−1})
        x = dd.add(dd.multiply(dd.integers(totals), _arrays(self.step, totals)), _arrays(self.offset, totals))
        r = np.power(x[0], 1 / self.degree)
        high, low = dd.power(r, self.degree)
        miss = dd.add(x, (-high, -low))
        with np.errstate(divide="ignore", invalid="ignore"):
            step = np.where(r > 0, miss[0] * r / (self.degree * x[0]), 0.0)
        return dd.two_sum(r, step)

    def _transformed_exactly(self, total: int) -> int:
        # the largest n with (n − ½)λ ≤ x^{1/k}, that is (2n − 1)^k ≤ x·(2/λ)^k
        m = _whole_root(
            math.floor((total * self.step + self.offset) * (2 / self.lattice_step) ** self.degree), self.degree
        )
        return (m + 1) // 2

    @property
    def _variance_terms(self) -> tuple[float, ...]:
        """The coefficients of v^{2i} in the variance of the estimator at f(q + a) = v, the power being uncut."""
        if self.k == 1:
            return (lattice_variance(self, 0.0),)
        return variance_polynomial(self.degree, self.noise, self.estimator, self.sigma)

    @property
    def _least_error(self) -> float:
        return math.sqrt(evaluated(self._variance_terms, float(power_above(self.offset, 1 / self.k))))


def _arrays(number: Fraction, like: NDArray[np.int64]) -> dd.Pair:
    high, low = dd.pair_of(number)
    return np.full(like.shape, high), np.full(like.shape, low)


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
