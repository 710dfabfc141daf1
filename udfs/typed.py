"""Whole steps of a measure → typed values, from which `udfs.contract.whole_steps` reads the same steps again."""

from fractions import Fraction

import numpy as np
import pyarrow as pa

from udfs.lattice import LARGEST
from udfs.names import Int64s

DIGITS = 38  # of a decimal of 128 bits
WORD = 64


def places(step: Fraction) -> int | None:
    """Return the decimal places of a step; None where not every value of 63 bits fits DIGITS digits with them."""
    found = next((s for s in range(DIGITS + 1) if (step * 10**s).denominator == 1), None)
    return found if found is not None and step * 10**found * LARGEST < 10**DIGITS else None


def in_units(steps: Int64s, step: Fraction) -> pa.Array:
    """Return steps·step exactly: 64-bit integers for the step 1, else decimals with the places of the step.

    Raises ValueError on a step that has no `places`.
    """
    if step == 1:
        return pa.array(steps)
    scale = places(step)
    if scale is None:
        raise ValueError("a step whose multiples do not fit a decimal of 38 digits")
    factor = int(step * 10**scale)
    words = np.empty((len(steps), 2), dtype=np.int64)
    if factor * max(int(steps.max(initial=1)), -int(steps.min(initial=-1))) > LARGEST:
        unscaled = [int(number) * factor for number in steps]
        words[:, 0] = np.array([number % (1 << WORD) for number in unscaled], dtype=np.uint64).view(np.int64)
        words[:, 1] = [number >> WORD for number in unscaled]
    else:
        words[:, 0] = steps * factor
        words[:, 1] = words[:, 0] >> (WORD - 1)
    return pa.Array.from_buffers(pa.decimal128(DIGITS, scale), len(steps), [None, pa.py_buffer(words.tobytes())])
