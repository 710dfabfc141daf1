"""prdp on a real pseudo-terminal of 80 columns, and what its user sees there in the end."""

import logging
import os
import pty
import re
import subprocess
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

from tests.support.patience import PATIENCE
from tests.support.spark import ROOT

COLUMNS = 80
# Tasks are told of at once, each takes a while, and files are not read together.
SLOWLY = """
import sys, time
import pipeline.base.log, pipeline.microdata.source
pipeline.microdata.source.CHUNK_RECORDS = 1
pipeline.base.log.PATIENCE, pipeline.base.log.TICK = 0.0, 0.02
from pipeline.engines.tasks import NoiseTask, SumTask
for kind in (NoiseTask, SumTask):
    def slow(self, *given, run=kind.__call__, **more):
        time.sleep(0.15)
        return run(self, *given, **more)
    kind.__call__ = slow
from jobs.cli import main
sys.exit(main(sys.argv[1:]))
"""


def on_terminal(
    words: Sequence[str], cwd: Path, *, program: Sequence[str] = ("-m", "jobs.cli"), **environment: str
) -> tuple[int, str]:
    """Return the exit code of a command that is run on a terminal, and every byte that it wrote there."""
    mine, its = pty.openpty()
    termios.tcsetwinsize(its, (30, COLUMNS))
    with subprocess.Popen(
        [sys.executable, *program, *words],
        cwd=cwd,
        env={k: v for k, v in os.environ.items() if k != "NO_COLOR"}
        | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
        | environment,
        stdin=its,
        stdout=its,
        stderr=its,
    ) as process:
        os.close(its)
        written = b""
        while part := _read(mine):
            written += part
        process.wait(PATIENCE)
    os.close(mine)
    return process.returncode, written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the last process that had it open has ended
        return b""


def seen(written: str) -> list[str]:
    """Return the lines that stand on the terminal in the end, without colours."""
    lines = written.replace("\r\x1b[K", "\0").split("\n")
    return [re.sub(r"\x1b\[[0-9]+m", "", line.rpartition("\0")[2]) for line in lines]


class Told(logging.Handler):
    """Keeps, of each thing that is counted, out of how many; a file named for it says so to `tasks.until_told`."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self.counts: set[tuple[str, str]] = set()
        self.folder = folder

    def emit(self, record: logging.LogRecord) -> None:
        if vars(record)["facts"]["event"] == "tasks" and record.msg:
            name, _, counted = record.msg.rpartition(" ")
            self.counts.add((name, counted.partition("/")[2]))
            if self.folder:
                (self.folder / name).touch()
