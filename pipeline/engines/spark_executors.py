"""A cluster's executors: where there is none Spark waits for ever, so they are looked for, at the start and at work."""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from pipeline.engines.protocol import TaskFailed
from pipeline.errors import PrdpError

FIRST_SECONDS = 60
LOST_SECONDS = 120  # a cluster that gives new executors does so in less
LOOK_SECONDS = 5


def require_executor(session: SparkSession) -> None:
    """Return once a cluster gives an executor; else end the session, and raise PrdpError."""
    context = session.sparkContext
    end = time.monotonic() + FIRST_SECONDS
    while not _executors(context):
        if time.monotonic() > end:
            master = context.master
            session.stop()
            raise PrdpError(f"master {master}: no worker gives an executor; start workers, or free cores and memory")
        time.sleep(0.1)


@contextmanager
def watched(context: SparkContext) -> Iterator[None]:
    """Run this thread's jobs in a block; where they have had no executor for LOST_SECONDS, end them by TaskFailed."""
    if (context.master or "").partition("[")[0] == "local":  # the driver itself runs the tasks
        yield
        return
    tag, ended, lost = f"prdp-{uuid.uuid4().hex}", Event(), Event()

    def look() -> None:
        seen = time.monotonic()
        while not ended.wait(LOOK_SECONDS):
            if _executors(context):
                seen = time.monotonic()
            elif time.monotonic() - seen > LOST_SECONDS:
                lost.set()
                context.cancelJobsWithTag(tag)

    def looking() -> None:
        with suppress(Py4JError, OSError):  # the driver's Java is gone, which its job says itself
            look()

    context.addJobTag(tag)
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
        with suppress(Py4JError, OSError):
            context.removeJobTag(tag)
    raise TaskFailed(f"master {context.master}: no executor is left: start workers, and run again")


def _executors(context: SparkContext) -> int:
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is one of them
