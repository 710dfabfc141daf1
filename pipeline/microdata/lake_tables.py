"""What formats of lakehouse tables share: the files of a version, and how its Parquet files are read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.objects import StorePath
from udfs.records.contract import is_text

METADATA, ICEBERG = "metadata", ".metadata.json"  # the folder, and how its files end, of an Iceberg table
ROW_NUMBER_BYTES = 8
FIELD_ID = b"PARQUET:field_id"


class Unread(Exception):
    """The table has what prdp does not read; the message says what."""


@dataclass(frozen=True, repr=False)
class TableFile:
    """How a version of a table reads one of its Parquet files."""

    schema: pa.Schema  # names and types of the table's columns in this version
    names: Mapping[str, str | int]  # of each column that files hold, its name or its field id there
    values: Mapping[str, pa.Scalar] = field(default_factory=dict)  # of columns that the file may lack, in all rows
    unnumbered: Mapping[str, int] = field(default_factory=dict)  # field ids by name, of files without them
    deleted: bytes = b""  # the numbers of deleted rows, as ascending 64-bit integers
    bytes: int | None = None  # the file's size; None: not stated
    records: int | None = None  # its rows, the deleted ones included

    def columns_in(self, file: pa.Schema) -> dict[str, str]:
        """Return the name in a file of each of the table's columns that it holds; the others have one value each.

        Raises PlanError, which begins with the column, where a file's column cannot be the table's.
        """
        stated = [(column.metadata or {}).get(FIELD_ID) for column in file]
        numbers = [None if number is None else int(number) for number in stated]
        if not any(stated):
            numbers = [self.unnumbered.get(name) for name in file.names]
        by_number = any(isinstance(known, int) for known in self.names.values())
        if by_number and all(number is None for number in numbers):
            raise PlanError("a file of the table numbers no column, and the table has no names for it; write it anew")
        keys: list[str | int | None] = [*(numbers if by_number else file.names)]
        held, folded = dict[str, str](), {name.casefold() for name in file.names}
        for name, known in self.names.items():
            if keys.count(known) > 1 or (known not in keys and isinstance(known, str) and known.casefold() in folded):
                raise PlanError(f"column {name} cannot be told apart in a file of the table; write the table anew")
            if known in keys:
                column = file.field(keys.index(known))
                if not _widened(column.type, self.schema.field(name).type):
                    raise PlanError(f"column {name} is of another type in a file of the table; write the table anew")
                held[name] = column.name
        return held

    def value(self, name: str) -> pa.Scalar:
        """Return the value of a column that a file lacks: null, where the column was added after the file."""
        return self.values.get(name, pa.scalar(None, self.schema.field(name).type))

    def is_deleted(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of the file's rows of these numbers are deleted."""
        return np.isin(rows, np.frombuffer(self.deleted, np.int64))


@dataclass(frozen=True, repr=False)
class Listing:
    """The files of a version by their locations, and what tells it apart from every other version of every table."""

    identity: Sequence[str | int]
    files: Sequence[tuple[Location, TableFile]]


def address(folder: Location) -> str:
    """Return a location as the libraries of tables want it: a path, or a URI without options."""
    return f"{folder.root}/{folder.key}" if isinstance(folder, StorePath) else str(folder)


def store_options(folder: Location, *, endpoint: str, region: str) -> dict[str, str]:
    """Return the endpoint and region that a store's URI names, as a library calls them; it finds credentials itself."""
    options = dict(parse_qsl(folder.query)) if isinstance(folder, StorePath) else {}
    named = {region: options["region"]} if "region" in options else {}
    if "endpoint_override" in options:
        named[endpoint] = f"{options.get('scheme', 'https')}://{options['endpoint_override']}"
    return named


def _widened(was: pa.DataType, now: pa.DataType) -> bool:
    """Return whether every value of one type is the same value in another, as when a column's type was widened."""
    types = pa.types
    inner = was.value_type if types.is_dictionary(was) else was
    if is_text(inner) and is_text(now):
        return True
    if types.is_integer(inner):
        wider = types.is_integer(now) and inner.bit_width <= now.bit_width
        return bool(wider or types.is_decimal(now) or types.is_float64(now))
    if types.is_decimal(inner) and types.is_decimal(now):
        return bool(inner.scale <= now.scale and inner.precision - inner.scale <= now.precision - now.scale)
    return bool(inner == now or (types.is_floating(inner) and types.is_float64(now)))


# Delta tables: the files of a version, by the package deltalake, which reads the table's log.
#
# What the table asks of its readers (*reader features* of the Delta protocol) is honoured or refused by name.

