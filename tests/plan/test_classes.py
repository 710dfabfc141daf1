"""Classes of a measure: losses of references and limits against every record and firm of small worlds, one by one."""

import json
import random
import re
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pipeline.plan.domain.keys
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Limit, Reference, ReferenceRecord
from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import PlanError
from pipeline.plan.plan_losses import Change, Factor, change_bounds, change_losses
from pipeline.plan.total_policy import limits_of, located, losses_at, policy_of
from pipeline.planning.explain_text import render
from pipeline.planning.explanation import explain
from tests.support.diagnostics import diagnosed, rows
from tests.support.keyed import (
    FORMS,
    MOST,
    NAICS,
    TEST,
    Asked,
    Classes,
    Record,
    World,
    largest,
    most_lost,
    no_larger,
    smaller_firms,
    worlds,
)

FIXED = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
VALUES = st.fixed_dictionaries({"employment": st.integers(0, 8), "payroll": st.integers(0, 4)})


def reference(*records: dict[str, Any], listed: bool = False) -> Reference:
    return Reference(tuple(map(ReferenceRecord.of, records)), listed)


def exact(world: World, stated: Fraction, true: Fraction) -> None:
    """Assert that a limit is what is lost; where cells are listed, values may stand for those of other classes."""
    assert stated == true or (world.listed is not None and stated > true)


@given(world=worlds(), values=VALUES)
@FIXED
def test_a_record_loses_what_its_own_class_costs_and_a_limit_binds_all_smaller(
    world: World, values: dict[str, int], tmp_path: Path
) -> None:
    plan = world.plan(tmp_path)
    policy = policy_of(plan)
    at = reference(values)
    own = largest(world.loss([record]) for record in world.places(values))
    below = largest(world.loss([r]) for smaller in no_larger(values, MOST) for r in world.places(smaller))
    assert losses_at(plan, policy, at)[1].rho == own
    exact(world, policy.loss_at(located(plan, at, below=True)), below)
    exact(world, policy.loss_at(at.anywhere()), below)
    again = PolicySum.from_json(json.loads(json.dumps(policy.to_json())))
    limit = Limit(located(plan, at, below=True), Fraction(1))
    assert Limit.from_json(json.loads(json.dumps(limit.to_json()))) == limit
    exact(world, again.loss_at(Limit.from_json(json.loads(json.dumps(limit.to_json()))).at), below)
    exact(world, again.loss_at(at.anywhere()), below)


@given(world=worlds(), values=VALUES, data=st.data())
@FIXED
def test_references_with_codes_are_taken_there(
    world: World, values: dict[str, int], data: st.DataObject, tmp_path: Path
) -> None:
    """Codes of a reference hold for all that is no larger; classes follow from values, or stand for a missing one."""
    plan = world.plan(tmp_path)
    policy = policy_of(plan)
    codes: dict[str, str] = data.draw(st.sampled_from([{"naics2": "72"}, {"form": "C"}, {"group": "firm"}, {}]))
    if world.listed is not None and "group" in codes:
        codes = {}
    named = data.draw(st.sampled_from([key for key, each in world.classes.items() if each.of == "employment"]))
    at = reference(values | codes)
    own = largest(world.loss([record]) for record in world.places(values, codes))
    below = largest(world.loss([r]) for smaller in no_larger(values, MOST) for r in world.places(smaller, codes))
    assert losses_at(plan, policy, at)[1].rho == own
    exact(world, policy.loss_at(located(plan, at, below=True)), below)
    if world.listed is not None:
        return  # a class that no cell has is refused
    code = world.classes[named].code(values["employment"])
    assert losses_at(plan, policy, reference(values | codes | {named: code}))[1].rho == own
    other = next((each for each in world.classes[named].codes if each != code), None)
    if other is not None:
        with pytest.raises(PlanError, match=f"its class of {named} is {re.escape(code)}: leave {named} out"):
            losses_at(plan, policy, reference(values | codes | {named: other}))
    if "employment" not in policy.measures:
        left_out = reference({"payroll": values["payroll"]} | codes | {named: code})
        every = {"employment": None, "payroll": values["payroll"]}
        of_class = [
            world.loss([record])
            for smaller in no_larger(every, MOST)
            for record in world.places(smaller, codes | {named: code})
        ]
        stated = policy.loss_at(located(plan, left_out, below=True))
        assert stated == largest(of_class) or (len(world.classes) > 1 and stated > largest(of_class))


