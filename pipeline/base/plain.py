"""Text from outside, for terminals and pages: it holds no character that acts on whoever reads it.

Such characters are C0 and C1 control characters, separators of lines and paragraphs, marks and overrides of the
direction of writing, and surrogates. Edges refuse them (`require_plain`, `plain_json`); what is printed shows them
escaped (`escaped`). Pages are made of the templates of this room, with every text escaped and nothing loaded from
elsewhere: a page's module computes what is shown, its template lays it out.
"""

import json
import os
import re
import shlex
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import IO, Any, Final

from pipeline.base.errors import PlanError
from udfs.numbers.exact import bound_text, up_text

_ACTING: Final = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_IN_TEXTS: Final = re.compile(f"[{_ACTING}]")
_IN_A_LINE: Final = re.compile(f"[\t\n{_ACTING}]")
# Where a cell of a CSV file begins so, in quotes or not, spreadsheets take it for a formula; a sign alone is none.
_FORMULA: Final = re.compile(r"\s*[=+\-@＝＋－＠](?=.*\w)")


def escaped(text: str) -> str:
    r"""Return text for a terminal or JSON: what acts stands as \uXXXX; ends of lines and tabs stay."""
    return _IN_TEXTS.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text)


def is_plain(text: str, *, lines: bool = False) -> bool:
    """Whether nothing in the text acts; `lines`: ends of lines and tabs may stand in it."""
    return (_IN_TEXTS if lines else _IN_A_LINE).search(text) is None


def rule_of_name(name: str) -> str | None:
    """Return the rule that a name of a code breaks, which is published in CSV files; None where it breaks none."""
    if not is_plain(name):
        return "a name must be one line without control characters and marks of direction"
    if _FORMULA.match(name):
        return "a name must not begin with =, +, - or @, which spreadsheets take for a formula; begin with a word"
    return None


def checked_reason(text: str) -> str:
    """Return a reason for the ledger without the spaces around it; PlanError unless of 1 to 1,000 plain characters.

    Nor may it be the word TEXT, as in a command that was pasted.
    """
    if not text.strip() or len(text) > 1000 or not is_plain(text):
        raise PlanError("a reason of 1 to 1,000 characters is needed, on one line, none of them a control character")
    if text.strip() == "TEXT":
        raise PlanError("TEXT stands for a reason: write it in its place, in quotes")
    return text.strip()


def plain_json(data: str | bytes) -> Any:
    """Return the value of a JSON text whose every text is plain; raises ValueError otherwise."""
    value = json.loads(data)
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, str) and not is_plain(one, lines=True):
            raise ValueError("a text of the JSON holds control characters")
        if isinstance(one, dict):
            rest += [*one, *one.values()]
        elif isinstance(one, list):
            rest += one
    return value


# What a stream can show, colour and rewritten lines on a terminal alone; and commands that can be pasted into one.
#
# Colour repeats what words say, and NO_COLOR or TERM=dumb takes it away.

RED, GREEN, YELLOW = 31, 32, 33
# A command that opens a ledger, but for the two that make one, without the option that names it.
_ACTS = r"admin (?:staging purge|close|reopen|export|migrate)|(?!create\b|admin\b)[a-z]+"
_OF_LEDGER = re.compile(rf"\bprdp (?:ledger (?:{_ACTS})|release|check|diagnose)\b(?!\.| --ledger)")
_PASSWORD = re.compile(r"(://[^/@:]*):[^/]*@")
ERASED = "\r\x1b[K"  # to the line's begin, and nothing in it


def rewrites(stream: IO[str]) -> bool:
    """Whether lines of the stream can be rewritten: it is a terminal, and not a dumb one."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def painted(text: str, colour: int, stream: IO[str]) -> str:
    """Return the text in a colour, or as it is where the stream shows none or its user wants none."""
    return f"\x1b[{colour}m{text}\x1b[0m" if rewrites(stream) and not os.environ.get("NO_COLOR") else text


def columns(stream: IO[str]) -> int:
    """Return the width of a terminal; 80 where it does not say."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def with_ledger(text: str, ledger: str | None) -> str:
    """Return the text with every command of prdp that opens a ledger naming this one, quoted for a shell.

    Without it a command that is pasted would act on the user's own ledger. A password is left out. None: as it is.
    """
    if ledger is None:
        return text
    address = shlex.quote(_PASSWORD.sub(r"\1@", ledger))
    return _OF_LEDGER.sub(lambda command: f"{command[0]} --ledger {address}", text)


# Text for people: aligned columns, and names of mechanisms and references.

WIDTH = 80  # columns of a terminal
EXACT = 1e-6  # a share that no figure shown would tell


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False, indent: int = 4, gap: int = 3) -> list[str]:
    """Return rows of equal length as indented lines of aligned columns; `numbers`: all but the first to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads = [str.ljust, *[str.rjust if numbers else str.ljust] * (len(widths) - 1)]
    lines = ((" " * gap).join(pad(text, w) for pad, text, w in zip(pads, row, widths, strict=True)) for row in rows)
    return [f"{' ' * indent}{line}".rstrip() for line in lines]


def fitted(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return rows as indented lines of aligned columns, all but the first to the right, cut to `width` in the first."""
    room = width - 2 - sum(2 + max(map(len, column)) for column in list(zip(*rows, strict=True))[1:])
    return aligned([[cut(text, room), *cells] for text, *cells in rows], numbers=True, indent=2, gap=2)


