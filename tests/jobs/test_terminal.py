"""Progress and colour: counts of tasks in one rewritten line on a terminal and in few lines elsewhere."""

import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline.base.log
from jobs.cli import main
from pipeline.base.errors import StateError
from pipeline.base.log import Log, counted, json_log, plain_log, share
from pipeline.engines import protocol
from tests.support.corpus import build
from tests.support.ledgers import ledger_file
from tests.support.terminal import SLOWLY, Told, on_terminal, seen
from tests.support.world import records, write_world

COUNTED = re.compile(r"\[ *[0-9.]+ s\] ((?:sums|noise) [0-9]+/[0-9]+)")
FILES = 3


@pytest.fixture
def call(tmp_path: Path) -> list[str]:
    plan = write_world(tmp_path, None)
    (tmp_path / "microdata").mkdir()
    for number in range(FILES):
        pq.write_table(records(40, first=40 * number), tmp_path / "microdata" / f"{number}.parquet")
    ledger = ledger_file(tmp_path / "state" / "ledger.sqlite")
    return ["release", str(plan), "--ledger", ledger, "--workers", "1"]


def test_a_terminal_shows_how_many_tasks_are_done_in_one_line(tmp_path: Path, call: list[str]) -> None:
    code, written = on_terminal(call, tmp_path, program=("-c", SLOWLY))
    assert code == 0
    told = COUNTED.findall(written)
    sums = [text for text in told if text.startswith("sums")]
    assert sums == sorted(sums)  # it never goes back
    assert {"sums 1/3", "sums 2/3"} <= {*sums} <= {f"sums {done}/3" for done in range(4)}
    assert {text.partition(" ")[0] for text in told} == {"sums", "noise"}
    shown = seen(written)
    assert not any(COUNTED.search(line) for line in shown), "what was rewritten is gone in the end"
    assert any("] reading the microdata" in line for line in shown)
    assert "release small-release, attempt" in "\n".join(shown)


@pytest.mark.parametrize(("environment", "escapes"), [({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, True)])
def test_dumb_terminals_and_no_color_are_respected(tmp_path: Path, environment: dict[str, str], escapes: bool) -> None:
    code, written = on_terminal(["explain", "nowhere.yaml"], tmp_path, **environment)
    assert code == 2
    assert "error: nowhere.yaml" in written
    assert ("\x1b[K" in written) == escapes
    assert "\x1b[3" not in written


def test_an_error_is_red_and_says_so_in_words(tmp_path: Path) -> None:
    _, coloured = on_terminal(["explain", "nowhere.yaml"], tmp_path)
    assert "\x1b[31merror:\x1b[0m nowhere.yaml" in coloured
    assert seen(coloured)[-2].startswith("error: nowhere.yaml")


@pytest.mark.parametrize(
    ("rho", "code", "shown"),
    [
        (100, 0, ["\x1b[32mwithin its limit\x1b[0m by", "\x1b[32mwithin: 49.2 %\x1b[0m"]),
        (1, 3, ["\x1b[31mBREAKS its limit\x1b[0m by", "\x1b[31mBROKEN: 49.2 times\x1b[0m", "\x1b[31merror:\x1b[0m"]),
    ],
)
def test_verdicts_are_green_or_red(tmp_path: Path, rho: int, code: int, shown: list[str]) -> None:
    plan = build(tmp_path / "world") / "plan.yaml"
    plan.write_text(plan.read_text().replace("rho: 100", f"rho: {rho}"))
    exit_code, written = on_terminal(["explain", str(plan)], tmp_path)
    assert exit_code == code
    for words in shown:
        assert words in written
    _, plain = on_terminal(["explain", str(plan)], tmp_path, NO_COLOR="1")
    assert seen(plain) == seen(written), "the words are the same without colours"
    _, as_json = on_terminal(["explain", str(plan), "--json", "--quiet"], tmp_path)
    assert "\x1b" not in as_json.partition("\n}\n")[0]


def test_elsewhere_a_few_plain_lines_tell_it(tmp_path: Path, call: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOWLY, *call], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "\x1b" not in done.stdout + done.stderr
    assert "sums" not in done.stdout
    assert COUNTED.search(done.stderr)


def test_quiet_counts_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pipeline.base.log, "PATIENCE", 0.0)
    asked: list[str] = []
    with plain_log(quiet=True).tasks(lambda: asked.append("") or "sums 1/2"):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
    assert not asked, "nor does it ask an engine"


