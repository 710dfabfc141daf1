"""The losses of firms: all records of an owner, brought together by the engine's verb `grouped`.

In one cell of a query a firm's influences add up before the mechanism sees them; losses add up over cells and queries
(MATH section 2, pipeline/accounting/firm.py for records whose cells are known). Owners are compared as text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.diagnostics.distribution import (
    PAPER_QUERY,
    PAPER_SIZE,
    PAPER_TOTAL,
    QUERY,
    SIZE,
    TOTAL,
    Counts,
    Distributions,
    merged,
)
from pipeline.diagnostics.files import RowFile, names_of
from pipeline.diagnostics.losses import LossSpec
from pipeline.engines.grouped import in_buckets
from pipeline.engines.protocol import decoded
from pipeline.microdata.source import Chunk
from udfs.influence import QueryLoss, UnitRows, in_domain, summed, unit_losses
from udfs.names import as_text, buckets_of, distinct
from udfs.records import Decoder

BUCKETS = 64  # a bucket's records are in memory together
OWNER, NAICS, COUNTY = "(owner)", "(naics)", "(county)"  # columns of rows; no measure can have these names
LARGEST_SIZE = 1 << 40  # steps that a record adds to a firm's size at most, so that no sum wraps
Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]
OfQueries = Sequence[tuple[Floats, Floats]]  # influences and losses of the firms, in each query


@dataclass(frozen=True, eq=False, repr=False)
class FirmSummary:
    """How many firms have a record in the domain, and the distributions of their losses: in all, by size, by query.

    Where a policy is tight, also by the paper's bound.
    """

    firms: int
    counts: dict[tuple[str, int], Counts]


@dataclass(frozen=True, eq=False, repr=False)
class ByOwner:
    """Sends the good records of the domain to buckets by their owner."""

    spec: LossSpec

    def __call__(self, chunk: Chunk) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """Yield the rows of each batch, by bucket."""
        return decoded(chunk, self.spec.scan, self._rows)

    def _rows(self, decoder: Decoder, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        records = decoder.records(batch)
        inside = in_domain(records, self.spec.scan.bases)
        kept = np.arange(len(batch)) if inside is None else np.flatnonzero(inside)
        owners = as_text(batch.column(str(self.spec.scan.owner)).take(pa.array(kept))).dictionary_encode()
        of_row = np.asarray(owners.indices)
        columns = {
            OWNER: owners.dictionary_decode(),
            NAICS: records.naics.places[records.naics.rows[kept]].astype(np.int32),
            COUNTY: records.county.places[records.county.rows[kept]].astype(np.int32),
        }
        rows = pa.record_batch(columns | {name: values[kept] for name, values in records.values.items()})
        return in_buckets(rows, buckets_of(owners.dictionary, BUCKETS)[of_row])


@dataclass(frozen=True, eq=False, repr=False)
class FirmTask:
    """Counts the losses of a bucket's firms, and writes them in the order of their names if asked."""

    spec: LossSpec
    folder: Path | None

    def __call__(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> FirmSummary:
        """Return the summary of all firms of a bucket."""
        rows = pa.Table.from_batches(batches).combine_chunks()
        firms, of_row = distinct(rows.column(OWNER).chunk(0))
        columns = {name: rows.column(name).to_numpy() for name in rows.column_names if name != OWNER}
        found = Distributions()
        of_queries, by_paper = [], []
        for number, query in enumerate(self.spec.queries):
            met = self._rows(number, columns, of_row, len(firms))
            of_queries.append(_counted(found, QUERY, number, query, met))
            other = self.spec.by_paper.get(number)
            by_paper.append(of_queries[-1] if other is None else _counted(found, PAPER_QUERY, number, other, met))
        sizes = self._sizes(columns, of_row, len(firms))
        total = _total(found, (TOTAL, SIZE), of_queries, sizes)
        if self.spec.by_paper:
            _total(found, (PAPER_TOTAL, PAPER_SIZE), by_paper, sizes)
        if self.folder is not None:
            table = _table(self.spec, firms, np.bincount(of_row), of_queries, total)
            file = RowFile(self.folder / f"part-{bucket:05d}.parquet")
            file.add(table)
            file.close()
        return FirmSummary(len(firms), found.counts())

    def _rows(self, number: int, columns: dict[str, Int64s], of_row: Int64s, firms: int) -> UnitRows:
        """Return the rows that are in a query's cells, with their firms, cells and influences."""
        query, cells = self.spec.queries[number], self.spec.tables[number].cells
        naics, county = columns[NAICS], columns[COUNTY]
        parts = query.naics[naics] + query.county[county]
        met = np.flatnonzero(parts >= 0)
        of_cell = cells.numbers(cells.naics.position[naics[met]], cells.county.position[county[met]])
        return UnitRows(firms, of_row[met], of_cell, parts[met], np.abs(columns[query.addend][met]))

    def _sizes(self, columns: dict[str, Int64s], of_row: Int64s, firms: int) -> Int64s | None:
        """Return the class of each firm's size; None where no measure tells it."""
        if self.spec.size is None:
            return None
        sizes = np.zeros(firms, dtype=np.int64)
        np.add.at(sizes, of_row, np.minimum(np.abs(columns[self.spec.size.name]), LARGEST_SIZE))
        return self.spec.size_class(sizes)


def _total(found: Distributions, families: tuple[str, str], of_queries: OfQueries, sizes: Int64s | None) -> Floats:
    """Return the sums of the firms' losses, and count them: all together, and by size."""
    total = summed([losses for _, losses in of_queries])
    found.count(families[0], 0, total)
    if sizes is not None:
        found.count_groups(families[1], sizes, total)
    return total


def _counted(found: Distributions, family: str, number: int, query: QueryLoss, rows: UnitRows) -> tuple[Floats, Floats]:
    """Return each firm's influence on a query and its loss, and count the losses of those that are in its cells."""
    of_firms = unit_losses(query, rows)
    in_query = np.zeros(rows.count, dtype=np.bool_)
    in_query[rows.units] = True
    found.count(family, number, of_firms[1][in_query])
    return of_firms


def summed_up_firms(parts: Iterable[FirmSummary]) -> FirmSummary:
    """Return the summary of all buckets."""
    whole = list(parts)
    return FirmSummary(sum(part.firms for part in whole), merged(part.counts for part in whole))


def _table(spec: LossSpec, firms: pa.Array, records: Int64s, of_queries: OfQueries, total: Floats) -> pa.Table:
    """Return a row for each firm: its name, its records in the domain, each query's influence and loss, their sum."""
    names = names_of(query.name for query in spec.queries)
    values = [column for pair in of_queries for column in pair]
    return pa.table({"owner": firms, "records": records, **dict(zip(names, values, strict=True)), "loss": total})
