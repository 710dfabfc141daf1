"""Distributions of losses as counts in fixed bins: they add up exactly, whatever the order and the cut of the data.

A bin is the leading digits of the double itself, 64 bins to a doubling, so that no logarithm is taken. A quantile read
from the bins is the upper end of its bin: at least the true one, and above it by less than one part in 64.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from pipeline.base.html import QUANTILES
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.exact import up_text

Key = tuple[str, int]  # a family of distributions, and the number of one of it

DIGITS = 6  # binary digits after the first: 2⁶ bins to a doubling
SHIFT = np.finfo(np.float64).nmant - DIGITS
LOWEST, HIGHEST = -150, 350  # exponents of two: a smaller loss above 0 counts in the first bin, a larger in the last
CURVE_POINTS = 400  # of a cumulative curve, at most
TOTAL, SIZE, SECTOR, QUERY = "total", "size", "sector", "query"  # families: all tables together, by size class, …
PAPER_TOTAL, PAPER_SIZE, PAPER_QUERY = "paper total", "paper size", "paper query"  # the same by the paper's bound


def _leading_digits(loss: Floats) -> Int64s:
    digits: Int64s = loss.view(np.int64) >> SHIFT
    return digits


FIRST, LAST = (int(digits) for digits in _leading_digits(np.array([2.0**LOWEST, 2.0**HIGHEST])))
BINS = LAST - FIRST + 2  # bin 0: losses of exactly 0


def bins_of(loss: Floats) -> Int64s:
    """Return the bin of each loss ≥ 0; infinity lies in the last."""
    return np.where(loss > 0, np.clip(_leading_digits(loss), FIRST, LAST) - (FIRST - 1), 0)


def upper_ends(bins: Int64s) -> Floats:
    """Return the upper end of each bin: 0 of bin 0, infinity of the last."""
    ends = ((bins + FIRST) << SHIFT).view(np.float64)
    return np.where(bins == 0, 0.0, np.where(bins == BINS - 1, np.inf, ends))


@dataclass(frozen=True, eq=False)
class Counts:
    """How many losses lie in each of some bins, and the largest loss."""

    bins: Int64s
    counts: Int64s
    largest: float

    def to_json(self) -> dict[str, Any]:
        """Return how many losses there are, their quantiles, the largest, and their cumulative curve.

        A quantile is a loss that at least such a share does not exceed: at least the true one, and above it by less
        than one part in 64. The curve holds pairs (loss, share of those that lose at most that). null stands for
        infinity.
        """
        cumulative = np.cumsum(self.counts)
        total = int(cumulative[-1])
        ends = np.minimum(upper_ends(self.bins), self.largest)
        needed = [-(-total * Fraction(q).numerator // Fraction(q).denominator) for q in QUANTILES]
        at = np.searchsorted(cumulative, needed)
        shown = np.unique(np.linspace(0, len(ends) - 1, min(len(ends), CURVE_POINTS)).astype(int))
        return {
            "count": total,
            "quantiles": {q: _up(float(ends[i])) for q, i in zip(QUANTILES, at, strict=True)},
            "largest": _up(self.largest),
            "curve": [[_up(float(ends[i])), int(cumulative[i]) / total] for i in shown],
        }


NO_LOSSES: Mapping[str, Any] = {"count": 0, "quantiles": {}, "largest": 0.0, "curve": []}  # where there are no counts


class Distributions:
    """Distributions that are being counted; those of one family differ by a number."""

    def __init__(self) -> None:
        self._counts: dict[Key, Int64s] = {}
        self._largest: dict[Key, float] = {}

    def count(self, family: str, number: int, losses: Floats) -> None:
        """Count losses ≥ 0 in one distribution."""
        if len(losses):
            self._add((family, number), np.bincount(bins_of(losses), minlength=BINS), float(losses.max()))

    def count_groups(self, family: str, groups: Int64s, losses: Floats) -> None:
        """Count each loss ≥ 0 in the distribution whose number stands in `groups`; there are few of them."""
        if not len(losses):
            return
        size = int(groups.max()) + 1
        counts = np.bincount(groups * BINS + bins_of(losses), minlength=size * BINS).reshape(size, BINS)
        largest = np.zeros(size)
        np.maximum.at(largest, groups, losses)
        for group in np.flatnonzero(counts.any(axis=1)).tolist():
            self._add((family, group), counts[group], float(largest[group]))

    def counts(self) -> dict[Key, Counts]:
        """Return all distributions without their empty bins: small, to be sent."""
        bins = {key: np.flatnonzero(counts) for key, counts in self._counts.items()}
        return {key: Counts(bins[key], counts[bins[key]], self._largest[key]) for key, counts in self._counts.items()}

    def _add(self, key: Key, counts: Int64s, largest: float) -> None:
        self._counts[key] = self._counts.get(key, 0) + counts.astype(np.int64)
        self._largest[key] = max(self._largest.get(key, 0.0), largest)

    @classmethod
    def merged(cls, parts: Iterable[Mapping[Key, Counts]]) -> dict[Key, Counts]:
        """Return the sums of what several tasks counted."""
        total = cls()
        for part in parts:
            for key, counts in part.items():
                in_all_bins = np.zeros(BINS, dtype=np.int64)
                in_all_bins[counts.bins] = counts.counts
                total._add(key, in_all_bins, counts.largest)
        return total.counts()


def _up(loss: float) -> float | None:
    return float(up_text(Fraction(loss), 9)) if math.isfinite(loss) else None
