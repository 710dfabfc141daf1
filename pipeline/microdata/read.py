"""Reading a chunk of the microdata as record batches: codes as dictionary-coded text, nothing guessed from values."""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from pipeline.microdata.source import Chunk, Piece
from udfs.contract import ContractBroken
from udfs.sums import SumSpec

BATCH_RECORDS = 1 << 20
CSV_BLOCK = 1 << 24  # bytes


def read(chunk: Chunk, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    """Yield the chunk's record batches with the columns of `spec`; ContractBroken where a file lacks one."""
    for piece in chunk:
        yield from _parquet(piece, spec) if piece.row_groups is not None else _csv(piece, spec)


def _parquet(piece: Piece, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(piece.path, read_dictionary=[spec.naics.column, spec.county.column]) as file:
        _require(file.schema_arrow.names, spec)
        yield from file.iter_batches(
            batch_size=BATCH_RECORDS, row_groups=piece.row_groups, columns=spec.columns, use_threads=False
        )


def _csv(piece: Piece, spec: SumSpec) -> Iterator[pa.RecordBatch]:
    with pa.csv.open_csv(piece.path) as probe:  # the header alone
        names = probe.schema.names
    _require(names, spec)
    as_text = pa.csv.ConvertOptions(
        include_columns=spec.columns,
        column_types=dict.fromkeys(spec.columns, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )
    options = pa.csv.ReadOptions(block_size=CSV_BLOCK, use_threads=False)
    with pa.csv.open_csv(piece.path, read_options=options, convert_options=as_text) as rows:
        yield from rows


def _require(names: list[str], spec: SumSpec) -> None:
    for column in spec.columns:
        if names.count(column) != 1:
            raise ContractBroken(column, "is missing from a file" if column not in names else "stands twice in a file")
