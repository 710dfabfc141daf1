"""Reading a chunk of the microdata as record batches: codes as dictionary-coded text, nothing guessed from values."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.engines.sealed import Seal
from pipeline.microdata import lines
from pipeline.microdata.folders import values_of, with_values
from pipeline.microdata.source import Chunk, Piece
from pipeline.storage import Place, Stored, opened, place
from udfs.contract import ContractBroken
from udfs.scan import SumSpec

BATCH_RECORDS = 1 << 20


def read(chunk: Chunk, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    """Yield the chunk's record batches with the columns of `spec`; ContractBroken where a file lacks one."""
    for piece in chunk:
        if piece.seal is not None:
            yield from _sealed(place(piece.path), piece.seal)
        else:
            yield from _parquet(piece, spec) if piece.row_groups is not None else _csv(piece, spec)


def _sealed(path: Place, seal: Seal) -> Iterator[pa.RecordBatch]:
    batch = seal.read_batch(path)
    yield from (batch.slice(first, BATCH_RECORDS) for first in range(0, len(batch), BATCH_RECORDS))


def _parquet(piece: Piece, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    at = place(piece.path)
    given = _given(at, spec)
    with opened(at) as raw:
        with pq.ParquetFile(raw) as probe:
            columns = _columns(probe.schema_arrow.names, given, spec)
            footer = probe.metadata
        keys = [key for key in (spec.naics.column, spec.county.column) if key in columns]
        coded = _dictionary_readable(footer, keys)
        # A store is asked for all of a row group's columns at once, not for a page at a time.
        ahead = isinstance(at, Stored)
        with pq.ParquetFile(raw, metadata=footer, read_dictionary=coded, pre_buffer=ahead) as file:
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
    given = _given(place(piece.path), spec)
    columns = _columns(lines.header(piece.path), given, spec)
    for batch, others in lines.records(piece.path, columns):
        if others and spec.bad_records == "refuse":
            raise ContractBroken("a line", "of a CSV file is no record: it has other fields than the header")
        if batch is not None:
            yield from _whole([batch], given, spec)


def _given(at: Place, spec: SumSpec) -> dict[str, str | None]:
    """Return what the folders above a file say; a store's URI would have the names in quotes of its own."""
    return values_of(at.key if isinstance(at, Stored) else str(at), spec.columns)


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
