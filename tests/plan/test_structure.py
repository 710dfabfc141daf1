"""structure.json: a plan's public facts, written and read back; and which tables leave the same records out."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from jobs.cli import main
from pipeline.base.errors import PlanError
from pipeline.engines.totals import layout_of
from pipeline.plan.domain import Domain
from pipeline.plan.domain.keys import Classes, Dimension
from pipeline.plan.load import load_plan
from pipeline.plan.structure import Structure, TableFacts, require_size, size_of
from tests.support.domains import listed_domain, product_domain
from tests.support.world import records, write_world
from udfs.records.statistics import Count

STEPS = {"payroll": Fraction(1, 2)}
DIMENSIONS = [
    Dimension.of("naics", ("311111", "445110"), other=True),
    Dimension.of("county", ("01001", "01003", "06037"), {"cbsa": {"01001": "33860", "01003": "", "06037": "31080"}}),
    Dimension.of("zip", ("00501", "10001"), optional=True),
    Dimension.of_classes("band", Classes("payroll", (Fraction(0), Fraction(1, 2), Fraction(100)), STEPS["payroll"])),
]
DOMAINS = {
    "all kinds of keys": Domain.of(DIMENSIONS, {"naics": 2017}),
    "two keys": product_domain(("311111", "445110"), ("01001", "06037")),
    "listed": listed_domain([("445110", "01001"), ("311111", "06037"), ("445110", "06037")], {"county": 2022}),
}


@pytest.mark.parametrize("name", DOMAINS)
def test_a_domain_is_read_back_as_it_was(name: str) -> None:
    domain = DOMAINS[name]
    read = Domain.from_json(json.loads(json.dumps(domain.to_json())), STEPS)
    assert read == domain
    assert read.uses_all_keys == domain.uses_all_keys
    for one, other in zip(read.dimensions, domain.dimensions, strict=True):
        assert (one.everyone, one.levels, one.has_other) == (other.everyone, other.levels, other.has_other)
    for one_cells, other_cells in zip(read.cells or (), domain.cells or (), strict=True):
        np.testing.assert_array_equal(one_cells, other_cells)


def facts(*by: str, **where: tuple[str, ...]) -> TableFacts:
    return TableFacts("t", Count(), by, where, None, {None: ()})


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        (facts("naics2", "band"), set()),  # every record has one of their codes
        (facts("cbsa"), {"county"}),
        (facts("naics3", "band", state=("01",), zip=("00501",)), {"county", "zip"}),
    ],
)
def test_a_table_needs_listed_codes_in_the_keys_that_it_uses(table: TableFacts, keys: set[str]) -> None:
    assert table.keys(DOMAINS["all kinds of keys"]) == keys


def test_tables_of_two_keys_or_of_listed_cells_all_need_both() -> None:
    for name in ("two keys", "listed"):
        assert facts("naics2").keys(DOMAINS[name]) == facts("state").keys(DOMAINS[name]) == {"naics", "county"}


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("plan")
    (folder / "naics.csv").write_text("code\n311111\n445110\n")
    (folder / "counties.csv").write_text("code,name,cbsa\n01001,A,33860\n01003,B,\n")
    (folder / "plan.yaml").write_text(
        """
release: r
dataset:
  {name: d, path: m, record: id, duplicates: trust, unit: record, bad_records: refuse,
   keys: {naics: naics, county: county}, measures: {pay: {column: p, type: decimal, step: 0.01}}}
domain: {naics: naics.csv, county: {list: counties.csv, levels: [cbsa]}, band: {of: pay, classes: [0, 10]}}
queries:
  - {name: n, count: records, by: [cbsa], where: {naics2: ["31-33"]}, mechanism: {kind: gaussian, sigma: 5}}
  - name: p
    sum: pay
    by: [naics2, band]
    mechanism: {by: naics2, parts: {"44-45": {kind: laplace, sigma: 9}}, others: {kind: gaussian, sigma: 5}}
budget: [{at: {pay: 10}, rho: 50}]
"""
    )
    plan = load_plan(folder / "plan.yaml")
    return plan, Structure.of(plan).to_json()


def test_a_plan_s_structure_is_read_back_as_it_was(read: Any) -> None:
    plan, text = read
    structure = Structure.from_json(text)
    assert structure.to_json() == text
    assert (structure.dataset, structure.domain, structure.interval) == ("d", plan.domain, Fraction(19, 20))
    assert structure.measures == {"pay": {"column": "p", "type": "decimal", "step": 0.01}}
    n, p = structure.tables.values()
    assert (n.where, n.split, n.by) == ({"naics2": ("31-33",)}, None, ("cbsa",))
    assert (p.statistic.label, p.split, p.parts) == (
        "sum of pay",
        "naics2",
        {"44-45": ("44-45",), "others": ("31-33",)},
    )
    assert n.cells(structure.domain).size == 1


def test_a_structure_names_no_place(read: Any, tmp_path: Path) -> None:
    plan, text = read
    assert str(plan.path.parent) not in text


@pytest.mark.parametrize("change", [lambda s: s[:-9], lambda s: s.replace('"gaps"', '"x"'), lambda s: "[]", str.upper])
def test_what_is_no_structure_is_refused_by_a_line(read: Any, change: Any) -> None:
    with pytest.raises(PlanError, match=r"structure\.json: is no structure"):
        Structure.from_json(change(read[1]))


# The size of a release: counted against its tables, and refused beyond what a site allows.


def test_the_size_is_that_of_the_tables_and_of_the_sums_kept(tmp_path: Path) -> None:
    plan = load_plan(write_world(tmp_path, None))
    size, layout = size_of(plan), layout_of(plan)
    assert size.cells == sum(table.cells.size for table in layout.tables)
    assert size.sums == sum(base.size * len(base.addends) for base in layout.spec.bases)
    assert size.kept == size.cells + size.sums
    require_size(plan, size.kept)
    with pytest.raises(PlanError, match=rf"more than the {size.kept - 1:,} that this site allows: the largest table"):
        require_size(plan, size.kept - 1)


def test_a_release_beyond_the_sites_limit_reserves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_world(tmp_path, records(20))
    assert main(["explain", str(path), "--at", "employment=10,payroll=10", "--json"]) == 0
    size = json.loads(capsys.readouterr().out)["size"]
    site = tmp_path / "site.yaml"
    ledger = tmp_path / "ledger" / "ledger.sqlite"
    assert main(["ledger", "create", str(ledger)]) == 0
    capsys.readouterr()
    monkeypatch.setenv("PRDP_SITE", str(site))
    site.write_text(yaml.safe_dump({"max_cells": size["cells"] + size["sums"] - 1}))
    command = ["release", str(path), "--ledger", str(ledger), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    assert "have max_cells raised" in capsys.readouterr().err
    assert main(["ledger", "show", "--ledger", str(ledger), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    site.write_text("max_cells: 0")
    assert main(command) == 2
    assert "max_cells: must be a whole number above 0" in capsys.readouterr().err
