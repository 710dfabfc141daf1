"""What Spark's workers do. A task takes Arrow batches of small rows and yields such rows: never a row a cell.

Sums by the cells of a base travel in *slices* of SLICE_CELLS cells, totals in the files of the tables. Both are packed
into one row each, so that Spark moves, groups and encrypts them without looking in, and all arithmetic is the kernels'.
Tasks give the same bytes however often they run and on whichever worker.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.engines.protocol import NoiseTask, SumTask, require_same_code
from pipeline.engines.spark_failures import Guarded
from pipeline.microdata.source import Chunk
from pipeline.plan.cells import LIMB, LOW, Int64s, RollUp, joined
from pipeline.storage.files import Seal, pack, unpack
from pipeline.storage.location import Place
from pipeline.tables.files import FILE_CELLS, Block, ranges
from pipeline.tables.totals import Layout, Table
from udfs.noise.keystream import SecretKey
from udfs.records.sums import CELL, ExactSums, sum_batches, to_frame

SLICE_CELLS = 1 << 16
BROKEN = -1  # the slice of the cells that stand for broken rules
PACKED = "place long, packed binary"  # a slice's or a file's place, and numbers of it
DONE = "place long, said long"
WHOLE, BEYOND = 0, 1  # what is said of a sealed slice or file; of BROKEN: the cells

Said = Iterator[tuple[int, int]]
Packed = Iterator[tuple[int, bytes]]


class Broadcast(Protocol):
    """Bytes that Spark ships to each worker once."""

    @property
    def value(self) -> bytes:
        """The bytes."""


@dataclass(frozen=True, eq=False)
class Shared:
    """A layout, which is public, as bytes that Spark ships: of arrays PySpark cannot make an encrypted broadcast."""

    pickled: Broadcast

    @property
    def layout(self) -> Layout:
        """The layout, read anew."""
        layout: Layout = pickle.loads(self.pickled.value)
        return layout


@dataclass(frozen=True, eq=False)
class Files:
    """All files of a layout's tables, numbered: a file's number is its *place*."""

    tables: tuple[Table, ...]

    @cached_property
    def first(self) -> list[int]:
        """The place of each table's first file, and last the number of all."""
        return list(accumulate((len(list(ranges(table.cells.size))) for table in self.tables), initial=0))

    @cached_property
    def _all(self) -> list[tuple[Table, str, int, int]]:
        return [(table, *cut) for table in self.tables for cut in ranges(table.cells.size)]

    def at(self, place: int) -> tuple[Table, str, int, int]:
        """Return the table of a file, its name, its first cell and its end."""
        return self._all[place]


@dataclass(frozen=True, eq=False, repr=False)
class Vault:
    """Where a run's sums and totals lie sealed: a private place that all workers reach."""

    folder: Place
    seal: Seal

    def write(self, kind: str, place: int, columns: dict[str, Int64s]) -> None:
        """Seal columns under a kind and a place."""
        self.seal.write(self.folder / f"{kind}-{place}", columns)

    def read(self, kind: str, place: int) -> dict[str, Int64s]:
        """Return what was sealed there."""
        return self.seal.read(self.folder / f"{kind}-{place}")


@dataclass(frozen=True, eq=False, repr=False)
class SumChunks(Guarded[pa.RecordBatch]):
    """Sums chunks, given by their numbers, into slices of every base's cells."""

    code: str
    shared: Shared
    chunks: Sequence[Chunk]

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each chunk's slices."""
        require_same_code(self.code)
        add = SumTask(self.shared.layout.spec, self.code)
        for number in _numbers(batches):
            yield from _sliced(add(self.chunks[number]))


@dataclass(frozen=True, eq=False, repr=False)
class SumRecords(Guarded[pa.RecordBatch]):
    """Sums the records that Spark itself read, a partition of a table, into slices of every base's cells."""

    code: str
    shared: Shared

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the partition's slices."""
        require_same_code(self.code)
        yield from _sliced(sum_batches(batches, self.shared.layout.spec))


