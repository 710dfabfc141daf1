"""The judge of `python -m tests.faults` rejects what must not come of a fault; the drill itself takes too long here."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.acts import signalled
from tests.faults.judge import Seen, differences, leaks, look
from tests.faults.scene import RELEASE, Ended, with_canaries
from tests.faults.shared import ROOT
from tests.faults.table import ENGINES, FAULTS, Fault
from tests.support.ledgers import append, entries
from tests.support.patience import PATIENCE
from tests.support.submit import Place, submit
from tests.support.world import write_world

FAULT = Fault(what="Java stands still", at="sums", act=signalled(lambda scene: 0, 0))
FAILS = replace(FAULT, code=5, line="No space left")
OTHER = "0123456789abcdef"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(write_world(tmp_path / "world", with_canaries(60)), tmp_path)
    submit(place)
    return place


def seen(place: Place, **changes: Any) -> Seen:
    """What a run and the next one left that both found nothing to do any more."""
    found = look(place, place.ledger())
    well = Seen(True, Ended(0, ""), found, Ended(0, ""), found, leaks=leaks(place.folder))
    return replace(well, **changes)


def canary_in_a_log(place: Place) -> None:
    (place.folder / "run.err").write_text("error: record CANARY-ID-3 is odd\n")


def second_visible_draw(place: Place) -> None:
    folder = place.out / RELEASE
    shutil.copytree(next(path for path in folder.iterdir() if path.is_dir()), folder / OTHER)


def changed_table(place: Place) -> None:
    next((place.out / RELEASE).rglob("*.parquet")).write_bytes(b"another draw")


def forged_draw(place: Place) -> None:
    ledger = place.ledger()
    last = entries(ledger)[-1]
    drawn = replace(last, seq=last.seq + 1, event="drawn", attempt=OTHER, previous=last.hash, hash="0" * 64)
    append(ledger, drawn)


def lost_manifest(place: Place) -> None:
    shutil.rmtree(place.out / RELEASE)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (canary_in_a_log, "told: CANARY-ID in run.err"),
        (second_visible_draw, "published: "),
        (changed_table, "the release: "),
        (forged_draw, "the chain: "),
        (lost_manifest, "published: "),
    ],
)
def test_the_judge_rejects_what_lies_there(place: Place, broken: Callable[[Place], None], words: str) -> None:
    assert differences(FAULT, seen(place)) == []
    broken(place)
    assert any(each.startswith(words) for each in differences(FAULT, seen(place)))


def test_the_judge_rejects_what_ran_or_was_recorded_otherwise(place: Place) -> None:
    well = seen(place)
    after = well.after
    told = replace(well, ended=Ended(5, "error: staging: No space left on device"))
    assert differences(FAILS, told) == []
    cases: dict[str, tuple[Fault, Seen]] = {
        "did not take effect": (FAULT, replace(well, met=False)),
        "hangs": (FAULT, replace(well, ended=Ended(None, ""))),
        "exit 1": (FAILS, replace(told, ended=Ended(1, "error: staging: No space left on device"))),
        "otherwise": (FAILS, replace(told, ended=Ended(5, "error: unexpected OSError"))),
        "comes with a line": (replace(FAILS, line=""), replace(told, ended=Ended(5, ""))),
        "a traceback": (FAILS, replace(told, ended=replace(told.ended, trace=True))),
        "the ledger says drawn": (FAULT, replace(well, after=replace(after, state="drawn"))),
        "another run meanwhile": (FAULT, replace(well, meanwhile=(0,))),
        "the next run": (FAULT, replace(well, again=Ended(5, "error: is under way"))),
        "2 draws": (FAULT, replace(well, finally_=replace(after, draws=2, recorded=2))),
        "0 charges": (FAULT, replace(well, finally_=replace(after, charges=0))),
        "not recorded": (FAULT, replace(well, finally_=replace(after, recorded=2))),
        "changed or are gone": (FAULT, replace(well, after=replace(after, chain=("another", *after.chain)))),
        "published": (FAULT, replace(well, after=replace(after, visible=frozenset({OTHER})))),
        "left in staging": (FAULT, replace(well, staged=("small-release/totals",))),
        "did not end": (FAULT, replace(well, left=(1,))),
    }
    for words, (fault, case) in cases.items():
        assert any(words in each for each in differences(fault, case)), words


def test_the_table_names_each_fault_once_on_every_engine() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40
    assert {fault.engine for fault in FAULTS} == set(ENGINES)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.drill), signal.SIGTERM])
def test_a_drill_that_is_ended_leaves_no_process_and_no_folder(tmp_path: Path, number: int) -> None:
    """In the middle of a command; a second signal, as make passes one on, changes nothing."""
    call = [sys.executable, "-m", "tests.faults", "--only", "driver killed, at settle, dask"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(call, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True) as drill:
        while drill.poll() is None and not [*tmp_path.glob("prdp-faults-*/000/logs/1.err")]:
            time.sleep(0.02)
        drill.send_signal(number)
        drill.send_signal(number)
        error = drill.communicate(timeout=PATIENCE)[1]
    assert (drill.returncode, error) == (1, "error: ended before all was done; what was started has ended\n")
    assert [*tmp_path.iterdir()] == []
    mark = f"FAULT_CUES={tmp_path}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            assert mark not in (process / "environ").read_bytes()
