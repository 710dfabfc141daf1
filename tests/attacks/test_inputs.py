"""Attack: files that people name, and that never end, block for ever or fill the memory.

Each command that reads such a file refuses it by one plain line, before it reads it.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.cli import main
from pipeline.storage.paths import LARGEST_LIST, LARGEST_TEXT, LONGEST_LINE, TooLarge, input_lines, read_input
from tests.support.world import QUERIES, budget_file, plan, write_world

ONE = QUERIES[0]
DESIGNED = ONE | {"mechanism": {"kind": "designed", "weights": "named.yaml"}}
COMMANDS = {
    "a plan": "explain named.yaml",
    "a draft": "calibrate named.yaml --out new.yaml",
    "a study": "evaluate named.yaml --out new",
    "a file of limits": "ledger init small-world --budget named.yaml --ledger ledger.db",
    "a list of codes": "explain codes.yaml",
    "a list of cells": "explain cells.yaml",
    "a designed noise": "explain designed.yaml",
    "sizes": "calibrate --compare --standard-error 30 --total 9 --sizes named.yaml",
    "a product": "product nowhere --product named.yaml --out new",
    "an export": "ledger import named.yaml imported.db",
    "a signing key": "verify nowhere --key named.yaml",
}


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, LARGEST_LIST * 101)  # takes no room on the disk


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "fifo": (os.mkfifo, "not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "huge": (_sparse, "larger than "),
    "folder": (Path.mkdir, "Is a directory"),
}


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """End a test that waits for ever, as it does where such a file is opened as any other."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_world(tmp_path, None)
    budget_file(tmp_path)
    assert main(["ledger", "create", "ledger.db"]) == 0
    domain = plan()["domain"]
    for name, changes in {
        "codes": {"domain": domain | {"naics": "named.yaml"}},
        "cells": {"domain": {"cells": "named.yaml"}},
        "designed": {"queries": [DESIGNED]},
    }.items():
        write_world(tmp_path, None, **changes).rename(tmp_path / f"{name}.yaml")
    return tmp_path


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_file_that_is_none_is_refused(kind: str, odd: str, world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, words = ODD[odd]
    make(world / "named.yaml")
    assert main(COMMANDS[kind].split()) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert words in line
    assert "named.yaml" in line


def test_a_file_that_grows_and_a_line_that_does_not_end(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_text("code\n" + "1" * (LONGEST_LINE + 1))
    with pytest.raises(OSError, match="a line has more than 1,000,000 characters"), input_lines(path) as lines:
        list(lines)
    path.write_text("code\n" * 10)
    with input_lines(path, most=60) as lines:
        path.write_text("code\n" * 100)
        with pytest.raises(TooLarge):
            list(lines)
    with pytest.raises(TooLarge):
        read_input(Path("/proc/self/maps"), 10)  # a regular file that says it has no bytes
    path.write_bytes(b"x" * LARGEST_TEXT)
    assert len(read_input(path, LARGEST_TEXT)) == LARGEST_TEXT
