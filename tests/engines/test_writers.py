"""Formats of tables: what each writes is read back as it was drawn."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from isal import isal_zlib

from pipeline.engines.writers import FORMATS, LEVEL, PARQUET, ROW_GROUP_CELLS, Written
from pipeline.storage.paths import locate

TABLE = pa.table(
    {
        "naics3": ["111", "722"],
        "county": ["01001", "02013"],
        "value": [-3, 1 << 60],
        "lower": [-9, 5],
        "upper": [3, 17],
        "standard_error": [2.5, 0.1],
    }
)


@pytest.mark.parametrize("name", FORMATS)
def test_a_table_is_read_back_from_every_format(tmp_path: Path, name: str) -> None:
    tables, writer = locate(tmp_path), FORMATS[name]
    for query, table in (("q", TABLE), ("none", TABLE.slice(0, 0))):
        (tables / query).make_folder()
        PARQUET.write(tables / PARQUET.files(query, len(table))[0], table.schema, [table])
        if writer is not PARQUET:
            writer.convert(tables, query)
        if len(table):
            assert pa.Table.from_batches(writer.read(tables, query)).equals(table)
        assert all((tables / file).is_plain_file() for file in writer.files(query, len(table)))
    assert "/" in writer.media  # which datapackage.json names after the draw


def test_names_of_files_depend_on_the_number_of_cells_alone() -> None:
    assert PARQUET.files("q", 0) == ["q/part-00000.parquet"]
    assert PARQUET.files("q", (1 << 18) + 1) == ["q/part-00000.parquet", "q/part-00001.parquet"]
    assert FORMATS["csv"].files("q", 1 << 30) == ["q.csv"]


@pytest.mark.parametrize("values", ["far apart", "all equal", "saturated", "doubles"])
def test_the_largest_rows_are_those_of_the_whole_table_sorted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: str
) -> None:
    random, size = np.random.default_rng(1), 3 * ROW_GROUP_CELLS
    value = {
        "far apart": random.permutation(size) + np.arange(size) // ROW_GROUP_CELLS * 10**6,
        "all equal": np.full(size, -7),
        "saturated": np.where(random.random(size) < 0.001, 2**63 - 1, 1 - 2**63),
        "doubles": np.where(random.random(size) < 0.001, random.random(size).round(2), -0.0),
    }[values]
    codes = [f"{number:07d}" for number in range(size)]
    others = {name: np.arange(size) for name in ("lower", "upper", "standard_error")}
    whole = pa.table({"county": codes, "value": value} | others)
    tables, read = locate(tmp_path), []
    (tables / "q").make_folder()
    for number, first in enumerate((0, 2 * ROW_GROUP_CELLS)):
        part = whole.slice(first, 2 * ROW_GROUP_CELLS)
        PARQUET.write(tables / "q" / f"part-{number:05d}.parquet", part.schema, [part])
    taken = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *args: read.append(args) or taken(*args))
    expected = whole.sort_by([("value", "descending"), ("county", "ascending")]).slice(0, 10)
    assert PARQUET.largest(tables, "q", 10) == expected
    assert len(read) == (1 if values == "far apart" else 3)
    none = locate(tmp_path) / "none"
    none.make_folder()
    assert PARQUET.largest(tables, "none", 10) is None
    PARQUET.write(none / "part-00000.parquet", whole.schema, [whole.slice(0, 0)])
    assert PARQUET.largest(tables, "none", 10) is None


def test_a_text_that_a_dictionary_has_twice_puts_no_memory_of_the_process_into_a_file(tmp_path: Path) -> None:
    places, codes = pa.array([0, 1, None, 2, 3], pa.int8()), pa.array(["02", "02", "04", "02"])
    states = pa.table({"state": pa.DictionaryArray.from_arrays(places, codes, ordered=True)})
    plain = states.cast(pa.schema({"state": pa.string()}))
    for name, rows in {"twice": states, "once": plain}.items():
        with Written(tmp_path / f"{name}.parquet", tmp_path / f"{name}.csv") as made:
            for piece in (pa.concat_tables([rows, rows]), rows.slice(0, 0)):
                made.write(piece)
    for ending in ("parquet", "csv"):
        assert (tmp_path / f"twice.{ending}").read_bytes() == (tmp_path / f"once.{ending}").read_bytes()
    assert pq.read_table(tmp_path / "twice.parquet") == pa.concat_tables([plain, plain])
    for name, rows in {"twin": states, "text": plain}.items():
        pq.write_table(rows, tmp_path / f"{name}.parquet", compression="none", store_schema=False)
    twin, text = (pq.read_metadata(tmp_path / f"{name}.parquet").row_group(0).column(0) for name in ("twin", "text"))
    pages = [each.data_page_offset - each.dictionary_page_offset for each in (twin, text)]
    assert pages[0] - pages[1] == 2 * (4 + len("02"))  # else Arrow is mended, and needs no help


def test_an_archive_is_packed_by_the_library_that_is_fast(tmp_path: Path) -> None:
    rows = pa.table({"county": [f"{number:05d}" for number in range(5000)], "value": range(5000)})
    with Written(tmp_path / "rows.csv", zipped=True) as made:
        made.write(rows)
    path = tmp_path / "rows.zip"
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        text = archive.read("rows.csv")
    fast, usual = (each.compressobj(LEVEL, wbits=-zlib.MAX_WBITS) for each in (isal_zlib, zlib))
    assert fast.compress(text) + fast.flush() in path.read_bytes()
    assert usual.compress(text) + usual.flush() not in path.read_bytes()
