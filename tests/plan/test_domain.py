"""Domains, their cells and places against plain Python dictionaries over the finest cells."""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import PlanError
from pipeline.plan.domain import ALL_LEVELS
from tests.support.domains import (
    Where,
    World,
    agree,
    example,
    expected,
    filters,
    keys_of,
    listed_domain,
    meets,
    product_domain,
    queries,
    worlds,
)
from udfs.records.codes import COUNTY_LEVELS, NAICS_LEVELS, OTHER


@given(data=st.data(), world=worlds(listed=False))
def test_a_list_of_all_cells_is_a_product(data: st.DataObject, world: World) -> None:
    listed = listed_domain(world.cells)
    by, where = data.draw(queries(world))
    agree(replace(world, domain=listed), by, where)
    assert keys_of(listed.query_cells(by, where)) == keys_of(world.domain.query_cells(by, where))
    asked = [data.draw(filters(world)) for _ in range(3)]
    assert listed.query_sets(plain(asked)) == world.domain.query_sets(plain(asked))


@given(data=st.data(), world=worlds())
def test_keys_of_a_range_are_a_slice_of_all_keys(data: st.DataObject, world: World) -> None:
    query = world.domain.query_cells(*data.draw(queries(world)))
    start = data.draw(st.integers(0, query.size))
    stop = data.draw(st.integers(start, query.size))
    assert keys_of(query, start, stop) == keys_of(query)[start:stop]
    for wrong in ((-1, 0), (0, query.size + 1), (1, 0)):
        with pytest.raises(IndexError):
            query.keys(*wrong)


@given(data=st.data(), world=worlds())
def test_cell_counts(data: st.DataObject, world: World) -> None:
    by, where = data.draw(queries(world))
    assert world.domain.query_cells(by, where).size == len(expected(world, by, where))
    assert world.domain.meets(where) == any(meets(cell, where) for cell in world.cells)


def plain(asked: Sequence[Where]) -> list[tuple[tuple[str, ...], Where]]:
    """The filters as those of queries without levels."""
    return [((), where) for where in asked]


def meeting(world: World, asked: Sequence[Where], at: Mapping[str, str]) -> set[frozenset[int]]:
    here = [cell for cell in world.cells if meets(cell, {level: [code] for level, code in at.items()})]
    sets = {frozenset(i for i, where in enumerate(asked) if meets(cell, where)) for cell in here}
    return {a for a in sets if not any(a < b for b in sets)}


@given(data=st.data(), world=worlds())
def test_query_sets_are_the_largest_sets_of_queries_that_share_a_cell(data: st.DataObject, world: World) -> None:
    asked = data.draw(st.lists(filters(world), max_size=9))
    at = {level: codes[0] for level, codes in data.draw(filters(world)).items()}
    for reference in ({}, at):
        sets = world.domain.query_sets(plain(asked), reference)
        assert len(sets) == len(set(sets))
        assert set(sets) == meeting(world, asked, reference)


def test_filters_that_exclude_each_other_share_no_place() -> None:
    domain = product_domain(["311111", "441110"], ["01001", "02001"])
    asked = [{"naics2": ["31-33"]}, {"naics2": ["44-45"]}, {"state": ["01"]}, {}]
    assert domain.query_sets(plain(asked)) == (frozenset({0, 2, 3}), frozenset({1, 2, 3}))
    assert domain.query_sets(plain(asked), {"state": "02"}) == (frozenset({0, 3}), frozenset({1, 3}))
    assert domain.query_sets(plain(asked), {"naics2": "31-33", "naics3": "441"}) == ()
    assert domain.query_sets(plain([{"naics2": ["31-33"]}]), {"naics2": "44-45"}) == (frozenset(),)


def test_pairs_that_a_listed_domain_lacks_share_no_place() -> None:
    domain = listed_domain([("311111", "01001"), ("441110", "02001")])
    assert domain.query_sets(plain([{"naics2": ["31-33"]}, {"state": ["02"]}])) == (frozenset({0}), frozenset({1}))
    assert domain.query_sets(plain([{}]), {"naics2": "31-33", "state": "02"}) == ()


