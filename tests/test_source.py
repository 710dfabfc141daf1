import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pipeline.build import code_digest
from pipeline.engines.protocol import SumTask
from pipeline.errors import MicrodataError, PlanError, PrdpError
from pipeline.microdata import source
from pipeline.microdata.read import read
from pipeline.microdata.source import CHUNK_RECORDS, chunks, find, pin
from tests.support.cells import COUNTIES, MEASURES, NAICS, as_dict, records, spec, write
from tests.support.leaks import found as leaked
from tests.support.leaks import told
from udfs.contract import ContractBroken, MeasureColumn
from udfs.sums import CodeColumn, SumSpec, add_frames

CANARY = "777123456789"
HEADER = "naics,county,emp,pay\n"
GOOD = {"naics": ["311111", "541110"], "county": ["01001", "02020"], "emp": [5, 7], "pay": ["1.25", "2"]}
SUMS = {0: (1, 5, 5), 18: (1, 7, 8)}  # cells 0·4 + 0 and 4·4 + 2; payroll in quarters


def summed(path: Path, given: SumSpec | None = None) -> dict[int, tuple[int, ...]]:
    """Return the sums of all chunks, as the engine's workers read them."""
    given = given or spec()
    parts = [SumTask(given, code_digest())(chunk) for chunk in chunks(find(path))]
    return as_dict(
        add_frames(pa.concat_tables([pa.Table.from_pandas(part) for part in parts]).to_pandas(), given.offsets[-1])
    )


