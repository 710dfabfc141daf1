"""Sums of two doubles that hold a number to about 100 binary digits, from IEEE additions and products alone.

The same bits on every processor: nothing here is fused or reordered. Sources of the error-free steps: Knuth's TwoSum,
Dekker's product with Veltkamp's splitting.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]  # high + low, |low| at most half a last bit of high
SPLITTER = 2.0**27 + 1


def pair_of(number: Fraction) -> tuple[np.float64, np.float64]:
    """Return `number` as a pair, within 2⁻¹⁰⁵ relatively."""
    high = float(number)
    return np.float64(high), np.float64(float(number - Fraction(high)))


def integers(numbers: NDArray[np.int64]) -> Pair:
    """Return whole numbers exactly."""
    return two_sum((numbers >> 32).astype(np.float64) * 2.0**32, (numbers & 0xFFFFFFFF).astype(np.float64))


def two_sum(a: Floats, b: Floats) -> Pair:
    """Return a + b exactly."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product(a: Floats, b: Floats) -> Pair:
    """Return a·b exactly, for magnitudes below 2⁹⁰⁰."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def add(a: Pair, b: Pair) -> Pair:
    """Return a + b, within 2⁻¹⁰¹ of |a| + |b|."""
    high, low = two_sum(a[0], b[0])
    return two_sum(high, low + (a[1] + b[1]))


def multiply(a: Pair, b: Pair) -> Pair:
    """Return a·b, within 2⁻¹⁰⁰ relatively."""
    high, low = two_product(a[0], b[0])
    return two_sum(high, low + (a[0] * b[1] + a[1] * b[0]))


def power(a: Floats, n: int) -> Pair:
    """Return a^n, n ≥ 1, within n·2⁻⁹⁹ relatively."""
    result: Pair | None = None
    square: Pair = (a, np.zeros_like(a))
    while True:
        if n & 1:
            result = square if result is None else multiply(result, square)
        n >>= 1
        if not n:
            assert result is not None
            return result
        square = multiply(square, square)


def _split(a: Floats) -> Pair:
    scaled = SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high
