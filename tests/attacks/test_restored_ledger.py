"""A ledger that is put back beside the journal of the file that it replaces: the documented recipe keeps it whole."""

import re
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from jobs.cli import main
from pipeline.base.errors import StateError
from pipeline.ledger.store import Ledger, create_ledger, open_ledger
from tests.support.ledgers import ROOT, raw, reservation


@pytest.fixture
def crashed(tmp_path: Path) -> Ledger:
    """A ledger of which /backup has a copy, and that has gone on until a crash in the middle of a commit."""
    ledger = create_ledger(str(tmp_path / "srv/prdp/ledger/ledger.sqlite"))
    (tmp_path / "backup").mkdir()
    for number in range(5):
        ledger.reserve(reservation(f"before {number}"))
    run(tmp_path, "backup '")
    for number in range(5):
        ledger.reserve(reservation(f"after {number}"))
    journal = Path(f"{ledger.path}-journal")
    with closing(raw(ledger)) as connection:
        connection.execute("PRAGMA cache_size = 1")  # pages go to the file before the commit, as in a long one
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("UPDATE summaries SET content = content || ' '")
        connection.execute("CREATE TABLE large AS SELECT * FROM entries, (SELECT 1 FROM entries LIMIT 4)")
        for file in (ledger.path, journal):
            shutil.copy(file, tmp_path / file.name)
        connection.execute("ROLLBACK")
    for file in (ledger.path, journal):
        shutil.copy(tmp_path / file.name, file)
        file.chmod(0o600)
    return ledger


def run(root: Path, *words: str) -> None:
    """Run the lines of the recipe in docs/operations.md that hold one of the words, with `root` as the machine's."""
    text = (ROOT / "docs" / "operations.md").read_text()
    (recipe,) = re.findall(r"## Backups of the ledger.*?```sh\n(.*?)```", text, re.DOTALL)
    lines = [line for line in recipe.splitlines() if any(word in line for word in words)]
    assert lines
    script = re.sub(r"(?<=[ '])/(srv|backup)\b", f"{root}/\\1", "\n".join(lines))
    subprocess.run(["bash", "-euc", script], check=True, cwd=root)


def test_the_recipe_puts_a_copy_back_whole(crashed: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(tmp_path, "rm -f", "install")
    assert sorted(path.name for path in crashed.path.parent.iterdir()) == ["ledger.sqlite"]
    assert main(["ledger", "close", "--reason", "restored from a backup", "--ledger", str(crashed.path)]) == 0
    assert "the ledger is closed" in capsys.readouterr().out
    assert open_ledger(str(crashed.path)).verify()[0] == 6


def test_a_journal_that_is_left_ruins_the_copy_and_close_says_so(crashed: Ledger, tmp_path: Path) -> None:
    """The twin: the recipe as it was."""
    run(tmp_path, "install")
    assert main(["ledger", "close", "--reason", "restored from a backup", "--ledger", str(crashed.path)]) == 5
    with pytest.raises(StateError):
        open_ledger(str(crashed.path)).verify()


def test_a_chain_that_was_changed_is_not_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "state" / "ledger.sqlite"
    ledger = create_ledger(str(path))
    ledger.reserve(reservation("r"))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER entries_not_updated")
        connection.execute("UPDATE entries SET dataset = 'e'")
    assert main(["ledger", "close", "--reason", "restored", "--ledger", str(path)]) == 5
    assert "changed at entry 1" in capsys.readouterr().err
    assert ledger.closed() is None
