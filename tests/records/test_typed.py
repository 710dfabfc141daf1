"""Typed values hold the same steps: read back by the contract's own kernel, and by Python's decimals."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.numbers.arrays import LARGEST
from udfs.records.contract import MeasureColumn, decimal_digits, in_units, whole_steps

STEPS = [
    Fraction(1),
    Fraction("0.25"),
    Fraction("0.01"),
    Fraction(1000),
    Fraction(3, 2),
    Fraction("1e-30"),
    Fraction(10**19),
]


@given(numbers=st.lists(st.integers(-LARGEST, LARGEST) | st.integers(-99, 99), max_size=5), step=st.sampled_from(STEPS))
def test_steps_come_back(numbers: list[int], step: Fraction) -> None:
    values = in_units(np.array(numbers, dtype=np.int64), step)
    assert [Fraction(value) for value in values.to_pylist()] == [number * step for number in numbers]
    steps, faults = whole_steps(values, MeasureColumn("m", "m", step, nonnegative=False))
    assert (steps.tolist(), faults) == (numbers, [])


def test_types() -> None:
    assert in_units(np.zeros(1, dtype=np.int64), Fraction(1)).type == pa.int64()
    assert in_units(np.zeros(1, dtype=np.int64), Fraction("0.25")).type == pa.decimal128(38, 2)


@pytest.mark.parametrize("step", [Fraction(1, 3), Fraction("1e-40"), Fraction("1e20")])
def test_steps_that_no_decimal_holds(step: Fraction) -> None:
    assert decimal_digits(step) is None
    with pytest.raises(ValueError, match="do not fit"):
        in_units(np.ones(1, dtype=np.int64), step)
