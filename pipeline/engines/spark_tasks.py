"""What Spark's workers do. A task takes batches of small rows and yields such rows: never a row a cell.

Sums by the cells of a base travel in *slices* of SLICE_CELLS cells, totals in the files of the tables. Both are packed
into one row each, under the *index* of the slice or file, so that Spark moves, groups and encrypts them without looking
in, and all arithmetic is the kernels'. Tasks give the same bytes however often they run and on whichever worker. They
are functions of Arrow batches up to the sealed totals, and of pandas frames of file or item numbers from there on.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from pipeline.engines.protocol import Destination
from pipeline.engines.tasks import Guarded, NoiseTask, SumTask
from pipeline.engines.totals import Layout, Table
from pipeline.engines.writers import FILE_CELLS, Block, ranges
from pipeline.microdata.source import Chunk
from pipeline.plan.domain.cells import Int64s, RollUp
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal, pack, unpack
from udfs.noise.keystream import SecretKey
from udfs.numbers.arrays import Wide
from udfs.records.contract import text_in_utf8
from udfs.records.sums import CELL, HIGH, ExactSums, Frame, RecordCounts, broken_of, counts_of, sum_batches, to_frame

SLICE_CELLS = 1 << 16
BROKEN = -1  # the index of the slice of cells that stand for broken rules, and for the counts of records
SEALED = 0  # the outcome for what is sealed; for a broken rule its cell, below 0; for a written file its rows


def loaded(numbers: Iterable[int]) -> None:
    """Do nothing: a worker that was sent this has loaded this module."""


@dataclass(frozen=True, eq=False, repr=False)
class Carried:
    """Bytes that travel within each task, where Spark ships none."""

    value: bytes


@dataclass(frozen=True, eq=False)
class Shared:
    """A layout, which is public, as bytes that Spark ships: of arrays PySpark cannot make an encrypted broadcast."""

    pickled: Any  # Spark's broadcast, or what is Carried

    @property
    def layout(self) -> Layout:
        """The layout, read anew."""
        layout: Layout = pickle.loads(self.pickled.value)
        return layout


@dataclass(frozen=True, eq=False)
class Files:
    """All files of a layout's tables; a file's index counts through all tables."""

    tables: tuple[Table, ...]

    @cached_property
    def first(self) -> list[int]:
        """The index of each table's first file, and last the number of all files."""
        return list(accumulate((len(list(ranges(table.cells.size))) for table in self.tables), initial=0))

    @cached_property
    def all(self) -> list[tuple[Table, str, int, int]]:
        """Of each file its table, its name, its first cell and its end."""
        return [(table, *cut) for table in self.tables for cut in ranges(table.cells.size)]


@dataclass(frozen=True, eq=False, repr=False)
class Vault:
    """Where a run's totals lie sealed: a private folder that all workers reach."""

    folder: Location
    seal: Seal

    def write(self, kind: str, index: int, columns: dict[str, Int64s]) -> None:
        """Seal columns under a kind and an index."""
        self.seal.write(self.folder / f"{kind}-{index}", columns)

    def read(self, kind: str, index: int) -> dict[str, Int64s]:
        """Return the columns that were sealed under a kind and an index."""
        return self.seal.read(self.folder / f"{kind}-{index}")

    def write_counts(self, records: RecordCounts) -> None:
        """Seal the counts of all records."""
        self.write("records", 0, {name: np.array([count]) for name, count in vars(records).items()})

    def counts(self) -> RecordCounts:
        """Return the counts that were sealed; none where no task had a record to count."""
        if not (self.folder / "records-0").exists():
            return RecordCounts()
        return RecordCounts(**{name: int(count[0]) for name, count in self.read("records", 0).items()})


@dataclass(frozen=True, eq=False, repr=False)
class SumChunks(Guarded[pa.RecordBatch]):
    """Sums chunks, by their numbers, into slices of every base's cells; yields each chunk's slices."""

    code: str
    shared: Shared
    chunks: Sequence[Chunk]

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        add = SumTask(self.shared.layout.spec, self.code)
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            yield from _slices(add(self.chunks[number]))


