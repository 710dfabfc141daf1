"""Dask: the embedded engine. Threads of this process by default, a distributed scheduler by its address."""

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NoReturn

import dask.threaded
from dask.callbacks import Callback
from dask.delayed import Delayed, delayed

from pipeline.build import code_digest
from pipeline.engines.dask_cluster import Cluster
from pipeline.engines.protocol import DriverTotals, Engine, Input, Item, Result, counted_as
from pipeline.engines.tasks import EachTask, NoiseTask, SealedBlock, SumTask
from pipeline.errors import PlanError
from pipeline.log import Log, share
from pipeline.microdata.source import Chunk
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal
from pipeline.storage.staging import Staging
from pipeline.tables.files import Block
from pipeline.tables.totals import Layout, totals_of
from udfs.noise.keystream import SecretKey
from udfs.records.decoding import SumSpec
from udfs.records.sums import CELL, UNCOUNTED, Frame, RecordCounts, add_frames, counts_of, empty_frame

FRAMES_AT_ONCE = 4  # frames that one task adds up: bounds memory, and the depth of the tree


class DaskEngine(Engine):
    """Runs a release on `workers` threads, or on the cluster of a distributed `scheduler` (dask_cluster.py).

    Workers of a cluster must reach the staging folder, to write to it.
    """

    name = "dask"
    driver_moves = False

    def __init__(self, scheduler: str | None = None, workers: int | None = None, log: Log | None = None) -> None:
        self.log = log or Log()
        self.workers = workers or len(os.sched_getaffinity(0))
        self.cluster = None if scheduler is None else Cluster(scheduler)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of Dask and of the libraries that shape the tables."""
        return {name: version(name) for name in ("dask", "numpy", "pyarrow")}

    def table(self, name: str) -> NoReturn:
        """Refuse: Dask has no catalog."""
        raise PlanError(f"dataset.source.table {name}: tables of a catalog are read by --engine spark alone")

    def totals(
        self, microdata: Input, layout: Layout, scratch: Staging, before: RecordCounts = UNCOUNTED
    ) -> DriverTotals:
        """Return the totals, held by this process; on a cluster each task's part lies sealed in `scratch`."""
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
        add = delayed(partial(_added, spec.offsets[-1]), pure=False)
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
        """Return the task's result for every item, in the items' order."""
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
            with Callback(posttask=group.ended), self.log.tasks(group.told):
                return collection.compute(scheduler=dask.threaded.get, num_workers=self.workers)
        return self.cluster.compute(collection, lambda client: self.log.tasks(partial(group.told_by, client)))


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

    def told(self) -> str:
        """Return how many tasks are done."""
        return share(self.name, self.done, self.items) if self.name else ""

    def told_by(self, client: Any) -> str:
        """Return how many tasks are done on a cluster, as its scheduler says."""
        if self.name:
            self.done = client.run_on_scheduler(_done, group=self.group)
        return self.told()


def _done(group: str, dask_scheduler: Any) -> int:
    """Return how many tasks of a group a scheduler has seen to their end."""
    states = dask_scheduler.task_groups[group].states
    return sum(int(states[name]) for name in ("memory", "released", "forgotten"))


def _added(size: int, frames: Sequence[Frame]) -> Frame:
    return add_frames(frames, size)
