"""What an engine asks of Spark's driver beyond what PySpark does alike by Java and by Spark Connect."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from pipeline.engines.spark_connect import ConnectDriver
from pipeline.engines.spark_executors import executors, watched
from pipeline.engines.spark_failures import job_error
from pipeline.engines.spark_progress import counted
from pipeline.engines.spark_session import require_safe
from pipeline.engines.spark_tasks import Broadcast
from pipeline.log import Log


class Driver(Protocol):
    """Spark's driver: this process's own, or that of a server."""

    @property
    def parallelism(self) -> int:
        """How many tasks the cluster runs at once, roughly."""

    def require_safe(self) -> None:
        """Return if it lets nothing confidential leave its machine in the clear (`spark_session.require_safe`)."""

    def shipped(self, data: bytes) -> Broadcast:
        """Return bytes for tasks to hold, which each worker gets."""

    def working(self, log: Log, stages: Sequence[str]) -> AbstractContextManager[None]:
        """Run this thread's jobs in a block: logged by their stages' names, ended where no executor is left."""


@dataclass(frozen=True, eq=False)
class OwnDriver:
    """The driver that is the Java of this process."""

    context: SparkContext

    @property
    def parallelism(self) -> int:
        """How many tasks the cluster runs at once, roughly."""
        return self.context.defaultParallelism

    def require_safe(self) -> None:
        """Refuse a configuration that is not safe."""
        conf = self.context.getConf()
        require_safe(lambda key: conf.get(key, None))

    def shipped(self, data: bytes) -> Broadcast:
        """Return a broadcast."""
        return self.context.broadcast(data)

    @contextmanager
    def working(self, log: Log, stages: Sequence[str]) -> Iterator[None]:
        """Run jobs in a block: counted, and watched where executors are other processes."""
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


def driver_of(session: Any) -> Driver:
    """Return the driver of a session, of Java or of Spark Connect."""
    return OwnDriver(session.sparkContext) if hasattr(session, "_jsparkSession") else ConnectDriver(session)


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
