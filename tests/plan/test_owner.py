"""What a firm loses: bounds against every placement of its records, references that are lists, limits at them."""

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.cli import main
from pipeline.accounting.interpretation import Loss
from pipeline.accounting.placements import pure, tight
from pipeline.accounting.references import Reference
from pipeline.base.errors import BudgetRefused, MicrodataError, PlanError
from pipeline.engines.totals import layout_of, row_by_row
from pipeline.ledger.reservation import limits_of as written_limits
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.plan.plan_losses import change_losses, parse_change
from pipeline.plan.total_policy import limits_of, located, losses_at, parse_at, policy_of
from pipeline.planning.explain_text import render, render_verdict
from pipeline.planning.explanation import explain, explain_years
from pipeline.planning.verdict import verdict
from tests.support.firms import BUDGET, CELLS, COARSE, GAUSSIAN, OWNED, QUERIES, WITH_OTHER, loaded, owned, world
from tests.support.placements import placements, true_losses
from tests.support.submit import Place, submit
from tests.support.world import COUNTIES, NAICS, records, write_world
from udfs.records.decoding import Decoder

TEST = Fraction(1, 20_000)  # what the test of records left out costs a record

# --- bounds, against all that can be: each record in each cell that its keys allow


def cost_of_test(at: Reference) -> Fraction:
    """What the test of records left out costs a firm, all of whose records are kept, or left out."""
    return len(at.records) ** 2 * TEST


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return loaded(tmp_path_factory.mktemp("firms"))


