"""The `prdp` command: arguments in, exit code out (docs/commands.md), and what completes its words in a shell.

Only the module of the chosen command is imported.
"""

import argparse
import atexit
import ctypes
import gc
import os
import resource
import shlex
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from jobs.commands import COMMANDS, escape_what_cannot_be_printed, put, renewed, require_utf8, run_in_utf8
from jobs.options import LOG_JSON, QUIET, Parser, StrictParser, parser_with, run
from pipeline.base.errors import PrdpError, as_options, exhausted
from pipeline.base.log import Log, json_log, plain_log

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


LEAST_ADDRESSES = 360 << 20  # bytes; with fewer, libraries in C end the process while they are loaded
SPARE = bytearray(8 << 20)  # given back before an error is told, which takes memory too where there is none
OBJECTS = 200_000  # made between two searches for circular rubbish: more than a short command makes
MEMORY = {-8: 3, -3: 32 << 20, -1: 1 << 30}  # M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; by default that of the process's own arguments, and end the process."""
    own_process = words is None
    if words is None:
        run_in_utf8()
        _keep_memory()
        os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"  # no other package has a say in plans, nor is looked for
        words = sys.argv[1:]
    escape_what_cannot_be_printed()
    words = list(words)
    gc.set_threshold(OBJECTS)
    # OpenBLAS ends a process that cannot have all its threads, and prdp's own are as many as there are processors.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    log = _log(words)
    with stopping(), log.listening(), as_options():
        code = _called(words, log)
    if own_process:
        _end(code)
    return code


def _end(code: int) -> None:
    """End the process where nothing else runs in it or looks on: freeing what it holds is a tenth of `explain`."""
    gc.freeze()  # where Python ends it, that searches for circular rubbish
    alone = threading.active_count() == 1 and "pyspark" not in sys.modules
    if alone and sys.getprofile() is None and sys.gettrace() is None:
        atexit._run_exitfuncs()
        with suppress(AttributeError, OSError, ValueError):  # a stream that takes nothing: Python ends with code 120
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _keep_memory() -> None:
    """Have glibc, and Arrow through it, use again what was freed: clearing new memory took a tenth of a release."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt") and not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        for parameter, value in MEMORY.items():
            library.mallopt(parameter, value)


def _called(words: list[str], log: Log) -> int:
    debug = False
    try:
        if 0 <= resource.getrlimit(resource.RLIMIT_AS)[0] < LEAST_ADDRESSES:
            raise MemoryError
        require_utf8(words)
        words, now = renewed(words)
        if now is not None:
            log.progress(f"this call has a new name: {now}; the old one goes with the next version")
        try:
            arguments = parse(words)
        except SystemExit as stopped:  # --help, --version, --completion
            return int(stopped.code or 0)
        arguments.log, debug = log, arguments.debug
        log.named = getattr(arguments, "ledger", None)
        run(arguments)
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
        return _failed(log, _in_plain_words(error), PrdpError.exit_code, debug)
    return 0


def _in_plain_words(error: Exception) -> str:
    if lacking := exhausted(error):
        return lacking
    # A library's own message may hold a record's value: only the error's type and line are shown.
    last = traceback.extract_tb(error.__traceback__)[-1]
    kind = f"unexpected {type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
    return f"{kind}; --debug shows the traceback, which may hold confidential values"


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of a call; raises PlanError on a wrong one, SystemExit after --help and --version."""
    if words[:1] == ["--completion"]:
        put(_completion(words))
        raise SystemExit(0)
    return parser_with(words, shows_version=list(words[:1]) == ["--version"]).parse_args(words)


def _completion(words: Sequence[str]) -> str:
    parser = StrictParser(prog="prdp")
    parser.add_argument("--completion", choices=list(WRITERS), metavar="SHELL")
    return completion(parser.parse_args(words).completion)


def _log(call: Sequence[str]) -> Log:
    return json_log(call[0] if call[0] in COMMANDS else None) if LOG_JSON in call else plain_log(quiet=QUIET in call)


