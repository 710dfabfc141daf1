"""Rows between split and merge: bound to their bucket and file, and useless to anybody without the run's key."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag

from pipeline.engines.buckets import grouped
from pipeline.storage.staging import Staging
from pipeline.storage.uri import locate
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
