"""Doubles with the same bits everywhere, on every processor, at every place of an array: exponentials and units.

NumPy's own exponential may differ in the last bit between processors and between the vector part and the remainder of
an array. Tables must not: they are compared byte for byte across engines and partitions.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # 32 leading digits of ln 2: its products with k < 2²⁰ are exact
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")  # the rest
COEFFICIENTS = tuple(1 / math.factorial(n) for n in range(13, 1, -1))  # what follows is under 2⁻⁵⁷ for |r| ≤ ln 2/2
LOWEST, HIGHEST = -745.0, 709.0  # beyond, the result is held: a released value saturates, it never raises


def exp(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return e^x within 2 last bits, from IEEE additions and products alone; x is held to [−745, 709].

    e^x = 2^k·e^r, k = the integer nearest x/ln 2, e^r = 1 + r + r²(1/2! + r/3! + …).
    """
    x = np.clip(x, LOWEST, HIGHEST)
    k = np.rint(x * (1 / math.log(2)))
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    series = np.full_like(r, COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        series = series * r + coefficient
    return np.ldexp(1 + (r + r * r * series), k.astype(np.int32))


def in_units(steps: NDArray[np.int64], step: Fraction) -> NDArray[np.float64]:
    """Return steps·step as doubles: one product and one quotient, correctly rounded, the same everywhere."""
    return steps.astype(np.float64) * float(step.numerator) / float(step.denominator)
