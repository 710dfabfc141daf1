"""Rows between split and merge: bound to their bucket and file, and useless to anybody without the run's key."""

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag

from pipeline.base.errors import StateError
from pipeline.engines.protocol import grouped
from pipeline.storage.local import LocalPath
from pipeline.storage.paths import locate
from pipeline.storage.staging import Staging
from tests.support.tasks import digits_of, gathered

ITEMS = [13, 46]  # of each one row to bucket 1 and one to bucket 0, as long as the other's


def run(folder: Path, meddle: Callable[[Path], None]) -> list[Any]:
    """Group ITEMS, and meddle with the rows on disk, below `folder`, before it is merged."""
    scratch = Staging(locate(folder), "release", "rows")
    phases = iter([meddle, lambda folder: None])

    def each(task: Callable[[Any], Any], items: Sequence[Any], counted: str = "") -> list[Any]:
        results = [task(item) for item in items]
        next(phases)(Path(scratch.path))
        return results

    return grouped(each, digits_of, ITEMS, gathered, scratch)


def test_staging_without_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: LocalPath, *parts: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "CANARY")

    monkeypatch.setattr(LocalPath, "write", write)
    with pytest.raises(StateError, match=r"writing to staging failed \(No space left on device\): make room"):
        run(tmp_path, lambda folder: None)


def change_a_byte(folder: Path) -> None:
    data = bytearray((folder / "0-0").read_bytes())
    data[40] ^= 1
    (folder / "0-0").write_bytes(data)


def swap_files(folder: Path) -> None:
    first, second = ((folder / name).read_bytes() for name in ("0-0", "1-0"))
    (folder / "0-0").write_bytes(second)
    (folder / "1-0").write_bytes(first)


def swap_buckets(folder: Path) -> None:
    data = (folder / "0-0").read_bytes()
    half = len(data) // 2
    (folder / "0-0").write_bytes(data[half:] + data[:half])


def test_untouched_rows_arrive(tmp_path: Path) -> None:
    assert run(tmp_path, lambda folder: None) == [(0, ["13:3", "46:6"]), (1, ["13:1", "46:4"])]


@pytest.mark.parametrize("meddle", [change_a_byte, swap_files, swap_buckets])
def test_changed_or_moved_rows_are_refused(tmp_path: Path, meddle: Callable[[Path], None]) -> None:
    with pytest.raises(InvalidTag):
        run(tmp_path, meddle)
