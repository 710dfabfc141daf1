"""The units of conf/systemd, and the files for cron: their own tools find nothing wrong, and they call prdp rightly."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs.cli import parse
from tests.support.needs import program

CONF = Path(__file__).parents[2] / "conf"
UNITS = sorted((CONF / "systemd").iterdir())
HERE = str(Path(sys.executable).parent)
CRONTAB = (CONF / "cron" / "prdp.crontab").read_text()


def ran(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False)


def test_systemd_takes_the_units_and_not_broken_ones(tmp_path: Path) -> None:
    assert [unit.suffix for unit in UNITS].count(".service") == 5
    here = {unit.name: unit.read_text().replace("/opt/prdp/bin", HERE) for unit in UNITS}
    mistakes = {"UMask": "Umsk", "ExecStart=/": "ExecStart=/nowhere/", "OnCalendar": "OnCalender"}
    for name, text in here.items():
        (tmp_path / name).write_text(text)
    for name, text in here.items():
        shown = tmp_path / name.replace("@.", "@jobs.")  # an instance
        for broken in {text, *(text.replace(*mistake) for mistake in mistakes.items())}:
            shown.write_text(broken)
            done = ran(program("systemd-analyze"), "verify", shown)
            assert ((done.returncode, done.stderr) == (0, "")) == (broken == text), done.stderr
        shown.write_text(text)


def test_the_timer_fires_on_the_fifth_of_each_month() -> None:
    (when,) = re.findall(r"^OnCalendar=(.*)$", (CONF / "systemd" / "prdp-release@.timer").read_text(), re.MULTILINE)
    told = ran(program("systemd-analyze"), "calendar", "--iterations=3", "--base-time=2026-01-06", when).stdout
    assert re.findall(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", told)[:3] == [f"2026-0{n}-05 02:15:00" for n in (2, 3, 4)]


def called(command: str, folder: Path) -> list[str]:
    """The arguments with which a shell runs prdp for a command; other programs stand aside."""
    folder.mkdir()
    (folder / "log").mkdir()
    stand_in = folder / "prdp"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{folder}/called"\n')
    stand_in.chmod(0o755)
    here = command.replace("/opt/prdp/bin", str(folder)).replace("/srv/prdp/log", str(folder / "log"))
    assert subprocess.run(["/bin/sh", "-c", here], env={"PATH": os.environ["PATH"]}, check=False).returncode == 0
    return (folder / "called").read_text().splitlines()


def lines_of(crontab: str) -> list[tuple[list[str], str]]:
    r"""The five fields and the command of each line, as crontab(5) reads them: % ends a command, \% is a sign."""
    found = []
    for line in crontab.splitlines():
        if line and not line.startswith("#") and not re.match(r"\w+=", line):
            *fields, command = line.split(None, 5)
            found.append((fields, re.split(r"(?<!\\)%", command)[0].replace("\\%", "%")))
    return found


def test_the_unit_and_the_crontab_release_the_plan_of_this_month_and_hold_it(tmp_path: Path) -> None:
    unit = (CONF / "systemd" / "prdp-release@.service").read_text()
    (shell,) = re.findall(r"^ExecStart=/bin/sh -c '(.*)'$", unit, re.MULTILINE)
    by_systemd = shell.replace("%i", "jobs").replace("%%", "%")
    (at, by_cron), (often, watch) = lines_of(CRONTAB)
    assert (at, often) == (["15", "2", "5", "*", "*"], ["*/15", "*", "*", "*", "*"])
    now = datetime.now(UTC)
    for number, command in enumerate((by_systemd, by_cron)):
        arguments = parse(called(command, tmp_path / str(number)))
        assert (str(arguments.plan), arguments.hold) == ("/srv/prdp/plans/jobs.yaml", True)
        assert arguments.set in ([f"month={now:%Y-%m}"], [f"month={datetime.now(UTC):%Y-%m}"])
        assert (arguments.ledger, arguments.out) == ("/srv/prdp/ledger/ledger.sqlite", "/srv/prdp/releases")
    assert parse(called(watch, tmp_path / "watch")).ledger_only
    assert (tmp_path / "1" / "log" / "release.log").stat().st_mode & 0o777 == 0o600
    # A sign that is not escaped ends the command: the twin without it is seen.
    assert "month=$(date +" in lines_of(CRONTAB.replace("\\%", "%"))[0][1]
    assert "--hold" not in lines_of(CRONTAB.replace("\\%", "%"))[0][1]


def test_cron_takes_the_crontab_and_not_a_broken_one(tmp_path: Path) -> None:
    for text, good in ((CRONTAB, True), (CRONTAB.replace("15 2 5", "75 2 5"), False)):
        (tmp_path / "crontab").write_text(text)
        assert (ran(program("crontab"), "-n", tmp_path / "crontab").returncode == 0) == good


@pytest.mark.skipif(os.geteuid() != 0, reason="logrotate looks up another user's files")
def test_logrotate_takes_its_file_and_not_a_broken_one(tmp_path: Path) -> None:
    (tmp_path / "release.log").write_text("told\n")
    text = (CONF / "cron" / "prdp.logrotate").read_text().replace("/srv/prdp/log", str(tmp_path))
    text = text.replace("su prdp prdp", "su root root").replace("0600 prdp prdp", "0600 root root")
    for broken in (text, text.replace("monthly", "monthlyish")):
        (tmp_path / "conf").write_text(broken)
        (tmp_path / "conf").chmod(0o644)
        done = ran(program("logrotate"), "--debug", "--state", str(tmp_path / "state"), tmp_path / "conf")
        assert ("error:" in done.stderr) == (broken != text), done.stderr
