"""Rules of a release, seen through the whole pipeline."""

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from jobs.cli import main
from pipeline.base.errors import BudgetRefused, MicrodataError, PlanError, StateError
from pipeline.engines.dask import DaskEngine
from pipeline.engines.spark import SparkEngine
from pipeline.engines.totals import Layout
from pipeline.engines.writers import FILE_CELLS, rehearse_query
from pipeline.ledger.fold import MAX_DRAWS
from pipeline.ledger.reservation import charged
from pipeline.ledger.spending import spendings
from pipeline.plan.model import Query
from pipeline.release.publish import drawn_together
from tests.support.firms import owned, world
from tests.support.ledgers import staged_files
from tests.support.submit import KEY, Place, submit
from tests.support.world import BUDGET, COUNTIES, NAICS, QUERIES, figures, records, tree, without_footer, write_world

RELEASE = "small-release"


def released(folder: Path, microdata: pa.Table, **settings: object) -> dict[str, bytes]:
    """Release the small world under the known key; return the bytes of its tables, policy and page."""
    changes = settings.pop("changes", {})
    place = Place(write_world(folder, microdata, **changes), folder)  # type: ignore[arg-type]
    published = submit(place, **settings)  # type: ignore[arg-type]
    return tree(place.out / RELEASE / published.attempt)


def test_small_tables_are_drawn_together_each_once() -> None:
    file = FILE_CELLS
    assert [*map(list, drawn_together([file, file, 1, 5 * file, 1, 1]))] == [[0, 1], [2], [3], [4, 5]]
    assert [*map(list, drawn_together([1, 1, 1]))] == [[0, 1, 2]]
    assert [*map(len, drawn_together([1] * 250))] == [100, 100, 50]


@pytest.mark.parametrize("late", [True, False])
def test_noise_tables_are_built_before_an_engine_pickles_the_mechanisms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    totals, seen, begun = DaskEngine.totals, set[bool](), Event()

    def build(query: Query, interval: Fraction) -> None:
        begun.wait(60 if late else 1)
        rehearse_query(query, interval)

    def given(engine: DaskEngine, microdata: Any, layout: Layout, *others: Any) -> Any:
        seen.add(all("table" in vars(each.lattice_noise) for table in layout.tables for each in table.query.mechanisms))
        begun.set()
        return totals(engine, microdata, layout, *others)

    monkeypatch.setattr(DaskEngine, "totals", given)
    monkeypatch.setattr(DaskEngine, "pickles_late", late)
    monkeypatch.setattr("pipeline.release.steps.rehearse_query", build)
    released(tmp_path, records(10))
    assert seen == {not late}
    assert not SparkEngine.pickles_late


def rows(files: dict[str, bytes], query: str) -> list[dict[str, object]]:
    parts = [pq.read_table(pa.BufferReader(data)) for path, data in files.items() if f"tables/{query}/" in path]
    return pa.concat_tables(parts).to_pylist()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return released(tmp_path_factory.mktemp("reference"), records(2000))


def test_the_cells_are_the_public_domain_whatever_the_data_hold(tmp_path: Path, reference: dict[str, bytes]) -> None:
    outside = records(50).set_column(1, "naics", pa.array(["999999"] * 50))
    for name, microdata in (("one", records(1)), ("outside", outside), ("many", records(10**6))):
        files = released(tmp_path / name, microdata)
        assert files.keys() == reference.keys()
        for query in QUERIES:
            keys = [[row[level] for level in query["by"]] for row in rows(files, query["name"])]
            assert keys == [[row[level] for level in query["by"]] for row in rows(reference, query["name"])]
            assert keys == sorted(keys)
    every = [[naics, county] for naics in sorted(NAICS) for county in sorted(COUNTIES)]
    assert [[row["naics6"], row["county"]] for row in rows(reference, "establishments")] == every
    states = {row["naics3"] for row in rows(reference, "payroll_state")}
    assert states == {"311", "321", "336", "441", "445"}


