"""prdp check: what it finds in bad microdata, where its report lies, and that nothing of it is anywhere else."""

import json
import os
import re
import shutil
import stat
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import prdp
from jobs.cli import main
from pipeline.base.errors import PlanError, StateError
from pipeline.diagnostics.check_microdata import CheckJob, Outcome, check
from pipeline.diagnostics.check_scan import CodeJudge, Wrong
from pipeline.engines.dask import DaskEngine
from pipeline.engines.protocol import Engine
from pipeline.engines.totals import layout_of
from pipeline.ledger.store import create_ledger, open_ledger
from pipeline.plan.domain.code_lists import vintage_of
from pipeline.plan.load import load_plan
from pipeline.storage.paths import locate
from tests.support import firms
from tests.support.leaks import forms, found
from tests.support.spark import PYSPARKS_OWN, shared_engine
from tests.support.world import records, write_world
from udfs.numbers.exact import exact

CANARY = "CANARY-KIWI"
VINTAGE = {"naics": 2022, "county": 2022}
LISTS = {"naics": "domain/naics.csv", "county": "domain/counties.csv"}
NAICS_2022 = ("311811", "456110", "722511")
COUNTIES_2022 = ("01001", "06037", "09110")


def modern(folder: Path, **changes: Any) -> Path:
    """A world whose lists are of 2022, as its plan says."""
    facts: dict[str, Any] = {"naics": NAICS_2022, "counties": COUNTIES_2022, "domain": LISTS | {"vintage": VINTAGE}}
    facts["budget"] = [{"at": {"employment": 10, "payroll": 1_000_000}, "rho": 10_000}]
    return write_world(folder, None, **facts | changes)


def frame(count: int = 40) -> pd.DataFrame:
    """Good rows of the modern world, as text, whose ids and payrolls must not be told."""
    return pd.DataFrame(
        {
            "establishment_id": [f"{CANARY}-{i:03d}" for i in range(count)],
            "naics": [NAICS_2022[i % 3] for i in range(count)],
            "county": [COUNTIES_2022[i % 2] for i in range(count)],
            "employment": ["5"] * count,
            "payroll": ["917263"] * count,
        }
    )


def spoiled() -> pd.DataFrame:
    """Rows of which 26 have something wrong, each in one way."""
    rows = frame()
    for first, end, column, value in (
        (0, 4, "naics", "454110"),  # in effect until 2021
        (4, 6, "naics", "31-33"),
        (6, 7, "naics", "72251"),
        (7, 8, "naics", "999999999"),
        (8, 11, "county", "6037"),
        (11, 12, "county", "9110.0"),
        (12, 14, "county", "09001"),  # of Connecticut, until 2021
        (14, 15, "county", CANARY),
        (15, 17, "county", ""),
        (17, 18, "naics", " 722511"),
        (18, 20, "employment", "$90817263"),
        (20, 21, "payroll", ""),
        (21, 24, "establishment_id", f"{CANARY}-twice"),
        (24, 25, "employment", "90817263"),  # beyond every reference
        (25, 26, "county", "06039"),  # valid, and not in the domain
    ):
        rows.loc[first : end - 1, column] = value
    return rows


def checked(plan: Path, data: Path, folder: Path, engine: Engine | None = None, **changes: Any) -> Outcome:
    job = CheckJob(
        plan=load_plan(plan),
        microdata=locate(str(data)),
        ledger=create_ledger(str(folder / "state" / "ledger.sqlite")),
        engine=engine or DaskEngine(workers=2),
        **{"as_json": True} | changes,
    )
    return check(job)


def report(outcome: Outcome) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(outcome.report.read_bytes())
    return made


def written(folder: Path, rows: pd.DataFrame, files: int = 1) -> Path:
    folder.mkdir(parents=True)
    for i in range(files):
        rows.iloc[i::files].to_csv(folder / f"{i}.csv", index=False)
    return folder


