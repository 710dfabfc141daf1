"""What few records lose wherever they lie: exact over all partitions, also into nested cells, against brute force."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.accounting import firm_bounds as joint
from pipeline.accounting import firm_bounds as partitions
from pipeline.accounting.convert import ORDERS, Floats
from pipeline.accounting.firm_bounds import most_cells, most_in_partitions
from pipeline.accounting.placements import Exposure
from pipeline.accounting.policy import Cells, PolicySum, QueryPolicy
from pipeline.accounting.references import Reference
from tests.accounting.test_placements import KINDS, ONE, exposure, most_by_all_partitions
from udfs.records.statistics import Sum

SIZES = st.lists(st.one_of(st.integers(1, 60), st.integers(0, 12).map(lambda power: 2**power)), min_size=1, max_size=6)
ROUNDING = 1e-9


def set_partitions(records: int) -> Iterator[list[list[int]]]:
    """Each record in a cell of the earlier ones or in one of its own."""
    if not records:
        yield []
        return
    for cells in set_partitions(records - 1):
        for i in range(len(cells)):
            yield [*cells[:i], [*cells[i], records - 1], *cells[i + 1 :]]
        yield [*cells, [records - 1]]


def loss(kind: str, sizes: Sequence[int], cells: Sequence[Sequence[int]]) -> float:
    return float(sum(KINDS[kind].loss(np.array([float(sum(sizes[j] for j in cell)) for cell in cells]))))


def table(kind: str, sizes: Sequence[int], policy: int, by: str, room: int | None = None, **more: Any) -> Exposure:
    return replace(exposure(KINDS[kind], sizes, room, policy), by=(by,), **more)


def found(exposures: Sequence[Exposure], sets: frozenset[frozenset[int]], records: int) -> float:
    bound = most_in_partitions(exposures, [sets] * records)
    assert bound is not None
    return float(bound[0])


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True, max_examples=12)
@given(sizes=SIZES, room=st.sampled_from([1, 2, 3, None]))
def test_one_query_is_exact(kind: str, sizes: list[int], room: int | None) -> None:
    bound = found([exposure(KINDS[kind], sizes, room)], ONE, len(sizes))
    true = max(loss(kind, sizes, cells) for cells in set_partitions(len(sizes)) if len(cells) <= (room or 9))
    assert true <= bound <= true * (1 + ROUNDING)


@pytest.mark.parametrize("kind", KINDS)
def test_nine_records_and_no_more(kind: str) -> None:
    sizes = [1, 3, 4, 10, 11, 25, 60, 200, 900]
    true = most_by_all_partitions([KINDS[kind].loss], [sizes], 9)
    assert true <= found([exposure(KINDS[kind], sizes)], ONE, 9) <= true * (1 + ROUNDING)
    assert most_in_partitions([exposure(KINDS[kind], [*sizes, 5])], [ONE] * 10) is None


@pytest.mark.parametrize("kind", ["steps", "log", "gaussian"])
def test_equal_records_are_one_lot(kind: str) -> None:
    most = [0.0]
    for n in range(1, 121):
        most.append(max(loss(kind, [6 * k], [[0]]) + most[n - k] for k in range(1, n + 1)))
    lot = replace(exposure(KINDS[kind], [6]), times=np.array([120]))
    assert most[-1] <= found([lot], ONE, 1) <= most[-1] * (1 + ROUNDING)
    lots = replace(exposure(KINDS[kind], [6, 7]), times=np.array([3, 4]))
    assert found([lots], ONE, 2) == pytest.approx(found([exposure(KINDS[kind], [6] * 3 + [7] * 4)], ONE, 7))


def most_of_nested(kinds: Sequence[str], sizes: Sequence[Sequence[int]], states: int) -> float:
    """Tables by county and by state: all partitions into counties, and of these into states."""
    most = 0.0
    for counties in set_partitions(len(sizes[0])):
        for grouped in set_partitions(len(counties)):
            if len(grouped) <= states:
                of_states = [[j for c in group for j in counties[c]] for group in grouped]
                most = max(most, loss(kinds[0], sizes[0], counties) + loss(kinds[1], sizes[1], of_states))
    return most


NESTED = st.lists(st.tuples(st.integers(1, 80), st.integers(1, 500)), min_size=2, max_size=5)


@given(pairs=NESTED, kinds=st.tuples(*[st.sampled_from(sorted(KINDS))] * 2), states=st.sampled_from([1, 2, 9]))
def test_nested_tables_are_exact(pairs: list[tuple[int, int]], kinds: tuple[str, str], states: int) -> None:
    sizes = list(zip(*pairs, strict=True))
    tables = [table(kinds[0], sizes[0], 0, "county"), table(kinds[1], sizes[1], 1, "state", states)]
    true = most_of_nested(kinds, sizes, states)
    assert true <= found(tables, frozenset({frozenset({0, 1})}), len(pairs)) <= true * (1 + ROUNDING)


@pytest.mark.parametrize("kinds", [("laplace", "gaussian"), ("gaussian", "log")])
def test_the_curve_of_nested_tables_is_exact_at_every_order(kinds: tuple[str, str]) -> None:
    sizes, levels = [2, 30, 41], ("county", "state")
    queries = [
        QueryPolicy(by, Sum("x"), KINDS[kind], None, Cells((by,), 50)) for kind, by in zip(kinds, levels, strict=True)
    ]
    curve = PolicySum(tuple(queries), (frozenset({0, 1}),)).curve_at(Reference.of([{"x": x} for x in sizes]))

    def lost(kind: str, cells: Sequence[Sequence[int]]) -> Floats:
        sums = (Fraction(sum(sizes[j] for j in cell)) for cell in cells)
        return np.sum([KINDS[kind].renyi_at(each, ORDERS) for each in sums], axis=0)

    placed = [
        lost(kinds[0], counties) + lost(kinds[1], [[j for c in group for j in counties[c]] for group in grouped])
        for counties in set_partitions(3)
        for grouped in set_partitions(len(counties))
    ]
    most = np.maximum.reduce(placed)
    assert (most <= curve).all()
    assert (curve <= most * (1 + ROUNDING)).all()


@given(pairs=NESTED, kinds=st.tuples(*[st.sampled_from(sorted(KINDS))] * 2))
def test_prices_of_nested_tables_are_bounds(pairs: list[tuple[int, int]], kinds: tuple[str, str]) -> None:
    sizes = list(zip(*pairs, strict=True))
    tables = [table(kinds[0], sizes[0], 0, "county"), table(kinds[1], sizes[1], 1, "state")]
    (bound,) = joint.most_lost(tables, [frozenset({frozenset({0, 1})})] * len(pairs))
    assert most_of_nested(kinds, sizes, 9) <= bound


def test_prices_of_nested_tables_are_nearer_than_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rises by county and falls by state cannot be had at once; the broken twin takes states for counties."""
    sizes, both = [50] * 5, [frozenset({frozenset({0, 1})})] * 5
    tables = [table("gaussian", sizes, 0, "county"), table("root", sizes, 1, "state")]
    falls = [table("square root", sizes, 0, "county"), table("gaussian", sizes, 1, "state")]
    true = most_of_nested(["gaussian", "root"], [sizes, sizes], 9)
    assert true <= joint.most_lost(tables, both)[0] <= 1.01 * true
    assert joint.most_lost(falls, both)[0] >= most_of_nested(["square root", "gaussian"], [sizes, sizes], 9)
    monkeypatch.setattr(joint, "chains_of", lambda tables: [[[1], [0]]])
    assert joint.most_lost(falls, both)[0] < most_of_nested(["square root", "gaussian"], [sizes, sizes], 9)