def test_one_key_gives_the_same_bytes_however_the_work_is_cut(tmp_path: Path, reference: dict[str, bytes]) -> None:
    whole = records(2000)
    assert released(tmp_path / "again", whole) == reference
    assert released(tmp_path / "one-thread", whole, engine=DaskEngine(workers=1)) == reference
    shuffled = whole.take(pa.array(range(1999, -1, -1)))
    assert released(tmp_path / "reversed", shuffled) == reference
    cut = tmp_path / "cut"
    plan = write_world(cut, None)
    (cut / "microdata" / "deep").mkdir(parents=True)
    for i, start in enumerate(range(0, 2000, 300)):
        target = cut / "microdata" / ("deep" if i % 2 else ".") / f"z{9 - i}.parquet"
        pq.write_table(whole.slice(start, 300), target, row_group_size=70)
    published = submit(Place(plan, cut))
    assert tree(cut / "out" / RELEASE / published.attempt) == reference
    as_text = tmp_path / "csv"
    plan = write_world(as_text, None)
    (as_text / "microdata").mkdir()
    pa.csv.write_csv(whole, as_text / "microdata" / "all.csv")
    published = submit(Place(plan, as_text))
    assert tree(as_text / "out" / RELEASE / published.attempt) == reference


def test_another_key_gives_other_noise(tmp_path: Path, reference: dict[str, bytes]) -> None:
    files = released(tmp_path, records(2000), key=KEY[::-1])
    changed = {path for path, data in files.items() if data != reference[path]}
    assert {path.split("/")[1] for path in changed if path.startswith("tables/")} == {q["name"] for q in QUERIES}
    assert files["policy.json"] == reference["policy.json"]


def test_keys_are_fresh_in_production(tmp_path: Path, reference: dict[str, bytes]) -> None:
    first, second = (released(tmp_path / name, records(2000), key=None) for name in "ab")
    path = "tables/establishments/part-00000.parquet"
    assert len({first[path], second[path], reference[path]}) == 3


def test_input_that_changes_during_the_run_is_refused_and_the_next_run_draws_anew(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(100)), tmp_path)
    file = tmp_path / "microdata" / "part-0.parquet"

    def touch(stage: str) -> None:
        if stage.startswith("drawing"):
            os.utime(file, (1, 1))

    with pytest.raises(MicrodataError, match="changed during the run"):
        submit(place, say=touch)
    state = place.state()
    assert (state.status, state.attempt, state.draws) == ("drawn", None, 1)
    assert not (place.out / RELEASE).exists()
    assert not staged_files(place.ledger().staging_root)
    submit(place)
    after = place.state()
    assert (after.status, after.draws, after.charges) == ("settled", 2, 1)


def test_more_draws_than_allowed_are_all_charged_or_refused(tmp_path: Path) -> None:
    for rho, fits in ((1000, True), (30, False)):
        folder = tmp_path / str(rho)
        limits = [{**BUDGET[0], "rho": rho}]
        place = Place(write_world(folder, records(100), budget=limits), folder)

        def fail(stage: str, folder: Path = folder) -> None:
            if stage.startswith("drawing"):
                os.utime(folder / "microdata" / "part-0.parquet")

        for _ in range(MAX_DRAWS):
            with pytest.raises(MicrodataError):
                submit(place, say=fail)
        if not fits:
            with pytest.raises(BudgetRefused, match="requested rho"):
                submit(place)
            continue
        submit(place)
        state = place.state()
        assert state.charges == MAX_DRAWS + 1


def test_a_budget_that_is_too_small_refuses_before_the_data_are_read(tmp_path: Path) -> None:
    tight = [{"at": {"employment": 10, "payroll": 500}, "rho": 0.5}]
    place = Place(write_world(tmp_path, None, budget=tight), tmp_path)
    (tmp_path / "microdata").mkdir()
    broken = tmp_path / "microdata" / "broken.parquet"
    pq.write_table(records(10), broken, compression="none")
    broken.write_bytes(b"PAR1" + b"\xff" * 100 + broken.read_bytes()[104:])  # but its footer
    message = r"employment=10, payroll=500 \(the plan's own budget\): requested rho .*, spent 0 .*, limit 0\.5"
    with pytest.raises(BudgetRefused, match=message):
        submit(place)
    assert place.ledger().state(RELEASE) is None


def test_losses_add_up_over_the_releases_of_a_dataset(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(10)), tmp_path)
    submit(place)
    tight = [{**BUDGET[0], "rho": 20}]  # a release loses 12.1
    second = Place(write_world(tmp_path, None, release="second", budget=tight), tmp_path)
    with pytest.raises(BudgetRefused, match="by small-release"):
        submit(second)
    write_world(tmp_path, None, release="second")
    assert submit(second).state == "settled"


