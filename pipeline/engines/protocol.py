"""Grouping by a key that has no public numbering, such as the owner: rows to buckets, then one bucket after the other.

    items ─► split: rows of each bucket ─► sealed, in one file a part of an item ─► merge: all rows of one bucket

Every engine does it by its own verb `each`. Memory is that of one item's part, or of one bucket. What lies on disk in
between is sealed under a key that ends with the run: a run that is killed leaves nothing that can be read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.build import code_digest
from pipeline.errors import MicrodataError, PrdpError
from pipeline.microdata.read import read
from pipeline.microdata.source import Chunk, shown
from pipeline.storage.files import Seal, pack_batch, put, unpack_batch
from pipeline.storage.location import Place, opened
from pipeline.storage.staging import Staging
from pipeline.tables.files import Block, write_block
from pipeline.tables.totals import Layout
from udfs.noise.keystream import SecretKey
from udfs.records.contract import ContractBroken
from udfs.records.decoding import Decoder, SumSpec
from udfs.records.sums import sum_batches

Item = TypeVar("Item")
Result = TypeVar("Result")
Splits = Callable[[Item], Iterable[Iterable[tuple[int, pa.RecordBatch]]]]
Merges = Callable[[int, Iterator[pa.RecordBatch]], Result]


class Each(Protocol):
    """The verb of an engine that runs a task over items."""

    def __call__(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return what `task` makes of every item, in the items' order."""


@dataclass(frozen=True, repr=False)
class Segment:
    """Where rows of one bucket lie: in a file's bytes `first` … `end` − 1.

    It has no repr: how many rows there are is confidential, and engines log the arguments of failed tasks.
    """

    bucket: int
    file: str
    first: int
    end: int

    @property
    def name(self) -> str:
        """What its contents are bound to: neither another bucket's rows nor another file's can stand in their place."""
        return f"{self.file}:{self.bucket}"


@dataclass(frozen=True, eq=False, repr=False)
class _Split(Generic[Item]):
    split: Splits[Item]
    folder: Place
    seal: Seal

    def __call__(self, numbered: tuple[int, Item]) -> list[Segment]:
        number, item = numbered
        return [
            segment for part, rows in enumerate(self.split(item)) for segment in self._write(f"{number}-{part}", rows)
        ]

    def _write(self, file: str, rows: Iterable[tuple[int, pa.RecordBatch]]) -> list[Segment]:
        segments: list[Segment] = []
        closed: list[bytes] = []
        for bucket, batch in rows:
            first = segments[-1].end if segments else 0
            data = self.seal.closed(f"{file}:{bucket}", pack_batch(batch))
            segments.append(Segment(bucket, file, first, first + len(data)))
            closed.append(data)
        put(self.folder / file, closed)
        return segments


@dataclass(frozen=True, eq=False, repr=False)
class _Merge(Generic[Result]):
    merge: Merges[Result]
    folder: Place
    seal: Seal

    def __call__(self, group: tuple[int, Sequence[Segment]]) -> Result:
        bucket, segments = group
        return self.merge(bucket, map(self._read, segments))

    def _read(self, segment: Segment) -> pa.RecordBatch:
        with opened(self.folder / segment.file) as file:
            file.seek(segment.first)
            data = file.read(segment.end - segment.first)
        return unpack_batch(self.seal.opened(segment.name, data))


def in_buckets(rows: pa.RecordBatch, buckets: NDArray[np.int64]) -> list[tuple[int, pa.RecordBatch]]:
    """Return the rows of each bucket that has any, in their order; `buckets` (≥ 0) says where each row goes."""
    order = np.argsort(buckets, kind="stable")
    sorted_rows = rows.take(pa.array(order))
    ends = np.cumsum(np.bincount(buckets)).tolist()
    cuts = zip(count(), [0, *ends], ends, strict=False)
    return [(bucket, sorted_rows.slice(first, end - first)) for bucket, first, end in cuts if end > first]


def grouped_by(
    each: Each, split: Splits[Item], items: Sequence[Item], merge: Merges[Result], folder: Place
) -> list[Result]:
    """Return what `merge` makes of the rows of every bucket that has any, in the order of their numbers.

    `split` yields, for each part of an item, (bucket, its rows), each bucket once a part; `merge` gets the rows in the
    order of items and parts. `folder` is private, empty, shared by all workers, and the caller's to destroy.
    """
    seal = Seal.fresh()
    buckets: dict[int, list[Segment]] = defaultdict(list)
    for segments in each(_Split(split, folder, seal), list(enumerate(items))):
        for segment in segments:
            buckets[segment.bucket].append(segment)
    return each(_Merge(merge, folder, seal), sorted(buckets.items()))


# What prdp asks of an engine: a release's totals and staged tables, or any task over items; and the tasks they run.


class TaskFailed(PrdpError):
    """A task of an engine failed; the message names the kind of failure and no value."""


class Totals(Protocol):
    """The exact totals of all tables of a layout, materialised wherever the engine keeps them; no repr shows them."""

    def stage(self, table: int, folder: Place, key: SecretKey) -> None:
        """Write the files of a table, by its number, into `folder`: its cells' released values under `key`.

        It reads the totals and no microdata.
        """

    def over(self, table: int, task: Callable[[Block], Result]) -> list[Result]:
        """Return what `task` makes of the exact totals of each file of a table, in order; results are small.

        A block's path is the name of its file. For diagnostics alone: what the task returns is confidential.
        """


