"""Totals of a query from those of finer cells: against dictionaries, never wrapped, and held in range at the end."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.plan.domain import Domain
from pipeline.plan.domain.cells import Base, QueryCells, RollUp, cheapest, roll_up_totals
from tests.support.domains import Totals, World, agree, example, held, listed_domain, product_domain, queries, worlds
from tests.support.wide import wide
from udfs.numbers.arrays import Wide

LARGEST = 2**63 - 1


@given(data=st.data(), world=worlds())
def test_cells_and_roll_ups_are_those_of_a_dictionary(data: st.DataObject, world: World) -> None:
    agree(world, *data.draw(queries(world)))


@given(data=st.data(), world=worlds())
def test_bases_serve_every_query_and_none_is_spare(data: st.DataObject, world: World) -> None:
    asked = data.draw(st.lists(st.tuples(queries(world), st.sampled_from(["x", "y"])), min_size=1, max_size=5))
    needed = [(world.domain.query_cells(*query), addend) for query, addend in asked]
    bases = world.domain.bases_for(needed)
    served = {cheapest(bases, query, addend) for query, addend in needed}
    assert None not in served
    if world.domain.cells is None:
        assert served == set(range(len(bases)))
        assert {base.size for base in bases} <= {query.size for query, _ in needed}
        for addend in {addend for _, addend in needed}:
            mine = [base for base in bases if addend in base.addends]
            assert all(
                cheapest([base], other.cells, addend) is None for base in mine for other in mine if base is not other
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
    world = World(listed_domain(list(cells)), cells)
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
    domain = listed_domain([(code, "01001") for code in codes]) if listed else product_domain(codes, ["01001"])
    (base,) = bases_of(domain, [("naics6",)])
    query = domain.query_cells(("nation",), {})
    assert roll_up_totals(wide(values), base, query).tolist() == [held(sum(values))]
    if abs(sum(values)) > LARGEST + 1:
        assert plain_sums(wide(values), base, query).tolist() != [held(sum(values))]


def test_roll_ups_refuse_what_does_not_fit() -> None:
    domain = product_domain(["311111", "321111"], ["01001"])
    (coarse,) = bases_of(domain, [("naics2",)])
    fine = domain.query_cells(("naics3",), {})
    with pytest.raises(ValueError, match="does not roll up"):
        roll_up_totals(Wide(np.zeros(1, dtype=np.int64)), coarse, fine)
    with pytest.raises(ValueError, match="does not roll up"):
        RollUp.of(coarse, fine)
    with pytest.raises(ValueError, match="int64"):
        roll_up_totals(Wide(np.zeros(2, dtype=np.int64)), coarse, fine)
    with pytest.raises(ValueError, match="int64"):
        roll_up_totals(Wide(np.zeros(1)), coarse, fine)  # type: ignore[arg-type]
    assert cheapest([coarse], fine, "x") is None


def bases_of(domain: Domain, asked: Sequence[Sequence[str]]) -> tuple[Base, ...]:
    return domain.bases_for([(domain.query_cells(by, {}), "x") for by in asked])


def test_a_filter_narrows_a_base() -> None:
    agree(example(), ("naics2",), {"county": ["01001"], "naics3": ["311", "441"]})
    domain = example().domain
    query = domain.query_cells(("naics6",), {"county": ["01001"], "naics3": ["311", "441"]})
    (base,) = domain.bases_for([(query, "x")])
    assert base.size == 2
    wider = domain.query_cells(("naics6", "county"), {})
    (base,) = domain.bases_for([(query, "x"), (wider, "x")])
    assert base.size == 9
    assert len(domain.bases_for([(query, "x"), (wider, "y")])) == 2


def test_a_query_that_several_bases_serve_takes_the_smallest() -> None:
    domain = product_domain(["311111", "321111"], ["01001", "01003", "02001"])
    bases = bases_of(domain, [("naics6", "state"), ("naics2", "county")])
    assert [base.size for base in bases] == [4, 3]
    assert cheapest(bases, domain.query_cells(("naics2", "state"), {}), "x") == 1
    assert cheapest(bases[::-1], domain.query_cells(("naics2", "state"), {}), "x") == 0
    assert cheapest(bases, domain.query_cells(("naics3",), {}), "x") == 0
