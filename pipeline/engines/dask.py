"""Dask: the embedded engine. Threads of this process by default, a distributed scheduler by its address."""

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NoReturn

import dask.threaded
from dask.callbacks import Callback
from dask.delayed import Delayed, delayed

from pipeline.base.build import code_digest
from pipeline.base.errors import MicrodataError, PlanError
from pipeline.base.log import Log, share
from pipeline.engines.blocks import Block
from pipeline.engines.dask_cluster import Cluster
from pipeline.engines.protocol import DriverTotals, Engine, Input, Item, Result, counted_as
from pipeline.engines.tasks import EachTask, NoiseTask, SealedBlock, SumTask, without_values
from pipeline.engines.totals import Layout, totals_of
from pipeline.microdata.frames import Frame as Microdata
from pipeline.microdata.frames import FrameColumns, SealedPart, SealPart, table_of
from pipeline.microdata.source import Chunk
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal
from pipeline.storage.staging import Staging
from udfs.noise.keystream import SecretKey
from udfs.records.decoding import SumSpec
from udfs.records.sums import CELL, UNCOUNTED, Frame, RecordCounts, add_frames, counts_of, empty_frame

if TYPE_CHECKING:
    import dask.dataframe as dd
    import pandas as pd

FRAMES_AT_ONCE = 4  # frames that one task adds up: bounds memory, and the depth of the tree


class DaskEngine(Engine):
    """Runs a release on `workers` threads, or on the cluster of a distributed `scheduler` (dask_cluster.py).

    This process holds the totals. Workers of a cluster must reach the staging folder, to write to it; each task's part
    of the totals lies sealed there.
    """

    name = "dask"
    driver_moves = False

    def __init__(self, scheduler: str | None = None, workers: int | None = None, log: Log | None = None) -> None:
        self.log = log or Log()
        self.workers = workers or len(os.sched_getaffinity(0))
        self.cluster = None if scheduler is None else Cluster(scheduler)

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("dask", "numpy", "pyarrow")}

    def table(self, name: str) -> NoReturn:
        raise PlanError(f"dataset.source.table {name}: tables of a catalog are read by --engine spark alone")

    def totals(
        self, microdata: Input, layout: Layout, scratch: Staging, before: RecordCounts = UNCOUNTED
    ) -> DriverTotals:
        if not isinstance(microdata, Sequence):
            self.table(microdata.name)
        here = DaskEngine(workers=self.workers, log=self.log)
        frame = self.sums(microdata, layout.spec)
        records = before + counts_of(frame[CELL], frame[layout.spec.addends[0]])
        write = self.stage
        if self.cluster is not None:
            scratch.create()
            write = partial(self._stage_sealed, scratch.path, Seal.fresh())
        return DriverTotals(layout, totals_of(layout, frame), records, write, here.each)

    def sums(self, chunks: Sequence[Chunk], spec: SumSpec) -> Frame:
        """Sum the chunks in parallel, then add the frames up in a tree."""
        if not chunks:
            return empty_frame(spec.addends)
        task = SumTask(spec, code_digest(), uuid.uuid4().hex)
        add = delayed(partial(add_frames, size=spec.offsets[-1]), pure=False)
        group = _Group(counted_as("sums", chunks), len(chunks))
        frames = group.of(task, chunks)
        while len(frames) > 1:
            frames = [add(frames[i : i + FRAMES_AT_ONCE]) for i in range(0, len(frames), FRAMES_AT_ONCE)]
        summed: Frame = self.compute(frames[0], group)
        return summed

    def _stage_sealed(self, folder: Location, seal: Seal, blocks: Sequence[Block], key: SecretKey) -> None:
        """Release and write the blocks on a cluster, whose scheduler gets no totals."""
        self.stage([SealedBlock.of(block, folder / f"{block.number}-{i}", seal) for i, block in enumerate(blocks)], key)

    def stage(self, blocks: Sequence[Block | SealedBlock], key: SecretKey) -> None:
        """Release and write the blocks in parallel."""
        task = NoiseTask(code_digest())
        group = _Group("noise", len(blocks))
        self.compute(delayed(group.of(task, blocks, key=key)), group)

    def each(self, task: Callable[[Item], Result], items: Sequence[Item], counted: str = "") -> list[Result]:
        group = _Group(counted, len(items))
        results: list[Result] = self.compute(delayed(group.of(EachTask(task, code_digest()), items)), group)
        return results

    def close(self) -> None:
        """End the connection to the cluster, if any; another use would begin one anew."""
        if self.cluster is not None:
            self.cluster.close()

    def compute(self, collection: Any, group: "_Group | None" = None) -> Any:
        """Return what a Dask collection comes to, on threads or on a cluster that is safe; log how far `group` is."""
        group = group or _Group("", 0)
        if self.cluster is None:
            # by its function: by its name Dask would load distributed, to ask whether a cluster is there
            with Callback(posttask=group.ended), self.log.tasks(group.progress):
                return collection.compute(scheduler=dask.threaded.get, num_workers=self.workers)
        return self.cluster.compute(collection, lambda client: self.log.tasks(partial(group.of_scheduler, client)))


