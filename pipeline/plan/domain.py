"""Where queries meet: the sets of queries that one public cell can belong to.

A query is a pair of masks over the domain's finest naics and county codes; a cell belongs to it if both masks hold.
"""

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline import canonical
from pipeline.canonical import FrozenMap
from pipeline.errors import SAME_WORD, PlanError, in_a_line, likeness, nearest
from pipeline.plan.cells import Axis, Base, Dimension, Grouping, Int32s, Int64s, QueryCells, grouping, is_roll_up
from udfs.records.codes import LEVELS, OTHER, SECTOR_RANGES, dimension_of

Masks = NDArray[np.bool_]
Cells = tuple[NDArray[np.int32], NDArray[np.int32]]
Pattern = int  # a set of queries, one bit each


def meetings(naics: Masks, county: Masks, cells: Cells | None) -> tuple[frozenset[int], ...]:
    """Return the maximal sets of queries that share a cell, in a fixed order; none if there is no cell.

    naics: (queries, naics codes), county: (queries, county codes); cells: places of the codes of each cell, or None
    for all pairs. A cell that no query has counts as the empty set.
    """
    naics_patterns, naics_of = _patterns(naics)
    county_patterns, county_of = _patterns(county)
    if cells is None:
        # Where A ⊆ A', A ∩ B ⊆ A' ∩ B: the maximal sets come from the maximal patterns of each key.
        met = {a & b for a in _maximal(naics_patterns) for b in _maximal(county_patterns)}
    else:
        pairs = np.zeros((len(naics_patterns), len(county_patterns)), dtype=bool)
        pairs[naics_of[cells[0]], county_of[cells[1]]] = True
        met = {naics_patterns[i] & county_patterns[j] for i, j in np.argwhere(pairs).tolist()}
    return tuple(sorted((_members(pattern) for pattern in _maximal(met)), key=sorted))


def _patterns(masks: Masks) -> tuple[list[Pattern], NDArray[np.intp]]:
    """Return the distinct columns of `masks` as patterns, and which of them each column is."""
    packed = np.packbits(masks, axis=0, bitorder="little").T
    number: dict[Pattern, int] = {}
    columns = [number.setdefault(int.from_bytes(c.tobytes(), "little"), len(number)) for c in packed]
    return list(number), np.array(columns, dtype=np.intp)


def _maximal(patterns: Iterable[Pattern]) -> list[Pattern]:
    kept: list[Pattern] = []
    for _, of_one_size in groupby(sorted(set(patterns), key=int.bit_count, reverse=True), int.bit_count):
        kept += [pattern for pattern in of_one_size if all(pattern & ~larger for larger in kept)]
    return kept


def _members(pattern: Pattern) -> frozenset[int]:
    return frozenset(i for i in range(pattern.bit_length()) if pattern >> i & 1)


# The public domain: the finest cells that a release covers, fixed by the plan and never by the data.


Where = Mapping[str, Sequence[str]]  # level → codes; levels are joined by "and", codes by "or"
Ints = TypeVar("Ints", Int32s, Int64s)


