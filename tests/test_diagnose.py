"""prdp diagnose: what it finds, where it may write, what it records, and that it tells nothing elsewhere."""

import json
import math
import os
import re
import stat
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from jobs.cli import main
from pipeline.diagnostics import run as steps
from pipeline.diagnostics.accuracy import VarianceCurve, class_labels
from pipeline.diagnostics.distribution import QUANTILES
from pipeline.diagnostics.losses import SIZES, size_labels
from pipeline.engines.dask import DaskEngine
from pipeline.errors import MicrodataError, PrdpError, StateError
from pipeline.ledger.store import open_ledger
from pipeline.microdata import source
from pipeline.plan.load import load_plan
from tests.support import firms, parity, world
from tests.support.diagnostics import diagnosed, in_files, read, rows
from tests.support.guarantee import CASES, named
from tests.support.ledgers import raw, reservation
from tests.support.losses import economy, in_domain, record_losses, wrong
from tests.support.submit import Place, submit
from tests.support.world import COUNTIES, NAICS, records, write_world
from udfs.codes import roll_up
from udfs.mechanisms.base import Mechanism

QUERIES = [*firms.QUERIES, *firms.COARSE]
OUTSIDE = ("999999", "56045")


def microdata(count: int = 600, seed: int = 1) -> pa.Table:
    return economy(seed, count, (*NAICS, OUTSIDE[0]), (*COUNTIES, OUTSIDE[1]), [f"F{i}" for i in range(50)])


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_world(tmp_path / "world", microdata(), queries=QUERIES)


# -- what it finds ---------------------------------------------------------------------------------------------------


def test_files_of_single_records_hold_their_losses(plan: Path, tmp_path: Path) -> None:
    found = rows(diagnosed(plan, tmp_path / "out", per_record=True) / "records")
    loaded, table = load_plan(plan), microdata().to_pylist()
    assert [row["record"] for row in found] == [row["establishment_id"] for row in table]
    assert [(row["naics"], row["county"]) for row in found] == [(row["naics"], row["county"]) for row in table]
    exact = [record_losses(loaded, row) for row in table]
    for i, query in enumerate(loaded.queries):
        assert wrong([row[f"loss_{query.name}"] for row in found], [losses[i] for losses in exact]) == []
    assert wrong([row["loss"] for row in found], [sum(losses, Fraction(0)) for losses in exact]) == []
    assert [row["influence_all"] for row in found] == [
        row["employment"] if in_domain(loaded, row) else 0 for row in table
    ]


def test_records_in_other_cells_lose_what_their_influence_costs_there(tmp_path: Path) -> None:
    """The domain holds half of the codes; every query has cells for the rest, so each record loses in all of them."""
    plan = write_world(
        tmp_path,
        records(400),
        naics=NAICS[::2],
        counties=COUNTIES[::2],
        domain={"naics": "domain/naics.csv", "county": "domain/counties.csv", "other": ["naics", "county"]},
        queries=[*world.QUERIES[:2], world.QUERIES[2] | {"where": {"naics2": ["other", "31-33"]}}],
    )
    loaded = load_plan(plan)
    count, employment, payroll = (query.parts[0].mechanism for query in loaded.queries)
    found = rows(diagnosed(plan, tmp_path / "out", per_record=True) / "records")
    expected = []
    for row in records(400).to_pylist():
        met = row["naics"] not in NAICS[::2] or row["naics"][:1] == "3"  # 311111 and 321113 are of 31-33
        expected.append(
            [
                count.loss_at(Fraction(1)),
                employment.loss_at(Fraction(row["employment"])),
                payroll.loss_at(Fraction(row["payroll"])) if met else Fraction(0),
            ]
        )
    for i, query in enumerate(loaded.queries):
        assert wrong([row[f"loss_{query.name}"] for row in found], [losses[i] for losses in expected]) == []