class _Group:
    """Tasks of one kind over items, counted under a name; "": not counted.

    Dask keeps the name of the group in the keys of its tasks, which are (group, number of the item).
    """

    def __init__(self, name: str, items: int) -> None:
        self.name, self.items, self.done = name, items, 0
        self.group = f"{name or 'task'}-{uuid.uuid4().hex}"

    def of(self, task: Callable[..., Any], items: Sequence[object], **more: object) -> list[Delayed]:
        """Return the task on each item, which travels with it as it is: Dask looks for tasks of its own in none."""
        return [
            delayed(partial(task, item, **more), pure=False)(dask_key_name=(self.group, number))
            for number, item in enumerate(items)
        ]

    def ended(self, key: object, *_: object) -> None:
        """Count a task that ended on a thread; Dask calls this in the thread that gives out tasks."""
        self.done += isinstance(key, tuple) and key[0] == self.group

    def progress(self) -> str:
        """Return how many tasks are done."""
        return share(self.name, self.done, self.items) if self.name else ""

    def of_scheduler(self, client: Any) -> str:
        """Return how many tasks are done on a cluster, as its scheduler says."""
        if self.name:
            self.done = client.run_on_scheduler(_done, group=self.group)
        return self.progress()


def _done(group: str, dask_scheduler: Any) -> int:
    """Return how many tasks of a group a scheduler has seen to their end."""
    states = dask_scheduler.task_groups[group].states
    return sum(int(states[name]) for name in ("memory", "released", "forgotten"))


@dataclass(frozen=True, eq=False, repr=False)
class DaskFrame(Microdata):
    """A Dask DataFrame; each partition is written in a task of the engine, or on threads where that is not Dask."""

    frame: "dd.DataFrame"

    @property
    def names(self) -> Sequence[Any]:
        return list(self.frame.columns)

    def require_types(self, columns: FrameColumns) -> None:
        table_of(self.frame._meta, columns)  # each partition's own are checked when it is written

    def write(self, part: SealPart, engine: Any) -> list[SealedPart]:
        workers = engine if isinstance(engine, DaskEngine) else DaskEngine()
        run = delayed(EachTask(part, code_digest()), pure=False)

        def written() -> list[SealedPart]:
            parts = self.frame[part.columns.all].to_delayed()
            sealed: list[SealedPart] = workers.compute(delayed([run(each) for each in parts]))
            return sealed

        return without_values(  # an error of the frame's own graph may show a value
            written,
            lambda kind: MicrodataError(
                f"data: computing the Dask DataFrame failed ({kind}); compute a part of it to see why"
            ),
            lambda error: type(error).__name__,
        )


def from_parts(read: "Callable[[str], pd.DataFrame]", parts: Sequence[str]) -> "dd.DataFrame":
    """Return a frame with one partition for each of `parts`, at least one, which `read` reads when it is needed."""
    import dask.dataframe as dd  # noqa: PLC0415 — seconds that a release does not need

    frame: dd.DataFrame = dd.from_map(read, list(parts), meta=read(parts[0]).iloc[:0])
    return frame
