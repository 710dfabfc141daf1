"""The public cells of one query in key order, and how sums by the cells of a base roll up to them.

A query's cells are pairs, triples, … of codes, one of each of its keys. Everything here is told by *positions*: for
each finest code of a key the position of the cell's code in the query, or −1 where no cell of the query has it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from udfs.numbers.arrays import LARGEST, Wide
from udfs.records.codes import MOST_CELLS, NOWHERE

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
Codes = Mapping[int, NDArray[np.integer]]  # of some records, by the number of a key: the indices of their finest codes

Array = TypeVar("Array", Int32s, Int64s)


def read_only(array: Array) -> Array:
    """Return the array, which nothing can change from now on."""
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class Axis:
    """One key of a query's cells: the codes of its level, and which of them the query's filter keeps.

    Attributes:
        key: The key's number in the domain.
        level: None where the key is summed over, among the codes that the query's filter and the lists keep.
        codes: The codes of the level; without a level none.
        kept: Ascending indices of `codes`; without a level it counts 1, or 0 if nothing is left.
        position: The index in `kept` for each of the key's finest codes, −1 where the query has no cell for it.
        everyone: Whether every record that meets the contract has a code with a position ≥ 0.
    """

    key: int
    level: str | None
    codes: tuple[str, ...]
    kept: Int32s
    position: Int32s
    everyone: bool = False


@dataclass(frozen=True, eq=False)
class QueryCells:
    """The public cells of a query, numbered in key order: by the codes of its levels, the first level outermost.

    `axes`: those of the levels `by`, at least one, in their order, then keys that are summed over. A cell's *product
    number* counts the combinations of kept codes. All of them are cells, or, where `listed` is given, those in it
    (sorted).
    """

    by: tuple[str, ...]
    axes: tuple[Axis, ...]
    listed: Int64s | None = None

    def __post_init__(self) -> None:
        if prod(self.shape) > MOST_CELLS:
            raise PlanError(f"by {', '.join(self.by)}: too many cells to be numbered; use coarser levels or fewer")

    def closed(self) -> "QueryCells":
        """Return the cells as if records had listed codes alone: who has none is in no table, or in each."""
        axes = (replace(axis, everyone=bool((axis.position >= 0).all())) for axis in self.axes)
        return replace(self, axes=tuple(axes))

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of kept codes of each axis."""
        return tuple(len(axis.kept) for axis in self.axes)

    @property
    def size(self) -> int:
        """The number of cells."""
        return prod(self.shape) if self.listed is None else len(self.listed)

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """What a position of each axis counts for in product numbers."""
        return tuple(prod(self.shape[i + 1 :]) for i in range(len(self.axes)))

    def product_numbers(self, positions: Sequence[NDArray[np.integer]]) -> Int64s:
        """Return the product numbers of positions on all axes, none of them −1."""
        numbers = np.zeros(len(positions[0]), dtype=np.int64)
        for stride, position in zip(self.strides, positions, strict=True):
            numbers += position.astype(np.int64) * stride
        return numbers

    def numbers(self, positions: Sequence[NDArray[np.integer]]) -> Int64s:
        """Return the cell at positions on all axes, −1 where there is none."""
        met = np.logical_and.reduce([position >= 0 for position in positions])
        numbers = np.where(met, self.product_numbers(positions), -1)
        if self.listed is None or not len(self.listed):
            return numbers if self.listed is None else np.full(len(numbers), -1, dtype=np.int64)
        index = np.minimum(np.searchsorted(self.listed, numbers), len(self.listed) - 1)
        return np.where(self.listed[index] == numbers, index, -1)

    def of_codes(self, codes: Codes) -> Int64s:
        """Return the cells of records, −1 where they are in none; an index below 0 is a code in no list."""
        looked_up = ((axis.position, codes[axis.key]) for axis in self.axes)
        return self.numbers([np.where(index >= 0, position[np.maximum(index, 0)], -1) for position, index in looked_up])

    def keys(self, start: int, stop: int) -> dict[str, tuple[tuple[str, ...], Int32s]]:
        """Return the keys of cells start…stop − 1 by level, in the order of `by`: (codes, indices of codes).

        Memory is that of the range. Raises IndexError unless 0 ≤ start ≤ stop ≤ size.
        """
        if not 0 <= start <= stop <= self.size:
            raise IndexError(f"cells {start} to {stop} of {self.size}")
        numbers = np.arange(start, stop) if self.listed is None else self.listed[start:stop]
        positions = self.positions_of(numbers)[: len(self.by)]
        return {
            level: (axis.codes, axis.kept[position])
            for level, axis, position in zip(self.by, self.axes, positions, strict=False)
        }

    def positions_of(self, numbers: Int64s) -> list[Int64s]:
        """Return the positions on all axes of product numbers."""
        rest, positions = numbers, []
        for stride in self.strides:
            positions.append(rest // max(stride, 1))
            rest = rest - positions[-1] * stride  # several times as fast as the remainder of a division
        return positions


@dataclass(frozen=True, eq=False)
class Base:
    """The cells at which records are summed: those of a query, or of a listed domain; and what is summed there."""

    cells: QueryCells
    addends: tuple[str, ...]

    @property
    def size(self) -> int:
        """The number of cells."""
        return self.cells.size

    def parts(self) -> dict[int, Int64s]:
        """Return, by key, what each finest code adds to a cell's product number, and last what a code in no list does.

        NOWHERE stands for codes of which the base has no cell.
        """
        parts = {}
        for axis, stride in zip(self.cells.axes, self.cells.strides, strict=True):
            numbers = np.where(axis.position >= 0, axis.position.astype(np.int64) * stride, NOWHERE)
            parts[axis.key] = np.append(numbers, NOWHERE)
        return parts


Needed = tuple[QueryCells, str]  # a query's cells, and what it sums


def bases_of(needed: Sequence[Needed]) -> tuple[Base, ...]:
    """Return the bases by which records must be summed for queries of a domain of lists, the largest first.

    Each has the cells of some query that sums the same, so that nothing is kept at a product that nobody asked for;
    each query has its own cells among them, or rolls up from them.
    """
    bases: list[Base] = []
    for query, addend in sorted(needed, key=lambda each: -each[0].size):
        if cheapest(bases, query, addend) is None:
            same = next(
                (i for i, base in enumerate(bases) if base.size == query.size and _maps(base.cells, query)), None
            )
            if same is None:
                bases.append(Base(query, (addend,)))
            else:
                bases[same] = Base(bases[same].cells, tuple(sorted((*bases[same].addends, addend))))
    return tuple(bases)


def cheapest(bases: Sequence[Base], query: QueryCells, addend: str) -> int | None:
    """Return the number of the smallest of `bases` whose sums of `addend` roll up to a query; None where none does."""
    able = [i for i, base in enumerate(bases) if addend in base.addends and _maps(base.cells, query) is not None]
    return min(able, key=lambda i: bases[i].size, default=None)


def _maps(base: QueryCells, query: QueryCells) -> list[Int32s] | None:
    """Return, for each axis of a base, the query's position of each of its positions, −1 where the query has none.

    None where the query's cells are no unions of the base's: a record in one of them might be in none of the base's,
    or in one that is not within it.
    """
    wanted = {axis.key: axis for axis in query.axes}
    if wanted.keys() - {axis.key for axis in base.axes} or (query.listed is not None) > (base.listed is not None):
        return None
    maps = []
    for axis in base.axes:
        of_query = wanted.get(axis.key)
        if of_query is None:
            if not axis.everyone:
                return None
            maps.append(np.zeros(len(axis.kept), dtype=np.int32))
            continue
        here = axis.position >= 0
        if (of_query.position[~here] >= 0).any():
            return None
        of_base = np.full(len(axis.kept), -1, dtype=np.int32)
        of_base[axis.position[here]] = of_query.position[here]
        if not np.array_equal(of_base[axis.position[here]], of_query.position[here]):
            return None
        maps.append(of_base)
    return maps


@dataclass(frozen=True, eq=False)
class RollUp:
    """From the cells of a base to a query's.

    `maps`: for each axis of the base, the query's position of each of its positions, −1 where it is filtered out.
    """

    base: Base
    query: QueryCells
    maps: tuple[Int32s, ...]

    @classmethod
    def of(cls, base: Base, query: QueryCells) -> "RollUp":
        """Return the roll-up; raises ValueError where the base does not roll up to the query."""
        maps = _maps(base.cells, query)
        if maps is None:
            raise ValueError("the base does not roll up to the query")
        return cls(base, query, tuple(maps))

    def cells(self, of_base: Int64s) -> Int64s:
        """Return the query's cell of each given cell of the base, −1 where it is filtered out."""
        cells = self.base.cells
        numbers = of_base if cells.listed is None else cells.listed[of_base]
        of_key = {
            axis.key: mapped[position]
            for axis, mapped, position in zip(cells.axes, self.maps, cells.positions_of(numbers), strict=True)
        }
        return self.query.numbers([of_key[axis.key] for axis in self.query.axes])

    def fold(self) -> Callable[[Int64s], Int64s]:
        """Return the function from sums of all cells of the base to those of all cells of the query."""
        return self._fold_grid if self.base.cells.listed is None else self._fold_listed()

    def _fold_grid(self, totals: Int64s) -> Int64s:
        base, query = self.base.cells, self.query
        grid, keys = totals.reshape(base.shape), [axis.key for axis in base.axes]
        widths = {axis.key: len(axis.kept) for axis in query.axes}
        order = np.argsort([widths.get(key, 1) / max(n, 1) for key, n in zip(keys, base.shape, strict=True)])
        for i in order.tolist():  # first the axes that shrink most
            grid = _fold_axis(grid, i, self.maps[i], widths.get(keys[i], 1))
        grid = grid.reshape([n for n, key in zip(grid.shape, keys, strict=True) if key in widths])
        left = [key for key in keys if key in widths]
        return np.ascontiguousarray(grid.transpose([left.index(axis.key) for axis in query.axes])).ravel()

    def _fold_listed(self) -> Callable[[Int64s], Int64s]:
        cells = self.cells(np.arange(self.base.size))
        inside = cells >= 0

        def fold(totals: Int64s) -> Int64s:
            sums = np.zeros(self.query.size, dtype=np.int64)
            np.add.at(sums, cells[inside], totals[inside])
            return sums

        return fold


def roll_up_totals(totals: Wide, base: Base, query: QueryCells) -> Int64s:
    """Return a query's totals in key order, held at ±(2⁶³ − 1), from those of all cells of a base that rolls up to it.

    They are exact until all is added up, and only then held: so a record moves a total by its influence at most
    (docs/mathematics.md, section 6). Raises ValueError where `totals` is not int64 of the base's size or the base does
    not roll up to the query.
    """
    if totals.low.dtype != np.int64 or totals.low.shape != (base.size,):
        raise ValueError(f"int64 totals of {base.size} cells are needed")
    roll_up = RollUp.of(base, query)
    if not query.size:
        return np.zeros(0, dtype=np.int64)
    fold = roll_up.fold()
    if totals.high is None and totals.largest_low * base.size <= LARGEST:
        return fold(totals.low)
    return totals.summed(fold).held()


def _fold_axis(grid: Int64s, axis: int, position: Int32s, width: int) -> Int64s:
    """Return the sums of an axis' entries that have one position, for all positions below `width`, each with some."""
    if len(position) == width and np.array_equal(position, np.arange(width)):
        return grid
    kept = np.flatnonzero(position >= 0)
    if (np.diff(position[kept]) < 0).any():  # codes of one coarse code need not stand together
        kept = kept[np.argsort(position[kept], kind="stable")]
    if not len(kept):
        return np.zeros((*grid.shape[:axis], 0, *grid.shape[axis + 1 :]), dtype=np.int64)
    starts = np.flatnonzero(np.diff(position[kept], prepend=-1))
    if len(kept) < grid.shape[axis] or (np.diff(kept) != 1).any():
        grid = grid.take(kept, axis=axis)
    return grid if len(starts) == grid.shape[axis] else np.add.reduceat(grid, starts, axis=axis)
