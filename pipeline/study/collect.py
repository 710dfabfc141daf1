"""What a study needs of microdata, exactly: how many records have which influence, and each cell's sums.

A loss is a function of the influence alone. So counts of influences, which are whole numbers, are the whole exact
distribution of any mechanism's losses, whatever the engine and however the data are cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.engines.grouped import in_buckets
from pipeline.engines.protocol import Engine, decoded
from pipeline.microdata.source import Chunk
from pipeline.staging import Staging
from pipeline.totals import Layout, Table
from udfs.influence import in_domain
from udfs.names import as_text, distinct
from udfs.records import Decoder
from udfs.scan import SumSpec

BUCKETS = 16  # a bucket's records are in memory together
CELL, OWNER, INFLUENCE = "(cell)", "(owner)", "(influence)"

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """Sums of cells that have records, in the order of the cells' numbers, in the measure's unit.

    `squares`: of records; `firm_squares`: of each firm's total in the cell; `records` and `firms`: how many.
    """

    cells: Int64s
    totals: Int64s
    records: Int64s
    firms: Int64s
    squares: Floats
    firm_squares: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Collected:
    """Distinct influences in order, how many records have each; the cells that have records, how many there are."""

    influences: Int64s
    counts: Int64s
    cells: Cells
    in_all: int

    @property
    def records(self) -> int:
        """The number of records."""
        return int(self.counts.sum())


@dataclass(frozen=True, eq=False, repr=False)
class ByCell:
    """Sends records to buckets by their cell in the table."""

    spec: SumSpec
    table: Table

    def __call__(self, chunk: Chunk) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """Yield the rows of each batch, by bucket."""
        return decoded(chunk, self.spec, self._rows)

    def _rows(self, decoder: Decoder, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        records, cells = decoder.records(batch), self.table.cells
        inside = in_domain(records, self.spec.bases)
        kept = np.arange(len(batch)) if inside is None else np.flatnonzero(inside)
        naics, county = (key.places[key.rows[kept]] for key in (records.naics, records.county))
        numbers = cells.numbers(cells.naics.position[naics], cells.county.position[county])
        columns = {
            CELL: numbers,
            OWNER: as_text(batch.column(str(self.spec.owner)).take(pa.array(kept))),
            INFLUENCE: np.abs(records.values[self.table.addend][kept]),
        }
        return in_buckets(pa.record_batch(columns), numbers * BUCKETS // max(cells.size, 1))


@dataclass(frozen=True, eq=False, repr=False)
class OneBucket:
    """Counts the influences of a bucket's records, and sums up its cells."""

    def __call__(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> tuple[Int64s, Int64s, Cells]:
        """Return distinct influences, their counts, and the bucket's cells."""
        rows = pa.Table.from_batches(batches).combine_chunks()
        cells, values = rows.column(CELL).to_numpy(), rows.column(INFLUENCE).to_numpy()
        _, owners = distinct(rows.column(OWNER).chunk(0))
        influences, counts = np.unique(values, return_counts=True)
        return influences, counts.astype(np.int64), _summed(cells, owners, values)


def collect(engine: Engine, chunks: Sequence[Chunk], layout: Layout, scratch: Staging) -> Collected:
    """Return the influences and cells of the layout's first table over all chunks: the same on every engine.

    What lies on disk in between is sealed, in `scratch`.
    """
    table = layout.tables[0]
    parts = engine.grouped(ByCell(layout.spec, table), chunks, OneBucket(), scratch)
    if not parts:
        none = np.zeros(0, dtype=np.int64)
        empty = np.zeros(0)
        return Collected(none, none, Cells(none, none, none, none, empty, empty), table.cells.size)
    influences, of_record = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    counts = np.zeros(len(influences), dtype=np.int64)
    np.add.at(counts, of_record, np.concatenate([part[1] for part in parts]))
    names = Cells.__dataclass_fields__
    joined = {name: np.concatenate([getattr(part[2], name) for part in parts]) for name in names}
    return Collected(influences, counts, Cells(**joined), table.cells.size)


def _summed(cells: Int64s, owners: Int64s, values: Int64s) -> Cells:
    """Sum up in the order of cells, owners and values, so that sums of doubles do not depend on the rows' order."""
    order = np.lexsort((values, owners, cells))
    cells, owners, values = cells[order], owners[order], values[order]
    new_cell = np.append(True, np.diff(cells) != 0)
    firm_starts = np.flatnonzero(new_cell | np.append(True, np.diff(owners) != 0))
    cell_starts = np.flatnonzero(new_cell)
    firm_totals = np.add.reduceat(values, firm_starts)
    first_firm = np.searchsorted(firm_starts, cell_starts)  # of each cell
    return Cells(
        cells=cells[cell_starts],
        totals=np.add.reduceat(values, cell_starts),
        records=np.diff(np.append(cell_starts, len(cells))),
        firms=np.diff(np.append(first_firm, len(firm_starts))),
        squares=np.add.reduceat(values.astype(np.float64) ** 2, cell_starts),
        firm_squares=np.add.reduceat(firm_totals.astype(np.float64) ** 2, first_firm),
    )
