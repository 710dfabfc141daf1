"""The table that the synthetic economy follows, Statistics of U.S. Businesses 2021, and the laws of size within it."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

TABLE: Final = Path(__file__).resolve().parents[3] / "conf" / "economy" / "susb_2021.csv"
MEASURES: Final = ("firms", "establishments", "employment", "payroll")
NATION: Final = "00"
HEAD_OFFICES: Final = "55"  # the sector whose establishments manage other establishments of their firm


@dataclass(frozen=True)
class SizeClass:
    """A class of firms by the employment of all their establishments together, both ends included."""

    name: str
    least: int
    most: int


QUANTILES: Final = 512  # of each law of size: a draw picks one, all equally likely
LAWS: Final = 201  # of different means, in each class
SMALLEST_FIRMS: Final = (0.22, 0.37, 0.18, 0.13, 0.10)  # shares of firms of 0 to 4 employees: mean 1.5, the table's
OPEN_END: Final = 10_000_000
CLASSES: Final = (
    SizeClass("0-4", 0, 4),
    SizeClass("5-9", 5, 9),
    SizeClass("10-19", 10, 19),
    SizeClass("20-99", 20, 99),
    SizeClass("100-499", 100, 499),
    SizeClass("500+", 500, OPEN_END),
)


@dataclass(frozen=True)
class Susb:
    """Figures by size class of the firm (first axis), sector (second) and state (third); payroll in $1,000.

    `firms` has no third axis: a firm counts once in each sector where it has establishments, whatever their states.
    All firms, establishments, employment and payroll of a class and sector are positive; those of a state may be 0.
    """

    sectors: tuple[str, ...]
    states: tuple[str, ...]
    firms: Floats
    establishments: Floats
    employment: Floats
    payroll: Floats


def susb() -> Susb:
    """Return the table with every sector divided by size class.

    Three sectors (31-33, 44-45, 48-49) come with totals alone: `divide` estimates their classes, state by state, from
    the other sectors of the same state, head offices aside. The states add up to the nation but for cells of fewer
    than three firms, which are not published: 2 establishments in 100,000.
    """
    totals, classes = _read()
    sectors = tuple(sorted({sector for _, sector in classes} | {sector for _, sector in totals}))
    states = tuple(sorted({state for state, _ in classes} - {NATION}))
    by_state = np.stack([_of_state(totals, classes, sectors, state) for state in states], axis=-1)
    nation = _of_state(totals, classes, sectors, NATION)
    firms = by_state[1].sum(axis=-1) * nation[0] / nation[1]
    return Susb(sectors, states, firms, *by_state[1:])


def divide(donors: Floats, totals: Floats) -> Floats:
    """Return an estimate of a sector's figures by size class, which add up to its `totals` of the four measures.

    `donors` are the figures of other sectors, one row a measure, one column a class. Kept from them are the employment
    of the classes' mean firm; the classes' numbers of firms are tilted by a power of that employment until firms and
    employment fit. The donors' establishments beyond one a firm, and their mean pay, are scaled by one number each.
    """
    firms, establishments, employment, payroll = donors
    size = employment / firms
    shares = firms / firms.sum()

    def tilted(power: float) -> Floats:
        weights: Floats = shares * size**power
        weights /= weights.sum()
        return weights

    # the mean firm grows with the power, from below one employee to thousands
    power = brentq(lambda power: tilted(power) @ size - totals[2] / totals[0], -5, 5)
    count = totals[0] * tilted(power)  # of firms
    beyond = count * (establishments / firms - 1)
    pay = count * size * (payroll / employment)
    beyond *= (totals[1] - totals[0]) / beyond.sum()
    return np.array([count, count + beyond, count * size, pay * totals[3] / pay.sum()])


Cells = dict[tuple[str, str], Floats]


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a list in conf/."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def _read() -> tuple[Cells, Cells]:
    """Return by state and sector the four totals of undivided sectors, and the measures × classes of the others."""
    numbers = {size.name: k for k, size in enumerate(CLASSES)}
    totals: Cells = {}
    classes: Cells = {}
    for row in read_rows(TABLE):
        cell = (row["state"], row["sector"])
        figures = np.array([float(row[measure]) for measure in MEASURES])
        if row["size"] == "total":
            totals[cell] = figures
        else:
            by_class = classes.setdefault(cell, np.zeros((len(MEASURES), len(CLASSES))))
            by_class[:, numbers[row["size"]]] = figures
    return totals, classes


def _of_state(totals: Cells, classes: Cells, sectors: tuple[str, ...], state: str) -> Floats:
    """Return measures × classes × sectors; a sector of which the state shows nothing is left at 0."""
    figures = np.zeros((len(MEASURES), len(CLASSES), len(sectors)))
    donors = np.sum([cell for (s, sector), cell in classes.items() if s == state and sector != HEAD_OFFICES], axis=0)
    for j, sector in enumerate(sectors):
        if (state, sector) in totals:
            figures[:, :, j] = divide(donors, totals[state, sector])
        elif (state, sector) in classes:
            figures[:, :, j] = classes[state, sector]
    return figures


class WithinClass:
    """Employment of a firm in a class that ends: Zipf's law n⁻², tilted exponentially to a mean.

    There are `LAWS` laws, with means from close to the least to close to the most of the class.
    """

    def __init__(self, size: SizeClass) -> None:
        self.values = np.arange(size.least, size.most + 1)
        base = np.array(SMALLEST_FIRMS) if size.least == 0 else self.values**-2.0
        height = np.linspace(0, 1, len(self.values))
        tilts = np.linspace(-30, 30, LAWS)[:, None]
        weights = base * np.exp(tilts * height - np.maximum(tilts, 0))
        laws = weights / weights.sum(axis=1, keepdims=True)
        middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
        ends = np.cumsum(laws, axis=1)
        quantiles = [self.values[np.minimum(np.searchsorted(law, middles), len(law) - 1)] for law in ends]
        self.quantiles = np.array(quantiles, dtype=np.int64)  # law × quantile, in people
        self.means = self.quantiles.mean(axis=1)
        self.empty = (self.quantiles == 0).mean(axis=1)  # chance of nobody

    def law(self, mean: Floats) -> Ints:
        """Return the number of the law with the mean nearest to each of `mean`."""
        after = np.clip(np.searchsorted(self.means, mean), 1, LAWS - 1)
        nearer_before = mean - self.means[after - 1] < self.means[after] - mean
        laws: Ints = after - nearer_before
        return laws

    def draw(self, rng: np.random.Generator, laws: Ints) -> Ints:
        """Return the employment of one firm of each of `laws`."""
        drawn: Ints = self.quantiles.ravel()[laws * QUANTILES + rng.integers(0, QUANTILES, len(laws))]
        return drawn


class Pareto:
    """Numbers n ≥ 1 with P(n) ∝ n^−(1+index), at most `most`; the index is the one that gives `mean`."""

    def __init__(self, mean: float, most: int) -> None:
        log_n = np.log(np.arange(1, most + 1))

        def law(index: float) -> Floats:
            weights: Floats = np.exp(-(1 + index) * log_n)
            weights /= weights.sum()
            return weights

        self.index = brentq(lambda index: law(index) @ np.exp(log_n) - mean, -0.9, 20)
        self.ends = np.cumsum(law(self.index))
        self.ends[-1] = 1.0

    def at(self, chance: Floats) -> Ints:
        """Return the quantiles at `chance` in [0, 1)."""
        return np.searchsorted(self.ends, chance, side="right") + 1


def evenly(rng: np.random.Generator, count: int) -> Floats:
    """Return `count` numbers, each uniform on [0, 1), one in each of `count` equal parts, in random order.

    Sums over such draws of a heavy tail vary far less than over independent ones.
    """
    return np.minimum((rng.permutation(count) + rng.random(count)) / max(count, 1), 1 - 2**-40)


def rounded(rng: np.random.Generator, sizes: Floats, total: int | None = None) -> Ints:
    """Return whole numbers whose means are `sizes`, any run of them within 1 of its sum, by one random start.

    A `total` is the sum of `sizes` where it is a whole number, and is then kept whatever the rounding.
    """
    ends = np.floor(np.cumsum(sizes) + rng.random()).astype(np.int64)
    if total is not None:
        ends = np.minimum(ends, total)
        ends[-1] = total
    counts: Ints = np.diff(ends, prepend=0)
    return counts
