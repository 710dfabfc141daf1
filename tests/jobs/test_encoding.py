"""The command in locales that are not UTF-8, with names and texts beyond ASCII: what it writes is UTF-8, or escaped."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.cli import main
from tests.support.patience import PATIENCE
from tests.support.world import records, write_world

ROOT = Path(__file__).parents[2]
LOCALES = [{"LC_ALL": "C"}, {"LC_ALL": "en_US.ISO-8859-1"}, {"PYTHONIOENCODING": "latin-1"}]
AT = ("--at", "employment=10,payroll=500")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world whose folder, dataset and microdata have names beyond Latin-1."""
    folder = tmp_path_factory.mktemp("Bücher ☃")
    plan = write_world(folder, records(50), title="Großes – ☃")
    (folder / "microdata").rename(folder / "Daten ☃")
    plan.write_text(plan.read_text(encoding="utf-8").replace("path: microdata", "path: Daten ☃"), encoding="utf-8")
    return folder


def call(folder: Path, locale: dict[str, str], *words: Any) -> "subprocess.CompletedProcess[bytes]":
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("LC_", "LANG", "PYTHON"))}
    environment = inherited | {
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "XDG_STATE_HOME": str(folder / "Zustand ☃"),
    }
    command = [sys.executable, "-m", "jobs.cli", *words]
    return subprocess.run(
        command, env=environment | locale, capture_output=True, check=False, timeout=PATIENCE, cwd=ROOT
    )


@pytest.mark.parametrize(
    "locale", [LOCALES[0], *(pytest.param(locale, marks=pytest.mark.drill) for locale in LOCALES[1:])], ids=str
)
def test_a_release_in_any_locale(folder: Path, tmp_path: Path, locale: dict[str, str]) -> None:
    plan, out = folder / "plan.yaml", tmp_path / "öffentlich ☃"
    for words in (("explain", plan, *AT), ("release", plan, "--out", out, "--json")):
        done = call(folder, locale | {"XDG_STATE_HOME": str(tmp_path / "Zustand ☃")}, *words)
        assert done.returncode == 0, done.stderr
        assert b"UnicodeEncodeError" not in done.stderr
    assert json.loads(done.stdout)["out"] == str(out)
    assert len([*out.glob("*/release.json")]) == 1
    missing = call(folder, locale, "explain", folder / "nö ☃.yaml")
    assert missing.returncode == 2
    assert b"Traceback" not in missing.stderr


def test_a_name_that_is_no_utf8_is_told(folder: Path) -> None:
    for locale in LOCALES[1:]:
        done = call(folder, locale, "explain", b"B\xfccher.yaml")
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"error: B\\udcfccher.yaml: it is not in UTF-8: rename the file")


def test_python_that_refuses_utf8_is_not_begun_for_ever(folder: Path) -> None:
    command = [sys.executable, "-X", "utf8=0", "-m", "jobs.cli", "--version"]
    environment = os.environ | {"LC_ALL": "en_US.ISO-8859-1", "PYTHONCOERCECLOCALE": "0"}
    assert subprocess.run(command, env=environment, check=True, timeout=PATIENCE, cwd=ROOT).returncode == 0


def test_in_one_s_own_process_nothing_is_begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("begun anew"))
    assert main(["--version"]) == 0