def kinds(made: dict[str, Any]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {"naics": Counter(), "county": Counter()}
    for each in made["codes"]:
        found[each["column"]][each["kind"]] += each["rows"]
    return found


def test_where_no_column_matches_the_report_lists_those_there(tmp_path: Path) -> None:
    rows = frame().rename(columns=lambda name: f"x_{name}")
    made = report(checked(modern(tmp_path), written(tmp_path / "raw", rows), tmp_path))
    assert made["columns_found"] == list(rows.columns)
    assert {column["nearest"] for column in made["columns"]} == set(rows.columns)
    headless = tmp_path / "headless.csv"
    frame().to_csv(headless, index=False, header=False)
    assert report(checked(modern(tmp_path), headless, tmp_path))["columns_found"] is None  # they may be a record's


def test_each_row_that_is_wrong_is_found_once(tmp_path: Path) -> None:
    made = report(checked(modern(tmp_path), written(tmp_path / "raw", spoiled(), 3), tmp_path))
    assert made["rows"] == 40
    assert kinds(made) == {
        "naics": {"EARLIER": 4, "RANGE": 2, "COARSE": 1, "DIGITS": 1, "SPACES": 1},
        "county": {"LOST_ZEROS": 3, "DECIMALS": 1, "EARLIER": 2, "TEXT": 1, "EMPTY": 2, "OUTSIDE": 1},
    }
    rules = {(each["column"], each["of"]): each["count"] for each in made["rules"]}
    assert rules == {
        ("naics", "row"): 5,
        ("county", "row"): 7,
        ("employment", "row"): 2,
        ("payroll", "row"): 1,
        ("establishment_id", "id"): 1,
    }
    assert made["beyond_references"] == {"any measure": 1, "employment": 1}
    assert made["left_out"] == 7  # of earlier vintages, or outside: bad rows are refused by this plan, not left out
    assert len(made["findings"]) == 14
    told = {code["code"]: code["meant"] for kind in made["codes"] for code in kind["codes"]}
    assert told == {
        "454110": "2017 to 2021",
        "31-33": "",
        "72251": "",
        " 722511": "722511",
        "6037": "06037",
        "9110.0": "09110",
        "09001": "2020 to 2021",
        "06039": "",
    }


def test_good_microdata_have_nothing_wrong(tmp_path: Path) -> None:
    outcome = checked(modern(tmp_path), written(tmp_path / "raw", frame()), tmp_path)
    assert not outcome.mistaken
    made = report(outcome)
    assert made["findings"] == made["notes"] == made["repairs"]["file"] == made["repairs"]["plan"] == []


@pytest.mark.parametrize(("share", "site", "found"), [(None, 0.01, True), (None, 0.5, False), (0.5, 0.01, False)])
def test_what_a_release_would_refuse_is_found(tmp_path: Path, share: float | None, site: float, found: bool) -> None:
    rows = frame()
    rows.loc[:7, "county"] = "06039"  # valid, and not in the domain
    plan = modern(tmp_path, **({} if share is None else {"max_left_out": share}))
    outcome = checked(plan, written(tmp_path / "raw", rows), tmp_path, site_share=exact(site))
    assert outcome.mistaken == found
    made = report(outcome)
    assert made["left_out"] == 8
    assert [line.partition(":")[0] for line in made["findings"]] == found * [
        "8 rows of 40 would be left out, bad or outside the domain"
    ]


@pytest.mark.parametrize("duplicates", ["trust", "reject", "combine"])
def test_rows_of_one_id_by_the_plans_rule(tmp_path: Path, duplicates: str) -> None:
    rows = frame()
    rows.loc[0:1, "establishment_id"] = "a"  # of two industries
    rows.loc[[2, 8], "establishment_id"] = "b"  # of one place
    plan = modern(tmp_path, dataset={"duplicates": duplicates})
    made = report(checked(plan, written(tmp_path / "raw", rows, 2), tmp_path))
    ids = {each["column"]: each["count"] for each in made["rules"] if each["of"] == "id"}
    assert ids == ({"naics": 1, "county": 1} if duplicates == "combine" else {"establishment_id": 2})


def test_owners_that_are_missing(tmp_path: Path) -> None:
    rows = firms.owned(30).to_pandas()
    rows.loc[3:5, "firm_id"] = None
    made = report(checked(firms.world(tmp_path), written(tmp_path / "raw", rows), tmp_path))
    assert [(each["column"], each["count"]) for each in made["rules"]] == [("firm_id", 3)]
    assert made["repairs"] == {"file": ["write an owner in every row of firm_id"], "plan": []}


def test_lines_that_are_no_records_and_no_line_at_all(tmp_path: Path) -> None:
    raw = written(tmp_path / "raw", frame(3))
    with (raw / "0.csv").open("a") as file:
        file.write(f"{CANARY},1\n")
    made = report(checked(modern(tmp_path), raw, tmp_path))
    assert [(each["column"], each["count"]) for each in made["rules"]] == [("a line", 1)]
    assert report(checked(modern(tmp_path), written(tmp_path / "none", frame(0)), tmp_path))["findings"] == [
        "the microdata hold no row"
    ]


CODES: list[tuple[str | None, Wrong | None, str]] = [
    ("722511", None, ""),
    ("454110", Wrong.EARLIER, "2017 to 2021"),
    ("541512", Wrong.OUTSIDE, ""),
    ("123456", Wrong.UNKNOWN, ""),
    ("44-45", Wrong.RANGE, ""),
    ("44-46", Wrong.TEXT, ""),
    ("72", Wrong.COARSE, ""),
    ("31", Wrong.COARSE, ""),
    ("0", Wrong.DIGITS, ""),
    ("7225110", Wrong.DIGITS, ""),
    ("722511.0", Wrong.DECIMALS, "722511"),
    ("722511.5", Wrong.TEXT, ""),
    ("７22511", Wrong.TEXT, ""),
    ("other", Wrong.TEXT, ""),
    (None, Wrong.EMPTY, ""),
    (" ", Wrong.EMPTY, ""),
]


@pytest.mark.parametrize("year", [2022, None])
def test_what_is_wrong_with_a_code(tmp_path: Path, year: int | None) -> None:
    plan = load_plan(modern(tmp_path, domain=LISTS | ({"vintage": VINTAGE} if year else {})))
    judge = CodeJudge.of(layout_of(plan).spec.keys[0], plan.domain.keys["naics"], plan.domain)
    for code, wrong, meant in CODES:
        judgement = judge.judged(code)
        assert (judgement.wrong if judgement else None) == wrong, code
        assert (judgement.meant if judgement else "") == meant, code
    old = load_plan(modern(tmp_path / "old", naics=("311811", "454110"), domain=LISTS | {"vintage": {"naics": 2017}}))
    later = CodeJudge.of(layout_of(old).spec.keys[0], old.domain.keys["naics"], old.domain).judged("456110")
    assert later is not None
    assert (later.wrong, later.meant) == (Wrong.LATER, str(vintage_of("naics", 2022)))


def test_a_code_that_no_public_list_holds_is_never_told(tmp_path: Path) -> None:
    plan = load_plan(modern(tmp_path))
    spec = layout_of(plan).spec
    keys = zip(spec.code_columns.values(), plan.domain.dimensions, strict=True)
    judges = [CodeJudge.of(key, dimension, plan.domain) for key, dimension in keys]
    for text in (CANARY, "12345", "123456", "1234567", f" {CANARY}", f"{CANARY}.0", "99-99", "0099", "77"):
        for judge in judges:
            judgement = judge.judged(text)
            assert judgement is not None
            assert (judgement.code, judgement.meant) == ("", ""), text


def test_columns_are_compared_and_the_nearest_proposed(tmp_path: Path) -> None:
    raw = written(tmp_path / "raw", frame().rename(columns={"county": "COUNTY", "payroll": "pay_roll"}))
    outcome = checked(modern(tmp_path), raw, tmp_path)
    made = report(outcome)
    assert outcome.mistaken
    assert made["repairs"]["plan"] == [
        "dataset.keys.county: COUNTY, if that is the column",
        "dataset.measures.payroll.column: pay_roll, if that is the column",
    ]
    assert "rows" not in made  # they were not read


def test_a_first_line_that_may_be_a_record_is_not_told(tmp_path: Path) -> None:
    raw = written(tmp_path / "raw", frame())
    frame().to_csv(raw / "0.csv", index=False, header=False)
    outcome = checked(modern(tmp_path), raw, tmp_path)
    assert "the first line is not a header" in report(outcome)["findings"][0]
    assert CANARY not in outcome.report.read_text()


def test_repairs_of_the_plan_are_of_columns_and_vintage_alone(tmp_path: Path) -> None:
    made = report(checked(modern(tmp_path), written(tmp_path / "raw", spoiled()), tmp_path))
    assert made["repairs"]["plan"] == [
        "domain.vintage.naics: a year of 2017 to 2021, with the lists of that year, if the data are of that vintage",
        "domain.vintage.county: a year of 2020 to 2021, with the lists of that year, if the data are of that vintage",
    ]
    words = " ".join([*made["repairs"]["plan"], *made["repairs"]["file"]])
    assert not found(words, ["budget", "sigma", "rho", "step:", "bad_records", "drop", "domain.naics", "other:"])


@pytest.mark.parametrize("form", ["", "--json", "--log-json"])
def test_only_the_report_and_the_exit_code_tell(tmp_path: Path, capfd: pytest.CaptureFixture[str], form: str) -> None:
    plan = modern(tmp_path / "world")
    raw = written(tmp_path / "world" / "raw", spoiled())
    place = tmp_path / "reports" / "report"
    create_ledger(str(tmp_path / "state" / "ledger.sqlite"))
    words = ["check", str(plan), "--data", str(raw), "--ledger", str(tmp_path / "state" / "ledger.sqlite")]
    assert main([*words, "--report", str(place), *([form] if form else [])]) == 4
    said = capfd.readouterr()
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    shutil.rmtree(tmp_path / "world")
    left = {path: path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()}
    texts = (CANARY, "90817263", "917263", "454110", "6037")
    canaries = [*texts, *(form for text in texts for form in forms(text.encode())[:4])]
    told = {"out": said.out, "err": said.err} | {str(path): text for path, text in left.items() if path != place}
    for where, text in told.items():
        beside = re.sub("[0-9a-f]{32,}", "", text)  # four digits may stand in a digest by chance
        assert [each for each in found(text, canaries) if each != "6037" or each in beside] == [], where
    assert found(left[place], [CANARY, "90817263", "917263"]) == []
    assert found(left[place], canaries) != []  # the twin: the search finds what is there


@pytest.mark.parametrize("json_wanted", [False, True])
def test_the_command_says_where_the_report_of_good_microdata_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], json_wanted: bool
) -> None:
    plan, raw = modern(tmp_path / "world"), written(tmp_path / "world" / "raw", frame())
    ledger, report = str(tmp_path / "state" / "ledger.sqlite"), tmp_path / "report"
    create_ledger(ledger)
    words = ["check", str(plan), "--data", str(raw), "--ledger", ledger, "--report", str(report)]
    assert main([*words, *["--json"] * json_wanted]) == 0
    out = capsys.readouterr().out
    if json_wanted:
        said = json.loads(out)
        assert (said["report"], said["confidential"], "found" in said) == (str(report), True, False)
        assert json.loads(report.read_text())["findings"] == []
    else:
        assert out.splitlines()[1] == f"report {report}, confidential"
        assert "found nothing" in out


