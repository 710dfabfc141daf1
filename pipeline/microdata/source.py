"""What names of folders say: values of columns (`county=01001/`), and table formats whose files alone are no data."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.canonical import digest
from pipeline.errors import MicrodataError, PlanError
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal

NULL = "__HIVE_DEFAULT_PARTITION__"
TABLE_LOGS = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}  # a folder in the table → what it is
SNAPSHOTS = "metadata"  # an Iceberg table's, which holds files of the next name
SNAPSHOT = ".metadata.json"


def values_of(path: str, columns: Sequence[str]) -> dict[str, str | None]:
    """Return what the folders of a file's path, `column=value`, say of `columns`, as text; the innermost one counts."""
    parts = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    named = {unquote(name): None if value == NULL else unquote(value) for name, _, value in parts}
    return {column: value for column, value in named.items() if column in columns}


def shown(path: object) -> str:
    """Return a path of the microdata for a message: what it says of columns, which is of records, is left out."""
    return re.sub(r"(=|%3D)[^/]*", "=…", str(path))


def with_values(batch: pa.RecordBatch, values: Mapping[str, str | None], columns: Sequence[str]) -> pa.RecordBatch:
    """Return the columns of the batch, and for those that it lacks one of `values`, the same in every row."""
    found = [
        batch.column(name)
        if name in batch.schema.names
        else pa.repeat(pa.scalar(values[name], pa.string()), len(batch))
        for name in columns
    ]
    return pa.RecordBatch.from_arrays(found, names=list(columns))


def table_format(keys: Sequence[str]) -> str | None:
    """Return which table format a folder with files and folders of these names, relative to it, is; None: none."""
    for key in keys:
        *folders, name = key.split("/")
        found = next((TABLE_LOGS[part] for part in [*folders, name] if part in TABLE_LOGS), None)
        if found is not None:
            return found
        if folders[-1:] == [SNAPSHOTS] and name.endswith(SNAPSHOT):
            return "an Iceberg table"
    return None


# The files of the microdata: found, pinned, and cut into pieces of work.
#
# The pin (docs/architecture.md, rule 4) is what ties one key to one set of totals: names, sizes and modification
# times of all files,
# taken before the scan and compared before publishing; of a store's objects also their entity tags.


FORMATS = ("parquet", "csv")
REQUESTS = 16  # that a store is asked at a time
CHUNK_RECORDS = 1 << 21  # records a task reads: small beside memory, large beside a task's cost


@dataclass(frozen=True)
class Source:
    """The files of one data set, sorted by name, all of one format."""

    root: Location
    format: Literal["parquet", "csv"]
    files: tuple[Location, ...]


@dataclass(frozen=True)
class Piece:
    """A part of one file: some row groups of a Parquet file, or a whole CSV file (`row_groups` None).

    With a `seal` it is a record batch that a run of ours put there under that seal.
    """

    path: str
    row_groups: tuple[int, ...] | None
    seal: Seal | None = None


Chunk = tuple[Piece, ...]


def find(path: Location) -> Source:
    """Return the microdata at `path`, a file or a folder, or an object or a prefix of a store.

    Raises PlanError where there is nothing at that path, MicrodataError where it holds no files of one format.

    Names that start with "." or "_" are passed over, as Parquet writers expect.
    """
    found = _data_files(path)
    by_format = {f: tuple(p for p in found if p.suffix.lower() == f".{f}") for f in FORMATS}
    present = [f for f in FORMATS if by_format[f]]
    if len(present) != 1:
        what = "both Parquet and CSV files" if present else "no file named *.parquet or *.csv"
        raise MicrodataError(f"microdata {path}: it holds {what}; give one format, Parquet or CSV")
    return Source(path, "parquet" if present[0] == "parquet" else "csv", by_format[present[0]])


