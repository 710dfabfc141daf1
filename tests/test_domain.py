"""Domains, query cells and roll-ups against plain Python dictionaries over the finest cells."""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.cells import Base, QueryCells, RollUp, cheapest, grouping, is_roll_up, roll_up_totals
from pipeline.domain import Domain
from pipeline.errors import PlanError
from pipeline.frozenmap import FrozenMap
from udfs.codes import COUNTY_LEVELS, NAICS_LEVELS, dimension_of, roll_up

Cell = tuple[str, str]
Where = Mapping[str, Sequence[str]]
Totals = NDArray[np.int64]
Way = Callable[[Totals, Base, QueryCells], Totals]

SECTORS = ("11", "21", "31", "32", "33", "42", "44", "45", "48", "49", "51")
FIXED = settings(derandomize=True, max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LARGEST = 2**63 - 1


@dataclass(frozen=True)
class World:
    """A domain, the same cells as plain pairs of codes, and a total for each."""

    domain: Domain
    totals: Mapping[Cell, int]

    @property
    def cells(self) -> list[Cell]:
        return list(self.totals)


def rolled(cell: Cell, level: str) -> str:
    return roll_up(cell[0] if dimension_of(level) == "naics" else cell[1], level)


def meets(cell: Cell, where: Where) -> bool:
    return all(rolled(cell, level) in codes for level, codes in where.items())


def expected(world: World, by: Sequence[str], where: Where) -> dict[tuple[str, ...], int]:
    sums: dict[tuple[str, ...], int] = {}
    for cell, total in world.totals.items():
        if meets(cell, where):
            key = tuple(rolled(cell, level) for level in by)
            sums[key] = sums.get(key, 0) + total
    return dict(sorted(sums.items()))


def keys_of(query: QueryCells, start: int = 0, stop: int | None = None) -> list[tuple[str, ...]]:
    keys = query.keys(start, query.size if stop is None else stop)
    assert tuple(keys) == query.by
    return list(zip(*([codes[i] for i in places.tolist()] for codes, places in keys.values()), strict=True))


def base_totals(world: World, base: Base) -> Totals:
    """Sum the finest cells by the rule that `Base` states, one by one."""
    domain, totals = world.domain, np.zeros(base.size, dtype=np.int64)
    for (naics, county), total in world.totals.items():
        i, j = domain.naics.codes.index(naics), domain.county.codes.index(county)
        key = int(base.n_of_naics[i]) * base.stride + int(base.c_of_county[j])
        number = key if base.listed is None else base.listed.tolist().index(key)
        totals[number] += total
    return totals


def agree(world: World, by: Sequence[str], where: Where, roll_up: Way | None = None) -> None:
    """Assert that a query's keys and totals are those of the dictionary."""
    want = expected(world, by, where)
    query = world.domain.query_cells(by, where)
    assert query.size == len(want)
    assert keys_of(query) == list(want)
    needed = grouping((*by, *where))
    bases = world.domain.base_for([needed, ("naics2", None), (None, "state")])
    base = bases[cheapest(bases, needed)]
    for way in (roll_up_totals, by_cells) if roll_up is None else (roll_up,):
        assert way(base_totals(world, base), base, query).tolist() == list(want.values())


def by_cells(totals: Totals, base: Base, query: QueryCells) -> Totals:
    """The same, by the query's cell of each cell of the base."""
    cells = RollUp.of(base, query).cells(np.arange(base.size))
    assert ((cells >= -1) & (cells < query.size)).all()
    sums = np.zeros(query.size, dtype=np.int64)
    np.add.at(sums, cells[cells >= 0], totals[cells >= 0])
    return sums


@st.composite
def worlds(draw: st.DrawFn, listed: bool | None = None) -> World:
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
        domain = Domain.listed(cells)
    else:
        domain = Domain.product(naics, counties)
    values = draw(st.lists(st.integers(-(2**40), 2**40), min_size=len(cells), max_size=len(cells)))
    return World(domain, dict(zip(cells, values, strict=True)))


@st.composite
def filters(draw: st.DrawFn, world: World) -> Where:
    levels = [*world.domain.naics.levels, *world.domain.county.levels]
    where = {}
    for level in draw(st.lists(st.sampled_from(levels), max_size=3, unique=True)):
        codes = world.domain.dimension(level).level_codes(level)
        where[level] = draw(st.lists(st.sampled_from(codes), min_size=1, max_size=4, unique=True))
    return where


@st.composite
def queries(draw: st.DrawFn, world: World) -> tuple[tuple[str, ...], Where]:
    naics = draw(st.sampled_from([None, *world.domain.naics.levels]))
    county = draw(st.sampled_from([None, *world.domain.county.levels]))
    by = [level for level in (naics, county) if level is not None] or ["nation"]
    return tuple(draw(st.permutations(by))), draw(filters(world))


@FIXED
@given(data=st.data(), world=worlds())
def test_cells_and_roll_ups_are_those_of_a_dictionary(data: st.DataObject, world: World) -> None:
    agree(world, *data.draw(queries(world)))


@FIXED
@given(data=st.data(), world=worlds(listed=False))
def test_a_list_of_all_cells_is_a_product(data: st.DataObject, world: World) -> None:
    listed = Domain.listed(world.cells)
    by, where = data.draw(queries(world))
    agree(replace(world, domain=listed), by, where)
    assert keys_of(listed.query_cells(by, where)) == keys_of(world.domain.query_cells(by, where))
    asked = [data.draw(filters(world)) for _ in range(3)]
    assert listed.places(asked) == world.domain.places(asked)


@FIXED
@given(data=st.data(), world=worlds())
def test_keys_of_a_range_are_a_slice_of_all_keys(data: st.DataObject, world: World) -> None:
    query = world.domain.query_cells(*data.draw(queries(world)))
    start = data.draw(st.integers(0, query.size))
    stop = data.draw(st.integers(start, query.size))
    assert keys_of(query, start, stop) == keys_of(query)[start:stop]
    for wrong in ((-1, 0), (0, query.size + 1), (1, 0)):
        with pytest.raises(IndexError):
            query.keys(*wrong)


@FIXED
@given(data=st.data(), world=worlds())
def test_cell_counts(data: st.DataObject, world: World) -> None:
    by, where = data.draw(queries(world))
    by = tuple(sorted(by, key=dimension_of, reverse=True))  # naics first
    assert world.domain.cell_count(grouping(by), where) == len(expected(world, by, where))
    assert world.domain.cell_count((None, None), where) == int(any(meets(cell, where) for cell in world.cells))
    assert world.domain.meets(where) == any(meets(cell, where) for cell in world.cells)


@FIXED
@given(data=st.data(), world=worlds())
def test_bases_serve_every_grouping_and_none_is_spare(data: st.DataObject, world: World) -> None:
    asked = [grouping((*by, *where)) for by, where in data.draw(st.lists(queries(world), min_size=1, max_size=5))]
    bases = world.domain.base_for(asked)
    for wanted in asked:
        able = [base.size for base in bases if is_roll_up(wanted, base.grouping)]
        assert bases[cheapest(bases, wanted)].size == min(able)
    if world.domain.cells is None:
        assert {base.grouping for base in bases} <= set(asked)
        assert not any(is_roll_up(a.grouping, b.grouping) for a in bases for b in bases if a is not b)
        for base in bases:
            assert base.size == world.domain.cell_count(base.grouping)
    else:
        (base,) = bases
        assert base.size == len(world.cells)


def meeting(world: World, asked: Sequence[Where], at: Mapping[str, str]) -> set[frozenset[int]]:
    here = [cell for cell in world.cells if meets(cell, {level: [code] for level, code in at.items()})]
    sets = {frozenset(i for i, where in enumerate(asked) if meets(cell, where)) for cell in here}
    return {a for a in sets if not any(a < b for b in sets)}


@FIXED
@given(data=st.data(), world=worlds())
def test_places_are_the_largest_sets_of_queries_that_share_a_cell(data: st.DataObject, world: World) -> None:
    asked = data.draw(st.lists(filters(world), max_size=9))
    at = {level: codes[0] for level, codes in data.draw(filters(world)).items()}
    for reference in ({}, at):
        places = world.domain.places(asked, reference)
        assert len(places) == len(set(places))
        assert set(places) == meeting(world, asked, reference)


def test_filters_that_exclude_each_other_share_no_place() -> None:
    domain = Domain.product(["311111", "441110"], ["01001", "02001"])
    asked = [{"naics2": ["31-33"]}, {"naics2": ["44-45"]}, {"state": ["01"]}, {}]
    assert domain.places(asked) == (frozenset({0, 2, 3}), frozenset({1, 2, 3}))
    assert domain.places(asked, {"state": "02"}) == (frozenset({0, 3}), frozenset({1, 3}))
    assert domain.places(asked, {"naics2": "31-33", "naics3": "441"}) == ()
    assert domain.places([{"naics2": ["31-33"]}], {"naics2": "44-45"}) == (frozenset(),)


def test_pairs_that_a_listed_domain_lacks_share_no_place() -> None:
    domain = Domain.listed([("311111", "01001"), ("441110", "02001")])
    assert domain.places([{"naics2": ["31-33"]}, {"state": ["02"]}]) == (frozenset({0}), frozenset({1}))
    assert domain.places([{}], {"naics2": "31-33", "state": "02"}) == ()


def example() -> World:
    cells = list(product(["311111", "321111", "441110"], ["01001", "01003", "02001"]))
    return World(
        Domain.product(["311111", "321111", "441110"], ["01001", "01003", "02001"]),
        {cell: 10**i for i, cell in enumerate(cells)},
    )


def off_by_one(totals: Totals, base: Base, query: QueryCells) -> Totals:
    """A broken twin: each base cell counts as the next one."""
    return roll_up_totals(np.roll(totals, 1), base, query)


def test_a_roll_up_that_is_off_by_one_is_caught() -> None:
    agree(example(), ("naics2", "state"), {})
    with pytest.raises(AssertionError):
        agree(example(), ("naics2", "state"), {}, off_by_one)


def plain_sums(totals: Totals, base: Base, query: QueryCells) -> Totals:
    """A broken twin: sums in 64 bits that wrap."""
    return np.array([totals.sum()])


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ([2**62, 2**62 - 1, 0], True),
        ([2**62, 2**62, 0], False),
        ([LARGEST, LARGEST, -LARGEST], True),
        ([LARGEST, LARGEST, -LARGEST - 1], True),
        ([-LARGEST, 0, 0], True),
        ([-LARGEST, -1, 0], False),
        ([-LARGEST, -LARGEST, LARGEST], True),
        ([-LARGEST, -LARGEST, -LARGEST], False),
        ([LARGEST, LARGEST, 2], False),  # wraps to 0
    ],
)
def test_totals_never_wrap(listed: bool, values: list[int], fits: bool) -> None:
    codes = ["111110", "111120", "111130"]
    domain = Domain.listed([(code, "01001") for code in codes]) if listed else Domain.product(codes, ["01001"])
    (base,) = domain.base_for([("naics6", "nation")])
    query = domain.query_cells(("nation",), {})
    totals = np.array(values, dtype=np.int64)
    if fits:
        assert roll_up_totals(totals, base, query).tolist() == [sum(values)]
    else:
        with pytest.raises(OverflowError):
            roll_up_totals(totals, base, query)
        assert plain_sums(totals, base, query).tolist() != [sum(values)] or sum(values) == -LARGEST - 1


