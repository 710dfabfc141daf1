"""Delta tables as microdata: the same tables as from plain Parquet, each row once, or a refusal by name."""

import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from pipeline.base.errors import MicrodataError, PlanError, StateError
from pipeline.engines import open_engine
from pipeline.engines.protocol import Engine
from pipeline.microdata import source
from pipeline.microdata.lakehouse import microdata_at
from pipeline.microdata.read import read, require_schema
from pipeline.release.pinned import pinned, source_of
from pipeline.storage.paths import locate
from tests.support.cells import keys
from tests.support.delta import add, column, columns_of, commit, vector
from tests.support.leaks import told
from tests.support.parity import released
from tests.support.submit import Place, submit
from tests.support.world import records, write_world
from udfs.records.contract import MeasureColumn
from udfs.records.decoding import SumSpec

MICRODATA = records(300)
CANARY = "777123456789"


SPEC = SumSpec(
    keys=keys(),
    measures=tuple(MeasureColumn(name, name, Fraction(1), nonnegative=True) for name in ("employment", "payroll")),
    bases=(),
    bad_records="refuse",
    record="establishment_id",
)


def read_of(at: str | Path) -> list[dict[str, Any]]:
    """Return the records that a release reads of the table at a place, in the order of their ids."""
    found = source.find(microdata_at(locate(at)))
    require_schema(found, SPEC, "establishment_id")
    rows = [row for chunk in source.chunks(found) for batch in read(chunk, SPEC) for row in batch.to_pylist()]
    assert source.records_of(found) == len(rows)
    return sorted(rows, key=lambda row: (len(row["establishment_id"]), row["establishment_id"]))


def test_a_release_has_the_bytes_of_one_from_plain_parquet(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "microdata", MICRODATA.slice(0, 200), partition_by=["county"])
    write_deltalake(tmp_path / "microdata", MICRODATA.slice(200), mode="append")
    DeltaTable(tmp_path / "microdata").delete("naics = '722511'")
    kept = MICRODATA.filter(pc.not_equal(MICRODATA["naics"], "722511"))
    plain = released(write_world(tmp_path / "plain", kept), tmp_path / "plain", None)
    assert released(write_world(tmp_path, None), tmp_path, None) == plain


@pytest.mark.drill
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # PySpark's own
def test_spark_reads_the_same(tmp_path: Path, spark: Engine) -> None:
    plan = write_world(tmp_path, None)
    by_hand(tmp_path / "microdata", deletionVector=vector([0, 299]))
    plain = released(write_world(tmp_path / "plain", MICRODATA.slice(1, 298)), tmp_path / "plain", None)
    assert released(plan, tmp_path, spark) == plain


def test_an_earlier_version(tmp_path: Path) -> None:
    at = tmp_path / "microdata"
    write_deltalake(at, MICRODATA.slice(0, 200), partition_by=["employment"])
    write_deltalake(at, MICRODATA.slice(200), mode="append")
    DeltaTable(at).delete("naics = '722511'")
    assert read_of(f"{at}@v0") == MICRODATA.slice(0, 200).to_pylist()
    assert read_of(f"{at}@v1") == MICRODATA.to_pylist()
    assert read_of(at) == read_of(f"{at}@v2") == [row for row in MICRODATA.to_pylist() if row["naics"] != "722511"]


def test_odd_values_of_partitions(tmp_path: Path) -> None:
    """Codes that no folder's name can hold are those of the log; an empty one is null, as the protocol has it."""
    odd = ["01001", "é/ =%20x", None, "", "01001 ", "%30", "a:b"]
    rows = pa.table({name: MICRODATA[name].slice(0, 7) for name in MICRODATA.column_names} | {"county": odd})
    write_deltalake(tmp_path / "microdata", rows, partition_by=["county"])
    read = read_of(tmp_path / "microdata")
    assert [row["county"] for row in read] == ["01001", "é/ =%20x", None, None, "01001 ", "%30", "a:b"]
    assert [row["payroll"] for row in read] == rows["payroll"].to_pylist()