@dataclass(frozen=True, eq=False, repr=False)
class AddSlices(Guarded[pa.RecordBatch]):
    """Adds up the slices of all chunks, given in the order of their places, and seals them; says what is broken."""

    code: str
    shared: Shared
    vault: Vault

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield (place, WHOLE) for each sealed slice, and (BROKEN, cell) for each broken rule."""
        require_same_code(self.code)
        addends = self.shared.layout.spec.addends
        return _said(pair for place, parts in _grouped(batches) for pair in self._added(place, addends, parts))

    def _added(self, place: int, addends: tuple[str, ...], parts: Iterator[dict[str, Int64s]]) -> Said:
        if place == BROKEN:
            yield from ((BROKEN, cell) for cell in sorted({int(c) for part in parts for c in part[CELL]}))
            return
        start = place * SLICE_CELLS
        sums = ExactSums(SLICE_CELLS, addends)
        for part in parts:
            for addend in addends:
                sums.add(addend, part[CELL] - start, part[addend])
        frame = to_frame(sums, ())
        cells = frame[CELL].to_numpy()
        yield from ((BROKEN, int(cell)) for cell in cells[cells < 0])
        kept = {name: frame[name].to_numpy()[cells >= 0] for name in addends}
        self.vault.write("sums", place, kept | {CELL: cells[cells >= 0] + start})
        yield place, WHOLE


@dataclass(frozen=True, eq=False, repr=False)
class RollUpSlices(Guarded[pa.RecordBatch]):
    """Rolls sealed slices, given by their numbers in a list, up to the cells of every table."""

    code: str
    shared: Shared
    vault: Vault
    slices: Sequence[int]

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield what each slice adds to each file."""
        require_same_code(self.code)
        layout = self.shared.layout
        first = Files(layout.tables).first
        roll_ups = [RollUp.of(table.base, table.cells) for table in layout.tables]
        for number in _numbers(batches):
            sums = self.vault.read("sums", self.slices[number])
            for table, roll_up, files in zip(layout.tables, roll_ups, first, strict=False):
                offset = layout.spec.offsets[table.base_number]
                yield from _packed(_rolled_up(sums, table, roll_up, offset, files))


