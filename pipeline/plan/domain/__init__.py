"""The public domain: the codes of every key that a release covers, fixed by the plan and never by the data."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pipeline.base import canonical
from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import ALIKE, PlanError, hint, in_a_line, likeness
from pipeline.plan.domain.cells import Axis, Base, Int32s, Needed, QueryCells, bases_of, read_only
from pipeline.plan.domain.keys import Dimension, Masks, Where, built_in_levels
from udfs.records.codes import LEVELS, OTHER, SECTOR_RANGES

ALL_LEVELS = tuple(level for levels in LEVELS.values() for level in levels)  # of the keys naics and county
At = Mapping[str, str | Sequence[str]]  # level → the code, or the codes, one of which a cell has
Asked = tuple[Sequence[str], Where]  # a query's levels, and the filter that its cells meet
Columns = tuple[list[int], NDArray[np.intp]]  # distinct sets of queries, as bits, and which of them each code meets
MOST_KNOWN = 1024  # filters, and what follows from them, that a domain remembers
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Domain:
    """The public codes of all keys, and, where cells are listed, which combinations of finest codes are cells.

    `dimensions`: naics and county first, then the others by name. `cells`: indices of each key's codes, sorted,
    distinct, every code used; None: all combinations. Equal contents have equal digests and compare equal, wherever
    and in what order they were written.
    """

    dimensions: tuple[Dimension, ...]
    cells: tuple[Int32s, ...] | None = None
    vintage: Mapping[str, int] = field(default_factory=FrozenMap)

    @classmethod
    def of(cls, dimensions: Iterable[Dimension], vintage: Mapping[str, int] | None = None) -> "Domain":
        """Return the domain of all combinations of the codes of at least one key."""
        return cls(tuple(sorted(dimensions, key=lambda each: rank(each.key))), None, FrozenMap.of(vintage or {}))

    @cached_property
    def digest(self) -> str:
        """The digest "sha256:…" of codes, cells and vintage."""
        listing = hashlib.sha256()
        for indices in self.cells or ():
            listing.update(indices.astype("<i4").tobytes())
        facts = {"cells": None if self.cells is None else listing.hexdigest(), "vintage": dict(self.vintage)}
        if self._is_naics_and_county and not any(each.further or each.optional for each in self.dimensions):
            return canonical.digest(facts | {each.key: each.codes for each in self.dimensions})
        return canonical.digest(facts | {"keys": [each.to_json() for each in self.dimensions]})

    def to_json(self) -> dict[str, Any]:
        """Return keys, vintage and, where cells are listed, the gaps between their numbers as JSON.

        The number of a cell counts the combinations of finest codes, the first key outermost.
        """
        listed = None if self.cells is None else self._finest().listed
        gaps = None if listed is None else np.diff(listed, prepend=np.int64(0)).tolist()
        return {"keys": [each.to_json() for each in self.dimensions], "gaps": gaps, "vintage": dict(self.vintage)}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any], steps: Mapping[str, Fraction]) -> "Domain":
        """Return the domain of which `to_json` told; `steps` are those of the measures."""
        dimensions = tuple(Dimension.from_json(each, steps) for each in facts["keys"])
        domain = cls(dimensions, None, FrozenMap.of(facts["vintage"]))
        if facts["gaps"] is None:
            return domain
        positions = domain._finest().positions_of(np.cumsum(np.array(facts["gaps"], dtype=np.int64)))
        return replace(domain, cells=tuple(read_only(each.astype(np.int32)) for each in positions))

    def _finest(self) -> QueryCells:
        return self.query_cells([each.level for each in self.dimensions], {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Domain) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def keys(self) -> Mapping[str, Dimension]:
        """The dimension of each key."""
        return {each.key: each for each in self.dimensions}

    @cached_property
    def levels(self) -> Mapping[str, int]:
        """The number of the key of each level."""
        return {level: number for number, each in enumerate(self.dimensions) for level in each.levels}

    @cached_property
    def nameable(self) -> tuple[str, ...]:
        """The levels that its keys may have, finer ones than its own among them."""
        built_in = [level for key in self.keys for level in built_in_levels(key)]
        return tuple(dict.fromkeys([*built_in, *self.levels]))

    def is_conventional(self, level: str) -> bool:
        """Return whether a level is one of NAICS, or of counties: a key of the plan's own may have the same name."""
        dimension = self.dimension(level)
        return dimension.key in LEVELS and level in dimension.built_in

    def nested_name(self, level: str) -> str:
        """Return the name that tells what a level is nested in; one of a plan's own key is no level of counties."""
        return f"own {level}" if level in ALL_LEVELS and not self.is_conventional(level) else level

    @property
    def uses_all_keys(self) -> bool:
        """Whether a record whose code is in no list is in no cell of any query.

        So it is where cells are listed, or the keys are naics and county alone, which each record must have. Else it is
        left out of the queries that use the key of this code, and of those alone.
        """
        return self.cells is not None or (self._is_naics_and_county and not any(x.optional for x in self.dimensions))

    @property
    def _is_naics_and_county(self) -> bool:
        return self.keys.keys() == LEVELS.keys()

    @property
    def other(self) -> tuple[str, ...]:
        """The keys in which codes that are not listed have the public code OTHER."""
        return tuple(each.key for each in self.dimensions if each.has_other)

    def level_rule(self, level: str) -> str | None:
        """Return the rule that `level` breaks, in words: it must be known, and the domain as fine; None for none."""
        if level in self.levels:
            return None
        for key, levels in LEVELS.items():
            if level in levels and key in self.keys:
                return f"{level} is finer than the domain, whose finest level is {self.keys[key].level}"
        return f"unknown level{hint(level, self.nameable, 'level')}"

    def code_rule(self, level: str, code: str) -> str | None:
        """Return the rule that `code` breaks, in words: the domain must have it at this level; None for none."""
        dimension = self._dimension(level)
        if code in dimension.index(level):
            return None
        advice = ""
        if level == "naics2" and code in SECTOR_RANGES:
            advice = f"; write {SECTOR_RANGES[code]}"
        elif dimension.classes is not None:
            advice = f"; its classes are {', '.join(dimension.codes)}"
        elif level != "nation" and self.cells is None and likeness(code, OTHER) >= ALIKE:
            declare = f"declare it as domain: {{…, other: [{dimension.key}]}}"
            advice = f"; write {OTHER}" if dimension.has_other else f"; {declare}"
        return f'the domain has no code "{in_a_line(code)}" at level {level}{advice}'

    def dimension(self, level: str) -> Dimension:
        """Return the dimension of a level; raises PlanError on an unknown one and on one finer than the domain."""
        if rule := self.level_rule(level):
            raise PlanError(rule if level in ALL_LEVELS else f"{in_a_line(level)}: {rule}")
        return self._dimension(level)

    def require_code(self, level: str, code: str) -> None:
        """Raise PlanError unless the domain has the level, and the code at this level."""
        self.dimension(level)
        if rule := self.code_rule(level, code):
            raise PlanError(rule)

    def meets(self, where: Where) -> bool:
        """Return whether any cell meets a filter; raises PlanError on levels or codes the domain does not have."""
        masks = self._masks(((), where))
        if self.cells is None:
            return all(mask.any() for mask in masks)
        return bool(self._listed(masks).any())

    def codes_met(self, level: str, where: Where) -> tuple[str, ...]:
        """Return the codes at `level` of the cells that meet a filter; raises PlanError as `meets` does."""
        cells = self.query_cells((level,), where)
        codes, indices = cells.keys(0, cells.size)[level]
        return tuple(codes[i] for i in indices)

    def positions(self, by: Sequence[str], where: Where, at: At) -> tuple[Int32s, ...]:
        """Return the positions on all axes of a query's cells in which a cell with the codes `at` can lie, sorted.

        Such a cell is a combination of them, though not every combination need be one. Raises PlanError as
        `query_cells` does.
        """
        axes = self._axes((by, where))
        masks = self._masks(((), _at(at)))
        if self.cells is None:
            positions = [np.where(masks[axis.key], axis.position, np.int32(-1)) for axis in axes]
            possible = all(mask.any() for mask in masks) and all((each >= 0).any() for each in positions)
        else:
            positions = [axis.position[self.cells[axis.key]] for axis in axes]
            met = self._listed(masks) & np.logical_and.reduce([each >= 0 for each in positions])
            positions, possible = [each[met] for each in positions], bool(met.any())
        return tuple(np.unique(each[(each >= 0) & possible]) for each in positions)

    def finest(self, at: At) -> tuple[Int32s, ...]:
        """Return, of each key, the finest codes that cells with the codes `at` can have; PlanError as `query_cells`."""
        return tuple(np.flatnonzero(mask).astype(np.int32) for mask in self._masks(((), _at(at))))

    def cells_at(self, at: At) -> NDArray[np.int64]:
        """Return the numbers of the listed cells with the codes `at`; raises PlanError as `query_cells` does."""
        return np.flatnonzero(self._listed(self._masks(((), _at(at)))))

    def query_cells(self, by: Sequence[str], where: Where) -> QueryCells:
        """Return the cells of a query: distinct projections of the finest cells that meet `where`, in key order.

        `by`: at least one level, at most one of a key. Raises PlanError on levels or codes the domain does not have.
        """
        axes = self._axes((by, where))
        query = QueryCells(tuple(by), axes)
        if self.cells is None:
            return query
        positions = [axis.position[self.cells[axis.key]] for axis in axes]
        inside = np.logical_and.reduce([position >= 0 for position in positions])
        numbers = query.product_numbers([position[inside] for position in positions])
        return QueryCells(tuple(by), axes, read_only(np.unique(numbers)))

    def bases_for(self, needed: Sequence[Needed]) -> tuple[Base, ...]:
        """Return the bases that records must be summed by, so that each query rolls up from one of them.

        A domain of lists has the cells of some of the queries, a listed domain its own cells.
        """
        if self.cells is None:
            return bases_of(needed)
        return (Base(self._finest(), tuple(sorted({addend for _, addend in needed}))),)

    def query_sets(self, asked: Sequence[Asked], at: At | None = None) -> tuple[frozenset[int], ...]:
        """Return the maximal sets of queries that a single cell belongs to, each query by its number in `asked`.

        Args:
            asked: the levels of each query, and what its cells meet.
            at: restricts to the cells with these codes. Without any such cell the result is empty.

        Raises:
            PlanError: on levels or codes the domain does not have.
        """
        kept = self._masks(((), _at(at or {})))
        columns = self._once(("sets", *map(_words, asked)), lambda: self._columns(asked))
        if self.cells is None:
            some = [(sets, np.unique(number[here])) for (sets, number), here in zip(columns, kept, strict=True)]
            return _query_sets([[sets[i] for i in numbers.tolist()] for sets, numbers in some], None)
        inside = self._listed(kept)
        cells = [number[of[inside]] for (_, number), of in zip(columns, self.cells, strict=True)]
        return _query_sets([sets for sets, _ in columns], cells)

    def _columns(self, asked: Sequence[Asked]) -> list[Columns]:
        """Return, of each key, the distinct sets of queries that meet one of its codes, and which each code has."""
        of_queries = [self._masks(each) for each in asked]
        return [
            _columns(np.array([each[i] for each in of_queries], dtype=bool).reshape(len(asked), len(of.codes)))
            for i, of in enumerate(self.dimensions)
        ]

    @cached_property
    def _known(self) -> dict[Any, Any]:
        return {}

    def _once(self, words: Any, compute: Callable[[], T]) -> T:
        """Return what `compute` does, of the last MOST_KNOWN things that were asked in other words."""
        if words not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[words] = compute()
        known: T = self._known[words]
        return known

    def _dimension(self, level: str) -> Dimension:
        return self.dimensions[self.levels[level]]

    def _masks(self, asked: Asked) -> list[Masks]:
        """Return which codes of each key meet a query's filter, and have a code at its levels: not to be changed."""
        return self._once(("masks", *_words(asked)), lambda: self._made_masks(asked))

    def _made_masks(self, asked: Asked) -> list[Masks]:
        by, where = asked
        for level, codes in where.items():
            self.dimension(level)
            for code in codes:
                self.require_code(level, code)
        masks = [each.mask(where) for each in self.dimensions]
        for level in by:
            masks[self.levels[level]] &= self._dimension(level).parent(level) >= 0
        return masks

    def _listed(self, masks: Sequence[Masks]) -> Masks:
        assert self.cells is not None
        met: Masks = np.logical_and.reduce([mask[indices] for mask, indices in zip(masks, self.cells, strict=True)])
        return met

    def _axes(self, asked: Asked) -> tuple[Axis, ...]:
        """Return the axes of a query's cells: its levels', then those of keys that it uses and sums over."""
        return self._once(("axes", *_words(asked)), lambda: self._made_axes(asked))

    def _made_axes(self, asked: Asked) -> tuple[Axis, ...]:
        by, where = asked
        for level in by:
            self.dimension(level)
        masks = self._masks(asked)
        levels: dict[int, str | None] = {self.levels[level]: level for level in by}
        summed = range(len(self.dimensions)) if self.uses_all_keys else sorted({self.levels[each] for each in where})
        levels |= {number: None for number in summed if number not in levels}
        return tuple(self.dimensions[number].axis(number, level, masks[number]) for number, level in levels.items())