def by_hand(at: Path, **facts: object) -> Path:
    return commit(at, columns_of(MICRODATA), [add(at, "a.parquet", MICRODATA, **facts)])


@pytest.mark.parametrize("rows", [[7], [0, 99, 100, 250, 299]])
def test_deleted_rows_are_not_read(tmp_path: Path, rows: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand(tmp_path, deletionVector=vector(rows))
    kept = [row for number, row in enumerate(MICRODATA.to_pylist()) if number not in rows]
    assert read_of(tmp_path) == kept
    monkeypatch.setattr("pipeline.microdata.read.BATCH_RECORDS", 64)
    assert read_of(tmp_path) == kept
    monkeypatch.setattr("pipeline.microdata.source.CHUNK_RECORDS", 100)  # each row group a chunk
    assert read_of(tmp_path) == kept
    monkeypatch.setattr("pipeline.microdata.lake_tables.TableFile.is_deleted", lambda view, numbers: numbers < 0)
    with pytest.raises(AssertionError):  # a reader that takes no notice is seen
        read_of(tmp_path)


def test_deleted_rows_that_no_feature_announces(tmp_path: Path) -> None:
    removed = add(tmp_path, "a.parquet", MICRODATA, deletionVector=vector([7]))
    commit(tmp_path, columns_of(MICRODATA), [removed], features=["timestampNtz"])
    assert len(read_of(tmp_path)) == 299


def test_deleted_rows_beyond_a_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(tmp_path / "microdata" / "a.parquet").lstrip("/")
    monkeypatch.setattr("pipeline.microdata.lake_tables._vectors", lambda table: {file: np.int64(300).tobytes()})
    by_hand(tmp_path / "microdata", deletionVector=vector([7]))
    assert "not the file that its table lists" in refusal(tmp_path)


MAPPED = [column("establishment_id", "string", 1, "c1"), column("naics", "string", 2, "c2")]
MAPPED += [column("county", "string", 3, "c3"), column("employment", "long", 4, "c4")]
MAPPED += [column("payroll", "long", 5, "employment")]  # a column's old name is another's in files


def in_file(table: pa.Table, with_numbers: bool) -> pa.Table:
    """The records as a file of the mapped table holds them, without a county."""
    fields = [
        pa.field(each["metadata"]["delta.columnMapping.physicalName"], table.schema.field(each["name"]).type)
        for each in MAPPED
    ]
    if with_numbers:
        fields = [f.with_metadata({"PARQUET:field_id": str(n)}).with_name(f"x{n}") for n, f in enumerate(fields, 1)]
    made = pa.table(table.columns, schema=pa.schema(fields))
    return made.drop_columns([made.column_names[2]])


@pytest.mark.parametrize("mapping", ["name", "id"])
def test_renamed_columns_and_partitions(tmp_path: Path, mapping: str) -> None:
    narrow = MICRODATA.set_column(3, "employment", MICRODATA["employment"].cast(pa.int32()))  # widened since
    actions = []
    for county in sorted(set(MICRODATA["county"].to_pylist())):
        rows = narrow.filter(pc.equal(narrow["county"], county))
        held = in_file(rows, mapping == "id")
        actions.append(add(tmp_path, f"zz/{county}.parquet", held, partitionValues={"c3": county}))
    commit(tmp_path, MAPPED, actions, ["columnMapping", "typeWidening"], partitions=["county"], mapping=mapping)
    assert read_of(tmp_path) == MICRODATA.to_pylist()


def test_an_added_column_is_null_in_older_files(tmp_path: Path) -> None:
    """Also where the older files hold another, dropped column of that name."""
    physical = [each["metadata"]["delta.columnMapping.physicalName"] for each in MAPPED]
    new = add(tmp_path, "new.parquet", MICRODATA.slice(100).rename_columns(physical))
    older = MICRODATA.slice(0, 100).drop_columns(["payroll"]).rename_columns(physical[:4])
    old = add(tmp_path, "old.parquet", older.append_column("payroll", MICRODATA["payroll"].slice(0, 100)))
    commit(tmp_path, MAPPED, [new, old], ["columnMapping"], mapping="name")
    without = [row | {"payroll": None} for row in MICRODATA.slice(0, 100).to_pylist()]
    assert read_of(tmp_path) == without + MICRODATA.slice(100).to_pylist()


def refusal(tmp_path: Path, at: str = "microdata") -> str:
    """Return the message that refuses the microdata; nothing was charged, and no value is told."""
    place = Place(write_world(tmp_path, None, dataset={"path": at}), tmp_path)
    with pytest.raises(PlanError) as refused:
        submit(place)
    assert CANARY not in told(refused.value)
    assert place.ledger().states() == []
    return str(refused.value)


@pytest.mark.parametrize("second", ["a.parquet", "%61.parquet", "a%2Eparquet"])
def test_a_file_that_is_listed_twice_is_refused(tmp_path: Path, second: str) -> None:
    at = tmp_path / "microdata"
    once = add(at, "a.parquet", MICRODATA)
    again = {"add": once["add"] | {"path": second, "deletionVector": vector([1])}}
    commit(at, columns_of(MICRODATA), [once, again])
    assert "lists a file twice" in refusal(tmp_path)


@pytest.mark.parametrize("path", ["../other/a.parquet", "file:///{other}/a.parquet", "x/../a.parquet", "./a.parquet"])
def test_a_file_outside_the_table_is_refused(tmp_path: Path, path: str) -> None:
    at = tmp_path / "microdata"
    known = add(at, "a.parquet", MICRODATA)
    commit(at, columns_of(MICRODATA), [{"add": known["add"] | {"path": path.format(other=tmp_path)}}])
    assert "of another table" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("features", "named"),
    [
        (["catalogManaged"], "package deltalake cannot read"),
        (["brandNew"], "package deltalake cannot read"),
        (["deletionVectors", "typeWidening"], "uses deletionVectors with typeWidening"),
    ],
)
def test_what_is_not_honoured_is_refused(tmp_path: Path, features: list[str], named: str) -> None:
    at = tmp_path / "microdata"
    commit(at, columns_of(MICRODATA), [add(at, "a.parquet", MICRODATA)], features)
    assert named in refusal(tmp_path)