@dataclass(frozen=True, eq=False, repr=False)
class SumRecords(Guarded[pa.RecordBatch]):
    """Sums the records that Spark itself read, a partition of a table, into slices of every base's cells."""

    code: str
    shared: Shared

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from _slices(sum_batches(map(text_in_utf8, batches), self.shared.layout.spec))


@dataclass(frozen=True, eq=False, repr=False)
class AddSlices(Guarded[pa.RecordBatch]):
    """Adds up the slices of all chunks, which come in the order of their indexes, and rolls them up to all tables.

    Yields each slice's part of each file, and the slice of what are no sums as it came.
    """

    code: str
    shared: Shared

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = self.shared.layout
        first = Files(layout.tables).first
        roll_ups = [RollUp.of(table.base, table.cells) for table in layout.tables]
        for index, parts in _by_index(batches):
            if index == BROKEN:
                yield from (_row(BROKEN, "packed", pack(part)) for part in parts)
                continue
            sums = self._added(index, layout.spec.addends, parts)
            for table, roll_up, first_file in zip(layout.tables, roll_ups, first, strict=False):
                columns = _rolled_up(sums, table, roll_up, layout.spec.offsets[table.base_number])
                yield from _cut(columns, first_file + columns["cell"] // FILE_CELLS)

    def _added(self, index: int, addends: tuple[str, ...], parts: Iterator[dict[str, Int64s]]) -> dict[str, Int64s]:
        start = index * SLICE_CELLS
        sums = ExactSums(SLICE_CELLS, addends)
        for part in parts:
            sums.add_columns(part[CELL] - start, part)
        frame = to_frame(sums, ())
        return frame | {CELL: frame[CELL] + start}


@dataclass(frozen=True, eq=False, repr=False)
class AddFiles(Guarded[pa.RecordBatch]):
    """Adds up the slices' parts of files, which come in the order of their indexes, and seals the held totals.

    Yields (index, SEALED) for each file and the counts of records, and (BROKEN, cell) for each broken rule.
    """

    code: str
    shared: Shared
    vault: Vault

    def rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = self.shared.layout
        files = Files(layout.tables)
        for index, parts in _by_index(batches):
            if index == BROKEN:
                for cell in self._broken(layout.spec.addends[0], parts):
                    yield _row(BROKEN, "outcome", cell)
            else:
                self._add(index, files, parts)
            yield _row(index, "outcome", SEALED)

    def _broken(self, count: str, parts: Iterator[dict[str, Int64s]]) -> list[int]:
        """Seal the counts of records; return the cells of broken rules, which are below 0."""
        records, broken = RecordCounts(), set[int]()
        for part in parts:
            records += counts_of(part[CELL], part[count])
            broken |= {*broken_of(part[CELL])}
        self.vault.write_counts(records)
        return sorted(broken)

    def _add(self, index: int, files: Files, parts: Iterator[dict[str, Int64s]]) -> None:
        _, _, first, end = files.all[index]
        limbs = np.zeros((4, end - first), dtype=np.int64)  # of Wide: no sum of 2³¹ of them, one a slice, wraps
        for part in parts:
            for sums, limb in zip(limbs, Wide(part["low"], part.get("high")).limbs(), strict=False):
                sums[part["cell"] - first] += limb  # each cell stands once in a part
        self.vault.write("totals", index, {"total": Wide.of_limbs(*limbs).held()})


def _by_index(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, Iterator[dict[str, Int64s]]]]:
    """Yield each index and the unpacked rows of it, which come in the order of indexes; one is in memory at a time."""
    rows = ((index.as_py(), packed.as_py()) for batch in batches for index, packed in zip(*batch.columns, strict=True))
    for index, group in groupby(rows, key=lambda row: row[0]):
        yield index, (unpack(packed) for _, packed in group)


