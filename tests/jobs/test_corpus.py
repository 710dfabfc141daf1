"""Bad input of all kinds, case by case (tests/corpus): exit code, message, and no confidential value left behind."""

import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.corpus import (
    Case,
    Run,
    bound_by_modes,
    build,
    can_mount,
    cases,
    change,
    good_records,
    in_child,
    in_process,
    listed,
    odd_records,
    play,
    problems,
    published,
    released,
    tables,
    with_record,
    write_records,
)
from tests.support.frames import know_the_key
from tests.support.spark import PYSPARKS_OWN, in_the_shared_session


@pytest.mark.parametrize("data", cases("plans"))
def test_plans(data: dict[str, Any], tmp_path: Path) -> None:
    play(Case.of(data), tmp_path / "world")


@pytest.mark.parametrize("data", [case for theme in ("domains", "keys", "files", "commands") for case in cases(theme)])
def test_other_files_and_commands(data: dict[str, Any], tmp_path: Path) -> None:
    play(Case.of(data), tmp_path / "world")


@pytest.mark.parametrize(("data", "form", "bad"), odd_records())
def test_records(data: dict[str, Any], form: str, bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    know_the_key(monkeypatch)
    world = tmp_path / "world"
    case = with_record(world, data, form, bad)
    assert problems(case, in_process(case.run, world), world) == []
    if case.exit == 0:
        counted = frozenset(data["as"].items()) if "as" in data else None
        assert published(world / "releases") == tables(counted, bad) != {}


def test_the_corpus_is_large() -> None:
    themes = ("plans", "domains", "keys", "records", "files", "commands")
    names = [(theme, case["name"]) for theme in themes for case in listed(theme)]
    assert len(names) == len(set(names)) >= 250


# -- in processes of their own: modes, disks and signals -------------------------------------------------------------

FULL = "mkdir -p small && chmod 700 small && mount -t tmpfs -o size=24k,mode=700 none small"
MODES = [
    ("an unreadable plan", {"mode": {"plan.yaml": "000"}}, "release plan.yaml", 2, "plan.yaml: {*}Permission denied"),
    ("an unreadable list", {"mode": {"domain/naics.csv": "000"}}, "explain plan.yaml", 2, "{*}: Permission denied"),
    ("an unreadable file", {"mode": {"microdata/a.parquet": "000"}}, "release plan.yaml", 2, "{*}/a.parquet: {*}"),
    ("an unreadable folder", {"mode": {"microdata": "000"}}, "release plan.yaml", 2, "{*}/microdata: it cannot {*}"),
    (
        "an output that cannot be written",
        {"folder": {"out": None}, "mode": {"out": "500"}},
        "release plan.yaml --out out",
        5,
        "the output {folder}/out/corpus cannot be written ({folder}/out: Permission denied)",
    ),
    (
        "a staging place that cannot be written",
        {"folder": {"draws": None}, "mode": {"draws": "500"}},
        "release plan.yaml --staging draws",
        5,
        "the staging folder {folder}/draws cannot be made or written: Permission denied",
    ),
    (
        "a ledger in a folder that cannot be written",
        {"folder": {"kept": None}, "mode": {"kept": "500"}},
        "ledger create kept/ledger.sqlite",
        5,
        "the ledger {folder}/kept/ledger.sqlite cannot be opened: Permission denied",
    ),
    (
        "diagnostics where nothing can be written",
        {"folder": {"secret": None}, "mode": {"secret": "500"}},
        "diagnose plan.yaml --out secret/diagnostics",
        5,
        "--out {folder}/secret/diagnostics{*}Permission denied{*}",
    ),
]


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, id=mode[0], marks=[pytest.mark.drill] if n % 2 else []) for n, mode in enumerate(MODES)]
)
def test_modes_of_files(mode: tuple[str, dict[str, Any], str, int, str], tmp_path: Path) -> None:
    name, given, run, code, says = mode
    case = Case(name, run, code, [says], given)
    build(tmp_path / "world")
    own = change(tmp_path / "world", given)
    result = in_child(run, tmp_path / "world", prepare=bound_by_modes)
    for path in own:
        (tmp_path / "world" / path).chmod(0o700)
    assert problems(case, result, tmp_path / "world", own) == []


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("--out small", "the output {folder}/small/corpus cannot be written: No space left on device: run again"),
        ("--staging small", "the staging folder {folder}/small cannot be written: No space left on device: run again"),
    ],
)
def test_a_full_disk_is_told_and_the_next_run_goes_on(option: str, says: str, tmp_path: Path) -> None:
    if not can_mount():
        pytest.skip("this user cannot mount a small disk")
    world = build(tmp_path / "world")
    case = Case("full disk", f"release plan.yaml {option}", 5, [says])
    assert problems(case, in_child(case.run, world, before=FULL), world) == []
    again = Case("room again", f"release plan.yaml {option}", 0)
    assert problems(again, in_process(again.run, world), world) == []