def test_a_type_that_is_no_wider_is_refused(tmp_path: Path) -> None:
    at = tmp_path / "microdata"
    texts = MICRODATA.set_column(3, "employment", pa.array([CANARY] * 300))
    commit(at, columns_of(MICRODATA), [add(at, "a.parquet", texts)])
    assert "column employment is of another type" in refusal(tmp_path)
    other = MICRODATA.rename_columns([*MICRODATA.column_names[:4], "Payroll"])
    commit(at, columns_of(MICRODATA), [add(at, "b.parquet", other)])
    assert "column payroll cannot be told apart" in refusal(tmp_path)


def log_with_values(at: Path) -> Path:
    """A table whose log shows the greatest value."""
    write_deltalake(at, MICRODATA.append_column("note", pa.array([CANARY] * 300)))
    assert CANARY in next((at / "_delta_log").glob("*.json")).read_text()
    return next(at.glob("*.parquet"))


def test_files_that_are_gone_or_replaced(tmp_path: Path) -> None:
    file = log_with_values(tmp_path / "microdata")
    assert "no Delta or Iceberg table lies there" in refusal(tmp_path, at="nothing@v3")
    assert "cannot read this version" in refusal(tmp_path, at="microdata@v7")
    size = file.stat().st_size
    file.unlink()
    assert "it is gone, as after VACUUM" in refusal(tmp_path)
    pq.write_table(MICRODATA, file)
    assert "not the file that its table lists" in refusal(tmp_path)
    pq.write_table(MICRODATA.slice(0, 299), file)
    log = next((tmp_path / "microdata" / "_delta_log").glob("*.json"))
    log.write_text(log.read_text().replace(f'"size":{size}', f'"size":{file.stat().st_size}'))
    assert "not the file that its table lists" in refusal(tmp_path)  # as large, with other rows
    with pytest.raises(PlanError, match="not the file that its table lists"):  # a run that goes on checks no schema
        list(source.chunks(source.find(microdata_at(locate(tmp_path / "microdata")))))
    log.write_text(log.read_text().replace('"schemaString"', f'"{CANARY}"'))
    assert "cannot read this version" in refusal(tmp_path)


