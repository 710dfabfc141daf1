"""The files of the microdata: found below a location, pinned, and cut into pieces of work; and their columns.

The pin (docs/architecture.md, rule 4) is what ties one key to one set of totals: names, sizes and modification times of
all files, of a store's objects also their entity tags, taken before the scan and compared before publishing.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.base.canonical import digest
from pipeline.base.errors import PlanError, StateError, arg, in_a_line, nearest
from pipeline.microdata.lake_tables import ICEBERG, METADATA, ROW_NUMBER_BYTES, TableFile
from pipeline.microdata.lakehouse import DELTA_TABLE, ICEBERG_TABLE, LOG, Place, TableVersion, folders_above, format_of
from pipeline.storage.location import Location
from pipeline.storage.paths import SYNTHETIC
from pipeline.storage.sealing import Seal
from udfs.records.contract import ColumnUnfit, require_code_type, require_name_type, require_number_type
from udfs.records.decoding import SumSpec

SHOWN = 200  # characters of names that a message repeats
ADVICE = "correct the microdata, or the plan's columns"


def require_columns(where: str, present: Sequence[str], needed: Iterable[str]) -> None:
    """Return if each needed name stands once among those `present`; raises PlanError, with these.

    They are told only where one of them is needed: others could be a record that was taken for a header.
    """
    wanted = list(dict.fromkeys(needed))
    missing = [name for name in wanted if name not in present]
    if missing and not set(wanted) & set(present):
        raise PlanError(f"{where}: none of its columns is one that the plan names; {ADVICE}")
    if missing:
        free = [name for name in present if name not in wanted]
        absent = ", ".join(_with_nearest(name, free) for name in missing)
        raise PlanError(f"{where}: it has no column {absent}; {ADVICE}", columns_line(present))
    twice = [in_a_line(name) for name in wanted if present.count(name) > 1]
    if twice:
        raise PlanError(f"{where}: column {twice[0]} stands twice; keep one")


def require_types(where: str, schema: pa.Schema, spec: SumSpec) -> None:
    """Return if those of the scan's columns that a schema has are of types that fit; raises PlanError otherwise."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    try:
        for key in spec.code_columns:
            if key in kinds:
                require_code_type(kinds[key], key)
        for name in (spec.owner, spec.record):
            if name is not None and name in kinds:
                require_name_type(kinds[name], name)
        for measure in spec.measures:
            if measure.column in kinds:
                require_number_type(kinds[measure.column], measure.column)
    except ColumnUnfit as error:
        column, rule = error.column, error.rule
    else:
        return
    raise PlanError(f"{where}: column {in_a_line(column)} {rule}; {ADVICE}")


def columns_line(present: Iterable[str]) -> str:
    """Return the line of a message that names columns."""
    names = [_shown(name) for name in present]
    shown = len(names)
    while shown > 1 and len(", ".join(names[:shown])) > SHOWN:
        shown -= 1
    more = f", … ({len(names)} in all)" if shown < len(names) else ""
    return f"its columns are {', '.join(names[:shown])}{more}"


def _with_nearest(name: str, present: Iterable[str]) -> str:
    near = nearest(name, present)
    return in_a_line(name) + ("" if near is None else f" (nearest: {_shown(near)})")


def _shown(name: str) -> str:
    return in_a_line(name) if name and name == name.strip() else f'"{in_a_line(name)}"'


FORMATS = ("parquet", "csv")
REQUESTS = 16  # to a store at a time
CHUNK_RECORDS = 1 << 21  # records a task reads: small beside memory, large beside a task's cost
HUDI = ".hoodie"
TABLE_LOGS = {LOG: DELTA_TABLE.name, HUDI: "a Hudi table"}  # a folder in the table → what it is


@dataclass(frozen=True)
class Source:
    """The files of one data set, sorted by name, all of one format; of a table, also how it reads each of them."""

    root: Place
    format: Literal["parquet", "csv"]
    files: tuple[Location, ...]
    of_table: Mapping[Location, TableFile] = field(default_factory=dict)


@dataclass(frozen=True)
class Piece:
    """A part of one file: some row groups of a Parquet file, or a CSV file (`row_groups` None).

    With a `seal` it is a record batch that this run wrote under that seal; with a `view` a table's file.
    """

    path: str
    row_groups: tuple[int, ...] | None
    seal: Seal | None = None
    view: TableFile | None = None


Chunk = tuple[Piece, ...]


