"""Signals that end a command: SIGINT and SIGTERM do so alike, with one line and everything tidied up."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.base.errors import PrdpError

ENDING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping() -> Iterator[None]:
    """Have the first signal of a block raise KeyboardInterrupt, and the second end the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets the main thread alone set handlers
        return
    received = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            os._exit(PrdpError.exit_code)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # of a job that a shell runs in the background
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
