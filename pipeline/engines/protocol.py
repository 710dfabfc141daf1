"""What prdp needs of an engine: the totals and staged tables of a release, and any task over items.

A release uses an engine as `pipeline.engines` opens it by name. What its workers run is `tasks.py`; grouping
by a key without a public numbering is `grouped` below, for every engine alike.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.base.errors import PrdpError
from pipeline.engines.totals import Layout, blocks_of
from pipeline.engines.writers import Block
from pipeline.microdata.source import Chunk, Piece
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal, pack_batch, staging_errors, unpack_batch
from pipeline.storage.staging import Staging
from udfs.noise.keystream import SecretKey
from udfs.records.sums import UNCOUNTED, RecordCounts

Item = TypeVar("Item")
Result = TypeVar("Result")


class TaskFailed(PrdpError):
    """A task of an engine failed; the message names the kind of failure and no value."""


class Each(Protocol):
    """Runs a task over items, as `Engine.each`."""

    def __call__(self, task: Callable[[Item], Result], items: Sequence[Item], counted: str = "") -> list[Result]: ...


@dataclass(frozen=True)
class Destination:
    """Where the files of table number `table` of a layout go, and what they say of it."""

    table: int
    folder: Location
    notes: Mapping[str, str] = field(default_factory=dict)


class Totals(Protocol):
    """The totals of all tables of a layout, materialised wherever the engine keeps them; no repr shows them.

    They are exact, and held at ±(2⁶³ − 1) steps once all is added up.
    """

    def stage(self, places: Sequence[Destination], key: SecretKey) -> None:
        """Write the files of tables that follow each other: their cells' values, released under `key`, and notes.

        Reads the totals and no microdata.
        """

    @property
    def records(self) -> RecordCounts:
        """How many records are in the totals, and how many were left out: confidential, as the totals are."""

    def over(self, table: int, task: Callable[[Block], Result]) -> list[Result]:
        """Return the task's result for the exact totals of each file of a table, in order; results are small.

        A block's path is the name of its file. For diagnostics alone: what the task returns is confidential.
        """


class PinnedTable(Protocol):
    """A table of an engine's catalog, fixed to its contents at the time it was looked up."""

    @property
    def name(self) -> str:
        """Its full name."""

    def schema(self, columns: Sequence[str]) -> pa.Schema:
        """Return the types of columns; raises PlanError, which names the table's columns, where one is missing."""

    def pin(self) -> str:
        """Return the digest of what ties the table to its records, as it is now."""

    def seal(self, columns: Sequence[str], folder: Location, seal: Seal) -> list[str]:
        """Write the rows' columns, sealed, into a private folder that all workers reach; return the names of files."""


Input = Sequence[Chunk] | PinnedTable


def is_loopback(host: str) -> bool:
    """Whether a host, a name or an address, is this machine alone."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def counted_as(name: str, microdata: object) -> str:
    """Return the name under which tasks over microdata are counted in the log; "" where they are not.

    The pieces of a user's files follow from names, sizes and row groups; those that a run made itself, in buckets of
    records or from a DataFrame, from the records.
    """
    chunks = [item for item in microdata if isinstance(item, tuple)] if isinstance(microdata, Sequence) else []
    own = any(isinstance(piece, Piece) and piece.seal is not None for chunk in chunks for piece in chunk)
    return "" if own else name


class Engine(Protocol):
    """Runs the pieces of a release, in any order, any number of times: the results are the same bytes."""

    @property
    def name(self) -> str:
        """The engine's name in release.json."""

    @property
    def driver_moves(self) -> bool:
        """Whether the cluster picks the driver's machine, so that its local files are not those of the caller's."""

    @property
    def pickles_late(self) -> bool:
        """Whether mechanisms are pickled no earlier than noise is drawn; else `totals` does it, with their tables."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions that release.json names."""

    def table(self, name: str) -> PinnedTable:
        """Return a table of the engine's catalog; raises PlanError where there is none that could be pinned."""

    def totals(self, microdata: Input, layout: Layout, scratch: Staging, before: RecordCounts = UNCOUNTED) -> Totals:
        """Return the totals over all chunks, or over a table of this engine, read once; cells without records are 0.

        `scratch` is a private folder, not made yet, for what totals need on disk; the caller destroys it after their
        last use. `before`: records that were counted before this scan, which the totals' counts include.

        Raises MicrodataError, which names every broken rule and no value; PlanError where a column is missing, and
        ContractBroken where a file holds what is no record (ColumnUnfit: a column of another type).
        """

    def each(self, task: Callable[[Item], Result], items: Sequence[Item], counted: str = "") -> list[Result]:
        """Return the task's result for every item, in the items' order; tasks run in parallel, and maybe repeatedly.

        Task, items and results are pickled; results are small, since the driver holds all of them. A file that a task
        writes must appear at once and with the same contents each time.

        The log counts those that are done under the name `counted`; "" where the number of items follows from records
        (`counted_as`). Raises PrdpError and ContractBroken as the task did, and TaskFailed, which names the kind alone,
        of any other error.
        """

    def close(self) -> None:
        """End what the engine started; it is not used afterwards."""


