"""What noise on noise is distributed like: Y = (x + Z)(1 + rW), Z discrete and W continuous Gaussian noise."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import special

from tests.support.lattice import Noise

Floats = NDArray[np.float64]


def masses(sigma: str, reach: int = 9) -> dict[int, float]:
    """P(Z = k) up to `reach` scales, and nothing of udfs."""
    noise, most = Noise(2, Fraction(sigma)), int(reach * float(sigma)) + 2
    return {k: float(noise.probability(k)) for k in range(-most, most + 1)}


def ranks(value: Floats, x: int, r: float, sigma: str) -> Floats:
    """P(Y < value) + ½·P(Y = value), Y = (x + Z)(1 + rW)."""
    found = np.zeros_like(value)
    for k, mass in masses(sigma).items():
        if x + k == 0:
            found += mass * np.where(value == 0, 0.5, value > 0)
        else:
            found += mass * special.ndtr((value / (x + k) - 1) / r * np.sign(x + k))
    return found
