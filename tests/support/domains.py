"""Random domains, their cells as plain pairs of codes, and a query's totals by dictionaries over these."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.base.canonical import FrozenMap
from pipeline.plan.domain import Domain
from pipeline.plan.domain.cells import Base, QueryCells, RollUp, cheapest, read_only, roll_up_totals
from pipeline.plan.domain.keys import Dimension
from tests.support.wide import integers, wide
from udfs.numbers.arrays import Wide
from udfs.records.codes import NAICS_LEVELS, OTHER, roll_up

Cell = tuple[str, str]
Where = Mapping[str, Sequence[str]]
Totals = NDArray[np.int64]
Way = Callable[[Wide, Base, QueryCells], Totals]
LARGEST = 2**63 - 1

SECTORS = ("11", "21", "31", "32", "33", "42", "44", "45", "48", "49", "51")


def product_domain(
    naics: Iterable[str], county: Iterable[str], vintage: Mapping[str, int] | None = None, other: Container[str] = ()
) -> Domain:
    """The domain of all pairs of finest codes; each key in `other` has OTHER as one more code."""
    lists = {"naics": naics, "county": county}
    return Domain.of([Dimension.of(key, codes, other=key in other) for key, codes in lists.items()], vintage)


def listed_domain(cells: Iterable[Sequence[str]], vintage: Mapping[str, int] | None = None) -> Domain:
    """The domain of distinct cells, a code of naics and one of county each."""
    columns = list(zip(*cells, strict=True))
    dimensions = tuple(Dimension.of(key, codes) for key, codes in zip(("naics", "county"), columns, strict=True))
    numbers = [[x.index(x.level)[code] for code in codes] for x, codes in zip(dimensions, columns, strict=True)]
    order = np.lexsort(numbers[::-1])
    indices = tuple(read_only(np.array(number, dtype=np.int32)[order]) for number in numbers)
    return Domain(dimensions, indices, FrozenMap.of(vintage or {}))


@dataclass(frozen=True)
class World:
    """A domain, the same cells as plain pairs of codes, and a total for each."""

    domain: Domain
    totals: Mapping[Cell, int]

    @property
    def cells(self) -> list[Cell]:
        return list(self.totals)


def rolled(cell: Cell, level: str) -> str:
    return roll_up(cell[0] if level in NAICS_LEVELS else cell[1], level)


def meets(cell: Cell, where: Where) -> bool:
    return all(rolled(cell, level) in codes for level, codes in where.items())


def held(total: int) -> int:
    """The end of the range of totals where one lies beyond it."""
    return max(-LARGEST, min(LARGEST, total))


def expected(world: World, by: Sequence[str], where: Where) -> dict[tuple[str, ...], int]:
    sums: dict[tuple[str, ...], int] = {}
    for cell, total in world.totals.items():
        if meets(cell, where):
            key = tuple(rolled(cell, level) for level in by)
            sums[key] = sums.get(key, 0) + total
    return {key: held(total) for key, total in sorted(sums.items())}


def keys_of(query: QueryCells, start: int = 0, stop: int | None = None) -> list[tuple[str, ...]]:
    keys = query.keys(start, query.size if stop is None else stop)
    assert tuple(keys) == query.by
    return list(zip(*([codes[i] for i in places.tolist()] for codes, places in keys.values()), strict=True))


def base_totals(world: World, base: Base) -> Wide:
    """Sum the finest cells by the rule that `Base` states, one by one."""
    domain, totals = world.domain, [0] * base.size
    parts, listed = base.parts(), base.cells.listed
    for cell, total in world.totals.items():
        codes = [each.codes.index(code) for each, code in zip(domain.dimensions, cell, strict=True)]
        key = sum(int(parts[number][code]) for number, code in enumerate(codes) if number in parts)
        if key >= 0:
            totals[key if listed is None else listed.tolist().index(key)] += total
    return wide(totals)


def agree(world: World, by: Sequence[str], where: Where, roll_up: Way | None = None) -> None:
    """Assert that a query's keys and totals are those of the dictionary."""
    want = expected(world, by, where)
    query = world.domain.query_cells(by, where)
    assert query.size == len(want)
    assert keys_of(query) == list(want)
    coarse = [world.domain.query_cells((level,), {}) for level in ("naics2", "state")]
    bases = world.domain.bases_for([(each, "x") for each in (query, *coarse)])
    number = cheapest(bases, query, "x")
    assert number is not None
    base = bases[number]
    for way in (roll_up_totals, by_cells) if roll_up is None else (roll_up,):
        assert way(base_totals(world, base), base, query).tolist() == list(want.values())


def by_cells(totals: Wide, base: Base, query: QueryCells) -> Totals:
    """The same, by the query's cell of each cell of the base."""
    cells = RollUp.of(base, query).cells(np.arange(base.size))
    assert ((cells >= -1) & (cells < query.size)).all()
    sums = [0] * query.size
    for cell, total in zip(cells.tolist(), integers(totals), strict=True):
        if cell >= 0:
            sums[cell] += total
    return np.array([held(total) for total in sums], dtype=np.int64)


@st.composite
def worlds(draw: st.DrawFn, listed: bool | None = None) -> World:
    """Listed cells, or the product of two lists, each with `other` or without."""
    digits = draw(st.integers(2, 6))
    tails = st.text("0123", min_size=digits - 2, max_size=digits - 2)
    naics = draw(
        st.lists(
            st.builds(lambda s, t: roll_up(s + t, f"naics{digits}"), st.sampled_from(SECTORS), tails),
            min_size=1,
            max_size=8,
            unique=True,
        )
    )
    counties = draw(st.lists(st.from_regex(r"0[1-3]00[1-4]", fullmatch=True), min_size=1, max_size=6, unique=True))
    cells = list(product(naics, counties))
    if draw(st.booleans()) if listed is None else listed:
        cells = draw(st.lists(st.sampled_from(cells), min_size=1, unique=True))
        domain = listed_domain(cells)
    else:
        other = draw(st.lists(st.sampled_from(["naics", "county"]), unique=True))
        domain = product_domain(naics, counties, other=other)
        cells = list(product(naics + [OTHER] * ("naics" in other), counties + [OTHER] * ("county" in other)))
    largest = draw(st.sampled_from([2**40, 2**40, 2**64, 2**70]))  # a world of wide totals may need 128 bits
    values = draw(st.lists(st.integers(-largest, largest), min_size=len(cells), max_size=len(cells)))
    return World(domain, dict(zip(cells, values, strict=True)))


@st.composite
def filters(draw: st.DrawFn, world: World) -> Where:
    levels = [*world.domain.levels]
    where = {}
    for level in draw(st.lists(st.sampled_from(levels), max_size=3, unique=True)):
        codes = world.domain.dimension(level).level_codes(level)
        where[level] = draw(st.lists(st.sampled_from(codes), min_size=1, max_size=4, unique=True))
    return where


@st.composite
def queries(draw: st.DrawFn, world: World) -> tuple[tuple[str, ...], Where]:
    naics = draw(st.sampled_from([None, *world.domain.keys["naics"].levels]))
    county = draw(st.sampled_from([None, *world.domain.keys["county"].levels]))
    by = [level for level in (naics, county) if level is not None] or ["nation"]
    return tuple(draw(st.permutations(by))), draw(filters(world))


def example() -> World:
    cells = list(product(["311111", "321111", "441110"], ["01001", "01003", "02001"]))
    return World(
        product_domain(["311111", "321111", "441110"], ["01001", "01003", "02001"]),
        {cell: 10**i for i, cell in enumerate(cells)},
    )
