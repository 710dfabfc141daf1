"""Folders that say values (`county=01001/`), files of drifting types, and folders that are a table format's."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.base.errors import MicrodataError, PlanError
from pipeline.microdata.read import partition_values
from pipeline.microdata.source import shown, table_format
from pipeline.storage.objects import StorePath
from tests.support.leaks import told
from tests.support.parity import released
from tests.support.submit import Place, submit
from tests.support.world import records, write_world

MICRODATA = records(300)


def expected(folder: Path) -> dict[str, bytes]:
    return released(write_world(folder / "whole", MICRODATA), folder / "whole", None)


def in_folders(folder: Path, keys: list[str], write: Callable[[pa.Table, Path], None]) -> Path:
    """Write the records into a folder for each value of the keys, without the keys; return the plan."""
    plan = write_world(folder, None)
    distinct = MICRODATA.group_by(keys).aggregate([]).to_pylist()
    for values in distinct:
        rows = MICRODATA
        for key, value in values.items():
            rows = rows.filter(pc.equal(rows[key], value))
        place = folder.joinpath("microdata", *(f"{key}={value}" for key, value in values.items()))
        place.mkdir(parents=True)
        write(rows.drop_columns(keys), place)
    return plan


def as_parquet(rows: pa.Table, folder: Path) -> None:
    pq.write_table(rows, folder / "part.parquet")


def as_csv(rows: pa.Table, folder: Path) -> None:
    rows.to_pandas().to_csv(folder / "part.csv", index=False)


@pytest.mark.parametrize("keys", [["county"], ["naics", "county"]])
@pytest.mark.parametrize("write", [as_parquet, as_csv])
def test_codes_in_names_of_folders_are_text(
    tmp_path: Path, keys: list[str], write: Callable[[pa.Table, Path], None]
) -> None:
    plan = in_folders(tmp_path, keys, write)
    assert released(plan, tmp_path, None) == expected(tmp_path)


def test_a_measure_in_names_of_folders(tmp_path: Path) -> None:
    plan = in_folders(tmp_path, ["employment"], as_parquet)
    assert released(plan, tmp_path, None) == expected(tmp_path)


@pytest.mark.parametrize("name", ["1001", "__HIVE_DEFAULT_PARTITION__"])
def test_a_name_without_its_zero_or_that_says_null_breaks_the_contract(tmp_path: Path, name: str) -> None:
    plan = in_folders(tmp_path, ["county"], as_parquet)
    (tmp_path / "microdata" / "county=01001").rename(tmp_path / "microdata" / f"county={name}")
    with pytest.raises(MicrodataError, match="county holds a code that is empty or malformed") as broken:
        submit(Place(plan, tmp_path))
    assert "1001" not in str(broken.value)


@pytest.mark.parametrize("damage", ["cut", "page", "link"])
def test_an_error_shows_no_code_of_a_folders_name(tmp_path: Path, damage: str) -> None:
    plan = in_folders(tmp_path, ["county"], as_parquet)
    folder = tmp_path / "microdata" / "county=01001"
    file = folder / "part.parquet"
    whole = file.read_bytes()
    if damage == "link":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    elif damage == "cut":
        file.write_bytes(whole[:100])
    else:  # the footer is whole
        footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
        file.write_bytes(whole[:4] + bytes(footer - 4) + whole[footer:])
    with pytest.raises((PlanError, MicrodataError), match="county=…") as broken:
        submit(Place(plan, tmp_path))
    assert "01001" not in told(broken.value)


def test_paths_and_uris_are_shown_without_the_values_that_they_say() -> None:
    assert shown("/data/county=01001/naics=3=4/part.parquet") == "/data/county=…/naics=…/part.parquet"
    uri = StorePath("s3", "bucket", "m/county=01001/part.parquet", "scheme=http")
    assert shown(uri) == "s3://bucket/m/county=…/part.parquet?scheme=…"


def test_the_column_of_a_file_counts_before_the_folders_name(tmp_path: Path) -> None:
    plan = write_world(tmp_path, None)
    (tmp_path / "microdata" / "county=99999").mkdir(parents=True)
    pq.write_table(MICRODATA, tmp_path / "microdata" / "county=99999" / "part.parquet")
    assert released(plan, tmp_path, None) == expected(tmp_path)


def test_values_are_unescaped_and_the_innermost_counts() -> None:
    path = "/data/a=1/naics%20code=31%2F1/a=2/b=__HIVE_DEFAULT_PARTITION__/c=3=4/file=x.parquet"
    assert partition_values(path, ["a", "naics code", "b", "c", "file", "d"]) == {
        "a": "2",
        "naics code": "31/1",
        "b": None,
        "c": "3=4",
    }


TYPES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "narrow integers": lambda t: cast(t, pa.int16(), pa.int32()),
    "unsigned integers": lambda t: cast(t, pa.uint16(), pa.uint64()),
    "doubles": lambda t: cast(t, pa.float64(), pa.float64()),
    "decimals": lambda t: cast(t, pa.decimal128(9, 2), pa.decimal128(30, 4)),
    "text": lambda t: cast(t, pa.string(), pa.large_string()),
    "dictionaries": lambda t: t.set_column(1, "naics", t["naics"].dictionary_encode()),
    "another order": lambda t: t.select(["payroll", "county", "employment", "naics", "establishment_id"]),
    "more columns": lambda t: t.append_column("notes", pa.array(["x"] * len(t))),
}


def cast(table: pa.Table, employment: pa.DataType, payroll: pa.DataType) -> pa.Table:
    for name, kind in (("employment", employment), ("payroll", payroll)):
        column = table[name]
        if pa.types.is_decimal(kind):
            column = pa.chunked_array([[Decimal(value) for value in column.to_pylist()]])
        table = table.set_column(table.schema.get_field_index(name), name, column.cast(kind))
    return table


def test_files_of_drifting_schemas_are_read_without_loss(tmp_path: Path) -> None:
    plan = write_world(tmp_path, None)
    (tmp_path / "microdata").mkdir()
    cuts = np.linspace(0, len(MICRODATA), len(TYPES) + 1).astype(int)
    for i, drift in enumerate(TYPES.values()):
        rows = MICRODATA.slice(cuts[i], cuts[i + 1] - cuts[i])
        pq.write_table(drift(rows), tmp_path / "microdata" / f"{i}.parquet")
    assert released(plan, tmp_path, None) == expected(tmp_path)


@pytest.mark.parametrize(
    ("drift", "rule"),
    [
        (lambda t: t.set_column(1, "naics", t["naics"].cast(pa.int64())), "naics is not text"),
        (lambda t: t.set_column(3, "employment", pa.array([True] * len(t))), "employment is not of a number type"),
        (
            lambda t: t.rename_columns(["establishment_id", "NAICS", *t.column_names[2:]]),
            r"no column naics \(nearest: NAICS\)",
        ),
        (
            lambda t: t.set_column(3, "employment", pc.add(t["employment"].cast(pa.float64()), 0.5)),
            "employment is not a whole number of its steps",
        ),
    ],
)
def test_a_file_that_would_lose_something_is_refused(
    tmp_path: Path, drift: Callable[[pa.Table], pa.Table], rule: str
) -> None:
    plan = write_world(tmp_path, MICRODATA)
    pq.write_table(drift(MICRODATA.slice(0, 9)), tmp_path / "microdata" / "part-1.parquet")
    kind = MicrodataError if "steps" in rule else PlanError
    with pytest.raises(kind, match=rule):
        submit(Place(plan, tmp_path))


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("_delta_log/00000000000000000000.json", "cannot read this version of the Delta table"),
        ("year=2023/_delta_log/00000000000000000000.json", "a Delta table lies in it; name that table's own folder"),
        ("metadata/v1.metadata.json", "name that of its catalog"),
        ("year=2023/metadata/00000-3f.metadata.json", "an Iceberg table lies in it; name that table's own folder"),
        (".hoodie/hoodie.properties", r"it is a Hudi table.*dataset\.source"),
    ],
)
def test_the_files_of_a_table_format_are_not_read_as_plain_ones(tmp_path: Path, name: str, refusal: str) -> None:
    plan = write_world(tmp_path, MICRODATA)
    log = tmp_path / "microdata" / name
    log.parent.mkdir(parents=True)
    log.write_text("{}")
    with pytest.raises(PlanError, match=refusal):
        submit(Place(plan, tmp_path))


def test_other_folders_are_plain() -> None:
    assert (
        table_format(["a.parquet", "_SUCCESS", "metadata/a.parquet", "x/metadata.json", "notes.metadata.json"]) is None
    )
