"""What transformation mechanisms release, with continuous noise: errors of the estimators, law of the log's value."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from udfs.noise.continuous import Gaussian, Laplace
from udfs.noise.powers import unit_variance_of_power
from udfs.numbers.arrays import Floats


@final
@dataclass(frozen=True, kw_only=True)
class RootEstimate:
    """g(ṽ) for ṽ = (q + a)^{1/k} + noise, g the mean-unbiased estimator of q; k = 1 is the identity
    (docs/mathematics.md, section 4).

    Gaussian noise: g(x) = σ^k·He_k(x/σ) − a. Laplace noise: g(x) = x^k − b²k(k−1)x^{k−2} − a. Needs 1 ≤ k ≤ 20, a ≥ 0.
    Results have relative error ≤ 1e-12 of the stated formulas. Totals q are arrays or scalars with q + a ≥ 0.
    """

    LARGEST_ROOT: ClassVar[int] = 20

    k: int
    a: float
    noise: Gaussian | Laplace

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or not 1 <= self.k <= self.LARGEST_ROOT:
            raise ValueError(f"k: must be a whole number from 1 to {self.LARGEST_ROOT}")
        _require_offset(self.a, positive=False)

    def variance(self, total: ArrayLike) -> Floats:
        """Return Σ_{i<k} c_i·s^{2(k−i)}·(q + a)^{2i/k}, s the noise's scale, with whole numbers c_i ≥ 0.

        Gaussian: c_i = C(k, i)²·(k−i)! (paper 1, table 2). Laplace: those of Σ_j (g²)^{(2j)} − x^{2k} at b = 1, since
        E Z^{2j} = (2j)!·b^{2j}; k = 2: 8b²(q + a) + 20b⁴.
        """
        shifted = _shifted(total, self.a)
        scale, kind = _scale(self.noise), "gaussian" if isinstance(self.noise, Gaussian) else "laplace"
        with np.errstate(over="ignore", under="ignore"):
            terms = [
                c * scale ** (2 * (self.k - i)) * shifted ** (2 * i / self.k)
                for i, c in enumerate(unit_variance_of_power(self.k, kind, unbiased=True))
            ]
            return np.asarray(sum(terms[1:], terms[0] + 0 * shifted))

    def mean_absolute_error(self, total: ArrayLike) -> Floats:
        """Return E |g(ṽ) − q|: for k = 1 that of the noise, and for k = 2 with Gaussian noise, v = √(q + a),

            2σ²·[(c + m)·φ(c − m) + (c − m)·φ(c + m)],  m = v/σ, c = √(1 + m²), c − m = 1/(c + m).

        Raises ValueError for other k and for Laplace noise with k = 2: no closed form is offered.
        """
        shifted = _shifted(total, self.a)
        if self.k == 1:
            return np.full_like(shifted, self.noise.mean_absolute_error())
        if self.k != 2 or isinstance(self.noise, Laplace):
            raise ValueError("k: the mean absolute error is offered for k = 1, and for k = 2 with Gaussian noise")
        m = np.sqrt(shifted) / self.noise.sigma
        both = np.hypot(1.0, m) + m
        near, far = np.exp(-(both**-2.0) / 2), np.exp(-(both**2) / 2)
        return 2 * self.noise.sigma**2 / math.sqrt(2 * math.pi) * (both * near + far / both)


@final
@dataclass(frozen=True, kw_only=True)
class LogEstimate:
    """X = c·e^ṽ − a for ṽ = ln(q + a) + Z, the mean-unbiased estimator of q: a shifted lognormal
    (docs/mathematics.md, section 4).

    c = e^{−σ²/2} for Gaussian and 1 − b² for Laplace noise Z, whose scale must be below 1. Needs a > 0, q + a > 0.
    Relative errors are ≤ 1e-12: of probabilities and moments, of densities, and of x + a for quantiles x, given that
    the noise's scale is at least 1e-3 (below, errors grow like 1e-15 over the scale). Totals and values broadcast.
    """

    a: float
    noise: Gaussian | Laplace

    def __post_init__(self) -> None:
        _require_offset(self.a, positive=True)
        if isinstance(self.noise, Laplace) and not self.noise.scale < 1:
            raise ValueError("scale: Laplace noise of a logarithm needs a scale below 1, or no mean exists")

    def variance(self, total: ArrayLike) -> Floats:
        """Return (e^{σ²} − 1)(q + a)², or b²(2 + b²)/(1 − 4b²)·(q + a)² (infinite for b ≥ ½)."""
        s = _scale(self.noise) ** 2
        with np.errstate(over="ignore"):
            if isinstance(self.noise, Gaussian):
                factor = float(np.expm1(s))
            else:
                b = self.noise.scale
                factor = s * (2 + s) / ((1 - 2 * b) * (1 + 2 * b)) if b < 0.5 else math.inf
            return factor * _positive(total, self.a) ** 2

    def mean_absolute_error(self, total: ArrayLike) -> Floats:
        """Return 2(2Φ(σ/2) − 1)(q + a), or (1 − b²)^{1/b}·b/(1 − b)·(q + a)."""
        if isinstance(self.noise, Gaussian):
            factor = 2 * float(special.erf(self.noise.sigma / math.sqrt(8)))
        else:
            b = self.noise.scale
            # ln(1 − b²) = ln(1 − b) + ln(1 + b): b² loses digits beside 1 when b is near it
            factor = b / (1 - b) * math.exp((math.log1p(-b) + math.log1p(b)) / b)
        return factor * _positive(total, self.a)

    def density(self, value: ArrayLike, total: ArrayLike) -> Floats:
        """Return the density of X at `value`, 0 for values ≤ −a."""
        above = np.asarray(value, dtype=np.float64) + self.a
        noise = self._noise_at(value, total)
        return np.where(above > 0, self.noise.density(noise) / np.where(above > 0, above, 1.0), 0.0)

    def cdf(self, value: ArrayLike, total: ArrayLike) -> Floats:
        """Return P(X ≤ value), exact in the lower tail."""
        return self.noise.cdf(self._noise_at(value, total))

    def survival(self, value: ArrayLike, total: ArrayLike) -> Floats:
        """Return P(X > value), exact in the upper tail."""
        return self.noise.survival(self._noise_at(value, total))

    def quantile(self, probability: ArrayLike, total: ArrayLike) -> Floats:
        """Return the x with P(X ≤ x) = `probability`."""
        return self._value_at(self.noise.quantile(probability), total)

    def tail_quantile(self, tail: ArrayLike, total: ArrayLike) -> Floats:
        """Return the x with P(X > x) = `tail`."""
        return self._value_at(self.noise.tail_quantile(tail), total)

    @cached_property
    def _log_c(self) -> float:
        if isinstance(self.noise, Gaussian):
            return -(self.noise.sigma**2) / 2
        return math.log1p(-self.noise.scale) + math.log1p(self.noise.scale)

    def _noise_at(self, value: ArrayLike, total: ArrayLike) -> Floats:
        # ln((x + a)/(q + a)) − ln c, from the difference x − q where the two are near
        value, total = np.asarray(value, dtype=np.float64), np.asarray(total, dtype=np.float64)
        shifted = _positive(total, self.a)
        with np.errstate(all="ignore"):
            change = (value - total) / shifted
            ratio = np.maximum(value + self.a, 0.0) / shifted
            return np.where((change > -0.5) & (change < 1), np.log1p(change), np.log(ratio)) - self._log_c

    def _value_at(self, noise: Floats, total: ArrayLike) -> Floats:
        # (q + a)·e^y − a, from q where the two are near
        shifted, y = _positive(total, self.a), noise + self._log_c
        with np.errstate(over="ignore"):
            near = np.asarray(total, dtype=np.float64) + shifted * np.expm1(y)
            return np.where(np.abs(y) < 0.5, near, shifted * np.exp(y) - self.a)


def _scale(noise: Gaussian | Laplace) -> float:
    return noise.sigma if isinstance(noise, Gaussian) else noise.scale


def _require_offset(a: float, *, positive: bool) -> None:
    if not (0 < a < math.inf if positive else 0 <= a < math.inf):
        raise ValueError(f"a: must be {'above' if positive else 'at least'} 0 and finite")


def _shifted(total: ArrayLike, a: float) -> Floats:
    shifted = np.asarray(total, dtype=np.float64) + a
    if not np.all(shifted >= 0):
        raise ValueError("a total plus a must be at least 0")
    return shifted


def _positive(total: ArrayLike, a: float) -> Floats:
    shifted = _shifted(total, a)
    if not np.all(shifted > 0):
        raise ValueError("a total plus a must be above 0")
    return shifted
