"""The ledger's file, and what can be wrong with it."""

import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.base.errors import PlanError, StateError
from pipeline.ledger.entries import entries
from pipeline.ledger.store import Ledger, create_ledger
from tests.support.ledgers import child, raw, reservation
from tests.support.patience import PATIENCE

NOBODY = 65534


# Where it lies, and what can be wrong with the file


def test_the_users_own_ledger_lies_in_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = os.umask(0)
    try:
        own = create_ledger()
    finally:
        os.umask(before)
    assert own.path == tmp_path.resolve() / "prdp" / "ledger.sqlite"
    assert stat.S_IMODE(own.path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(own.path.stat().st_mode) == 0o600
    assert own.staging_root == own.path.parent / "staging"
    assert [path.name for path in own.path.parent.iterdir()] == ["ledger.sqlite"]


def test_a_relative_address_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert create_ledger("sqlite:///one/a.sqlite").path == tmp_path.resolve() / "one" / "a.sqlite"
    assert create_ledger("b ?#%.sqlite").path == tmp_path.resolve() / "b ?#%.sqlite"


@pytest.mark.parametrize("url", ["mysql://me:secret@host/db", "sqlite://", "sqlite:///", "mysql+x://h", ""])
def test_another_kind_of_database_is_refused_without_showing_its_password(url: str) -> None:
    with pytest.raises(PlanError, match=r"sqlite:///path, or a server as postgresql://") as told:
        create_ledger(url)
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o770, 0o777])
def test_a_ledger_that_others_can_write_is_refused(ledger: Ledger, mode: int) -> None:
    for path, own in ((ledger.path.parent, 0o700), (ledger.path, 0o600)):
        path.chmod(mode)
        with pytest.raises(StateError, match="chmod go-w"):
            create_ledger(str(ledger.path))
        path.chmod(own)
    create_ledger(str(ledger.path))


def test_nobody_is_told_to_change_a_folder_that_is_for_everybody(tmp_path: Path) -> None:
    folder = tmp_path / "for-all"
    folder.mkdir()
    folder.chmod(0o1777)  # as /tmp
    with pytest.raises(StateError, match="name a file in a folder that is yours alone"):
        create_ledger(str(folder / "ledger.sqlite"))
    assert list(folder.iterdir()) == []


def no_database(path: Path) -> None:
    path.write_bytes(b"no database at all, whatever its name says" * 100)


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def other_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE other (a)")
    connection.close()


def newer_schema(path: Path) -> None:
    create_ledger(str(path))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE meta SET schema_version = 5")
    connection.close()


def a_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (no_database, "no SQLite database"),
        (empty_file, "no prdp ledger"),
        (other_database, "no prdp ledger"),
        (newer_schema, "schema version 5, and this prdp knows 4: use the prdp that made it"),
        (a_folder, "is a folder"),
    ],
)
def test_what_is_no_ledger_is_refused_in_one_line(tmp_path: Path, make: Callable[[Path], None], told: str) -> None:
    path = tmp_path / "ledger.sqlite"
    make(path)
    with pytest.raises(StateError, match=told) as error:
        create_ledger(str(path))
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_locked_ledger_is_waited_for_and_then_told(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    impatient = create_ledger(str(ledger.path), wait=0.2)
    connection = raw(ledger)
    connection.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StateError, match="locked by another process"):
        impatient.draw("r", "sha256:pin")
    connection.execute("ROLLBACK")
    connection.close()
    impatient.draw("r", "sha256:pin")


def test_what_was_read_half_keeps_nobody_from_writing(ledger: Ledger) -> None:
    for release in ("r", "s", "t"):
        ledger.reserve(reservation(release))
    with ledger._reading() as connection:
        half = entries(connection)
        assert next(half).release == "r"
    create_ledger(str(ledger.path), wait=0.2).draw("r", "sha256:pin")


def test_a_full_disk_refuses_the_draw_and_changes_nothing(ledger: Ledger) -> None:
    ledger.reserve(reservation("r"))
    head = ledger.head()
    process = child("ledger_child", "full_disk", ledger.path, "r")
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 5
    assert "disk is full" in told
    assert ledger.verify() == head
    ledger.draw("r", "sha256:pin")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    folder.chmod(0o700)
    shutil.rmtree(folder)


def test_a_read_only_ledger_refuses_the_draw(open_folder: Path) -> None:
    ledger = create_ledger(str(open_folder / "ledger.sqlite"))
    ledger.reserve(reservation("r"))
    head = ledger.head()
    # Root writes to everything, so the child becomes a user who may only read.
    ledger.path.chmod(0o444)
    open_folder.chmod(0o555)
    process = child("ledger_child", "read_only", ledger.path, "r", NOBODY)
    told, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 5
    assert "read-only" in told
    assert ledger.verify() == head