def find(path: Place) -> Source:
    """Return the microdata at `path`: a file or a folder, an object or a prefix of a store, or a version of a table.

    Names that start with "." or "_" are passed over, as Parquet writers expect. Raises PlanError where files alone are
    no data, as a part of a table.
    """
    if isinstance(path, TableVersion):
        of_table = dict(sorted(path.listing.files, key=lambda listed: listed[0].parts))
        return Source(path, "parquet", tuple(of_table), of_table)
    files = _data_files(path)
    _require_no_part(path)
    parquet, csv = (tuple(file for file in files if file.suffix.lower() == f".{kind}") for kind in FORMATS)
    if bool(parquet) == bool(csv):
        what = "both Parquet and CSV files" if csv else "no file named *.parquet or *.csv"
        raise PlanError(f"microdata {path}: it holds {what}; give one format, Parquet or CSV")
    return Source(path, "parquet", parquet) if parquet else Source(path, "csv", csv)


def pin(source: Source) -> str:
    """Return the digest of the source's names, sizes and modification times as they are now.

    Of a table also its version, and which rows are deleted. Raises PlanError where a file is gone.
    """
    root = source.root.folder if isinstance(source.root, TableVersion) else source.root

    def fingerprint(file: Location) -> list[object]:
        try:
            return [file.relative_to(root) or ".", *file.fingerprint()]
        except OSError:
            raise unreadable(file) from None

    with ThreadPoolExecutor(REQUESTS if root.remote else 1) as pool:
        held = digest(list(pool.map(fingerprint, source.files)))
    if not isinstance(source.root, TableVersion):
        return held
    deleted = [sha256(view.deleted).hexdigest() for view in source.of_table.values()]
    return f"@v{source.root.version} {digest([*source.root.listing.identity, held, *deleted])}"


def chunks(source: Source) -> Iterator[Chunk]:
    """Cut the source into chunks of about CHUNK_RECORDS records; a chunk holds pieces of one or several files."""
    if source.format == "csv":
        return ((Piece(str(file), None),) for file in source.files)
    return _together(_row_groups(source))


