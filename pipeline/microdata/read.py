"""Reading a chunk of the microdata as record batches: codes as dictionary-coded text, nothing guessed from values.

A CSV file is read as lines: every physical line is one record, judged by itself. A quoted field that is not closed on
its line would swallow the lines that follow: one record could then remove others, and no policy covers that. So lines
are read as they are, and only those that are complete by themselves are parsed. Arrow strips a byte-order mark from the
start of its input: its input always starts with an empty line, to skip.
"""

import csv
import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.base.errors import PlanError, in_a_line
from pipeline.microdata.lake_tables import TableFile
from pipeline.microdata.source import (
    REQUESTS,
    Chunk,
    Piece,
    Source,
    columns_line,
    footer_of,
    not_as_listed,
    require_columns,
    require_rows,
    require_types,
    shown,
    unreadable,
)
from pipeline.storage.location import Location
from pipeline.storage.paths import locate
from udfs.records.contract import NO_RECORDS, text_in_utf8
from udfs.records.decoding import SumSpec

BLOCK = 1 << 24  # bytes read at a time
LONGEST = 1 << 26  # bytes of a line; a longer one is no record, wherever in a block it begins
NO_DELIMITER = "\x01"  # a line that holds it is not text, and is no record
NO_FIELD = b'a"a'  # what makes a line no record wherever it stands in it
FIELD = r'(?:[^",]*|"(?:[^"]|"")*")'
NO_CSV = {  # how a file begins that is none → what it is, and what to do
    rb"\x1f\x8b": "compressed by gzip; unpack it",
    rb"PK\x03\x04": "a zip archive or a spreadsheet; unpack it, or save the sheet as CSV",
    rb"PK\x05\x06": "an empty zip archive; leave it out",
    rb"\x28\xb5\x2f\xfd": "compressed by zstd; unpack it",
    rb"\xfd7zXZ\x00": "compressed by xz; unpack it",
    rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)": "compressed by bzip2; unpack it",
    rb"PAR1[\x00-\x08\x0e-\x1f]": "a Parquet file; name it *.parquet",
    rb"\xff\xfe|\xfe\xff": "UTF-16; save it as UTF-8",
}
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}


def header(file: Location, needed: Collection[str]) -> list[str]:
    """Return the names of a CSV file's columns; which of them are there is for others to check.

    Raises PlanError where the file is of another form, or none of its columns is one of those `needed`: then its first
    line may be a record, and is not shown.
    """
    where = f"microdata {shown(file)}"
    with io.BufferedReader(file.open()) as stream:
        first = stream.readline(LONGEST)
    if not first:
        raise PlanError(f"{where}: it is empty; a CSV file begins with the names of its columns")
    form = next((form for begin, form in NO_CSV.items() if re.match(begin, first)), None)
    if form is not None:
        raise PlanError(f"{where}: it is {form}")
    text = first.decode("utf-8-sig", errors="replace").rstrip("\r\n")
    names = _names(text, ",")
    if not needed or not set(needed).isdisjoint(names):
        return names
    for sign, words in SEPARATORS.items():
        others = _names(text, sign)
        if not set(needed).isdisjoint(others):
            raise PlanError(
                f"{where}: its columns are separated by {words}; write it with commas", columns_line(others)
            )
    raise PlanError(f"{where}: the first line is not a header; give one that names the columns as the plan does")


def _names(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator, strict=True), [])
    except csv.Error:
        return []


def csv_records(file: Location, columns: list[str]) -> Iterator[tuple[pa.RecordBatch | None, int]]:
    """Yield (records, how many lines beside them are no records) block by block; columns come as text, "" as null.

    Text that is not UTF-8 comes with replacement characters, so that no rule of the contract accepts it.
    """
    names = header(file, columns)
    complete = f"^{FIELD}(?:,{FIELD}){{{len(names) - 1}}}$"
    for lines in _lines(file):
        short = pc.less_equal(pc.binary_length(lines), LONGEST)
        good = pc.and_(short, pc.match_substring_regex(lines, complete))
        kept = lines if pc.all(good, min_count=0).as_py() else lines.filter(good)
        yield (_parsed(kept, names, columns) if len(kept) else None), len(lines) - len(kept)


def _lines(file: Location) -> Iterator[pa.Array]:
    """Yield the lines after the header, without their ends; those with NO_DELIMITER hold NO_FIELD instead."""
    parse_options = pa.csv.ParseOptions(delimiter=NO_DELIMITER, quote_char=False)
    convert_options = pa.csv.ConvertOptions(column_types={"line": pa.binary()}, check_utf8=False)
    for text in _blocks(file):
        marked = text.replace(NO_DELIMITER.encode(), NO_FIELD)
        yield _after_an_empty_line(marked, ["line"], parse_options, convert_options).column(0).combine_chunks()