def csv(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def parquet(path: Path, columns: Mapping[str, Any], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(dict(columns)), path, **options)
    return path


# -- finding ---------------------------------------------------------------------------------------------------------


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    one = parquet(tmp_path / "one.parquet", GOOD)
    assert find(one).files == (one,)
    assert find(one).format == "parquet"
    csv(tmp_path / "text" / "a.csv", HEADER)
    assert find(tmp_path / "text").format == "csv"
    upper = csv(tmp_path / "upper" / "A.CSV", HEADER)
    assert find(tmp_path / "upper").files == (upper,)


def test_nested_folders_without_hidden_ones_in_order(tmp_path: Path) -> None:
    seen = ("b.parquet", "a/z.parquet", "a/b/c.parquet", "naics=31/part.parquet", "x.parquet/part-0.parquet")
    hidden = (".a.parquet", "_b.parquet", ".h/a.parquet", "_temporary/a.parquet", "a/_x/b.parquet", "a/.c.parquet.crc")
    for name in (*seen, *hidden, "_SUCCESS", "README.txt", "a/notes"):
        parquet(tmp_path / name, GOOD)
    assert find(tmp_path).files == tuple(sorted(tmp_path / name for name in seen))
    assert summed(tmp_path) == {cell: tuple(5 * n for n in row) for cell, row in SUMS.items()}


def test_what_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no such file or folder; set"):
        find(tmp_path / "absent")
    with pytest.raises(MicrodataError, match="no file named"):
        find(tmp_path)
    csv(tmp_path / "_hidden.csv", HEADER)
    csv(tmp_path / "notes.txt", HEADER)
    with pytest.raises(MicrodataError, match="no file named"):
        find(tmp_path)
    with pytest.raises(MicrodataError, match="no file named"):
        find(tmp_path / "notes.txt")
    csv(tmp_path / "sub" / "a.csv", HEADER)
    parquet(tmp_path / "b.parquet", GOOD)
    with pytest.raises(MicrodataError, match="both Parquet and CSV"):
        find(tmp_path)


# -- pinning ---------------------------------------------------------------------------------------------------------


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
    found = find(tmp_path)
    before = pin(found)
    csv(tmp_path / "_ignored.csv", HEADER)
    assert pin(found) == pin(find(tmp_path)) == before
    change(tmp_path)
    assert pin(find(tmp_path)) != before


def test_a_file_that_comes_after_the_search_is_not_pinned(tmp_path: Path) -> None:
    found = find(csv(tmp_path / "a.csv", HEADER).parent)
    before = pin(found)
    csv(tmp_path / "b.csv", HEADER)
    assert pin(found) == before  # what is scanned is what is pinned, and the new file shows in the next search
    assert pin(find(tmp_path)) != before


def test_a_vanished_file_is_an_error(tmp_path: Path) -> None:
    found = find(csv(tmp_path / "a.csv", HEADER))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(PrdpError):
        pin(found)
    os.symlink(tmp_path / "absent", tmp_path / "b.csv")
    with pytest.raises(MicrodataError, match="cannot be read"):
        pin(find(tmp_path))


# -- cutting ---------------------------------------------------------------------------------------------------------


def test_chunks_cover_every_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (1, 0, 250, 1000, 3, 99, 100, 101)
    write(tmp_path, [records(size, i) for i, size in enumerate(sizes)])
    found = find(tmp_path)
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
    (chunk,) = chunks(find(tmp_path))
    assert [piece.path for piece in chunk] == [str(file) for file in find(tmp_path).files]
    assert sum(row[0] for row in summed(tmp_path).values()) == 900


def test_a_file_without_records(tmp_path: Path) -> None:
    nothing = {name: pa.array([], kind) for name, kind in (("naics", pa.string()), ("county", pa.string()))}
    parquet(tmp_path / "p" / "a.parquet", nothing | {"emp": pa.array([], pa.int64()), "pay": pa.array([], pa.int64())})
    assert sum(len(list(read(chunk, spec()))) for chunk in chunks(find(tmp_path / "p"))) == 0
    assert summed(csv(tmp_path / "c" / "a.csv", HEADER)) == {}


# -- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("stored", [True, False])
def test_parquet_codes_of_every_text_type(tmp_path: Path, kind: pa.DataType, stored: bool) -> None:
    typed = {name: pa.array(GOOD[name], kind) for name in ("naics", "county")}
    assert summed(parquet(tmp_path / "a.parquet", GOOD | typed, store_schema=stored)) == SUMS
    coded = {name: pa.array(GOOD[name]).dictionary_encode() for name in ("naics", "county")}
    assert summed(parquet(tmp_path / "b.parquet", GOOD | coded, store_schema=stored, use_dictionary=False)) == SUMS


def test_codes_that_are_numbers_are_refused(tmp_path: Path) -> None:
    for kind in (pa.int64(), pa.int32(), pa.float64()):
        path = parquet(tmp_path / f"{kind}.parquet", GOOD | {"county": pa.array([1001, 2020], kind)})
        with pytest.raises(ContractBroken, match="county"):
            summed(path)


def test_csv_cells(tmp_path: Path) -> None:
    rows = (
        *("311111,01001,5,1.25", '"541110","02020","7","2.00"'),  # leading zeros stay, quotes go
        *("311111,01001,,1", '311111,01001,"",1', ",01001,5,1", '311111,"",5,1'),  # empty
        *("311111,1001,5,1", "311111.0,01001,5,1", "311111, 01001,5,1", "NA,01001,5,1", "311111,01001,NA,1"),
        *('311111,01001,"1,000",1', "311111,01001,5.5,1", "311111,01001,0x5,1", "311111,01001,-5,1"),
    )
    for name, text in (
        ("plain", HEADER + "\n".join(rows)),
        ("bom", "\ufeff" + HEADER + "\n".join(rows) + "\n"),
        ("dos", HEADER.replace("\n", "\r\n") + "\r\n".join(rows) + "\r\n\r\n"),
    ):
        assert summed(csv(tmp_path / f"{name}.csv", text), spec(bad="drop")) == SUMS
        broken = [spec().broken_rule(cell) for cell in summed(tmp_path / f"{name}.csv") if cell < 0]
        assert Counter(column for column, _ in broken) == {"naics": 1, "county": 1, "emp": 3}


def test_csv_takes_the_named_columns_in_any_order(tmp_path: Path) -> None:
    text = 'name,pay,"naics",emp,county,year\n"A, B",1.25,311111,5,01001,2023\nC,2,541110,7,02020,x\n'
    assert summed(csv(tmp_path / "a.csv", text)) == SUMS


@pytest.mark.parametrize("column", ["naics", "emp"])
def test_a_missing_or_doubled_column_of_csv(tmp_path: Path, column: str) -> None:
    path = csv(tmp_path / "a.csv", HEADER.replace(column, "other") + f"311111,01001,5,{CANARY}\n")
    with pytest.raises(ContractBroken, match=f"'{column}', 'is missing from a file'"):
        summed(path)
    path = csv(tmp_path / "b.csv", HEADER.replace("pay", f"pay,{column}") + f"311111,01001,5,{CANARY},5\n")
    with pytest.raises(ContractBroken, match=f"'{column}', 'stands twice in a file'"):
        summed(path)


def test_a_missing_or_doubled_column_of_parquet(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {name: GOOD[name] for name in ("naics", "county", "pay")})
    with pytest.raises(ContractBroken, match="'emp', 'is missing from a file'"):
        summed(path)
    twice = pa.Table.from_arrays([pa.array(GOOD[name]) for name in (*GOOD, "emp")], names=[*GOOD, "emp"])
    pq.write_table(twice, tmp_path / "b.parquet")
    with pytest.raises(ContractBroken, match="'emp', 'stands twice in a file'"):
        summed(tmp_path / "b.parquet")


def test_columns_with_dots_in_their_names(tmp_path: Path) -> None:
    named = spec(
        naics=CodeColumn("a.b", "naics6", "naics6", {code: i for i, code in enumerate(NAICS)}),
        county=CodeColumn("a", "county", "county", {code: i for i, code in enumerate(COUNTIES)}),
        measures=(replace(MEASURES[0], column="e.f.g"), MeasureColumn("payroll", "a.b.c", Fraction("0.25"), False)),
    )
    columns = {"a": GOOD["county"], "a.b": GOOD["naics"], "a.b.c": GOOD["pay"], "e.f.g": GOOD["emp"], "e": [1, 2]}
    assert summed(parquet(tmp_path / "a.parquet", columns | {"e.f": ["x", "y"]}), named) == SUMS
    rows = "\n".join(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))
    assert summed(csv(tmp_path / "a.csv", ",".join(columns) + "\n" + rows), named) == SUMS


