"""Grouping by a key that has no public numbering, such as the owner: rows to buckets, then one bucket after the other.

    items ─► split: rows of each bucket ─► sealed, in one file a part of an item ─► merge: all rows of one bucket

Memory is that of one item's part, or of one bucket. What lies on disk in between is sealed under a key that ends with
the run: a run that is killed leaves nothing that can be read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.engines.protocol import Each, Item, Result, counted_as
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal, pack_batch, staging_errors, unpack_batch
from pipeline.storage.staging import Staging

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
