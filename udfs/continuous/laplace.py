"""Continuous Laplace noise."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from udfs.continuous.base import Floats, Noise, require_scales


@final
@dataclass(frozen=True, kw_only=True)
class Laplace(Noise):
    """Density e^{−|z|/b}/(2b), P(Z > z) = ½·e^{−z/b}, b = `scale` (MATH 4, the generalized Gaussian with p = 1)."""

    scale: float

    def __post_init__(self) -> None:
        require_scales(self)

    def variance(self) -> float:
        """Return 2b²."""
        return 2 * self.scale**2

    def mean_absolute_error(self) -> float:
        """Return b."""
        return self.scale

    def _log_density(self, distance: Floats) -> Floats:
        return -distance / self.scale - math.log(2 * self.scale)

    def _tail(self, distance: Floats) -> Floats:
        return np.exp(-distance / self.scale) / 2

    def _distance(self, tail: Floats) -> Floats:
        return self.scale * minus_log_doubled(tail)


def minus_log_doubled(tail: Floats) -> Floats:
    """Return −ln(2·tail) for tails ≤ ½, exact near ½ as well: there it is −ln(1 − (1 − 2·tail))."""
    return 0.0 - np.where(tail > 0.25, np.log1p(-(1.0 - 2.0 * tail)), np.log(2.0 * tail))
