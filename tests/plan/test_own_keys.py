"""Keys of a plan's own may have the names of NAICS levels and counties' levels, and mean nothing else by them."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from pipeline.accounting.references import Reference
from pipeline.base.errors import PlanError
from pipeline.plan.domain import Domain
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan, UnitNames
from pipeline.plan.total_policy import located, policy_of
from pipeline.publication.policy_document import named
from tests.support.submit import Place, submit

TAKEN = ("nation", "state", "naics2")
FREE = ("country", "region", "product")
GAUSSIAN, LOG = {"kind": "gaussian", "sigma": 40}, {"kind": "log", "a": 20, "sigma": 0.4}


def farms(folder: Path, names: tuple[str, str, str], **changes: Any) -> Path:
    """Write a plan of three keys, and its records: two countries, four regions that lie in both, three products."""
    country, region, product = names
    (folder / "micro").mkdir(parents=True)
    for name, codes in ((country, ["US", "PR"]), (region, ["01", "N", "S", "W"]), (product, ["11", "31-33", "corn"])):
        (folder / f"{name}.csv").write_text("\n".join(["code", *codes]) + "\n")
    records = [(f"f{i}", ("US", "PR")[i % 2], ("01", "N", "S", "W")[i % 4], "corn", 10 + i) for i in range(40)]
    columns = dict(zip(("id", "a", "b", "c", "acres"), map(list, zip(*records, strict=True)), strict=True))
    pq.write_table(pa.table(columns | {"holding": ["h1"] * 40}), folder / "micro" / "part.parquet")
    queries = [
        {"name": "by_region", "sum": "acres", "by": [region], "mechanism": GAUSSIAN},
        {"name": "by_country", "sum": "acres", "by": [country], "mechanism": LOG},
        {"name": "both", "count": "records", "by": [product, region], "mechanism": GAUSSIAN},
    ]
    plan = {
        "release": "farms",
        "dataset": {
            "name": "farms",
            "path": "micro",
            "record": "id",
            "unit": "holding",
            "keys": {country: "a", region: "b", product: "c"},
            "measures": {"acres": {"column": "acres", "type": "integer"}},
        },
        "domain": {name: f"{name}.csv" for name in names},
        "queries": queries,
        "budget": [{"at": [{"acres": 10}], "rho": 50}],
    }
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(plan | changes, sort_keys=False))
    return path


def loss_of_a_firm(plan: Plan) -> float:
    """Return the bound of what a firm of six records loses, wherever they lie."""
    firm = Reference.of([{"acres": acres} for acres in (10, 20, 30, 40, 50, 60)])
    return float(policy_of(plan).loss_at(located(plan, firm)))


def test_a_firm_loses_the_same_whatever_the_keys_are_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of an own `state` lie in none of an own `nation`: taken as nested, they would be charged too little."""
    taken, free = (load_plan(farms(tmp_path / names[0], names)) for names in (TAKEN, FREE))
    expected = loss_of_a_firm(free)
    assert loss_of_a_firm(taken) == expected
    monkeypatch.setattr(Domain, "nested_name", lambda domain, level: level)  # the broken twin
    assert loss_of_a_firm(load_plan(farms(tmp_path / "twin", TAKEN))) < expected


def test_tables_and_pages_of_own_keys_say_nothing_of_states(tmp_path: Path) -> None:
    outcome = submit(Place(farms(tmp_path, TAKEN), tmp_path))
    attempt = tmp_path / "out" / "farms" / outcome.attempt
    table = pq.read_table(attempt / "tables" / "by_region")
    assert table["state"].to_pylist() == ["01", "N", "S", "W"]
    assert not (attempt / "site" / "maps").exists()
    pages = "".join(path.read_text() for path in sorted((attempt / "site").rglob("*.*")) if path.suffix != ".gz")
    assert not [name for name in ("Alabama", "Manufacturing", "Agriculture") if name in pages]
    assert "Alabama" not in (attempt / "codes" / "state.csv").read_text()


NAMES = {"record": ["farm", "farms"], "owner": ["holding", "holdings"]}


