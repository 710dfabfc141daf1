"""Watches a run for the tools of its operator, from the events of its log: told when it has ended, however it ended.

Guarantee: nothing of the microdata but times, and whether and where a run failed: no value of a record, no count, no
message. What is told of releases and budgets is the ledger's. All of it is confidential (docs/metrics.md).
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pipeline.errors import PrdpError
from pipeline.ledger.store import Ledger
from pipeline.log import Log
from pipeline.release.site import site
from pipeline.telemetry.metrics import checked_place, gauges_of_ledger, gauges_of_run, group_of, write_metrics
from pipeline.telemetry.run import Run, Stage
from pipeline.telemetry.traces import checked_collector, send_trace


class Watch(logging.Handler):
    """What is seen of a run of the plan file `plan`; `ledger`: the one that it opened, once it has."""

    def __init__(self, plan: str) -> None:
        super().__init__()
        self.ledger: Ledger | None = None
        self._plan, self._began = os.path.abspath(plan), time.time()
        self._release: str | None = None
        self._attempt: str | None = None
        self._under_way: list[float] = []
        self._stages: list[Stage] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take in an event of the log."""
        facts = vars(record)["facts"]
        self._release, self._attempt = facts["release"], facts["attempt"]
        if facts["event"] == "begun":
            self._under_way.append(record.created)
        elif facts["event"] in ("ended", "failed"):
            failed = facts["event"] == "failed"
            self._stages.append(Stage(facts["stage"], self._under_way.pop(), record.created, failed))

    def run(self, exit_code: int) -> Run:
        """Return the run, which ends now."""
        told = (self._plan, self._release, self._attempt, self._began, time.time(), exit_code)
        return Run(*told, stages=tuple(self._stages))

    def write(self, place: str, run: Run) -> None:
        """Write the metrics of the run and of the ledger; raises Unsent where they cannot be written."""
        write_metrics(place, group_of(run.plan), gauges_of_run(run))
        if self.ledger is not None:
            write_metrics(place, "ledger", gauges_of_ledger(self.ledger))


_WATCH: ContextVar[Watch | None] = ContextVar("what watches the running release", default=None)


@contextmanager
def watched(
    log: Log, plan: str | os.PathLike[str], metrics: str | os.PathLike[str] | None, traces: str | None
) -> Iterator[Watch]:
    """Write metrics and send a trace of a block that runs `plan`, also where it fails; by default where the site says.

    What cannot be written or sent is told by a warning, and ends nothing. In a block that is watched this is the same
    watch. Raises PlanError, before anything is done, on a URL that is unsafe.
    """
    around, here = _WATCH.get(), site()
    if around is not None:
        yield around
        return
    watch, exit_code = Watch(os.fspath(plan)), PrdpError.exit_code
    to: dict[str, Callable[[Run], None]] = {}
    if metrics or here.metrics:
        place = checked_place(os.fspath(metrics or here.metrics or ""))
        to["metrics"] = lambda run: watch.write(place, run)
    if traces or here.traces:
        url = checked_collector(traces or here.traces or "")
        to["traces"] = lambda run: send_trace(url, run)
    before = _WATCH.set(watch)
    try:
        with log.heard_by(watch):
            yield watch
        exit_code = 0
    except PrdpError as error:
        exit_code = error.exit_code
        raise
    finally:
        _WATCH.reset(before)
        _deliver(watch.run(exit_code), to, log)


def _deliver(run: Run, to: dict[str, Callable[[Run], None]], log: Log) -> None:
    for what, deliver in to.items():
        try:
            deliver(run)
        except Exception as error:  # what the run came to stands, or has an error of its own to be told
            reason = error if isinstance(error, PrdpError) else type(error).__name__
            log.warning(f"{what}: {reason}; the release is not affected")
