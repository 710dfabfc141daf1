"""Diagnostics stay confidential: where they may lie, what the ledger and the command tell of them."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from matplotlib.figure import Figure

from jobs.cli import main
from pipeline.base.errors import MicrodataError, PrdpError, StateError
from pipeline.base.plain import QUANTILES
from pipeline.diagnostics import diagnose as steps
from pipeline.diagnostics.diagnostics_page import draw_shares
from pipeline.engines.dask import DaskEngine
from pipeline.ledger.store import create_ledger
from pipeline.microdata import source
from pipeline.plan.load import load_plan
from pipeline.storage.paths import locate
from tests.support import firms
from tests.support.diagnostics import QUERIES, diagnosed, microdata, read, rows
from tests.support.ledgers import ledger_file, raw, reservation
from tests.support.losses import in_domain, met, whole
from tests.support.submit import Place, submit
from tests.support.world import records, write_world


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_world(tmp_path / "world", microdata(), queries=QUERIES, max_left_out=0.99)


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
    ledger = create_ledger(str(tmp_path / "state" / "ledger.sqlite"))
    ledger.reserve(reservation("other", out=str(tmp_path / "public")))
    for out in (plan.parent / "releases" / "diag", tmp_path / "public" / "diag", ledger.staging_root / "diag"):
        out.parent.mkdir(parents=True, exist_ok=True)
        job = steps.DiagnosticsJob(
            plan=load_plan(plan),
            microdata=locate(plan.parent / "microdata"),
            out=out,
            ledger=ledger,
            engine=DaskEngine(),
        )
        with pytest.raises(StateError, match="overlaps"):
            steps.diagnose(job)
        assert not out.exists()
    assert ledger.diagnoses() == []


def test_a_staging_folder_that_a_release_named_is_refused(plan: Path, tmp_path: Path) -> None:
    at = Place(plan, tmp_path)
    ledger, drafts = ["--ledger", ledger_file(at.ledger_path)], tmp_path / "drafts"
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
        with pytest.raises(StateError, match="out="):
            diagnosed(plan, tmp_path / name, state=tmp_path / "state")
    (tmp_path / "empty").mkdir()
    diagnosed(plan, tmp_path / "empty")


# -- the ledger ------------------------------------------------------------------------------------------------------


def test_the_ledger_records_a_run_before_a_record_is_read(
    plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = create_ledger(str(tmp_path / "state" / "ledger.sqlite"))
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
    assert ledger.verify()[0] == 7
    first, second = ledger.diagnoses()
    assert (first.per_record, first.compared, second.per_record) == (False, None, True)
    assert second.compared == before[0].attempt
    submit(place)  # published already


@pytest.mark.parametrize("change", ["payload = replace(payload, 'dask', 'mask')", "event = 'settled'"])
def test_a_changed_entry_of_a_run_is_found(plan: Path, tmp_path: Path, change: str) -> None:
    diagnosed(plan, tmp_path / "out")
    ledger = create_ledger(str(tmp_path / "state" / "ledger.sqlite"))
    connection = raw(ledger)
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f"DROP TRIGGER {trigger}")
    connection.execute(f"UPDATE entries SET {change}")
    connection.close()
    with pytest.raises(StateError, match="changed at entry 1"):
        ledger.verify()


# -- the command -----------------------------------------------------------------------------------------------------


def test_the_commands_contract(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = ["--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite")]
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
    plan = write_world(tmp_path / "world", None, max_left_out=0.99)
    ledger = ["--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite")]
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
    assert main(["diagnose", str(path), "--out", str(out), "--ledger", ledger_file(ledger), "--per-record"]) == 0
    told = capfd.readouterr()
    spoken = (told.out + told.err).encode() + b"".join(p.read_bytes() for p in ledger.parent.rglob("*") if p.is_file())
    for canary in (b"CANARY", b"735007735", b"735,007,735"):
        assert canary not in spoken
    assert any(row["owner"] == "CANARY-FIRM" for row in rows(out / "firms"))  # the canary was in the data
    assert any(row["record"] == "CANARY-RECORD" for row in rows(out / "records"))
    assert not (out / ".scratch").exists()


def test_the_page_is_marked_and_loads_nothing(plan: Path, tmp_path: Path) -> None:
    page = (diagnosed(plan, tmp_path / "out", pictures=True) / "report.html").read_text()
    assert "<thead><tr><td class=mark><header>CONFIDENTIAL</header></td></tr></thead>" in page
    assert "<title>CONFIDENTIAL" in page
    assert not re.search(r'src="(?!data:)|href="(?!#)|url\((?!#)|@import|<script', page)
    assert page.count("data:image/svg+xml;base64,") == 4  # all tables, tight policies, sizes, sectors


# prdp diagnose where policies are tight: the paper's bound of the same noise beside the losses that are stated.

ROOT = {"kind": "generalized_gaussian", "p": 0.5, "sigma": 5}
POLYLOG = {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 2.718281828459046, "sigma": 20}
MANY = [
    *QUERIES,
    {"name": "laplace", "sum": "employment", "by": ["state"], "mechanism": {"kind": "laplace", "sigma": 5}},
    {"name": "root", "sum": "employment", "by": ["naics3", "county"], "mechanism": ROOT},
    {"name": "polylog", "sum": "employment", "by": ["naics3", "state"], "mechanism": POLYLOG},
]
TIGHT = ["sectors", "laplace", "root", "polylog"]  # sectors: in some of its parts
TABLES = {"records": write_world, "firms": firms.world}


def told_by_paper(described: Any) -> Any:
    """Return queries whose heavy-tailed mechanisms ask for the paper's policy."""
    if isinstance(described, list):
        return [told_by_paper(one) for one in described]
    if not isinstance(described, dict):
        return described
    tight = described.get("kind") in ("laplace", "generalized_gaussian", "exponential_polylog", "symmetric_stable")
    return {key: told_by_paper(value) for key, value in described.items()} | ({"policy": "paper"} if tight else {})


