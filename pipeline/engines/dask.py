"""Dask: the embedded engine. Threads of this process by default, a distributed scheduler by its address.

Of a cluster: one connection a release, on which what is asked for ends in bounded time. Sums of records and the key
travel between workers and driver; totals lie sealed in staging. So a cluster that is not on this machine must use TLS
and must not spill to disk: anything else is refused (docs/architecture.md, rule 4).
"""

import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from threading import Event
from typing import TYPE_CHECKING, Any, NoReturn

import dask
import dask.threaded
from dask.callbacks import Callback
from dask.delayed import Delayed, delayed

from pipeline.base.canonical import code_digest
from pipeline.base.errors import MicrodataError, PlanError, PrdpError, arg, exhausted, require_package
from pipeline.base.log import Log, share
from pipeline.engines.protocol import DriverTotals, Engine, Input, Item, Result, TaskFailed, counted_as, is_loopback
from pipeline.engines.tasks import EachTask, NoiseTask, SealedBlock, SumTask, without_values
from pipeline.engines.totals import Layout, totals_of
from pipeline.engines.writers import Block
from pipeline.microdata.frames import Frame as Microdata
from pipeline.microdata.frames import FrameColumns, SealedPart, SealPart, table_of
from pipeline.microdata.source import Chunk
from pipeline.storage.location import Location
from pipeline.storage.sealing import Seal
from pipeline.storage.staging import Staging
from udfs.noise.keystream import SecretKey
from udfs.records.contract import ContractBroken
from udfs.records.decoding import SumSpec
from udfs.records.sums import CELL, UNCOUNTED, Frame, RecordCounts, add_frames, counts_of, empty_frame

if TYPE_CHECKING:
    import dask.dataframe as dd
    import pandas as pd

CONNECT_SECONDS = 10
ANSWER_SECONDS = 60  # for a scheduler, or a worker, that is busy
LOOK_SECONDS = 5  # between looks at the workers while they run tasks
FETCH_SECONDS = 600  # to bring a result to the driver
NO_WORKER_SECONDS = 60  # a worker that died is replaced in less, where it is replaced at all
CERTIFICATES = "distributed.comm.tls."
NEEDED = ("ca-file", "client.cert")  # the key may stand in the certificate's file
# Pieces of work travel with their tasks, so that a lost worker loses none of them; Dask would advise otherwise.
ANY_SIZE = {"distributed.admin.large-graph-warning-threshold": "1 TiB"}


