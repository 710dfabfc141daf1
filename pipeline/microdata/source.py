"""What names of folders say: values of columns (`county=01001/`), and table formats whose files alone are no data."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.canonical import digest
from pipeline.errors import MicrodataError, PlanError
from pipeline.storage.files import Seal
from pipeline.storage.location import Place, Stored, opened

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

    root: Place
    format: Literal["parquet", "csv"]
    files: tuple[Place, ...]


@dataclass(frozen=True)
class Piece:
    """A part of one file: some row groups of a Parquet file, or a whole CSV file (`row_groups` None).

    With a `seal` it is a record batch that a run of ours put there under that seal.
    """

    path: str
    row_groups: tuple[int, ...] | None
    seal: Seal | None = None


Chunk = tuple[Piece, ...]


def find(path: Place) -> Source:
    """Return the microdata at `path`, a file or a folder, or an object or a prefix of a store.

    Raises PlanError where there is nothing at that path, MicrodataError where it holds no files of one format.

    Names that start with "." or "_" are passed over, as Parquet writers expect.
    """
    found: Sequence[Place] = _stored(path) if isinstance(path, Stored) else _local(path)
    by_format = {f: tuple(p for p in found if p.suffix.lower() == f".{f}") for f in FORMATS}
    present = [f for f in FORMATS if by_format[f]]
    if len(present) != 1:
        what = "both Parquet and CSV files" if present else "no file named *.parquet or *.csv"
        raise MicrodataError(f"microdata {path}: it holds {what}; give one format, Parquet or CSV")
    return Source(path, "parquet" if present[0] == "parquet" else "csv", by_format[present[0]])


def pin(source: Source) -> str:
    """Return the digest of the source's names, sizes and modification times as they are now."""
    if isinstance(source.root, Stored):
        with ThreadPoolExecutor(REQUESTS) as pool:
            return digest(list(pool.map(_fingerprint, [source.root] * len(source.files), source.files)))
    return digest([_fingerprint(source.root, file) for file in source.files])


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


def _local(path: Path) -> list[Path]:
    if not path.exists():
        raise PlanError(f"microdata {path}: there is no such file or folder; set dataset.path or --data")
    return sorted(_visible(path)) if path.is_dir() else [path]


def _require_plain(root: Place, keys: Sequence[str]) -> None:
    """Return if files of these names are all data: a table format's log says which of its files count."""
    found = table_format(keys)
    if found is not None:
        raise MicrodataError(
            f"microdata {root}: it is {found}, of which some files may no longer count; read it by Spark as "
            "dataset.source, or write its records out as plain Parquet"
        )


def _stored(place: Stored) -> list[Stored]:
    try:
        found = [place] if place.is_object() else place.objects()
    except OSError as error:
        raise PlanError(f"microdata {place}: {error.strerror}; set dataset.path or --data") from None
    if not found:
        raise PlanError(f"microdata {place}: there is no such object or prefix; set dataset.path or --data")
    _require_plain(place, [at.relative_to(place) for at in found])
    return [at for at in found if not any(part.startswith((".", "_")) for part in at.relative_to(place).split("/"))]


def _visible(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, onerror=_unreadable):
        inside = os.path.relpath(place, folder)
        _require_plain(folder, [f"{inside}/{name}" for name in (*folders, *names)])
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in folders:
            if Path(place, name).is_symlink():
                raise MicrodataError(
                    f"microdata {shown(Path(place, name))}: a link to a folder; put the folder itself there"
                )
        yield from (Path(place) / name for name in names if not name.startswith((".", "_")))


def _unreadable(error: OSError) -> None:
    raise MicrodataError(f"microdata {shown(error.filename)}: it cannot be read ({error.strerror}); make it readable")


def _fingerprint(root: Place, file: Place) -> list[object]:
    try:
        if isinstance(file, Stored):
            return [file.key, *file.fingerprint()]
        facts = file.stat()
    except OSError:
        raise MicrodataError(
            f"microdata {shown(file)}: it cannot be read; check that it exists and is readable"
        ) from None
    return [str(file.relative_to(str(root))), facts.st_size, facts.st_mtime_ns]


def _row_groups(files: Iterable[Place]) -> Iterator[tuple[Piece, int]]:
    for file in files:
        try:
            with opened(file) as raw:
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
