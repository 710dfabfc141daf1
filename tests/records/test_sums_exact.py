"""Sums near the end of 63 bits, and the two ways in which they are scattered to cells."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cells import FINEST, NATION, Cells, as_dict, same, spec
from tests.support.wide import integers
from udfs.records.contract import MeasureColumn
from udfs.records.decoding import SumSpec
from udfs.records.statistics import Count
from udfs.records.sums import ExactSums, Frame, add_frames, sum_batches, to_frame

RECORDS = Count().addend

LARGEST = 2**63 - 1
CELLS = 3
SUMMED = replace(
    spec(), measures=(MeasureColumn("a", "a", Fraction(1), False), MeasureColumn("b", "b", Fraction(1), False))
)

Rows = Sequence[tuple[int, int]]  # cell, value
Summed = Callable[[Sequence[Rows]], list[int]]


def exact(batches: Sequence[Rows]) -> list[int]:
    """Return the kernel's sums of `batches`."""
    sums = ExactSums(CELLS, ["a"])
    for rows in batches:
        cells, values = (np.array([row[i] for row in rows], dtype=np.int64) for i in (0, 1))
        sums.add("a", cells, values)
    return integers(sums.totals()["a"])


def wrapping(batches: Sequence[Rows]) -> list[int]:
    """The broken twin: plain 64-bit sums."""
    sums = np.zeros(CELLS, dtype=np.int64)
    for cell, value in (row for rows in batches for row in rows):
        np.add.at(sums, cell, np.int64(value))
    return sums.tolist()


def check(batches: Sequence[Rows], summed: Summed = exact) -> None:
    sums = [0] * CELLS
    for cell, value in (row for rows in batches for row in rows):
        sums[cell] += value
    assert summed(batches) == sums


extreme = st.sampled_from([LARGEST, -LARGEST, LARGEST - 1, 1 << 62, -(1 << 62), (1 << 32) - 1, 1 << 32, -(1 << 32)])
value = extreme | st.integers(-LARGEST, LARGEST) | st.integers(-3, 3)


@given(st.lists(st.lists(st.tuples(st.integers(0, CELLS - 1), value), max_size=8), max_size=6))
def test_sums_never_wrap(batches: list[list[tuple[int, int]]]) -> None:
    check(batches)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("beyond", [-1, 0, 1, 2, LARGEST - 7])
def test_ends_of_63_bits(sign: int, together: bool, beyond: int) -> None:
    rows = [(1, sign * LARGEST), (1, sign * -7), (1, sign * (7 + beyond)), (2, -sign)]
    batches = [rows] if together else [[row] for row in rows]
    check(batches)
    check(batches[::-1])
    if beyond > (sign < 0):  # −2⁶³ is the one number beyond that 64 bits have
        with pytest.raises(AssertionError):
            check(batches, wrapping)


def test_what_leaves_the_plain_room_and_comes_back() -> None:
    """A thousand pairs of ends cancel; one of them is left at last."""
    pair = [(0, LARGEST), (0, -LARGEST)]
    check([pair] * 1000)
    check([[*pair * 500, (0, LARGEST)], [(0, -1)], [(0, 1)]])
    check([[(0, 5)], pair * 3, [(0, -LARGEST)], [(0, -6)]])  # −2⁶³ itself
    check([[(0, 5)], pair * 3, [(0, -LARGEST)], [(0, -5)]])


def records(a: Sequence[int], b: Sequence[int]) -> pa.RecordBatch:
    keys = {"naics": pa.array(["311111"] * len(a)), "county": pa.array(["01001"] * len(a))}
    return pa.RecordBatch.from_pydict(keys | {"a": pa.array(a, pa.int64()), "b": pa.array(b, pa.int64())})


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([LARGEST, 0], [-LARGEST, 0]),
        ([LARGEST, 1], [-LARGEST, 0]),
        ([LARGEST, 0], [-LARGEST, -1]),
        ([LARGEST] * 300, [-LARGEST] * 200 + [7] * 100),
    ],
)
def test_sums_of_frames_and_of_a_scan_are_exact(a: list[int], b: list[int]) -> None:
    def base(cells: Cells) -> Cells:
        return replace(cells, addends=("a", "b"))

    given: SumSpec = replace(SUMMED, bases=(base(FINEST).base, base(NATION).base))
    whole = sum_batches([records(a, b)], given)
    parts = [sum_batches([records([x], [y])], given) for x, y in zip(a, b, strict=True)]
    for frame in (whole, add_frames(parts, given.offsets[-1])):
        assert as_dict(frame) == {0: (0, sum(a), sum(b)), given.offsets[1]: (0, sum(a), sum(b))}


FRAME_ROW = st.tuples(st.integers(0, 9), st.integers(-(2**40), 2**40) | extreme, st.integers(-3, 3))


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Return a frame of sums, perhaps with broken rules, as a task returns it."""
    sums = ExactSums(10, ["a", "b"])
    for cell, a, b in draw(st.lists(FRAME_ROW, max_size=6)):
        sums.add("a", np.array([cell]), np.array([a]))
        sums.add("b", np.array([cell]), np.array([b]))
    return to_frame(sums, draw(st.sets(st.sampled_from([-1, -2, -7]))))


@given(st.lists(frames(), min_size=1, max_size=7), st.data())
def test_frames_add_up_in_any_order_and_grouping(parts: list[Frame], data: st.DataObject) -> None:
    whole = add_frames(parts, 10)
    expected: dict[int, tuple[int, ...]] = {}
    for cell, row in (pair for part in parts for pair in as_dict(part).items()):
        expected[cell] = tuple(map(sum, zip(expected.get(cell, (0, 0)), row, strict=True)))
    assert as_dict(whole) == {cell: row for cell, row in sorted(expected.items()) if cell < 0 or any(row)}
    left = data.draw(st.permutations(parts))
    while len(left) > 1:
        count = data.draw(st.integers(2, len(left)))
        left = [*left[count:], add_frames(left[:count], 10)]
    assert same(add_frames(left, 10), whole)


@pytest.mark.parametrize("largest", [1000, LARGEST])
@pytest.mark.parametrize("count", [1, 7, 50])
def test_values_beside_the_largest_are_added_exactly(count: int, largest: int) -> None:
    random = np.random.default_rng(count)
    cells = random.integers(0, 8 * count, count)
    values = random.integers(-largest, largest, count, endpoint=True) // count  # their sums stay within 63 bits
    plain = [0] * (8 * count)
    for cell, number in zip(cells.tolist(), values.tolist(), strict=True):
        plain[cell] += number
    sums = ExactSums(8 * count, ["a"])
    for end in (largest, -largest):  # the larger pair leaves no plain room
        sums.add("a", np.array([0]), np.array([end]))
    sums.add("a", cells, values)
    assert integers(sums.totals()["a"]) == plain