VECTORS, WIDENING = "deletionVectors", {"typeWidening", "typeWidening-preview"}
# The last five change how the log is kept, or types that no column of a plan has.
HONOURED = {"columnMapping", VECTORS, *WIDENING, "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
HONOURED |= {"variantType", "variantType-preview"}
MAPPING = "delta.columnMapping."
FACTS = ["path", "size_bytes", "num_records"]  # not the least and greatest values, which stand beside them
ADVICE = "write its records out as a plain table"
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def delta_listing(folder: Location, version: int | None, metadata: Location | None) -> tuple[int, Listing]:
    """Return a version of the Delta table in `folder` (None: the latest) by its number, and its files.

    Raises Unread where it asks of its readers what prdp does not do; no other error's text may be shown.
    """
    from deltalake import DeltaTable  # noqa: PLC0415 — an extra

    options = store_options(folder, endpoint="AWS_ENDPOINT_URL", region="AWS_REGION")
    if options.get("AWS_ENDPOINT_URL", "").startswith("http:"):
        options["AWS_ALLOW_HTTP"] = "true"
    table = DeltaTable(address(folder), version=version, storage_options=options)
    features = set(table.protocol().reader_features or ())
    both = features & {VECTORS, *WIDENING}  # of which the package reads no deletion vectors
    unread = features - HONOURED or (both if VECTORS in both and len(both) > 1 else set())
    if unread:
        raise Unread(f"the Delta table uses {' with '.join(sorted(unread))}, which prdp does not read; {ADVICE}")
    identity = ("delta", str(table.metadata().id), table.version())
    return table.version(), Listing(identity, list(_delta_files(table, folder, not features & WIDENING)))


def _delta_files(table: Any, folder: Location, with_vectors: bool) -> Iterator[tuple[Location, TableFile]]:
    schema, partitions = pa.schema(table.schema().to_arrow()), table.metadata().partition_columns
    mode = table.metadata().configuration.get(f"{MAPPING}mode", "none")
    key = {"none": None, "name": f"{MAPPING}physicalName", "id": f"{MAPPING}id"}[mode]
    names = {of.name: of.name if key is None else of.metadata[key] for of in table.schema().fields}
    plain = TableFile(schema, {name: known for name, known in names.items() if name not in partitions})
    vectors = _vectors(table) if with_vectors else {}  # also where no feature announces them
    actions = pa.table(table.get_add_actions())
    for action in actions.select(FACTS + ["partition"] * bool(partitions)).to_pylist():
        parts = [unquote(part) for part in action["path"].split("/")]
        if SCHEME.match(action["path"]) or any(part in ("", ".", "..") or "/" in part for part in parts):
            raise Unread(f"the Delta table has files of another table, as a shallow clone has; {ADVICE}")
        file = folder / "/".join(parts)
        values = {name: pa.scalar(action["partition"][name], schema.field(name).type) for name in partitions}
        deleted = vectors.pop(file.key.lstrip("/"), b"")
        size, records = action["size_bytes"], action["num_records"]
        yield file, replace(plain, values=values, deleted=deleted, bytes=size, records=records)
    if vectors:
        raise ValueError("deleted rows of a file that is not listed")


def _vectors(table: Any) -> dict[str, bytes]:
    deleted = {}
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        for file, kept in zip(batch.column("filepath").to_pylist(), batch.column("selection_vector"), strict=True):
            rows = np.flatnonzero(~kept.values.to_numpy(zero_copy_only=False)).astype(np.int64)
            deleted[unquote(urlsplit(file).path).lstrip("/")] = rows.tobytes()
    return deleted


# Iceberg tables: the files of a snapshot, by the package pyiceberg, which reads the table's metadata.
#
# Without a catalog a table is known by a metadata file, or by its folder's `version-hint.text`. Position deletes are
# honoured; equality deletes, other files than Parquet, and version 3 of the table format are refused by name.

HINT = "version-hint.text"
FORMATS = (1, 2)  # versions of the table format


def iceberg_listing(folder: Location, wanted: int | None, metadata: Location | None) -> tuple[int, Listing]:
    """Return a snapshot of the Iceberg table in `folder` (None: the current one) by its id, and its files.

    `metadata` is the table's metadata file; None: the latest by the folder's hint. Raises Unread where there is no
    such snapshot, or where reading it takes what prdp does not do; no other error's text may be shown.
    """
    from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow  # noqa: PLC0415 — an extra
    from pyiceberg.serializers import FromInputFile  # noqa: PLC0415

    # The table's own properties could name another class to read by: they are not asked.
    io = PyArrowFileIO(store_options(folder, endpoint="s3.endpoint", region="s3.region"))
    table = FromInputFile.table_metadata(io.new_input(address(metadata or _latest(folder))))
    if table.format_version not in FORMATS:
        raise Unread(f"the Iceberg table is of format version {table.format_version}, which prdp does not read")
    if _place(table.location.rstrip("/"), folder).parts != folder.parts:
        raise Unread("the Iceberg table was made at another place, which its metadata name; read it there")
    snapshot = table.current_snapshot() if wanted is None else table.snapshot_by_id(wanted)
    if snapshot is None:
        raise Unread("the Iceberg table has no such snapshot, or it has expired; name another, PATH@vSNAPSHOT")
    own = table.schema_by_id(snapshot.schema_id) if snapshot.schema_id is not None else None
    schema = table.schema() if wanted is None or own is None else own
    mapped = table.name_mapping() or ()
    view = TableFile(
        schema_to_pyarrow(schema, include_field_ids=False),
        {column.name: column.field_id for column in schema.fields},
        unnumbered={name: column.field_id for column in mapped for name in column.names if column.field_id is not None},
    )
    identity = ("iceberg", str(table.table_uuid), snapshot.snapshot_id, schema.schema_id)
    return snapshot.snapshot_id, Listing(
        identity, _iceberg_files(_Snapshot(table, snapshot.manifests(io), io, folder, view))
    )


def _latest(folder: Location) -> Location:
    """Return the metadata file that the hint names, or one that came after it: writers may leave an older hint."""
    try:
        hint = (folder / METADATA / HINT).read().decode().strip()
    except FileNotFoundError:
        raise Unread(
            "the folder of this Iceberg table does not say which metadata file counts; name that of its catalog, "
            f"{folder}/{METADATA}/…{ICEBERG}"
        ) from None
    if not hint.isdecimal():
        return folder / METADATA / (hint if hint.endswith(ICEBERG) else f"{hint}{ICEBERG}")
    there, number = {*(folder / METADATA).children()}, int(hint)
    while there & _named(number + 1):
        number += 1
    return folder / METADATA / min(there & _named(number))


def _named(number: int) -> set[str]:
    return {f"v{number}{ICEBERG}", f"v{number}.gz{ICEBERG}"}


@dataclass(frozen=True)
class _Snapshot:
    table: Any
    manifests: Any
    io: Any
    folder: Location
    view: TableFile

    def file(self, path: str) -> Location:
        """Return the file of a path in the metadata, which is absolute and stands there as the file is called."""
        root = _plain(self.table.location).rstrip("/") + "/"
        parts = _plain(path).removeprefix(root).split("/")
        if not _plain(path).startswith(root) or any(part in ("", ".", "..") for part in parts):
            raise Unread("the Iceberg table has files outside its folder; write its records out as a plain table")
        return self.folder / "/".join(parts)

    def values(self, file: Any) -> dict[str, pa.Scalar]:
        """Return the values that a file's partition gives to columns, which the file itself may lack."""
        names = {number: name for name, number in self.view.names.items()}
        fields = enumerate(self.table.specs()[file.spec_id].fields)
        return {
            (name := names[part.source_id]): pa.scalar(file.partition[i], self.view.schema.field(name).type)
            for i, part in fields
            if str(part.transform) == "identity" and part.source_id in names
        }


def _iceberg_files(snapshot: _Snapshot) -> list[tuple[Location, TableFile]]:
    from pyiceberg.manifest import DataFileContent  # noqa: PLC0415

    live: dict[DataFileContent, list[tuple[int, Any]]] = {content: [] for content in DataFileContent}
    for manifest in snapshot.manifests:
        for entry in manifest.fetch_manifest_entry(snapshot.io, discard_deleted=True):
            live[entry.data_file.content].append((entry.sequence_number or 0, entry.data_file))
    if live[DataFileContent.EQUALITY_DELETES]:
        raise Unread("the Iceberg table has equality deletes, which prdp does not read; compact the table first")
    for _, file in (numbered for files in live.values() for numbered in files):
        if file.file_format != "PARQUET" or file.key_metadata is not None:
            what = "encrypted" if file.key_metadata is not None else f"of format {file.file_format}"
            raise Unread(f"the Iceberg table has files that are {what}; write its records out as Parquet")
    deleted = [(number, _positions(snapshot, file)) for number, file in live[DataFileContent.POSITION_DELETES]]
    files = []
    for number, file in live[DataFileContent.DATA]:
        values, rows = snapshot.values(file), _deleted(file.file_path, number, deleted)
        size, records = file.file_size_in_bytes, file.record_count
        view = replace(snapshot.view, values=values, deleted=rows, bytes=size, records=records)
        files.append((snapshot.file(file.file_path), view))
    return files


def _positions(snapshot: _Snapshot, file: Any) -> dict[str, NDArray[np.int64]]:
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


def _place(path: str, folder: Location) -> Location:
    plain = _plain(path)
    if not isinstance(folder, StorePath):
        return LocalPath(Path(plain)).resolve()
    scheme, _, rest = plain.partition("://")
    authority, _, key = rest.partition("/")
    return StorePath(scheme, authority, key, folder.query)
