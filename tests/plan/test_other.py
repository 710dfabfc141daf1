"""Other cells: totals against a groupby in which codes beyond the domain's lists are mapped, and what they may lose."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.accounting.references import Reference
from pipeline.base.errors import BudgetRefused, MicrodataError, PlanError
from pipeline.engines.totals import layout_of, totals_of
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.plan.structure import Structure, closing
from pipeline.plan.total_policy import limits_of, parse_at, policy_of
from pipeline.planning.explanation import explain
from pipeline.publication.description import OF_OTHER as OF_OTHER_CODES
from pipeline.publication.description import oddities
from tests.support.many_keys import ALL, CBSA, EDGES, GROUP, KEYS, write
from tests.support.submit import Place, submit
from tests.support.world import records, write_world
from udfs.records.decoding import OUTSIDE, SumSpec
from udfs.records.sums import sum_batches

SECTORS = {"31": "31-33", "32": "31-33", "33": "31-33", "44": "44-45", "45": "44-45", "48": "48-49", "49": "48-49"}
DIGITS = {"naics2": 2, "naics3": 3, "naics4": 4, "naics6": 6, "state": 2, "county": 5}
LISTED = {"naics6": ("113110", "311111", "311811", "441110"), "naics4": ("1131", "3111", "3118", "4411")}
COUNTIES = ("01001", "01003", "06037", "36061")  # of eight in the microdata, and of two in California
STRANGE = ("999999", "311112", "990000", "010101")  # well formed, and in no list
BOTH = ("naics", "county")
QUERIES: list[tuple[tuple[str, ...], dict[str, list[str]]]] = [
    (("naics4", "county"), {}),
    (("county", "naics2"), {}),
    (("naics3",), {}),
    (("state",), {}),
    (("nation",), {}),
    (("naics2", "state"), {"county": ["01001", "06037"]}),
    (("nation",), {"naics3": ["311"]}),
]
OF_OTHER: list[tuple[tuple[str, ...], dict[str, list[str]]]] = [
    (("naics2", "county"), {"state": ["other", "06"]}),
    (("state",), {"naics2": ["other"]}),
    (("nation",), {"naics4": ["other", "3111"], "county": ["other"]}),
]
GAUSSIAN = {"kind": "gaussian", "sigma": 5}
AMPLE = [{"at": {"employment": 10}, "rho": 1000}]


def microdata(count: int = 4000) -> pa.Table:
    """Return records of which most have a code that the domain does not list."""
    table, random = records(count), np.random.default_rng(5)
    naics = np.array(table.column("naics").to_pylist(), dtype=object)
    county = np.array(table.column("county").to_pylist(), dtype=object)
    strange = random.random(count) < 0.1
    naics[strange] = random.choice(STRANGE, int(strange.sum()))
    county[random.random(count) < 0.05] = "00000"
    return table.set_column(1, "naics", pa.array(naics)).set_column(2, "county", pa.array(county))


def plan_of(folder: Path, other: Sequence[str], level: str = "naics6", **changes: Any) -> Plan:
    domain = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "other": list(other)}
    queries = [
        {"name": f"q{i}", "sum": "employment", "by": list(by), "where": where, "mechanism": GAUSSIAN}
        for i, (by, where) in enumerate([*QUERIES, *(OF_OTHER if len(other) == 2 else [])])
    ]
    facts = {"domain": domain, "naics": LISTED[level], "counties": COUNTIES, "queries": queries, "budget": AMPLE}
    return load_plan(write_world(folder, None, **(facts | changes)))


def code_at(code: str, level: str) -> str:
    if level == "nation":
        return "US"
    return code if code == "other" else SECTORS.get(code[:2], code[:2]) if level == "naics2" else code[: DIGITS[level]]


def grouped(table: pa.Table, plan: Plan, other: Sequence[str], number: int) -> dict[tuple[str, ...], int]:
    """Return a query's totals by pandas: unlisted codes become `other` where it is declared, else their rows go."""
    frame, query = table.to_pandas(), plan.queries[number]
    for key, lists in (("naics", LISTED[plan.domain.keys["naics"].level]), ("county", COUNTIES)):
        finest = frame[key].str[: len(lists[0])]
        frame[key] = finest.where(finest.isin(lists), "other" if key in other else None)
    frame = frame.dropna(subset=list(BOTH))
    for level in {*query.by, *query.where}:
        frame[f"@{level}"] = [code_at(c, level) for c in frame["naics" if level.startswith("naics") else "county"]]
    for level, codes in query.where.items():
        frame = frame[frame[f"@{level}"].isin(codes)]
    sums = frame.groupby([f"@{level}" for level in query.by])["employment"].sum()
    return {(key if isinstance(key, tuple) else (key,)): int(total) for key, total in sums.items() if total}


