"""Formats of tables: what each writes is read back as it was drawn."""

from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.storage.uri import locate
from pipeline.tables.writers import FORMATS, PARQUET

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


def test_names_of_files_depend_on_the_number_of_cells_alone() -> None:
    assert PARQUET.files("q", 0) == ["q/part-00000.parquet"]
    assert PARQUET.files("q", (1 << 18) + 1) == ["q/part-00000.parquet", "q/part-00001.parquet"]
    assert FORMATS["csv"].files("q", 1 << 30) == ["q.csv"]
