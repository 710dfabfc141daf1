"""How a command speaks: text in UTF-8 whatever the locale, JSON for programs, columns for people."""

import io
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from pipeline.base.errors import PlanError, PrdpError, in_a_line
from pipeline.base.log import pasted
from pipeline.base.plain import GREEN, RED, WIDTH, YELLOW, escaped, painted, wrapped

VERDICTS = {  # the words by which a verdict is told, by its colour
    GREEN: r"(?<=^verdict  )within its .*?limits?|\bwithin(: \S+ %)?$|(?<=[0-9] )kept(?=: rho)"
    r"|match their manifest|match the (manifest|chain)|is complete|fits the budget|^good(?=: )",
    RED: r"^mend(?=: )|(?<=^verdict  )BREAKS .*?limits?(?= by)|\bBROKEN\b(: \S+ times$)?",
    YELLOW: r"^ *warning:",
}


def print_json(value: Any) -> None:
    """Print a command's result as JSON, escaped as JSON does it where standard output is not in UTF-8.

    Raises ValueError on a number that JSON does not have.
    """
    in_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    put(json.dumps(value, ensure_ascii=not in_utf8, indent=2, allow_nan=False))


def put(*words: object, file: IO[str] | None = None) -> None:
    """Print words as `print` does; what would act on a terminal is shown escaped. All that is printed passes here."""
    print(escaped(" ".join(map(str, words))), file=file)


def say(*lines: str) -> None:
    """Print lines for people as `tell` does, each broken where it is wider than a terminal."""
    for line in lines:
        tell("\n".join(wrapped(pasted(line))))


def tell(text: str) -> None:
    """Print text for people; its commands name the call's ledger; on a terminal words of a verdict have its colour."""
    text = escaped(pasted(text))
    for colour, words in VERDICTS.items():
        text = re.sub(words, lambda match: painted(match[0], colour, sys.stdout), text, flags=re.MULTILINE)  # noqa: B023
    print(text)


def print_findings(document: Mapping[str, Any], json: bool) -> None:
    """Print what a check of a ledger or a machine found; raises PrdpError (exit code 1) where something must be mended.

    `document`: as `pipeline.operations.ledger_health.as_document` makes it.
    """
    rows = [row | {"fix": row["fix"] and pasted(row["fix"])} for row in document["findings"]]
    if json:
        print_json({**document, "findings": rows})
    else:
        for row in sorted(rows, key=lambda row: row["fix"] is not None):  # what must be mended stands last
            say(f"{row['state']}: {row['check']}: {row['what']}", *([f"    {row['fix']}"] if row["fix"] else []))
    if not document["well"]:
        wrong = sum(row["fix"] is not None for row in rows)
        raise PrdpError(f"{wrong} of {len(rows)} findings must be mended")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns, each as wide as its longest cell.

    A first cell that leaves no room for the others on a terminal has a line of its own.
    """
    first, *others = ([*map(len, column)] for column in zip(*rows, strict=True))
    room = WIDTH - sum(2 + max(lengths) for lengths in others)
    widths = [max((length for length in first if length <= room), default=4), *map(max, others)]
    for name, *cells in rows:
        if len(name) > widths[0]:
            put(name)
        padded = zip(("" if len(name) > widths[0] else name, *cells), widths, strict=True)
        put("  ".join(cell.ljust(width) for cell, width in padded).rstrip())


def run_in_utf8() -> None:
    """Begin this process anew in UTF-8 where its locale has another encoding of names, as LC_ALL=C or Latin-1 have.

    Python settles on one before any of our code runs. Java, and workers on this machine, follow the locale too.
    """
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        environment = os.environ | {"PYTHONUTF8": "1", "LC_ALL": "C.UTF-8"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def escape_what_cannot_be_printed() -> None:
    """Have standard output escape what its encoding lacks, which PYTHONIOENCODING may set; a strict one would fail."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def require_utf8(words: Sequence[str]) -> None:
    """Raise PlanError on a word that is no UTF-8, such as a file's name in Latin-1."""
    for word in words:
        if any("\udc80" <= sign <= "\udcff" for sign in word):
            raise PlanError(f"{in_a_line(word)}: it is not in UTF-8: rename the file, or set the terminal to UTF-8")