def found(table: pa.Table, plan: Plan, number: int, spec: SumSpec | None = None) -> dict[tuple[str, ...], int]:
    layout = layout_of(plan)
    totals = totals_of(layout, sum_batches(table.to_batches(max_chunksize=700), spec or layout.spec))[number]
    cells = layout.tables[number].cells
    keys = [[codes[i] for i in places.tolist()] for codes, places in cells.keys(0, cells.size).values()]
    assert sorted(zip(*keys, strict=True)) == list(zip(*keys, strict=True))  # rows in key order
    return {key: int(total) for key, total in zip(zip(*keys, strict=True), totals, strict=True) if total}


def without_other(plan: Plan) -> SumSpec:
    """A broken twin: codes that are not listed are dropped."""
    spec = layout_of(plan).spec
    return replace(spec, keys=tuple(replace(key, other=OUTSIDE) for key in spec.code_columns.values()))


@pytest.mark.parametrize("level", LISTED)
@pytest.mark.parametrize("other", [(), ("naics",), ("county",), BOTH])
def test_totals_are_those_of_a_groupby_with_unlisted_codes_mapped(
    tmp_path: Path, other: tuple[str, ...], level: str
) -> None:
    table, plan = microdata(), plan_of(tmp_path, other, level)
    for number, query in enumerate(plan.queries):
        expected = grouped(table, plan, other, number)
        assert found(table, plan, number) == expected
        if other and (not query.where or number >= len(QUERIES)):  # a filter on listed codes leaves `other` out
            assert found(table, plan, number, without_other(plan)) != expected


def test_every_public_cell_is_released_also_where_other_is_empty(tmp_path: Path) -> None:
    table = microdata()
    table = table.filter(pc.is_in(table.column("county"), pa.array(COUNTIES)))
    plan = plan_of(tmp_path, BOTH)
    (tmp_path / "microdata").mkdir()
    pq.write_table(table, tmp_path / "microdata" / "all.parquet")
    published = submit(Place(plan.path, tmp_path))
    tables = tmp_path / "out" / published.release / published.attempt / "tables"
    rows = pq.read_table(tables / "q0").to_pylist()
    assert OF_OTHER_CODES.format(records="records") in oddities(plan)
    assert OF_OTHER_CODES.format(records="records") not in oddities(plan_of(tmp_path, ()))
    keys = [(row["naics4"], row["county"]) for row in rows]
    naics = ["1131", "3111", "3118", "4411", "other"]
    assert keys == [(code, county) for code in naics for county in (*COUNTIES, "other")]
    assert pq.read_table(tables / "q3").column("state").to_pylist() == ["01", "06", "36", "other"]


@pytest.mark.parametrize("code", ["other", "31111", "", None, "00111"])
def test_what_is_no_code_still_breaks_the_contract(tmp_path: Path, code: str | None) -> None:
    table = microdata(50)
    table = table.set_column(1, "naics", pa.array([code, *table.column("naics").to_pylist()[1:]]))
    plan = plan_of(tmp_path, BOTH)
    with pytest.raises(MicrodataError, match="naics"):
        found(table, plan, 0)
    dropping = plan_of(tmp_path, BOTH, dataset={"bad_records": "drop"})
    assert found(table, dropping, 4) == grouped(table.slice(1), dropping, BOTH, 4)


@pytest.mark.parametrize("other", [(), BOTH])
def test_microdata_of_another_vintage_are_left_out_or_in_other_and_never_refused(
    tmp_path: Path, other: tuple[str, ...]
) -> None:
    table = microdata(300)  # Connecticut's county 09001 among them, and 454110 of NAICS 2017
    table = table.set_column(1, "naics", pa.array(["454110", *table.column("naics").to_pylist()[1:]]))
    files = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "other": list(other)}
    plan = plan_of(tmp_path, other, domain=files | {"vintage": {"naics": 2022, "county": 2023}})
    assert found(table, plan, 1) == grouped(table, plan, other, 1)


