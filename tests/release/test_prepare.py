"""Prepared microdata: typed, sorted, private, the same bytes everywhere; releases from them are those from raw data."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.cli import main
from pipeline.base.errors import MicrodataError, PlanError, StateError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.spark import SparkEngine
from tests.support.leaks import found as leaked
from tests.support.leaks import told
from tests.support.parity import PLANS, RELEASE
from tests.support.prepare import files, prepare_in_child, prepared, raw_forms
from tests.support.spark import PYSPARKS_OWN
from tests.support.submit import Place, submit
from tests.support.world import NAICS, QUERIES, budget_file, records, tree, write_world

pytestmark = PYSPARKS_OWN
CANARY = "CANARY-4711"
QUARTERS = {
    "employment": {"column": "employment", "type": "integer"},
    "payroll": {"column": "payroll", "type": "decimal", "step": 0.25},
}


def rows(count: int = 2000) -> pa.Table:
    """Rows of which some have the id of another, payrolls in quarters, an industry that the domain does not have."""
    table = records(count)
    naics = table.column("naics").to_pylist()
    naics[::50] = ["999999"] * len(naics[::50])
    pay = pa.array([value / 4 for value in table.column("payroll").to_pylist()])
    table = table.set_column(1, "naics", pa.array(naics)).set_column(4, "payroll", pay)
    return pa.concat_tables([table, table.slice(5, count // 3)])


def world(folder: Path, duplicates: str, bad_records: str = "refuse", **changes: Any) -> Place:
    dataset = {"duplicates": duplicates, "bad_records": bad_records, "measures": QUARTERS}
    dataset |= changes.pop("dataset", {})
    budget = [{"at": {"employment": 10, "payroll": 500}, "rho": 10_000}]
    kept = {"max_left_out": 0.99}  # one row in three is bad
    return Place(write_world(folder, None, dataset=dataset, budget=budget, **kept, **changes), folder)


def released(place: Place, name: str, microdata: Path, engine: Any = None) -> dict[str, bytes]:
    """Release into a place of its own."""
    own = Place(place.plan, place.folder / f"run-{name}")
    return tree(own.out / RELEASE / submit(own, microdata=microdata, engine=engine).attempt)


@pytest.mark.parametrize(
    ("duplicates", "bad_records"),
    [
        ("trust", "refuse"),
        pytest.param("combine", "refuse", marks=pytest.mark.drill),
        ("reject", "drop"),
        ("combine", "drop"),
    ],
)
def test_releases_from_prepared_and_raw_microdata_are_the_same_bytes(
    tmp_path: Path, spark: SparkEngine, duplicates: str, bad_records: str
) -> None:
    place, table = world(tmp_path, duplicates, bad_records), rows()
    if bad_records == "drop":
        counties = ["x", "0100", *table.column("county").to_pylist()[2:]]
        table = table.set_column(2, "county", pa.array(counties))
    raw = raw_forms(tmp_path, table)
    by_dask = prepared(place, raw["csv"], tmp_path / "by-dask")
    by_spark = prepared(place, raw["parquet"], tmp_path / "by-spark", spark)
    assert files(by_dask) == files(by_spark)
    assert len(files(by_dask)) == len({code[:3] for code in (*NAICS, "999999")})
    expected = released(place, "raw", raw["csv"])
    assert released(place, "raw-parquet", raw["parquet"]) == expected
    assert released(place, "prepared", by_dask) == expected
    assert released(place, "prepared-spark", by_spark, spark) == expected


def test_a_release_from_prepared_microdata_does_not_group_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = world(tmp_path, "combine")
    raw = raw_forms(tmp_path, rows())
    out = prepared(place, raw["parquet"], tmp_path / "prepared")

    def never(*_: object) -> None:
        raise AssertionError("rows were grouped")

    monkeypatch.setattr("pipeline.release.input_records.grouped_records", never)
    assert released(place, "prepared", out)
    with pytest.raises(AssertionError):
        released(place, "raw", raw["parquet"])


def test_the_files_hold_the_records_typed_and_sorted(tmp_path: Path) -> None:
    table, place = rows(), world(tmp_path, "combine")
    out = prepared(place, raw_forms(tmp_path, table)["csv"], tmp_path / "prepared")
    parts = [pq.read_table(path) for path in sorted(out.glob("*.parquet"))]
    coded = pa.dictionary(pa.int32(), pa.string())
    names = ["establishment_id", "naics", "county", "employment", "payroll"]
    kinds = [pa.string(), coded, coded, pa.int64(), pa.decimal128(38, 2)]
    assert all(part.schema.names == names and part.schema.types == kinds for part in parts)
    found = pd.concat(part.to_pandas() for part in parts).astype({"naics": str, "county": str, "payroll": float})
    keys = ["naics", "county", "establishment_id"]
    expected = table.to_pandas().groupby(keys, as_index=False).sum().sort_values(keys)[names]
    pd.testing.assert_frame_equal(found.reset_index(drop=True), expected.reset_index(drop=True), check_dtype=False)
    assert all(len({code[:3] for code in part.column("naics").to_pylist()}) == 1 for part in parts)
    modes = {path.stat().st_mode & 0o777 for path in out.iterdir()}
    assert (out.stat().st_mode & 0o777, modes) == (0o700, {0o600})
    manifest = json.loads((out / "prepared.json").read_text())
    assert manifest["confidential"]
    assert (manifest["records"], manifest["left_out"]) == (2000, {})
    assert manifest["files"].keys() == {path.name for path in out.glob("*.parquet")}
    assert sum(file["records"] for file in manifest["files"].values()) == 2000


def test_what_is_left_out_is_counted_by_rule(tmp_path: Path) -> None:
    place, table = world(tmp_path, "reject", "drop"), rows(300)
    employment = [None, None, *table.column("employment").to_pylist()[2:]]
    table = table.set_column(3, "employment", pa.array(employment))
    out = prepared(place, raw_forms(tmp_path, table)["csv"], tmp_path / "prepared")
    manifest = json.loads((out / "prepared.json").read_text())
    assert manifest["left_out"] == {
        "employment is empty (null)": 2,
        "establishment_id holds a row id that stands more than once": 100,
    }
    assert manifest["records"] == 300 - 100 - 2


def test_no_record_at_all(tmp_path: Path) -> None:
    place = world(tmp_path, "combine")
    raw = tmp_path / "microdata"
    raw.mkdir()
    pq.write_table(rows(4).slice(0, 0), raw / "empty.parquet")
    out = prepared(place, raw, tmp_path / "prepared")
    assert files(out).keys() == {"naics3-none.parquet"}
    for name, microdata in (("prepared", out), ("raw", raw)):
        with pytest.raises(PlanError, match="the microdata hold no record"):
            released(place, name, microdata)


# -- what does not hold


def test_bad_records_are_refused_and_nothing_is_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = rows(60)
    ids = [CANARY, CANARY, *table.column("establishment_id").to_pylist()[2:]]
    table = table.set_column(0, "establishment_id", pa.array(ids))
    raw = raw_forms(tmp_path, table)["csv"]
    place = world(tmp_path, "reject")
    out = tmp_path / "prepared"
    with pytest.raises(MicrodataError, match="holds a row id that stands more than once; correct") as raised:
        prepared(place, raw, out)
    assert not leaked(told(raised.value), [CANARY])
    assert not out.exists()
    ledger = f"sqlite:///{place.ledger_path}"
    arguments = ["prepare", str(raw), "--plan", str(place.plan), "--out", str(out), "--ledger", ledger]
    assert main(arguments) == 4
    shown = capfd.readouterr()
    assert not leaked(shown.out + shown.err, [CANARY])
    place.plan.write_text(place.plan.read_text().replace("duplicates: reject", "duplicates: trust"))
    assert main([*arguments, "--json"]) == 0
    shown = capfd.readouterr()
    assert json.loads(shown.out)["manifest"] == str(out / "prepared.json")
    assert not leaked(shown.out + shown.err + (out / "prepared.json").read_text(), [CANARY])


def touched(out: Path) -> None:
    file = next(out.glob("naics3-7*.parquet"))
    facts = file.stat()
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))


def longer(out: Path) -> None:
    file = next(out.glob("*.parquet"))
    file.write_bytes(file.read_bytes() + b"x")


def more(out: Path) -> None:
    shutil.copy2(next(out.glob("*.parquet")), out / "naics3-998.parquet")


def edited(out: Path) -> None:
    text = (out / "prepared.json").read_text()
    (out / "prepared.json").write_text(text.replace('"duplicates": "reject"', '"duplicates": "combine"'))


TAMPERED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "touched": (touched, "its files are not those that prepared.json lists"),
    "longer": (longer, "its files are not those"),
    "fewer": (lambda out: next(out.glob("*.parquet")).unlink(), "its files are not those"),
    "more": (more, "its files are not those"),
    "edited": (edited, "prepared.json is not as this version of prdp writes it"),
    "no JSON": (lambda out: (out / "prepared.json").write_text("[]"), "prepared.json is not as this version"),
    "no manifest": (lambda out: (out / "prepared.json").unlink(), "it has no prepared.json"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_a_tampered_folder_is_refused_before_anything_is_charged(tmp_path: Path, how: str) -> None:
    place = world(tmp_path, "reject")
    raw = raw_forms(tmp_path, records(200))
    out = prepared(place, raw["csv"], tmp_path / "prepared")
    tamper, words = TAMPERED[how]
    tamper(out)
    with pytest.raises(PlanError, match=words):
        submit(place, microdata=out)
    assert place.ledger().state(RELEASE) is None


def test_what_was_prepared_of_one_dataset_is_not_released_as_another(tmp_path: Path) -> None:
    place = world(tmp_path / "a", "trust")
    out = prepared(place, raw_forms(tmp_path, records(200))["parquet"], tmp_path / "prepared")
    alias = world(tmp_path / "b", "trust", dataset={"name": "alias"})
    with pytest.raises(PlanError, match="was prepared of dataset small-world, not of alias"):
        submit(alias, microdata=out)
    assert alias.ledger().state(RELEASE) is None


def test_a_registered_dataset_is_not_said_to_be_released_from_what_was_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(write_world(tmp_path / "w", records(20)), tmp_path)
    raw = raw_forms(tmp_path, records(20))["parquet"]
    address = ["--ledger", str(place.ledger().path)]

    def said(out: str) -> str:
        assert main(["prepare", str(raw), "--plan", str(place.plan), "--out", str(tmp_path / out), *address]) == 0
        return capsys.readouterr().out

    assert f"--data {tmp_path / 'first'}" in said("first")
    microdata = place.plan.parent / "microdata"
    assert main(["ledger", "init", "small-world", "--budget", str(budget_file(place.plan.parent)), *address]) == 0
    capsys.readouterr()
    told = " ".join(said("second").split())
    assert f"registers the dataset with {microdata}" in told
    assert "--data" not in told
    release = ["release", str(place.plan), "--data", str(tmp_path / "second"), *address]
    assert main([*release, "--out", str(tmp_path / "out")]) == 5  # which the command does not suggest


def test_what_another_contract_proved_is_refused(tmp_path: Path) -> None:
    raw = raw_forms(tmp_path, records(200))["parquet"]
    pay = {"name": "pay", "sum": "payroll", "by": ["state"], "mechanism": {"kind": "laplace", "sigma": 3}}
    root = pay | {"mechanism": {"kind": "root", "k": 2, "a": 1, "sigma": 1}}
    plain = {"queries": [pay]}
    finer = {"measures": QUARTERS | {"payroll": QUARTERS["payroll"] | {"step": 0.125}}}
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"duplicates": "trust"}, {"duplicates": "combine"}, "dataset.duplicates"),
        ({"duplicates": "combine"}, {"duplicates": "reject"}, "dataset.duplicates"),
        ({"duplicates": "combine"}, {"duplicates": "trust"}, "dataset.duplicates"),
        ({"duplicates": "reject"}, {"duplicates": "combine"}, ""),
        ({"duplicates": "reject"}, {"duplicates": "trust"}, ""),
        ({"duplicates": "reject", "bad_records": "drop"}, {"duplicates": "trust", "bad_records": "drop"}, "duplicates"),
        ({"duplicates": "trust", "bad_records": "drop"}, {"duplicates": "trust"}, "dataset.bad_records"),
        ({"duplicates": "trust"}, {"duplicates": "trust", "bad_records": "drop"}, ""),
        ({"duplicates": "trust"}, {"duplicates": "trust", "dataset": finer}, "dataset.measures.payroll"),
        ({"duplicates": "trust"}, {"duplicates": "trust", "dataset": {"record": "id"}}, "dataset.record"),
        ({"duplicates": "combine"} | plain, {"duplicates": "combine", "queries": [root]}, "dataset.measures.payroll"),
        ({"duplicates": "reject"} | plain, {"duplicates": "reject", "queries": [root]}, ""),
        ({"duplicates": "combine", "queries": [root]}, {"duplicates": "combine"} | plain, ""),
        *(
            (
                {"duplicates": "trust", "bad_records": "drop", "queries": before},
                {"duplicates": "trust", "bad_records": "drop", "queries": after},
                words,
            )
            for before, after, words in (
                ([pay], [root], "dataset.measures.payroll"),
                ([root], [pay], "dataset.measures.payroll"),
                ([pay], QUERIES, "dataset.measures.employment, dataset.measures.payroll"),
                ([QUERIES[0]], [QUERIES[0]], ""),
            )
        ),
    ]
    for i, (before, after, words) in enumerate(cases):
        out = prepared(world(tmp_path / f"{i}" / "a", **before), raw, tmp_path / f"{i}" / "prepared")
        place = world(tmp_path / f"{i}" / "b", **after)
        if words:
            with pytest.raises(PlanError, match=f"another contract, which differs in .*{words}; run prdp prepare"):
                submit(place, microdata=out)
        else:
            assert released(place, "prepared", out) == released(place, "raw", raw), (before, after)


def test_places_that_are_refused(tmp_path: Path) -> None:
    place = world(tmp_path, "trust")
    raw = raw_forms(tmp_path, rows(30))["parquet"]
    out = prepared(place, raw, tmp_path / "prepared")
    release = Path(submit(place, microdata=out).out) / RELEASE
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").touch()
    for where, words in (
        (release / "x", "a release's folder"),
        (place.ledger().staging_root / "x", "releases or their drafts"),
        (raw / "x", "overlaps the raw microdata"),
        (full, "no empty folder"),
        (out, "no empty folder"),
    ):
        with pytest.raises(StateError, match=words):
            prepared(place, raw, where)
    with pytest.raises(PlanError, match="prepared already"):
        prepared(place, out, tmp_path / "again")
    assert (full / "mine.txt").exists()


# -- killed


def test_a_killed_run_is_refused_and_started_anew(tmp_path: Path) -> None:
    table = rows(200)
    ids = [f"{CANARY}{name}" for name in table.column("establishment_id").to_pylist()]
    raw = raw_forms(tmp_path, table.set_column(0, "establishment_id", pa.array(ids)))["parquet"]
    place, out = world(tmp_path, "combine"), tmp_path / "prepared"
    whole = prepared(place, raw, tmp_path / "whole")
    code, events = prepare_in_child(place, raw, tmp_path / "counted", None)
    assert code == 0
    seen = 0
    for die_at in [*range(2, len(events), 9), *range(len(events) - 6, len(events) + 1)]:
        code, _ = prepare_in_child(place, raw, out, die_at)
        assert code == -signal.SIGKILL
        if (out / "prepared.json").exists():
            assert released(place, f"done-{die_at}", out)
            shutil.rmtree(out)
            continue
        seen += (out / ".preparing").exists()
        with pytest.raises(PlanError):
            released(place, f"killed-{die_at}", out)
        others = [
            p for p in out.rglob("*") if p.is_file() and not p.name.endswith(".parquet") and "naics3" not in p.name
        ]
        assert not [path for path in others if CANARY.encode() in path.read_bytes()]
    assert seen > 5
    shutil.rmtree(out, ignore_errors=True)
    prepare_in_child(place, raw, out, len(events) // 2)
    assert (out / ".preparing").exists()
    assert files(prepared(place, raw, out)) == files(whole)
    assert not (out / ".preparing").exists()


def test_a_killed_runs_folder_with_files_of_others_is_left_alone(tmp_path: Path) -> None:
    place, raw, out = world(tmp_path, "trust"), raw_forms(tmp_path, rows(30))["csv"], tmp_path / "prepared"
    (out / ".preparing").mkdir(parents=True)
    (out / "mine.txt").touch()
    with pytest.raises(StateError, match="holds files that prdp prepare did not write"):
        prepared(place, raw, out)
    assert (out / "mine.txt").exists()


@pytest.mark.parametrize("name", ["combined", "owners", "owners_cells"])
def test_the_parity_plan_of_rows_that_meet_from_prepared_microdata(
    tmp_path: Path, spark: SparkEngine, name: str
) -> None:
    """Of one id, or of one owner: prepared and released by either engine, the bytes are those of the raw microdata."""
    place = Place(PLANS[name](tmp_path), tmp_path)
    raw = tmp_path / "microdata"
    out = prepared(place, raw, tmp_path / "prepared")
    expected = released(place, "raw", raw)
    assert released(place, "prepared", out, DaskEngine(workers=1)) == expected
    if name != "combined":
        by_spark = prepared(place, raw, tmp_path / "by-spark", spark)
        assert files(by_spark) == files(out)
        assert released(place, "prepared-spark", by_spark, spark) == expected