def test_roll_ups_refuse_what_does_not_fit() -> None:
    domain = Domain.product(["311111", "321111"], ["01001"])
    (coarse,) = domain.base_for([("naics2", None)])
    fine = domain.query_cells(("naics3",), {})
    with pytest.raises(ValueError, match="coarser"):
        roll_up_totals(np.zeros(1, dtype=np.int64), coarse, fine)
    with pytest.raises(ValueError, match="coarser"):
        RollUp.of(coarse, fine)
    with pytest.raises(ValueError, match="int64"):
        roll_up_totals(np.zeros(2, dtype=np.int64), coarse, fine)
    with pytest.raises(ValueError, match="int64"):
        roll_up_totals(np.zeros(1), coarse, fine)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no base"):
        cheapest([coarse], ("naics3", None))


def test_where_levels_count_in_a_query_s_grouping() -> None:
    domain = example().domain
    assert grouping(("naics2", "naics4", "state")) == ("naics4", "state")
    assert grouping(("county",)) == (None, "county")
    agree(example(), ("naics2",), {"county": ["01001"], "naics3": ["311", "441"]})
    bases = domain.base_for([("naics6", None), (None, "county"), ("naics2", None), (None, "state")])
    assert [base.grouping for base in bases] == [(None, "county"), ("naics6", None)]
    assert [base.size for base in bases] == [3, 3]


