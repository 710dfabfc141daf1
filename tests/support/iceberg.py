"""Iceberg tables by pyiceberg, and what it writes none of: files of deletes."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

WRITTEN = 77  # the snapshot that deletes by hand make


def catalog(folder: Path, warehouse: str = "", **reached: str) -> SqlCatalog:
    folder.mkdir(parents=True, exist_ok=True)
    warehouse = warehouse or f"file://{folder}"
    made = SqlCatalog("tests", uri=f"sqlite:///{folder}/catalog.db", warehouse=warehouse, **reached)
    made.engine.dispose()
    made.engine = create_engine(made.engine.url, poolclass=NullPool)  # else a connection stays open for good
    made.create_namespace("lake")
    return made


def at(table: Table) -> Path:
    """The metadata file that the catalog names."""
    return Path(table.metadata_location.removeprefix("file://"))


def data_files(table: Table) -> list[str]:
    return [task.file.file_path for task in table.scan().plan_files()]


class _Deletes(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def with_deletes(
    table: Table, rows: Sequence[tuple[str, int]], *, equality: bool = False, written: int | None = None
) -> Path:
    """Commit deletes of rows (path, number) as snapshot WRITTEN; return the metadata file.

    `written`: the sequence number of the deletes, by default the snapshot's.
    """
    folder, before = at(table).parent, table.metadata.current_snapshot()
    number = table.metadata.last_sequence_number + 1
    file = folder.parent / "data" / "deletes.parquet"
    names = ["file_path", "pos"]
    pq.write_table(pa.table([[path for path, _ in rows], pa.array([row for _, row in rows], pa.int64())], names), file)
    deletes = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if equality else DataFileContent.POSITION_DELETES,
        file_path=f"file://{file}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(rows),
        file_size_in_bytes=file.stat().st_size,
        equality_ids=[1] if equality else None,
    )
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=WRITTEN, sequence_number=written, data_file=deletes
    )
    io = table.io
    manifest = io.new_output(f"file://{folder}/deletes.avro")
    with _Deletes(table.spec(), table.schema(), manifest, WRITTEN, "null") as writer:
        writer.add_entry(entry)
    listed = io.new_output(f"file://{folder}/snap-{WRITTEN}.avro")
    with write_manifest_list(2, listed, WRITTEN, before.snapshot_id, number, "null") as manifests:
        manifests.add_manifests([*before.manifests(io), writer.to_manifest_file()])
    described: dict[str, Any] = json.loads(at(table).read_text())
    snapshot = {"snapshot-id": WRITTEN, "sequence-number": number, "manifest-list": listed.location}
    snapshot |= {"timestamp-ms": described["last-updated-ms"], "summary": {"operation": "delete"}}
    described["snapshots"].append(snapshot | {"schema-id": described["current-schema-id"]})
    described |= {"current-snapshot-id": WRITTEN, "last-sequence-number": number}
    described.pop("refs", None)
    metadata = folder / "by-hand.metadata.json"
    metadata.write_text(json.dumps(described))
    return metadata
