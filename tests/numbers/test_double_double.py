"""Sums of two doubles against exact rational numbers."""

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from udfs.numbers import arrays

Pair = tuple[NDArray[np.float64], NDArray[np.float64]]
NUMBERS = st.floats(-1e60, 1e60, allow_nan=False, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-60)
ROOTS = st.floats(1e-3, 1e9)


def array(x: float) -> NDArray[np.float64]:
    return np.array([x])


def exactly(pair: Pair) -> Fraction:
    return Fraction(float(pair[0][0])) + Fraction(float(pair[1][0]))


@settings(derandomize=True)
@given(NUMBERS, NUMBERS)
def test_sums_and_products_are_free_of_error(a: float, b: float) -> None:
    assert exactly(arrays.two_sum(array(a), array(b))) == Fraction(a) + Fraction(b)
    assert exactly(arrays.two_product(array(a), array(b))) == Fraction(a) * Fraction(b)
    high, low = arrays.two_sum(array(a), array(b))
    assert abs(low[0]) <= np.spacing(abs(high[0])) / 2


@settings(derandomize=True)
@given(st.integers(-(2**63), 2**63 - 1))
def test_whole_numbers_are_exact(n: int) -> None:
    assert exactly(arrays.integers(np.array([n], dtype=np.int64))) == n


@settings(derandomize=True)
@given(st.fractions(), st.fractions())
def test_pairs_add_and_multiply_to_a_hundred_digits(x: Fraction, y: Fraction) -> None:
    a, b = ((array(float(high)), array(float(low))) for high, low in map(arrays.pair_of, (x, y)))
    assert abs(exactly(a) - x) <= abs(x) / 2**105
    exact_sum, exact_product = exactly(a) + exactly(b), exactly(a) * exactly(b)
    assert abs(exactly(arrays.add(a, b)) - exact_sum) <= (abs(exactly(a)) + abs(exactly(b))) / 2**101
    assert abs(exactly(arrays.multiply(a, b)) - exact_product) <= abs(exact_product) / 2**100
    # The broken twin: a product of the leading halves alone is good for 53 digits at most.
    if exact_product and a[1][0] and b[1][0]:
        assert abs(Fraction(float(a[0][0] * b[0][0])) - exact_product) <= abs(exact_product) / 2**50


@settings(derandomize=True)
@given(ROOTS, st.integers(1, 33))
def test_powers(a: float, n: int) -> None:
    exact = Fraction(a) ** n
    assert abs(exactly(arrays.power(array(a), n)) - exact) <= exact * n / 2**99


def test_a_plain_double_would_not_pass() -> None:
    a, n = 1.1, 30
    exact = Fraction(a) ** n
    assert abs(Fraction(a**n) - exact) > exact * n / 2**99
