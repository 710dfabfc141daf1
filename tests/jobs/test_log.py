"""--log-json: every line an object of the same keys, in UTC, with the words of people, and no value of a record."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pipeline.release.steps
from jobs.cli import main
from pipeline.engines.protocol import Totals
from tests.support.leaks import found
from tests.support.ledgers import ledger_file
from tests.support.world import records, write_world

KEYS = ["time", "level", "event", "command", "release", "attempt", "stage", "seconds", "message", "exit_code"]
COUNT = 1237
CANARIES = ("CANARY-KIWI", "58274913", "62948173", str(COUNT))  # a record's id and values, the number of records
STAGES = [
    "check",
    "reserve",
    "scan",
    "tables",
    "test",
    "draw",
    "stage",  # what the tables are
    "stage",  # small tables together
    "stage",  # the public site
    "complete",
    "publish",
    "settle",
]


def microdata(employment: Any = 58274913) -> pa.Table:
    canary = {"establishment_id": "CANARY-KIWI", "employment": employment, "payroll": 62948173}
    rows = records(COUNT).to_pylist()
    rows[7] |= canary
    return pa.Table.from_pylist(rows)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_world(tmp_path, microdata())


@pytest.fixture(autouse=True)
def no_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a stage may last long enough to tell of its tasks: tests/jobs/test_terminal.py."""
    monkeypatch.setattr("pipeline.base.log.PATIENCE", 3600.0)


def logged(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[dict[str, Any]]]:
    """Run a command; return its exit code and the lines of its log, each of which must be a whole event."""
    plan = next(a for a in arguments if isinstance(a, Path))
    ledger = ("--ledger", ledger_file(plan.parent / "state" / "ledger.sqlite"))
    code = main([*map(str, (*arguments, *ledger)), "--log-json", "--json"])
    captured = capsys.readouterr()
    if code == 0:
        json.loads(captured.out)
    lines = [json.loads(line) for line in captured.err.splitlines()]
    for line in lines:
        assert list(line) == KEYS
        at = datetime.fromisoformat(line["time"])
        assert at.utcoffset() == timedelta(0)
        assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
        assert line["level"] in ("info", "warning", "error")
        assert (line["seconds"] is None) == (line["event"] in ("begun", "ledger", "warning"))
    assert not leaked(lines)
    return code, lines


def leaked(lines: Sequence[dict[str, Any]]) -> list[str]:
    """The canaries in what is told; digits of times are their own."""
    told = [value for line in lines for key, value in line.items() if key not in ("time", "seconds", "attempt")]
    return found(json.dumps(told), CANARIES)