def test_pages_call_records_and_owners_by_the_plans_own_names(tmp_path: Path) -> None:
    plan = farms(tmp_path, TAKEN, unit_names=NAMES)
    outcome = submit(Place(plan, tmp_path))
    attempt = tmp_path / "out" / "farms" / outcome.attempt
    front, report = (attempt / "site" / "index.html").read_text(), (attempt / "report.html").read_text()
    assert "Totals of confidential farms (farms), with noise that protects each holding." in front
    assert "Number of farms by" in front
    assert "differential privacy of whole holdings: each holding is all farms with one value of holding" in report
    assert load_plan(plan).digest != load_plan(farms(tmp_path / "unnamed", TAKEN)).digest


# Words of the data that prdp was first made for; scripts of pages know names of places, which they do not show.
OTHERS_WORDS = re.compile(r"(?i)\b(naics\w*|count(y|ies)|establishments?|firms?|census|sectors?|united states)\b")
UNIT_WORDS = re.compile(r"(?i)(?<!per-)\brecords?\b")  # of texts; in JSON it is also a key, and what `count` names
KEPT = re.compile(r'("records?": |"(count|unit)": "records?"|left_out_test|test of records left out)')


def strange_words(folder: Path) -> set[tuple[str, str]]:
    """Return the words in public files that a release of farms has no use for, with the files."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".json", ".html", ".csv", ".md", ".txt")]
    assert {"release.json", "policy.json", "report.html", "datapackage.json", "index.html"} <= {p.name for p in files}
    words = set()
    for path in files:
        text = KEPT.sub("", path.read_text(encoding="utf-8"))
        words |= {(path.name, match[0]) for rule in (OTHERS_WORDS, UNIT_WORDS) for match in rule.finditer(text)}
    return words


@pytest.mark.parametrize("unit", ["holding", "record"])
def test_no_public_file_of_farms_speaks_of_anything_else(tmp_path: Path, unit: str) -> None:
    path = farms(tmp_path, FREE, unit_names=NAMES)
    plan = yaml.safe_load(path.read_text())
    plan["dataset"]["unit"] = unit
    plan["budget"][0]["at"] = [{"acres": 10}] if unit == "holding" else {"acres": 10}
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    submit(Place(path, tmp_path))
    assert strange_words(tmp_path / "out") == set()
    policy = json.loads(next((tmp_path / "out").rglob("policy.json")).read_text())
    words = policy["guarantee"]["words"]
    assert f"For each {'holding f' if unit == 'holding' else 'farm r'}, what this release shows" in words
    text = prdp.load_plan(path).explain().text(detail=True)
    assert f"loss of every {'holding' if unit == 'holding' else 'farm'} no larger than" in text
    assert "firm" not in text


def test_without_names_the_words_are_found(tmp_path: Path) -> None:
    """The broken twin: the default names are records and firms, which the search above must see."""
    submit(Place(farms(tmp_path, FREE), tmp_path))
    assert {("policy.json", "firm"), ("policy.json", "records"), ("release.json", "firms")} <= strange_words(
        tmp_path / "out"
    )


def test_articles_and_capitals_follow_the_names() -> None:
    names = UnitNames(("enterprise", "enterprises"), ("owner", "owners"), stated=True)
    text = "A record and a firm: per-record privacy, one `record`. Firms are all records."
    expected = "An enterprise and an owner: per-record privacy, one `record`. Owners are all enterprises."
    assert named(text, names) == expected
    assert named(text, UnitNames()) == text


@pytest.mark.parametrize("names", [{"record": ["farm"]}, {"records": ["farm", "farms"]}, {"owner": ["a", "b\nc"]}])
def test_names_of_units_are_two_lines(tmp_path: Path, names: dict[str, list[str]]) -> None:
    with pytest.raises(PlanError, match="unit_names"):
        load_plan(farms(tmp_path, TAKEN, unit_names=names))


@pytest.mark.parametrize("listed", [False, True])
def test_two_keys_cannot_have_a_level_of_one_name(tmp_path: Path, listed: bool) -> None:
    path = farms(tmp_path, ("county", "state", "product"))
    plan = yaml.safe_load(path.read_text())
    (tmp_path / "county.csv").write_text("code\n01001\n")
    (tmp_path / "cells.csv").write_text("county,state,product\n01001,N,corn\n")
    path.write_text(yaml.safe_dump(plan | ({"domain": {"cells": "cells.csv"}} if listed else {}), sort_keys=False))
    with pytest.raises(PlanError, match=r"domain.state: state is a level of key county; give the key another name"):
        load_plan(path)