@dataclass(frozen=True, eq=False, repr=False)
class DriverTotals:
    """Totals as arrays of this process, one a table in key order, for engines whose sums end in the driver.

    `write` releases and writes blocks under a key; `each` runs tasks without sending the totals anywhere.
    """

    layout: Layout
    of_table: tuple[NDArray[np.int64], ...]
    records: RecordCounts
    write: Callable[[Sequence[Block], SecretKey], None]
    each: Each

    def stage(self, places: Sequence[Destination], key: SecretKey) -> None:
        """Release and write the blocks of tables."""
        blocks = [
            replace(block, notes=place.notes)
            for place in places
            for block in blocks_of(self.layout.tables[place.table], self.of_table[place.table], place.folder)
        ]
        self.write(blocks, key)

    def over(self, table: int, task: Callable[[Block], Result]) -> list[Result]:
        """Return the task's result for each block of a table."""
        return self.each(task, blocks_of(self.layout.tables[table], self.of_table[table], LocalPath(Path())), "files")


# Grouping by a key that has no public numbering, such as the owner: rows to buckets, then one bucket after the other.
#
#     items ─► split: rows of each bucket ─► sealed, in one file a part of an item ─► merge: all rows of one bucket
#
# Memory is that of one item's part, or of one bucket. What lies on disk in between is sealed under a key that ends with
# the run: a run that is killed leaves nothing that can be read.

Splits = Callable[[Item], Iterable[Iterable[tuple[int, pa.RecordBatch]]]]
Merges = Callable[[int, Iterator[pa.RecordBatch]], Result]


@dataclass(frozen=True, repr=False)
class Segment:
    """Where rows of one bucket lie: in a file's bytes `first` … `end` − 1.

    It has no repr: the number of rows is confidential, and engines log the arguments of failed tasks.
    """

    bucket: int
    file: str
    first: int
    end: int


@dataclass(frozen=True, eq=False, repr=False)
class _Split(Generic[Item]):
    split: Splits[Item]
    folder: Location
    seal: Seal

    def __call__(self, numbered: tuple[int, Item]) -> list[Segment]:
        number, item = numbered
        return [
            segment for part, rows in enumerate(self.split(item)) for segment in self._write(f"{number}-{part}", rows)
        ]

    def _write(self, file: str, rows: Iterable[tuple[int, pa.RecordBatch]]) -> list[Segment]:
        segments: list[Segment] = []
        sealed: list[bytes] = []
        for bucket, batch in rows:
            first = segments[-1].end if segments else 0
            # sealed rows are bound to this name: no other bucket's or file's are accepted for them
            data = self.seal.encrypt(f"{file}:{bucket}", pack_batch(batch))
            segments.append(Segment(bucket, file, first, first + len(data)))
            sealed.append(data)
        with staging_errors("the rows in buckets"):
            (self.folder / file).write(*sealed)
        return segments


@dataclass(frozen=True, eq=False, repr=False)
class _Merge(Generic[Result]):
    merge: Merges[Result]
    folder: Location
    seal: Seal

    def __call__(self, group: tuple[int, Sequence[Segment]]) -> Result:
        bucket, segments = group
        return self.merge(bucket, map(self._read, segments))

    def _read(self, segment: Segment) -> pa.RecordBatch:
        with (self.folder / segment.file).open() as file:
            file.seek(segment.first)
            data = file.read(segment.end - segment.first)
        return unpack_batch(self.seal.decrypt(f"{segment.file}:{segment.bucket}", data))


def in_buckets(rows: pa.RecordBatch, buckets: NDArray[np.int64]) -> list[tuple[int, pa.RecordBatch]]:
    """Return the rows of each bucket that has any, in their order; `buckets` (≥ 0) holds each row's bucket."""
    sorted_rows = rows.take(pa.array(np.argsort(buckets, kind="stable")))
    ends = np.cumsum(np.bincount(buckets)).tolist()
    cuts = enumerate(zip([0, *ends], ends, strict=False))
    return [(bucket, sorted_rows.slice(first, end - first)) for bucket, (first, end) in cuts if end > first]


def grouped(
    each: Each, split: Splits[Item], items: Sequence[Item], merge: Merges[Result], scratch: Staging
) -> list[Result]:
    """Return the result of `merge` for every bucket that has rows, in the order of the buckets' numbers.

    `each` is an engine's. `split` yields (bucket, its rows) for each part of an item, each bucket once a part; `merge`
    gets a bucket's number and rows, in the order of items and parts. How many items there are is logged; which buckets
    have rows is not. `scratch`: a private folder, not made yet, that all workers share; the caller destroys it.
    """
    scratch.create()
    seal = Seal.fresh()
    buckets: dict[int, list[Segment]] = defaultdict(list)
    for segments in each(_Split(split, scratch.path, seal), list(enumerate(items)), counted_as("reading", items)):
        for segment in segments:
            buckets[segment.bucket].append(segment)
    return each(_Merge(merge, scratch.path, seal), sorted(buckets.items()))