def pin(source: Source) -> str:
    """Return the digest of the source's names, sizes and modification times as they are now."""
    with ThreadPoolExecutor(REQUESTS if source.root.remote else 1) as pool:
        return digest(list(pool.map(_fingerprint, [source.root] * len(source.files), source.files)))


def chunks(source: Source) -> Iterator[Chunk]:
    """Cut the source into chunks of about CHUNK_RECORDS records; a chunk holds pieces of one or several files."""
    if source.format == "csv":
        return ((Piece(str(file), None),) for file in source.files)
    return _together(_row_groups(source.files))


def records_of(source: Source) -> int | None:
    """Return how many records Parquet files say that they hold, which is confidential; None of CSV files."""
    if source.format == "csv":
        return None
    return sum(records for _, records in _row_groups(source.files))


def _require_plain(root: Location, keys: Sequence[str]) -> None:
    """Return if files of these names are all data: a table format's log says which of its files count."""
    found = table_format(keys)
    if found is not None:
        raise MicrodataError(
            f"microdata {root}: it is {found}, of which some files may no longer count; read it by Spark as "
            "dataset.source, or write its records out as plain Parquet"
        )


def _data_files(root: Location) -> list[Location]:
    """Return the files of data at `root`, sorted; PlanError where nothing is there."""
    try:
        files = [root] if root.is_file() else sorted(_visible(root), key=lambda file: file.parts)
        if files or root.exists():
            return files
    except OSError as error:
        if root.remote:
            raise PlanError(f"microdata {root}: {error.strerror}; set dataset.path or --data") from None
        if not isinstance(error, FileNotFoundError):
            name = shown(error.filename)
            raise MicrodataError(f"microdata {name}: it cannot be read ({error.strerror}); make it readable") from None
    kind = "object or prefix" if root.remote else "file or folder"
    raise PlanError(f"microdata {root}: there is no such {kind}; set dataset.path or --data")


def _visible(root: Location) -> Iterator[Location]:
    """Yield the files below a folder whose own names and folders' names begin with neither "." nor "_"."""
    for inside, folders, names in root.walk():
        _require_plain(root, [f"{inside}/{name}" for name in (*folders, *names)])
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in folders:
            if (folder := root / inside / name).is_link():
                raise MicrodataError(f"microdata {shown(folder)}: a link to a folder; put the folder itself there")
        for name in names:
            if not any(part.startswith((".", "_")) for part in name.split("/")):
                yield root / name if inside == "." else root / inside / name


def _fingerprint(root: Location, file: Location) -> list[object]:
    try:
        return [file.relative_to(root) or ".", *file.fingerprint()]
    except OSError:
        raise MicrodataError(
            f"microdata {shown(file)}: it cannot be read; check that it exists and is readable"
        ) from None


def _row_groups(files: Iterable[Location]) -> Iterator[tuple[Piece, int]]:
    for file in files:
        try:
            with file.open() as raw:
                footer = pq.read_metadata(raw)
        except Exception:  # Arrow's own message may show bytes of the file
            footer = None
        if footer is None:
            raise MicrodataError(
                f"microdata {shown(file)}: not a readable Parquet file; write it again or leave it out"
            )
        for group in range(footer.num_row_groups):
            yield Piece(str(file), (group,)), footer.row_group(group).num_rows


def _together(pieces: Iterable[tuple[Piece, int]]) -> Iterator[Chunk]:
    chunk: list[Piece] = []
    records = 0
    for piece, rows in pieces:
        if chunk and records + rows > CHUNK_RECORDS:
            yield tuple(chunk)
            chunk, records = [], 0
        joined = _joined(chunk[-1], piece) if chunk else None
        chunk = [*chunk[:-1], joined] if joined else [*chunk, piece]
        records += rows
    if chunk:
        yield tuple(chunk)


def _joined(before: Piece, piece: Piece) -> Piece | None:
    if before.path != piece.path or before.row_groups is None or piece.row_groups is None:
        return None
    return Piece(piece.path, before.row_groups + piece.row_groups)
