"""Public distributions of sizes, of records or of cells: the file that a user states to be public, or the economy's."""

import csv
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pipeline.base.errors import PlanError
from pipeline.storage.inputs import input_lines
from udfs.numbers.exact import exact

BUILT_IN: Final = Path(__file__).resolve().parents[2] / "conf" / "economy" / "establishment_sizes.csv"
HEADER: Final = ["value", "count"]
MOST_SIZES: Final = 1_000_000
MOST_GROUPS: Final = 200  # of sizes, for which shares are computed one by one


@dataclass(frozen=True, eq=False)
class Sizes:
    """A public distribution of sizes, never one of confidential microdata.

    `count` records of influence `value` each; values ascend, are at least 0, and one of them is above 0.
    """

    value: NDArray[np.float64]
    count: NDArray[np.float64]

    @property
    def records(self) -> float:
        """How many records there are."""
        return float(self.count.sum())

    @property
    def mean(self) -> float:
        """The mean influence."""
        return float(self.value @ self.count) / self.records


ONE_EACH: Final = Sizes(np.ones(1), np.ones(1))  # of records that are counted: each has an influence of 1


def read_sizes(path: Path = BUILT_IN) -> Sizes:
    """Return the distribution of a CSV file with the header value,count, which its user states to be public.

    A value may stand in several lines. Raises PlanError, which names file and line, on anything else.
    """
    counts: dict[Fraction, Fraction] = {}
    try:
        with input_lines(path) as lines:
            rows = csv.reader(lines)
            if next(rows, None) != HEADER:
                raise PlanError(f"{path}: the first line must be {','.join(HEADER)}")
            for row in filter(None, rows):
                value, count = _row(path, rows.line_num, row)
                counts[value] = counts.get(value, Fraction(0)) + count
                if len(counts) > MOST_SIZES:
                    raise PlanError(f"{path}: more than {MOST_SIZES:,} different values; round them")
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise PlanError(f"{path}: not a CSV file in UTF-8") from None
    if not any(value > 0 and count > 0 for value, count in counts.items()):
        raise PlanError(f"{path}: no record of a value above 0")
    pairs = sorted((float(value), float(count)) for value, count in counts.items() if count > 0)
    return Sizes(*np.array(pairs).T)


def _row(path: Path, line: int, row: list[str]) -> tuple[Fraction, Fraction]:
    try:
        value, count = map(exact, row)
        if not (value >= 0 and count >= 0):
            raise ValueError
        float(value), float(count)
    except (ValueError, OverflowError):
        raise PlanError(f"{path}: line {line}: must be two numbers of at least 0") from None
    return value, count


def grouped(sizes: Sizes) -> tuple[tuple[float, float], ...]:
    """Return pairs of a size above 0 and its count; of many sizes near ones together, as the smallest of them."""
    above = sizes.value > 0
    value, count = sizes.value[above], sizes.count[above]
    if len(value) <= MOST_GROUPS:
        return tuple(zip(value.tolist(), count.tolist(), strict=True))
    logs = np.log(value)
    number = np.floor((logs - logs[0]) / (logs[-1] - logs[0]) * (MOST_GROUPS - 1)).astype(int)
    first = np.unique(number, return_index=True)[1]
    return tuple(zip(value[first].tolist(), np.add.reduceat(count, first).tolist(), strict=True))
