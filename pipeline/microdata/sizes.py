"""The laws of size: employment of firms within a size class, and how many establishments firms have."""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from pipeline.microdata.susb import SizeClass

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

QUANTILES: Final = 512  # of each law: a draw picks one, all alike likely
LAWS: Final = 201  # of different means, in each class
SMALLEST_FIRMS: Final = (0.22, 0.37, 0.18, 0.13, 0.10)  # of 0 to 4 employees: with 1.5 in the mean, as in the table


class WithinClass:
    """Employment of a firm in a class that ends: Zipf's law n⁻², tilted exponentially to the mean that is asked.

    The tables hold `LAWS` laws of means from close to the least to close to the most of the class.
    """

    def __init__(self, size: SizeClass) -> None:
        self.values = np.arange(size.least, size.most + 1)
        base = np.array(SMALLEST_FIRMS) if size.least == 0 else self.values**-2.0
        place = np.linspace(0, 1, len(self.values))
        tilts = np.linspace(-30, 30, LAWS)[:, None]
        weights = base * np.exp(tilts * place - np.maximum(tilts, 0))
        laws = weights / weights.sum(axis=1, keepdims=True)
        middles = (np.arange(QUANTILES) + 0.5) / QUANTILES
        ends = np.cumsum(laws, axis=1)
        found = [self.values[np.minimum(np.searchsorted(law, middles), len(law) - 1)] for law in ends]
        self.quantiles = np.array(found, dtype=np.int64)  # law × quantile, in people
        self.means = self.quantiles.mean(axis=1)
        self.empty = (self.quantiles == 0).mean(axis=1)  # chance of nobody

    def law(self, mean: Floats) -> Ints:
        """Return which law has the mean nearest to each of `mean`."""
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