def close(stated: float, exact: float) -> bool:
    """Whether a quantile is at least the exact one, and above it by less than one part in 64."""
    return exact <= stated <= exact * (1 + 1 / 64) * (1 + 1e-8)


def test_distributions_are_those_of_the_records(plan: Path, tmp_path: Path) -> None:
    made = read(diagnosed(plan, tmp_path / "out"))
    loaded, table = load_plan(plan), microdata().to_pylist()
    inside = [row for row in table if in_domain(loaded, row)]
    losses = {id(row): float(sum(record_losses(loaded, row), Fraction(0))) for row in inside}
    assert made["records"] == {
        "read": 600,
        "dropped": 0,
        "outside_domain": 600 - len(inside),
        "in_domain": len(inside),
    }
    classes = list(zip(SIZES, (*SIZES[1:], math.inf), strict=True))
    groups: dict[str, dict[str, list[Any]]] = {
        "by_size": {
            label: [row for row in inside if low <= row["employment"] < high]
            for label, (low, high) in zip(size_labels(), classes, strict=True)
        },
        "by_sector": {
            sector: [row for row in inside if roll_up(row["naics"], "naics2") == sector]
            for sector in sorted({roll_up(code, "naics2") for code in NAICS})
        },
    }
    every = {"total": (made["losses"]["total"], inside)}
    for kind, of_kind in groups.items():
        assert made["losses"][kind].keys() == {label for label, members in of_kind.items() if members}
        every |= {f"{kind} {label}": (made["losses"][kind][label], m) for label, m in of_kind.items() if m}
    for name, (stated, members) in every.items():
        exact = np.sort([losses[id(row)] for row in members])
        assert stated["count"] == len(exact), name
        assert stated["largest"] == pytest.approx(exact[-1], rel=1e-8)
        assert stated["largest"] >= exact[-1]
        for q in QUANTILES:
            assert close(stated["quantiles"][q], float(exact[math.ceil(float(q) * len(exact)) - 1])), (name, q)
        for loss, share in stated["curve"]:
            assert np.mean(exact <= loss * (1 + 1e-8)) >= share - 1e-12
        assert stated["curve"][-1][1] == 1


def test_a_query_counts_the_records_of_its_cells(plan: Path, tmp_path: Path) -> None:
    of_query = read(diagnosed(plan, tmp_path / "out"))["losses"]["by_query"]
    loaded = load_plan(plan)
    food = [
        row for row in microdata().to_pylist() if in_domain(loaded, row) and roll_up(row["naics"], "naics2") == "31-33"
    ]
    assert of_query["food"]["count"] == len(food)
    assert list(of_query) == [query.name for query in loaded.queries]


def as_csv(folder: Path, table: pa.Table) -> None:
    folder.mkdir(parents=True)
    pa.csv.write_csv(table.slice(0, 201), folder / "a.csv")
    pa.csv.write_csv(table.slice(201), folder / "b.csv")


CUTS: dict[str, Callable[[Path, pa.Table], object]] = {
    "one file": lambda folder, table: in_files(folder, table, 10**6),
    "many files": lambda folder, table: in_files(folder, table, 41),
    "backwards": lambda folder, table: in_files(folder, table.take(list(range(len(table)))[::-1]), 77),
    "csv": as_csv,
}


@pytest.mark.parametrize("owned", [False, True], ids=["records", "firms"])
def test_however_the_data_are_cut_the_bytes_are_the_same(
    tmp_path: Path, owned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "CHUNK_RECORDS", 60)
    made = {}
    for name, write in CUTS.items():
        changes = {"queries": QUERIES} if owned else {"queries": parity.every_mechanism(), "budget": parity.AMPLE}
        path = (firms.world if owned else write_world)(tmp_path / name, microdata=None, **changes)
        write(tmp_path / name / "microdata", microdata())
        made[name] = (diagnosed(path, tmp_path / name / "out") / "diagnostics.json").read_bytes()
    assert len(set(made.values())) == 1
    assert (json.loads(made["csv"])["firms"] is not None) == owned


