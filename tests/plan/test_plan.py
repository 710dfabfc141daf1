"""What a plan means: the resolved plan, its JSON Schema, and what loading one imports."""

import json
import os
import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError
from fractions import Fraction
from pathlib import Path

import pytest
import yaml

from pipeline.accounting.calibrate import offset_of, scale_of
from pipeline.accounting.references import Reference
from pipeline.base.canonical import canonical_json
from pipeline.base.canonical import digest as digest_of
from pipeline.plan.load import load_plan
from pipeline.plan.model import Measure
from pipeline.plan.plan_schema import export_schema
from pipeline.storage.local import LocalPath
from tests.support.plans import DATA, NAICS, load
from udfs.mechanisms.additive_kinds import Gaussian, Laplace
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.mechanisms.transformed_kinds import Log
from udfs.records.statistics import Count, Sum

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


def test_a_resolved_plan(folder: Path) -> None:
    plan = load(folder, DATA)
    employment, payroll = plan.dataset.measures
    assert employment == Measure("employment", "emp", "integer", Fraction(1))
    assert payroll == Measure("payroll", "pay", "decimal", Fraction(1, 2))
    assert plan.dataset.path == LocalPath(plan.path.parent / "data/microdata")
    assert plan.dataset.keys == {"naics": "industry", "county": "fips"}
    assert plan.domain.keys["naics"].codes == tuple(sorted(NAICS))
    assert plan.domain.vintage == {"naics": 2022}
    assert plan.interval == Fraction(19, 20)
    counted, paid, employed = plan.queries
    assert counted.statistic == Count()
    assert counted.integer
    assert counted.by == ("county", "naics4")
    assert counted.parts[0].mechanism == Gaussian(sigma=Fraction(2), step=Fraction(1))
    assert paid.statistic == Sum("payroll")
    assert not paid.integer
    assert paid.where == {"naics2": ("31-33", "44-45"), "state": ("01", "02", "36")}
    assert paid.parts[0].mechanism == Laplace(sigma=Fraction(20), step=Fraction(1, 2))
    assert employed.parts[0].mechanism == Log(a=Fraction(1), sigma=Fraction(7, 20))
    assert plan.budget[0].at == Reference.of({"employment": 10, "naics3": "311", "payroll": 500})
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
        "mechanism": {"kind": "laplace", "sigma": 20, "policy": "tight", "lattice": "measure", "step": 0.5},
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
    assert plan.dataset.facts() == {key: value for key, value in resolved["dataset"].items() if key != "name"}
    assert str(plan.path.parent) not in canonical_json(resolved)
    assert "microdata" not in canonical_json(resolved)


def test_a_plan_cannot_change_and_can_be_pickled(folder: Path) -> None:
    plan = load(folder, DATA)
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert hash(pickle.loads(pickle.dumps(plan))) == hash(plan)
    with pytest.raises(FrozenInstanceError):
        plan.interval = Fraction(1)  # type: ignore[misc]
    for mapping in (plan.queries[1].where, plan.budget[0].at.records[0].values, plan.dataset.keys, plan.domain.vintage):
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


def test_equal_mechanisms_are_one(folder: Path) -> None:
    sigmas = {"a": 3, "b": 3.0, "c": 4}
    queries = [
        {"name": name, "count": "records", "by": ["state"], "mechanism": {"kind": "gaussian", "sigma": sigma}}
        for name, sigma in sigmas.items()
    ]
    split = {"by": "naics2", "parts": {"31-33": queries[0]["mechanism"]}, "others": queries[2]["mechanism"]}
    queries.append({"name": "d", "count": "records", "by": ["naics2"], "mechanism": split})
    a, b, c, d, others = (
        each for query in load(folder, DATA | {"queries": queries}).queries for each in query.mechanisms
    )
    assert a is b is d
    assert c is others
    assert a != c


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
    assert Path(again.dataset.path).is_absolute()


def test_the_plan_that_comes_with_the_generator(folder: Path) -> None:
    data = yaml.safe_load((ROOT / "conf/plans/cbp-synthetic.yaml").read_text())
    naics = [line.split(",")[0] for line in (ROOT / "conf/codes/naics_2022.csv").read_text().splitlines()[1:]]
    counties = [line.split(",")[0] for line in (ROOT / "conf/codes/counties_2022.csv").read_text().splitlines()[1:]]
    data["domain"] |= {"naics": "naics.csv", "county": "counties.csv"}
    plan = load(folder, data, naics=naics, counties=counties)
    assert plan.domain.query_cells(("naics6", "county"), {}).size == len(naics) * len(counties)


# --- the JSON Schema


def test_the_schema_in_conf_is_the_export() -> None:
    assert (ROOT / "conf/plan.schema.json").read_text() == export_schema()


def test_the_schema_knows_every_mechanism_and_parameter() -> None:
    schema = json.loads(export_schema())
    assert schema["properties"]["interval"]["default"] == 0.95
    for kind, mechanism in CATALOGUE.items():
        known = schema["$defs"][kind]
        assert known["additionalProperties"] is False
        scale = scale_of(mechanism)
        calibrated = set() if scale is None else {"calibrate"}
        assert set(known["properties"]) == {"kind", *mechanism.parameters(), *calibrated}
        required = {name for name, parameter in mechanism.parameters().items() if parameter.default is None}
        assert set(known["required"]) == {"kind", *(required - {scale, offset_of(mechanism)})}
        assert ("oneOf" in known) == bool(calibrated)
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