@given(world=worlds((None, "payroll")), payroll=st.integers(0, 4))
@FIXED
def test_a_measure_that_a_limit_leaves_out_may_have_any_value(world: World, payroll: int, tmp_path: Path) -> None:
    plan = world.plan(tmp_path, budget=[{"at": {"payroll": payroll}, "rho": 10**9}])
    policy = policy_of(plan)
    at = reference({"payroll": payroll})
    every = no_larger({"employment": None, "payroll": payroll}, MOST)
    below = largest(world.loss([record]) for smaller in every for record in world.places(smaller))
    (limit,) = limits_of(plan)
    exact(world, policy.loss_at(limit.at), below)
    exact(world, policy.loss_at(at.anywhere()), below)


FIRM = st.fixed_dictionaries({"employment": st.integers(0, 4), "payroll": st.integers(0, 1)})


@given(world=worlds(most=2), firm=st.lists(FIRM, min_size=1, max_size=2))
@FIXED
def test_no_firm_no_larger_loses_more_than_a_limit_states(
    world: World, firm: list[dict[str, int]], tmp_path: Path
) -> None:
    plan = world.plan(tmp_path, dataset={"unit": "firm"})
    policy = policy_of(plan)
    at = reference(*firm, listed=True)
    own, below = most_lost(world, [firm]), most_lost(world, smaller_firms(firm))
    stated = losses_at(plan, policy, at)[1].rho
    limit = policy.loss_at(located(plan, at, below=True))
    assert own <= stated <= 2 * own
    most = 2 if world.listed is None else 100  # values may stand for those of classes that no cell has
    assert below <= limit <= most * below
    assert below <= policy.loss_at(at.anywhere()) <= most * below
    kept = Limit.from_json(json.loads(json.dumps(Limit(located(plan, at, below=True), Fraction(1)).to_json())))
    assert policy.loss_at(kept.at) >= below


def true_change(world: World, one: Record, other: Record, query: Asked) -> Fraction:
    """What one query shows of a record's change: in one cell of the difference, else of both sides."""
    cells = [world.cell(query, record) for record in (one, other)]
    values = [1 if query.measure is None else record[query.measure] for record in (one, other)]
    if cells[0] == cells[1]:
        return (
            Fraction(0)
            if cells[0] is None
            else Fraction((values[0] - values[1]) ** 2, 2 * world.sigma(query, one) ** 2)
        )
    sides = zip((one, other), cells, values, strict=True)
    return sum((Fraction(x * x, 2 * world.sigma(query, side) ** 2) for side, cell, x in sides if cell), Fraction(0))


@given(world=worlds(), first=VALUES, second=VALUES)
@FIXED
def test_a_change_costs_both_sides_where_it_moves_a_cell(
    world: World, first: dict[str, int], second: dict[str, int], tmp_path: Path
) -> None:
    plan = world.plan(tmp_path)
    policy = policy_of(plan)
    change = Change({name: (Fraction(first[name]), Fraction(second[name])) for name in first}, FrozenMap.of({}))
    by_query, total = change_losses(plan, policy, change)
    places = list(zip(world.places(first), world.places(second), strict=True))
    for query, stated in zip(world.asked, by_query, strict=True):
        assert stated is not None
        alone = World(world.classes, (query,))
        sides = [largest(alone.loss([record]) - TEST for record in alone.places(values)) for values in (first, second)]
        assert largest(true_change(world, one, other, query) for one, other in places) <= stated.rho <= sum(sides)
    tested = (2 * TEST if world.kept(one) != world.kept(other) else Fraction(0) for one, other in places)
    shown = (sum((true_change(world, *both, query) for query in world.asked), Fraction(0)) for both in places)
    true = largest(map(sum, zip(shown, tested, strict=True)))
    moves = any(each.code(first[each.of]) != each.code(second[each.of]) for each in world.classes.values())
    assert total is not None
    assert true <= total.rho <= (sum((loss.rho for loss in by_query if loss), 2 * TEST) if moves else true)
    assert (change_bounds(plan, policy, change, 1e-6) is None) == moves