def test_tables_nested_the_wrong_way_round_are_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: as if states lay in counties. What falls by county and rises by state can be had at once."""
    sizes, both = [40, 50, 60], frozenset({frozenset({0, 1})})
    tables = [table("square root", sizes, 0, "county"), table("gaussian", sizes, 1, "state")]
    true = most_of_nested(["square root", "gaussian"], [sizes, sizes], 9)
    assert found(tables, both, 3) >= true
    monkeypatch.setattr(partitions, "chains_of", lambda exposures: [[[1], [0]]])
    assert found(tables, both, 3) < true


@settings(derandomize=True, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 300), min_size=2, max_size=4), kinds=st.tuples(*[st.sampled_from(sorted(KINDS))] * 3)
)
def test_filters_and_parts_exclude_each_other(sizes: list[int], kinds: tuple[str, str, str]) -> None:
    """All counties in one table; two states of two counties each in a table, or part, of their own."""
    county, of_a, of_b = kinds
    tables = [
        table(county, sizes, 0, "county", 4),
        table(of_a, sizes, 1, "state", 1),
        table(of_b, sizes, 2, "state", 1),
    ]
    sets = frozenset({frozenset({0, 1}), frozenset({0, 2})})
    true = 0.0
    for placed in product(range(4), repeat=len(sizes)):
        cells = [[j for j, at in enumerate(placed) if at in where] for where in ({0}, {1}, {2}, {3}, {0, 1}, {2, 3})]
        true = max(true, loss(county, sizes, cells[:4]) + loss(of_a, sizes, cells[4:5]) + loss(of_b, sizes, cells[5:]))
    assert true <= found(tables, sets, len(sizes)) <= true * 1.1


def test_an_off_by_one_price_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: losses at sums that are one unit too small."""
    at = Exposure.at
    monkeypatch.setattr(Exposure, "at", lambda self, sums: at(self, np.maximum(sums - 1, 1)))
    for kind in KINDS:
        sizes = [21, 30, 40]
        true = max(loss(kind, sizes, cells) for cells in set_partitions(3))
        assert found([exposure(KINDS[kind], sizes)], ONE, 3) < true, kind


