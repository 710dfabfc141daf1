"""Spark's driver, this process's own or that of a server: what PySpark does not do alike by Java and by Spark Connect.

Of both: how far jobs are, whether any executor is left (where there is none Spark waits for ever), and what a failed
job's error says. By Spark Connect the driver is a server's, at sc://HOST:PORT, and this process sends it plans over
gRPC. The key of noise travels in these plans. So a token is needed, with which PySpark demands TLS of every server but
`localhost`; a server of this machine is also reached without. Executors are known by the tasks that a server reports.
"""

import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event, Thread
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from pipeline.base.errors import PlanError, PrdpError, arg, require_package
from pipeline.base.log import Log, share
from pipeline.engines.protocol import TaskFailed, is_loopback
from pipeline.engines.spark_session import executors, require_answer, require_safe
from pipeline.engines.spark_tasks import Carried
from pipeline.engines.tasks import job_error

GROUP = "spark.jobGroup.id"
LOST_SECONDS = 120  # a cluster that gives new executors does so in less
LOOK_SECONDS = 5
TOKEN = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # that gRPC goes by, for this machine's addresses too
RETRIES = 6  # of a call, for a minute together; PySpark's own go on for ten


class Driver(Protocol):
    """Spark's driver: this process's own, or that of a server."""

    @property
    def parallelism(self) -> int:
        """How many tasks the cluster runs at once, roughly."""

    def require_safe(self) -> None:
        """Return if it lets nothing confidential leave its machine in the clear (`spark_session.require_safe`)."""

    def shipped(self, data: bytes) -> Any:
        """Return what has bytes as its `value` on each worker, for tasks to hold."""

    def working(self, log: Log, stages: Sequence[str]) -> AbstractContextManager[None]:
        """Run this thread's jobs in a block: logged by their stages' names, ended where no executor is left."""


@dataclass(frozen=True, eq=False)
class OwnDriver(Driver):
    """The driver that is the Java of this process."""

    context: SparkContext

    @property
    def parallelism(self) -> int:
        return self.context.defaultParallelism

    def require_safe(self) -> None:
        conf = self.context.getConf()
        require_safe(lambda key: conf.get(key, None))

    def shipped(self, data: bytes) -> Any:
        return self.context.broadcast(data)

    @contextmanager
    def working(self, log: Log, stages: Sequence[str]) -> Iterator[None]:
        master = self.context.master or ""
        watching = nullcontext() if master.partition("[")[0] == "local" else self._watched(master)
        with counted(self.context, log, stages), watching:
            yield

    @contextmanager
    def _watched(self, master: str) -> Iterator[None]:
        context, tag = self.context, f"prdp-{uuid.uuid4().hex}"
        context.addJobTag(tag)
        try:
            with watched(lambda: executors(context) > 0, lambda: context.cancelJobsWithTag(tag), master):
                yield
        finally:
            with suppress(Py4JError, OSError):
                context.removeJobTag(tag)


def is_connect(master: str) -> bool:
    """Whether a master is a server of Spark Connect."""
    return master.startswith("sc://")


def require_address(master: str) -> None:
    """Refuse an address that prdp must not send anything to, before any connection; raises PlanError."""
    _builder(master)


def connected(master: str) -> Any:
    """Return a session of its own at a server whose connection and configuration are safe.

    Raises PlanError where one is not, PrdpError where no server answers, or none that takes the token.
    """
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 — gRPC, an extra
    from pyspark.sql.connect.session import SparkSession  # noqa: PLC0415

    builder = _builder(master)
    host, _, port = builder.endpoint.rpartition(":")
    require_answer(master, host, int(port), "server of Spark Connect")
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")  # the error that follows says so
    session = SparkSession(builder)
    session.client.set_retry_policies([DefaultPolicy(max_retries=1)])
    failure = ""
    try:
        ConnectDriver(session).require_safe()
        session.client.set_retry_policies([DefaultPolicy(max_retries=RETRIES)])
        return session
    except PySparkException as error:
        failure = str(error)
    session.client.close()
    if "UNAUTHENTICATED" in failure:
        raise PrdpError(
            f"{arg('master', master)}: the server does not take the token; set {TOKEN} to the one of the server"
        )
    raise PrdpError(
        f"{arg('master', master)}: the server does not speak Spark Connect, or has no TLS certificate that this "
        "machine trusts (with a token PySpark asks for TLS, but of the name localhost)"
    )


def _builder(master: str) -> Any:
    """Return PySpark's own reading of an address, if it is safe."""
    require_package("grpc", f"{arg('master')} {master.partition(';')[0]}")
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

    if "token=" in master:
        raise PlanError(
            f"{arg('master', master.partition(';')[0])}: a token in the address shows to others; set {TOKEN}"
        )
    try:
        builder = DefaultChannelBuilder(master)
        _ = builder.endpoint
    except (PySparkException, ValueError):
        raise PlanError(f"{arg('master', master)}: an address of Spark Connect is sc://HOST:PORT") from None
    _require_channel(builder, f"{arg('master')} {master}")
    return builder


def _require_channel(builder: Any, where: str) -> None:
    """Refuse a connection that others could read, or to which others could answer."""
    proxied = any(os.environ.get(name) for name in PROXIES)
    if type(builder).__module__.partition(".")[0] != "pyspark":
        raise PlanError(f"{where}: a connection of another program's making: prdp cannot see whether it is encrypted")
    if not builder.token and (proxied or not is_loopback(builder.host)):
        by = "by a proxy" if proxied else "beyond this machine"
        raise PlanError(
            f"{where}: {by} Spark Connect needs a token, and TLS with it: set {TOKEN} here and on the server"
        )