def records_of(source: Source) -> int | None:
    """Return the number of records by the footers of Parquet files, which is confidential; None of CSV files."""
    if source.format == "csv":
        return None
    deleted = sum(len(view.deleted) // ROW_NUMBER_BYTES for view in source.of_table.values())
    return sum(records for _, records in _row_groups(source)) - deleted


def shown(path: object) -> str:
    """Return a path of the microdata for a message, without the values of records in its folders' names."""
    return re.sub(r"(=|%3D)[^/]*", "=…", str(path))


def table_format(keys: Sequence[str]) -> str | None:
    """Return the table format of a folder with files and folders of these relative names; None: it is no table."""
    for key in keys:
        *folders, name = key.split("/")
        log = next((part for part in [*folders, name] if part in TABLE_LOGS), None)
        if log is not None:
            return TABLE_LOGS[log]
        if folders[-1:] == [METADATA] and name.endswith(ICEBERG):
            return ICEBERG_TABLE.name
    return None


def _require_plain(root: Location, keys: Sequence[str]) -> None:
    """Return if files of these names are all data: a table format's log says which of its files count."""
    kind = table_format(keys)
    if kind in (DELTA_TABLE.name, ICEBERG_TABLE.name):
        raise PlanError(f"microdata {root}: {kind} lies in it; name that table's own folder")
    if kind is not None:
        raise PlanError(
            f"microdata {root}: it is {kind}, of which some files may no longer count; read it by Spark as "
            "dataset.source, or write its records out as plain Parquet"
        )


def _require_no_part(root: Location) -> None:
    """Return unless a table lies around `root`: its log says which files and rows count, and a file knows neither."""
    for above in folders_above(root):
        with suppress(PermissionError):  # who may not look there is not kept from their own files
            form = format_of(above)
            kind = form.name if form else TABLE_LOGS[HUDI]
            if form is not None or (above / HUDI).exists():
                raise PlanError(
                    f"microdata {shown(root)}: a part of {kind}, of whose files and rows some may no longer count; "
                    f"name that table's own folder, {above}"
                )


def _data_files(root: Location) -> list[Location]:
    try:
        files = [root] if root.is_file() else sorted(_visible(root), key=lambda file: file.parts)
        if files or root.exists():
            return files
    except OSError as error:
        if root.remote:
            raise PlanError(f"microdata {root}: {error.strerror}; set dataset.path or {arg('data')}") from None
        if not isinstance(error, FileNotFoundError):
            name = shown(error.filename)
            raise PlanError(f"microdata {name}: it cannot be read ({error.strerror}); make it readable") from None
    kind = "object or prefix" if root.remote else "file or folder"
    raise PlanError(f"microdata {root}: there is no such {kind}; set dataset.path or {arg('data')}")


def _visible(root: Location) -> Iterator[Location]:
    """Yield the files below a folder whose own names and folders' names begin with neither "." nor "_"."""
    for inside, folders, names in root.walk():
        _require_plain(root, [f"{inside}/{name}" for name in (*folders, *names)])
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in folders:
            if (folder := root / inside / name).is_link():
                raise PlanError(f"microdata {shown(folder)}: a link to a folder; put the folder itself there")
        for name in names:
            if not any(part.startswith((".", "_")) for part in name.split("/")):
                yield root / name if inside == "." else root / inside / name


def footer_of(file: Location) -> tuple[pq.FileMetaData, pa.Schema]:
    """Return the footer of a Parquet file, and its columns as Arrow reads them; raises PlanError where it has none."""
    try:
        raw = file.open()
    except OSError:
        raise unreadable(file) from None
    with raw, suppress(Exception), pq.ParquetFile(raw) as read:  # Arrow's own message may show bytes of the file
        return read.metadata, read.schema_arrow
    raise PlanError(f"microdata {shown(file)}: not a readable Parquet file; write it again or leave it out")


def require_rows(file: Location, view: TableFile, footer: pq.FileMetaData) -> None:
    """Return if a table's file has the rows that the table lists, the deleted ones too; raises PlanError otherwise."""
    least = int.from_bytes(view.deleted[-ROW_NUMBER_BYTES:], "little") + 1 if view.deleted else 0
    if view.records not in (None, footer.num_rows) or least > footer.num_rows:
        raise not_as_listed(file)


def not_as_listed(file: Location) -> PlanError:
    """Return the error of a table's file that another one has replaced."""
    return PlanError(f"microdata {shown(file)}: it is not the file that its table lists; restore it")


def unreadable(file: Location) -> PlanError:
    """Return the error of a file that cannot be opened."""
    return PlanError(f"microdata {shown(file)}: it cannot be read; check that it exists and is readable")


def _row_groups(source: Source) -> Iterator[tuple[Piece, int]]:
    for file in source.files:
        footer, view = footer_of(file)[0], source.of_table.get(file)
        if view is not None:
            require_rows(file, view, footer)
        for group in range(footer.num_row_groups):
            piece = Piece(str(file), (group,), view=view)
            yield piece, footer.row_group(group).num_rows


def _together(pieces: Iterable[tuple[Piece, int]]) -> Iterator[Chunk]:
    chunk: list[Piece] = []
    records = 0
    for piece, rows in pieces:
        if chunk and records + rows > CHUNK_RECORDS:
            yield tuple(chunk)
            chunk, records = [], 0
        if chunk and chunk[-1].path == piece.path:  # one more row group of the same file
            both = (*(chunk.pop().row_groups or ()), *(piece.row_groups or ()))
            piece = replace(piece, row_groups=both)  # noqa: PLW2901
        chunk.append(piece)
        records += rows
    if chunk:
        yield tuple(chunk)


# What files of microdata are, wherever they lie: fingerprints of their contents, and the mark of synthetic ones.

BLOCK = 1 << 16  # bytes
BLOCKS = 4  # of each file, the first and the last among them: few enough for a store, which is asked for each


@dataclass(frozen=True)
class Identity:
    """The content fingerprints of files with records, in order, and whether they carry the mark of synthetic ones."""

    fingerprints: tuple[str, ...] = ()
    synthetic: bool | None = None  # None: that cannot be known, of a table, and of a DataFrame without the mark


def identity_of(files: Source) -> Identity:
    """Return the identity of files; CSV files carry no mark, and files without a record have no part in it.

    Raises PlanError where a file cannot be read, StateError where some are marked and others not.
    """
    with ThreadPoolExecutor(REQUESTS if files.root.remote else 1) as pool:
        known = list(pool.map(_of_file, files.files, [files.format] * len(files.files)))
    marks = {marked for _, marked in known}
    if len(marks) > 1:
        raise StateError(
            f"microdata {files.root}: some of its files carry the mark of prdp generate and others do not: "
            "keep synthetic and other microdata apart"
        )
    return Identity(tuple(name for name, _ in known if name is not None), marks == {True})


def is_marked(metadata: dict[bytes, bytes] | None) -> bool:
    """Return whether the metadata of a schema carry the mark of synthetic microdata."""
    return metadata is not None and metadata.items() >= SYNTHETIC.items()


def _of_file(file: Location, form: str) -> tuple[str | None, bool]:
    footer = footer_of(file)[0] if form == "parquet" else None
    marked = footer is not None and is_marked(footer.metadata)
    if footer is not None and not footer.num_rows:
        return None, marked
    try:
        with file.open() as raw:
            size = raw.size()
            blocks = list(_blocks(raw, size))
    except OSError:
        raise unreadable(file) from None
    if footer is None and size <= BLOCK and len(blocks[0].strip().splitlines()) < 2:
        return None, marked  # a header alone
    return sha256(b"".join([size.to_bytes(8), *blocks])).hexdigest(), marked


def _blocks(raw: Any, size: int) -> Iterator[bytes]:
    """Yield all bytes of a small file, else blocks that are evenly spread over it."""
    if size <= BLOCK * BLOCKS:
        yield raw.read()
        return
    for block in range(BLOCKS):
        raw.seek((size - BLOCK) * block // (BLOCKS - 1))
        yield raw.read(BLOCK)
