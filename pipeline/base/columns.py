"""Text for people: aligned columns, and names of mechanisms and references."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from udfs.numbers.exact import bound_text, up_text

WIDTH = 80  # columns of a terminal
EXACT = 1e-6  # a share that no figure shown would tell


def aligned(rows: Sequence[Sequence[str]], *, numbers: bool = False) -> list[str]:
    """Return rows of equal length as indented lines of aligned columns; `numbers`: all but the first to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    pads = [str.ljust, *[str.rjust if numbers else str.ljust] * (len(widths) - 1)]
    lines = ("   ".join(pad(text, w) for pad, text, w in zip(pads, row, widths, strict=True)) for row in rows)
    return [f"    {line}".rstrip() for line in lines]


def fitted(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return rows as indented lines of aligned columns, all but the first to the right, cut to `width` in the first."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = width - 2 - sum(2 + each for each in widths[1:])
    widths[0] = min(widths[0], room)
    lines = (
        "  ".join(
            [cut(text, room).ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(cells, widths[1:], strict=True))]
        )
        for text, *cells in rows
    )
    return [f"  {line}".rstrip() for line in lines]


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
    found = loss.get("rho_found", 0)
    above = f"   {gap_text(Fraction(loss['rho']), Fraction(found))}" if found else ""
    return f"rho {bound_text(loss['rho']):<12} epsilon {epsilon}{simple}{above}"


def gap_text(rho: Fraction, found: Fraction) -> str:
    """Return for people how far a bound over all placements may lie above the largest loss of one."""
    return f"at most {up_text(rho / found, 3)} times the true one"


def excess_text(share: float | None) -> str:
    """Return how far above the true loss a stated one may be, a share of it, for people; None: not known."""
    if share is None:
        return "too high by: not known"
    if share >= 1:
        return f"too high by a factor of {up_text(1 + Fraction(share), 3)} at most"
    return "exact" if share <= EXACT else f"too high by {up_text(Fraction(100 * share), 2)} % at most"
