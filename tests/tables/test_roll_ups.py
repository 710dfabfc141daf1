"""Totals of a query from those of finer cells: against dictionaries, never wrapped, and held in range at the end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.cells import Base, QueryCells, RollUp, cheapest, grouping, is_roll_up, roll_up_totals
from pipeline.plan.domain import Domain
from tests.support.domains import FIXED, Totals, World, agree, example, held, queries, worlds
from tests.support.wide import wide
from udfs.numbers.wide import Wide

LARGEST = 2**63 - 1


@FIXED
@given(data=st.data(), world=worlds())
def test_cells_and_roll_ups_are_those_of_a_dictionary(data: st.DataObject, world: World) -> None:
    agree(world, *data.draw(queries(world)))


@FIXED
@given(data=st.data(), world=worlds())
def test_bases_serve_every_grouping_and_none_is_spare(data: st.DataObject, world: World) -> None:
    asked = [grouping((*by, *where)) for by, where in data.draw(st.lists(queries(world), min_size=1, max_size=5))]
    bases = world.domain.bases_for(asked)
    for wanted in asked:
        able = [base.size for base in bases if is_roll_up(wanted, base.grouping)]
        assert bases[cheapest(bases, wanted)].size == min(able)
    if world.domain.cells is None:
        assert {base.grouping for base in bases} <= set(asked)
        assert not any(is_roll_up(a.grouping, b.grouping) for a in bases for b in bases if a is not b)
        for base in bases:
            assert (
                base.size
                == world.domain.query_cells([level for level in base.grouping if level] or ["nation"], {}).size
            )
    else:
        (base,) = bases
        assert base.size == len(world.cells)


def off_by_one(totals: Wide, base: Base, query: QueryCells) -> Totals:
    """A broken twin: each base cell counts as the next one."""
    return roll_up_totals(Wide(np.roll(totals.low, 1)), base, query)


def held_too_early(totals: Wide, base: Base, query: QueryCells) -> Totals:
    """A broken twin: totals of the base's cells are held in range before they are rolled up."""
    return roll_up_totals(Wide(totals.held()), base, query)


def test_broken_roll_ups_are_caught() -> None:
    agree(example(), ("naics2", "state"), {})
    with pytest.raises(AssertionError):
        agree(example(), ("naics2", "state"), {}, off_by_one)
    cells = {("311111", "01001"): 3 * LARGEST, ("311811", "01001"): -2 * LARGEST - 7, ("311812", "01001"): -(2**70)}
    world = World(Domain.listed(list(cells)), cells)
    agree(world, ("naics3",), {})
    agree(world, ("naics6",), {}, held_too_early)
    with pytest.raises(AssertionError):
        agree(world, ("naics3",), {"naics6": ["311111", "311811"]}, held_too_early)


def plain_sums(totals: Wide, base: Base, query: QueryCells) -> Totals:
    """A broken twin: sums in 64 bits that wrap."""
    return np.array([totals.low.sum()])


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [2**62, 2**62 - 1, 0],
        [2**62, 2**62, 0],
        [LARGEST, LARGEST, -LARGEST],
        [LARGEST, LARGEST, -LARGEST - 1],
        [-LARGEST, -1, 0],
        [-LARGEST, -LARGEST, LARGEST],
        [-LARGEST, -LARGEST, -LARGEST],
        [LARGEST, LARGEST, 2],  # in 64 bits it wraps to 0
        [2**70, -(2**70), 5],
        [-(2**70), 2**69, 0],
    ],
)
def test_totals_are_exact_and_then_held(listed: bool, values: list[int]) -> None:
    codes = ["111110", "111120", "111130"]
    domain = Domain.listed([(code, "01001") for code in codes]) if listed else Domain.product(codes, ["01001"])
    (base,) = domain.bases_for([("naics6", "nation")])
    query = domain.query_cells(("nation",), {})
    assert roll_up_totals(wide(values), base, query).tolist() == [held(sum(values))]
    if abs(sum(values)) > LARGEST + 1:
        assert plain_sums(wide(values), base, query).tolist() != [held(sum(values))]


def test_roll_ups_refuse_what_does_not_fit() -> None:
    domain = Domain.product(["311111", "321111"], ["01001"])
    (coarse,) = domain.bases_for([("naics2", None)])
    fine = domain.query_cells(("naics3",), {})
    with pytest.raises(ValueError, match="coarser"):
        roll_up_totals(Wide(np.zeros(1, dtype=np.int64)), coarse, fine)
    with pytest.raises(ValueError, match="coarser"):
        RollUp.of(coarse, fine)
    with pytest.raises(ValueError, match="int64"):
        roll_up_totals(Wide(np.zeros(2, dtype=np.int64)), coarse, fine)
    with pytest.raises(ValueError, match="int64"):
        roll_up_totals(Wide(np.zeros(1)), coarse, fine)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no base"):
        cheapest([coarse], ("naics3", None))


def test_where_levels_count_in_a_query_s_grouping() -> None:
    domain = example().domain
    assert grouping(("naics2", "naics4", "state")) == ("naics4", "state")
    assert grouping(("county",)) == (None, "county")
    agree(example(), ("naics2",), {"county": ["01001"], "naics3": ["311", "441"]})
    bases = domain.bases_for([("naics6", None), (None, "county"), ("naics2", None), (None, "state")])
    assert [base.grouping for base in bases] == [(None, "county"), ("naics6", None)]
    assert [base.size for base in bases] == [3, 3]


def test_a_grouping_that_several_bases_serve_takes_the_smallest() -> None:
    domain = Domain.product(["311111", "321111"], ["01001", "01003", "02001"])
    bases = domain.bases_for([("naics6", "state"), ("naics2", "county")])
    assert [base.size for base in bases] == [3, 4]
    assert cheapest(bases, ("naics2", "state")) == 0
    assert cheapest(bases[::-1], ("naics2", "state")) == 1
    assert cheapest(bases, ("naics3", None)) == 1
