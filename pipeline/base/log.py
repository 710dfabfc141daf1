"""What a run reports while it goes on: lines for people, or one JSON object a line for programs.

Guarantee (docs/architecture.md, rule 8): no record's value and no count of records is logged. How long stages take
depends on the microdata, and so does which error ends a run: logs are confidential and stay in the enclave
(docs/monitoring.md).
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, Any, TypeVar

from pipeline.base.plain import ERASED, RED, YELLOW, columns, escaped, painted, rewrites, with_ledger

PATIENCE = 2.0  # seconds after which it is told how many tasks are done
TICK = 0.25  # seconds between two looks at them
LONGEST = 600.0  # seconds between two lines of a log that tell of them
Item = TypeVar("Item")


def share(what: str, done: int, of: int) -> str:
    """Return how many tasks are done, as it is told."""
    return f"{what} {done:,}/{of:,}"


class Log:
    """The log of one command: its events go to `handlers`; without any it is silent.

    Each event is a record of `logging` whose message is for people, or None, and whose `facts` are the other keys of
    a line of JSON.
    """

    def __init__(self, *handlers: logging.Handler, command: str | None = None) -> None:
        self._began = time.monotonic()
        self._facts = {"command": command, "release": None, "attempt": None, "stage": None}
        self.named: str | None = None  # the ledger, where the call names one: commands in messages name it too
        self._heard = any(handler.level <= logging.INFO for handler in handlers)
        self._logger = logging.Logger("prdp")  # its own: no setting of another library changes it
        for handler in handlers or (logging.NullHandler(),):
            self._logger.addHandler(handler)

    def about(self, **facts: str) -> None:
        """Name the release or the attempt that further events are about."""
        self._facts |= facts

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Make it the log of the running command for a block: the one that `counted` and `telling` tell."""
        before = _RUNNING.set(self)
        try:
            yield
        finally:
            _RUNNING.reset(before)

    @contextmanager
    def heard_by(self, handler: logging.Handler) -> Iterator[None]:
        """Have `handler` take in the events of a block too."""
        self._logger.addHandler(handler)
        try:
            yield
        finally:
            self._logger.removeHandler(handler)

    @contextmanager
    def stage(self, name: str, message: str | None = None) -> Iterator[None]:
        """Log that a stage begins, then that it ended or failed, and after how long."""
        began, around = time.monotonic(), self._facts["stage"]
        self._facts["stage"] = name
        self._log(logging.INFO, "begun", message)
        try:
            yield
        except BaseException:
            self._log(logging.ERROR, "failed", seconds=time.monotonic() - began)
            raise
        else:
            self._log(logging.INFO, "ended", seconds=time.monotonic() - began)
        finally:
            self._facts["stage"] = around

    @contextmanager
    def tasks(self, tell: Callable[[], str]) -> Iterator[None]:
        """Log, while a block lasts longer than PATIENCE, what `tell` says of its tasks, such as "sums 12/40"; not "".

        On a terminal this is one line, rewritten until the block ends; elsewhere a line at PATIENCE, at twice that and
        so on. `tell` is called in a thread beside the block, and what it raises is passed over. What it says must
        follow from the plan, and from files' names, sizes and row groups, alone.
        """
        if not self._heard:
            yield
            return
        ended = threading.Event()
        watch = threading.Thread(target=self._watch, args=(tell, ended), daemon=True)
        watch.start()
        try:
            yield
        finally:
            ended.set()
            watch.join(4 * TICK)  # no longer: a cluster that is gone may never say how many are done
            self._log(logging.DEBUG, "tasks", "")

    def _watch(self, tell: Callable[[], str], ended: threading.Event) -> None:
        began, due, wait, reported = time.monotonic(), PATIENCE, PATIENCE, ""
        while not ended.wait(wait):
            wait, text, seconds = TICK, "", time.monotonic() - began
            with suppress(Exception):
                text = tell()
            if not text or ended.is_set():
                continue
            if seconds < due or text == reported:
                self._log(logging.DEBUG, "tasks", text)
            else:
                self._log(logging.INFO, "tasks", text)
                due, reported = seconds + min(seconds, LONGEST), text

    def progress(self, message: str) -> None:
        """Log what is done between the stages."""
        self._log(logging.INFO, "progress", message)

    def ledger(self, address: str) -> None:
        """Log which ledger is open: its file, or its server's address without password."""
        self._log(logging.INFO, "ledger", f"ledger {address}")

    def warning(self, message: str) -> None:
        """Log a warning."""
        self._log(logging.WARNING, "warning", message)

    def done(self) -> None:
        """Log that the command has done its work, and after how long."""
        self._log(logging.INFO, "done", seconds=time.monotonic() - self._began)

    def error(self, message: str, exit_code: int, *, debug: bool) -> None:
        """Log the error that ends the command; with `debug` also the traceback of the exception being handled."""
        seconds = time.monotonic() - self._began
        self._log(logging.ERROR, "error", message, traceback=debug, seconds=seconds, exit_code=exit_code)

    def _log(
        self, level: int, event: str, message: str | None = None, *, traceback: bool = False, **facts: Any
    ) -> None:
        message = message and with_ledger(message, self.named)
        known = {"event": event, **self._facts, "seconds": None, "message": message, "exit_code": None}
        self._logger.log(level, message, exc_info=traceback, extra={"facts": known | facts})


