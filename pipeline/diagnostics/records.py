"""The losses of single records: one pass over the microdata, chunk by chunk, each to counts and, if asked, a file."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.diagnostics.distribution import (
    PAPER_QUERY,
    PAPER_SIZE,
    PAPER_TOTAL,
    QUERY,
    SECTOR,
    SIZE,
    TOTAL,
    Counts,
    Distributions,
    merged,
)
from pipeline.diagnostics.files import RowFile, names_of
from pipeline.diagnostics.losses import LossSpec
from pipeline.engines.protocol import reading
from pipeline.microdata.read import read
from pipeline.microdata.source import Chunk
from udfs.contract import Mask
from udfs.influence import RecordLosses, record_losses, summed
from udfs.records import Decoder, Records
from udfs.reproducible import in_units


@dataclass(frozen=True, eq=False, repr=False)
class RecordSummary:
    """What is counted of records: all that are read, those dropped as bad, those outside the domain, and losses.

    Distributions: of the total loss of the records of the domain, also by size class and sector; of the loss in each
    query, of the records in one of its cells; where a policy is tight, by the paper's bound too, but for sectors.
    `broken`: cells that stand for broken rules.
    """

    records: int
    dropped: int
    outside: int
    broken: frozenset[int]
    counts: dict[tuple[str, int], Counts]


@dataclass(frozen=True)
class PerRecord:
    """Where the losses of single records are written, and the columns that name a record and its owner."""

    folder: Path
    record: str
    owner: str | None


@dataclass(frozen=True, eq=False, repr=False)
class RecordTask:
    """Counts the losses of a chunk's records, and writes them if asked."""

    spec: LossSpec
    files: PerRecord | None

    def __call__(self, numbered: tuple[int, Chunk]) -> RecordSummary:
        """Return the summary of the chunk of a number."""
        number, chunk = numbered
        return reading(chunk, lambda: self._over(number, chunk))

    def _over(self, number: int, chunk: Chunk) -> RecordSummary:
        decoder, found = Decoder(self.spec.scan), Distributions()
        file = RowFile(self.files.folder / f"part-{number:05d}.parquet") if self.files else None
        read_in_all, dropped, outside, broken = 0, 0, 0, frozenset[int]()
        for batch in read(chunk, self.spec.scan):
            records = decoder.records(batch)
            broken |= records.broken
            losses = record_losses(records, self.spec.queries, self.spec.scan.bases)
            good, inside = _all_of(records.good, len(batch)), _all_of(losses.inside, len(batch))
            read_in_all += len(batch)
            dropped += int(np.count_nonzero(~good))
            outside += int(np.count_nonzero(good & ~inside))
            _count(found, self.spec, records, losses)
            if self.spec.by_paper:
                _count_by_paper(found, self.spec, records, losses)
            if file and self.files:
                file.add(_table(self.files, self.spec, batch, losses, good))
        if file:
            file.close()
        return RecordSummary(read_in_all, dropped, outside, broken, found.counts())


def summed_up(parts: Iterable[RecordSummary]) -> RecordSummary:
    """Return the summary of all chunks."""
    whole = list(parts)
    return RecordSummary(
        records=sum(part.records for part in whole),
        dropped=sum(part.dropped for part in whole),
        outside=sum(part.outside for part in whole),
        broken=frozenset[int]().union(*(part.broken for part in whole)),
        counts=merged(part.counts for part in whole),
    )


def _count(found: Distributions, spec: LossSpec, records: Records, losses: RecordLosses) -> None:
    kept = losses.inside
    total = _only(losses.total, kept)
    found.count(TOTAL, 0, total)
    found.count_groups(SECTOR, _only(records.naics.keys(spec.sector_of), kept), total)
    if spec.size is not None:
        found.count_groups(SIZE, spec.size_class(_only(records.values[spec.size.name], kept)), total)
    for number, (loss, met) in enumerate(zip(losses.losses, losses.met, strict=True)):
        found.count(QUERY, number, _only(loss, met))


def _count_by_paper(found: Distributions, spec: LossSpec, records: Records, losses: RecordLosses) -> None:
    """Count what the paper's bound says of the same records; queries without a tight policy lose what they lose."""
    by_paper = record_losses(records, list(spec.by_paper.values()), spec.scan.bases)
    other = dict(zip(spec.by_paper, by_paper.losses, strict=True))
    total = _only(summed([other.get(number, loss) for number, loss in enumerate(losses.losses)]), losses.inside)
    found.count(PAPER_TOTAL, 0, total)
    if spec.size is not None:
        sizes = _only(records.values[spec.size.name], losses.inside)
        found.count_groups(PAPER_SIZE, spec.size_class(sizes), total)
    for number, loss in other.items():
        found.count(PAPER_QUERY, number, _only(loss, losses.met[number]))


def _table(files: PerRecord, spec: LossSpec, batch: pa.RecordBatch, losses: RecordLosses, good: Mask) -> pa.Table:
    """Return a row for each good record: its name, its codes, each query's influence and loss, the sum of losses."""
    named = {"record": files.record, "owner": files.owner, "naics": spec.scan.naics.column}
    named |= {"county": spec.scan.county.column}
    columns = {name: _plain(batch.column(column)) for name, column in named.items() if column is not None}
    of_queries = (
        values
        for query, steps, loss in zip(spec.queries, losses.influences, losses.losses, strict=True)
        for values in (in_units(steps, query.step), loss)
    )
    columns |= dict(zip(names_of(query.name for query in spec.queries), of_queries, strict=True))
    return pa.table(columns | {"loss": losses.total}).filter(pa.array(good))


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _only(values: NDArray[Any], mask: Mask | None) -> NDArray[Any]:
    return values if mask is None else values[mask]


def _all_of(mask: Mask | None, count: int) -> Mask:
    return np.ones(count, dtype=np.bool_) if mask is None else mask