def test_levels_and_codes_of_a_domain() -> None:
    domain = product_domain(["3111", "3212", "4411"], ["02001", "01003"])
    assert domain.keys["naics"].level == "naics4"
    assert domain.keys["naics"].levels == NAICS_LEVELS[:3]
    assert domain.keys["county"].levels == COUNTY_LEVELS
    assert domain.keys["naics"].level_codes("naics2") == ("31-33", "44-45")
    assert domain.keys["naics"].parent("naics2").tolist() == [0, 0, 1]
    assert domain.keys["county"].codes == ("01003", "02001")
    assert product_domain(["31-33", "11"], ["01001"]).keys["naics"].levels == ("naics2",)


def test_other_is_one_more_code_at_every_level_below_the_nation() -> None:
    domain = product_domain(["3111", "4411"], ["02020", "01003"], other=["county", "naics"])
    assert domain.other == ("naics", "county")
    assert domain.keys["naics"].level_codes("naics2") == ("31-33", "44-45", "other")
    assert domain.keys["naics"].codes == ("3111", "4411", "other")
    assert domain.keys["county"].level_codes("state") == ("01", "02", "other")
    assert domain.keys["county"].level_codes("nation") == ("US",)
    assert domain.keys["naics"].listed == ("3111", "4411")
    assert domain.query_cells(("state", "naics2"), {}).size == 9
    assert keys_of(domain.query_cells(("state", "naics2"), {"state": ["other"]})) == [
        ("other", "31-33"),
        ("other", "44-45"),
        ("other", "other"),
    ]
    assert product_domain(["3111"], ["01003"], other=["naics"]).keys["county"].codes == ("01003",)


@pytest.mark.parametrize(
    ("by", "where", "message"),
    [
        (("naics5",), {}, "naics5 is finer than the domain, whose finest level is naics4"),
        (("naics2",), {"naics7": ["1"]}, f"naics7: unknown level; known levels: {', '.join(ALL_LEVELS)}"),
        (("naics2",), {"naics2": ["31"]}, 'the domain has no code "31" at level naics2; write 31-33'),
        (("naics2",), {"state": ["03"]}, 'the domain has no code "03" at level state'),
        (("naics2",), {"nation": ["other"]}, 'the domain has no code "other" at level nation'),
        (
            ("naics2",),
            {"state": ["other"]},
            'the domain has no code "other" at level state; declare it as domain: {…, other: [county]}',
        ),
        (("naics2",), {"naics3": ["othr"]}, 'the domain has no code "othr" at level naics3; write other'),
    ],
)
def test_levels_and_codes_that_a_domain_lacks(by: tuple[str, ...], where: Where, message: str) -> None:
    domain = product_domain(["3111", "3212", "4411"], ["02001", "01003"], other=["naics"])
    with pytest.raises(PlanError) as caught:
        domain.query_cells(by, where)
    assert str(caught.value) == message
    with pytest.raises(PlanError):
        domain.query_sets(plain([where]), {"county": "99999"})


@given(data=st.data(), world=worlds())
def test_the_digest_is_that_of_the_contents(data: st.DataObject, world: World) -> None:
    vintage = {"naics": 2022, "county": 2023}
    cells = data.draw(st.permutations(world.cells))
    years = FrozenMap.of(dict(reversed(vintage.items())))
    naics, county = ([code for code in codes if code != OTHER] for codes in zip(*cells, strict=True))
    product = product_domain(naics, county, years, world.domain.other)
    same = product if world.domain.cells is None else listed_domain(cells, years)
    assert same == replace(world.domain, vintage=FrozenMap.of(vintage))
    assert hash(same) == hash(replace(world.domain, vintage=FrozenMap.of(vintage)))
    assert same != world.domain
    assert same != replace(same, vintage=FrozenMap.of({**vintage, "naics": 2017}))
    for key in {"naics", "county"} - set(same.other) if world.domain.cells is None else ():
        assert same != product_domain(naics, county, years, (*same.other, key))
    if world.domain.cells is not None and len(cells) > 1:
        assert listed_domain(cells[1:], vintage) != same


def test_domains_bases_and_cells_can_be_pickled_and_not_changed() -> None:
    for domain in (example().domain, listed_domain([("311111", "01001")])):
        (base,) = domain.bases_for([(domain.query_cells(("naics6", "county"), {}), "x")])
        query = domain.query_cells(("naics2", "state"), {})
        assert pickle.loads(pickle.dumps(domain)) == domain
        assert pickle.loads(pickle.dumps(base)).size == base.size
        assert keys_of(pickle.loads(pickle.dumps(query))) == keys_of(query)
        for array in (query.axes[0].kept, query.axes[1].position, domain.keys["naics"].parent("naics2")):
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
