"""Grouping by a key that has no public numbering, such as the owner: rows to buckets, then one bucket after the other.

    items ─► split: rows of each bucket ─► sealed, in one file a part of an item ─► merge: all rows of one bucket

Every engine does it by its own verb `each`. Memory is that of one item's part, or of one bucket. What lies on disk in
between is sealed under a key that ends with the run: a run that is killed leaves nothing that can be read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.engines.sealed import Seal, pack_batch, put, unpack_batch
from pipeline.storage import Place, opened

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
