"""The losses of single records and of firms: tasks over the microdata, which count them and, if wanted, write files.

Records take one pass, chunk by chunk. The records of a firm are brought together by the engine's verb `grouped`: in
one cell of a query a firm's influences add up before the mechanism sees them; losses add up over cells and queries
(docs/mathematics.md, section 5, pipeline/accounting/placements.py for records whose cells are known). Owners are
compared as text.
"""

import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from pipeline.base.errors import PrdpError, file_errors
from pipeline.diagnostics import record_losses as family
from pipeline.diagnostics.record_losses import Counts, Distributions, Key, LossSpec
from pipeline.engines.protocol import in_buckets
from pipeline.engines.tasks import decoded, reading
from pipeline.microdata.read import read
from pipeline.microdata.source import Chunk
from udfs.numbers.arrays import Floats, Int64s, Mask, in_units
from udfs.records.contract import Rule, as_text, buckets_of, distinct
from udfs.records.decoding import OUTSIDE, Decoder, Records
from udfs.records.influence import QueryLoss, RecordLosses, UnitRows, in_domain, record_losses, summed, unit_losses

BUCKETS = 64  # a bucket's records are in memory together
OWNER, INSIDE, KEPT = "(owner)", "(inside)", "(kept)"  # columns of rows; no measure can have such names
LARGEST_SIZE = 1 << 40  # steps that a record adds to a firm's size at most, so that no sum wraps


class RowFile:
    """A Parquet file, this user's alone, that grows by tables of one schema and has its name once it is closed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        self._writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table) -> None:
        """Write the rows of a table."""
        with self._written():
            if self._writer is None:
                os.close(os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                self._writer = pq.ParquetWriter(self._aside, table.schema, compression="zstd", store_schema=False)
            self._writer.write_table(table)

    def close(self) -> None:
        """Give the file its name; without any rows there is none."""
        if self._writer is not None:
            with self._written():
                self._writer.close()
                os.replace(self._aside, self._path)

    def _written(self) -> AbstractContextManager[None]:
        before = f"diagnostics: {self._path.name} cannot be written ("
        return file_errors(before, "); make room, and run again", PrdpError)


@dataclass(frozen=True, eq=False, repr=False)
class RecordSummary:
    """Counts of records: all that are read, those dropped as bad, those outside the domain, and losses.

    Distributions: of the total loss of the records of the domain, also by size class and sector; of the loss in each
    query, of the records in one of its cells; where a policy is tight, by the paper's bound too, but for sectors.
    `broken`: cells that stand for broken rules.
    """

    records: int
    dropped: int
    outside: int
    broken: frozenset[int]
    counts: dict[Key, Counts]

    @classmethod
    def merged(cls, parts: Sequence["RecordSummary"]) -> "RecordSummary":
        """Return the summary of all chunks."""
        return cls(
            records=sum(part.records for part in parts),
            dropped=sum(part.dropped for part in parts),
            outside=sum(part.outside for part in parts),
            broken=frozenset[int]().union(*(part.broken for part in parts)),
            counts=Distributions.merged(part.counts for part in parts),
        )


@dataclass(frozen=True)
class PerRecord:
    """The folder for files of single records, and the columns that name a record and its owner."""

    folder: Path
    record: str
    owner: str | None


@dataclass(frozen=True, eq=False, repr=False)
class RecordTask:
    """Counts the losses of a chunk's records, and writes them where `files` has a folder."""

    spec: LossSpec
    files: PerRecord | None

    def __call__(self, numbered: tuple[int, Chunk]) -> RecordSummary:
        """Return the summary of the chunk of a number."""
        number, chunk = numbered
        return reading(chunk, lambda: self._over(number, chunk))

    def _over(self, number: int, chunk: Chunk) -> RecordSummary:
        decoder, counts = Decoder(self.spec.scan), Distributions()
        file = RowFile(self.files.folder / f"part-{number:05d}.parquet") if self.files else None
        read_records, dropped, outside, broken = 0, 0, 0, frozenset[int]()
        for batch in read(chunk, self.spec.scan):
            records = decoder.records(batch)
            broken |= records.broken
            losses = record_losses(records, self.spec.queries, self.spec.scan)
            good, inside = _all_of(records.good, len(batch)), _all_of(losses.inside, len(batch))
            read_records += len(batch)
            dropped += int(np.count_nonzero(~good))
            outside += int(np.count_nonzero(good & ~inside))
            _count(counts, self.spec, records, losses)
            if file and self.files:
                file.add(_table(self.files, self.spec, batch, losses, good))
        if file:
            file.close()
        return RecordSummary(read_records, dropped, outside, broken, counts.counts())


