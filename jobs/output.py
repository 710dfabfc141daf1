"""How results are printed: JSON for programs, columns for people."""

import json
from collections.abc import Sequence
from typing import Any

from pipeline.report.text import WIDTH, wrapped


def print_json(value: Any) -> None:
    """Print a command's result as JSON; raises ValueError on a number that JSON does not have."""
    print(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def say(*lines: str) -> None:
    """Print lines for people, each broken where it is wider than a terminal."""
    for line in lines:
        print(*wrapped(line), sep="\n")


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns, each as wide as its longest cell.

    A first cell that leaves no room for the others on a terminal has a line of its own.
    """
    first, *others = ([*map(len, column)] for column in zip(*rows, strict=True))
    room = WIDTH - sum(2 + max(lengths) for lengths in others)
    widths = [max((length for length in first if length <= room), default=4), *map(max, others)]
    for name, *cells in rows:
        if len(name) > widths[0]:
            print(name)
        padded = zip(("" if len(name) > widths[0] else name, *cells), widths, strict=True)
        print("  ".join(cell.ljust(width) for cell, width in padded).rstrip())
