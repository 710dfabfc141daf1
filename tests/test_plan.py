"""What a plan means: the resolved plan, and a digest that follows the meaning and nothing else."""

import json
import os
import pickle
import subprocess
import sys
from copy import deepcopy
from dataclasses import FrozenInstanceError, replace
from fractions import Fraction
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.canonical import canonical_json
from pipeline.canonical import digest as digest_of
from pipeline.plan.load import load_plan
from pipeline.plan.model import Measure, Plan
from pipeline.plan.schema import export_schema
from udfs.mechanisms.additive import Gaussian, Laplace
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.mechanisms.log import Log

ROOT = Path(__file__).parents[1]
SLOW = settings(derandomize=True, max_examples=60, deadline=None)
NAICS = ["311111", "311811", "321113", "441110", "111110"]
COUNTIES = ["01001", "01003", "02020", "36061"]
FRESH = count()

DATA: dict[str, Any] = {
    "release": "cbp-2023-county",
    "supersedes": None,
    "dataset": {
        "name": "cbp-2023",
        "path": "data/microdata",
        "record": "establishment_id",
        "duplicates": "trust",
        "unit": "record",
        "bad_records": "refuse",
        "keys": {"naics": "industry", "county": "fips"},
        "measures": {
            "employment": {"column": "emp", "type": "integer", "step": 1},
            "payroll": {"column": "pay", "type": "decimal", "step": 0.5},
        },
    },
    "domain": {"naics": "naics.csv", "county": "counties.csv", "vintage": {"naics": 2022, "county": None}},
    "interval": 0.95,
    "queries": [
        {
            "name": "establishments",
            "count": "records",
            "by": ["county", "naics4"],
            "where": {},
            "mechanism": {"kind": "gaussian", "sigma": 2, "policy": "paper"},
        },
        {
            "name": "payroll",
            "sum": "payroll",
            "by": ["naics2"],
            "where": {"naics2": ["31-33", "44-45"], "state": ["36", "01", "02"]},
            "mechanism": {"kind": "laplace", "sigma": 20, "policy": "paper"},
        },
        {
            "name": "employment",
            "sum": "employment",
            "by": ["nation"],
            "where": {},
            "mechanism": {"kind": "log", "a": 1, "sigma": 0.35},
        },
    ],
    "budget": [
        {"at": {"payroll": 500, "employment": 10, "naics3": "311"}, "rho": 2},
        {"at": {"employment": 1, "payroll": 2}, "rho": 1.5},
    ],
}
# Every key that may be left out, with its default.
DEFAULTS: list[tuple[tuple[str | int, ...], str]] = [
    ((), "supersedes"),
    ((), "interval"),
    (("dataset",), "duplicates"),
    (("dataset",), "unit"),
    (("dataset",), "bad_records"),
    (("dataset", "measures", "employment"), "step"),
    (("domain", "vintage"), "county"),
    (("queries", 0), "where"),
    (("queries", 2), "where"),
    (("queries", 0, "mechanism"), "policy"),
    (("queries", 1, "mechanism"), "policy"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


def load(
    folder: Path,
    data: dict[str, Any],
    *,
    naics: list[str] = NAICS,
    counties: list[str] = COUNTIES,
    name: str = "plan.yaml",
    text: str = "{}",
    label: str = "",
) -> Plan:
    """Load `data` from a fresh folder; `text` formats the YAML."""
    place = folder / str(next(FRESH))
    place.mkdir()
    for file, codes in (("naics.csv", naics), ("counties.csv", counties)):
        lines = [f"{code},{label}" for code in codes] if label else codes
        (place / file).write_text("\n".join(["code,name" if label else "code", *lines]))
    (place / name).write_text(text.format(yaml.safe_dump(data, sort_keys=False)))
    return load_plan(place / name)


def at(data: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        data = data[step]
    return data


def test_a_resolved_plan(folder: Path) -> None:
    plan = load(folder, DATA)
    employment, payroll = plan.dataset.measures
    assert employment == Measure("employment", "emp", "integer", Fraction(1))
    assert payroll == Measure("payroll", "pay", "decimal", Fraction(1, 2))
    assert plan.dataset.path == plan.path.parent / "data/microdata"
    assert plan.dataset.keys == {"naics": "industry", "county": "fips"}
    assert plan.domain.naics.codes == tuple(sorted(NAICS))
    assert plan.domain.vintage == {"naics": 2022}
    assert plan.interval == Fraction(19, 20)
    counted, paid, employed = plan.queries
    assert counted.measure is None
    assert counted.by == ("county", "naics4")
    assert counted.parts[0].mechanism == Gaussian(sigma=Fraction(2), step=Fraction(1))
    assert paid.measure == payroll
    assert paid.where == {"naics2": ("31-33", "44-45"), "state": ("01", "02", "36")}
    assert paid.parts[0].mechanism == Laplace(sigma=Fraction(20), step=Fraction(1, 2))
    assert employed.parts[0].mechanism == Log(a=Fraction(1), sigma=Fraction(7, 20))
    assert plan.budget[0].at == {"employment": 10, "naics3": "311", "payroll": 500}
    assert plan.budget[1].rho == Fraction(3, 2)


def test_the_resolved_plan_is_complete_and_canonical(folder: Path) -> None:
    plan = load(folder, DATA)
    resolved = plan.resolved()
    assert json.loads(canonical_json(resolved)) == resolved
    assert plan.digest == digest_of(resolved)
    assert resolved["domain"] == {"digest": plan.domain.digest, "vintage": {"naics": 2022}, "other": []}
    assert resolved["queries"][1] == {
        "name": "payroll",
        "sum": "payroll",
        "count": None,
        "by": ["naics2"],
        "where": {"naics2": ["31-33", "44-45"], "state": ["01", "02", "36"]},
        "mechanism": {"kind": "laplace", "sigma": 20, "policy": "paper", "step": 0.5},
    }
    assert resolved["dataset"] == {
        "name": "cbp-2023",
        "record": "establishment_id",
        "duplicates": "trust",
        "unit": "record",
        "bad_records": "refuse",
        "keys": {"naics": "industry", "county": "fips"},
        "measures": DATA["dataset"]["measures"],
    }
    shared = {key: resolved["dataset"][key] for key in ("unit", "record", "keys", "measures")}
    assert plan.dataset.facts() == shared
    assert str(plan.path.parent) not in canonical_json(resolved)
    assert "microdata" not in canonical_json(resolved)


def test_a_plan_cannot_change_and_can_be_pickled(folder: Path) -> None:
    plan = load(folder, DATA)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert hash(pickle.loads(pickle.dumps(plan))) == hash(plan)
    with pytest.raises(FrozenInstanceError):
        plan.interval = Fraction(1)  # type: ignore[misc]
    for mapping in (plan.queries[1].where, plan.budget[0].at, plan.dataset.keys, plan.domain.vintage):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]


def test_the_smallest_plan(folder: Path) -> None:
    data = {
        "release": "a",
        "dataset": {"name": "b", "path": "c", "record": "id", "keys": {"naics": "n", "county": "c"}},
        "domain": {"naics": "naics.csv", "county": "counties.csv"},
        "queries": [{"name": "q", "count": "records", "by": ["state"], "mechanism": {"kind": "gaussian", "sigma": 1}}],
    }
    plan = load(folder, data)
    assert plan.budget == ()
    assert plan.dataset.measures == ()
    assert plan.domain.vintage == {}
    assert (plan.dataset.unit, plan.dataset.duplicates, plan.dataset.bad_records) == ("record", "trust", "refuse")


def test_listed_cells(folder: Path) -> None:
    data = DATA | {"domain": {"cells": "cells.csv"}}
    (folder / "cells.csv").write_text("county,naics\n02020,311111\n01001,311111\n01001,441110\n36061,311811\n")
    (folder / "cells.yaml").write_text(yaml.safe_dump(data))
    plan = load_plan(folder / "cells.yaml")
    assert plan.domain.cells is not None
    assert plan.domain.query_cells(("county", "naics4"), {}).size == 4


def test_a_relative_path_to_the_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load(folder, DATA)
    monkeypatch.chdir(plan.path.parent)
    again = load_plan(Path("plan.yaml"))
    assert again == plan
    assert again.dataset.path.is_absolute()


def test_the_plan_that_comes_with_the_generator(folder: Path) -> None:
    data = yaml.safe_load((ROOT / "conf/plans/cbp-synthetic.yaml").read_text())
    naics = [line.split(",")[0] for line in (ROOT / "conf/codes/naics_2022.csv").read_text().splitlines()[1:]]
    counties = [line.split(",")[0] for line in (ROOT / "conf/codes/counties_2020.csv").read_text().splitlines()[1:]]
    data["domain"] |= {"naics": "naics.csv", "county": "counties.csv"}
    plan = load(folder, data, naics=naics, counties=counties)
    assert plan.domain.cell_count(("naics6", "county")) == len(naics) * len(counties)


# --- the digest


def shuffled(draw: st.DataObject, value: Any) -> Any:
    """Return the data with its mappings in another order."""
    if isinstance(value, dict):
        return {key: shuffled(draw, value[key]) for key in draw.draw(st.permutations(list(value)))}
    return [shuffled(draw, item) for item in value] if isinstance(value, list) else value


def respelt(draw: st.DataObject, value: Any) -> Any:
    """Return the data with some whole numbers written as decimals; years are no measures of anything."""
    if isinstance(value, dict):
        return {key: part if key == "vintage" else respelt(draw, part) for key, part in value.items()}
    if isinstance(value, list):
        return [respelt(draw, item) for item in value]
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and draw.draw(st.booleans()) else value


@SLOW
@given(draw=st.data())
def test_the_digest_does_not_depend_on_how_a_plan_is_written(folder: Path, draw: st.DataObject) -> None:
    original = load(folder, DATA)
    data = deepcopy(DATA)
    for path, key in draw.draw(st.lists(st.sampled_from(DEFAULTS), unique=True)):
        del at(data, path)[key]
    where = data["queries"][1]["where"]
    data["queries"][1]["where"] = {level: draw.draw(st.permutations(codes)) for level, codes in where.items()}
    data["dataset"]["path"] = draw.draw(st.sampled_from(["elsewhere", "/data/cbp", "../x"]))
    again = load(
        folder,
        shuffled(draw, respelt(draw, data)),
        naics=draw.draw(st.permutations(NAICS)),
        counties=draw.draw(st.permutations(COUNTIES)),
        name=draw.draw(st.sampled_from(["plan.yaml", "other.yml"])),
        text=draw.draw(st.sampled_from(["{}", "# a comment\n{}\n# another", "---\n{}"])),
        label=draw.draw(st.sampled_from(["", "a name", "another name"])),
    )
    assert again.digest == original.digest
    # equal digests mean equal plans, but for paths, down to the order in which mappings are gone through
    assert repr((again.queries, again.budget)) == repr((original.queries, original.budget))
    assert replace(again, path=original.path, dataset=replace(again.dataset, path=original.dataset.path)) == original


OTHER: list[tuple[tuple[str | int, ...], Any]] = [
    (("release",), "cbp-2024"),
    (("supersedes",), "cbp-2022"),
    (("dataset", "name"), "other"),
    (("dataset", "record"), "id"),
    (("dataset", "bad_records"), "drop"),
    (("dataset", "keys", "naics"), "naics"),
    (("dataset", "keys", "county"), "county"),
    (("dataset", "measures", "employment", "column"), "employees"),
    (("dataset", "measures", "employment", "type"), "decimal"),
    (("dataset", "measures", "payroll", "step"), 0.25),
    (("dataset", "measures", "rent"), {"column": "rent", "type": "integer"}),
    (("domain", "vintage", "naics"), 2017),
    (("domain", "vintage", "county"), 2023),
    (("interval",), 0.9),
    (("queries", 0, "name"), "counts"),
    (("queries", 0, "by"), ["naics4", "county"]),
    (("queries", 0, "by"), ["county"]),
    (("queries", 0, "by"), ["county", "naics5"]),
    (("queries", 0, "where"), {"state": ["01"]}),
    (("queries", 0, "mechanism", "kind"), "laplace"),
    (("queries", 0, "mechanism", "sigma"), 2.0000000000000004),
    (("queries", 1, "sum"), "employment"),
    (("queries", 1, "where"), {"naics2": ["31-33", "44-45"]}),
    (("queries", 1, "where", "state"), ["36", "01"]),
    (("queries", 2, "mechanism", "a"), 2),
    (("queries", 2, "mechanism", "sigma"), 0.36),
    (("queries",), DATA["queries"][::-1]),
    (("queries",), DATA["queries"][:2]),
    (("budget",), []),
    (("budget",), DATA["budget"][:1]),
    (("budget", 0, "rho"), 2.5),
    (("budget", 0, "at", "payroll"), 501),
    (("budget", 0, "at", "naics3"), "321"),
]


def changed(changes: list[tuple[tuple[str | int, ...], Any]]) -> dict[str, Any]:
    data = deepcopy(DATA)
    for path, value in changes:
        at(data, path[:-1])[path[-1]] = value
    return data


def test_the_digest_depends_on_every_value(folder: Path) -> None:
    digests = {"": load(folder, DATA).digest}
    digests |= {str(change): load(folder, changed([change])).digest for change in OTHER}
    digests["a code less"] = load(folder, DATA, naics=NAICS[:-1]).digest
    digests["a county more"] = load(folder, DATA, counties=[*COUNTIES, "48201"]).digest
    digests["another code"] = load(folder, DATA, naics=[*NAICS[:-1], "111120"]).digest
    assert len(set(digests.values())) == len(digests)


NUMBERS = st.decimals("0.001", "1e6", places=3).map(float) | st.integers(1, 10**9) | st.floats(1e-9, 1e12)
NUMBER_PLACES: list[tuple[str | int, ...]] = [
    ("queries", 0, "mechanism", "sigma"),
    ("queries", 2, "mechanism", "a"),
    ("dataset", "measures", "payroll", "step"),
    ("budget", 0, "rho"),
    ("budget", 1, "at", "employment"),
]


@SLOW
@given(path=st.sampled_from(NUMBER_PLACES), one=NUMBERS, other=NUMBERS)
def test_digests_are_equal_exactly_where_numbers_are(
    folder: Path, path: tuple[str | int, ...], one: float, other: float
) -> None:
    digests = [load(folder, changed([(path, number)])).digest for number in (one, other)]
    assert (digests[0] == digests[1]) == (Fraction(repr(one)) == Fraction(repr(other)))


def test_numbers_mean_their_shortest_decimal(folder: Path) -> None:
    sigma = load(folder, changed([(("queries", 0, "mechanism", "sigma"), 0.1)])).queries[0].parts[0].mechanism
    assert sigma == Gaussian(sigma=Fraction(1, 10))


@pytest.mark.parametrize(
    ("written", "meant"), [("1e3", 1000), ("2.50", Fraction(5, 2)), (".5", Fraction(1, 2)), ("+3", 3), ("010", 10)]
)
def test_numbers_are_read_as_yaml_1_2_reads_them(folder: Path, written: str, meant: Fraction) -> None:
    data = changed([(("queries", 0, "mechanism", "sigma"), "HERE")])
    place = load(folder, DATA).path
    place.write_text(yaml.safe_dump(data).replace("HERE", written))
    assert load_plan(place).queries[0].parts[0].mechanism == Gaussian(sigma=Fraction(meant))


def test_anchors_and_a_byte_order_mark(folder: Path) -> None:
    place = load(folder, DATA).path
    text = (
        yaml.safe_dump(DATA, sort_keys=False)
        .replace("where: {}", "where: &none {}", 1)
        .replace("where: {}", "where: *none", 1)
    )
    assert "*none" in text
    place.write_text("\ufeff" + text)
    assert load_plan(place).digest == load(folder, DATA).digest


# --- the JSON Schema


def test_the_schema_in_conf_is_the_export() -> None:
    assert (ROOT / "conf/plan.schema.json").read_text() == export_schema()


def test_the_schema_knows_every_mechanism_and_parameter() -> None:
    schema = json.loads(export_schema())
    assert schema["properties"]["interval"]["default"] == 0.95
    for kind, mechanism in CATALOGUE.items():
        known = schema["$defs"][kind]
        assert known["additionalProperties"] is False
        assert set(known["properties"]) == {"kind", *mechanism.parameters()}
        required = {name for name, parameter in mechanism.parameters().items() if parameter.default is None}
        assert set(known["required"]) == {"kind", *required}
        for name, parameter in mechanism.parameters().items():
            if parameter.minimum is not None:
                bound = "exclusiveMinimum" if parameter.exclusive else "minimum"
                assert known["properties"][name][bound] == parameter.minimum


# --- what a command that only explains must not load


def test_loading_a_plan_imports_no_engine_and_no_data_frames(folder: Path) -> None:
    plan = load(folder, DATA).path
    code = (
        "import sys; from pathlib import Path; from pipeline.plan.load import load_plan; load_plan(Path(sys.argv[1])); "
        "print(sorted({'pandas', 'pyarrow', 'dask', 'distributed', 'sqlalchemy', 'scipy'} & sys.modules.keys()))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-c", code, str(plan)], capture_output=True, text=True, check=True, env=environment
    )
    assert run.stdout.strip() == "[]"