@dataclass(frozen=True, eq=False)
class Domain:
    """The finest public cells: all pairs of the two dimensions' codes, or those that `cells` lists.

    `cells`: places of naics and county codes, sorted by both, distinct, every code used; equal contents have equal
    `digest` and compare equal, wherever and in what order they were written.
    """

    naics: Dimension
    county: Dimension
    cells: tuple[Int32s, Int32s] | None = None
    vintage: Mapping[str, int] = field(default_factory=FrozenMap)

    @classmethod
    def product(
        cls,
        naics: Iterable[str],
        county: Iterable[str],
        vintage: Mapping[str, int] | None = None,
        other: Container[str] = (),
    ) -> "Domain":
        """Return the domain of all pairs of the given well-formed finest codes, at least one of each key.

        Each key in `other` has OTHER as one more code, to which all well-formed codes belong that are not given.
        """
        industries = Dimension.of("naics", naics).with_other(declared="naics" in other)
        counties = Dimension.of("county", county).with_other(declared="county" in other)
        return cls(industries, counties, None, FrozenMap.of(vintage or {}))

    @classmethod
    def listed(cls, cells: Iterable[tuple[str, str]], vintage: Mapping[str, int] | None = None) -> "Domain":
        """Return the domain of the given cells (naics code, county code), at least one, well-formed, distinct."""
        pairs = sorted(cells)
        naics, county = (Dimension.of(key, codes) for key, codes in zip(LEVELS, zip(*pairs, strict=True), strict=True))
        i = np.array([naics.places(naics.level)[code] for code, _ in pairs], dtype=np.int32)
        j = np.array([county.places(county.level)[code] for _, code in pairs], dtype=np.int32)
        return cls(naics, county, (_fixed(i), _fixed(j)), FrozenMap.of(vintage or {}))

    @cached_property
    def digest(self) -> str:
        """Return "sha256:…" of codes, cells and vintage."""
        listing = hashlib.sha256()
        for places in self.cells or ():
            listing.update(places.astype("<i4").tobytes())
        return canonical.digest(
            {
                "naics": self.naics.codes,
                "county": self.county.codes,
                "cells": None if self.cells is None else listing.hexdigest(),
                "vintage": dict(self.vintage),
            }
        )

    @property
    def other(self) -> tuple[str, ...]:
        """The keys in which codes that are not listed have the public code OTHER."""
        return tuple(each.key for each in (self.naics, self.county) if each.has_other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def dimension(self, level: str) -> Dimension:
        """Return the dimension of a level; raises PlanError on an unknown one and on one finer than the domain."""
        try:
            dimension = self.naics if dimension_of(level) == "naics" else self.county
        except ValueError:
            known = nearest(level, chain.from_iterable(LEVELS.values()))
            raise PlanError(f'unknown level "{level}"; nearest known level: {known}') from None
        if level not in dimension.levels:
            raise PlanError(f"{level} is finer than the domain, whose finest level is {dimension.level}")
        return dimension

    def require_code(self, level: str, code: str) -> None:
        """Return if the domain has `code` at `level`; otherwise raises PlanError."""
        if code not in self.dimension(level).places(level):
            hint = self._hint(level, code)
            raise PlanError(f'the domain has no code "{in_a_line(code)}" at level {level}{hint}')

    def _hint(self, level: str, code: str) -> str:
        """Return what may have been meant by a code that the domain lacks."""
        if level == "naics2" and code in SECTOR_RANGES:
            return f"; write {SECTOR_RANGES[code]}"
        if level == "nation" or self.cells is not None or likeness(code.lower(), OTHER) < SAME_WORD:
            return ""
        dimension = self.dimension(level)
        return f"; write {OTHER}" if dimension.has_other else f"; declare it as domain: {{…, other: [{dimension.key}]}}"

    def meets(self, where: Where) -> bool:
        """Return whether any cell meets a filter; raises PlanError on levels or codes the domain does not have."""
        naics, county = self._mask(self.naics, where), self._mask(self.county, where)
        if self.cells is None:
            return bool(naics.any() and county.any())
        return bool((naics[self.cells[0]] & county[self.cells[1]]).any())

    def codes_met(self, level: str, where: Where) -> tuple[str, ...]:
        """Return the sorted codes at `level` of the cells that meet a filter; raises PlanError as `meets` does."""
        cells = self.query_cells((level,), where)
        codes, places = cells.keys(0, cells.size)[level]
        return tuple(codes[place] for place in places)

    def only_cell(self, by: Sequence[str], where: Where, at: Mapping[str, str]) -> int | None:
        """Return the number, in key order, of the one cell of a query in which a cell with the codes `at` can lie.

        None where it can lie in several of them, or in none. Raises PlanError as `query_cells` does.
        """
        here = {level: (code,) for level, code in at.items()}
        query = self.query_cells(by, where)
        naics, county = (
            np.where(self._mask(dimension, here), axis.position, np.int32(-1))
            for dimension, axis in ((self.naics, query.naics), (self.county, query.county))
        )
        if self.cells is not None:
            naics, county = naics[self.cells[0]], county[self.cells[1]]
            both = (naics >= 0) & (county >= 0)
            naics, county = naics[both], county[both]
        found = [np.unique(axis[axis >= 0]) for axis in (naics, county)]
        if [len(positions) for positions in found] != [1, 1]:
            return None
        number = query.product_numbers(*found)[0]
        return int(number if query.listed is None else np.searchsorted(query.listed, number))

    def cell_count(self, wanted: Grouping, where: Where | None = None) -> int:
        """Return the number of public cells at a grouping under a filter."""
        levels = tuple(level for level in wanted if level is not None)
        return self.query_cells(levels or ("nation",), where or {}).size

    def query_cells(self, by: Sequence[str], where: Where) -> QueryCells:
        """Return the cells of a query: distinct projections of the finest cells that meet `where`, in key order.

        `by`: at least one level, at most one of a key. Raises PlanError on levels or codes the domain does not have.
        """
        for level in by:
            self.dimension(level)
        levels = grouping(by)
        naics = _axis(self.naics, levels[0], self._mask(self.naics, where))
        county = _axis(self.county, levels[1], self._mask(self.county, where))
        query = QueryCells(tuple(by), naics, county)
        if self.cells is None:
            return query
        i, j = naics.position[self.cells[0]], county.position[self.cells[1]]
        inside = (i >= 0) & (j >= 0)
        numbers = np.unique(query.product_numbers(i[inside], j[inside]))
        return QueryCells(tuple(by), naics, county, _fixed(numbers))

    def base_for(self, groupings: Iterable[Grouping]) -> tuple[Base, ...]:
        """Return the bases that records must be summed by, in a fixed order, so that each grouping is a roll-up of one.

        A product domain has one for each maximal grouping, a listed domain its own cells. A query's grouping is that
        of its `by` and `where` levels together.
        """
        if self.cells is not None:
            return (self._listed_base(),)
        wanted = set(groupings)
        finest = [g for g in wanted if not any(g != other and is_roll_up(g, other) for other in wanted)]
        return tuple(self._grid_base(g) for g in sorted(finest, key=lambda g: (g[0] or "", g[1] or "")))

    def places(self, filters: Sequence[Where], at: Mapping[str, str] | None = None) -> tuple[frozenset[int], ...]:
        """Return the maximal sets of queries (places in `filters`) that a single cell belongs to.

        `at` (level → code) restricts to the cells with these codes; without any such cell the result is empty.
        Raises PlanError on levels or codes the domain does not have.
        """
        here = {level: (code,) for level, code in (at or {}).items()}
        kept = (self._mask(self.naics, here), self._mask(self.county, here))
        naics, county = (self._masks(dimension, filters) for dimension in (self.naics, self.county))
        if self.cells is None:
            return meetings(naics[:, kept[0]], county[:, kept[1]], None)
        inside = kept[0][self.cells[0]] & kept[1][self.cells[1]]
        return meetings(naics, county, (self.cells[0][inside], self.cells[1][inside]))

    def _masks(self, dimension: Dimension, filters: Sequence[Where]) -> Masks:
        masks = [self._mask(dimension, where) for where in filters]
        return np.array(masks, dtype=bool).reshape(len(filters), len(dimension.codes))

    def _mask(self, dimension: Dimension, where: Where) -> NDArray[np.bool_]:
        """Return which finest codes of `dimension` meet the filter's levels of that dimension."""
        mask = np.ones(len(dimension.codes), dtype=bool)
        for level, codes in where.items():
            if self.dimension(level) is not dimension:
                continue
            for code in codes:
                self.require_code(level, code)
            chosen = np.zeros(len(dimension.level_codes(level)), dtype=bool)
            chosen[[dimension.places(level)[code] for code in codes]] = True
            mask &= chosen[dimension.parent(level)]
        return mask

    def _grid_base(self, wanted: Grouping) -> Base:
        (rows, n_rows), (columns, n_columns) = (
            _place_at(dimension, level) for dimension, level in zip((self.naics, self.county), wanted, strict=True)
        )
        return Base(wanted, n_rows * n_columns, rows, columns, n_columns)

    def _listed_base(self) -> Base:
        assert self.cells is not None
        (rows, _), (columns, stride) = (_place_at(d, d.level) for d in (self.naics, self.county))
        keys: Int64s = self.cells[0].astype(np.int64) * stride + self.cells[1]
        return Base((self.naics.level, self.county.level), len(keys), rows, columns, stride, _fixed(keys))


def _place_at(dimension: Dimension, level: str | None) -> tuple[Int32s, int]:
    """Return each finest code's place at `level` (None: all in one), and the number of places."""
    if level is None:
        return _fixed(np.zeros(len(dimension.codes), dtype=np.int32)), 1
    return dimension.parent(level), len(dimension.level_codes(level))


def _axis(dimension: Dimension, level: str | None, mask: NDArray[np.bool_]) -> Axis:
    place, count = _place_at(dimension, level)
    kept = np.flatnonzero(np.bincount(place[mask], minlength=count)).astype(np.int32)
    position_of = np.full(count, -1, dtype=np.int32)
    position_of[kept] = np.arange(len(kept), dtype=np.int32)
    position = np.where(mask, position_of[place], np.int32(-1))
    return Axis(() if level is None else dimension.level_codes(level), _fixed(kept), _fixed(position))


def _fixed(array: Ints) -> Ints:
    array.flags.writeable = False
    return array
