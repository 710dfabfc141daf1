"""Rounding a function of totals to a lattice, decided exactly: one function of the total on every machine."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

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
    totals: NDArray[np.int64],
    approximate: NDArray[np.float64],
    error: float,
    exactly: Callable[[int], int],
    rest: NDArray[np.float64] | float = 0.0,
) -> NDArray[np.int64]:
    """Return ⌊x + ½⌋ for the exact values x that `approximate` + `rest` (in lattice steps) meets within `error`.

    `rest` holds the digits that a double `approximate` has no room for. Where the error could change the result,
    `exactly(total)` gives it, once for each distinct total.
    """
    whole = np.floor(approximate)
    part = (approximate - whole) + rest
    carried = np.floor(part)
    above_half = (part - carried) - 0.5
    rounded = whole.astype(np.int64) + (carried + (above_half >= 0)).astype(np.int64)
    doubtful = np.abs(above_half) <= error
    if doubtful.any():
        distinct, place = np.unique(totals[doubtful], return_inverse=True)
        rounded[doubtful] = np.array([exactly(int(total)) for total in distinct], dtype=np.int64)[place]
    return rounded
