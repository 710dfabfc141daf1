"""What a study needs of microdata, exactly, and the losses of mechanisms on it.

A loss is a function of the influence alone. So counts of influences, which are whole numbers, are the exact
distribution of any mechanism's losses, whatever the engine and however the data are cut.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.engines.buckets import grouped, in_buckets
from pipeline.engines.protocol import Engine
from pipeline.engines.tasks import decoded
from pipeline.microdata.source import Chunk
from pipeline.report.html import QUANTILES
from pipeline.storage.staging import Staging
from pipeline.study.equal import Line
from pipeline.study.model import Panel, Study
from pipeline.tables.totals import Layout, Table
from udfs.numbers.arrays import Floats, Int64s, Mask
from udfs.numbers.exact import up_float
from udfs.records.decoding import Decoder, SumSpec
from udfs.records.influence import in_domain
from udfs.records.names import as_text, distinct

BUCKETS = 16  # a bucket's records are in memory together
CELL, OWNER, INFLUENCE = "(cell)", "(owner)", "(influence)"  # columns of the rows that go to buckets
GROWTH = (1_000, 10_000)  # influences between which the growth of a loss is stated


@dataclass(frozen=True, eq=False, repr=False)
class Cells:
    """Sums of the cells that have records, in the order of the cells' numbers, in the measure's unit.

    `squares`: of records; `firm_squares`: of each firm's total in the cell; `records` and `firms`: how many.
    """

    cells: Int64s
    totals: Int64s
    records: Int64s
    firms: Int64s
    squares: Floats
    firm_squares: Floats


@dataclass(frozen=True, eq=False, repr=False)
class Aggregates:
    """How many records (`counts`) have each of the distinct ascending `influences`, and the cells that have records.

    `cells_in_all` counts the cells without records too.
    """

    influences: Int64s
    counts: Int64s
    cells: Cells
    cells_in_all: int

    @property
    def records(self) -> int:
        """The number of records."""
        return int(self.counts.sum())

    def share(self, chosen: Mask) -> float:
        """Return the share of records whose influence is chosen; 0 without records."""
        return float(self.counts[chosen].sum() / self.records) if self.records else 0.0


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


def aggregate(engine: Engine, chunks: Sequence[Chunk], layout: Layout, scratch: Staging) -> Aggregates:
    """Return the influences and cells of the layout's first table over all chunks: the same on every engine.

    What lies on disk in between is sealed, in `scratch`.
    """
    table = layout.tables[0]
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


@dataclass(frozen=True, eq=False)
class PanelLosses:
    """A panel's curves, and each one's losses at the distinct influences of the records."""

    panel: Panel
    lines: tuple[Line, ...]
    losses: tuple[Floats, ...]

    @classmethod
    def of(cls, panel: Panel, lines: Sequence[Line], data: Aggregates) -> "PanelLosses":
        """Return the losses of a panel: upper bounds, within one part in 10⁹."""
        influences = data.influences.astype(np.float64)
        return cls(panel, tuple(lines), tuple(line.mechanism.loss(influences) for line in lines))


def quantile(losses: Floats, counts: Int64s, share: Fraction) -> float:
    """Return the least loss that at least `share` of all records do not exceed: exact, from counts."""
    order = np.argsort(losses, kind="stable")
    cumulative = np.cumsum(counts[order])
    needed = -(-int(cumulative[-1]) * share.numerator // share.denominator)
    return float(losses[order][np.searchsorted(cumulative, needed)])


def panel_json(panel: PanelLosses, data: Aggregates, study: Study) -> dict[str, Any]:
    """Return a panel's losses as JSON."""
    equal = panel.panel.equal
    return {
        "name": panel.panel.name,
        "title": panel.panel.title,
        "equal": {"variance": float(equal.variance), "total": float(equal.total)},
        "entries": [
            _line_json(line, losses, panel, data, study) | _compared_with(panel.losses[0], losses, data)
            for line, losses in zip(panel.lines, panel.losses, strict=True)
        ],
    }


def _line_json(line: Line, losses: Floats, panel: PanelLosses, data: Aggregates, study: Study) -> dict[str, Any]:
    mechanism, variance = line.mechanism, line.mechanism.variance(float(panel.panel.equal.total))
    growth = [mechanism.loss_at(Fraction(size)) for size in GROWTH]
    return {
        "label": line.label,
        "policy": line.policy,
        "mechanism": mechanism.describe(),
        "releasable": line.releasable,
        "equal_by": line.equal_by,
        "variance": variance if np.isfinite(variance) else None,
        "losses": [{"influence": size, "rho": up_float(mechanism.loss_at(Fraction(size)))} for size in study.sizes],
        "growth": {"from": GROWTH[0], "to": GROWTH[1], "factor": float(growth[1] / growth[0])},
        "quantiles": {q: quantile(losses, data.counts, Fraction(q)) for q in QUANTILES} if data.records else {},
        "largest": float(losses.max(initial=0.0)),
        "within": [{"rho": float(limit), "share": data.share(losses <= float(limit))} for limit in study.limits],
    }


def _compared_with(first: Floats, losses: Floats, data: Aggregates) -> dict[str, Any]:
    """Return how a curve compares with the panel's first: where it loses less, and what share of records does."""
    less = losses < first
    not_less = np.flatnonzero(~less)
    start = int(not_less[-1]) + 1 if len(not_less) else 0
    return {
        "loses_less_than_first": {
            "share": data.share(less),
            "from_influence": int(data.influences[start]) if start < len(less) else None,
            "share_from_there": data.share(np.arange(len(less)) >= start),
        }
    }