@contextmanager
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Have tasks told of from the first moment; yields what counts them up."""
    monkeypatch.setattr(pipeline.base.log, "PATIENCE", 0.01)
    monkeypatch.setattr(pipeline.base.log, "TICK", 0.005)
    calls: list[int] = []

    def tell() -> str:
        calls.append(len(calls))
        return share("sums", len(calls), 1_000)

    yield tell
    assert calls


def test_a_log_is_told_ever_more_rarely(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with at_once(monkeypatch) as tell:
        log = json_log("release")
        with log.stage("scan"), log.tasks(tell):
            time.sleep(0.4)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    told = [line for line in lines if line["event"] == "tasks"]
    assert 1 <= len(told) <= 12  # at 0.01, 0.02, 0.04, … 0.32 seconds, and not every 0.005
    assert {line["stage"] for line in told} == {"scan"}
    assert all(re.fullmatch("sums [0-9]+/1,000", line["message"]) for line in told)


def test_what_counting_raises_ends_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def gone() -> str:
        raise RuntimeError("58274913")

    monkeypatch.setattr(pipeline.base.log, "PATIENCE", 0.0)
    with plain_log().tasks(gone):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


def until(told: Told, what: str) -> None:
    """Wait until it was told how many of three are done."""
    while (what, "3") not in told.counts:
        time.sleep(0.005)


def fail(told: Told) -> None:
    for _ in counted("checking files", range(3), 3):
        until(told, "checking files")
        raise StateError("one differs")


def test_what_a_command_does_one_by_one_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.base.log, "PATIENCE", 0.0)
    monkeypatch.setattr(pipeline.base.log, "TICK", 0.005)
    told, before = Told(), threading.active_count()
    with Log(told).listening():
        for _ in counted("making pages", range(3), 3):
            until(told, "making pages")
        with pytest.raises(StateError):
            fail(told)
        assert threading.active_count() == before
    for _ in counted("writing files", range(3), 3):
        time.sleep(0.03)  # nobody listens
    assert told.counts == {("making pages", "3"), ("checking files", "3")}


def counts(folder: Path, microdata: Any, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    """What diagnostics tell of the numbers of tasks, where records are made of rows."""
    told = Told()
    log = Log(told)

    @contextmanager
    def always(tell: Callable[[], str]) -> Iterator[None]:
        log._log(logging.INFO, "tasks", tell())
        yield

    monkeypatch.setattr(log, "tasks", always)
    monkeypatch.setattr("jobs.cli._log", lambda words: log)
    plan = write_world(folder, microdata, dataset={"duplicates": "combine"})
    ledger = ledger_file(folder / "state" / "ledger.sqlite")
    assert main(["diagnose", str(plan), "--ledger", ledger, "--out", str(folder / "diagnostics")]) == 0
    return told.counts


def test_no_number_of_tasks_follows_from_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.release.input_records.bucket_count", lambda chunks: 16)
    many, few = records(300), records(300, seed=2).slice(0, 5)
    told = counts(tmp_path / "many", many, monkeypatch)
    assert {name for name, _ in told} == {"reading", "files"}
    assert counts(tmp_path / "few", few, monkeypatch) == told

    # The twin counts the chunks that a run makes itself, one a bucket that has records.
    monkeypatch.setattr("pipeline.engines.dask.counted_as", lambda name, microdata: name)
    leaks = counts(tmp_path / "many-again", many, monkeypatch)
    assert leaks != counts(tmp_path / "few-again", few, monkeypatch)
    assert protocol.counted_as("sums", []) == "sums"