def test_a_grouping_that_several_bases_serve_takes_the_smallest() -> None:
    domain = Domain.product(["311111", "321111"], ["01001", "01003", "02001"])
    bases = domain.base_for([("naics6", "state"), ("naics2", "county")])
    assert [base.size for base in bases] == [3, 4]
    assert cheapest(bases, ("naics2", "state")) == 0
    assert cheapest(bases[::-1], ("naics2", "state")) == 1
    assert cheapest(bases, ("naics3", None)) == 1


def test_levels_and_codes_of_a_domain() -> None:
    domain = Domain.product(["3111", "3212", "4411"], ["02001", "01003"])
    assert domain.naics.level == "naics4"
    assert domain.naics.levels == NAICS_LEVELS[:3]
    assert domain.county.levels == COUNTY_LEVELS
    assert domain.naics.level_codes("naics2") == ("31-33", "44-45")
    assert domain.naics.parent("naics2").tolist() == [0, 0, 1]
    assert domain.county.codes == ("01003", "02001")
    assert Domain.product(["31-33", "11"], ["01001"]).naics.levels == ("naics2",)


@pytest.mark.parametrize(
    ("by", "where", "message"),
    [
        (("naics5",), {}, "naics5 is finer than the domain, whose finest level is naics4"),
        (("naics2",), {"naics7": ["1"]}, 'unknown level "naics7"; nearest known level: naics2'),
        (("naics2",), {"naics2": ["31"]}, 'the domain has no code "31" at level naics2; write 31-33'),
        (("naics2",), {"state": ["03"]}, 'the domain has no code "03" at level state'),
    ],
)
def test_levels_and_codes_that_a_domain_lacks(by: tuple[str, ...], where: Where, message: str) -> None:
    domain = Domain.product(["3111", "3212", "4411"], ["02001", "01003"])
    with pytest.raises(PlanError) as caught:
        domain.query_cells(by, where)
    assert str(caught.value) == message
    with pytest.raises(PlanError):
        domain.places([where], {"county": "99999"})