def _blocks(file: Location) -> Iterator[bytes]:
    """Yield what follows the header as complete lines; of a line that is too long, enough to see that it is."""
    with io.BufferedReader(file.open()) as stream:
        stream.readline()
        rest = b""
        while block := stream.read(BLOCK):
            text = rest + block
            end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
            if end:
                yield text[:end]
            rest = text[end:][: LONGEST + 1]
        if rest:
            yield rest


def _after_an_empty_line(text: bytes, names: list[str], parse: object, convert: object) -> pa.Table:
    return pa.csv.read_csv(
        pa.BufferReader(b"\n" + text),
        read_options=pa.csv.ReadOptions(column_names=names, skip_rows=1, block_size=len(text) + 2, use_threads=False),
        parse_options=parse,
        convert_options=convert,
    )


def _parsed(lines: pa.Array, names: list[str], columns: list[str]) -> pa.RecordBatch:
    all_lines = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    parse_options = pa.csv.ParseOptions(newlines_in_values=False, ignore_empty_lines=False)
    convert_options = pa.csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.binary()),
        null_values=[""],
        strings_can_be_null=True,
        check_utf8=False,
    )
    text = pc.binary_join(all_lines, b"\n")[0].as_buffer()
    table = _after_an_empty_line(text, names, parse_options, convert_options)
    if len(table) != len(lines):
        raise ValueError("the lines of a block are not its records")
    return pa.RecordBatch.from_arrays([_strings(table[name].combine_chunks()) for name in columns], names=columns)