class Cluster:
    """The cluster behind a scheduler; nothing is sent to it before `compute`.

    Raises PlanError for an address beyond this machine that is not tls://, and where TLS lacks a certificate.
    """

    def __init__(self, scheduler: str) -> None:
        if not is_local(scheduler) and not scheduler.startswith("tls://"):
            raise PlanError(f"{arg('scheduler', scheduler)}: a cluster beyond this machine must be reached by tls://")
        require_package("distributed", f"{arg('scheduler')} {scheduler}")
        if scheduler.startswith("tls://"):
            _require_certificates(scheduler)
        self.scheduler = scheduler
        self._client: Any = None

    def compute(self, collection: Any, logged: Callable[[Any], AbstractContextManager[None]]) -> Any:
        """Return what a Dask collection comes to, within what `logged` makes of the connection.

        Raises the tasks' own errors, and TaskFailed for a lost cluster: one that has no worker for NO_WORKER_SECONDS,
        or does not answer for ANSWER_SECONDS.
        """
        failure = ""
        try:
            client = self._connected()
            with logged(client):
                return self._computed(client, collection)
        except (PrdpError, ContractBroken):
            raise
        except Exception as error:  # a worker that dies again and again, a scheduler that is lost
            failure, lacking = type(error).__name__, exhausted(error)
        self.close()
        if failure == "KilledWorker":
            failure += ": workers died again and again, perhaps for want of memory"
        raise TaskFailed(
            lacking or f"{arg('scheduler', self.scheduler)}: the cluster gave up ({failure}); see its own logs"
        )

    def close(self) -> None:
        """End the connection, if there is one, whatever has become of its other end."""
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                client.close()

    def _connected(self) -> Any:
        if self._client is None:
            from distributed import Client  # noqa: PLC0415 — a second of imports that threads do not need

            class Bounded(Client):
                def start(self, **options: Any) -> None:  # Dask's own limit leaves out the first words of a talk
                    super().start(callback_timeout=ANSWER_SECONDS, **options)  # type: ignore[no-untyped-call]

            bounded: Any = Bounded
            # A lost connection ends in a line of ours; it would have lines of its own besides.
            logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
            try:
                self._client = bounded(self.scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
            except OSError:
                own = ", or it does not take this certificate" if self.scheduler.startswith("tls://") else ""
                raise PrdpError(f"{arg('scheduler', self.scheduler)}: no Dask scheduler answers there{own}") from None
        return self._client

    def _computed(self, client: Any, collection: Any) -> Any:
        known: set[str] = set()
        _require_safe(client, known)
        with dask.config.set(ANY_SIZE):
            future = client.compute(collection)
        alive = time.monotonic()
        try:
            done = Event()
            future.add_done_callback(lambda _: done.set())
            while not done.wait(LOOK_SECONDS):
                if _require_safe(client, known):
                    alive = time.monotonic()
                elif time.monotonic() - alive > NO_WORKER_SECONDS:
                    raise TaskFailed(
                        f"{arg('scheduler', self.scheduler)}: no worker is left: start workers, and run again"
                    )
            return future.result(timeout=FETCH_SECONDS)
        finally:
            with suppress(Exception):
                future.cancel()


def is_local(address: str) -> bool:
    """Whether an address, scheme://host:port and nothing else, is one of this machine alone."""
    parsed = re.fullmatch(r"(?:[a-z]+://)?(\[[0-9a-f:]+\]|[A-Za-z0-9.-]+):[0-9]+/?", address)
    return address.startswith("inproc://") or (parsed is not None and is_loopback(parsed.group(1)))


def tls_settings() -> dict[str, str | None]:
    """Return what Dask's configuration says of TLS for clients: a file by each key, a certificate itself, or None."""
    return {key: dask.config.get(CERTIFICATES + key, None) for key in ("ca-file", "client.cert", "client.key")}


def _require_certificates(scheduler: str) -> None:
    """Refuse tls:// where Dask's configuration names no certificates for it, or ones that cannot be read."""
    files = tls_settings()
    missing = [CERTIFICATES + key for key in NEEDED if not files[key]]
    if missing:
        raise PlanError(f"{arg('scheduler', scheduler)}: TLS needs certificates: set {', '.join(missing)} for Dask")
    for key, file in files.items():
        if file and "\n" not in file and not os.access(file, os.R_OK):  # else it is the certificate itself
            raise PlanError(f"{arg('scheduler', scheduler)}: {CERTIFICATES}{key}: {file} cannot be read")


def _spills() -> bool:
    """Whether this worker writes what it holds to its disk when memory is short."""
    keys = ("target", "spill")
    return any(dask.config.get(f"distributed.worker.memory.{key}", False) is not False for key in keys)


def _require_safe(client: Any, known: set[str]) -> int:
    """Return the number of workers; refuse a cluster beyond this machine in part without TLS, or that then spills.

    Workers of `known` have answered before; those that do are added. One that does not answer, and is not given up by
    its scheduler either, is a lost cluster's.
    """
    end = time.monotonic() + ANSWER_SECONDS
    while True:
        cluster = client.sync(client.scheduler.identity, n_workers=-1, callback_timeout=ANSWER_SECONDS)
        workers = set(cluster["workers"])
        addresses = [cluster["address"], *workers]
        if all(is_local(address) for address in addresses):
            return len(workers)
        if not all(address.startswith("tls://") for address in addresses):
            raise PrdpError(
                f"{arg('scheduler')}: a part of the cluster lies beyond this machine and is not reached by tls://"
            )
        new = sorted(workers - known)
        if not new:
            return len(workers)
        asked = {"workers": new, "on_error": "return", "callback_timeout": ANSWER_SECONDS}
        answers = client.sync(client.run, _spills, **asked)
        if any(answer is True for answer in answers.values()):
            raise PrdpError(
                f"{arg('scheduler')}: its workers spill to disk unencrypted; set distributed.worker.memory.target and "
                ".spill to false on them"
            )
        known |= {worker for worker, answer in answers.items() if answer is False}
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.1)


FRAMES_AT_ONCE = 4  # frames that one task adds up: bounds memory, and the depth of the tree


class DaskEngine(Engine):
    """Runs a release on `workers` threads, or on the cluster of a distributed `scheduler` (`Cluster`).

    This process holds the totals. Workers of a cluster must reach the staging folder, to write to it; each task's part
    of the totals lies sealed there.
    """

    name = "dask"
    driver_moves = False
    pickles_late = True  # they travel with blocks

    def __init__(self, scheduler: str | None = None, workers: int | None = None, log: Log | None = None) -> None:
        self.log = log or Log()
        self.workers = workers or len(os.sched_getaffinity(0))
        self.cluster = None if scheduler is None else Cluster(scheduler)

    def versions(self) -> Mapping[str, str]:
        return {name: version(name) for name in ("dask", "numpy", "pyarrow")}

    def table(self, name: str) -> NoReturn:
        raise PlanError(f"dataset.source.table {name}: tables of a catalog are read by {arg('engine', 'spark')} alone")

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
            context = copy_context()
            pool = ThreadPoolExecutor(self.workers, initializer=lambda: [each.set(context[each]) for each in context])
            try:
                with Callback(posttask=group.ended), self.log.tasks(group.progress):
                    return collection.compute(scheduler=dask.threaded.get, pool=pool)
            finally:  # after a failure no task goes on, which might write
                pool.shutdown(cancel_futures=True)
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
            sealed: list[SealedPart] = workers.compute(delayed([run(partition) for partition in parts]))
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