def test_records_of_different_cells_are_in_no_cell_together() -> None:
    sizes = [20, 30, 40]
    known = replace(exposure(KINDS["gaussian"], sizes), cells=np.array([1, 2, -1]))
    true = max(loss("gaussian", sizes, cells) for cells in ([[0, 2], [1]], [[1, 2], [0]]))
    assert true <= found([known], ONE, 3) <= true * (1 + ROUNDING)
    apart = replace(
        exposure(KINDS["gaussian"], sizes), kinds=np.array([0, 1, 2]), apart=frozenset({(0, 1), (1, 0), (0, 2), (2, 0)})
    )
    true = loss("gaussian", sizes, [[1, 2], [0]])
    assert true <= found([apart], ONE, 3) <= true * (1 + ROUNDING)


def test_records_of_one_known_cell_are_in_it_together() -> None:
    sizes = [20, 30, 40]
    known = replace(exposure(KINDS["square root"], sizes), cells=np.array([1, 1, -1]))
    true = loss("square root", sizes, [[0, 1], [2]])
    assert true <= found([known], ONE, 3) <= true * (1 + ROUNDING)
    assert found([replace(known, times=np.array([2, 1, 1]))], ONE, 3) == pytest.approx(
        loss("square root", [70, 40], [[0], [1]])
    )


def test_which_levels_tell_others() -> None:
    refines = joint._refines
    assert refines(("naics6", "county"), ("naics2", "state"))
    assert refines(("county",), ("nation",))
    assert refines(("naics3",), ("nation",))
    assert not refines(("state",), ("county",))
    assert not refines(("naics6",), ("state",))
    assert not refines(("cbsa",), ("state",))
    chains = joint.chains_of([table("log", [1], i, by) for i, by in enumerate(["state", "naics2", "county", "nation"])])
    assert sorted(chains) == [[[1]], [[2], [0], [3]]]


def test_filtered_tables_of_equal_cells_have_no_more_rooms_than_their_cells() -> None:
    tables = [table("log", [1], i, "county", 4) for i in range(3)]
    assert most_cells(tables[:2]) == 4
    assert most_cells(tables) == 12
    assert most_cells([*tables[:2], replace(tables[2], unfiltered=True)]) == 4
    assert most_cells([*tables[:2], table("log", [1], 3, "county")]) is None


def test_infinite_losses_stay_infinite() -> None:
    endless = replace(
        exposure(KINDS["gaussian"], [5, 6]), loss=lambda numbers, unit: np.full((len(numbers), 1), np.inf)
    )
    assert found([endless], ONE, 2) == float("inf")