@pytest.mark.parametrize("unit", TABLES)
def test_the_papers_bound_is_what_a_plan_of_the_papers_policies_would_state(unit: str, tmp_path: Path) -> None:
    tight, paper = (
        read(diagnosed(TABLES[unit](tmp_path / name, microdata=microdata(), queries=queries), tmp_path / f"{name} out"))
        for name, queries in (("tight", MANY), ("paper", told_by_paper(MANY)))
    )
    for made, other in ((tight["losses"], paper["losses"]), (tight["firms"], paper["firms"])):
        if made is None:
            assert unit == "records"
            continue
        assert other["by_paper"] is None
        beside = made["by_paper"]
        assert beside["total"] == other["total"]
        assert beside["by_size"] == other["by_size"]
        assert beside["by_query"] == {name: other["by_query"][name] for name in TIGHT}
        for name in TIGHT:
            stated, bound = made["by_query"][name], beside["by_query"][name]
            assert stated["count"] == bound["count"] > 0
            assert all(stated["quantiles"][q] <= bound["quantiles"][q] for q in QUANTILES)
            lower = any(stated["quantiles"][q] < bound["quantiles"][q] for q in QUANTILES)
            assert lower or name == "sectors"  # there Gaussian parts hide it; the twin, one bound twice, is never lower


def test_the_papers_bound_is_that_of_exact_fractions(tmp_path: Path) -> None:
    plan = write_world(tmp_path / "world", microdata(), queries=MANY)
    found = read(diagnosed(plan, tmp_path / "out"))["losses"]["by_paper"]
    loaded, losses = load_plan(plan), []
    for row in microdata().to_pylist():
        if in_domain(loaded, row):
            each = [met(loaded, query, row) for query in loaded.queries]
            losses.append(whole(one.mechanism.by_paper().loss_at(one.influence) for one in each if one))
    assert found["total"]["count"] == len(losses)
    assert 0 <= found["total"]["largest"] / float(max(losses)) - 1 < 1e-8
    half = float(np.sort(losses)[-(-len(losses) // 2) - 1])
    assert half <= found["total"]["quantiles"]["0.5"] <= half * (1 + 1 / 64) * (1 + 1e-8)


def test_the_page_shows_both_where_a_policy_is_tight(tmp_path: Path) -> None:
    pages = {}
    for name, queries in (("tight", MANY), ("paper", told_by_paper(MANY))):
        plan = firms.world(tmp_path / name, microdata=microdata(), queries=queries)
        pages[name] = (diagnosed(plan, tmp_path / f"{name} out") / "report.html").read_text(encoding="utf-8")
    for unit in ("records", "firms"):
        heading = f">Losses of {unit}: what tight policies gain</h2>"
        assert (heading in pages["tight"], heading in pages["paper"]) == (True, False)
    for name in ("all together", *TIGHT):
        assert f">{name}, tight<" in pages["tight"]
        assert f">{name}, paper<" in pages["tight"]


def test_lines_in_pairs_share_their_colour() -> None:
    curves = {name: [(1.0, 0.5), (10.0, 1.0)] for name in ("a, tight", "a, paper", "b, tight", "b, paper")}
    looks = {}
    for paired in (True, False):
        axes = Figure().subplots()
        draw_shares(axes, curves, "records", paired=paired)
        looks[paired] = [(line.get_color(), line.get_linestyle()) for line in axes.get_lines()]
    first, second, third, fourth = looks[True]
    assert first[0] == second[0] != third[0] == fourth[0]
    assert first[1] == third[1] != second[1] == fourth[1]
    assert len({colour for colour, _ in looks[False]}) == 4


def test_without_matplotlib_the_page_has_its_tables_and_says_so(tmp_path: Path) -> None:
    plan = write_world(tmp_path / "world", microdata(), queries=MANY)
    page = (diagnosed(plan, tmp_path / "out") / "report.html").read_text(encoding="utf-8")
    assert "Plots are left out" in page
    assert "<img" not in page
    assert ">all together, tight<" in page
