"""What studies need of microdata, exactly: influences and cells of a table, and the rows of a plan's tables.

Only synthetic microdata come here: those that a study wrote for itself, or those that carry the mark of `prdp generate`
and that no ledger knows.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from pipeline.base.errors import PlanError, StateError
from pipeline.engines.protocol import Engine, grouped, in_buckets
from pipeline.engines.tasks import decoded
from pipeline.engines.totals import Layout, Table, layout_of
from pipeline.microdata import source
from pipeline.microdata.source import Chunk, identity_of
from pipeline.plan.model import Plan
from pipeline.planning.study.study_figures import Aggregates, Cells
from pipeline.planning.study.suppression import Rows
from pipeline.storage.local import LocalPath
from pipeline.storage.staging import Staging
from udfs.numbers.arrays import Floats, Int64s
from udfs.records.contract import as_text, distinct
from udfs.records.decoding import Decoder, SumSpec
from udfs.records.influence import in_domain

BUCKETS = 16  # a bucket's records are in memory together
CELL, OWNER, INFLUENCE = "(cell)", "(owner)", "(influence)"  # columns of the rows that go to buckets


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
        inside = in_domain(records, self.spec)
        kept = np.arange(len(batch)) if inside is None else np.flatnonzero(inside)
        numbers = cells.of_codes({number: codes.codes()[kept] for number, codes in enumerate(records.keys)})
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
        return influences, counts.astype(np.int64), _sums(cells, owners, values)


def aggregate(engine: Engine, microdata: Path, layout: Layout, scratch: Staging) -> Aggregates:
    """Return the influences and cells of the layout's first table over all records: the same on every engine.

    What lies on disk in between is sealed, in `scratch`.
    """
    table, chunks = layout.tables[0], list(source.chunks(source.find(LocalPath(microdata))))
    parts = grouped(engine.each, ByCell(layout.spec, table), chunks, OneBucket(), scratch)
    if not parts:
        none, empty = np.zeros(0, dtype=np.int64), np.zeros(0)
        return Aggregates(none, none, Cells(none, none, none, none, empty, empty), table.cells.size)
    influences, of_record = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
    counts = np.zeros(len(influences), dtype=np.int64)
    np.add.at(counts, of_record, np.concatenate([part[1] for part in parts]))
    names = Cells.__dataclass_fields__
    cells = {name: np.concatenate([getattr(part[2], name) for part in parts]) for name in names}
    return Aggregates(influences, counts, Cells(**cells), table.cells.size)


def _sums(cells: Int64s, owners: Int64s, values: Int64s) -> Cells:
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


def rows_in_tables(
    known: Callable[[Sequence[str]], str | None], plan: Plan, firm: str, tables: Sequence[Table]
) -> Rows:
    """Return the records of a plan's synthetic microdata that lie in its tables, of one measure.

    `known` returns the dataset of which a file with one of these fingerprints is, as far as a ledger knows, else None.

    Raises StateError where the microdata are a dataset's; PlanError where they are not those of `prdp generate` or lack
    the column of firms.
    """
    dataset, addend = plan.dataset, tables[0].addend
    if dataset.path is None:
        raise PlanError("dataset.path: synthetic microdata of prdp generate are needed, in files")
    files = source.find(dataset.path)
    identity = identity_of(files)
    if identity.synthetic is not True:
        raise PlanError(
            f"microdata {dataset.path}: they do not carry the mark of prdp generate; a study reads synthetic ones alone"
        )
    owned = known(identity.fingerprints)  # the mark proves nothing: a schema that is copied carries it along
    if owned is not None:
        raise StateError(
            f"microdata {dataset.path}: they carry the mark of prdp generate, but a file of them is one of dataset "
            f"{owned} in the ledger; a study reads synthetic microdata alone: generate some for it"
        )
    spec = replace(layout_of(plan).spec, owner=dataset.owner or firm)
    unit = float(tables[0].query.mechanisms[0].step)

    def rows(decoder: Decoder, batch: pa.RecordBatch) -> tuple[pa.Array, Floats, Int64s]:
        records = decoder.records(batch)
        codes = {number: key.codes() for number, key in enumerate(records.keys)}
        cells = np.array([table.cells.of_codes(codes) for table in tables], dtype=np.int64)
        if records.good is not None:
            cells[:, ~records.good] = -1
        kept = (cells >= 0).any(axis=0)
        return (
            batch.column(str(spec.owner)).filter(pa.array(kept)),
            (records.values[addend][kept] * unit).astype(np.float64),
            cells[:, kept],
        )

    parts = [part for chunk in source.chunks(files) for part in decoded(chunk, spec, rows)]
    if not parts:
        return Rows(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((len(tables), 0), dtype=np.int64))
    owners, values, cells = zip(*parts, strict=True)
    names = pa.chunked_array(owners).combine_chunks()
    firms = distinct(names.chunk(0) if isinstance(names, pa.ChunkedArray) else names)[1]
    return Rows(firms, np.concatenate(values), np.concatenate(cells, axis=1))
