"""A ledger's file under two names: SQLite finds the journal of a crash by one of them, and forgets under the other."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.cli import main
from pipeline.base.errors import StateError
from pipeline.ledger.database import address
from pipeline.ledger.database.address import require_one_name
from pipeline.ledger.store import Ledger, create_ledger, open_ledger
from tests.ledger.test_ledger_closing import published
from tests.support.ledgers import ROOT, reservation

OPENS = "from pipeline.ledger.store import open_ledger; import sys; open_ledger(sys.argv[1])"
MOUNTED = "22 1 254:0 / / rw - ext4 /dev/vda rw\n23 22 254:0 /else {} rw - ext4 /dev/vda rw\n"


def hard_link(path: Path) -> None:
    os.link(path, path.parent / "other.sqlite")


def linked_journal(path: Path) -> None:
    path.with_name("ledger.sqlite-journal").symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("second_name", [hard_link, linked_journal])
def test_a_second_name_is_refused_also_while_a_run_goes_on(ledger: Ledger, second_name: Callable[[Path], None]) -> None:
    second_name(ledger.path)
    with pytest.raises(StateError, match="has a second name, by a link"):
        open_ledger(str(ledger.path))
    with pytest.raises(StateError, match="has a second name, by a link"):
        ledger.reserve(reservation("r"))


@pytest.mark.parametrize("end", ["", "-journal", "-wal"])
def test_a_file_that_is_mounted_alone_is_refused(
    ledger: Ledger, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTED.format(f"{ledger.path}{end}"))
    monkeypatch.setattr(address, "_MOUNTS", mounts)
    with pytest.raises(StateError, match="is mounted alone"):
        open_ledger(str(ledger.path))
    with pytest.raises(StateError, match="is mounted alone"):
        ledger.verify()
    require_one_name(ledger.path, MOUNTED.format(ledger.path.parent))  # a folder takes the journals along


def test_a_real_bind_mount_of_the_file_is_refused(ledger: Ledger, tmp_path: Path) -> None:
    other = tmp_path / "other" / "ledger.sqlite"
    other.parent.mkdir(mode=0o700)
    other.touch(mode=0o600)
    mount = 'mount --bind "$1" "$2" || exit 77; exec "$3" -c "$4" "$2"'
    command = ["unshare", "-rm", "sh", "-c", mount, "sh", ledger.path, other, sys.executable, OPENS]
    if shutil.which("unshare") is None:
        pytest.skip("this machine has no unshare")
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 77 or done.stderr.startswith("unshare:"):
        pytest.skip("this user may not mount")
    assert f"StateError: the ledger {other} is mounted alone" in done.stderr


def test_a_symbolic_link_to_the_ledger_is_no_second_name(ledger: Ledger, tmp_path: Path) -> None:
    link = tmp_path / "link.sqlite"
    link.symlink_to(ledger.path)
    through = open_ledger(str(link))
    through.reserve(reservation("r"))
    assert through.path == ledger.path  # and so is the journal's folder
    assert ledger.state("r") is not None


def test_a_killed_maker_leaves_no_ledger_with_two_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(address, "sync_folder", killed)
    monkeypatch.setattr(os, "unlink", lambda *ignored, **options: None)
    with pytest.raises(KeyboardInterrupt):
        create_ledger(str(tmp_path / "state" / "ledger.sqlite"))
    monkeypatch.undo()
    assert open_ledger(str(tmp_path / "state" / "ledger.sqlite")).head()[0] == 0


def test_verify_names_every_release_that_the_ledger_forgot(
    ledger: Ledger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    published(ledger, "first", out)
    copy = tmp_path / "copy.sqlite"
    shutil.copy(ledger.path, copy)
    published(ledger, "second", out)
    published(ledger, "third", out)
    (out / "odd").mkdir()
    (out / "odd" / "release.json").write_text("{}")
    (out / "notes").mkdir()
    shutil.copy(copy, ledger.path)
    assert main(["ledger", "verify", "--manifests", "--ledger", str(ledger.path)]) == 5
    told = capsys.readouterr().err
    assert [name for name in ("first", "second", "third", "odd", "notes") if f"{out / name}: its head" in told] == [
        "second",
        "third",
        "odd",
    ]