def figure(value: float | None, digits: int = 6, none: str = "–") -> str:
    """Return a figure of so many digits; `none` stands for None."""
    return none if value is None else f"{value:,.{digits}g}"


def wrapped(text: str) -> list[str]:
    """Return a line as lines of WIDTH at most: broken between its columns, three spaces apart, or else its words.

    What goes on is indented further, where the line is indented. A word that is longer, such as a path, stays whole.
    """
    if len(text) <= WIDTH:
        return [text]
    indent = text[: len(text) - len(text.lstrip())]
    further = f"{indent}    " if indent else ""
    lines = [indent]
    for cell in re.split(" {3,}", text.strip()):
        gap = "   " if lines[-1].strip() else ""
        if gap and len(lines[-1]) + len(gap) + len(cell) > WIDTH:
            lines.append(further)
            gap = ""
        lines[-1] += gap + cell
    by_words = textwrap.TextWrapper(WIDTH, "", further, break_long_words=False, break_on_hyphens=False)
    return [part for line in lines for part in by_words.wrap(line)]


def cut(text: str, width: int) -> str:
    """Return the text, or as much of it as is `width` long with a sign that it goes on."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def mechanism_text(described: Mapping[str, Any]) -> str:
    """Return a mechanism's kind and parameters, as JSON has them, for people."""
    texts = {n: f"a table of {len(v['steps'])} knots" if isinstance(v, Mapping) else v for n, v in described.items()}
    parameters = ", ".join(f"{name} {text}" for name, text in texts.items() if name != "kind")
    return f"{described['kind']} ({parameters})"


def reference_text(at: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> str:
    """Return a reference, as JSON has it, for people."""
    records = [at] if isinstance(at, Mapping) else at
    return "; ".join(", ".join(f"{k}={v}" for k, v in record.items()) or "any record" for record in records)


def loss_text(loss: Mapping[str, Any]) -> str:
    """Return a loss, as JSON has it, for people."""
    epsilon = "-" if loss["epsilon"] is None else bound_text(loss["epsilon"])
    simple = f"   simple group bound {bound_text(loss['rho_simple'])}" if "rho_simple" in loss else ""
    least = loss.get("rho_found", 0)
    above = f"   {gap_text(Fraction(loss['rho']), Fraction(least))}" if least else ""
    return f"rho {bound_text(loss['rho']):<12} epsilon {epsilon}{simple}{above}"


def gap_text(rho: Fraction, least: Fraction) -> str:
    """Return for people how far a bound over all placements may lie above the largest loss of one."""
    return f"at most {up_text(rho / least, 3)} times the true one"


def excess_text(share: float | None) -> str:
    """Return how far above the true loss a stated one may be, a share of it, for people; None: not known."""
    if share is None:
        return "too high by: not known"
    if share >= 1:
        return f"too high by a factor of {up_text(1 + Fraction(share), 3)} at most"
    return "exact" if share <= EXACT else f"too high by {up_text(Fraction(100 * share), 2)} % at most"


# Quantiles of losses: those that documents hold, and those of them that pages show.
QUANTILES = ("0.01", "0.05", "0.1", "0.25", "0.5", "0.75", "0.9", "0.95", "0.99", "0.999", "0.9999")
SHOWN = ("0.1", "0.5", "0.9", "0.99", "0.9999")


@dataclass(frozen=True)
class Table:
    """A table of texts; the columns whose indices are in `numbers` are set to the right, those in `words` are wide."""

    header: Sequence[str]
    rows: Iterable[Sequence[str]]
    numbers: Collection[int] = ()
    words: Collection[int] = ()


def rendered(template: str, **values: Any) -> str:
    """Return the page that a template of this room makes of the values; a value that is missing is an error."""
    page: str = _environment().get_template(template).render(**values)
    return page + "\n"


def source_of(template: str) -> str:
    """Return the text of a template of this room as it stands, of a stylesheet or a script."""
    return files("pipeline.base").joinpath("templates", template).read_text(encoding="utf-8")


def number(value: float | None) -> str:
    """Return a figure in four digits, or in full from 10,000 on; a dash stands for None."""
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def bound(value: float | None) -> str:
    """Return an upper bound in four digits, rounded up; a dash stands for None."""
    return "–" if value is None else bound_text(value, 4)


def percent(share: float | None) -> str:
    """Return a share in per cent; a dash stands for None."""
    return "–" if share is None else f"{share * 100:.1f} %"


@cache
def _environment() -> Any:
    import jinja2  # noqa: PLC0415 — for those who make a page alone

    layout: Any = {"trim_blocks": True, "lstrip_blocks": True, "autoescape": True, "undefined": jinja2.StrictUndefined}

    class Kept(jinja2.FileSystemBytecodeCache):  # a fifth of a second a process
        def load_bytecode(self, bucket: Any) -> None:
            try:
                super().load_bytecode(bucket)
            except Exception:  # of a spoiled file, or where prdp is an archive: it is compiled anew
                bucket.reset()

        def dump_bytecode(self, bucket: Any) -> None:
            with suppress(OSError):
                super().dump_bytecode(bucket)

    # They lie beside what Python compiled, no less safe, and are named by what else decides them.
    place, decides = Path(__file__).with_name("__pycache__"), repr((jinja2.__version__, layout)).encode()
    compiled = None if sys.dont_write_bytecode else Kept(str(place), f"{sha256(decides).hexdigest()[:16]}-%s.jinja")
    return jinja2.Environment(loader=jinja2.PackageLoader("pipeline.base"), bytecode_cache=compiled, **layout)
