"""Iceberg tables: the files of a snapshot, by the package pyiceberg, which reads the table's metadata.

Without a catalog a table is known by a metadata file, or by its folder's `version-hint.text`. Position deletes are
honoured; equality deletes, other files than Parquet, and version 3 of the table format are refused by name.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.microdata.table_file import ICEBERG, METADATA, Listing, TableFile, Unread, address, store_options
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.store import StorePath

HINT = "version-hint.text"
FORMATS = (1, 2)  # versions of the table format


def listing(at: Location, wanted: int | None, metadata: Location | None) -> tuple[int, Listing]:
    """Return a snapshot of the Iceberg table at `at` (None: the current one) by its id, and its files.

    `metadata` is the table's metadata file; None: the latest by the folder's hint. Raises Unread where there is no
    such snapshot, or where reading it takes what prdp does not do; no other error's text may be shown.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow  # noqa: PLC0415 — an extra
    from pyiceberg.serializers import FromInputFile  # noqa: PLC0415

    # The table's own properties could name another class to read by: they are not asked.
    io = PyArrowFileIO(store_options(at, endpoint="s3.endpoint", region="s3.region"))
    table = FromInputFile.table_metadata(io.new_input(address(metadata or _latest(at))))
    if table.format_version not in FORMATS:
        raise Unread(f"the Iceberg table is of format version {table.format_version}, which prdp does not read")
    if _place(table.location.rstrip("/"), at).parts != at.parts:
        raise Unread("the Iceberg table was made at another place, which its metadata name; read it there")
    snapshot = table.current_snapshot() if wanted is None else table.snapshot_by_id(wanted)
    if snapshot is None:
        raise Unread("the Iceberg table has no such snapshot, or it has expired; name another, PATH@vSNAPSHOT")
    own = table.schema_by_id(snapshot.schema_id) if snapshot.schema_id is not None else None
    schema = table.schema() if wanted is None or own is None else own
    mapped = table.name_mapping() or ()
    view = TableFile(
        schema_to_pyarrow(schema, include_field_ids=False),
        {each.name: each.field_id for each in schema.fields},
        unnumbered={name: each.field_id for each in mapped for name in each.names if each.field_id is not None},
    )
    identity = ("iceberg", str(table.table_uuid), snapshot.snapshot_id, schema.schema_id)
    return snapshot.snapshot_id, Listing(identity, _files(_Snapshot(table, snapshot.manifests(io), io, at, view)))


def _latest(at: Location) -> Location:
    """Return the metadata file that the hint names, or one that came after it: writers may leave an older hint."""
    try:
        hint = (at / METADATA / HINT).read().decode().strip()
    except FileNotFoundError:
        raise Unread(
            f"the folder of this Iceberg table does not say which metadata file counts; name that of its catalog, {at}/"
            f"{METADATA}/…{ICEBERG}"
        ) from None
    if not hint.isdecimal():
        return at / METADATA / (hint if hint.endswith(ICEBERG) else f"{hint}{ICEBERG}")
    there, number = {*(at / METADATA).children()}, int(hint)
    while there & _named(number + 1):
        number += 1
    return at / METADATA / min(there & _named(number))


def _named(number: int) -> set[str]:
    return {f"v{number}{ICEBERG}", f"v{number}.gz{ICEBERG}"}


@dataclass(frozen=True)
class _Snapshot:
    table: Any
    manifests: Any
    io: Any
    at: Location
    view: TableFile

    def file(self, path: str) -> Location:
        """Return the file of a path in the metadata, which is absolute and stands there as the file is called."""
        root = _plain(self.table.location).rstrip("/") + "/"
        parts = _plain(path).removeprefix(root).split("/")
        if not _plain(path).startswith(root) or any(part in ("", ".", "..") for part in parts):
            raise Unread("the Iceberg table has files outside its folder; write its records out as a plain table")
        return self.at / "/".join(parts)

    def values(self, file: Any) -> dict[str, pa.Scalar]:
        """Return the values that a file's partition gives to columns, which the file itself may lack."""
        names = {number: name for name, number in self.view.names.items()}
        fields = enumerate(self.table.specs()[file.spec_id].fields)
        return {
            (name := names[each.source_id]): pa.scalar(file.partition[i], self.view.schema.field(name).type)
            for i, each in fields
            if str(each.transform) == "identity" and each.source_id in names
        }


def _files(snapshot: _Snapshot) -> list[tuple[Location, TableFile]]:
    from pyiceberg.manifest import DataFileContent  # noqa: PLC0415

    live: dict[DataFileContent, list[tuple[int, Any]]] = {content: [] for content in DataFileContent}
    for manifest in snapshot.manifests:
        for entry in manifest.fetch_manifest_entry(snapshot.io, discard_deleted=True):
            live[entry.data_file.content].append((entry.sequence_number or 0, entry.data_file))
    if live[DataFileContent.EQUALITY_DELETES]:
        raise Unread("the Iceberg table has equality deletes, which prdp does not read; compact the table first")
    for _, file in (each for files in live.values() for each in files):
        if file.file_format != "PARQUET" or file.key_metadata is not None:
            what = "encrypted" if file.key_metadata is not None else f"of format {file.file_format}"
            raise Unread(f"the Iceberg table has files that are {what}; write its records out as Parquet")
    deleted = [(number, _positions(snapshot, file)) for number, file in live[DataFileContent.POSITION_DELETES]]
    return [
        (
            snapshot.file(file.file_path),
            replace(
                snapshot.view,
                values=snapshot.values(file),
                deleted=_deleted(file.file_path, number, deleted),
                bytes=file.file_size_in_bytes,
                records=file.record_count,
            ),
        )
        for number, file in live[DataFileContent.DATA]
    ]


def _positions(snapshot: _Snapshot, file: Any) -> dict[str, NDArray[np.int64]]:
    """Return the rows that a file of position deletes deletes, by the paths of data files."""
    with snapshot.file(file.file_path).open() as raw:
        table = pq.read_table(raw, columns=["file_path", "pos"])
    if len(table) != file.record_count:
        raise ValueError("a file of deletes is not the one that is listed")
    paths = table.column("file_path").combine_chunks().dictionary_encode()
    of, rows = np.asarray(paths.indices), table.column("pos").to_numpy()
    return {path: rows[of == number] for number, path in enumerate(paths.dictionary.to_pylist())}


def _deleted(path: str, written: int, deletes: list[tuple[int, dict[str, NDArray[np.int64]]]]) -> bytes:
    """Return the deleted rows of a data file: by deletes whose sequence number is not below the file's own."""
    rows = [known[path] for number, known in deletes if path in known and number >= written]
    return np.unique(np.concatenate(rows)).astype(np.int64).tobytes() if rows else b""


def _plain(path: str) -> str:
    """Return a location of the metadata in one spelling: `file:/x`, `file:///x` and `/x` are one, and s3a is s3."""
    if path.startswith("file:"):
        return "/" + path.removeprefix("file:").lstrip("/")
    return re.sub(r"^s3[an]://", "s3://", path)


def _place(path: str, at: Location) -> Location:
    plain = _plain(path)
    if not isinstance(at, StorePath):
        return LocalPath(Path(plain)).resolve()
    scheme, _, rest = plain.partition("://")
    authority, _, key = rest.partition("/")
    return StorePath(scheme, authority, key, at.query)