@dataclass(frozen=True, eq=False, repr=False)
class AddFiles(Guarded[pa.RecordBatch]):
    """Adds up what slices add to files, given in the order of their places, and seals the files' exact totals."""

    code: str
    shared: Shared
    vault: Vault

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield (place, WHOLE) for each sealed file, (place, BEYOND) where a total lies beyond 63 bits."""
        require_same_code(self.code)
        files = Files(self.shared.layout.tables)
        return _said((place, self._added(place, files, parts)) for place, parts in _grouped(batches))

    def _added(self, place: int, files: Files, parts: Iterator[dict[str, Int64s]]) -> int:
        _, _, first, end = files.at(place)
        high, low = np.zeros(end - first, dtype=np.int64), np.zeros(end - first, dtype=np.int64)
        for part in parts:  # |high| < 2⁴⁸ and low < 2³² in each: for 2¹⁵ slices, 2³¹ cells, no sum leaves 63 bits
            high[part["cell"] - first] += part["high"]  # each cell stands once in a part
            low[part["cell"] - first] += part["low"]
        try:
            totals = joined(high, low)
        except OverflowError:
            return BEYOND
        self.vault.write("totals", place, {"total": totals})
        return WHOLE


def _numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[dict[str, Int64s]]]]:
    """Yield each place and what is packed for it, from rows in the order of places; one row is in memory at a time."""
    rows = ((place.as_py(), packed.as_py()) for batch in batches for place, packed in zip(*batch.columns, strict=True))
    for place, group in groupby(rows, key=lambda row: row[0]):
        yield place, (unpack(packed) for _, packed in group)


def _sliced(frame: pd.DataFrame) -> Iterator[pa.RecordBatch]:
    """Yield a frame of sums in slices, its broken rules in a slice of their own."""
    columns = {name: frame[name].to_numpy() for name in frame.columns}
    return _packed(_cut(columns, np.maximum(columns[CELL] // SLICE_CELLS, BROKEN)))


def _cut(columns: dict[str, Int64s], places: Int64s) -> Packed:
    """Yield each place with its rows packed; `places` ascend."""
    ends = np.flatnonzero(np.append(places[1:] != places[:-1], len(places) > 0)) + 1
    for start, end in zip([0, *ends], ends, strict=False):
        yield int(places[start]), pack({name: column[start:end] for name, column in columns.items()})


def _rolled_up(sums: dict[str, Int64s], table: Table, roll_up: RollUp, offset: int, files: int) -> Packed:
    """Yield what a slice adds to each file of a table, each cell once; `files` is the place of the table's first."""
    begin, end = np.searchsorted(sums[CELL], (offset, offset + table.base.size))
    cells = roll_up.cells(sums[CELL][begin:end] - offset)
    values = sums[table.addend][begin:end]
    counted = (cells >= 0) & (values != 0)
    found, of = np.unique(cells[counted], return_inverse=True)
    high, low = np.zeros(len(found), dtype=np.int64), np.zeros(len(found), dtype=np.int64)
    np.add.at(high, of, values[counted] >> LIMB)
    np.add.at(low, of, values[counted] & LOW)
    columns = {"cell": found, "high": high + (low >> LIMB), "low": low & LOW}
    return _cut(columns, files + found // FILE_CELLS)


def _packed(rows: Packed) -> Iterator[pa.RecordBatch]:
    for place, packed in rows:
        yield pa.record_batch({"place": pa.array([place], pa.int64()), "packed": pa.array([packed], pa.binary())})


def _said(pairs: Iterable[tuple[int, int]]) -> Iterator[pa.RecordBatch]:
    for place, said in pairs:
        yield pa.record_batch({"place": pa.array([place], pa.int64()), "said": pa.array([said], pa.int64())})


# What Spark's workers do with totals that are materialised, and with items of any kind: functions of pandas frames.
#
# A frame holds numbers, of files or of items; what is done for each of them is whole arrays at a time.


@dataclass(frozen=True, eq=False, repr=False)
class SealedFiles:
    """The exact totals of one table's files, given by their numbers in it; a file without sealed ones is all zero."""

    shared: Shared
    vault: Vault
    table: int
    sealed: frozenset[int]

    def blocks(self, numbers: Iterable[int], folder: Place) -> Iterator[tuple[int, Block]]:
        """Yield each number and its block, whose file lies in `folder`."""
        files = Files(self.shared.layout.tables)
        for number in numbers:
            place = files.first[self.table] + number
            table, name, first, end = files.at(place)
            totals = self.vault.read("totals", place)["total"] if place in self.sealed else np.zeros(end - first, int)
            yield number, table.block(first, end, totals, folder / name)


@dataclass(frozen=True, eq=False, repr=False)
class StageFiles(Guarded[pd.DataFrame]):
    """Releases and writes files of one table, given by their numbers in it: a vectorised function of pandas frames.

    The key is part of the task itself, which Spark encrypts where it stores or sends it (spark_session.py).
    """

    code: str
    files: SealedFiles
    folder: Place
    key: SecretKey

    def rows(self, batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield the number of each written file, as its place, and how many rows it has."""
        require_same_code(self.code)
        write = NoiseTask(self.code)
        for number, block in self.files.blocks(_ids(batches), self.folder):
            written = write(block, key=self.key)
            yield pd.DataFrame({"place": number, "said": written["rows"]})


@dataclass(frozen=True, eq=False, repr=False)
class OverFile:
    """Runs a task on the totals of one file of a table, given by its number in it."""

    files: SealedFiles
    task: Callable[[Block], Any]

    def __call__(self, number: int) -> Any:
        """Return what the task makes of the file's block."""
        ((_, block),) = self.files.blocks([number], Path())
        return self.task(block)


@dataclass(frozen=True, eq=False, repr=False)
class EachItem(Guarded[pd.DataFrame]):
    """Runs a task over items, given by their numbers: a vectorised function of pandas frames."""

    task: Callable[[Any], Any]
    items: Sequence[Any]

    def rows(self, batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Yield each item's number, as its place, and its pickled result."""
        for number in _ids(batches):
            yield pd.DataFrame({"place": [number], "packed": [pickle.dumps(self.task(self.items[number]))]})


def _ids(frames: Iterable[pd.DataFrame]) -> Iterator[int]:
    return (int(number) for frame in frames for number in frame["id"])