def test_the_latest_version_is_found_once(tmp_path: Path) -> None:
    at = tmp_path / "microdata"
    write_deltalake(at, MICRODATA)
    table = microdata_at(locate(at))
    with open_engine("dask", {}) as engine:
        first = pinned(table, engine)
        write_deltalake(at, MICRODATA, mode="append")
        first.require_unchanged()
        assert first.digest.startswith("@v0 ")
        assert pinned(microdata_at(locate(at)), engine).digest != first.digest
        assert pinned(microdata_at(locate(f"{at}@v0")), engine).digest == first.digest
        os.utime(str(source.find(table).files[0]))
        with pytest.raises(MicrodataError, match="it changed during the run"):
            first.require_unchanged()


def test_versions_are_one_dataset_s(tmp_path: Path) -> None:
    """Another version under another name would have its losses counted apart."""
    at = tmp_path / "microdata"
    write_deltalake(at, MICRODATA)
    write_deltalake(at, MICRODATA.slice(0, 9), mode="append")
    assert source_of(microdata_at(locate(f"{at}@v1"))) == source_of(microdata_at(locate(at))) == str(at)
    (tmp_path / "link").symlink_to(at)
    assert source_of(microdata_at(locate(tmp_path / "link@v1"))) == str(at)


def test_versions_without_a_common_file_are_one_dataset_s(tmp_path: Path) -> None:
    at = tmp_path / "microdata"
    write_deltalake(at, MICRODATA)
    write_deltalake(at, MICRODATA.slice(0, 299), mode="overwrite")
    first = Place(write_world(tmp_path, None), tmp_path)
    submit(first)
    again = {"dataset": {"name": "another", "path": "microdata@v0"}, "release": "again"}
    with pytest.raises(StateError, match=r"@v0 are those of dataset small-world"):
        submit(Place(write_world(tmp_path, None, **again), tmp_path))
    assert len(first.ledger().states()) == 1


@pytest.mark.parametrize("marker", ["_delta_log/0.json", ".hoodie/hoodie.properties", "metadata/v1.metadata.json"])
def test_a_part_of_a_table_is_refused(tmp_path: Path, marker: str) -> None:
    """Its folders and files hold rows that no longer count, and some of them twice."""
    part = tmp_path / "microdata" / "data" / "county=01001"
    for path in (part / "a.parquet", tmp_path / "microdata" / marker):
        path.parent.mkdir(parents=True)
        pq.write_table(MICRODATA, path)
    (tmp_path / "link").symlink_to(part)
    for named in (part, part / "a.parquet", part.parent, tmp_path / "link"):
        with pytest.raises(PlanError, match=r"a part of an? (Delta|Hudi|Iceberg) table") as refused:
            source.find(microdata_at(locate(named)))
        assert "01001" not in str(refused.value) or named.name == "link"


def test_a_folder_may_be_named_as_a_version_is(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "cbp", MICRODATA.slice(0, 9))
    (tmp_path / "cbp@v0").mkdir()
    pq.write_table(MICRODATA, tmp_path / "cbp@v0" / "a.parquet")
    assert read_of(tmp_path / "cbp@v0") == MICRODATA.to_pylist()
