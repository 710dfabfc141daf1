"""What a run tells of itself while it goes on: lines for people, or one JSON object a line for programs.

Guarantee (docs/architecture.md, rule 8): no record's value and no count of records is told. How long stages take
depends on the
microdata, and so does which error ends a run: logs are confidential and stay in the enclave (docs/logs.md).
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any


class Log:
    """Tells `say` in words what begins and what is warned of, and standard error what went wrong."""

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self._say = say

    def about(self, **facts: str) -> None:
        """Name the release or the attempt that further events are about."""

    @contextmanager
    def stage(self, name: str, told: str | None = None) -> Iterator[None]:
        """Tell that a stage begins, in the words `told` (None: not worth telling people), and how it ends."""
        if told is not None:
            self._say(told)
        yield

    def warning(self, text: str) -> None:
        """Tell a warning."""
        self._say(f"warning: {text}")

    def done(self) -> None:
        """Tell that the command has done its work."""

    def error(self, message: str, exit_code: int, *, debug: bool) -> None:
        """Tell the error that ends the command; with `debug` also the traceback of the exception being handled."""
        if debug:
            traceback.print_exc()
        for line in message.splitlines():
            print(f"error: {line}", file=sys.stderr)


class JsonLog(Log):
    """Writes every event to standard error as a JSON object in a line of its own.

    The keys are always these: `time` (UTC, ISO 8601), `level` (info, warning, error), `event` (begun, ended, failed:
    of a stage; warning; done, error: of the command), `command`, `release`, `attempt`, `stage`, `seconds` (what the
    stage or command took, where it ends), `message`, `exit_code` (of an error); null where there is none. With --debug
    an error has `traceback` too.
    """

    def __init__(self, command: str | None) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._facts: dict[str, str | None] = {"command": command, "release": None, "attempt": None}

    def about(self, **facts: str) -> None:
        """Name the release or the attempt that further events are about."""
        self._facts |= facts

    @contextmanager
    def stage(self, name: str, told: str | None = None) -> Iterator[None]:
        """Tell that a stage begins, then that it ended or failed, and after how long."""
        began = time.monotonic()
        self._event("info", "begun", stage=name, message=told)
        try:
            yield
        except BaseException:
            self._event("error", "failed", stage=name, seconds=time.monotonic() - began)
            raise
        self._event("info", "ended", stage=name, seconds=time.monotonic() - began)

    def warning(self, text: str) -> None:
        """Tell a warning."""
        self._event("warning", "warning", message=text)

    def done(self) -> None:
        """Tell that the command has done its work, and after how long."""
        self._event("info", "done", seconds=time.monotonic() - self._began)

    def error(self, message: str, exit_code: int, *, debug: bool) -> None:
        """Tell the error that ends the command, in the words that people get."""
        trace = {"traceback": traceback.format_exc()} if debug else {}
        taken = time.monotonic() - self._began
        self._event("error", "error", seconds=taken, message=message, exit_code=exit_code, **trace)

    def _event(
        self, level: str, event: str, *, stage: str | None = None, seconds: float | None = None, **more: Any
    ) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "level": level,
            "event": event,
            **self._facts,
            "stage": stage,
            "seconds": None if seconds is None else round(seconds, 3),
            "message": None,
            "exit_code": None,
        }
        sys.stderr.write(json.dumps(line | more) + "\n")  # one write, and in ASCII: one line to every reader
        sys.stderr.flush()


# Progress for the people who run prdp.


class Progress:
    """Says on stderr what is being done and how long the run has taken so far (for the operator alone)."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def say(self, stage: str) -> None:
        """Name the stage that begins."""
        print(f"[{time.monotonic() - self._began:6.1f} s] {stage}", file=sys.stderr, flush=True)