# -- accuracy against the truth --------------------------------------------------------------------------------------


def test_accuracy_is_that_of_the_published_tables(tmp_path: Path) -> None:
    path = write_world(tmp_path / "world", microdata())
    place = Place(path, tmp_path)
    published = submit(place)
    made = read(diagnosed(path, tmp_path / "diag", published=place.out / "small-release"))["accuracy"]
    assert made["compared_with"] == published.attempt
    loaded = load_plan(path)
    inside = [row for row in microdata().to_pylist() if in_domain(loaded, row)]
    for query, column in (("establishments", None), ("employment_sector_county", "employment")):
        table = pq.read_table(place.out / "small-release" / published.attempt / "tables" / query).to_pylist()
        levels = {"establishments": ("naics6", "county"), "employment_sector_county": ("naics2", "county")}[query]
        truth = [
            sum(
                1 if column is None else row[column]
                for row in inside
                if all(roll_up(row["naics" if "naics" in lv else "county"], lv) == cell[lv] for lv in levels)
            )
            for cell in table
        ]
        by_class = {row["total"]: row for row in made["queries"][query]}
        classes = [0 if not t else len(str(t)) for t in truth]
        labels = ["0", *class_labels()[2:]]
        for number, label in [*enumerate(labels), (None, "all")]:
            kept = [i for i, c in enumerate(classes) if number in (None, c)]
            assert (label in by_class) == bool(kept)
            if kept:
                require_row(by_class[label], [truth[i] for i in kept], [table[i] for i in kept])


def require_row(row: dict[str, Any], truth: list[int], table: list[dict[str, Any]]) -> None:
    errors = [cell["value"] - t for cell, t in zip(table, truth, strict=True)]
    n = len(truth)
    assert row["cells"] == n
    assert row["bias"] == pytest.approx(sum(errors) / n)
    assert row["mean_absolute_error"] == pytest.approx(sum(map(abs, errors)) / n)
    assert row["standard_error"] == pytest.approx(math.sqrt(sum(e**2 for e in errors) / n))
    held = [cell["lower"] <= t <= cell["upper"] for cell, t in zip(table, truth, strict=True)]
    assert row["coverage"] == pytest.approx(sum(held) / n)
    known = [(abs(e), t) for e, t in zip(errors, truth, strict=True) if t]
    if not known:
        assert row["mean_relative_error"] is row["within"] is None
        return
    assert row["mean_relative_error"] == pytest.approx(sum(e / t for e, t in known) / len(known))
    for share in ("0.01", "0.05", "0.1"):
        assert row["within"][share] == pytest.approx(sum(e <= float(share) * t for e, t in known) / len(known))


def test_without_a_release_the_mechanisms_errors_stand_alone(plan: Path, tmp_path: Path) -> None:
    made = read(diagnosed(plan, tmp_path / "out"))["accuracy"]
    assert made["compared_with"] is None
    for query in load_plan(plan).queries:
        for row in made["queries"][query.name]:
            assert row.keys() == {"total", "cells", "expected_standard_error"}
    (row, *_) = made["queries"]["count"]
    assert row["expected_standard_error"] == pytest.approx(4, rel=1e-9)


@pytest.mark.parametrize("mechanism", CASES, ids=named)
def test_interpolated_variances_are_near_the_mechanisms(mechanism: Mechanism) -> None:
    curve = VarianceCurve.of(mechanism)
    totals = np.array([0, 1, 5, 37, 1234, 99_999, 3_141_592], dtype=np.float64) * float(mechanism.step)
    exact = [mechanism.variance(float(total)) for total in totals]
    assert curve.at(totals).tolist() == pytest.approx(exact, rel=5e-3)


