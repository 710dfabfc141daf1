"""CSV as lines: every physical line is one record, judged by itself.

A quoted field that is not closed on its line would swallow the lines that follow: one record could then remove others,
and no policy covers that. So lines are read as they are, and only those that are complete by themselves are parsed.
Arrow strips a byte-order mark from the start of its input: its input always starts with an empty line, to skip.
"""

import csv
import io
import re
from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from pipeline.base.errors import PlanError
from pipeline.microdata.source import columns_line, shown
from pipeline.storage.location import Location

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


def records(file: Location, columns: list[str]) -> Iterator[tuple[pa.RecordBatch | None, int]]:
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
    return pa.RecordBatch.from_arrays([_text(table[name].combine_chunks()) for name in columns], names=columns)


def _text(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    decoded = [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]
    return pa.array(decoded, pa.string())
