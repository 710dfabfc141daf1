"""The files of the microdata: found, pinned and cut into chunks."""

import os
from collections import Counter
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.base.errors import PlanError, PrdpError
from pipeline.microdata import source
from pipeline.microdata.read import read
from pipeline.microdata.source import CHUNK_RECORDS, chunks, find, pin
from pipeline.storage.paths import locate
from tests.support.cells import GOOD, HEADER, SUMS, csv, parquet, records, spec, summed, write
from tests.support.leaks import found as leaked
from tests.support.leaks import told

CANARY = "777123456789"


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    one = parquet(tmp_path / "one.parquet", GOOD)
    assert find(locate(one)).files == (locate(one),)
    assert find(locate(one)).format == "parquet"
    csv(tmp_path / "text" / "a.csv", HEADER)
    assert find(locate(tmp_path / "text")).format == "csv"
    upper = csv(tmp_path / "upper" / "A.CSV", HEADER)
    assert find(locate(tmp_path / "upper")).files == (locate(upper),)


def test_nested_folders_without_hidden_ones_in_order(tmp_path: Path) -> None:
    seen = ("b.parquet", "a/z.parquet", "a/b/c.parquet", "naics=31/part.parquet", "x.parquet/part-0.parquet")
    hidden = (".a.parquet", "_b.parquet", ".h/a.parquet", "_temporary/a.parquet", "a/_x/b.parquet", "a/.c.parquet.crc")
    for name in (*seen, *hidden, "_SUCCESS", "README.txt", "a/notes"):
        parquet(tmp_path / name, GOOD)
    assert find(locate(tmp_path)).files == tuple(locate(path) for path in sorted(tmp_path / name for name in seen))
    assert summed(tmp_path) == {cell: tuple(5 * n for n in row) for cell, row in SUMS.items()}


def test_what_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such file or folder; set"):
        find(locate(tmp_path / "absent"))
    with pytest.raises(PlanError, match="no file named"):
        find(locate(tmp_path))
    csv(tmp_path / "_hidden.csv", HEADER)
    csv(tmp_path / "notes.txt", HEADER)
    with pytest.raises(PlanError, match="no file named"):
        find(locate(tmp_path))
    with pytest.raises(PlanError, match="no file named"):
        find(locate(tmp_path / "notes.txt"))
    csv(tmp_path / "sub" / "a.csv", HEADER)
    parquet(tmp_path / "b.parquet", GOOD)
    with pytest.raises(PlanError, match="both Parquet and CSV"):
        find(locate(tmp_path))


def rewritten(folder: Path) -> None:
    csv(folder / "a.csv", HEADER + "1\n")


def touched(folder: Path) -> None:
    facts = (folder / "a.csv").stat()
    os.utime(folder / "a.csv", ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))


def longer_at_the_same_time(folder: Path) -> None:
    facts = (folder / "a.csv").stat()
    rewritten(folder)
    os.utime(folder / "a.csv", ns=(facts.st_atime_ns, facts.st_mtime_ns))


def swapped(folder: Path) -> None:
    for old, new in (("a.csv", "x"), ("sub/b.csv", "a.csv"), ("x", "sub/b.csv")):
        (folder / old).rename(folder / new)


CHANGES: tuple[Callable[[Path], object], ...] = (
    rewritten,
    touched,
    longer_at_the_same_time,
    swapped,
    lambda folder: csv(folder / "new.csv", ""),
    lambda folder: (folder / "a.csv").unlink(),
    lambda folder: (folder / "a.csv").rename(folder / "c.csv"),
    lambda folder: (folder / "sub").rename(folder / "other"),
)


@pytest.mark.parametrize("change", CHANGES)
def test_the_pin_tells_every_change(tmp_path: Path, change: Callable[[Path], object]) -> None:
    csv(tmp_path / "a.csv", HEADER)
    csv(tmp_path / "sub" / "b.csv", HEADER + "\n")
    found = find(locate(tmp_path))
    before = pin(found)
    csv(tmp_path / "_ignored.csv", HEADER)
    assert pin(found) == pin(find(locate(tmp_path))) == before
    change(tmp_path)
    assert pin(find(locate(tmp_path))) != before


def test_a_file_that_comes_after_the_search_is_not_pinned(tmp_path: Path) -> None:
    found = find(locate(csv(tmp_path / "a.csv", HEADER).parent))
    before = pin(found)
    csv(tmp_path / "b.csv", HEADER)
    assert pin(found) == before  # what is scanned is what is pinned, and the new file shows in the next search
    assert pin(find(locate(tmp_path))) != before


def test_a_vanished_file_is_an_error(tmp_path: Path) -> None:
    found = find(locate(csv(tmp_path / "a.csv", HEADER)))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(PrdpError):
        pin(found)
    os.symlink(tmp_path / "absent", tmp_path / "b.csv")
    with pytest.raises(PlanError, match="cannot be read"):
        pin(find(locate(tmp_path)))


def test_chunks_cover_every_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (1, 0, 250, 1000, 3, 99, 100, 101)
    write(tmp_path, [records(size, i) for i, size in enumerate(sizes)])
    found = find(locate(tmp_path))
    groups = {
        (str(file), g): pq.read_metadata(file).row_group(g).num_rows
        for file in found.files
        for g in range(pq.read_metadata(file).num_row_groups)
    }
    whole = summed(tmp_path)
    assert sum(row[0] for row in whole.values()) == sum(sizes)
    for most in (1, 100, 150, 400, CHUNK_RECORDS):
        monkeypatch.setattr(source, "CHUNK_RECORDS", most)
        cut = list(chunks(found))
        read_by = [[(piece.path, group) for piece in chunk for group in piece.row_groups or ()] for chunk in cut]
        assert Counter(chain.from_iterable(read_by)) == Counter(groups.keys())
        held = [sum(groups[group] for group in chunk) for chunk in read_by]
        assert all(records <= max(most, 100) for records in held)
        assert all(a + b > most for a, b in pairwise(held))  # none is smaller than it must be
        assert summed(tmp_path) == whole
    assert len(cut) == 1


def test_many_tiny_files_share_a_chunk(tmp_path: Path) -> None:
    write(tmp_path, [records(3, i) for i in range(300)])
    (chunk,) = chunks(find(locate(tmp_path)))
    assert [piece.path for piece in chunk] == [str(file) for file in find(locate(tmp_path)).files]
    assert sum(row[0] for row in summed(tmp_path).values()) == 900


def test_a_file_without_records(tmp_path: Path) -> None:
    nothing = {name: pa.array([], kind) for name, kind in (("naics", pa.string()), ("county", pa.string()))}
    parquet(tmp_path / "p" / "a.parquet", nothing | {"emp": pa.array([], pa.int64()), "pay": pa.array([], pa.int64())})
    assert sum(len(list(read(chunk, spec()))) for chunk in chunks(find(locate(tmp_path / "p")))) == 0
    assert summed(csv(tmp_path / "c" / "a.csv", HEADER)) == {}


def test_a_truncated_parquet_file(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet", {"naics": [CANARY] * 9}, compression="none").read_bytes()
    assert CANARY.encode() in whole
    for size in (0, 3, 4, 30, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path = csv(tmp_path / "cut.parquet", whole[:size])
        with pytest.raises(PlanError, match="not a readable Parquet file") as raised:
            list(chunks(find(locate(path))))
        assert not leaked(told(raised.value), [CANARY])