# --- what a record in it loses


def parted(folder: Path, others: float) -> Plan:
    """A query whose `other` cells cost a record most."""
    costly, cheap = ({"kind": "laplace", "sigma": sigma} for sigma in (others, 100))
    query = {
        "name": "jobs",
        "sum": "employment",
        "by": ["naics3", "county"],
        "mechanism": {"by": "naics2", "parts": {"other": costly}, "others": cheap},
    }
    budget = [{"at": {"employment": 10}, "rho": 1}, {"at": {"employment": 10, "naics2": "other"}, "rho": 1}]
    return plan_of(folder, ["naics"], queries=[query], budget=budget)


def test_the_worst_place_of_a_record_may_be_other(tmp_path: Path) -> None:
    plan = parted(tmp_path, 5)
    wanted = ["employment=10", "employment=10,naics2=other", "employment=10,naics2=31-33", "employment=10,naics3=other"]
    total = explain(plan, [parse_at(text, plan) for text in wanted])["total"]
    anywhere, in_other, listed, deep = (entry["rho"] for entry in total)
    assert anywhere == in_other == deep > listed > 0
    assert in_other == pytest.approx(
        2 + 0.2 / np.sinh(0.2) * np.expm1(-2) + 1 / 20_000, rel=1e-6
    )  # P = 2, s = 1/5; the test
    policy = policy_of(plan)
    alone = policy.loss_at(Reference.of({"employment": 10}))
    assert [policy.loss_at(limit.at) for limit in limits_of(plan)] == [alone] * 2


def test_a_reference_that_is_in_other_needs_a_declared_one(tmp_path: Path) -> None:
    plan = parted(tmp_path, 5)
    with pytest.raises(PlanError, match=r'no code "othr" at level naics2; write other'):
        explain(plan, [parse_at("employment=10,naics2=othr", plan)])
    with pytest.raises(PlanError, match=r"declare it as domain: \{…, other: \[county\]\}"):
        explain(plan, [parse_at("employment=10,state=other", plan)])


def test_a_limit_binds_the_records_in_other(tmp_path: Path) -> None:
    (tmp_path / "microdata").mkdir()
    pq.write_table(records(20), tmp_path / "microdata" / "all.parquet")
    plan = parted(tmp_path, 5)
    with pytest.raises(BudgetRefused, match="refused by the budget at"):
        submit(Place(plan.path, tmp_path))
    submit(Place(parted(tmp_path, 20).path, tmp_path))


def test_the_resolved_plan_names_other_in_one_order(tmp_path: Path) -> None:
    plans = [plan_of(tmp_path, other, queries=[_nation()]) for other in ((), ("naics",), BOTH, BOTH[::-1])]
    told = [plan.resolved()["domain"]["other"] for plan in plans]
    assert told == [[], ["naics"], ["naics", "county"], ["naics", "county"]]
    assert len({plan.digest for plan in plans}) == 3
    assert plans[2].digest == plans[3].digest


def _nation() -> dict[str, Any]:
    return {"name": "all", "count": "records", "by": ["nation"], "mechanism": GAUSSIAN}


def test_with_both_declared_no_record_is_left_out(tmp_path: Path) -> None:
    table = microdata()
    plan = plan_of(tmp_path, BOTH)
    whole = sum(table.column("employment").to_pylist())
    assert found(table, plan, 4) == {("US",): whole}
    assert sum(found(table, plan, 0).values()) == whole


# --- one group of tables: where every list has `other`, each record lies in one cell of each table

LEVELS_OF = {**KEYS, "band": []}
CLOSED = {
    "naics": "naics.csv",
    "county": {"list": "counties.csv", "levels": ["cbsa"]},
    "form": {"list": "forms.csv", "levels": ["group"]},
    "zip": "zips.csv",
    "size": {"of": "employment", "classes": EDGES["size"][1]},
    "other": ["naics", "county", "form", "zip"],
}
CODES = (["311111", "722511", "999999"], ["01001", "01003", "56045"], ["C", "P", "X"], ["00501", "99999"], [0, 7, 80])


def every_table() -> list[tuple[str, ...]]:
    """All choices of at most one level of each key."""
    chosen = product(*([None, *levels] for key, levels in LEVELS_OF.items() if levels))
    return [by for levels in chosen if (by := tuple(level for level in levels if level))]


