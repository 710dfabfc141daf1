"""CSV as lines: every physical line is one record, judged by itself.

A quoted field that is not closed on its line would swallow the lines that follow: one record could then remove others,
and no policy speaks of that. So lines are read as they are, and only those that are whole by themselves are parsed.
Arrow strips a byte-order mark from the start of what it is given: it is always given an empty line first, to skip.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.microdata.source import Chunk, Piece, values_of, with_values
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal
from pipeline.storage.uri import locate
from udfs.records.contract import ContractBroken
from udfs.records.decoding import SumSpec

BLOCK = 1 << 24  # bytes read at a time
LONGEST = 1 << 26  # bytes of a line; a longer one is no record, wherever in a block it begins
NO_DELIMITER = "\x01"  # a line that holds it is not text, and is no record
NO_FIELD = b'a"a'  # what makes a line no record wherever it stands in it
FIELD = r'(?:[^",]*|"(?:[^"]|"")*")'


def header(path: str) -> list[str]:
    """Return the names of the columns; none where the file is empty or its first line is no CSV."""
    with io.BufferedReader(locate(path).open()) as file:
        first = file.readline().decode("utf-8-sig", errors="replace").rstrip("\r\n")
    try:
        return next(csv.reader([first], strict=True), [])
    except csv.Error:
        return []


def records(path: str, columns: list[str]) -> Iterator[tuple[pa.RecordBatch | None, bool]]:
    """Yield (records, whether lines beside them are no records) block by block; columns come as text, "" as null.

    Text that is not UTF-8 comes with replacement characters, so that no rule of the contract accepts it.
    """
    names = header(path)
    whole_line = f"^{FIELD}(?:,{FIELD}){{{len(names) - 1}}}$"
    for lines in _lines(path):
        short = pc.less_equal(pc.binary_length(lines), LONGEST)
        good = pc.and_(short, pc.match_substring_regex(lines, whole_line))
        all_good = bool(pc.all(good, min_count=0).as_py())
        kept = lines if all_good else lines.filter(good)
        yield (_parsed(kept, names, columns) if len(kept) else None), not all_good


def _lines(path: str) -> Iterator[pa.Array]:
    """Yield the lines after the header, without their ends; those with NO_DELIMITER hold NO_FIELD instead."""
    parse_options = pa.csv.ParseOptions(delimiter=NO_DELIMITER, quote_char=False)
    convert_options = pa.csv.ConvertOptions(column_types={"line": pa.binary()}, check_utf8=False)
    for text in _blocks(path):
        whole = text.replace(NO_DELIMITER.encode(), NO_FIELD)
        yield _after_an_empty_line(whole, ["line"], parse_options, convert_options).column(0).combine_chunks()


def _blocks(path: str) -> Iterator[bytes]:
    """Yield what follows the header as whole lines; of one that is too long, as much as tells so."""
    with io.BufferedReader(locate(path).open()) as file:
        file.readline()
        rest = b""
        while block := file.read(BLOCK):
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
    every = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    parse_options = pa.csv.ParseOptions(newlines_in_values=False, ignore_empty_lines=False)
    convert_options = pa.csv.ConvertOptions(
        include_columns=columns,
        column_types=dict.fromkeys(columns, pa.binary()),
        null_values=[""],
        strings_can_be_null=True,
        check_utf8=False,
    )
    text = pc.binary_join(every, b"\n")[0].as_buffer()
    table = _after_an_empty_line(text, names, parse_options, convert_options)
    if len(table) != len(lines):
        raise ValueError("the lines of a block are not its records")
    return pa.RecordBatch.from_arrays([_text(table[name].combine_chunks()) for name in columns], names=columns)


def _text(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    decoded = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
    return pa.array(decoded, pa.string())


# Reading a chunk of the microdata as record batches: codes as dictionary-coded text, nothing guessed from values.


BATCH_RECORDS = 1 << 20


def read(chunk: Chunk, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    """Yield the chunk's record batches with the columns of `spec`; ContractBroken where a file lacks one."""
    for piece in chunk:
        if piece.seal is not None:
            yield from _sealed(locate(piece.path), piece.seal)
        else:
            yield from _parquet(piece, spec) if piece.row_groups is not None else _csv(piece, spec)


def _sealed(path: Location, seal: Seal) -> Iterator[pa.RecordBatch]:
    batch = seal.read_batch(path)
    yield from (batch.slice(first, BATCH_RECORDS) for first in range(0, len(batch), BATCH_RECORDS))


def _parquet(piece: Piece, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    at = locate(piece.path)
    given = _given(at, spec)
    with at.open() as raw:
        with pq.ParquetFile(raw) as probe:
            columns = _columns(probe.schema_arrow.names, given, spec)
            footer = probe.metadata
        keys = [key for key in (spec.naics.column, spec.county.column) if key in columns]
        coded = _dictionary_readable(footer, keys)
        # A store is asked for all of a row group's columns at once, not for a page at a time.
        with pq.ParquetFile(raw, metadata=footer, read_dictionary=coded, pre_buffer=at.remote) as file:
            batches = file.iter_batches(
                batch_size=BATCH_RECORDS, row_groups=piece.row_groups, columns=columns, use_threads=False
            )
            yield from _whole(batches, given, spec)


def _dictionary_readable(footer: pq.FileMetaData, keys: Iterable[str]) -> list[str]:
    """Return the key columns that Arrow can read as dictionaries: not those with delta encodings."""
    delta = {
        column.path_in_schema
        for group in range(footer.num_row_groups)
        for column in map(footer.row_group(group).column, range(footer.num_columns))
        if any("DELTA" in encoding for encoding in column.encodings)
    }
    return [key for key in keys if key not in delta]


def _csv(piece: Piece, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    given = _given(locate(piece.path), spec)
    columns = _columns(header(piece.path), given, spec)
    for batch, others in records(piece.path, columns):
        if others and spec.bad_records == "refuse":
            raise ContractBroken("a line", "of a CSV file is no record: it has other fields than the header")
        if batch is not None:
            yield from _whole([batch], given, spec)


def _given(at: Location, spec: SumSpec) -> dict[str, str | None]:
    """Return what the folders above a file say; a store's URI would have the names in quotes of its own."""
    return values_of(at.key, spec.columns)


def _columns(names: list[str], given: Mapping[str, str | None], spec: SumSpec) -> list[str]:
    """Return the columns to read of a file with the columns `names`; its folders' names give those that it lacks."""
    for column in spec.columns:
        if names.count(column) > 1:
            raise ContractBroken(column, "stands twice in a file")
        if column not in names and column not in given:
            raise ContractBroken(column, "is missing from a file")
    return [column for column in spec.columns if column in names] or names[:1]  # one, to count the records by


def _whole(
    batches: Iterable[pa.RecordBatch], given: Mapping[str, str | None], spec: SumSpec
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch if batch.schema.names == spec.columns else with_values(batch, given, spec.columns)