@FIXED
@given(data=st.data(), world=worlds())
def test_the_digest_is_that_of_the_contents(data: st.DataObject, world: World) -> None:
    vintage = {"naics": 2022, "county": 2023}
    cells = data.draw(st.permutations(world.cells))
    years = FrozenMap.of(dict(reversed(vintage.items())))
    naics, county = zip(*cells, strict=True)
    same = Domain.product(naics, county, years) if world.domain.cells is None else Domain.listed(cells, years)
    assert same == replace(world.domain, vintage=FrozenMap.of(vintage))
    assert hash(same) == hash(replace(world.domain, vintage=FrozenMap.of(vintage)))
    assert same != world.domain
    assert same != replace(same, vintage=FrozenMap.of({**vintage, "naics": 2017}))
    if world.domain.cells is not None and len(cells) > 1:
        assert Domain.listed(cells[1:], vintage) != same


def test_domains_bases_and_cells_can_be_pickled_and_not_changed() -> None:
    for domain in (example().domain, Domain.listed([("311111", "01001")])):
        (base,) = domain.base_for([("naics6", "county")])
        query = domain.query_cells(("naics2", "state"), {})
        assert pickle.loads(pickle.dumps(domain)) == domain
        assert pickle.loads(pickle.dumps(base)).grouping == base.grouping
        assert keys_of(pickle.loads(pickle.dumps(query))) == keys_of(query)
        for array in (base.n_of_naics, base.c_of_county, query.naics.kept, domain.naics.parent("naics2")):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 1


def test_frozen_maps() -> None:
    one, other = FrozenMap.of({"a": 1, "b": 2}), FrozenMap.of({"b": 2, "a": 1})
    assert one == other == {"a": 1, "b": 2}
    assert hash(one) == hash(other)
    assert one != FrozenMap.of({"a": 1})
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(KeyError):
        one["c"]
    with pytest.raises(TypeError):
        one["c"] = 3  # type: ignore[index]