@pytest.mark.parametrize("many", [2000, pytest.param(10_000, marks=pytest.mark.drill)])
def test_thousands_of_tiny_files(many: int, tmp_path: Path) -> None:
    world = build(tmp_path / "world")
    shutil.rmtree(world / "microdata")
    for number, record in enumerate(good_records()):
        write_records(world / "microdata" / f"{number}.parquet", [record])
    released_from_few = released(world)
    nothing = {"id": "string", "naics": "string", "county": "string", "employment": "int64", "payroll": "double"}
    write_records(world / "microdata" / "empty.parquet", [], nothing)
    for number in range(many):
        os.link(world / "microdata" / "empty.parquet", world / "microdata" / f"e{number}.parquet")
    case = Case("tiny files", "release plan.yaml", 0)
    result = in_process(case.run, world)
    assert problems(case, result, world) == []
    (world / "known").rename(tmp_path / "few")
    for number in range(500, many):  # what they add up to is the same of fewer
        (world / "microdata" / f"e{number}.parquet").unlink()
    assert released(world) == released_from_few


# -- real processes, and Spark ---------------------------------------------------------------------------------------

REAL = [("plans", "a key twice"), ("domains", "an empty file"), ("files", "a link to nothing"), ("commands", "nothing")]


@pytest.mark.parametrize(("theme", "name"), REAL)
def test_the_same_from_a_process_of_its_own(theme: str, name: str, tmp_path: Path) -> None:
    data = next(case for case in listed(theme) if case["name"] == name)
    play(Case.of(data), tmp_path / "world", in_child)


ON_SPARK = (
    "null county",
    "thousands separators",
    "a county of letters",
    "counties as numbers",
    "several rules at once",
)


@PYSPARKS_OWN
def test_spark_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_shared_session(monkeypatch)  # which starts here, and not in a case's folder
    for data in listed("records"):
        if data["name"] in ON_SPARK:
            world = tmp_path / data["name"]
            case = with_record(world, data, "parquet", "refuse")
            assert problems(case, in_process(f"{case.run} --engine spark", world), world) == []


# -- broken twins: what the judge must not let pass ------------------------------------------------------------------

GOOD_RUN = Run(2, "", "[   0.1 s] reading the microdata\nerror: plan.yaml: no such file\n")
BAD_RUNS = {
    "exit code": replace(GOOD_RUN, code=1),
    "says": replace(GOOD_RUN, err="error: plan.yaml: no such file or folder\n"),
    "more lines": replace(GOOD_RUN, err=GOOD_RUN.err + "error: and more\n"),
    "warning": replace(GOOD_RUN, err=GOOD_RUN.err + "RuntimeWarning: overflow\n"),
    "traceback": replace(GOOD_RUN, err="Traceback (most recent call last):\n" + GOOD_RUN.err),
    "output": replace(GOOD_RUN, out="half a table\n"),
    "id": replace(GOOD_RUN, err=GOOD_RUN.err + "[   0.2 s] read CANARY-KIWI\n"),
    "number": replace(GOOD_RUN, err=GOOD_RUN.err + "[   0.2 s] read 58,274,913\n"),
    "float": replace(GOOD_RUN, err=GOOD_RUN.err + "[   0.2 s] read 629481737.5\n"),
}
REFUSED = Case("a refusal", "explain plan.yaml", 2, ["plan.yaml: no such file"])


def test_the_judge_lets_a_good_run_pass(tmp_path: Path) -> None:
    assert problems(REFUSED, GOOD_RUN, build(tmp_path / "world")) == []


@pytest.mark.parametrize("run", BAD_RUNS.values(), ids=BAD_RUNS)
def test_the_judge_rejects_a_run_that_is_wrong(run: Run, tmp_path: Path) -> None:
    assert problems(REFUSED, run, build(tmp_path / "world")) != []


@pytest.mark.parametrize("place", ["state/prdp/staging/corpus/a.bin", "releases/corpus/release.json", "tmp/rest"])
@pytest.mark.parametrize(
    "canary",
    [b"CANARY-KIWI", b"CANARY-KIWI".hex().encode(), struct.pack("<q", 58274913), struct.pack("<d", 629481737.5)],
)
def test_the_judge_finds_a_canary_in_a_file(place: str, canary: bytes, tmp_path: Path) -> None:
    world = build(tmp_path / "world")
    (world / place).parent.mkdir(parents=True, exist_ok=True)
    (world / place).write_bytes(b"\x00\xff" + canary)
    assert problems(REFUSED, GOOD_RUN, world) == [f"{place} tells a canary"]


def test_the_judge_finds_a_canary_in_compressed_pages(tmp_path: Path) -> None:
    world = build(tmp_path / "world")
    (world / "releases").mkdir()
    column = pa.array(["CANARY-KIWI"] * 1000)
    pq.write_table(
        pa.table({"id": column}), world / "releases" / "a.parquet", compression="zstd", write_statistics=False
    )
    assert problems(REFUSED, GOOD_RUN, world) == ["releases/a.parquet tells a canary"]