@dataclass(frozen=True, eq=False)
class ConnectDriver(Driver):
    """The driver of a server, as a session of Spark Connect reaches it."""

    session: Any

    @cached_property
    def parallelism(self) -> int:
        # into how many parts Spark cuts by itself
        parts = self.session.range(0, 1 << 16).selectExpr("spark_partition_id()").distinct()
        return int(parts.count())

    @property
    def address(self) -> str:
        """The server's address, without its parameters."""
        return f"sc://{self.session.client.host}"

    def require_safe(self) -> None:
        # a server needs all that a cluster needs
        _require_channel(self.session.client._builder, self.address)
        require_safe(self._setting)

    def _setting(self, key: str) -> str | None:
        """Return a setting of the server. Its master, which alone a user could set, is taken for another machine's."""
        setting: str | None = self.address if key == "spark.master" else self.session.conf.get(key, None)
        return setting

    def shipped(self, data: bytes) -> Carried:
        return Carried(data)

    @contextmanager
    def working(self, log: Log, stages: Sequence[str]) -> Iterator[None]:
        heard, tag = _Heard(stages), f"prdp-{uuid.uuid4().hex}"
        self.session.registerProgressHandler(heard)
        self.session.addTag(tag)
        try:
            lost = watched(lambda: heard.running, lambda: self.session.interruptTag(tag), self.address)
            with log.tasks(heard.progress), lost:
                yield
        finally:
            self.session.removeTag(tag)
            self.session.removeProgressHandler(heard)


@dataclass(eq=False)
class _Heard:
    """What a server reports of the tasks at work, whenever that changes; `names` are those of the stages in order."""

    names: Sequence[str]
    running: bool = True
    stages: list[Any] = field(default_factory=list)

    def __call__(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Take a report."""
        self.stages, self.running = list(stages or ()), done or inflight_tasks > 0

    def progress(self) -> str:
        """Return how many tasks are done of the last stage that has begun."""
        begun = [stage for stage in sorted(self.stages, key=lambda stage: stage.stage_id) if stage.num_completed_tasks]
        return _of_last(self.names, [(stage.num_completed_tasks, stage.num_tasks) for stage in begun])


def driver_of(session: Any) -> Driver:
    """Return the driver of a session, of Java or of Spark Connect."""
    return OwnDriver(session.sparkContext) if hasattr(session, "_jsparkSession") else ConnectDriver(session)


@contextmanager
def counted(context: SparkContext, log: Log, names: Sequence[str]) -> Iterator[None]:
    """Log how many tasks are done of the stages that a block's jobs go through, which `names` names in their order.

    A stage without a name is not told of. The jobs are known by their group: that of the caller's own program, where
    it set one, so that what it ends by that group ends.
    """
    if not any(names):
        yield
        return
    callers = context.getLocalProperty(GROUP)
    group = callers or f"prdp-{uuid.uuid4().hex}"
    tracker = context.statusTracker()
    earlier = {*tracker.getJobIdsForGroup(group)}

    def progress() -> str:
        jobs = map(tracker.getJobInfo, sorted({*tracker.getJobIdsForGroup(group)} - earlier))
        numbers = sorted({number for job in jobs if job for number in job.stageIds})
        stages = [stage for stage in map(tracker.getStageInfo, numbers) if stage]
        begun = [stage for stage in stages if stage.numActiveTasks + stage.numCompletedTasks]  # others are skipped
        return _of_last(names, [(stage.numCompletedTasks, stage.numTasks) for stage in begun])

    context.setLocalProperty(GROUP, group)
    try:
        with log.tasks(progress):
            yield
    finally:
        with suppress(Py4JError, OSError):  # its Java is gone: what the block raised says so
            context.setLocalProperty(GROUP, callers)  # type: ignore[arg-type]


def _of_last(names: Sequence[str], begun: Sequence[tuple[int, int]]) -> str:
    """Return how many tasks are done of the last stage that has begun, of (done, all); "" where it has no name."""
    name = names[min(len(begun), len(names)) - 1] if begun and names else ""
    return share(name, *begun[-1]) if name else ""


@contextmanager
def watched(alive: Callable[[], bool], end: Callable[[], object], master: str) -> Iterator[None]:
    """Run a block; once `alive` has been false for LOST_SECONDS, `end` its jobs, and raise TaskFailed."""
    ended, lost = Event(), Event()

    def look() -> None:
        seen = time.monotonic()
        while not ended.wait(LOOK_SECONDS):
            if alive():
                seen = time.monotonic()
            elif time.monotonic() - seen > LOST_SECONDS:
                lost.set()
                end()

    def looking() -> None:
        with suppress(Py4JError, PySparkException, OSError):  # the driver is gone, which its job says itself
            look()

    watcher = Thread(target=looking, daemon=True)
    watcher.start()
    try:
        yield
    except Exception:
        if not lost.is_set():
            raise
    else:
        return
    finally:
        ended.set()
        watcher.join()
    raise TaskFailed(f"master {master}: no executor is left: start workers, and run again")


@contextmanager
def in_plain_words() -> Iterator[None]:
    """Run Spark's jobs in a block; raises `job_error` in place of what Spark says of a failed one.

    Where PySpark tidies up after an interrupt, or after the end of its Java, it fails once more: the first counts.
    """
    failure = ""
    try:
        yield
        return
    except (PySparkException, Py4JError, ConnectionError) as error:
        failure = f"{type(error).__name__} {error}"
        interrupted = _follows_an_interrupt(error)
    if interrupted:
        raise KeyboardInterrupt
    raise job_error(failure) from None  # what Spark says may show values


def _follows_an_interrupt(error: BaseException | None) -> bool:
    return error is not None and (isinstance(error, KeyboardInterrupt) or _follows_an_interrupt(error.__context__))