def _count(counts: Distributions, spec: LossSpec, records: Records, losses: RecordLosses) -> None:
    """Count the records' losses, and by the paper's bound, which is the stated one of queries that are not tight."""
    kept = losses.inside
    total = _only(_total(spec, losses.losses), kept)
    sizes = None if spec.size is None else spec.size_class(_only(records.values[spec.size.name], kept))
    _count_total(counts, (family.TOTAL, family.SIZE), total, sizes)
    if spec.sector_of:
        sectors = _only(records.numbers(spec.sector_of), kept)
        counts.count_groups(family.SECTOR, sectors[sectors >= 0], total[sectors >= 0])
    for number, (loss, met) in enumerate(zip(losses.losses, losses.met, strict=True)):
        counts.count(family.QUERY, number, _only(loss, met))
    if not spec.paper_queries:
        return
    paper = record_losses(records, list(spec.paper_queries.values()), spec.scan)
    other = dict(zip(spec.paper_queries, paper.losses, strict=True))
    total = _only(_total(spec, [other.get(number, loss) for number, loss in enumerate(losses.losses)]), kept)
    _count_total(counts, (family.PAPER_TOTAL, family.PAPER_SIZE), total, sizes)
    for number, loss in other.items():
        counts.count(family.PAPER_QUERY, number, _only(loss, losses.met[number]))


def _table(files: PerRecord, spec: LossSpec, batch: pa.RecordBatch, losses: RecordLosses, good: Mask) -> pa.Table:
    """Return a row for each good record: its name, its codes, each query's influence and loss, the sum of losses."""
    named = {"record": files.record, "owner": files.owner} | dict(zip(spec.keys, spec.scan.code_columns, strict=True))
    columns = {name: _plain(batch.column(column)) for name, column in named.items() if column is not None}
    of_queries = (
        values
        for query, steps, loss in zip(spec.queries, losses.influences, losses.losses, strict=True)
        for values in (in_units(steps, query.step), loss)
    )
    columns |= dict(zip(_columns(spec), of_queries, strict=True))
    return pa.table(columns | {"loss": _total(spec, losses.losses)}).filter(pa.array(good))


def _total(spec: LossSpec, losses: Sequence[Floats], tested: Sequence[Int64s] = ()) -> Floats:
    """Return the sums of units' losses by the queries and by the test of records left out, which is two counts.

    `tested`: how many records of each unit are in either count; none: units are one record each, in one of them.
    """
    of_test = [spec.test.loss(numbers.astype(np.float64)) for numbers in tested or [np.ones(len(losses[0]), np.int64)]]
    return summed([*losses, *of_test])


def _key(number: int) -> str:
    return f"(key {number})"


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _only(values: NDArray[Any], mask: Mask | None) -> NDArray[Any]:
    return values if mask is None else values[mask]


def _all_of(mask: Mask | None, count: int) -> Mask:
    return np.ones(count, dtype=np.bool_) if mask is None else mask


@dataclass(frozen=True, eq=False, repr=False)
class FirmSummary:
    """How many firms have a record in the domain, and the distributions of their losses: in all, by size, by query.

    Where a policy is tight, also by the paper's bound.
    """

    firms: int
    counts: dict[Key, Counts]

    @classmethod
    def merged(cls, parts: Sequence["FirmSummary"]) -> "FirmSummary":
        """Return the summary of all buckets."""
        return cls(sum(part.firms for part in parts), Distributions.merged(part.counts for part in parts))


