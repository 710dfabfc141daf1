"""Iceberg tables as microdata: each live row once, or a refusal by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType

from pipeline.base.errors import PlanError
from pipeline.microdata import source
from pipeline.microdata.lakehouse import microdata_at
from pipeline.microdata.read import read
from pipeline.release.pinned import source_of
from pipeline.storage.paths import locate
from tests.microdata.test_delta import CANARY, MICRODATA, SPEC, read_of, refusal
from tests.support.iceberg import at, catalog, data_files, with_deletes
from tests.support.parity import released
from tests.support.store import running, upload
from tests.support.world import write_world


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table of two files, 200 and 100 rows."""
    made = catalog(tmp_path / "lake").create_table("lake.cbp", MICRODATA.schema)
    made.append(MICRODATA.slice(0, 200))
    made.append(MICRODATA.slice(200))
    return made


def test_a_release_has_the_bytes_of_one_from_plain_parquet(tmp_path: Path, table: Table) -> None:
    table.delete("naics = '722511'")  # pyiceberg writes the files anew
    kept = MICRODATA.filter(pc.not_equal(MICRODATA["naics"], "722511"))
    plain = released(write_world(tmp_path / "plain", kept), tmp_path / "plain", None)
    assert released(write_world(tmp_path, None, dataset={"path": str(at(table))}), tmp_path, None) == plain


def test_snapshots_and_the_folder_s_hint(table: Table) -> None:
    folder = at(table).parent.parent
    first, second = (each.snapshot_id for each in table.snapshots())
    assert read_of(f"{at(table)}@v{first}") == MICRODATA.slice(0, 200).to_pylist()
    assert read_of(at(table)) == MICRODATA.to_pylist()
    for number in (1, 2):  # as a Hadoop catalog calls them
        shutil.copy(
            sorted((folder / "metadata").glob(f"0000{number}-*"))[0], folder / "metadata" / f"v{number}.metadata.json"
        )
    (folder / "metadata" / "version-hint.text").write_text("1")  # older than the last commit
    assert read_of(folder) == read_of(f"{folder}@v{second}") == MICRODATA.to_pylist()
    assert source_of(microdata_at(locate(at(table)))) == source_of(microdata_at(locate(folder))) == str(folder)
    assert source.pin(source.find(microdata_at(locate(folder)))).startswith(f"@v{second} ")


