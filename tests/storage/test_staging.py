"""Private staging: whole or absent, and unseen."""

import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.base.errors import PlanError, StateError
from pipeline.release.publish import require_publishable
from pipeline.storage.local import LocalPath
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging, prepare_root, together
from tests.support.ledgers import ABOUT, ATTEMPT, filled, modes


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(locate(tmp_path / "staging"), "r", ATTEMPT)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_staging_is_private_whatever_the_umask(staging: Staging, mask: int) -> None:
    before = os.umask(mask)
    try:
        filled(staging)
    finally:
        os.umask(before)
    assert modes(Path(staging.root)) == {(True, 0o700), (False, 0o600)}
    assert not staging.exposed()


def test_a_complete_attempt_is_read_back(staging: Staging) -> None:
    assert staging.read_complete() is None
    facts = filled(staging)
    assert staging.read_complete() == facts
    assert sorted(facts.files) == ["policy.json", "tables/q/part-0.parquet"]
    assert facts.files["tables/q/part-0.parquet"].bytes == 4
    assert facts.about == ABOUT
    with pytest.raises(StateError, match="exists already"):
        staging.create()


def test_an_attempt_without_its_last_file_is_not_complete(staging: Staging) -> None:
    staging.create()
    staging.write_text("policy.json", "{}")
    assert staging.read_complete() is None


@pytest.mark.parametrize("break_it", range(8))
def test_an_attempt_where_anything_is_off_is_not_complete(staging: Staging, break_it: int) -> None:
    filled(staging)
    table, facts = Path(staging.path) / "tables/q/part-0.parquet", Path(staging.path) / "attempt.json"
    read = json.loads(facts.read_text())
    (
        lambda: table.write_bytes(b"r0ws"),
        table.unlink,
        lambda: (Path(staging.path) / "tables/q/part-1.parquet").write_bytes(b""),
        lambda: (Path(staging.path) / "extra").symlink_to(table),
        lambda: facts.write_text(facts.read_text()[:-1]),
        lambda: facts.write_text("[]"),
        lambda: facts.write_text(json.dumps(read | {"files": {}})),
        lambda: facts.write_text(json.dumps(read | {"files": {"policy.json": 1}})),
    )[break_it]()
    assert staging.read_complete() is None


def test_the_digest_covers_contents_and_what_is_told_of_them(staging: Staging) -> None:
    facts = filled(staging)
    (Path(staging.path) / "tables/q/part-0.parquet").write_bytes(b"r0ws")
    assert len({facts.digest, replace(facts, about={}).digest, staging.complete(ABOUT).digest}) == 3


def test_only_files_are_staged(staging: Staging) -> None:
    staging.create()
    (Path(staging.path) / "link").symlink_to("/etc/hostname")
    with pytest.raises(StateError, match="no ordinary file"):
        staging.complete(ABOUT)


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o750, 0o755, 0o777])
def test_staging_that_others_could_look_into_is_told(staging: Staging, mode: int) -> None:
    assert not staging.exposed()  # nothing is there to be seen
    filled(staging)
    for folder in (Path(staging.root), Path(staging.path).parent, Path(staging.path)):
        assert not staging.exposed()
        folder.chmod(mode)
        assert staging.exposed()
        folder.chmod(0o700)
    Path(staging.root).chmod(mode)
    for step in (lambda: prepare_root(staging.root), Staging(staging.root, "s", ATTEMPT).create):
        with pytest.raises(StateError, match="open to others"):
            step()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_staging_that_is_not_ours_is_told(staging: Staging) -> None:
    filled(staging)
    os.chown(staging.path, 65534, 65534)
    assert staging.exposed()


def test_destroying_leaves_nothing_and_can_be_repeated(staging: Staging) -> None:
    filled(staging)
    other = Staging(staging.root, "r", "f" * 16)
    other.create()
    for _ in range(2):
        staging.destroy()
        assert staging.read_complete() is None
        assert [path.name for path in (Path(staging.root) / "r").iterdir()] == [other.attempt]
    other.destroy()
    assert list(Path(staging.root).iterdir()) == []


def test_staging_that_cannot_be_emptied_is_told(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its disk has become read-only; what is left there, the next run removes."""

    def delete_tree(path: LocalPath) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "CANARY")

    staging.create()
    monkeypatch.setattr(LocalPath, "delete_tree", delete_tree)
    with pytest.raises(StateError, match=r"cannot be removed \(Read-only file system\): make staging writable"):
        staging.destroy()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", ".hidden", "a\n", "a" * 129, "é"])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, staging: Staging, name: str) -> None:
    staging.create()
    for step in (
        lambda: Staging(locate(tmp_path), name, ATTEMPT),
        lambda: Staging(locate(tmp_path), "r", name),
        lambda: staging.table_folder(name),
        lambda: require_publishable(locate(tmp_path / "out"), name, locate(tmp_path / "staging"), None),
    ):
        with pytest.raises(PlanError, match="letters, digits"):
            step()


def test_a_root_that_another_process_made_first_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def make_after_another(folder: Path, *arguments: object, **options: object) -> None:
        make(folder, *arguments, **options)
        make(folder, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", make_after_another)
    root = tmp_path / "state" / "staging"
    prepare_root(locate(root))
    monkeypatch.undo()
    assert modes(root) == {(True, 0o700)}
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot be made"):
        prepare_root(locate(tmp_path / "file"))


def test_files_are_worked_on_together_and_the_first_failure_ends_it() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 3:
            raise StateError("of 3")
        time.sleep(0.01 if item > 3 else 0)  # else a busy machine may work them all off before it looks at the first
        return item**2

    assert list(together(work, range(3))) == [0, 1, 4]
    with pytest.raises(StateError, match="of 3"):
        list(together(work, range(3, 10**4)))
    ended = len(begun)
    time.sleep(0.01)
    assert len(begun) == ended < 10**4  # nothing goes on, and most was not begun
