"""Distributions of losses as counts in fixed bins: they add up exactly, so no cut of the data changes them."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfs.exact import up_text
from udfs.loss_bins import BINS, bins_of, upper_ends

Int64s = NDArray[np.int64]
Floats = NDArray[np.float64]

QUANTILES = ("0.01", "0.05", "0.1", "0.25", "0.5", "0.75", "0.9", "0.95", "0.99", "0.999", "0.9999")
CURVE_POINTS = 400  # of a cumulative curve, at most
TOTAL = "total"  # the family of the one distribution of all
SIZE, SECTOR, QUERY = "size", "sector", "query"  # families whose distributions are told apart by a number
PAPER_TOTAL, PAPER_SIZE, PAPER_QUERY = "paper total", "paper size", "paper query"  # the same by the paper's bound


@dataclass(frozen=True, eq=False)
class Counts:
    """How many losses lie in each of some bins, and the largest loss."""

    bins: Int64s
    counts: Int64s
    largest: float


@dataclass(eq=False, repr=False)
class Distributions:
    """Named distributions that are being counted; those of one family are told apart by a number."""

    _counts: dict[tuple[str, int], Int64s] = field(default_factory=dict)
    _largest: dict[tuple[str, int], float] = field(default_factory=dict)

    def count(self, family: str, number: int, losses: Floats) -> None:
        """Count losses ≥ 0 in one distribution."""
        if len(losses):
            self._add((family, number), np.bincount(bins_of(losses), minlength=BINS), float(losses.max()))

    def count_groups(self, family: str, groups: Int64s, losses: Floats) -> None:
        """Count losses ≥ 0 in the distributions whose numbers are given; there are few of them."""
        if not len(losses):
            return
        in_all = int(groups.max()) + 1
        counts = np.bincount(groups * BINS + bins_of(losses), minlength=in_all * BINS).reshape(in_all, BINS)
        largest = np.zeros(in_all)
        np.maximum.at(largest, groups, losses)
        for group in np.flatnonzero(counts.any(axis=1)).tolist():
            self._add((family, group), counts[group], float(largest[group]))

    def merge(self, other: Mapping[tuple[str, int], Counts]) -> None:
        """Add what another task counted."""
        for key, counts in other.items():
            whole = np.zeros(BINS, dtype=np.int64)
            whole[counts.bins] = counts.counts
            self._add(key, whole, counts.largest)

    def counts(self) -> dict[tuple[str, int], Counts]:
        """Return all distributions without their empty bins: small, to be sent."""
        found = {key: np.flatnonzero(counts) for key, counts in self._counts.items()}
        return {key: Counts(bins, self._counts[key][bins], self._largest[key]) for key, bins in found.items()}

    def _add(self, key: tuple[str, int], counts: Int64s, largest: float) -> None:
        if key in self._counts:
            self._counts[key] += counts
            self._largest[key] = max(self._largest[key], largest)
        else:
            self._counts[key] = counts.astype(np.int64)
            self._largest[key] = largest


def described(counts: Counts | None) -> dict[str, Any]:
    """Return a distribution as JSON: how many, its quantiles, its largest loss, and its cumulative curve.

    A quantile is a loss that at least such a share does not exceed: at least the true one, and above it by less than
    one part in 64. The curve holds pairs (loss, share of those that lose at most that). null stands for infinity.
    """
    if counts is None:
        return {"count": 0, "quantiles": {}, "largest": 0.0, "curve": []}
    whole = np.cumsum(counts.counts)
    total = int(whole[-1])
    ends = np.minimum(upper_ends(counts.bins), counts.largest)
    needed = [-(-total * Fraction(q).numerator // Fraction(q).denominator) for q in QUANTILES]
    at = np.searchsorted(whole, needed)
    shown = np.unique(np.linspace(0, len(ends) - 1, min(len(ends), CURVE_POINTS)).astype(int))
    return {
        "count": total,
        "quantiles": {q: _up(float(ends[i])) for q, i in zip(QUANTILES, at, strict=True)},
        "largest": _up(counts.largest),
        "curve": [[_up(float(ends[i])), int(whole[i]) / total] for i in shown],
    }


def merged(parts: Iterable[Mapping[tuple[str, int], Counts]]) -> dict[tuple[str, int], Counts]:
    """Return the sums of what several tasks counted."""
    whole = Distributions()
    for part in parts:
        whole.merge(part)
    return whole.counts()


def _up(loss: float) -> float | None:
    return float(up_text(Fraction(loss), 9)) if math.isfinite(loss) else None