def test_position_deletes_are_honoured(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    last, first = data_files(table)
    gone = [(first, 0), (first, 199), (last, 7), (first, 0), (first.replace("00000-0", "another"), 5)]
    metadata = with_deletes(table, gone)
    kept = [row for number, row in enumerate(MICRODATA.to_pylist()) if number not in (0, 199, 207)]
    assert read_of(metadata) == kept
    assert read_of(f"{metadata}@v{table.current_snapshot().snapshot_id}") == MICRODATA.to_pylist()
    monkeypatch.setattr("pipeline.microdata.lake_tables._deleted", lambda *given: b"")
    assert read_of(metadata) != kept  # a reader that takes no notice is seen


def test_deletes_are_of_earlier_files(table: Table) -> None:
    """A file that was written after the deletes keeps its rows, as one of that path that was added anew does."""
    last, first = data_files(table)
    metadata = with_deletes(table, [(first, 3), (last, 3)], written=1)
    assert read_of(metadata) == [row for number, row in enumerate(MICRODATA.to_pylist()) if number != 3]


def test_what_is_not_honoured_is_refused(tmp_path: Path, table: Table) -> None:
    metadata = with_deletes(table, [(data_files(table)[0], 3)], equality=True)
    assert "has equality deletes" in refusal(tmp_path, at=str(metadata))
    described = json.loads(metadata.read_text())
    for change, named in (
        ({"format-version": 3, "next-row-id": 0}, "is of format version 3"),
        ({"current-snapshot-id": -1}, "has no such snapshot"),
        ({"location": "file:///elsewhere"}, "was made at another place"),
        ({"snapshots": CANARY}, "pyiceberg cannot read this snapshot"),
    ):
        metadata.write_text(json.dumps(described | change))
        assert named in refusal(tmp_path, at=str(metadata))
    assert "has no such snapshot" in refusal(tmp_path, at=f"{at(table)}@v5")
    assert "name that of its catalog" in refusal(tmp_path, at=str(at(table).parent.parent))


def test_a_file_that_is_listed_twice_is_refused(tmp_path: Path, table: Table) -> None:
    with table.transaction() as change, change.update_snapshot().fast_append() as append:
        append.append_data_file(next(iter(table.scan().plan_files())).file)
    assert "lists a file twice" in refusal(tmp_path, at=str(at(table)))


def test_files_that_are_gone_or_replaced(tmp_path: Path, table: Table) -> None:
    file = Path(data_files(table)[0].removeprefix("file://"))
    pq.write_table(MICRODATA, file)
    assert "not the file that its table lists" in refusal(tmp_path, at=str(at(table)))
    file.unlink()
    assert "it is gone" in refusal(tmp_path, at=str(at(table)))


def test_evolved_columns(table: Table) -> None:
    """A column's name is that of the snapshot; one that was dropped and added again is null in older files."""
    for old, new in (("payroll", "pay"), ("employment", "payroll"), ("pay", "employment")):
        with table.update_schema() as change:
            change.rename_column(old, new)
    swapped = [row | {"payroll": row["employment"], "employment": row["payroll"]} for row in MICRODATA.to_pylist()]
    assert read_of(at(table)) == swapped
    assert read_of(f"{at(table)}@v{table.current_snapshot().snapshot_id}") == MICRODATA.to_pylist()
    with table.update_schema() as change:
        change.delete_column("payroll")
    with table.update_schema() as change:
        change.add_column("payroll", LongType())
    assert read_of(at(table)) == [row | {"payroll": None} for row in swapped]


def test_partitions_and_files_whose_columns_have_no_numbers(tmp_path: Path) -> None:
    odd = ["01001", "é/ =%20x", None, "", "01001 ", "%30", "a:b"]
    rows = pa.table({name: MICRODATA[name].slice(0, 7) for name in MICRODATA.column_names} | {"county": odd})
    made = catalog(tmp_path / "lake").create_table("lake.cbp", rows.schema)
    with made.update_spec() as change:
        change.add_field("county", IdentityTransform(), "county")
    made.append(rows)
    assert read_of(at(made)) == rows.to_pylist()
    for file in data_files(made):  # as Hive wrote them: without numbers, and without the columns of partitions
        path = Path(file.removeprefix("file://"))
        held = pq.ParquetFile(path).read().drop_columns(["county"])
        pq.write_table(held.cast(pa.schema([each.remove_metadata() for each in held.schema])), path)
    with pytest.raises(PlanError, match="numbers no column"):
        unchecked(made)
    fields = [{"field-id": each.field_id, "names": [each.name]} for each in made.schema().fields]
    with made.transaction() as change:
        change.set_properties({"schema.name-mapping.default": json.dumps(fields)})
    assert unchecked(made) == rows.to_pylist()


def unchecked(table: Table) -> list[dict[str, Any]]:
    """Return the records by id, though files have other sizes than listed."""
    chunks = source.chunks(source.find(microdata_at(locate(at(table)))))
    rows = [row for chunk in chunks for batch in read(chunk, SPEC) for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["establishment_id"])


@pytest.mark.drill
def test_tables_in_a_store(tmp_path: Path) -> None:
    with running() as server:
        bucket = server.bucket()
        write_deltalake(tmp_path / "delta", MICRODATA, partition_by=["county"])
        upload(tmp_path / "delta", bucket / "lake/é x")
        assert read_of(str(bucket / "lake/é x")) == read_of(str(bucket / "lake/é x@v0")) == MICRODATA.to_pylist()
        reached = {"s3.endpoint": f"http://{server.address}", "s3.region": "us-east-1"}
        made = catalog(tmp_path, f"s3://{bucket.authority}/lake", **reached).create_table("lake.cbp", MICRODATA.schema)
        made.append(MICRODATA)
        metadata = bucket / made.metadata_location.removeprefix(f"s3://{bucket.authority}/")
        named = f"{metadata.key}@v{made.current_snapshot().snapshot_id}"
        assert read_of(str(metadata)) == read_of(str(bucket / named)) == MICRODATA.to_pylist()