def test_a_release_tells_its_stages(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = logged(capsys, "release", plan)
    assert code == 0
    assert [line["stage"] for line in lines if line["event"] == "begun"] == STAGES
    assert [line["stage"] for line in lines if line["event"] == "ended"] == STAGES
    assert [line["message"] for line in lines if line["stage"] == "scan"] == ["reading the microdata", None]
    assert {line["release"] for line in lines} == {"small-release"}
    assert {line["command"] for line in lines} == {"release"}
    drawn = [line["stage"] for line in lines].index("draw") + 2
    (attempt,) = {line["attempt"] for line in lines[drawn:]}
    assert attempt is not None
    assert {line["attempt"] for line in lines[:drawn]} == {None}
    assert (lines[-1]["event"], lines[-1]["exit_code"]) == ("done", None)
    assert sum(line["seconds"] for line in lines if line["event"] == "ended") <= lines[-1]["seconds"] + 0.1

    code, again = logged(capsys, "release", plan)
    assert code == 0
    assert [line["stage"] for line in again if line["event"] == "begun"] == ["check", "reserve", "settle"]
    assert again[-1]["attempt"] == attempt


def test_the_words_are_those_of_people(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, lines = logged(capsys, "release", plan)
    other = write_world(plan.parent / "other", microdata())
    assert (
        main(["release", str(other), "--ledger", ledger_file(other.parent / "state" / "ledger.sqlite"), "--json"]) == 0
    )
    shown = [line.split("] ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert (lines[0]["event"], shown[0]) == ("ledger", f"ledger {other.parent / 'state' / 'ledger.sqlite'}")
    assert [line["message"] for line in lines[1:] if line["message"]] == shown[1:]


@pytest.mark.parametrize(
    ("code", "changes", "stage"),
    [
        (4, {"microdata": microdata(0.5)}, "scan"),
        (3, {"budget": [{"at": {"employment": 10, "payroll": 500}, "rho": 0.1}]}, "reserve"),
        (2, {"interval": 2}, None),
    ],
)
def test_errors_are_told_in_the_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int, changes: dict[str, Any], stage: str | None
) -> None:
    plan = write_world(tmp_path, changes.pop("microdata", microdata()), **changes)
    exit_code, lines = logged(capsys, "release", plan)
    assert exit_code == code
    assert [line["stage"] for line in lines if line["event"] == "failed"] == ([stage] if stage else [])
    assert (lines[-1]["event"], lines[-1]["level"], lines[-1]["exit_code"]) == ("error", "error", code)
    assert main(["release", str(plan), "--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite")]) == code
    plain = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("[")]
    assert plain == [f"error: {line}" for line in lines[-1]["message"].splitlines()]


def test_a_wrong_call_and_an_unexpected_error_are_lines_too(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, (line,) = logged(capsys, "release", plan, "--workers", "none")
    assert (code, line["exit_code"], line["command"]) == (2, 2, "release")
    assert "--workers" in line["message"]

    def leak(*_: object, **__: object) -> None:
        raise ValueError("payroll 58274913 of CANARY-KIWI")

    monkeypatch.setattr("prdp.plans.load_plan", leak)
    code, (line,) = logged(capsys, "release", plan)
    assert code == 1
    assert line["message"].startswith("unexpected ValueError at test_log.py:")
    assert main(["release", str(plan), "--log-json", "--debug"]) == 1
    (raw,) = capsys.readouterr().err.splitlines()
    assert "Traceback" in json.loads(raw)["traceback"]


def test_what_a_stage_tells_of_records_would_be_found(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = pipeline.release.steps._sum

    def counting(job: Any, *arguments: Any) -> Totals:
        job.log.warning(f"{COUNT} records were read")
        return right(job, *arguments)

    monkeypatch.setattr("pipeline.release.steps._sum", counting)
    with pytest.raises(AssertionError, match=str(COUNT)):
        logged(capsys, "release", plan)


def test_warnings_are_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heavy = {"kind": "exponential_polylog", "p": 1, "d": 1.5, "a": 1, "sigma": 20}
    query = {"name": "q", "sum": "employment", "by": ["naics2", "state"], "mechanism": heavy}
    code, lines = logged(capsys, "release", write_world(tmp_path, microdata(), queries=[query]))
    assert code == 0
    (warned,) = (line for line in lines if line["event"] == "warning")
    assert warned["level"] == "warning"
    assert "choose lighter tails" in warned["message"]


def test_diagnose_and_prepare_tell_their_stages(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = logged(capsys, "diagnose", plan, "--out", plan.parent / "diagnostics")
    assert code == 0
    assert [line["stage"] for line in lines if line["event"] == "ended"] == ["records", "accuracy"]
    folder = plan.parent / "prepared"
    code, lines = logged(capsys, "prepare", plan.parent / "microdata", "--plan", plan, "--out", folder)
    assert code == 0
    assert [line["stage"] for line in lines if line["event"] == "ended"] == ["sort", "complete"]


def test_quiet_tells_warnings_and_errors_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heavy = {"kind": "exponential_polylog", "p": 1, "d": 1.5, "a": 1, "sigma": 20}
    query = {"name": "q", "sum": "employment", "by": ["naics2", "state"], "mechanism": heavy}
    plan = write_world(tmp_path, microdata(), queries=[query])
    call = ["release", str(plan), "--ledger", ledger_file(tmp_path / "state" / "ledger.sqlite"), "--quiet"]
    assert main(call) == 0
    (told,) = capsys.readouterr().err.splitlines()
    assert "warning: " in told
    assert main([*call, "--data", "nowhere"]) == 0  # it is published, which standard output says
    assert main(["explain", "nowhere.yaml", "--quiet"]) == 2
    assert "error: nowhere.yaml" in capsys.readouterr().err