def _slices(frame: Frame) -> Iterator[pa.RecordBatch]:
    """Yield a frame of sums in slices, its broken rules and counts of records in a slice of their own."""
    return _cut(frame, np.maximum(frame[CELL] // SLICE_CELLS, BROKEN))


def _cut(columns: dict[str, Int64s], indexes: Int64s) -> Iterator[pa.RecordBatch]:
    ends = np.flatnonzero(np.append(indexes[1:] != indexes[:-1], len(indexes) > 0)) + 1
    for start, end in zip([0, *ends], ends, strict=False):
        packed = pack({name: column[start:end] for name, column in columns.items()})
        yield _row(int(indexes[start]), "packed", packed)


def _row(index: int, column: str, value: int | bytes) -> pa.RecordBatch:
    kind = pa.int64() if isinstance(value, int) else pa.binary()
    return pa.record_batch({"index": pa.array([index], pa.int64()), column: pa.array([value], kind)})


def _rolled_up(sums: dict[str, Int64s], table: Table, roll_up: RollUp, offset: int) -> dict[str, Int64s]:
    """Return a slice's part of a table: its cells, ascending, each once, and their totals in the words of Wide."""
    begin, end = np.searchsorted(sums[CELL], (offset, offset + table.base.size))
    cells = roll_up.cells(sums[CELL][begin:end] - offset)
    words = [sums[name][begin:end] for name in (table.addend, HIGH + table.addend) if name in sums]
    counted = (cells >= 0) & Wide(*words).nonzero
    distinct, of = np.unique(cells[counted], return_inverse=True)

    def added(limbs: Int64s) -> Int64s:
        totals = np.zeros(len(distinct), dtype=np.int64)
        np.add.at(totals, of, limbs)
        return totals

    total = Wide(*(word[counted] for word in words)).summed(added)
    return {"cell": distinct, "low": total.low} | ({} if total.high is None else {"high": total.high})


@dataclass(frozen=True, eq=False, repr=False)
class SealedFiles:
    """The exact totals of all files, by their indexes; a file without sealed ones is all zero."""

    shared: Shared
    vault: Vault
    sealed: frozenset[int]

    def blocks(self, indexes: Iterable[int]) -> Iterator[Block]:
        """Yield each file's block; its path is the name of the file."""
        files = Files(self.shared.layout.tables)
        for index in indexes:
            table, name, first, end = files.all[index]
            totals = self.vault.read("totals", index)["total"] if index in self.sealed else np.zeros(end - first, int)
            yield table.block(first, end, totals, LocalPath(Path(name)))


@dataclass(frozen=True, eq=False, repr=False)
class StageFiles(Guarded[pd.DataFrame]):
    """Releases and writes files of tables that follow each other: a vectorised function of pandas frames.

    Files are counted from index `first` on. Yields each file's number, and its rows as the outcome. The key is part of
    the task itself, which Spark encrypts where it stores or sends it (spark_session.py).
    """

    code: str
    files: SealedFiles
    places: Sequence[Destination]
    first: int
    key: SecretKey

    def rows(self, batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        write, places, numbers = NoiseTask(self.code), {each.table: each for each in self.places}, list(_ids(batches))
        for number, block in zip(numbers, self.files.blocks(self.first + n for n in numbers), strict=True):
            place = places[block.number]
            rows = write(replace(block, path=str(place.folder / block.path), notes=place.notes), key=self.key)
            yield pd.DataFrame({"index": [number], "outcome": [rows]})


@dataclass(frozen=True, eq=False, repr=False)
class OverFile:
    """Runs a task on the totals of one file, by its index."""

    files: SealedFiles
    task: Callable[[Block], Any]

    def __call__(self, index: int) -> Any:
        """Return the task's result for the file's block."""
        (block,) = self.files.blocks([index])
        return self.task(block)


@dataclass(frozen=True, eq=False, repr=False)
class EachItem(Guarded[pd.DataFrame]):
    """Runs a task over items, by their numbers, on pandas frames; yields these and the pickled results."""

    code: str
    task: Callable[[Any], Any]
    items: Sequence[Any]

    def rows(self, batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for number in _ids(batches):
            yield pd.DataFrame({"index": [number], "packed": [pickle.dumps(self.task(self.items[number]))]})


def _ids(frames: Iterable[pd.DataFrame]) -> Iterator[int]:
    return (int(number) for frame in frames for number in frame["id"])
