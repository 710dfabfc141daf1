"""Reading a chunk of the microdata as record batches: codes as dictionary-coded text, nothing guessed from values."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.microdata import lines
from pipeline.microdata.source import Chunk, Piece
from pipeline.storage import Stored, opened, place
from udfs.contract import ContractBroken
from udfs.sums import SumSpec

BATCH_RECORDS = 1 << 20


def read(chunk: Chunk, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    """Yield the chunk's record batches with the columns of `spec`; ContractBroken where a file lacks one."""
    for piece in chunk:
        yield from _parquet(piece, spec) if piece.row_groups is not None else _csv(piece, spec)


def _parquet(piece: Piece, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    at = place(piece.path)
    with opened(at) as raw:
        with pq.ParquetFile(raw) as probe:
            _require(probe.schema_arrow.names, spec)
            footer = probe.metadata
        coded = _dictionary_readable(footer, (spec.naics.column, spec.county.column))
        # A store is asked for all of a row group's columns at once, not for a page at a time.
        ahead = isinstance(at, Stored)
        with pq.ParquetFile(raw, metadata=footer, read_dictionary=coded, pre_buffer=ahead) as file:
            yield from file.iter_batches(
                batch_size=BATCH_RECORDS, row_groups=piece.row_groups, columns=spec.columns, use_threads=False
            )


def _dictionary_readable(footer: pq.FileMetaData, keys: tuple[str, ...]) -> list[str]:
    """Return the key columns that Arrow can read as dictionaries: not those with delta encodings."""
    delta = {
        column.path_in_schema
        for group in range(footer.num_row_groups)
        for column in map(footer.row_group(group).column, range(footer.num_columns))
        if any("DELTA" in encoding for encoding in column.encodings)
    }
    return [key for key in keys if key not in delta]


def _csv(piece: Piece, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    _require(lines.header(piece.path), spec)
    for batch, others in lines.records(piece.path, spec.columns):
        if others and spec.bad_records == "refuse":
            raise ContractBroken("a line", "of a CSV file is no record: it has other fields than the header")
        if batch is not None:
            yield batch


def _require(names: list[str], spec: SumSpec) -> None:
    for column in spec.columns:
        if names.count(column) != 1:
            raise ContractBroken(column, "is missing from a file" if column not in names else "stands twice in a file")
