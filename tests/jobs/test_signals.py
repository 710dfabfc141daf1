"""A command that is told to stop ends with one line, at every stage: what the ledger holds, and what to run next."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.cli import main
from tests.support.ledgers import ledger_file
from tests.support.patience import PATIENCE
from tests.support.spark import PYSPARKS_OWN, ROOT
from tests.support.submit import Place
from tests.support.world import records, write_world

# The process sends the signal to itself when a stage begins, and is then at work on that stage.
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests in the background
from pipeline.base.log import Log
log = Log._log
def and_kill(self, level, event, message=None, **facts):
    log(self, level, event, message, **facts)
    if event == "begun" and self._facts["stage"] == {stage!r}:
        os.kill(os.getpid(), {number})
Log._log = and_kill
from jobs.cli import main
sys.exit(main({words!r}))
"""
UNRESERVED = "interrupted: nothing is reserved for release small-release; run the same command again"
UNDRAWN = (
    "interrupted: release small-release is reserved in the ledger: nothing was drawn; run the same command again, or "
    "prdp ledger abort --ledger {ledger} small-release to give its charge back"
)
DRAWN = (
    "interrupted: release small-release is drawn in the ledger: run the same command again: a complete draw is "
    "published, an incomplete one destroyed and drawn anew"
)
PUBLISHED = "interrupted: release small-release is published in the ledger: run the same command again to finish"


def stopped(
    place: Place, stage: str, number: int, *options: str, program: str = PROGRAM
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Return what a release did that was told to stop at a stage, and what it left among temporary files."""
    temporary = place.folder / "tmp"
    temporary.mkdir(exist_ok=True)
    words = ["release", str(place.plan), "--ledger", ledger_file(place.ledger_path), *options]
    done = subprocess.run(
        [sys.executable, "-c", program.format(stage=stage, number=int(number), words=words)],
        cwd=place.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return done, [path.name for path in temporary.iterdir()]


@pytest.mark.parametrize(
    ("stage", "number", "says"),
    [
        ("check", signal.SIGTERM, UNRESERVED),
        pytest.param("reserve", signal.SIGINT, UNRESERVED, marks=pytest.mark.drill),
        pytest.param("tables", signal.SIGTERM, UNDRAWN, marks=pytest.mark.drill),
        pytest.param("scan", signal.SIGTERM, UNDRAWN, marks=pytest.mark.drill),
        pytest.param("scan", signal.SIGINT, UNDRAWN, marks=pytest.mark.drill),
        ("draw", signal.SIGINT, UNDRAWN),
        ("stage", signal.SIGTERM, DRAWN),
        pytest.param("stage", signal.SIGINT, DRAWN, marks=pytest.mark.drill),
        pytest.param("complete", signal.SIGTERM, DRAWN, marks=pytest.mark.drill),
        ("publish", signal.SIGINT, DRAWN),
        ("settle", signal.SIGTERM, PUBLISHED),
    ],
)
def test_a_signal_ends_a_release_with_one_line(
    tmp_path: Path, stage: str, number: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = Place(write_world(tmp_path, records(50)), tmp_path)
    done, left = stopped(place, stage, number)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[") and not line.startswith("ledger ")]
    assert (done.returncode, lines, done.stdout) == (
        1,
        [f"error: {says.format(ledger=ledger_file(place.ledger_path))}"],
        "",
    )
    assert left == []
    assert main(["release", str(place.plan), "--ledger", ledger_file(place.ledger_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "settled"


IN_A_MOMENT = PROGRAM.replace(
    "os.kill(os.getpid(), {number})", "__import__('threading').Timer({delay}, os.kill, (os.getpid(), {number})).start()"
)


@pytest.mark.drill
@pytest.mark.parametrize("delay", [0.5, 2.0, 6.0])
def test_while_java_starts_and_works_a_signal_leaves_a_line_and_nothing_else(tmp_path: Path, delay: float) -> None:
    """The signal comes while the stage goes on: Java is started, or opens its session, or runs the first job."""
    place = Place(write_world(tmp_path, records(50)), tmp_path)
    program = IN_A_MOMENT.replace("{delay}", str(delay))
    done, left = stopped(place, "scan", signal.SIGTERM, "--engine", "spark", program=program)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (
        1,
        f"error: {UNDRAWN.format(ledger=ledger_file(place.ledger_path))}",
    )
    assert [name for name in left if not name.startswith("hsperfdata")] == []
    running = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert running.stdout == ""


@PYSPARKS_OWN
def test_on_spark_every_line_is_json_and_nothing_is_left(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(50)), tmp_path)
    done, left = stopped(place, "scan", signal.SIGTERM, "--engine", "spark", "--log-json")
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert (done.returncode, lines[-1]["event"], lines[-1]["message"]) == (
        1,
        "error",
        UNDRAWN.format(ledger=ledger_file(place.ledger_path)),
    )
    assert [name for name in left if not name.startswith("hsperfdata")] == []
    running = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False)
    assert running.stdout == ""  # neither Java nor its workers
