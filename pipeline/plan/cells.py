"""The public cells of one query in key order, and how sums by the cells of a base roll up to them.

A *grouping* is a pair (naics level or None, county level or None); None: the key is summed over. Codes sort like the
codes they roll up to, so those of one coarse code stand together in every sorted list; `roll_up_totals` builds on that.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from udfs.numbers.wide import LARGEST, Wide
from udfs.records.codes import COUNTY_LEVELS, LEVELS, NAICS_LEVELS, dimension_of

Grouping = tuple[str | None, str | None]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

Ints = TypeVar("Ints", Int32s, Int64s)


def read_only(array: Ints) -> Ints:
    """Return the array, which nothing can change from now on."""
    array.flags.writeable = False
    return array


def grouping(levels: Sequence[str]) -> Grouping:
    """Return the finest of `levels` in each key, None where there is none; raises ValueError on an unknown level."""
    naics, county = ([level for level in levels if dimension_of(level) == key] for key in LEVELS)
    return max(naics, key=NAICS_LEVELS.index, default=None), max(county, key=COUNTY_LEVELS.index, default=None)


def is_roll_up(coarse: Grouping, fine: Grouping) -> bool:
    """Return whether every cell of grouping `coarse` is a union of cells of grouping `fine`."""
    depths = (
        ([None, *levels].index(c), [None, *levels].index(f))
        for levels, c, f in zip(LEVELS.values(), coarse, fine, strict=True)
    )
    return all(c <= f for c, f in depths)


@dataclass(frozen=True, eq=False)
class Base:
    """The cells at which records are summed.

    A record whose finest codes have the indices (i, j) in the domain's lists has the key rows[i]·stride + columns[j].
    Its cell is the key itself, or its index in `listed` (sorted keys); a key that is not there lies outside the domain.
    """

    grouping: Grouping
    size: int
    rows: Int32s
    columns: Int32s
    stride: int
    listed: Int64s | None = None


def cheapest(bases: Sequence[Base], wanted: Grouping) -> int:
    """Return the number of the smallest of `bases` that rolls up to `wanted`; raises ValueError if none does."""
    able = [i for i, base in enumerate(bases) if is_roll_up(wanted, base.grouping)]
    if not able:
        raise ValueError("no base is as fine as the wanted grouping")
    return min(able, key=lambda i: bases[i].size)


@dataclass(frozen=True, eq=False)
class Axis:
    """One key of a query's cells: `codes` of its level, and which of them the query's filter keeps.

    `kept`: ascending indices of `codes`. `position`: the index in `kept` for each of the domain's finest codes,
    -1 where filtered out. For a key that is summed over `codes` is empty and `kept` counts 1, or 0 if nothing is left.
    """

    codes: tuple[str, ...]
    kept: Int32s
    position: Int32s


@dataclass(frozen=True, eq=False)
class QueryCells:
    """The public cells of a query, numbered in key order: lexicographic by the codes of the levels `by`.

    A cell's *product number* counts the pairs of kept codes, those of by[0] outermost. All of them are cells, or,
    where `listed` is given, the product numbers in it (sorted).
    """

    by: tuple[str, ...]
    naics: Axis
    county: Axis
    listed: Int64s | None = None

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(self.naics.kept) * len(self.county.kept) if self.listed is None else len(self.listed)

    @property
    def county_first(self) -> bool:
        """Whether the county key is outermost."""
        return dimension_of(self.by[0]) == "county"

    def product_numbers(self, naics: Int32s, county: Int32s) -> Int64s:
        """Return the product numbers of pairs of positions, none of them -1."""
        outer, inner = (county, naics) if self.county_first else (naics, county)
        width = len(self.naics.kept if self.county_first else self.county.kept)
        return outer.astype(np.int64) * width + inner

    def numbers(self, naics: Int32s, county: Int32s) -> Int64s:
        """Return the cells of pairs of positions that have one."""
        numbers = self.product_numbers(naics, county)
        return numbers if self.listed is None else np.searchsorted(self.listed, numbers)

    def keys(self, start: int, stop: int) -> dict[str, tuple[tuple[str, ...], Int32s]]:
        """Return the keys of cells start…stop − 1 by level, in the order of `by`: (codes, indices of codes).

        Memory is that of the range. Raises IndexError unless 0 ≤ start ≤ stop ≤ size.
        """
        if not 0 <= start <= stop <= self.size:
            raise IndexError(f"cells {start} to {stop} of {self.size}")
        numbers = np.arange(start, stop) if self.listed is None else self.listed[start:stop]
        inner = self.naics if self.county_first else self.county
        outer_position, inner_position = np.divmod(numbers, max(len(inner.kept), 1))
        keys = {}
        for level in self.by:
            axis = self.naics if dimension_of(level) == "naics" else self.county
            keys[level] = axis.codes, axis.kept[inner_position if axis is inner else outer_position]
        return keys


def roll_up_totals(totals: Wide, base: Base, query: QueryCells) -> Int64s:
    """Return a query's totals in key order, held at ±(2⁶³ − 1), from those of all cells of a base that rolls up to it.

    They are exact until all is added up, and only then held: so a record moves a total by its influence at most
    (docs/mathematics.md, section 6). Raises ValueError where `totals` is not int64 of the base's size or the base is
    coarser than the query.
    """
    if totals.low.dtype != np.int64 or totals.low.shape != (base.size,):
        raise ValueError(f"int64 totals of {base.size} cells are needed")
    if base.listed is None or query.listed is None:
        fold = _fold_grid(base, query)
    else:
        fold = _fold_listed(base, base.listed, query, query.listed)
    if not query.size:
        return np.zeros(0, dtype=np.int64)
    if totals.high is None and max(int(totals.low.max()), -int(totals.low.min())) * base.size <= LARGEST:
        return fold(totals.low)
    return totals.summed(fold).held()


@dataclass(frozen=True, eq=False)
class RollUp:
    """From single cells of a base to the query's: what `roll_up_totals` does to all of them, for workers with some.

    `naics`, `county`: the query's position of each of the base's codes, -1 where filtered out.
    """

    base: Base
    query: QueryCells
    naics: Int32s
    county: Int32s

    @classmethod
    def of(cls, base: Base, query: QueryCells) -> "RollUp":
        """Return the roll-up; raises ValueError where the base is coarser than the query."""
        naics = _of_base(base.rows, int(base.rows.max()) + 1, query.naics.position)
        return cls(base, query, naics, _of_base(base.columns, base.stride, query.county.position))

    def cells(self, of_base: Int64s) -> Int64s:
        """Return the query's cell of each given cell of the base, -1 where it is filtered out."""
        keys = of_base if self.base.listed is None else self.base.listed[of_base]
        i, j = np.divmod(keys, self.base.stride)
        naics, county = self.naics[i], self.county[j]
        inside = (naics >= 0) & (county >= 0)
        cells = np.full(len(of_base), -1, dtype=np.int64)
        cells[inside] = self.query.numbers(naics[inside], county[inside])
        return cells


