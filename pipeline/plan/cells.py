"""The public cells of one query in key order, and how sums by the cells of a base roll up to them.

A *grouping* is a pair (naics level or None, county level or None); None: the key is summed over. Codes sort like the
codes they roll up to, so those of one coarse code stand together in every sorted list; `roll_up_totals` builds on that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import in_a_line
from udfs.records.codes import COUNTY_LEVELS, LEVELS, NAICS_LEVELS, OTHER, SECTOR_RANGES, dimension_of, is_code, roll_up

Grouping = tuple[str | None, str | None]
Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

LARGEST = 2**63 - 1  # of a total's magnitude
LIMB = 32  # digits of the low limb, for sums whose plain 64-bit form might overflow
LOW = (1 << LIMB) - 1


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

    A record whose finest codes have the places (i, j) in the domain's lists has the key
    n_of_naics[i]·stride + c_of_county[j]. Its cell is the key itself, or, where `listed` is given (sorted keys), the
    key's place in that list; a key that is not there lies outside the domain.
    """

    grouping: Grouping
    size: int
    n_of_naics: Int32s
    c_of_county: Int32s
    stride: int
    listed: Int64s | None = None


def cheapest(bases: Sequence[Base], wanted: Grouping) -> int:
    """Return the place in `bases` of the smallest base that rolls up to `wanted`; raises ValueError if none does."""
    able = [i for i, base in enumerate(bases) if is_roll_up(wanted, base.grouping)]
    if not able:
        raise ValueError("no base is as fine as the wanted grouping")
    return min(able, key=lambda i: bases[i].size)


