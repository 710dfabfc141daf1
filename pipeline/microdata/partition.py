"""Records → typed Parquet files by industry, sorted by industry, county and row id: the tasks of `prdp prepare`.

    records of a chunk ─► to the bucket of their 3-digit industry ─► sorted, typed, one file a bucket

The files depend on the records alone, not on their order or cut: records are sorted by all that they hold.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.engines.grouped import in_buckets
from pipeline.engines.protocol import decoded
from pipeline.engines.sealed import put
from pipeline.microdata.duplicates import BROKEN, COUNTY, NAICS, OWNER, RECORD, counted, told
from pipeline.microdata.source import Chunk
from udfs.codes import is_naics, roll_up
from udfs.names import as_coded_text, as_text, ranked
from udfs.records import Decoder
from udfs.scan import SumSpec
from udfs.typed import in_units

ROW_GROUP = 1 << 17  # records
LEVEL = "naics3"


@dataclass(frozen=True)
class Written:
    """A file and how many records it holds; or, of the bucket BROKEN, how often each rule is broken."""

    name: str
    records: int
    broken: Counter[int]


@dataclass(frozen=True, eq=False, repr=False)
class ByIndustry:
    """Sends good records to buckets by their 3-digit industry; `record` is the column of their ids."""

    spec: SumSpec
    record: str

    def __call__(self, chunk: Chunk) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """Yield the records of each batch, by bucket, and the rules that rows break."""
        return decoded(chunk, self.spec, self._rows)

    def _rows(self, decoder: Decoder, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        spec, records = self.spec, decoder.records(batch)
        codes = as_coded_text(batch.column(spec.naics.column))
        columns: dict[str, object] = {
            RECORD: as_text(batch.column(self.record)),
            NAICS: codes,
            COUNTY: as_coded_text(batch.column(spec.county.column)),
        }
        if spec.owner is not None:
            columns[OWNER] = as_coded_text(batch.column(spec.owner))
        rows = pa.record_batch(columns | {m.name: records.values[m.name] for m in spec.measures})
        of_code = [int(roll_up(c, LEVEL)) if c and is_naics(c) else 0 for c in codes.dictionary.to_pylist()]
        buckets = np.array([*of_code, 0], dtype=np.int64)[np.asarray(codes.indices.fill_null(len(of_code)))]
        if records.good is not None:
            rows, buckets = rows.filter(pa.array(records.good)), buckets[records.good]
        return [*told(spec, records.faults), *in_buckets(rows, buckets)]


@dataclass(frozen=True, eq=False, repr=False)
class SortedFile:
    """Sorts the records of a bucket, and writes their file into `folder`; `spec` names their columns and steps."""

    spec: SumSpec
    record: str
    folder: Path

    def __call__(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> Written:
        """Return what was written."""
        if bucket == BROKEN:
            return Written("", 0, counted(batches))
        table = pa.Table.from_batches(batches).unify_dictionaries().combine_chunks()
        batch = table.to_batches()[0]
        return self.write(f"{LEVEL}-{bucket:03d}.parquet", batch.take(_order(batch)))

    def write(self, name: str, batch: pa.RecordBatch) -> Written:
        """Write the file of some records in their order."""
        spec = self.spec
        columns = {self.record: batch.column(RECORD).cast(pa.string())}
        coded = {spec.naics.column: NAICS, spec.county.column: COUNTY}
        coded |= {spec.owner: OWNER} if spec.owner is not None else {}
        for column, mine in coded.items():
            columns.setdefault(column, batch.column(mine).dictionary_decode().cast(pa.string()).dictionary_encode())
        for measure in spec.measures:  # two of one column have the same values in it
            columns.setdefault(measure.column, in_units(batch.column(measure.name).to_numpy(), measure.step))
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.table(columns), sink, compression="zstd", row_group_size=ROW_GROUP, use_dictionary=list(coded)
        )
        put(self.folder / name, [sink.getvalue()])
        return Written(name, len(batch), Counter())

    def none(self) -> Written:
        """Write a file of no records, which tells the columns and their types."""
        coded = pa.array([], pa.large_string()).dictionary_encode()
        columns = {RECORD: pa.array([], pa.large_string()), NAICS: coded, COUNTY: coded, OWNER: coded}
        measures = {measure.name: pa.array([], pa.int64()) for measure in self.spec.measures}
        return self.write(f"{LEVEL}-none.parquet", pa.record_batch(columns | measures))


def _order(batch: pa.RecordBatch) -> pa.Array:
    """Return the order of records by industry, county, id, and then all else."""
    keys = {name: _sortable(batch.column(name)) for name in (NAICS, COUNTY, RECORD)}
    keys |= {name: _sortable(batch.column(name)) for name in sorted({*batch.schema.names} - {*keys})}
    return pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])


def _sortable(values: pa.Array) -> pa.Array:
    return pa.array(ranked(values)[1]) if pa.types.is_dictionary(values.type) else values
