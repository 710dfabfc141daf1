"""Numbers of two words against Python's own."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.wide import integers, wide
from udfs.numbers.arrays import LOW, Wide

LARGEST = 2**63 - 1
POWERS = (0, 31, 32, 62, 63, 64, 95, 96, 125)
ENDS = [sign * (2**power + near) for power in POWERS for near in (-1, 0, 1) for sign in (1, -1)]
NUMBERS = st.lists(st.sampled_from(ENDS) | st.integers(-(2**125), 2**125), min_size=1, max_size=6)

Sum = Callable[[Wide], Wide]


@given(NUMBERS, st.data())
def test_words_limbs_and_sums_are_those_of_python(numbers: list[int], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.sampled_from(ENDS), min_size=len(numbers), max_size=len(numbers)))
    one, other = wide(numbers), wide(others)
    assert integers(one) == integers(Wide.of_limbs(*one.limbs())) == numbers
    assert (one.high is None) == all(-LARGEST - 1 <= number <= LARGEST for number in numbers)
    assert integers(one + other) == [a + b for a, b in zip(numbers, others, strict=True)]
    assert one.nonzero.tolist() == [number != 0 for number in numbers]
    assert one.beyond.tolist() == [abs(number) > LARGEST for number in numbers]
    assert one.held().tolist() == [max(-LARGEST, min(LARGEST, number)) for number in numbers]


def added(numbers: Wide) -> Wide:
    return numbers.summed(lambda limbs: limbs.sum(keepdims=True))


def without_carry(numbers: Wide) -> Wide:
    """A broken twin: what leaves a limb is lost."""
    low, high = (limb.sum(keepdims=True) for limb in Wide(numbers.low).limbs())
    return Wide((high << 32) | (low & LOW))


@given(st.lists(st.sampled_from([end for end in ENDS if abs(end) <= LARGEST]), min_size=1, max_size=40))
def test_sums_of_64_bits_never_wrap(numbers: list[int]) -> None:
    assert integers(added(wide(numbers))) == [sum(numbers)]


@pytest.mark.parametrize("numbers", [[LARGEST, LARGEST], [-1, -1], [LARGEST, 1]])
def test_lost_carries_and_plain_sums_are_caught(numbers: Sequence[int]) -> None:
    assert integers(added(wide(numbers))) == [sum(numbers)]
    assert integers(without_carry(wide(numbers))) != [sum(numbers)]


def test_a_total_that_needs_the_fourth_limb() -> None:
    """2⁴⁰ values of the largest magnitude, by doubling."""
    for end in (LARGEST, -LARGEST):
        total = Wide(np.array([end]))
        for _ in range(40):
            total = total + total
        assert integers(total) == [end * 2**40]
