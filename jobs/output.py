"""How results are printed: JSON for programs, columns for people."""

import json
from collections.abc import Sequence
from typing import Any


def print_json(value: Any) -> None:
    """Print a command's result as JSON; raises ValueError on a number that JSON does not have."""
    print(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False))


def print_columns(rows: Sequence[Sequence[str]]) -> None:
    """Print rows of text in columns, each as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