def _strings(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    decoded = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
    return pa.array(decoded, pa.string())


BATCH_RECORDS = 1 << 16  # what is computed of a batch stays in a processor's cache
NULL = "__HIVE_DEFAULT_PARTITION__"  # the name of a folder for records without a value


def read(chunk: Chunk, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    """Yield the chunk's record batches with the columns of `spec`; PlanError where a file lacks one."""
    for piece in chunk:
        location = locate(piece.path)
        if piece.seal is not None:
            batch = piece.seal.read_batch(location)
            yield from (batch.slice(first, BATCH_RECORDS) for first in range(0, len(batch), BATCH_RECORDS))
            continue
        if piece.view is not None:
            yield from _of_table(piece, piece.view, location, spec)
            continue
        values = partition_values(location.key, spec.columns)
        batches = _csv(location, values, spec) if piece.row_groups is None else _plain(piece, location, values, spec)
        for batch in batches:
            yield batch if batch.schema.names == spec.columns else _with_values(batch, values, spec.columns)


def partition_values(path: str, columns: Sequence[str]) -> dict[str, str | None]:
    """Return the values of `columns` in the names of a file's folders, `column=value`; the innermost one counts."""
    parts = (part.partition("=") for part in path.split("/")[:-1] if "=" in part)
    named = {_text(name): None if value == NULL else _text(value) for name, _, value in parts}
    return {column: value for column, value in named.items() if column in columns}


def _text(part: str) -> str:
    """Return a part of a path as text: bytes that are not UTF-8, also those that the path itself has, are replaced."""
    return unquote_to_bytes(os.fsencode(part)).decode(errors="replace")


def _plain(
    piece: Piece, location: Location, values: Mapping[str, str | None], spec: SumSpec
) -> Iterator[pa.RecordBatch]:
    def columns(file: pq.ParquetFile) -> dict[str, str]:
        return {name: name for name in _columns(location, file.schema_arrow.names, values, spec)}

    return _parquet(piece, location, columns, spec)


def _of_table(piece: Piece, view: TableFile, location: Location, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    require_columns(f"microdata {shown(location)}", view.schema.names, spec.columns)
    there: dict[str, str] = {}
    rows = np.zeros(0, np.int64)  # the numbers that the piece's rows have in the file

    def columns(file: pq.ParquetFile) -> dict[str, str]:
        nonlocal rows
        there.update((name, held) for name, held in view.columns_in(file.schema_arrow).items() if name in spec.columns)
        if view.deleted:
            sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
            ends = np.cumsum([0, *sizes])
            rows = np.concatenate([np.arange(ends[group], ends[group + 1]) for group in piece.row_groups or ()])
        return {held: name for name, held in there.items()} or {file.schema_arrow.names[0]: ""}

    for batch in _parquet(piece, location, columns, spec):
        held = {name: batch.column(there[name]) if name in there else None for name in spec.columns}
        records = pa.record_batch(
            {
                name: pa.repeat(view.value(name), len(batch)) if column is None else column
                for name, column in held.items()
            }
        )
        gone = view.is_deleted(rows[: len(batch)])
        rows = rows[len(batch) :]
        yield records.filter(pa.array(~gone)) if gone.any() else records


def _parquet(
    piece: Piece, location: Location, columns_of: Callable[[pq.ParquetFile], Mapping[str, str]], spec: SumSpec
) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a piece: `columns_of` the file, by their names there; each has a name in `spec` or none."""
    with location.open() as raw:
        with pq.ParquetFile(raw) as probe:
            schema, footer, columns = probe.schema_arrow, probe.metadata, columns_of(probe)
        # Columns that a file's own schema codes Arrow would code itself, and fail where they are not UTF-8.
        coded_there = {name for name in columns if pa.types.is_dictionary(schema.field(name).type)}
        keys = {name for name, of in columns.items() if of in spec.code_columns} | coded_there
        coded = _dictionary_readable(footer, keys)
        # A store is asked for all of a row group's columns at once, not for a page at a time.
        with pq.ParquetFile(raw, metadata=footer, read_dictionary=coded, pre_buffer=location.remote) as file:
            batches = file.iter_batches(
                batch_size=BATCH_RECORDS, row_groups=piece.row_groups, columns=[*columns], use_threads=False
            )
            yield from map(text_in_utf8, batches)


def _dictionary_readable(footer: pq.FileMetaData, keys: Iterable[str]) -> list[str]:
    """Return the key columns that Arrow can read as dictionaries: not those with delta encodings."""
    delta = {
        column.path_in_schema
        for group in range(footer.num_row_groups)
        for column in map(footer.row_group(group).column, range(footer.num_columns))
        if any("DELTA" in encoding for encoding in column.encodings)
    }
    return [key for key in keys if key not in delta]


def _csv(location: Location, values: Mapping[str, str | None], spec: SumSpec) -> Iterator[pa.RecordBatch]:
    names = header(location, [column for column in spec.columns if column not in values])
    columns = _columns(location, names, values, spec)
    for batch, others in csv_records(location, columns):
        if others:  # rows of nulls that stand for lines which are no records: each is a bad record of its own
            schema = pa.schema([(column, pa.string()) for column in spec.columns], metadata={NO_RECORDS: b""})
            yield pa.record_batch([pa.nulls(others, pa.string())] * len(spec.columns), schema=schema)
        if batch is not None:
            yield batch


def _columns(location: Location, names: list[str], values: Mapping[str, str | None], spec: SumSpec) -> list[str]:
    """Return the columns to read from a file with the columns `names`; `values` are those of its folders' names."""
    require_columns(f"microdata {shown(location)}", [*names, *(v for v in values if v not in names)], spec.columns)
    return [column for column in spec.columns if column in names] or names[:1]  # one, to count the records by


def _with_values(batch: pa.RecordBatch, values: Mapping[str, str | None], columns: Sequence[str]) -> pa.RecordBatch:
    there = dict(zip(batch.schema.names, batch.columns, strict=True))
    absent = {
        name: pa.repeat(pa.scalar(values[name], pa.string()), len(batch)) for name in columns if name not in there
    }
    return pa.record_batch({name: (there | absent)[name] for name in columns})


# The schema of files of microdata, by their first lines and footers: checked before anything is charged.


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
    """Return for each file what is wrong with its schema, None where nothing is; owners have one type in all files."""

    def mistake(file: Location) -> PlanError | bool | None:
        try:
            return _require(file, source, spec, record)
        except PlanError as error:
            return error

    with ThreadPoolExecutor(REQUESTS if source.root.remote else 1) as pool:
        of_files = dict(zip(source.files, pool.map(mistake, source.files), strict=True))
    text = next((file for file, as_text in of_files.items() if as_text is True), None)
    return [
        _unlike(file, text, str(spec.owner))
        if each is False and text
        else each
        if isinstance(each, PlanError)
        else None
        for file, each in of_files.items()
    ]


def _unlike(file: Location, text: Location, owner: str) -> PlanError:
    return PlanError(
        f"microdata {shown(file)}: column {in_a_line(owner)} has whole numbers, that of {shown(text)} text: 7 and 007 "
        "would be two owners, each protected by half; give owners one type in all files"
    )


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
        names, types = header(file, [name for name in needed if name not in values]), None
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


def _require(file: Location, source: Source, spec: SumSpec, record: str) -> bool | None:
    """Return whether owners are text, not whole numbers; None where there are none. Raises PlanError as `mistakes`."""
    where, needed = f"microdata {shown(file)}", [*spec.columns, record]
    try:
        schema = schema_of(file, source, needed)
    except OSError:
        raise unreadable(file) from None
    require_columns(where, schema.names, needed)
    if schema.types is not None:
        require_types(where, schema.types, spec)
    if spec.owner is None or (schema.types is None and source.format != "csv"):
        return None
    if schema.types is None or spec.owner not in schema.types.names:
        return True
    kind = schema.types.field(spec.owner).type
    return not pa.types.is_integer(kind.value_type if pa.types.is_dictionary(kind) else kind)
