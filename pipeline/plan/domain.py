"""The public domain: the finest cells that a release covers, fixed by the plan and never by the data."""

import hashlib
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from pipeline import canonical
from pipeline.canonical import FrozenMap
from pipeline.errors import PlanError, in_a_line
from pipeline.names import ALIKE, hint, likeness
from pipeline.plan.cells import Axis, Base, Grouping, Int32s, Int64s, QueryCells, grouping, is_roll_up, read_only
from udfs.records.codes import LEVELS, OTHER, SECTOR_RANGES, dimension_of, is_code, roll_up

ALL_LEVELS = tuple(level for levels in LEVELS.values() for level in levels)

Where = Mapping[str, Sequence[str]]  # level → codes; levels are joined by "and", codes by "or"
Masks = NDArray[np.bool_]


def level_of(key: str, code: str) -> str:
    """Return the level of a well-formed finest code of `key` ("naics" or "county"); raises ValueError with the rule."""
    for level in LEVELS["naics"] if key == "naics" else ("county",):
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
    def of(cls, key: str, codes: Iterable[str], *, other: bool = False) -> "Dimension":
        """Return the dimension of at least one well-formed code, all of one level; with `other`, OTHER as one more."""
        ordered = tuple(sorted(set(codes)))
        return cls(key, (*ordered, OTHER) if other else ordered, level_of(key, ordered[0]))

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
        """The levels that a query may use, coarse to fine."""
        return LEVELS[self.key][: LEVELS[self.key].index(self.level) + 1]

    def level_codes(self, level: str) -> tuple[str, ...]:
        """Return the sorted codes at `level`, one of `levels`."""
        return tuple(self._rolled_up[level][0])

    def index(self, level: str) -> Mapping[str, int]:
        """Return the index of each code in level_codes(level)."""
        return self._rolled_up[level][0]

    def parent(self, level: str | None) -> Int32s:
        """Return the index in level_codes(level) of each finest code's roll-up: non-decreasing; all 0 for None."""
        return read_only(np.zeros(len(self.codes), dtype=np.int32)) if level is None else self._rolled_up[level][1]

    def mask(self, where: Where) -> Masks:
        """Return which finest codes meet the levels of this key in a filter of known levels and codes."""
        mask = np.ones(len(self.codes), dtype=bool)
        for level in where.keys() & set(self.levels):
            index = self.index(level)
            chosen = np.zeros(len(index), dtype=bool)
            chosen[[index[code] for code in where[level]]] = True
            mask &= chosen[self.parent(level)]
        return mask

    @cached_property
    def _rolled_up(self) -> dict[str, tuple[dict[str, int], Int32s]]:
        """Return, by level, the index of its codes and each finest code's parent."""
        rolled_up = {}
        for level in self.levels:
            coarse = [roll_up(code, level) for code in self.codes]
            index = {code: i for i, code in enumerate(sorted(set(coarse)))}
            rolled_up[level] = index, read_only(np.array([index[code] for code in coarse], dtype=np.int32))
        return rolled_up


