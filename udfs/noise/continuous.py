"""Noise on the reals: Gaussian, Laplace and generalized Gaussian; what symmetry gives to every family."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

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
        """Return σ^n·2^{n/2}·Γ((n + 1)/2)/√π: σ√(2/π), σ², …"""
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
        """Return n!·b^n."""
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
        """Return E|Z|^order = σ^order·Γ((order + 1)/p)/Γ(1/p)."""
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
