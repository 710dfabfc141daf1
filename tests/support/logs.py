"""Logs for tests."""

import logging
from collections.abc import Callable

from pipeline.base.log import Log


def log_for(say: Callable[[str], None]) -> Log:
    """Return a log that calls `say` with each message for people; what it raises ends the run."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.msg is not None:
                say(record.msg)

    return Log(Handler(logging.INFO))