def test_another_plans_release_is_refused(tmp_path: Path) -> None:
    path = write_world(tmp_path / "world", records(50))
    place = Place(path, tmp_path)
    submit(place)
    other = write_world(tmp_path / "world", None, interval=0.9)
    with pytest.raises(StateError, match="another plan"):
        diagnosed(other, tmp_path / "diag", published=place.out / "small-release")
    write_world(tmp_path / "world", None)
    part = next((place.out / "small-release").rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(StateError, match="differs from the manifest"):
        diagnosed(path, tmp_path / "diag", published=place.out / "small-release")
    assert not (tmp_path / "diag").exists()


# -- bad records -----------------------------------------------------------------------------------------------------


def spoilt() -> pa.Table:
    table = microdata(200)
    codes, sizes = table.column("naics").to_pylist(), table.column("employment").to_pylist()
    codes[3], sizes[4], sizes[5] = "12", None, None
    return table.set_column(1, "naics", pa.array(codes)).set_column(3, "employment", pa.array(sizes))


def test_bad_records_are_refused_by_rule_or_dropped_and_counted(tmp_path: Path) -> None:
    refusing = write_world(tmp_path / "a", spoilt(), queries=QUERIES)
    with pytest.raises(MicrodataError, match=r"employment is empty .*; naics holds a code"):
        diagnosed(refusing, tmp_path / "out", per_record=True)
    assert not (tmp_path / "out").exists()
    dropping = write_world(tmp_path / "b", spoilt(), queries=QUERIES, dataset={"bad_records": "drop"})
    out = diagnosed(dropping, tmp_path / "out", per_record=True)
    assert read(out)["records"]["dropped"] == 3
    assert len(rows(out / "records")) == 197
    assert {"E3", "E4", "E5"}.isdisjoint(row["record"] for row in rows(out / "records"))


def test_data_that_change_meanwhile_are_refused(plan: Path, tmp_path: Path) -> None:
    def touch(stage: str) -> None:
        os.utime(plan.parent / "microdata" / "part-0.parquet", ns=(1, 1))

    with pytest.raises(MicrodataError, match="changed during the run"):
        diagnosed(plan, tmp_path / "out", say=touch)
    assert not (tmp_path / "out").exists()


def test_no_records_at_all(tmp_path: Path) -> None:
    path = write_world(tmp_path / "world", microdata(0), queries=QUERIES)
    made = read(diagnosed(path, tmp_path / "out", per_record=True))
    assert made["records"]["read"] == made["losses"]["total"]["count"] == 0
    owned = firms.world(tmp_path / "owned", microdata=microdata(0))
    assert read(diagnosed(owned, tmp_path / "owned-out", per_record=True))["firms"]["count"] == 0


# -- where it may write ----------------------------------------------------------------------------------------------


def test_the_place_is_private(plan: Path, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        out = diagnosed(plan, tmp_path / "new" / "out", per_record=True)
    finally:
        os.umask(before)
    modes = {p.relative_to(out).as_posix(): stat.S_IMODE(p.stat().st_mode) for p in (out, *out.rglob("*"))}
    assert modes == {
        ".": 0o700,
        "records": 0o700,
        "records/part-00000.parquet": 0o600,
        "report.html": 0o600,
        "diagnostics.json": 0o600,
    }


@pytest.mark.parametrize("inside", [".", "diagnostics", "tables/deep/er", "a/link"])
def test_a_releases_folder_is_refused(plan: Path, tmp_path: Path, inside: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "release.json").write_text("{}")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "link").symlink_to(elsewhere)
    out = tmp_path / inside / "x" if "link" in inside else elsewhere / inside
    with pytest.raises(StateError, match="release's folder"):
        diagnosed(plan, out, state=tmp_path / "state")
    assert [path.name for path in elsewhere.iterdir()] == ["release.json"]


def test_places_of_releases_and_drafts_are_refused(plan: Path, tmp_path: Path) -> None:
    ledger = open_ledger(str(tmp_path / "state" / "ledger.sqlite"))
    ledger.reserve(reservation("other", out=str(tmp_path / "public")))
    for out in (plan.parent / "releases" / "diag", tmp_path / "public" / "diag", ledger.staging_root / "diag"):
        out.parent.mkdir(parents=True, exist_ok=True)
        job = steps.DiagnosticsJob(
            plan=load_plan(plan), microdata=plan.parent / "microdata", out=out, ledger=ledger, engine=DaskEngine()
        )
        with pytest.raises(StateError, match="overlaps"):
            steps.diagnose(job)
        assert not out.exists()
    assert ledger.diagnoses() == []


def test_a_staging_folder_that_a_release_named_is_refused(plan: Path, tmp_path: Path) -> None:
    at = Place(plan, tmp_path)
    ledger, drafts = ["--ledger", str(at.ledger_path)], tmp_path / "drafts"
    assert main(["release", str(plan), "--out", str(at.out), "--staging", str(drafts), *ledger]) == 0
    for out in (drafts, drafts / "x", drafts.parent):
        assert main(["diagnose", str(plan), "--out", str(out), *ledger]) == 5
    assert not (drafts / "x").exists()


def test_a_place_beside_releases_of_any_ledger_is_refused(plan: Path, tmp_path: Path) -> None:
    submit(place := Place(plan, tmp_path / "theirs"))
    with pytest.raises(StateError, match="where releases are published"):
        diagnosed(plan, place.out / "diag", state=tmp_path / "state")
    assert not (place.out / "diag").exists()


def test_a_run_that_fails_leaves_nothing_also_behind_a_link(tmp_path: Path) -> None:
    bad = microdata(50)
    bad = bad.set_column(1, "naics", pa.array(["x", *bad.column("naics").to_pylist()[1:]]))
    path = firms.world(tmp_path / "world", microdata=bad)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(MicrodataError):
        diagnosed(path, tmp_path / "link", per_record=True)
    assert not (tmp_path / "real").exists()


def test_what_is_there_already_is_refused(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    for name in ("file", "full", "file/below"):
        with pytest.raises(StateError, match="--out"):
            diagnosed(plan, tmp_path / name, state=tmp_path / "state")
    (tmp_path / "empty").mkdir()
    diagnosed(plan, tmp_path / "empty")


# -- the ledger ------------------------------------------------------------------------------------------------------


def test_the_ledger_records_a_run_before_a_record_is_read(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = open_ledger(str(tmp_path / "state" / "ledger.sqlite"))
    seen = []

    def watched(*arguments: Any) -> None:
        seen.append(len(ledger.diagnoses()))
        raise PrdpError("stop here")

    monkeypatch.setattr(steps, "_write", watched)
    with pytest.raises(PrdpError, match="stop here"):
        diagnosed(plan, tmp_path / "out")
    assert seen == [1]
    (entry,) = ledger.diagnoses()
    loaded = load_plan(plan)
    assert (entry.dataset, entry.release, entry.digest) == ("small-world", "small-release", loaded.digest)
    assert entry.pin == source.pin(source.find(loaded.dataset.path))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", entry.time)
    assert ledger.verify()[0] == 1


def test_runs_change_no_releases_state_and_stay_in_the_chain(tmp_path: Path) -> None:
    path = write_world(tmp_path / "world", records(50))
    place = Place(path, tmp_path)
    diagnosed(path, tmp_path / "before")
    submit(place)
    before = place.ledger().states()
    diagnosed(path, tmp_path / "after", per_record=True, published=place.out / "small-release")
    ledger = place.ledger()
    assert ledger.states() == before
    assert ledger.verify()[0] == 6
    first, second = ledger.diagnoses()
    assert (first.per_record, first.compared, second.per_record) == (False, None, True)
    assert second.compared == before[0].attempt
    submit(place)  # published already


@pytest.mark.parametrize("change", ["payload = replace(payload, 'dask', 'mask')", "event = 'settled'"])
def test_a_changed_entry_of_a_run_is_found(plan: Path, tmp_path: Path, change: str) -> None:
    diagnosed(plan, tmp_path / "out")
    ledger = open_ledger(str(tmp_path / "state" / "ledger.sqlite"))
    connection = raw(ledger)
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute(f"UPDATE entries SET {change}")
    connection.close()
    with pytest.raises(StateError, match="changed at entry 1"):
        ledger.verify()


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_commands_contract(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = ["--ledger", str(tmp_path / "state" / "ledger.sqlite")]
    out = tmp_path / "out"
    assert main(["diagnose", str(plan), "--out", str(out), *ledger, "--per-record", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "release": "small-release",
        "plan_digest": load_plan(plan).digest,
        "out": str(out),
        "report": str(out / "report.html"),
        "diagnostics": str(out / "diagnostics.json"),
        "records": str(out / "records"),
        "confidential": True,
    }
    assert main(["diagnose", str(plan), "--out", str(out), *ledger]) == 5
    assert main(["diagnose", str(plan)]) == 2
    assert main(["diagnose", str(plan), "--out", str(tmp_path / "o2"), "--data", "nowhere", *ledger]) == 2
    capsys.readouterr()
    assert main(["ledger", "show", *ledger, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["dataset"], shown["per_record"]) == ("diagnosed", "small-world", True)
    assert main(["ledger", "show", *ledger]) == 0
    assert "confidential diagnostics of small-world" in capsys.readouterr().out


def test_a_release_beside_the_plan_is_held_against_the_truth(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_world(tmp_path / "world", None)
    ledger = ["--ledger", str(tmp_path / "state" / "ledger.sqlite")]
    assert main(["release", str(plan), *ledger, "--json"]) == 0
    attempt = json.loads(capsys.readouterr().out)["attempt"]
    assert main(["diagnose", str(plan), *ledger, "--out", str(tmp_path / "out")]) == 0
    assert read(tmp_path / "out")["accuracy"]["compared_with"] == attempt
    assert main(["diagnose", str(plan), *ledger, "--out", str(plan.parent / "releases" / "d")]) == 5


def test_nothing_of_a_record_is_told_elsewhere(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    table = microdata(300)
    names, sizes = table.column("establishment_id").to_pylist(), table.column("employment").to_pylist()
    owners = table.column("firm_id").to_pylist()
    names[7], owners[7], sizes[7] = "CANARY-RECORD", "CANARY-FIRM", 735_007_735
    table = table.set_column(0, "establishment_id", pa.array(names)).set_column(3, "employment", pa.array(sizes))
    path = firms.world(tmp_path / "world", microdata=table.set_column(5, "firm_id", pa.array(owners)))
    ledger = tmp_path / "state" / "ledger.sqlite"
    out = tmp_path / "out"
    assert main(["diagnose", str(path), "--out", str(out), "--ledger", str(ledger), "--per-record"]) == 0
    told = capfd.readouterr()
    spoken = (told.out + told.err).encode() + b"".join(p.read_bytes() for p in ledger.parent.rglob("*") if p.is_file())
    for canary in (b"CANARY", b"735007735", b"735,007,735"):
        assert canary not in spoken
    assert any(row["owner"] == "CANARY-FIRM" for row in rows(out / "firms"))  # the canary was in the data
    assert any(row["record"] == "CANARY-RECORD" for row in rows(out / "records"))
    assert not (out / ".scratch").exists()


def test_the_page_is_marked_and_loads_nothing(plan: Path, tmp_path: Path) -> None:
    page = (diagnosed(plan, tmp_path / "out") / "report.html").read_text()
    assert "<thead><tr><th class=mark>CONFIDENTIAL</th></tr></thead>" in page
    assert "<title>CONFIDENTIAL" in page
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)
    assert page.count("<svg") == 3
