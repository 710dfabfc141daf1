"""The one abstract class of continuous noise: what symmetry gives to every family."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
SMALLEST, LARGEST = 1e-50, 1e50  # scales lie between: doubles hold all they imply


@dataclass(frozen=True, kw_only=True)
class Noise(ABC):
    """Noise Z on the reals, symmetric about 0, with a density that falls with |z|.

    Accuracy: relative error ≤ 1e-12 of density, cdf, survival and moments, as long as the result is a normal double;
    of log_density at most 1e-12·max(1, |log density|); of a quantile z at most 1e-12·max(1, P(Z > z)/(z·density(z))),
    z > 0: the second counts for tails heavier than 1/z alone. A result beyond the doubles is 0 or infinite. Arguments
    are arrays of any shape (or scalars) and stand for themselves exactly; results are float64 of their shape. Raises
    ValueError on NaN, and on probabilities outside [0, 1].

    The quantities are those of continuous noise; released values carry lattice noise (MATH 8), which differs visibly
    where the scale is not large against the lattice step.
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

    @abstractmethod
    def variance(self) -> float:
        """Return E Z², infinite where it is not finite or beyond the doubles."""

    @abstractmethod
    def mean_absolute_error(self) -> float:
        """Return E |Z|, infinite where it is not finite or beyond the doubles."""

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