def _failed(log: Log, message: str, code: int, debug: bool) -> int:
    SPARE.clear()
    log.error(message, code, debug=debug)
    return code


@dataclass(frozen=True)
class Place:
    """A command or act by its words, such as `prdp ledger show`, and what may follow them."""

    path: str
    acts: dict[str, str]  # command, act or other choice → what it does
    options: tuple[argparse.Action, ...]

    @property
    def names(self) -> list[str]:
        """The options written in full."""
        return [name for option in self.options for name in option.option_strings if name.startswith("--")]


def completion(shell: str) -> str:
    """Return the script that a shell reads."""
    return WRITERS[shell](list(places(parser_with(None))))


def places(parser: Parser) -> Iterator[Place]:
    """Return a parser's place, then those of its commands or acts."""
    (within,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)] or (None,)
    choices = [choice for action in parser._actions if not action.option_strings for choice in action.choices or ()]
    summaries = {choice.dest: choice.help or "" for choice in within._choices_actions} if within else {}
    summaries = {choice: summaries.get(choice, "") for choice in choices}
    yield Place(parser.prog, summaries, tuple(action for action in parser._actions if action.option_strings))
    for below in within.choices.values() if within else ():
        yield from places(below)


def _bash(places: list[Place]) -> str:
    valued = {
        f"{place.path} {name}": list(option.choices or ())
        for place in places
        for option in place.options
        for name in option.option_strings
        if option.nargs != 0
    }
    return "\n".join(
        [
            "_prdp() {",
            "    local at=prdp offered= flags= word here=${COMP_WORDS[COMP_CWORD]}",
            '    for word in "${COMP_WORDS[@]:1:$((COMP_CWORD - 1))}"; do',
            f'        case "$at $word" in {_any(place.path for place in places)}) at="$at $word" ;; esac',
            "    done",
            '    case "$at ${COMP_WORDS[COMP_CWORD-1]}" in',
            *(f"    {_any([option])}) {_set('offered', choices)} ;;" for option, choices in valued.items() if choices),
            f"    {_any(option for option, choices in valued.items() if not choices)}) ;;",  # the shell offers files
            '    *) case "$at" in',
            *(
                f"    {_any([each.path])}) {_set('offered', each.acts)} {_set('flags', each.names)} ;;"
                for each in places
            ),
            "    esac ;;",
            "    esac",
            "    [[ $here == -* ]] && offered=$flags",
            '    COMPREPLY=($(compgen -W "$offered" -- "$here"))',
            "}",
            "complete -o default -F _prdp prdp",
        ]
    )


def _any(words: Iterable[str]) -> str:
    return "|".join(map(shlex.quote, words))


def _set(variable: str, words: Iterable[str]) -> str:
    return f"{variable}={shlex.quote(' '.join(words))}"


def _zsh(places: list[Place]) -> str:
    return f"autoload -U +X compinit bashcompinit && compinit && bashcompinit\n{_bash(places)}"


def _fish(places: list[Place]) -> str:
    lines = [
        "function __prdp_at",
        "    set -l path prdp",
        "    for word in (commandline -opc)[2..]",
        f'        contains -- "$path $word" {shlex.join(place.path for place in places)}; and set path "$path $word"',
        "    end",
        '    test "$path" = "$argv[1]"',
        "end",
    ]
    for place in places:
        here = f"complete -c prdp -n {shlex.quote(f'__prdp_at {shlex.quote(place.path)}')}"
        lines += [f"{here} -f -a {act} -d {_quoted(does)}" for act, does in place.acts.items()]
        for option in place.options:
            takes = f" -x -a {shlex.quote(' '.join(option.choices))}" if option.choices else " -r"
            lines += [
                f"{here} -l {name.lstrip('-')}{takes if option.nargs != 0 else ''} -d {_quoted(option.help or '')}"
                for name in option.option_strings
                if name.startswith("--")
            ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("%%", "%") + "'"


WRITERS: dict[str, Callable[[list[Place]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}


if __name__ == "__main__":
    sys.exit(main())
