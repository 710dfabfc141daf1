"""CSV as lines: every physical line is one record, judged by itself.

A quoted field that is not closed on its line would swallow the lines that follow: one record could then remove others,
and no policy speaks of that. So lines are read as they are, and only those that are whole by themselves are parsed.
"""

import csv
import io
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from pipeline.storage import opened, place

BLOCK = 1 << 24  # bytes read at a time
NO_DELIMITER = "\x01"  # a line that holds it is not text, and is no record
FIELD = r'(?:[^",\x01]*|"(?:[^"\x01]|"")*")'


def header(path: str) -> list[str]:
    """Return the names of the columns; none where the file is empty or its first line is no CSV."""
    with io.BufferedReader(opened(place(path))) as file:
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
        good = pc.match_substring_regex(lines, whole_line)
        all_good = bool(pc.all(good, min_count=0).as_py())
        kept = lines if all_good else lines.filter(good)
        yield (_parsed(kept, names, columns) if len(kept) else None), not all_good


def _lines(path: str) -> Iterator[pa.Array]:
    """Yield the lines after the header, without their ends; after one with NO_DELIMITER, a line that is no record."""
    odd: list[object] = []

    def pass_over(row: object) -> str:
        odd.append(row)
        return "skip"

    raw = opened(place(path))
    reader = pa.csv.open_csv(
        raw,
        read_options=pa.csv.ReadOptions(column_names=["line"], skip_rows=1, block_size=BLOCK, use_threads=False),
        parse_options=pa.csv.ParseOptions(delimiter=NO_DELIMITER, quote_char=False, invalid_row_handler=pass_over),
        convert_options=pa.csv.ConvertOptions(column_types={"line": pa.binary()}, check_utf8=False),
    )
    with raw, reader:
        for batch in reader:
            yield batch.column(0)
    if odd:
        yield pa.array([NO_DELIMITER.encode()], pa.binary())


def _parsed(lines: pa.Array, names: list[str], columns: list[str]) -> pa.RecordBatch:
    every = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
    text = pc.binary_join(every, b"\n")[0].as_buffer()
    table = pa.csv.read_csv(
        pa.BufferReader(text),
        read_options=pa.csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
        parse_options=pa.csv.ParseOptions(newlines_in_values=False, ignore_empty_lines=False),
        convert_options=pa.csv.ConvertOptions(
            include_columns=columns,
            column_types=dict.fromkeys(columns, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            check_utf8=False,
        ),
    )
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
