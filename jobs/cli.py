"""The `prdp` command: arguments in, exit code out (docs/commands.md).

Only the module of the chosen command is imported.
"""

import argparse
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from jobs.commands import COMMANDS
from jobs.options import LOG_JSON, QUIET
from jobs.parser import parser_with
from jobs.signals import stopping
from pipeline.errors import PrdpError
from pipeline.log import Log, json_log, plain_log

OBJECTS = 50_000  # made between two searches for circular rubbish, which took a seventh of a short command's time


def main(words: Sequence[str] | None = None) -> int:
    """Run one command, by default that of the process's own arguments, and return its exit code."""
    words = list(sys.argv[1:] if words is None else words)
    gc.set_threshold(OBJECTS)
    log = _log(words)
    with stopping(), log.listening():
        return _called(words, log)


def _called(words: list[str], log: Log) -> int:
    debug = False
    try:
        try:
            arguments = parse(words)
        except SystemExit as stopped:  # --help, --version
            return int(stopped.code or 0)
        arguments.log, debug = log, arguments.debug
        import_module(f"jobs.commands.{arguments.command}").run(arguments)
        sys.stdout.flush()
        log.done()
    except PrdpError as error:
        return _failed(log, str(error), error.exit_code, debug)
    except KeyboardInterrupt as stop:
        message = str(stop) or "interrupted: what was written is incomplete; run the same command again"
        return _failed(log, message, PrdpError.exit_code, False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output left
        return PrdpError.exit_code
    except Exception as error:
        # A library's own message may hold a record's value: only the error's type and line are shown.
        last = traceback.extract_tb(error.__traceback__)[-1]
        kind = f"unexpected {type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
        return _failed(log, f"{kind}; --debug shows the traceback, which may hold confidential values", 1, debug)
    return 0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a call; raises PlanError on a wrong one, SystemExit after --help and --version."""
    return parser_with(words[:1], shows_version=list(words[:1]) == ["--version"]).parse_args(words)


def _log(words: Sequence[str]) -> Log:
    """Return the log that a call wants, before it is known whether the call is right."""
    if LOG_JSON in words:
        return json_log(words[0] if words[0] in COMMANDS else None)
    return plain_log(quiet=QUIET in words)


def _failed(log: Log, message: str, code: int, debug: bool) -> int:
    log.error(message, code, debug=debug)
    return code


if __name__ == "__main__":
    sys.exit(main())
