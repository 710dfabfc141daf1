"""A cluster's executors: where there is none Spark waits for ever, so they are looked for, at the start and at work."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
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
    while not executors(context):
        if time.monotonic() > end:
            master = context.master
            session.stop()
            raise PrdpError(f"master {master}: no worker gives an executor; start workers, or free cores and memory")
        time.sleep(0.1)


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


def executors(context: SparkContext) -> int:
    """Return how many executors an application has."""
    return len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is one of them