# -- nothing tells a value -------------------------------------------------------------------------------------------


def test_a_truncated_parquet_file(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet", {"naics": [CANARY] * 9}, compression="none").read_bytes()
    assert CANARY.encode() in whole
    for size in (0, 3, 4, 30, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        path = csv(tmp_path / "cut.parquet", whole[:size])
        with pytest.raises(MicrodataError, match="not a readable Parquet file") as raised:
            list(chunks(find(path)))
        assert not leaked(told(raised.value), [CANARY])


def test_damaged_files_fail_in_words_without_values(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet", GOOD | {"naics": [CANARY, CANARY]}, compression="none").read_bytes()
    pages = csv(tmp_path / "pages.parquet", whole[:4] + b"\xff" * 60 + whole[64:])
    with pytest.raises(MicrodataError, match="reading failed") as raised:
        summed(pages)
    assert raised.value.__context__ is None
    assert not leaked(told(raised.value), [CANARY])
    ragged = csv(tmp_path / "ragged.csv", HEADER + f"311111,01001,5,1\n{CANARY},{CANARY}\n")
    empty = csv(tmp_path / "empty.csv", "")
    for path, rule in ((ragged, "no record"), (empty, "missing from a file")):
        with pytest.raises(ContractBroken, match=rule) as broken:
            summed(path)
        assert not leaked(told(broken.value), [CANARY])


def test_the_search_finds_what_arrow_tells(tmp_path: Path) -> None:
    """The broken twin: reading without the task's wrapper."""
    path = csv(tmp_path / "ragged.csv", HEADER + f"311111,01001,5,1\n{CANARY},{CANARY}\n")
    with pytest.raises(pa.ArrowInvalid) as raised:
        pyarrow.csv.read_csv(path)
    assert leaked(told(raised.value), [CANARY])