@dataclass(frozen=True, eq=False)
class Domain:
    """The finest public cells: all pairs of the two dimensions' codes, or those that `cells` lists.

    `cells`: indices of naics and county codes, sorted by both, distinct, every code used. Equal contents have equal
    digests and compare equal, wherever and in what order they were written.
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
        industries = Dimension.of("naics", naics, other="naics" in other)
        counties = Dimension.of("county", county, other="county" in other)
        return cls(industries, counties, None, FrozenMap.of(vintage or {}))

    @classmethod
    def listed(cls, cells: Iterable[tuple[str, str]], vintage: Mapping[str, int] | None = None) -> "Domain":
        """Return the domain of the given cells (naics code, county code), at least one, well-formed, distinct."""
        columns = tuple(zip(*sorted(cells), strict=True))
        naics, county = (Dimension.of(key, codes) for key, codes in zip(LEVELS, columns, strict=True))
        i, j = (
            read_only(np.array([dimension.index(dimension.level)[code] for code in codes], dtype=np.int32))
            for dimension, codes in zip((naics, county), columns, strict=True)
        )
        return cls(naics, county, (i, j), FrozenMap.of(vintage or {}))

    @cached_property
    def digest(self) -> str:
        """The digest "sha256:…" of codes, cells and vintage."""
        listing = hashlib.sha256()
        for indices in self.cells or ():
            listing.update(indices.astype("<i4").tobytes())
        return canonical.digest(
            {
                "naics": self.naics.codes,
                "county": self.county.codes,
                "cells": None if self.cells is None else listing.hexdigest(),
                "vintage": dict(self.vintage),
            }
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def other(self) -> tuple[str, ...]:
        """The keys in which codes that are not listed have the public code OTHER."""
        return tuple(each.key for each in (self.naics, self.county) if each.has_other)

    def level_rule(self, level: str) -> str | None:
        """Return the rule that `level` breaks, in words: it must be known, and the domain as fine; None for none."""
        if level not in ALL_LEVELS:
            return unknown_level(level)
        dimension = self._dimension(level)
        if level not in dimension.levels:
            return f"{level} is finer than the domain, whose finest level is {dimension.level}"
        return None

    def code_rule(self, level: str, code: str) -> str | None:
        """Return the rule that `code` breaks, in words: the domain must have it at this level; None for none."""
        dimension = self._dimension(level)
        if code in dimension.index(level):
            return None
        advice = ""
        if level == "naics2" and code in SECTOR_RANGES:
            advice = f"; write {SECTOR_RANGES[code]}"
        elif level != "nation" and self.cells is None and likeness(code, OTHER) >= ALIKE:
            declare = f"declare it as domain: {{…, other: [{dimension.key}]}}"
            advice = f"; write {OTHER}" if dimension.has_other else f"; {declare}"
        return f'the domain has no code "{in_a_line(code)}" at level {level}{advice}'

    def dimension(self, level: str) -> Dimension:
        """Return the dimension of a level; raises PlanError on an unknown one and on one finer than the domain."""
        if level not in ALL_LEVELS:
            raise PlanError(f"{in_a_line(level)}: {unknown_level(level)}")
        if rule := self.level_rule(level):
            raise PlanError(rule)
        return self._dimension(level)

    def require_code(self, level: str, code: str) -> None:
        """Raise PlanError unless the domain has the level, and the code at this level."""
        self.dimension(level)
        if rule := self.code_rule(level, code):
            raise PlanError(rule)

    def meets(self, where: Where) -> bool:
        """Return whether any cell meets a filter; raises PlanError on levels or codes the domain does not have."""
        naics, county = self._masks(where)
        if self.cells is None:
            return bool(naics.any() and county.any())
        return bool((naics[self.cells[0]] & county[self.cells[1]]).any())

    def codes_met(self, level: str, where: Where) -> tuple[str, ...]:
        """Return the sorted codes at `level` of the cells that meet a filter; raises PlanError as `meets` does."""
        cells = self.query_cells((level,), where)
        codes, indices = cells.keys(0, cells.size)[level]
        return tuple(codes[i] for i in indices)

    def only_cell(self, by: Sequence[str], where: Where, at: Mapping[str, str]) -> int | None:
        """Return the number, in key order, of the one cell of a query in which a cell with the codes `at` can lie.

        None where it can lie in several of them, or in none. Raises PlanError as `query_cells` does.
        """
        met = self.positions(by, where, at)
        return int(self.query_cells(by, where).numbers(*met)[0]) if len(met[0]) == len(met[1]) == 1 else None

    def positions(self, by: Sequence[str], where: Where, at: Mapping[str, str]) -> tuple[Int32s, Int32s]:
        """Return the positions on both axes of a query's cells in which a cell with the codes `at` can lie, sorted.

        Such a cell is a pair of them, though not every pair need be one. Raises PlanError as `query_cells` does.
        """
        query = self.query_cells(by, where)
        naics, county = (
            np.where(mask, axis.position, np.int32(-1))
            for mask, axis in zip(self._masks(_at(at)), (query.naics, query.county), strict=True)
        )
        if self.cells is not None:
            naics, county = naics[self.cells[0]], county[self.cells[1]]
            both = (naics >= 0) & (county >= 0)
            naics, county = naics[both], county[both]
        if not ((naics >= 0).any() and (county >= 0).any()):
            naics = county = np.zeros(0, dtype=np.int32)
        return np.unique(naics[naics >= 0]), np.unique(county[county >= 0])

    def query_cells(self, by: Sequence[str], where: Where) -> QueryCells:
        """Return the cells of a query: distinct projections of the finest cells that meet `where`, in key order.

        `by`: at least one level, at most one of a key. Raises PlanError on levels or codes the domain does not have.
        """
        for level in by:
            self.dimension(level)
        naics, county = (
            _axis(dimension, level, mask)
            for dimension, level, mask in zip((self.naics, self.county), grouping(by), self._masks(where), strict=True)
        )
        query = QueryCells(tuple(by), naics, county)
        if self.cells is None:
            return query
        i, j = naics.position[self.cells[0]], county.position[self.cells[1]]
        inside = (i >= 0) & (j >= 0)
        return QueryCells(tuple(by), naics, county, read_only(np.unique(query.product_numbers(i[inside], j[inside]))))

    def bases_for(self, groupings: Iterable[Grouping]) -> tuple[Base, ...]:
        """Return the bases that records must be summed by, in a fixed order, so that each grouping is a roll-up of one.

        A product domain has one for each maximal grouping, a listed domain its own cells. A query's grouping is that
        of its `by` and `where` levels together.
        """
        if self.cells is not None:
            rows, columns = (self.naics.parent(self.naics.level), self.county.parent(self.county.level))
            stride = len(self.county.codes)
            keys: Int64s = self.cells[0].astype(np.int64) * stride + self.cells[1]
            return (Base((self.naics.level, self.county.level), len(keys), rows, columns, stride, read_only(keys)),)
        wanted = set(groupings)
        finest = [each for each in wanted if not any(each != other and is_roll_up(each, other) for other in wanted)]
        bases = []
        for naics, county in sorted(finest, key=lambda each: (each[0] or "", each[1] or "")):
            rows, columns = self.naics.parent(naics), self.county.parent(county)
            stride = int(columns.max()) + 1
            bases.append(Base((naics, county), (int(rows.max()) + 1) * stride, rows, columns, stride))
        return tuple(bases)

    def query_sets(self, filters: Sequence[Where], at: Mapping[str, str] | None = None) -> tuple[frozenset[int], ...]:
        """Return the maximal sets of queries that a single cell belongs to, each query by its number in `filters`.

        Args:
            filters: what the cells of each query meet.
            at: level → code; restricts to the cells with these codes. Without any such cell the result is empty.

        Raises:
            PlanError: on levels or codes the domain does not have.
        """
        kept = self._masks(_at(at or {}))
        masks = [self._masks(where) for where in filters]
        naics, county = (
            np.array([pair[i] for pair in masks], dtype=bool).reshape(len(filters), len(kept[i])) for i in (0, 1)
        )
        if self.cells is None:
            return _query_sets(naics[:, kept[0]], county[:, kept[1]], None)
        inside = kept[0][self.cells[0]] & kept[1][self.cells[1]]
        return _query_sets(naics, county, (self.cells[0][inside], self.cells[1][inside]))

    def _dimension(self, level: str) -> Dimension:
        return self.naics if dimension_of(level) == "naics" else self.county

    def _masks(self, where: Where) -> tuple[Masks, Masks]:
        for level, codes in where.items():
            self.dimension(level)
            for code in codes:
                self.require_code(level, code)
        return self.naics.mask(where), self.county.mask(where)


def unknown_level(level: str) -> str:
    """Return the rule that an unknown level breaks, in words."""
    return f"unknown level{hint(level, ALL_LEVELS, 'level')}"


def _at(codes: Mapping[str, str]) -> Where:
    return {level: (code,) for level, code in codes.items()}


def _axis(dimension: Dimension, level: str | None, mask: Masks) -> Axis:
    parent, count = dimension.parent(level), 1 if level is None else len(dimension.index(level))
    kept = np.flatnonzero(np.bincount(parent[mask], minlength=count)).astype(np.int32)
    position_of = np.full(count, -1, dtype=np.int32)
    position_of[kept] = np.arange(len(kept), dtype=np.int32)
    position = np.where(mask, position_of[parent], np.int32(-1))
    return Axis(() if level is None else dimension.level_codes(level), read_only(kept), read_only(position))


# Which queries share a cell. A query is a pair of masks over the finest naics and county codes; a cell belongs to it
# if both masks hold. A set of queries is an integer with one bit each.


def _query_sets(naics: Masks, county: Masks, cells: tuple[Int32s, Int32s] | None) -> tuple[frozenset[int], ...]:
    """Return the maximal sets of queries that share a cell, in a fixed order; none if there is no cell.

    Args:
        naics: masks of shape (queries, naics codes).
        county: masks of shape (queries, county codes).
        cells: indices of the codes of each cell, or None for all pairs. A cell of no query counts as the empty set.
    """
    naics_sets, naics_of = _columns(naics)
    county_sets, county_of = _columns(county)
    if cells is None:
        # Where A ⊆ A', A ∩ B ⊆ A' ∩ B: the maximal sets come from the maximal ones of each key.
        met = {a & b for a in _maximal(naics_sets) for b in _maximal(county_sets)}
    else:
        pairs = np.zeros((len(naics_sets), len(county_sets)), dtype=bool)
        pairs[naics_of[cells[0]], county_of[cells[1]]] = True
        met = {naics_sets[i] & county_sets[j] for i, j in np.argwhere(pairs).tolist()}
    members = (frozenset(i for i in range(bits.bit_length()) if bits >> i & 1) for bits in _maximal(met))
    return tuple(sorted(members, key=sorted))


def _columns(masks: Masks) -> tuple[list[int], NDArray[np.intp]]:
    """Return the distinct columns of `masks` as sets, and which of them each column is."""
    packed = np.packbits(masks, axis=0, bitorder="little").T
    number: dict[int, int] = {}
    columns = [number.setdefault(int.from_bytes(c.tobytes(), "little"), len(number)) for c in packed]
    return list(number), np.array(columns, dtype=np.intp)


def _maximal(sets: Iterable[int]) -> list[int]:
    kept: list[int] = []
    for _, of_one_size in groupby(sorted(set(sets), key=int.bit_count, reverse=True), int.bit_count):
        kept += [each for each in of_one_size if all(each & ~larger for larger in kept)]
    return kept
