"""Arrays of numbers, exact or of the same bits everywhere: types, whole numbers of 128 bits, rounding, doubles."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Mask = NDArray[np.bool_]

# Whole numbers of 128 bits, as arrays of two words: sums of 64-bit numbers, exact for up to 2⁶³ of them.
#
# So no sum over records can wrap: it would take more than 2⁶³ records of the largest value, 2⁶³ − 1.

LIMB = 32  # binary digits of a limb: fewer than 2³¹ limbs are added up in 64 bits without a carry
LOW = (1 << LIMB) - 1
LARGEST = 2**63 - 1  # of a number's magnitude, where it is held in 63 bits: of totals, and of released values in steps


@dataclass(frozen=True, eq=False, repr=False)
class Wide:
    """Numbers high·2⁶⁴ + low, of magnitude at most 2¹²⁶; `high` None: 0 throughout, so that `low` are the numbers."""

    low: Int64s
    high: Int64s | None = None

    @classmethod
    def of_limbs(cls, *limbs: Int64s) -> "Wide":
        """Return the numbers Σ limbs[i]·2³²ⁱ, of four limbs or the lower two, of magnitude below 2⁶³ − 2³² each."""
        l0, l1, l2, l3 = limbs if len(limbs) > 2 else (*limbs, *np.zeros((2, *limbs[0].shape), dtype=np.int64))
        l1 = l1 + (l0 >> LIMB)
        l2 = l2 + (l1 >> LIMB)
        l3 = l3 + (l2 >> LIMB)
        low = (l1 << LIMB) | (l0 & LOW)
        high = (l3 << LIMB) + (l2 & LOW) + (low < 0)
        return cls(low, high if high.any() else None)

    def limbs(self) -> tuple[Int64s, ...]:
        """Return limbs that make the same numbers, of magnitude at most 2³²: two where `high` is 0, else four."""
        words = (self.low,) if self.high is None else (self.low, self.high)
        return tuple(limb for word in words for limb in (word & LOW, word >> LIMB))

    def summed(self, add: Callable[[Int64s], Int64s]) -> "Wide":
        """Return the sums of these numbers that `add`, which adds up fewer than 2³¹ for each sum, makes of int64s."""
        return Wide.of_limbs(*map(add, self.limbs()))

    @cached_property
    def largest_low(self) -> int:
        """The largest magnitude of `low`."""
        return max(int(self.low.max(initial=0)), -int(self.low.min(initial=0)))

    def __add__(self, other: "Wide") -> "Wide":
        pairs = zip_longest(self.limbs(), other.limbs(), fillvalue=np.zeros_like(self.low))
        return Wide.of_limbs(*(mine + others for mine, others in pairs))

    @property
    def nonzero(self) -> Mask:
        """Which numbers are not 0."""
        some: Mask = self.low != 0
        return some if self.high is None else some | (self.high != 0)

    @property
    def beyond(self) -> Mask:
        """Which numbers exceed 2⁶³ − 1 in magnitude."""
        off: Mask = self.low < -LARGEST
        if self.high is not None:
            off = (off & (self.high == 0)) | (self.high != 0)
        return off

    def held(self) -> Int64s:
        """Return the numbers held at ±(2⁶³ − 1): nearer to each other than before, or as near."""
        sign = self.low if self.high is None else np.where(self.high == 0, self.low, self.high)
        return np.where(self.beyond, np.where(sign < 0, -LARGEST, LARGEST), self.low)


# Rounding a function of totals to a lattice, decided exactly: one function of the total on every machine.

FINENESS = 30  # a transformation's lattice step is near σ·2⁻³⁰
MARGIN = 10  # and at least 2¹⁰ evaluation errors, so that hardly any value needs high precision


def floor_log2(number: Fraction) -> int:
    """Return the largest e with 2^e ≤ `number` > 0, exactly."""
    guess = number.numerator.bit_length() - number.denominator.bit_length()
    return guess if Fraction(2) ** guess <= number else guess - 1


def lattice_step(sigma: Fraction, error: Fraction) -> Fraction:
    """Return the lattice step, a power of two, for noise of scale `sigma` and a bound `error` of f's evaluation.

    Integer arithmetic alone: the step is part of the policy, so all machines must find the same.
    """
    return Fraction(2) ** max(floor_log2(sigma) - FINENESS, floor_log2(error) + 1 + MARGIN)


def round_decided(
    totals: Int64s, approximate: Floats, error: float, exactly: Callable[[int], int], rest: Floats | float = 0.0
) -> Int64s:
    """Return ⌊x + ½⌋ for the exact values x that `approximate` + `rest` (in lattice steps) meets within `error`.

    `rest` holds the digits that a double `approximate` has no room for. Where the error could change the result,
    `exactly(total)` gives it, once for each distinct total.
    """
    floor = np.floor(approximate)
    part = (approximate - floor) + rest
    carried = np.floor(part)
    above_half = (part - carried) - 0.5
    rounded = floor.astype(np.int64) + (carried + (above_half >= 0)).astype(np.int64)
    doubtful = np.abs(above_half) <= error
    if doubtful.any():
        distinct, index = np.unique(totals[doubtful], return_inverse=True)
        rounded[doubtful] = np.array([exactly(int(total)) for total in distinct], dtype=np.int64)[index]
    return rounded


# Sums of two doubles that hold a number to about 100 binary digits, from IEEE additions and products alone.
#
# The same bits on every processor: nothing here is fused or reordered. Sources of the error-free steps:
# Knuth's TwoSum, Dekker's product with Veltkamp's splitting.

Pair = tuple[Floats, Floats]  # high + low, |low| at most half a last bit of high
SPLITTER = 2.0**27 + 1


def pair_of(number: Fraction) -> tuple[np.float64, np.float64]:
    """Return `number` as a pair, within 2⁻¹⁰⁵ relatively."""
    high = float(number)
    return np.float64(high), np.float64(float(number - Fraction(high)))


def integers(numbers: Int64s) -> Pair:
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


# Doubles with the same bits everywhere, on every processor, at every place of an array: exponentials and units.
#
# NumPy's own exponential may differ in the last bit between processors and between the vector part and the remainder
# of an array. Tables must not: they are compared byte for byte across engines and partitions.

LN2_HIGH = float.fromhex("0x1.62e42feep-1")  # 32 leading digits of ln 2: its products with k < 2²⁰ are exact
LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")  # the rest
COEFFICIENTS = tuple(1 / math.factorial(n) for n in range(13, 1, -1))  # what follows is under 2⁻⁵⁷ for |r| ≤ ln 2/2
LOWEST, HIGHEST = -745.0, 709.0  # beyond, the result is held: a released value saturates, it never raises


def exp(x: Floats) -> Floats:
    """Return e^x within 2 last bits, from IEEE additions and products alone; x is held to [−745, 709].

    e^x = 2^k·e^r, k = the integer nearest x/ln 2, e^r = 1 + r + r²(1/2! + r/3! + …).
    """
    x = np.clip(x, LOWEST, HIGHEST)
    k = np.rint(x * (1 / math.log(2)))
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    series = np.full_like(r, COEFFICIENTS[0])
    for coefficient in COEFFICIENTS[1:]:
        series *= r
        series += coefficient
    series *= r * r
    series += r
    series += 1
    if np.min(k, initial=0) >= -1022:  # 2^k is a usual double, made of its exponent: its product is rounded once, too
        return np.multiply(series, (k.astype(np.int64) + 1023 << 52).view(np.float64), out=series)
    return np.ldexp(series, k.astype(np.int32))


def in_units(steps: Int64s, step: Fraction) -> Floats:
    """Return steps·step as doubles: one product and one quotient, correctly rounded, the same everywhere."""
    return steps.astype(np.float64) * float(step.numerator) / float(step.denominator)
