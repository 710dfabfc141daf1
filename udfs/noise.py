"""Totals of public cells → released values: the one place where a key meets totals."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from udfs.keystream import CellBits, SecretKey
from udfs.mechanisms.base import Mechanism, Released


def release_cells(  # noqa: PLR0913 — a mechanism, a place in the keystream, and totals
    mechanism: Mechanism,
    *,
    key: SecretKey,
    query: int,
    first: int,
    totals: NDArray[np.int64],
    interval: Fraction,
    integer: bool,
) -> Released:
    """Return the released values of cells `first`, `first` + 1, … of query number `query`, whose totals are given.

    Guarantee: the mechanism's, and the noise of a cell depends on (key, query, cell) alone (DESIGN rule 4). Values of
    additive mechanisms on integer measures are int64; all others are float64 in the measure's unit.
    """
    cells = np.arange(first, first + len(totals), dtype=np.uint64)
    released = mechanism.release(totals, CellBits(key=key, query=query, cells=cells), interval)
    if integer or not mechanism.additive:
        return released
    return Released(
        value=_in_units(released.value, mechanism.step),
        lower=_in_units(released.lower, mechanism.step),
        upper=_in_units(released.upper, mechanism.step),
        standard_error=released.standard_error,
    )


def _in_units(steps: NDArray[np.int64], step: Fraction) -> NDArray[np.float64]:
    """Return steps·step as doubles: one product and one quotient, correctly rounded, the same everywhere."""
    return steps.astype(np.float64) * float(step.numerator) / float(step.denominator)
