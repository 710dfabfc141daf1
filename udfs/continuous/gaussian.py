"""Continuous Gaussian noise."""

import math
from dataclasses import dataclass
from typing import final

from scipy import special

from udfs.continuous.base import Floats, Noise, require_scales


@final
@dataclass(frozen=True, kw_only=True)
class Gaussian(Noise):
    """N(0, σ²): density e^{−z²/(2σ²)}/(σ√(2π)), P(Z > z) = ½·erfc(z/(σ√2)) (MATH 4)."""

    sigma: float

    def __post_init__(self) -> None:
        require_scales(self)

    def variance(self) -> float:
        """Return σ²."""
        return self.sigma**2

    def mean_absolute_error(self) -> float:
        """Return σ√(2/π)."""
        return self.sigma * math.sqrt(2 / math.pi)

    def _log_density(self, distance: Floats) -> Floats:
        return -((distance / self.sigma) ** 2) / 2 - math.log(self.sigma * math.sqrt(2 * math.pi))

    def _tail(self, distance: Floats) -> Floats:
        tail: Floats = special.ndtr(-distance / self.sigma)
        return tail

    def _distance(self, tail: Floats) -> Floats:
        distance: Floats = -self.sigma * special.ndtri(tail)
        return distance
