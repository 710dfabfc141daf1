"""Noise on the reals: Gaussian, Laplace and generalized Gaussian; what symmetry gives to every family."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from udfs.noise.powers import unit_variance_of_power
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context

CONSTANT_BITS = 160
LEAST_P, MOST_P = 0.02, 10.0
SMALLEST, LARGEST = 1e-50, 1e50  # scales lie between: doubles hold all they imply


@dataclass(frozen=True, kw_only=True)
class ContinuousNoise(ABC):
    """Noise Z on the reals, symmetric about 0, with a density that falls with |z|.

    Accuracy: relative error ≤ 1e-12 of density, cdf, survival and moments, as long as the result is a normal double;
    of log_density at most 1e-12·max(1, |log density|); of a quantile z at most 1e-12·max(1, P(Z > z)/(z·density(z))),
    z > 0: the second counts for tails heavier than 1/z alone. A result beyond the doubles is 0 or infinite. Arguments
    are arrays of any shape (or scalars) and stand for themselves exactly; results are float64 of their shape. Raises
    ValueError on NaN, and on probabilities outside [0, 1].

    The quantities are those of continuous noise; released values carry lattice noise (docs/mathematics.md, section
    6), which differs visibly where the scale is not large against the lattice step.
    """

    def log_density(self, z: ArrayLike) -> Floats:
        """Return the logarithm of the density at `z`; −∞ at infinity."""
        z = _numbers(z)
        with np.errstate(all="ignore"):
            return self._log_density(np.abs(z).ravel()).reshape(z.shape)

    def density(self, z: ArrayLike) -> Floats:
        """Return the density at `z`, in 1/(unit of z)."""
        with np.errstate(under="ignore"):
            return np.asarray(np.exp(self.log_density(z)))

    def survival(self, z: ArrayLike) -> Floats:
        """Return P(Z > z), exact in the upper tail: no 1 − … there."""
        z = _numbers(z)
        with np.errstate(all="ignore"):
            tail = self._tail(np.abs(z).ravel()).reshape(z.shape)
        return np.where(z < 0, 1.0 - tail, tail)

    def cdf(self, z: ArrayLike) -> Floats:
        """Return P(Z ≤ z), exact in the lower tail."""
        return self.survival(-_numbers(z))

    def tail_quantile(self, tail: ArrayLike) -> Floats:
        """Return the z with P(Z > z) = `tail`; infinite at 0, −∞ at 1."""
        tail = _numbers(tail)
        if not np.all((tail >= 0) & (tail <= 1)):
            raise ValueError("a probability must lie between 0 and 1")
        nearer = np.minimum(tail, 1.0 - tail).ravel()  # 1 − tail is exact from ½ on
        with np.errstate(all="ignore"):
            distance = self._distance(nearer).reshape(tail.shape)
        return np.where(tail > 0.5, -distance, distance)

    def quantile(self, probability: ArrayLike) -> Floats:
        """Return the z with P(Z ≤ z) = `probability`; −∞ at 0, infinite at 1."""
        return np.asarray(0.0 - self.tail_quantile(probability))  # 0 − 0 is 0, −0 is not wanted

    def variance(self) -> float:
        """Return E Z², infinite where it is not finite or beyond the doubles."""
        return self.moment(2)

    def mean_absolute_error(self) -> float:
        """Return E |Z|, infinite where it is not finite or beyond the doubles."""
        return self.moment(1)

    @abstractmethod
    def moment(self, order: int) -> float:
        """Return E |Z|^n, n = `order` ≥ 1, infinite where it is not finite or beyond the doubles."""

    @abstractmethod
    def _log_density(self, distance: Floats) -> Floats:
        """Return the log density at distances ≥ 0, an array of one dimension."""

    @abstractmethod
    def _tail(self, distance: Floats) -> Floats:
        """Return P(Z > distance) for distances ≥ 0, an array of one dimension."""

    @abstractmethod
    def _distance(self, tail: Floats) -> Floats:
        """Return the distance with P(Z > distance) = `tail` ≤ ½, an array of one dimension."""


def require_scales(noise: object) -> None:
    """Turn every field into a float, and refuse all that is not between 1e-50 and 1e50."""
    for field in fields(noise):  # type: ignore[arg-type]  # it is a dataclass
        value = float(getattr(noise, field.name))
        if not SMALLEST <= value <= LARGEST:
            raise ValueError(f"{field.name}: must be between {SMALLEST:g} and {LARGEST:g}")
        object.__setattr__(noise, field.name, value)


def _numbers(values: ArrayLike) -> Floats:
    numbers = np.asarray(values, dtype=np.float64)
    if np.any(np.isnan(numbers)):
        raise ValueError("a number is needed, not NaN")
    return numbers


@final
@dataclass(frozen=True, kw_only=True)
class Gaussian(ContinuousNoise):
    """N(0, σ²): density e^{−z²/(2σ²)}/(σ√(2π)), P(Z > z) = ½·erfc(z/(σ√2)) (docs/mathematics.md, section 3)."""

    sigma: float

    def __post_init__(self) -> None:
        require_scales(self)

    def moment(self, order: int) -> float:
        return self.sigma**order * 2 ** (order / 2) * math.gamma((order + 1) / 2) / math.sqrt(math.pi)

    def _log_density(self, distance: Floats) -> Floats:
        return -((distance / self.sigma) ** 2) / 2 - math.log(self.sigma * math.sqrt(2 * math.pi))

    def _tail(self, distance: Floats) -> Floats:
        tail: Floats = special.ndtr(-distance / self.sigma)
        return tail

    def _distance(self, tail: Floats) -> Floats:
        distance: Floats = -self.sigma * special.ndtri(tail)
        return distance


@final
@dataclass(frozen=True, kw_only=True)
class Laplace(ContinuousNoise):
    """Density e^{−|z|/b}/(2b), P(Z > z) = ½·e^{−z/b}, b = `scale` (docs/mathematics.md, section 3, the generalized
    Gaussian with p = 1).
    """

    scale: float

    def __post_init__(self) -> None:
        require_scales(self)

    def moment(self, order: int) -> float:
        return math.factorial(order) * self.scale**order

    def _log_density(self, distance: Floats) -> Floats:
        return -distance / self.scale - math.log(2 * self.scale)

    def _tail(self, distance: Floats) -> Floats:
        return np.exp(-distance / self.scale) / 2

    def _distance(self, tail: Floats) -> Floats:
        return self.scale * minus_log_doubled(tail)


def minus_log_doubled(tail: Floats) -> Floats:
    """Return −ln(2·tail) for tails ≤ ½, exact near ½ as well: there it is −ln(1 − (1 − 2·tail))."""
    return 0.0 - np.where(tail > 0.25, np.log1p(-(1.0 - 2.0 * tail)), np.log(2.0 * tail))


@final
@dataclass(frozen=True, kw_only=True)
class GeneralizedGaussian(ContinuousNoise):
    """Density p/(2σΓ(1/p))·e^{−(|z|/σ)^p}, P(Z > z) = ½·Γ(1/p, (z/σ)^p)/Γ(1/p) (paper 1, section 5;
    docs/mathematics.md, section 3).

    0.02 ≤ p ≤ 10, where SciPy's incomplete gamma functions and their inverses keep the accuracy; the mechanism has
    p ≤ 1. p = 1 is Laplace noise of scale σ, p = 2 Gaussian noise of scale σ/√2.
    """

    p: float
    sigma: float

    def __post_init__(self) -> None:
        require_scales(self)
        if not LEAST_P <= self.p <= MOST_P:
            raise ValueError(f"p: must be between {LEAST_P:g} and {MOST_P:g}")

    def moment(self, order: int) -> float:
        ctx = context(CONSTANT_BITS)
        p = ctx.mpf(self.p)
        return float(ctx.mpf(self.sigma) ** order * ctx.gamma((order + 1) / p) / ctx.gamma(1 / p))

    @cached_property
    def _log_peak(self) -> float:
        ctx = context(CONSTANT_BITS)
        return -float(ctx.log(2 * ctx.mpf(self.sigma) * ctx.gamma(1 + 1 / ctx.mpf(self.p))))

    def _log_density(self, distance: Floats) -> Floats:
        return self._log_peak - (distance / self.sigma) ** self.p

    def _tail(self, distance: Floats) -> Floats:
        tail: Floats = special.gammaincc(1 / self.p, (distance / self.sigma) ** self.p) / 2
        return tail

    def _distance(self, tail: Floats) -> Floats:
        distance: Floats = self.sigma * special.gammainccinv(1 / self.p, 2.0 * tail) ** (1 / self.p)
        return distance


# What transformation mechanisms release, with continuous noise: errors of the estimators, law of the log's value.


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