@pytest.fixture(scope="module")
def coarse(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return loaded(tmp_path_factory.mktemp("coarse"), queries=COARSE)


@pytest.fixture(scope="module")
def with_other(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    domain = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "other": ["naics", "county"]}
    rest = {"sum": "employment", "by": ["state"], "where": {"naics2": ["other"]}, "mechanism": GAUSSIAN | {"sigma": 1}}
    return loaded(tmp_path_factory.mktemp("other"), domain=domain, queries=[*QUERIES, {"name": "rest", **rest}])


KEYS = st.sampled_from(
    [
        {},
        {"naics2": "31-33"},
        {"naics3": "311"},
        {"state": "06"},
        {"county": "01001"},
        {"naics6": "441110", "state": "06"},
    ]
)
PLACED = st.sampled_from([{"naics6": naics, "county": county} for naics, county in CELLS])
SIZES = st.integers(0, 60).map(Fraction)
DOUBLES = 1 + Fraction(1, 2**30)  # prices are doubles, rounded up
NEARLY = Fraction(11, 10)  # what a firm can lose falls with its records, and the bound is less than this above it


def firms(keys: st.SearchStrategy[dict[str, str]], most: int) -> st.SearchStrategy[Reference]:
    record = st.tuples(SIZES, keys).map(lambda r: {"employment": r[0], **r[1]})
    return st.lists(record, min_size=1, max_size=most).map(Reference.of)


@given(at=firms(KEYS | PLACED, 3))
def test_no_placement_of_a_firms_records_loses_more_than_the_bound(plan: Plan, coarse: Plan, at: Reference) -> None:
    for each in (plan, coarse):
        policy = policy_of(each)
        losses, total = losses_at(each, policy, at)
        true = [true_losses(each, placed) for placed in placements(at)]
        worst = max(map(sum, true)) + cost_of_test(at)
        assert worst <= total.rho <= policy.loss_at(at.anywhere()) * DOUBLES
        for column, (_, loss) in zip(zip(*true, strict=True), losses, strict=True):
            assert max(column) <= loss.rho
        if len(at.records) == 1:  # then the group bound has nothing to add up
            assert total.rho == worst


OF_OTHER = st.sampled_from([{}, {"naics3": "other"}, {"state": "other"}, {"naics6": "other", "county": "01001"}])


@given(at=firms(OF_OTHER | PLACED, 2))
def test_records_in_other_cells_lose_no_more_than_the_bound(with_other: Plan, at: Reference) -> None:
    policy = policy_of(with_other)
    losses, total = losses_at(with_other, policy, at)
    true = [true_losses(with_other, placed) for placed in placements(at, WITH_OTHER)]
    worst = max(map(sum, true)) + cost_of_test(at)
    assert worst <= total.rho <= policy.loss_at(at.anywhere()) * DOUBLES
    assert all(max(column) <= loss.rho for column, (_, loss) in zip(zip(*true, strict=True), losses, strict=True))
    if len(at.records) == 1:
        assert total.rho == worst
        if not at.records[0].keys and at.records[0].values["employment"]:  # the broken twin: no other cells
            assert worst > max(sum(true_losses(with_other, placed)) for placed in placements(at)) + cost_of_test(at)


@given(at=firms(PLACED, 4))
def test_for_records_in_known_cells_the_bound_is_the_loss(plan: Plan, at: Reference) -> None:
    (placed,) = placements(at)
    losses, total = losses_at(plan, policy_of(plan), at)
    assert [loss.rho for _, loss in losses] == true_losses(plan, placed)
    assert total.rho == sum(true_losses(plan, placed)) + cost_of_test(at)


@given(at=firms(KEYS | PLACED, 3), data=st.data())
def test_a_firm_with_fewer_and_smaller_records_loses_no_more(plan: Plan, at: Reference, data: st.DataObject) -> None:
    policy = policy_of(plan)
    kept = data.draw(st.lists(st.sampled_from(at.records), unique_by=id))
    sizes = [data.draw(st.integers(0, int(record.values["employment"]))) for record in kept]
    smaller = [replace(r, values={"employment": Fraction(x)}) for r, x in zip(kept, sizes, strict=True)]
    losses, total = losses_at(plan, policy, at)
    less, least = losses_at(plan, policy, Reference(tuple(smaller), listed=True))
    assert least.rho <= total.rho * NEARLY
    assert all(small[1].rho <= large[1].rho * NEARLY for small, large in zip(less, losses, strict=True))


def test_a_bound_that_adds_up_what_may_meet_is_too_small(plan: Plan) -> None:
    policy, size = policy_of(plan), Fraction(40)
    known = {"employment": size, "naics6": "441110", "county": "06037"}
    at = Reference.of((known, {"employment": size}))
    worst = max(true_losses(plan, placed)[3] for placed in placements(at))
    assert worst == (2 * size) ** 2 / 32  # both in one cell of trade
    alone = [losses_at(plan, policy, Reference((record,), listed=True))[0][3][1].rho for record in at.records]
    assert sum(alone) < worst == tight(alone)
    assert policy.query_loss_at(located(plan, at), "trade") == worst
    together = [losses_at(plan, policy, Reference((record,), listed=True))[1].rho for record in at.records]
    assert sum(together) < max(sum(true_losses(plan, placed)) for placed in placements(at)) <= tight(together)


def test_both_bounds_of_a_release_are_needed(tmp_path: Path) -> None:
    apart = loaded(tmp_path / "apart", queries=QUERIES[2:4])  # food or trade: no record is in both
    one = losses_at(apart, policy_of(apart), Reference.of(({"employment": Fraction(8)},)))
    assert one[1].rho == 2 + TEST < sum(loss.rho for _, loss in one[0])
    plan = loaded(tmp_path / "mixed", queries=[QUERIES[0], QUERIES[4]])  # in known cells of one query, not of the other
    at = Reference.of([{"employment": 50}] * 3)
    losses, total = losses_at(plan, policy_of(plan), at)
    alone = losses_at(plan, policy_of(plan), Reference.of(({"employment": Fraction(50)},)))[1].rho
    assert total.rho == sum(loss.rho for _, loss in losses) + 9 * TEST < tight([alone] * 3)


def test_pure_losses_of_a_firm(tmp_path: Path) -> None:
    plan = loaded(tmp_path, queries=[QUERIES[4], QUERIES[4] | {"name": "by-state", "by": ["state"]}])
    policy, rows = policy_of(plan), ({"employment": Fraction(3)}, {"employment": Fraction(4), "state": "06"})
    queries = [policy.query_pure_loss_at(located(plan, Reference.of(rows)), query.name) for query in plan.queries]
    assert queries == [pure([Fraction(7, 10), Fraction(7, 10)])] * 2
    assert policy.pure_loss_at(located(plan, Reference.of(rows))) == Fraction(28, 10) + Fraction(2, 100)  # the test's


def test_records_meet_the_listed_cells_only(tmp_path: Path) -> None:
    path = world(tmp_path, queries=QUERIES[3:4], budget=[])
    (tmp_path / "domain" / "cells.csv").write_text("naics,county\n441110,01001\n311111,06037\n441110,06075\n")
    path.write_text(
        path.read_text()
        .replace("naics: domain/naics.csv", "cells: domain/cells.csv")
        .replace("  county: domain/counties.csv\n", "")
    )
    plan = load_plan(path)
    rows = ({"employment": Fraction(4), "state": "06"}, {"employment": Fraction(8), "county": "06075"})
    _, total = losses_at(plan, policy_of(plan), Reference.of(rows))
    assert total.rho == Fraction(12**2, 32) + 4 * TEST  # both in 06075, if in any


# --- references


def test_references_are_lists_of_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = loaded(tmp_path)
    assert main(["explain", str(plan.path), "--json", "--at", "employment=10;employment=20,naics6=722511"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["unit"] == "firm_id"
    assert told["total"][0]["at"] == [{"employment": 10}, {"employment": 20, "naics6": "722511"}]
    assert [query["losses"][0]["influence"] for query in told["queries"]] == [2, 30, 10, 10, 30]
    shown = render(explain(plan, [parse_at("employment=10;employment=20", plan)]), plan)
    assert "protected: each firm, by firm_id" in render_verdict(verdict(plan))
    assert "    employment=10; employment=20   rho" in shown
    assert "every firm whose records can be matched one to one with records of the reference" in " ".join(shown.split())
    with pytest.raises(PlanError, match=r"reference naics3=311: it must also name employment"):
        explain(plan, [parse_at("employment=10;naics3=311", plan)])


def test_one_record_is_a_firm_of_one(tmp_path: Path) -> None:
    record = {"employment": 10, "naics3": "311"}
    as_list, alone = (
        loaded(tmp_path / name, budget=[{"at": at, "rho": 9}]) for name, at in (("a", [record]), ("b", record))
    )
    assert as_list.digest == alone.digest
    assert as_list.resolved()["budget"] == [{"at": [record], "rho": 9}]
    of_records = loaded(tmp_path / "c", dataset={"unit": "record"}, budget=[{"at": record, "rho": 9}])
    assert of_records.digest != alone.digest
    totals = [explain(plan, [])["total"][0]["rho"] for plan in (alone, of_records)]
    assert totals[0] == totals[1]


def test_mistakes_in_lists_stand_at_their_records(tmp_path: Path) -> None:
    rows = [{"employment": -1}, 7, {"employment": 1, "emplyoment": 2}, {"naics2": "31"}]
    for at, expected in (
        (rows, ["[0].employment: must be at least 0", "[1]: must be a mapping of keys to values"]),
        (
            rows[2:],
            [
                "[0].emplyoment: unknown measure or level; nearest known: employment",
                '[1].naics2: the domain has no code "31" at level naics2; write 31-33',
                "[1]: must also name employment, which a query sums",
            ],
        ),
    ):
        with pytest.raises(PlanError) as caught:
            loaded(tmp_path, budget=[{"at": at, "rho": 1}])
        assert [line.partition("budget[0].at")[2] for line in str(caught.value).split("\n")] == expected


# --- the ledger


def test_limits_at_lists_bind_over_releases_and_years(tmp_path: Path) -> None:
    first = Place(world(tmp_path, microdata=owned()), tmp_path)
    submit(first)
    plan = load_plan(first.plan)
    policy, (limit,) = policy_of(plan), limits_of(plan)
    state = first.state()
    assert written_limits(state) == (limit,)
    spent, asked = policy.loss_at(limit.at.anywhere()), policy.loss_at(limit.at)
    assert asked <= spent  # the first is taken at its worst place
    for slack, fits in ((-0.01, False), (1e-9, True)):
        rows = [{**BUDGET[0], "rho": float(spent + asked) + slack}]
        second = Place(world(tmp_path, release="second", budget=rows), tmp_path)
        if fits:
            assert submit(second).state == "settled"
            continue
        label = "employment=10, payroll=0; employment=20, payroll=0, naics6=311111"
        with pytest.raises(
            BudgetRefused, match=f"budget at {label} .the plan's own budget.: requested rho .* by small-release"
        ):
            submit(second)
    first.ledger().verify()


def test_an_earlier_limit_takes_a_later_release_at_its_worst_place(tmp_path: Path) -> None:
    at = [{"employment": 20, "naics6": "441110"}]  # not in food, and so free in the first release
    submit(Place(world(tmp_path, microdata=owned(), queries=[QUERIES[2]], budget=[{"at": at, "rho": 13}]), tmp_path))
    other = Place(world(tmp_path, release="second", queries=[QUERIES[3]], budget=[]), tmp_path)
    # 20²/32 = 12.5 for trade, and as much for food, of whose cells a later release knows nothing
    with pytest.raises(BudgetRefused, match=r"requested rho 12\.5001, spent 12\.5001 .*limit 13"):
        submit(other)


# --- counts and codes of owners: what a plan may not ask of them

SIZE = {"of": "employment", "classes": [0, 5], "per": "owner"}
MAIN = {"of": "employment", "main": "naics3"}
LISTS = {"naics": "domain/naics.csv", "county": "domain/counties.csv"}
FIRMS = {"name": "firms", "count": "owners", "by": ["state"], "mechanism": GAUSSIAN}


@pytest.mark.parametrize(
    ("changes", "line", "message"),
    [
        (
            {"dataset": {"unit": "record"}, "queries": [FIRMS]},
            "queries[firms].count",
            "dataset.unit must name the owner's column, not the record, so that all records of an owner are protected",
        ),
        (
            {"dataset": {"unit": "record"}, "domain": {**LISTS, "size": SIZE}},
            "domain.size.per",
            "follows from all records of an owner, so that one may move others to other cells: dataset.unit must name",
        ),
        (
            {"dataset": {"unit": "record"}, "domain": {**LISTS, "main": MAIN}},
            "domain.main.main",
            "dataset.unit must name",
        ),
        (
            {"domain": {**LISTS, "main": MAIN | {"main": "naics7"}}},
            "domain.main.main",
            "must be a level of another key",
        ),
        (
            {"domain": {**LISTS, "size": SIZE, "main": MAIN | {"main": "size"}}},
            "domain.main.main",
            "a level of another key with a list of codes",
        ),
        ({"domain": {**LISTS, "main": MAIN | {"of": "jobs"}}}, "domain.main.of", "unknown measure"),
        ({"derived": [{k: FIRMS[k] for k in ("count", "by")} | {"name": "d"}]}, "derived[d].count", "do not add up"),
    ],
)
def test_wrong_counts_and_codes_of_owners_are_refused(
    tmp_path: Path, changes: dict[str, Any], line: str, message: str
) -> None:
    dataset = OWNED | changes.pop("dataset", {})
    path = write_world(tmp_path, None, **{"budget": [], "queries": QUERIES, "dataset": dataset, **changes})
    with pytest.raises(PlanError) as refused:
        load_plan(path)
    (text,) = [text for text in refused.value.lines if message in text]
    assert str(path) in text
    assert line in text
    assert ":" in text.removeprefix(str(path))


@pytest.mark.parametrize(
    ("cells", "main", "message"),
    [
        ("naics,county,main\n311111,01001,31\n", "naics3", 'cells.csv: line 2: "31" is no code at naics3'),
        ("naics,county\n311111,01001\n", "naics3", "cells.csv: line 1: the header must be naics,county,main"),
        ("naics,county,main\n311,01001,311\n", "naics6", "plan.yaml: line 24: domain.main.main: must be a level"),
    ],
)
def test_codes_of_owners_in_listed_cells_are_codes_of_their_key(
    tmp_path: Path, cells: str, main: str, message: str
) -> None:
    domain = {"cells": "domain/cells.csv", "main": MAIN | {"main": main}}
    path = world(tmp_path, queries=[FIRMS | {"by": ["main"]}], budget=[], domain=domain)
    (tmp_path / "domain" / "cells.csv").write_text(cells)
    with pytest.raises(PlanError) as refused:
        load_plan(path)
    (line,) = refused.value.lines
    assert message in line


def test_rows_alone_are_kept_where_some_code_of_their_owner_leaves_them_in_a_cell(tmp_path: Path) -> None:
    """So `prdp check` and `prdp try` count them, which look at rows one by one."""
    path = world(
        tmp_path, queries=[FIRMS | {"by": ["size"]}], budget=[], domain={"cells": "domain/cells.csv", "size": SIZE}
    )
    (tmp_path / "domain" / "cells.csv").write_text("naics,county,size\n311111,01001,0-4\n722511,06037,5+\n")
    plan = load_plan(path)
    rows = owned(3).set_column(1, "naics", pa.array(["311111", "722511", "722511"]))
    (batch,) = rows.set_column(2, "county", pa.array(["01001", "06037", "01001"])).to_batches()
    kept, of_release = (Decoder(spec).records(batch).kept(spec) for spec in (row_by_row(plan), layout_of(plan).spec))
    assert kept is not None
    assert of_release is not None
    assert kept.tolist() == [True, True, False]
    assert not of_release.any()  # the twin: whose rows were not brought together


@pytest.mark.parametrize("domain", ["cells", "lists"])
def test_a_change_that_may_move_a_whole_firm_has_no_loss_of_its_own(tmp_path: Path, domain: str) -> None:
    """Also where no query names the firm's class, but listed cells do: it may leave all tables."""
    listed = LISTS if domain == "lists" else {"cells": "domain/cells.csv"}
    path = world(tmp_path, queries=[QUERIES[0]], budget=[], domain={**listed, "size": SIZE})
    (tmp_path / "domain" / "cells.csv").write_text("naics,county,size\n311111,01001,0-4\n722511,06037,5+\n")
    plan = load_plan(path)
    change = parse_change("employment=4:5", plan)
    if domain == "lists":
        assert change_losses(plan, policy_of(plan), change)[1] == Loss(Fraction(0), Fraction(0))
        return
    with pytest.raises(PlanError, match="follows from all records of an owner, which a change of one may move"):
        change_losses(plan, policy_of(plan), change)


def test_owners_that_are_missing_or_no_names_release_nothing(tmp_path: Path) -> None:
    """Blank and missing owners break the contract, and a column of numbers with a point names nobody: no charge."""
    rows = owned(20)
    for number, (owners, kind) in enumerate(
        [
            (pa.array(["F1", " ", *["F2"] * 18]), MicrodataError),
            (pa.array([0.5] * 20), PlanError),
            (pa.array(["\u2003", *["F2"] * 19]), MicrodataError),
        ]
    ):
        table = rows.set_column(rows.column_names.index("firm_id"), "firm_id", owners)
        place = Place(
            world(tmp_path / str(number), microdata=table, queries=[FIRMS], budget=[]), tmp_path / str(number)
        )
        with pytest.raises(kind) as refused:
            submit(place)
        assert "firm_id" in str(refused.value)
        assert not any(state.counts for state in place.ledger().states())


@pytest.mark.parametrize("second", [pa.array(["7", "07"]), pa.array(["7", "7"]).dictionary_encode(), "a.csv"])
def test_owners_of_two_types_are_refused_before_anything_is_charged(tmp_path: Path, second: Any) -> None:
    """Else a firm that is 7 in one file and 007 in another would be two, each protected by half."""
    plan = world(tmp_path, queries=[FIRMS], budget=[], naics=NAICS, counties=COUNTIES)
    (tmp_path / "microdata").mkdir()
    if isinstance(second, str):  # whole numbers of other widths are one type
        files = [pa.array([7, 8]), pa.array([7, 7], pa.int32()).dictionary_encode()]
    else:
        files = [pa.array([7, 8]), second]
    for i, owners in enumerate(files):
        pq.write_table(records(2, first=2 * i).append_column("firm_id", owners), tmp_path / f"microdata/{i}.parquet")
    place = Place(plan, tmp_path)
    if isinstance(second, str):
        assert submit(place).state == "settled"
        return
    with pytest.raises(PlanError, match=r"0.parquet: column firm_id has whole numbers, that of .*1.parquet text"):
        submit(place)
    assert place.ledger().state("small-release") is None


def test_firms_that_are_no_larger_count_whatever_their_own_class(tmp_path: Path) -> None:
    """A class of firms follows from a reference's total: the limit binds firms in all lower classes, noise and all."""
    narrow, wide = ({"kind": "gaussian", "sigma": sigma} for sigma in (0.3, 30))
    parted = {"by": "size", "parts": {"0-4": narrow}, "others": wide}
    queries = [
        {"name": "firms", "count": "owners", "by": ["state", "size"], "mechanism": parted},
        {"name": "jobs", "sum": "employment", "by": ["state"], "mechanism": wide},
    ]
    plan = loaded(tmp_path, queries=queries, budget=[], domain={**LISTS, "size": SIZE})
    policy = policy_of(plan)
    for at in ("employment=100,size=5+", "employment=50,size=5+;employment=50", "employment=100"):
        larger = parse_at(at, plan)
        smaller = policy.loss_at(located(plan, parse_at("employment=4,size=0-4", plan)))  # no larger, and loses more
        assert policy.loss_at(located(plan, larger, below=True)) >= smaller > Fraction(1, 2 * Fraction("0.09"))
    assert policy.loss_at(located(plan, parse_at("employment=100,size=5+", plan))) < smaller
    for at in ("employment=100,size=0-4", "employment=4,size=5+"):  # the class of no firm like this
        with pytest.raises(PlanError, match="all its records are of class"):
            located(plan, parse_at(at, plan))
    (years,) = explain_years(plan, [parse_at("employment=4,size=0-4", plan)], 2, Fraction(1, 2))
    grown = policy.loss_at(located(plan, Reference.of([{"employment": Fraction(6)}])))  # of any class
    assert years["rho_growing"] == pytest.approx(float(smaller + grown))
