"""`import prdp`: a plan, its explanation, release and published tables, each equal to what the command gives."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from jobs.cli import main
from tests.support.ledgers import ledger_file
from tests.support.world import NAICS, budget_file, plan, records, write_world

AT = {"employment": 10, "payroll": 500}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_world(tmp_path, records(200))


def command(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_import_loads_nothing_that_a_name_does_not_need() -> None:
    heavy = {"pandas", "pyarrow", "dask", "pyspark", "numpy", "sqlalchemy", "pydantic"}
    program = "import sys, prdp; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    program += "; prdp.load_plan; print(sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    bare, with_plans = (set(yaml.safe_load(line)) for line in done.stdout.splitlines())
    assert bare & heavy == set()
    assert with_plans & {"pandas", "pyarrow", "dask", "pyspark", "sqlalchemy"} == set()


def test_every_public_name_is_there() -> None:
    for name in prdp.__all__:
        assert getattr(prdp, name) is not None, name
    assert set(dir(prdp)) == set(prdp.__all__)
    with pytest.raises(AttributeError, match="public names"):
        _ = prdp.engine


def test_a_plan_of_a_mapping_is_the_plan_of_its_file(path: Path) -> None:
    of_file, of_mapping = prdp.load_plan(path), prdp.load_plan(plan(), folder=path.parent)
    assert of_file.digest == of_mapping.digest
    assert of_file.to_json() == of_mapping.to_json()
    assert prdp.load_plan(of_file) is of_file
    assert of_file.queries == ("establishments", "employment_sector_county", "payroll_state")
    with pytest.raises(prdp.PlanError, match="unknown key"):
        prdp.load_plan(plan(qeries=[]), folder=path.parent)
    with pytest.raises(prdp.PlanError, match="mappings, lists, text"):
        prdp.load_plan(plan(interval=object()), folder=path.parent)


def test_explain_is_the_commands(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = command(capsys, "explain", path, "--at", "employment=10,payroll=500", "--change", "employment=10:12")
    explained = prdp.load_plan(path).explain(at=AT, change={"employment": (10, 12)})
    assert explained.to_json() == printed
    losses = explained.losses
    assert list(losses.columns) == ["query", "at", "influence", "rho", "epsilon"]
    assert losses["rho"].tolist() == [query["losses"][0]["rho"] for query in printed["queries"]]
    assert explained.totals["rho"].tolist() == [printed["total"][0]["rho"]]
    assert set(explained.changes["query"]) == {"total", *losses["query"]}
    assert len(explained.accuracy) == sum(len(query["accuracy"]) for query in printed["queries"])
    assert "<table" in explained._repr_html_()
    assert main(["explain", str(path), "--at", "employment=10,payroll=500", "--change", "employment=10:12"]) == 0
    assert capsys.readouterr().out == f"{explained}\n"


def test_references_are_written_as_mappings_texts_and_groups(path: Path) -> None:
    loaded = prdp.load_plan(path)
    assert loaded.explain().to_json() == loaded.explain(at=AT).to_json()
    assert loaded.explain(at="employment=10,payroll=500").to_json() == loaded.explain(at=AT).to_json()
    both = loaded.explain(at=[AT, (AT, AT)]).totals
    assert both["at"].tolist()[1].count(";") == 1
    assert both["rho"].is_monotonic_increasing
    with pytest.raises(prdp.PlanError, match="unknown measure"):
        loaded.explain(at={"employees": 1})


def test_a_release_is_published_read_and_verified(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded, ledger = prdp.load_plan(path), ledger_file(tmp_path / "state" / "ledger.sqlite")
    assert loaded.check(ledger=ledger)["state"] is None
    made = loaded.release(ledger=ledger, workers=1, csv=True)
    assert made.to_json() | {"already": True} == command(capsys, "release", path, "--ledger", ledger)
    assert prdp.verify(made.path).attempt == made.attempt
    read = made.read(names=loaded)
    assert list(read) == list(loaded.queries)
    assert len(read) == 3
    frame = read["establishments"]
    assert list(frame.columns)[:4] == ["naics6", "naics6_name", "county", "county_name"]
    assert set(frame["naics6_name"]) == set(NAICS)
    plain = prdp.read_release(made.path)
    parquet = pq.read_table(made.tables["payroll_state"]["path"])
    assert plain.arrow("payroll_state").equals(parquet)
    pd.testing.assert_frame_equal(plain.dask("payroll_state").compute(), plain["payroll_state"], check_dtype=False)
    assert plain.policy.keys() >= {"queries"}
    with pytest.raises(KeyError):
        _ = plain["other"]
    next(Path(made.tables["payroll_state"]["path"]).glob("*.parquet")).write_bytes(b"")
    with pytest.raises(prdp.StateError, match="differs from the manifest"):
        prdp.read_release(made.path)


def test_a_ledger_shows_what_is_spent_and_lets_officers_act(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = prdp.create_ledger(tmp_path / "state" / "ledger.sqlite", operator="o")
    ledger.register("small-world", budget_file(tmp_path, 200))
    assert list(ledger.budgets()) == ["small-world"]
    held = prdp.load_plan(path).release(ledger=ledger, hold=True, workers=1)
    assert held.state == "held"
    with pytest.raises(prdp.StateError, match="nothing is published"):
        held.read()
    assert ledger.approve(held.name) == "settled"
    shown = ledger.show()
    assert shown[["release", "state"]].to_numpy().tolist() == [["small-release", "settled"]]
    capsys.readouterr()
    assert main(["ledger", "show", held.name, "--ledger", str(tmp_path / "state" / "ledger.sqlite"), "--json"]) == 0
    (printed,) = json.loads(capsys.readouterr().out)  # of the command: the same keys and values
    assert shown.to_dict("records") == [printed]
    (spent,) = ledger.spent(at=AT)
    assert 0 < spent["spent"] < 200 - spent["left"] + 1e-6
    assert ledger.verify(held.path)["releases"] == ["small-release"]
    assert len(ledger.entries()) == ledger.verify()["entries"]
    assert ledger.purge_staging() == []
    assert ledger.withdraw(held.name, "wrong year") == "withdrawn"


def test_what_else_commands_do(tmp_path: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = prdp.generate(20, tmp_path / "generated", seed=3)
    assert prdp.load_plan(made).name
    ledger = ledger_file(tmp_path / "state" / "ledger.sqlite")
    prepared = prdp.prepare(path, tmp_path / "microdata", tmp_path / "private" / "p", ledger=ledger, workers=1)
    assert Path(prepared["manifest"]).exists()
    diagnosed = prdp.diagnose(path, tmp_path / "private" / "d", ledger=ledger, workers=1)
    assert Path(diagnosed["report"]).exists()
    one = ["calibrate", "--kind", "laplace", "--standard-error", "30", "--total", "500"]
    assert prdp.calibrate(kind="laplace", standard_error=30, total=500) == command(capsys, *one)
    assert prdp.calibrate(path)["found"] == []
    with pytest.raises(prdp.PlanError, match="exactly one"):
        prdp.calibrate(kind="laplace", standard_error=30, loss=1)


def test_a_table_that_changed_after_it_was_verified_is_refused(path: Path, tmp_path: Path) -> None:
    made = prdp.load_plan(path).release(ledger=ledger_file(tmp_path / "state" / "ledger.sqlite"), workers=1)
    read = made.read()
    next(Path(made.tables["payroll_state"]["path"]).glob("*.parquet")).write_bytes(b"")
    with pytest.raises(prdp.StateError, match="contents were changed"):
        _ = read["payroll_state"]


def test_options_of_another_engine_and_a_ledger_on_a_chosen_machine_are_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, ledger = prdp.load_plan(path), ledger_file(tmp_path / "state" / "ledger.sqlite")
    with pytest.raises(prdp.PlanError, match="master=: it is not an option"):
        loaded.release(ledger=ledger, master="local[2]")
    with pytest.raises(prdp.PlanError, match="no such engine"):
        loaded.release(ledger=ledger, engine="polars")
    with pytest.raises(TypeError, match="threads"):
        loaded.release(ledger=ledger, threads=2)
    monkeypatch.setattr("pipeline.engines.spark.in_cluster_mode", lambda: True)
    with pytest.raises(prdp.PlanError, match="begin a new one"):
        loaded.release(ledger=ledger, engine="spark")
    with pytest.raises(prdp.PlanError, match="grows with the true total"):
        prdp.calibrate(kind="log", parameters={"a": 1}, standard_error=30)


def test_a_release_leaves_its_lineage_also_where_it_fails(path: Path, tmp_path: Path) -> None:
    loaded, target = prdp.load_plan(path), tmp_path / "lineage.jsonl"
    loaded.release(ledger=ledger_file(tmp_path / "state" / "ledger.sqlite"), lineage=target, workers=1)
    assert [json.loads(line)["eventType"] for line in target.read_text().splitlines()] == ["START", "COMPLETE"]