def test_the_default_place_is_private_and_each_check_has_its_own(tmp_path: Path) -> None:
    plan, raw = modern(tmp_path), written(tmp_path / "raw", frame())
    first, second = (checked(plan, raw, tmp_path, as_json=False).report for _ in range(2))
    assert first != second
    assert first.parent == tmp_path / "state" / "checks"
    assert stat.S_IMODE(first.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert first.read_text().startswith("CONFIDENTIAL")


def test_a_report_lies_apart_from_releases_and_replaces_nothing(tmp_path: Path) -> None:
    plan, raw = modern(tmp_path), written(tmp_path / "raw", frame())
    (tmp_path / "there").write_text("mine")
    for place, words in (
        (tmp_path / "releases" / "report.txt", "where releases or their drafts lie"),
        (tmp_path / "state" / "staging" / "report.txt", "where releases or their drafts lie"),
        (tmp_path / "there", "it exists already"),
    ):
        with pytest.raises(StateError, match=words):
            checked(plan, raw, tmp_path, report=place)
    assert (tmp_path / "there").read_text() == "mine"
    assert open_ledger(str(tmp_path / "state" / "ledger.sqlite")).diagnoses() == []


def test_no_microdata_is_no_check(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such file or folder"):
        checked(modern(tmp_path), tmp_path / "nowhere", tmp_path)
    assert open_ledger(str(tmp_path / "state" / "ledger.sqlite")).head()[0] == 0


def test_a_release_names_the_check_that_came_before(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger = prdp.create_ledger(tmp_path / "state" / "ledger.sqlite", operator="anna")
    write_world(tmp_path, records(30))
    plan = prdp.load_plan(tmp_path / "plan.yaml")
    other = prdp.load_plan(write_world(tmp_path / "other", records(31), release="b", dataset={"name": "another"}))
    plan.check_microdata(ledger=ledger)
    assert plan.check_microdata(ledger=ledger)["found"] is False
    entries = ledger.entries()
    assert [entry["event"] for entry in entries] == ["checked", "checked"]
    assert entries[1]["facts"]["operator"] == "anna"
    for each in (plan, other):
        each.release(ledger=ledger)
    reserved = {e["release"]: e["facts"].get("check") for e in ledger.entries() if e["event"] == "reserved"}
    assert reserved[plan.name] == {"entry": 2, "time": entries[1]["time"], "digest": plan.digest}
    assert reserved["b"] is None
    ledger.verify()
    address = ["--ledger", str(tmp_path / "state" / "ledger.sqlite")]
    assert main(["ledger", "show", plan.name, *address]) == 0
    assert "its microdata were checked before by this plan" in capsys.readouterr().out
    assert main(["ledger", "show", plan.name, "--json", *address]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [each["state"] for each in shown] == ["settled", "checked", "checked"]
    assert shown[0]["check"] == reserved[plan.name]


@PYSPARKS_OWN
def test_spark_finds_the_same(tmp_path: Path) -> None:
    plan, raw = modern(tmp_path), written(tmp_path / "raw", spoiled(), 3)
    here, there = (checked(plan, raw, tmp_path, engine).report for engine in (None, shared_engine()))
    assert here.read_bytes() == there.read_bytes()


def test_a_killed_checks_leftovers_cannot_be_read(tmp_path: Path) -> None:
    """Rows lie sealed between the passes, and are gone when the check ends."""
    checked(modern(tmp_path), written(tmp_path / "raw", frame()), tmp_path)
    assert [path for path in (tmp_path / "state" / "staging").rglob("*") if path.is_file()] == []
    assert os.listdir(tmp_path / "state" / "staging") == []