_RUNNING: ContextVar[Log] = ContextVar("the log of the running command")


def pasted(text: str) -> str:
    """Return the text whose commands name the ledger that the running command names, if any."""
    return with_ledger(text, _RUNNING.get(Log()).named)


@contextmanager
def telling(tell: Callable[[], str]) -> Iterator[None]:
    """Have the running command's log tell of the tasks of a block, as `Log.tasks`; what they are of must be public."""
    with _RUNNING.get(Log()).tasks(tell):
        yield


def counted(what: str, items: Iterable[Item], of: int) -> Iterator[Item]:
    """Yield items, of which there are `of`, while the running command's log tells how many are done."""
    done = 0
    with telling(lambda: share(what, done, of)):
        for item in items:
            yield item
            done += 1


def plain_log(*, quiet: bool = False) -> Log:
    """Return a log for people, on standard error: what begins after how many seconds (unless `quiet`), and errors."""
    shown = logging.DEBUG if rewrites(sys.stderr) else logging.INFO
    handler = _Lines(sys.stderr)
    handler.setLevel(logging.WARNING if quiet else shown)
    handler.addFilter(lambda record: record.msg is not None)
    handler.setFormatter(_PlainFormatter(sys.stderr))
    return Log(handler)


def json_log(command: str | None) -> Log:
    """Return a log for programs: every event is a JSON object in a line of standard error.

    The keys are always these: `time` (UTC, ISO 8601), `level` (info, warning, error), `event` (begun, ended, failed:
    of a stage; tasks: how many are done; progress; ledger; warning; done, error: of the command), `command`, `release`,
    `attempt`, `stage`, `seconds` (what the stage or command took, where it ends), `message` (the text that people see),
    `exit_code` (of an error); null where there is none. With --debug an error has `traceback` too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.INFO)
    handler.setFormatter(_JsonFormatter())
    return Log(handler, command=command)


class _Lines(logging.StreamHandler[IO[str]]):
    """Lines; on a terminal what tells of tasks is the last one, and gives way to the next."""

    def emit(self, record: logging.LogRecord) -> None:
        if not rewrites(self.stream):
            super().emit(record)
            return
        self.stream.write(ERASED)
        if vars(record)["facts"]["event"] != "tasks":
            super().emit(record)
            return
        self.stream.write(self.format(record)[: columns(self.stream) - 1] if record.msg else "")
        self.flush()


class _PlainFormatter(logging.Formatter):
    def __init__(self, stream: IO[str]) -> None:
        super().__init__()
        self._began, self._stream = time.monotonic(), stream

    def format(self, record: logging.LogRecord) -> str:
        if record.levelno < logging.ERROR:
            kind = f"{painted('warning:', YELLOW, self._stream)} " if record.levelno == logging.WARNING else ""
            return f"[{time.monotonic() - self._began:6.1f} s] {kind}{escaped(str(record.msg))}"
        error = painted("error:", RED, self._stream)
        lines = [f"{error} {line}" for line in escaped(str(record.msg)).splitlines()]
        return "\n".join([escaped(self.formatException(record.exc_info)), *lines] if record.exc_info else lines)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {"time": moment, "level": record.levelname.lower(), **vars(record)["facts"]}
        if line["seconds"] is not None:
            line["seconds"] = round(line["seconds"], 3)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return escaped(json.dumps(line))  # in ASCII: one line to every reader