def test_a_published_release_is_reported_and_never_drawn_again(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(100)), tmp_path)
    first = submit(place, key=None)
    before = tree(place.out)
    assert submit(place, key=None) == replace(first, already=True)
    assert tree(place.out) == before
    with pytest.raises(StateError, match="another plan"):
        submit(Place(write_world(tmp_path, None, interval=0.9), tmp_path), key=None)
    elsewhere = Place(write_world(tmp_path, None), tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    (elsewhere.folder / "state").symlink_to(tmp_path / "state")
    with pytest.raises(StateError, match="another output location"):
        submit(elsewhere, key=None)


@pytest.mark.parametrize("rule", ["refuse", "drop"])
def test_bad_records_are_refused_or_dropped_by_themselves(
    tmp_path: Path, rule: str, reference: dict[str, bytes]
) -> None:
    bad = {
        "establishment_id": [f"B{i}" for i in range(4)],
        "naics": ["31111", "311111", None, "722511"],
        "county": ["01001", "01001", "01001", "0100 "],
        "employment": [5, None, 5, 5],
        "payroll": [10, 10, 10, 10],
    }
    good = records(2000)
    mixed = pa.concat_tables([good, pa.table(bad, schema=good.schema)])
    if rule == "drop":
        files = released(tmp_path, mixed, changes={"dataset": {"bad_records": "drop"}})
        assert figures(files) == figures(reference)
        return
    with pytest.raises(MicrodataError, match=r"county holds a code .*; employment is empty .*; naics holds a code"):
        released(tmp_path, mixed)
    assert not (tmp_path / "out" / RELEASE).exists()
    # Nothing was drawn: the same name may be used with another plan.
    place = Place(write_world(tmp_path, mixed, dataset={"bad_records": "drop"}), tmp_path)
    assert submit(place).state == "settled"


def test_what_is_published_says_nothing_of_the_data_beyond_the_noisy_values(
    tmp_path: Path, reference: dict[str, bytes]
) -> None:
    files = released(tmp_path, records(7))
    assert files["policy.json"] == reference["policy.json"]
    manifests = []
    for folder in (tmp_path, tmp_path / "more"):
        if folder != tmp_path:
            released(folder, records(5000), key=None)
        text = (folder / "out" / RELEASE / "release.json").read_text()
        manifests.append(json.loads(text))
    for manifest in manifests:  # hashes, sizes and attempts differ as any two draws do; nothing else may
        for entry in [*(f for t in manifest["tables"] for f in t["files"]), *manifest["files"]]:
            entry["path"] = entry["path"].split("/", 1)[1]
            del entry["sha256"], entry["bytes"]
        del manifest["attempt"], manifest["ledger_head"]
    assert manifests[0] == manifests[1]


def test_a_planted_value_shows_nowhere_outside_the_data(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    canary = 7_654_321_987
    planted = records(300).to_pydict()
    planted["payroll"][17] = canary
    planted["establishment_id"][17] = "CANARY-ESTABLISHMENT"
    released(tmp_path, pa.table(planted), key=None, csv=True)
    planted["employment"][17] = -5
    negative = [{**QUERIES[1], "mechanism": {"kind": "log", "a": 1, "sigma": 1}}]
    with pytest.raises(MicrodataError, match="employment is below zero"):
        released(tmp_path / "refused", pa.table(planted), key=None, changes={"queries": negative})
    out, err = capfd.readouterr()
    written = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "microdata" not in path.parts
    )
    with closing(sqlite3.connect(tmp_path / "state" / "ledger.sqlite")) as database:
        ledger = b"".join(row.encode() for row in database.iterdump())
    for text in (str(canary).encode(), b"CANARY", canary.to_bytes(8, "little")):
        assert text not in written + ledger + (out + err + caplog.text).encode()


# Releases whose unit is the firm: the same tables, another promise, and a contract of owners.


def test_firms_change_the_promise_and_not_the_tables(tmp_path: Path) -> None:
    limits = [{"at": {"employment": 10}, "rho": 1000}]
    files = {}
    for unit in ("record", "firm_id"):
        folder = tmp_path / unit
        place = Place(world(folder, microdata=owned(), dataset={"unit": unit}, budget=limits), folder)
        files[unit] = tree(place.out / "small-release" / submit(place).attempt)
    assert figures(files["record"]) == figures(files["firm_id"])
    told = json.loads(files["firm_id"]["policy.json"])
    manifest = json.loads((tmp_path / "firm_id" / "out" / "small-release" / "release.json").read_text())
    assert manifest["guarantee"] == told["guarantee"]
    assert "A firm is all records with one value of the column firm_id." in told["guarantee"]["words"]
    assert told["unit"] == "firm_id"
    assert told["references"][0]["at"] == [{"employment": 10}]
    page = files["firm_id"]["report.html"].decode()
    assert "each firm is all records with one value of firm_id" in page
    assert "per-record" not in page + json.dumps(told).lower()
    assert (
        "firm is all records" not in files["record"]["policy.json"].decode() + files["record"]["report.html"].decode()
    )


def test_the_ledger_keeps_what_a_firm_is_found_to_lose(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = [{"at": [{"employment": 10, "payroll": 0}, {"employment": 20, "payroll": 0}], "rho": 1000}]
    place = Place(world(tmp_path, microdata=owned(), budget=limits), tmp_path)
    submit(place)
    at = "employment=20,payroll=0;employment=10,payroll=0"  # in another order
    (spending,) = spendings(place.ledger(), at)
    (release,) = spending.to_json()["releases"]
    assert 0 < release["rho_found"] <= release["rho"] <= 1.1 * release["rho_found"]
    assert main(["ledger", "show", "--at", at, "--ledger", str(place.ledger_path)]) == 0
    assert "times the true one" in capsys.readouterr().out
    assert "rho_found" not in spendings(place.ledger(), "employment=9,payroll=0")[0].to_json()["releases"][0]
    (state,) = place.ledger().states()
    (bound,) = state.reservation["certified"]["bounds"]
    # An entry of an earlier version has no such key, and states the same loss.
    earlier = {key: value for key, value in bound.items() if key != "found"}
    certified = state.reservation["certified"] | {"bounds": [earlier]}
    now, then = (
        charged(s, 1) for s in (state, replace(state, reservation=state.reservation | {"certified": certified}))
    )
    assert now.loss_at(spending.at) == then.loss_at(spending.at)
    assert (now.attained_at(spending.at) > 0, then.attained_at(spending.at)) == (True, 0)


@pytest.mark.parametrize("owners", [["F1", None, "F2"], ["F1", "", "F2"], ["F1", " ", "F2"], [1, None, 2]])
@pytest.mark.parametrize("form", ["parquet", "dictionary", "csv"])
def test_a_record_without_an_owner_breaks_the_contract_by_itself(tmp_path: Path, owners: list[Any], form: str) -> None:
    table = records(3).append_column("firm_id", pa.array(owners))
    released = {}
    for name, rule, microdata in (
        ("refuse", "refuse", table),
        ("drop", "drop", table),
        ("good", "refuse", table.take([0, 2])),
    ):
        folder = tmp_path / name
        place = Place(world(folder, dataset={"bad_records": rule}, naics=NAICS, counties=COUNTIES), folder)
        (folder / "microdata").mkdir()
        if form == "csv":
            pa.csv.write_csv(microdata, folder / "microdata" / "a.csv")
        else:
            coded = pc.dictionary_encode(microdata["firm_id"]) if form == "dictionary" else microdata["firm_id"]
            pq.write_table(microdata.set_column(5, "firm_id", coded), folder / "microdata" / "a.parquet")
        if name == "refuse":
            with pytest.raises(MicrodataError, match="firm_id names no owner: it is empty"):
                submit(place)
            continue
        submit(place)
        files = {p.partition("/tables/")[2]: d for p, d in tree(place.out).items() if "/site/" not in p}
        released[name] = {path: without_footer(data) for path, data in files.items() if path}
        assert released[name]
    assert released["drop"] == released["good"]


def test_microdata_without_owners_are_refused(tmp_path: Path) -> None:
    no_names = owned().set_column(5, "firm_id", pa.array([0.5] * 500))
    for name, table, rule in (
        ("none", records(5), "it has no column firm_id"),
        ("odd", no_names, "firm_id is neither text nor whole"),
    ):
        with pytest.raises(PlanError, match=rule):
            submit(Place(world(tmp_path / name, microdata=table), tmp_path / name))