def _fold_grid(base: Base, query: QueryCells) -> Callable[[Int64s], Int64s]:
    """Return the sum over the cells of a base that is a grid of naics rows and county columns."""
    shape = (base.size // base.stride, base.stride)
    rows = _of_base(base.rows, shape[0], query.naics.position)
    columns = _of_base(base.columns, shape[1], query.county.position)

    def fold(totals: Int64s) -> Int64s:
        grid = _fold_rows(_fold_rows(totals.reshape(shape), rows).T, columns)  # county rows, naics columns
        return (grid if query.county_first else grid.T).ravel()

    return fold


def _fold_listed(base: Base, keys: Int64s, query: QueryCells, numbers: Int64s) -> Callable[[Int64s], Int64s]:
    """Return the sum over a base whose cells have the listed keys, for a query of listed product numbers."""
    i, j = np.divmod(keys, base.stride)
    naics, county = query.naics.position[i], query.county.position[j]
    inside = (naics >= 0) & (county >= 0)
    cells = np.searchsorted(numbers, query.product_numbers(naics[inside], county[inside]))

    def fold(totals: Int64s) -> Int64s:
        sums = np.zeros(query.size, dtype=np.int64)
        np.add.at(sums, cells, totals[inside])
        return sums

    return fold


def _of_base(of_finest: Int32s, size: int, position: Int32s) -> Int32s:
    """Return the query's position of each of a base's codes, given both for the finest codes."""
    of_base = np.full(size, -1, dtype=np.int32)
    of_base[of_finest] = position
    if not np.array_equal(of_base[of_finest], position):
        raise ValueError("the base is coarser than the query")
    return of_base


def _fold_rows(grid: Int64s, position: Int32s) -> Int64s:
    """Add up the rows of each position ≥ 0; rows of one position stand together."""
    kept = np.flatnonzero(position >= 0)
    if not len(kept):
        return np.zeros((0, grid.shape[1]), dtype=np.int64)
    starts = np.flatnonzero(np.diff(position[kept], prepend=-1))
    if len(kept) < len(grid):
        grid = grid[kept]
    return grid if len(starts) == len(grid) else np.add.reduceat(grid, starts, axis=0)