def closed_plan(folder: Path, **domain: Any) -> Plan:
    queries = [
        {"name": f"q{i}", "count": "records", "by": list(by), "mechanism": GAUSSIAN}
        for i, by in enumerate(every_table())
    ]
    place = write(folder, ALL[:-1], queries, domain=CLOSED | domain)
    return load_plan(place.plan)


def where(level: str, row: Sequence[Any]) -> str:
    """The code of a record at a level, "" where a list has none for it: written down by hand."""
    naics, county, form, zip_code, employees = row
    listed = {"naics": naics != "999999", "county": county != "56045", "form": form != "X", "zip": zip_code != "99999"}
    of_key = {
        "naics": {"naics2": {"31": "31-33"}.get(naics[:2], naics[:2]), "naics3": naics[:3], "naics6": naics},
        "county": {"nation": "US", "state": county[:2], "county": county, "cbsa": CBSA.get(county, "")},
        "form": {"form": form, "group": GROUP.get(form, "")},
        "zip": {"zip": zip_code},
    }
    if level == "size":
        return {0: "0-4", 7: "5-9", 80: "50+"}[employees]
    key = next(key for key, codes in of_key.items() if level in codes)
    return of_key[key][level] if listed[key] or level == "nation" else "other"


def counted(plan: Plan) -> list[dict[tuple[str, ...], int]]:
    """Return the records of each cell of each table, one record of each combination of codes being there."""
    rows = list(product(*CODES))
    naics, county, form, zips, employees = zip(*rows, strict=True)
    table = {"id": [f"E{i}" for i in range(len(rows))], "naics": naics, "county": county, "lfo": form, "zip": zips}
    sums = sum_batches(
        pa.table(table | {"emp": employees, "pay": [0.5] * len(rows)}).to_batches(), layout_of(plan).spec
    )
    layout = layout_of(plan)
    counts = []
    for of_table, totals in zip(layout.tables, totals_of(layout, sums), strict=True):
        keys = [[codes[i] for i in places] for codes, places in of_table.cells.keys(0, of_table.cells.size).values()]
        counts.append({key: int(n) for key, n in zip(zip(*keys, strict=True), totals, strict=True) if n})
    return counts


def test_where_every_list_has_other_each_record_is_in_one_cell_of_each_table(tmp_path: Path) -> None:
    """Every combination of listed and unlisted codes, in all tables that there are; but for holes of a public list."""
    plan = closed_plan(tmp_path)
    assert {table.keys(plan.domain) for table in Structure.of(plan).tables.values()} == {frozenset()}
    holes = 0
    for by, counts in zip(every_table(), counted(plan), strict=True):
        cells = Counter(tuple(where(level, row) for level in by) for row in product(*CODES))
        assert counts == {cell: n for cell, n in cells.items() if "" not in cell}
        holes += sum(n for cell, n in cells.items() if "" in cell)
        assert sum(counts.values()) == 162 or {"cbsa", "group"} & {*by}
    assert holes


@pytest.mark.parametrize(
    ("domain", "keys"),
    [
        ({"other": ["naics", "county", "form"]}, {"zip"}),
        ({"zip": {"list": "zips.csv", "optional": True}}, {"zip"}),
        ({"other": ["form", "zip"]}, {"naics", "county"}),
    ],
)
def test_without_other_tables_leave_records_out_and_what_cures_it_is_named(
    tmp_path: Path, domain: dict[str, Any], keys: set[str]
) -> None:
    """Broken twins: the groups are those by which tables lose records."""
    plan = closed_plan(tmp_path, **domain)
    tables = Structure.of(plan).tables.values()
    assert frozenset.union(*(table.keys(plan.domain) for table in tables)) == keys
    if "other" in domain:
        lost = [162 - sum(counts.values()) for counts in counted(plan)]
        kept = [n for n, by in zip(lost, every_table(), strict=True) if not {"cbsa", "group"} & {*by}]
        facts = [table for table, by in zip(tables, every_table(), strict=True) if not {"cbsa", "group"} & {*by}]
        assert [n > 0 for n in kept] == [bool(table.keys(plan.domain)) for table in facts]
        assert closing(plan.domain, keys) == "add other: [naics, county, form, zip] to the plan's domain"
    else:
        cure = "a record without a code of zip, which is optional, is in no cell, nor in `other`"
        assert closing(plan.domain, keys) == cure
