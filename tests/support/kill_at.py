"""The command line in a process that kills itself at the n-th event in a folder: a file opened, made, renamed, removed.

    python -m tests.support.kill_at N FOLDER ARGUMENTS…

N = 0: never; then the last line of standard error is the number of events.
"""

import atexit
import os
import signal
import sys
from typing import Any

CHANGES = {f"os.{change}" for change in ("rename", "remove", "mkdir", "rmdir", "link", "truncate", "chmod")}
EVENTS = CHANGES | {"open", "sqlite3.connect"}


def main() -> None:
    from jobs.cli import main as command

    last, folder, *arguments = sys.argv[1:]
    events = 0

    def count(event: str, given: tuple[Any, ...]) -> None:
        nonlocal events
        if event in EVENTS and any(folder in os.fspath(each) for each in given if isinstance(each, str | os.PathLike)):
            events += 1
            if events == int(last):
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    atexit.register(lambda: print(events, file=sys.stderr))
    sys.exit(command(arguments))


if __name__ == "__main__":
    main()
