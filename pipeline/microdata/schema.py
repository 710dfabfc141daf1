"""The schema of files of microdata, by their first lines and footers: checked before anything is charged."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from pipeline.base.errors import PlanError
from pipeline.microdata import lines
from pipeline.microdata.columns import require_columns, require_types
from pipeline.microdata.read import partition_values
from pipeline.microdata.source import REQUESTS, Source, footer_of, not_as_listed, require_rows, shown, unreadable
from pipeline.microdata.table_file import TableFile
from pipeline.storage.location import Location
from udfs.records.decoding import SumSpec


@dataclass(frozen=True)
class FileSchema:
    """The names of a file's columns, those that its folders' names give included; types where it holds typed values."""

    names: tuple[str, ...]
    types: pa.Schema | None


def require_schema(source: Source, spec: SumSpec, record: str) -> None:
    """Return if every file has the columns of a scan and the column `record`, of types that fit.

    Reads the first line of CSV files and the footer of Parquet files. Raises the PlanError of the first file that
    cannot hold the records.
    """
    for error in mistakes(source, spec, record):
        if error is not None:
            raise error


def mistakes(source: Source, spec: SumSpec, record: str) -> Sequence[PlanError | None]:
    """Return for each file what is wrong with its schema, None where nothing is."""

    def mistake(file: Location) -> PlanError | None:
        try:
            _require(file, source, spec, record)
        except PlanError as error:
            return error
        return None

    with ThreadPoolExecutor(REQUESTS if source.root.remote else 1) as pool:
        return list(pool.map(mistake, source.files))


def schema_of(file: Location, source: Source, needed: Sequence[str]) -> FileSchema:
    """Return the schema of a file of `source`: of a table's file, the table's own.

    Raises PlanError where the file is of another format, names no column needed, or is not as its table lists it.
    """
    if file in source.of_table:
        view = source.of_table[file]
        require_as_listed(file, view)
        return FileSchema(tuple(view.schema.names), view.schema)
    values = partition_values(file.key, needed)
    if source.format == "csv":
        names, types = lines.header(file, [name for name in needed if name not in values]), None
    else:
        footer, columns = footer_of(file)
        names, types = columns.names, columns if footer.num_rows else None
    return FileSchema((*names, *(name for name in values if name not in names)), types)


def require_as_listed(file: Location, view: TableFile) -> None:
    """Return if a table's file has the size, rows and columns that the table lists; raises PlanError otherwise."""
    try:
        size = file.size()
    except FileNotFoundError:
        where = f"microdata {shown(file)}"
        raise PlanError(f"{where}: it is gone, as after VACUUM; release from a version whose files are there") from None
    footer, columns = footer_of(file)
    if view.bytes not in (None, size):
        raise not_as_listed(file)
    require_rows(file, view, footer)
    try:
        view.columns_in(columns)
    except PlanError as error:
        raise PlanError(f"microdata {shown(file)}: {error}") from None


def _require(file: Location, source: Source, spec: SumSpec, record: str) -> None:
    where, needed = f"microdata {shown(file)}", [*spec.columns, record]
    try:
        schema = schema_of(file, source, needed)
    except OSError:
        raise unreadable(file) from None
    require_columns(where, schema.names, needed)
    if schema.types is not None:
        require_types(where, schema.types, spec)