def test_a_change_out_of_all_listed_cells_costs_what_the_record_was_in_them(tmp_path: Path) -> None:
    """Where cells are listed, a class decides whether a record is in any table, also in those without classes."""
    sizes = {"size": Classes("employment", (0, 3))}
    cells = frozenset({("311111", "C", "0-2"), ("722511", "S", "3+"), ("311111", "P", "3+")})
    world = World(sizes, (Asked("employment", ("naics2",)), Asked(None, ("naics2",), {}, None, {"others": 5})), cells)
    plan = world.plan(tmp_path)
    values = (Fraction(2), Fraction(4))
    for side, naics, form in ((0, "311111", "C"), (1, "722511", "S")):
        change = Change({"employment": values}, FrozenMap.of({"naics6": naics, "form": form}))
        by_query, total = change_losses(plan, policy_of(plan), change)
        record = {"naics": naics, "form": form, "employment": int(values[side]), "payroll": 0}
        assert [each and each.rho for each in by_query] == [values[side] ** 2 / 2, Fraction(1, 50)]
        assert total is not None
        assert total.rho == world.loss([record]) + TEST  # it is left out then, and counted there
    anywhere = change_losses(plan, policy_of(plan), Change({"employment": values}, FrozenMap.of({})))[1]
    assert anywhere is not None
    assert anywhere.rho == world.loss([record]) + Fraction(2) + Fraction(1, 50) + TEST  # each side at its worst
    nowhere = Change({"employment": (Fraction(1), Fraction(2))}, FrozenMap.of({"naics6": "722511"}))
    left_out = change_losses(plan, policy_of(plan), nowhere)[1]  # both values' records are in no cell
    assert left_out is not None
    assert left_out.rho == 0
    none = Change({"employment": values}, FrozenMap.of({"naics6": "311111", "form": "S"}))
    with pytest.raises(PlanError, match="reference naics6=311111, form=S: no cell of the domain has these codes"):
        change_losses(plan, policy_of(plan), none)


LOG = {"kind": "log", "a": 10, "sigma": 0.5}
SIZES = {"size": Classes("employment", (0, 5, 10))}


def test_a_factor_has_a_bound_only_where_no_class_can_change(tmp_path: Path) -> None:
    queries = [
        {"name": "in_all", "sum": "employment", "by": ["naics2"], "mechanism": LOG},
        {"name": "count", "count": "records", "by": ["size"], "mechanism": {"kind": "gaussian", "sigma": 2}},
        {"name": "by_size", "sum": "employment", "by": ["naics2", "size"], "mechanism": LOG},
        {"name": "low", "sum": "employment", "by": ["naics2"], "where": {"size": ["0-4"]}, "mechanism": LOG},
    ]
    plan = World(SIZES, ()).plan(tmp_path, queries=queries)
    by_query, total = change_losses(plan, policy_of(plan), Factor(Fraction(11, 10)))
    assert total is None
    assert by_query[0] is not None
    assert by_query[0].rho > 0
    assert by_query[1] is not None
    assert by_query[1].rho == 2 * Fraction(1, 8)
    assert by_query[2:] == [None, None]
    without = World(SIZES, ()).plan(tmp_path, queries=queries[:2])
    assert change_losses(without, policy_of(without), Factor(Fraction(11, 10)))[1] is not None
    nothing, none = change_losses(plan, policy_of(plan), Factor(Fraction(1)))
    assert none is not None
    assert none.rho == 0
    assert all(loss is not None and loss.rho == 0 for loss in nothing)


# --- broken twins: each is a mistake that the checks above reject

WIDE_ABOVE = World(
    {"size": Classes("employment", (0, 3, 6))},
    (Asked("employment", ("naics2", "size"), {}, "size", {"0-2": 1, "others": 50}),),
)


def test_a_limit_at_the_references_own_class_alone_is_seen(tmp_path: Path) -> None:
    """The narrow noise of small records makes a record of 2 lose more than one of 7."""
    plan = WIDE_ABOVE.plan(tmp_path)
    policy = policy_of(plan)
    at = reference({"employment": 7, "payroll": 0})
    assert losses_at(plan, policy, at)[1].rho == Fraction(49, 2 * 50**2) + TEST
    assert policy.loss_at(located(plan, at, below=True)) == Fraction(2**2, 2) + TEST
    assert policy.loss_at(located(plan, at)) < policy.loss_at(located(plan, at, below=True))  # the broken limit
    without_spans = PolicySum(policy.queries, policy.query_sets)  # a ledger that lost the classes errs upward
    assert without_spans.loss_at(at) == Fraction(7**2, 2) + TEST