def rank(key: str) -> tuple[int, str]:
    """Return the order of keys: naics and county first, then the others by name."""
    built_in = list(LEVELS)
    return (built_in.index(key), "") if key in built_in else (len(built_in), key)


def _at(codes: At) -> Where:
    return {level: (code,) if isinstance(code, str) else code for level, code in codes.items()}


# Which queries share a cell. A query is a mask over the codes of each key; a cell belongs to it if all masks hold.
# A set of queries is an integer with one bit each.


def _query_sets(sets: Sequence[list[int]], cells: Sequence[NDArray[np.intp]] | None) -> tuple[frozenset[int], ...]:
    """Return the maximal sets of queries that share a cell, in a fixed order; none if there is no cell.

    Args:
        sets: of each key, the distinct sets that its codes meet.
        cells: their indices, of each key; None for all combinations. A cell of no query counts as the empty set.
    """
    if cells is None:
        # Where A ⊆ A', A ∩ B ⊆ A' ∩ B: the maximal sets come from the maximal ones of each key.
        met = set(_maximal(sets[0]))
        for of_key in sets[1:]:
            met = set(_maximal(a & b for b in _maximal(of_key) for a in met))
    else:
        combinations = np.unique(np.array(cells), axis=1)
        met = set()
        for combination in combinations.T.tolist():
            common = sets[0][combination[0]]
            for of_key, i in zip(sets[1:], combination[1:], strict=True):
                common &= of_key[i]
            met.add(common)
    members = (frozenset(i for i in range(bits.bit_length()) if bits >> i & 1) for bits in _maximal(met))
    return tuple(sorted(members, key=sorted))


def _words(asked: Asked) -> tuple[Any, ...]:
    by, where = asked
    return tuple(by), tuple((level, tuple(codes)) for level, codes in where.items())


def _columns(masks: Masks) -> Columns:
    """Return the distinct columns of `masks` as sets, and which of them each column is."""
    packed = np.ascontiguousarray(np.packbits(masks, axis=0, bitorder="little").T)
    number: dict[bytes, int] = {}
    columns = [number.setdefault(column.tobytes(), len(number)) for column in packed]
    return [int.from_bytes(column, "little") for column in number], np.array(columns, dtype=np.intp)


def _maximal(sets: Iterable[int]) -> list[int]:
    kept: list[int] = []
    for _, of_one_size in groupby(sorted(set(sets), key=int.bit_count, reverse=True), int.bit_count):
        kept += [each for each in of_one_size if all(each & ~larger for larger in kept)]
    return kept