@dataclass(frozen=True, eq=False)
class Axis:
    """One key of a query's cells: `codes` of its level, and which of them the query's filter keeps.

    `kept`: ascending places in `codes`. `position`: the place in `kept` for each of the domain's finest codes,
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
        """Return the keys of cells start…stop − 1 by level, in the order of `by`: (codes, places in codes).

        Memory is that of the range. Raises IndexError unless 0 ≤ start ≤ stop ≤ size.
        """
        if not 0 <= start <= stop <= self.size:
            raise IndexError(f"cells {start} to {stop} of {self.size}")
        numbers = np.arange(start, stop) if self.listed is None else self.listed[start:stop]
        inner = self.naics if self.county_first else self.county
        place = dict(zip(("outer", "inner"), np.divmod(numbers, max(len(inner.kept), 1)), strict=True))
        keys = {}
        for level in self.by:
            axis = self.naics if dimension_of(level) == "naics" else self.county
            keys[level] = (axis.codes, axis.kept[place["inner" if axis is inner else "outer"]])
        return keys


def roll_up_totals(totals: Int64s, base: Base, query: QueryCells) -> Int64s:
    """Return the query's exact totals in key order, from the totals of all cells of a base that rolls up to it.

    Raises OverflowError where a total of the query exceeds 2⁶³ − 1 in magnitude (never wraps), ValueError where
    `totals` is not int64 of the base's size or the base is coarser than the query.
    """
    if totals.dtype != np.int64 or totals.shape != (base.size,):
        raise ValueError(f"int64 totals of {base.size} cells are needed")
    if base.listed is None or query.listed is None:
        fold = _fold_grid(base, query)
    else:
        fold = _fold_listed(base, base.listed, query, query.listed)
    if not query.size:
        return np.zeros(0, dtype=np.int64)
    if max(int(totals.max()), -int(totals.min())) * base.size <= LARGEST:
        return fold(totals)
    # below 2³¹ cells neither limb's sum can leave 63 bits
    return joined(fold(totals >> LIMB), fold(totals & LOW))


def joined(high: Int64s, low: Int64s) -> Int64s:
    """Return high·2³² + low, for low ≥ 0; raises OverflowError where one exceeds 2⁶³ − 1 in magnitude."""
    high, low = high + (low >> LIMB), low & LOW
    end = 1 << (63 - LIMB)
    if ((high < -end) | (high >= end) | ((high == -end) & (low == 0))).any():
        raise OverflowError("a total of the query lies beyond 63 bits")
    return (high << LIMB) + low


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
        naics = _of_base(base.n_of_naics, int(base.n_of_naics.max()) + 1, query.naics.position)
        return cls(base, query, naics, _of_base(base.c_of_county, base.stride, query.county.position))

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
    rows = _of_base(base.n_of_naics, shape[0], query.naics.position)
    columns = _of_base(base.c_of_county, shape[1], query.county.position)

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


# The public codes of one key, and what they roll up to.


def level_of(key: str, code: str) -> str:
    """Return the level of a well-formed finest code of `key` ("naics" or "county"); raises ValueError with the rule."""
    candidates = LEVELS["naics"] if key == "naics" else ("county",)
    for level in candidates:
        if is_code(code, level):
            return level
    if code == OTHER:
        raise ValueError(f'"{OTHER}" stands in no list; declare it in the plan, as domain: {{…, other: [{key}]}}')
    if key == "naics" and code in SECTOR_RANGES:
        raise ValueError(f'"{code}" is a part of a sector; write {SECTOR_RANGES[code]}')
    digits = "2 to 6 digits (sectors as 31-33) are" if key == "naics" else "5 digits are"
    raise ValueError(f'malformed code "{in_a_line(code)}"; {digits} needed')


@dataclass(frozen=True, eq=False)
class Dimension:
    """The public codes of one key, "naics" or "county": `codes` are sorted, distinct and all of `level`.

    Last of them may be OTHER, which stands for all well-formed codes that are not listed, and sorts after every digit.
    """

    key: str
    codes: tuple[str, ...]
    level: str

    @classmethod
    def of(cls, key: str, codes: Iterable[str]) -> "Dimension":
        """Return the dimension of at least one well-formed code, all of one level."""
        ordered = tuple(sorted(set(codes)))
        return cls(key, ordered, level_of(key, ordered[0]))

    def with_other(self, *, declared: bool) -> "Dimension":
        """Return this dimension of listed codes, with OTHER as one more where the plan declares it."""
        return Dimension(self.key, (*self.codes, OTHER), self.level) if declared else self

    @property
    def has_other(self) -> bool:
        """Whether codes that are not listed have a public code."""
        return self.codes[-1] == OTHER

    @property
    def listed(self) -> tuple[str, ...]:
        """The codes but OTHER: those that microdata may have, or roll up to."""
        return self.codes[:-1] if self.has_other else self.codes

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels a query may use, coarse to fine."""
        return LEVELS[self.key][: LEVELS[self.key].index(self.level) + 1]

    def level_codes(self, level: str) -> tuple[str, ...]:
        """Return the sorted codes at `level`, one of `levels`."""
        return self._rolled[level].codes

    def places(self, level: str) -> Mapping[str, int]:
        """Return the place of each code in level_codes(level)."""
        return self._rolled[level].places

    def parent(self, level: str) -> Int32s:
        """Return for each finest code the place of its roll-up in level_codes(level); non-decreasing."""
        return self._rolled[level].parent

    @cached_property
    def _rolled(self) -> dict[str, "_Rolled"]:
        return {level: _Rolled.of(self.codes, level) for level in self.levels}


@dataclass(frozen=True, eq=False)
class _Rolled:
    """The roll-up of finest codes to one level."""

    codes: tuple[str, ...]
    places: Mapping[str, int]
    parent: Int32s

    @classmethod
    def of(cls, finest: Iterable[str], level: str) -> "_Rolled":
        coarse = [roll_up(code, level) for code in finest]
        codes = tuple(sorted(set(coarse)))
        places = {code: i for i, code in enumerate(codes)}
        parent = np.array([places[code] for code in coarse], dtype=np.int32)
        parent.flags.writeable = False
        return cls(codes, places, parent)