def test_explain_does_not_say_that_a_references_loss_binds_smaller_records(tmp_path: Path) -> None:
    limits = [{"at": {"employment": 7, "payroll": 0}, "rho": 10}]
    plan = WIDE_ABOVE.plan(tmp_path, budget=limits)
    text = render(explain(plan, []), plan)
    assert "a smaller one may lose more" in text
    assert "bind every" not in text
    assert re.search(
        r"employment=7, payroll=0 +rho 0\.00985.*all no larger than employment=7, payroll=0 +rho 2\.00006",
        text,
        re.DOTALL,
    )
    (total,) = explain(plan, [])["total"]
    assert (round(total["rho"], 8), round(total["rho_below"], 8)) == (0.00985, 2.00005)
    one = World({"size": Classes("employment", (0, 3))}, (Asked("employment", ("naics2", "size")),))
    same = one.plan(tmp_path)
    assert "bind every" in render(explain(same, []), same)


def test_classes_that_begin_above_their_lowest_value_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = WIDE_ABOVE.plan(tmp_path)
    at = reference({"employment": 3, "payroll": 0})
    own = largest(WIDE_ABOVE.loss([record]) for record in WIDE_ABOVE.places({"employment": 3, "payroll": 0}))
    assert losses_at(plan, policy_of(plan), at)[1].rho == own
    broken = lambda classes, value: max(sum(each < value for each in classes.lowest) - 1, 0)  # noqa: E731
    monkeypatch.setattr(pipeline.plan.domain.keys.Classes, "class_of", broken)
    assert losses_at(plan, policy_of(plan), at)[1].rho != own


@pytest.mark.parametrize("unit", ["record", "firm"])
def test_diagnostics_state_what_each_unit_loses_in_its_own_classes(tmp_path: Path, unit: str) -> None:
    """Levels with holes, filters and parts by class, codes in no list: each unit against a sum over its records."""
    world = World(
        {"size": Classes("employment", (0, 3, 6)), "band": Classes("payroll", (0, 2))},
        (
            Asked("employment", ("naics2", "size"), {}, "size", {"0-2": 2, "others": 50}),
            Asked(None, ("group", "band"), {"size": ["0-2", "6+"]}),
            Asked("payroll", ("form",), {"band": ["2+"]}, "form", {"C": 3, "others": 7}),
            Asked("employment", ("naics6",), {}, None, {"others": 9}),
        ),
    )
    draw = random.Random(5)
    records = [
        {
            "naics": draw.choice([*NAICS, "999999"]),
            "form": draw.choice([*FORMS, "X"]),
            "employment": draw.randrange(9),
            "payroll": draw.randrange(5),
        }
        for _ in range(400)
    ]
    plan = world.plan(tmp_path, dataset={"unit": unit})
    folder = plan.path.parent / "microdata"
    folder.mkdir()
    firms = [f"F{draw.randrange(60)}" for _ in records]
    ids = [f"E{i}" for i in range(len(records))]
    pq.write_table(
        pa.Table.from_pylist(records).append_column("id", [ids]).append_column("firm", [firms]), folder / "a"
    )
    (folder / "a").rename(folder / "a.parquet")
    out = diagnosed(plan.path, tmp_path / "out", per_record=True)
    units: dict[str, list[Record]] = defaultdict(list)
    for name, record in zip(ids if unit == "record" else firms, records, strict=True):
        units[name].append(record)
    found = {row["record" if unit == "record" else "owner"]: row["loss"] for row in rows(out / f"{unit}s")}
    assert found.keys() == units.keys()
    for name, each in units.items():
        kept = sum(world.kept(record) for record in each)
        tested = TEST * (kept**2 + (len(each) - kept) ** 2 - len(each) ** 2)  # two counts, not one
        assert found[name] == pytest.approx(float(world.loss(each) + tested), rel=1e-9)