class PinnedTable(Protocol):
    """A table of an engine's catalog, fixed to what it held when it was found."""

    @property
    def name(self) -> str:
        """Its whole name."""

    def pin(self) -> str:
        """Return the digest of what ties the table to its records, as it is now."""


Input = Sequence[Chunk] | PinnedTable


class Engine(Protocol):
    """Runs the pieces of a release, in any order, any number of times: the results are the same bytes."""

    @property
    def name(self) -> str:
        """The engine's name in release.json."""

    def versions(self) -> Mapping[str, str]:
        """Return the versions that release.json names."""

    def table(self, name: str) -> PinnedTable:
        """Return a table of the engine's catalog; raises PlanError where there is none that could be pinned."""

    def totals(self, given: Input, layout: Layout, scratch: Staging) -> Totals:
        """Return the totals over all chunks, or a table of this engine, read once; cells without records are 0.

        What they need on disk lies in `scratch`, a private folder that the caller destroys when they are used up.
        Raises MicrodataError that names every broken rule, or the query with a total beyond 63 bits, and no value;
        ContractBroken where a file cannot hold records.
        """

    def each(self, task: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Return what `task` makes of every item, in the items' order; it runs in parallel, and may run repeatedly.

        Task, items and results are pickled; results are small, since the driver holds all of them. What a task writes
        it must put in place at once and with the same contents each time. Raises what a task raises of prdp's own
        errors, TaskFailed that names the kind of any other.
        """

    def grouped(
        self, split: Splits[Item], items: Sequence[Item], merge: Merges[Result], scratch: Staging
    ) -> list[Result]:
        """Return what `merge` makes of all rows of each bucket that `split` sends some to, in the buckets' order.

        `split` yields, for each part of an item, (bucket, rows) pairs; rows are never on disk unsealed. `scratch` is as
        for `totals`. Raises as `each` does.
        """


def reading(chunk: Chunk, run: Callable[[], Result]) -> Result:
    """Return what `run` makes of a chunk that it reads.

    Raises prdp's own errors as they are, and for any other MicrodataError that names the file and the failure's kind.
    """
    failure = ""
    try:
        return run()
    except (PrdpError, ContractBroken):
        raise
    except Exception as error:  # Arrow's and Python's own messages may show values
        failure = type(error).__name__
    # Outside the handler, so that the value-bearing exception is not kept as context.
    raise MicrodataError(f"microdata {shown(chunk[0].path)}: reading failed ({failure}); check that the file is whole")


def decoded(chunk: Chunk, spec: SumSpec, run: Callable[[Decoder, pa.RecordBatch], Result]) -> Iterator[Result]:
    """Yield what `run` makes of each batch of a chunk; raises as `reading` does."""
    decoder, batches = Decoder(spec), read(chunk, spec)

    def step() -> tuple[Result] | None:
        batch = next(batches, None)
        return None if batch is None else (run(decoder, batch),)

    while (made := reading(chunk, step)) is not None:
        yield made[0]


@dataclass(frozen=True)
class SumTask:
    """Sums one chunk on a worker.

    `run` is unlike any other run's: a cluster names tasks by their arguments, and hands the results of equal ones to
    whoever asks, also those of a run that read the files before they changed. Threads share nothing and need none.
    """

    spec: SumSpec
    code: str
    run: str = ""

    def __call__(self, chunk: Chunk) -> pd.DataFrame:
        """Return the chunk's frame of sums."""
        require_same_code(self.code)
        return reading(chunk, lambda: sum_batches(read(chunk, self.spec), self.spec))


@dataclass(frozen=True)
class NoiseTask:
    """Releases and writes one block on a worker."""

    code: str

    def __call__(self, block: Block, *, key: SecretKey) -> pd.DataFrame:
        """Write the block's file; return a frame of its one row count."""
        require_same_code(self.code)
        failure = ""
        try:
            write_block(block, key)
        except OSError as error:
            failure = error.strerror or type(error).__name__
        except Exception as error:
            failure = type(error).__name__
        if failure:
            raise TaskFailed(f"table {block.query}: writing to staging failed ({failure})")
        return pd.DataFrame({"rows": [block.size]})


@dataclass(frozen=True, eq=False, repr=False)
class EachTask(Generic[Item, Result]):
    """Runs a task on an item on a worker; what it raises shows no value."""

    task: Callable[[Item], Result]
    code: str

    def __call__(self, item: Item) -> Result:
        """Return what the task makes of the item."""
        require_same_code(self.code)
        failure = ""
        try:
            return self.task(item)
        except (PrdpError, ContractBroken):
            raise
        except OSError as error:
            failure = error.strerror or type(error).__name__
        except Exception as error:
            failure = type(error).__name__
        raise TaskFailed(f"a task failed on a worker ({failure})")


def require_same_code(code: str) -> None:
    """Return if this process runs the code whose digest is `code`; raises TaskFailed otherwise."""
    if code_digest() != code:
        raise TaskFailed("a worker runs another build of prdp than the driver: install the same on all machines")