@dataclass(frozen=True, eq=False, repr=False)
class ByOwner:
    """Sends all records that name an owner to buckets by it: also those left out, which a firm's test counts."""

    spec: LossSpec

    def __call__(self, chunk: Chunk) -> Iterator[list[tuple[int, pa.RecordBatch]]]:
        """Yield the rows of each batch, by bucket."""
        return decoded(chunk, self.spec.scan, self._rows)

    def _rows(self, decoder: Decoder, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        records = decoder.records(batch)
        owner = str(self.spec.scan.owner)
        nameless = [mask for column, rule, mask in records.faults if (column, rule) == (owner, Rule.OWNER)]
        owned = np.flatnonzero(~nameless[0]) if nameless else np.arange(len(batch))
        inside = _all_of(in_domain(records, self.spec.scan), len(batch))[owned]
        owners = as_text(batch.column(owner).take(pa.array(owned))).dictionary_encode()
        of_row = np.asarray(owners.indices)
        columns = {
            OWNER: owners.dictionary_decode(),
            INSIDE: inside.astype(np.int64),
            KEPT: _all_of(records.kept(self.spec.scan), len(batch))[owned].astype(np.int64),
        }
        for number, codes in enumerate(records.keys):
            columns[_key(number)] = np.where(inside, codes.codes()[owned], np.int32(OUTSIDE))
        rows = pa.record_batch(columns | {name: values[owned] * inside for name, values in records.values.items()})
        return in_buckets(rows, buckets_of(owners.dictionary, BUCKETS)[of_row])


@dataclass(frozen=True, eq=False, repr=False)
class FirmTask:
    """Counts the losses of a bucket's firms, and writes them in the order of their names to `folder`, if any.

    A row for each firm: its name, its records in the domain, each query's influence and loss, their sum.
    """

    spec: LossSpec
    folder: Path | None

    def __call__(self, bucket: int, batches: Iterable[pa.RecordBatch]) -> FirmSummary:
        """Return the summary of all firms of a bucket."""
        rows = pa.Table.from_batches(batches).combine_chunks()
        _, of_row = distinct(rows.column(OWNER).chunk(0))
        in_firm = np.bincount(of_row, rows.column(INSIDE).to_numpy())
        rows = rows.filter(pa.array(in_firm[of_row] > 0)).combine_chunks()  # of firms in the domain
        if not len(rows):
            return FirmSummary(0, {})
        firms, of_row = distinct(rows.column(OWNER).chunk(0))
        columns = {name: rows.column(name).to_numpy() for name in rows.column_names if name != OWNER}
        kept = np.bincount(of_row, columns[KEPT], len(firms)).astype(np.int64)
        tested = kept, np.bincount(of_row, minlength=len(firms)) - kept
        counts = Distributions()
        stated, paper = [], []
        for number, query in enumerate(self.spec.queries):
            met = self._rows(number, columns, of_row, len(firms))
            stated.append(_count_firms(counts, family.QUERY, number, query, met))
            bound = self.spec.paper_queries.get(number)
            paper.append(stated[-1] if bound is None else _count_firms(counts, family.PAPER_QUERY, number, bound, met))
        sizes, records = self._sizes(columns, of_row, len(firms)), np.bincount(of_row, columns[INSIDE]).astype(np.int64)
        total = _total(self.spec, [losses for _, losses in stated], tested)
        _count_total(counts, (family.TOTAL, family.SIZE), total, sizes)
        if self.spec.paper_queries:
            by_paper = _total(self.spec, [losses for _, losses in paper], tested)
            _count_total(counts, (family.PAPER_TOTAL, family.PAPER_SIZE), by_paper, sizes)
        if self.folder is not None:
            of_queries = dict(zip(_columns(self.spec), [column for pair in stated for column in pair], strict=True))
            file = RowFile(self.folder / f"part-{bucket:05d}.parquet")
            file.add(pa.table({"owner": firms, "records": records, **of_queries, "loss": total}))
            file.close()
        return FirmSummary(len(firms), counts.counts())

    def _rows(self, number: int, columns: dict[str, Int64s], of_row: Int64s, firms: int) -> UnitRows:
        query, cells = self.spec.queries[number], self.spec.tables[number].cells
        codes = {key: columns[_key(key)] for key in query.part_of}
        parts = np.zeros(len(of_row), dtype=np.int64)
        for key, of_code in query.part_of.items():
            parts += of_code[np.maximum(codes[key], -1)]
        of_cell = cells.of_codes(codes)
        met = np.flatnonzero((parts >= 0) & (of_cell >= 0))
        return UnitRows(firms, of_row[met], of_cell[met], parts[met], np.abs(columns[query.addend][met]))

    def _sizes(self, columns: dict[str, Int64s], of_row: Int64s, firms: int) -> Int64s | None:
        """Return the class of each firm's size; None where no measure gives it."""
        if self.spec.size is None:
            return None
        sizes = np.zeros(firms, dtype=np.int64)
        np.add.at(sizes, of_row, np.minimum(np.abs(columns[self.spec.size.name]), LARGEST_SIZE))
        return self.spec.size_class(sizes)


def _count_total(counts: Distributions, families: tuple[str, str], total: Floats, sizes: Int64s | None) -> None:
    counts.count(families[0], 0, total)
    if sizes is not None:
        counts.count_groups(families[1], sizes, total)


def _count_firms(
    counts: Distributions, kind: str, number: int, query: QueryLoss, rows: UnitRows
) -> tuple[Floats, Floats]:
    """Return each firm's influence on a query and its loss, and count the losses of those that are in its cells."""
    of_firms = unit_losses(query, rows)
    in_query = np.zeros(rows.count, dtype=np.bool_)
    in_query[rows.units] = True
    counts.count(kind, number, of_firms[1][in_query])
    return of_firms


def _columns(spec: LossSpec) -> list[str]:
    return [f"{kind}_{query.name}" for query in spec.queries for kind in ("influence", "loss")]
