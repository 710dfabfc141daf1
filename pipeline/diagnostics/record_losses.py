"""What of a plan the tasks of a diagnostics run need: how records become losses, and how they are classed."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from pipeline.base.plain import QUANTILES
from pipeline.engines.totals import Layout, Table, parts_of_codes
from pipeline.plan.model import Measure, Plan
from pipeline.plan.total_policy import left_out_test_of
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.exact import up_text
from udfs.records.codes import NOWHERE
from udfs.records.decoding import SumSpec
from udfs.records.influence import QueryLoss
from udfs.records.statistics import Count

SIZE_MEASURE = "employment"
SIZES = (0, 1, 5, 10, 20, 50, 100, 250, 500, 1000, 5000)  # the smallest size of each class
SECTOR_LEVEL = "naics2"


@dataclass(frozen=True, eq=False)
class LossSpec:
    """The scan, the tables, and each query's losses, in the plan's order."""

    scan: SumSpec
    tables: tuple[Table, ...]
    queries: tuple[QueryLoss, ...]
    paper_queries: Mapping[int, QueryLoss]  # by index, where a policy is tight: the paper's bound of the same noise
    test: Mechanism  # of records left out, a count in which every record is
    size: Measure | None  # that classes records by size, among the measures that the plan sums
    keys: tuple[str, ...]  # those that are columns
    sectors: tuple[str, ...]
    sector_of: Mapping[int, Int64s]  # for the key naics, if any, each industry's index in `sectors`; −1: in no list

    @classmethod
    def of(cls, plan: Plan, layout: Layout) -> "LossSpec":
        """Return what the tasks need; `layout` is that of the plan's release."""
        queries = tuple(_query_loss(table, plan) for table in layout.tables)
        sector_key = plan.domain.levels.get(SECTOR_LEVEL)
        industries = None if sector_key is None else plan.domain.dimensions[sector_key]
        return cls(
            scan=layout.spec,
            tables=layout.tables,
            queries=queries,
            paper_queries={
                i: replace(query, mechanisms=tuple(m.by_paper() for m in query.mechanisms))
                for i, query in enumerate(queries)
                if any(m.tight for m in query.mechanisms)
            },
            test=left_out_test_of(plan).mechanism,
            size=_size_measure(plan, layout.spec),
            keys=tuple(each.key for each in plan.domain.dimensions if each.key in plan.dataset.keys),
            sectors=() if industries is None else industries.level_codes(SECTOR_LEVEL),
            sector_of=(
                {}
                if industries is None
                else {plan.domain.levels[SECTOR_LEVEL]: np.append(industries.parent(SECTOR_LEVEL).astype(np.int64), -1)}
            ),
        )

    def reading(self, columns: Sequence[str]) -> "LossSpec":
        """Return the same with more columns read, which name the rows in files of single records."""
        return replace(self, scan=replace(self.scan, also=tuple(columns)))

    def size_class(self, values: Int64s) -> Int64s:
        """Return the class of each size in steps of the measure: its index in SIZES."""
        edges = [edge / self.size.step for edge in SIZES] if self.size else []
        return np.searchsorted([-(-e.numerator // e.denominator) for e in edges], np.abs(values), "right") - 1


def size_labels() -> list[str]:
    """Return the names of the size classes."""
    ends = (*SIZES[1:], None)
    return [
        f"{first:,} and more" if end is None else f"{first:,}" if end == first + 1 else f"{first:,}–{end - 1:,}"
        for first, end in zip(SIZES, ends, strict=True)
    ]


def _size_measure(plan: Plan, scan: SumSpec) -> Measure | None:
    scanned = {measure.name for measure in scan.measures}
    able = [m for m in plan.dataset.measures if m.name in scanned and (m.type == "integer" or m.name == SIZE_MEASURE)]
    return min(able, key=lambda measure: (measure.name != SIZE_MEASURE, measure.name), default=None)


def _query_loss(table: Table, plan: Plan) -> QueryLoss:
    query = table.query
    numbers = {}
    for axis in table.cells.axes:
        inside, part = axis.position >= 0, np.zeros(len(axis.position), dtype=np.int64)
        dimension = plan.domain.dimensions[axis.key]
        if query.split in dimension.levels:
            part = parts_of_codes(query, dimension)[dimension.parent(query.split)].astype(np.int64)
        numbers[axis.key] = np.append(np.where(inside & (part >= 0), part, NOWHERE), NOWHERE)
    return QueryLoss(
        name=query.name,
        base=table.base_number,
        addend=query.statistic.addend if query.statistic.adds_up else Count.addend,
        step=query.parts[0].mechanism.step,
        part_of=numbers,
        mechanisms=query.mechanisms,
        most=query.statistic.most,
    )


# Distributions of losses as counts in fixed bins: they add up exactly, whatever the order and the cut of the data.
#
# A bin is the leading digits of the double itself, 64 bins to a doubling, so that no logarithm is taken. A quantile
# read from the bins is the upper end of its bin: at least the true one, and above it by less than one part in 64.

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
        position = np.searchsorted(cumulative, needed)
        shown = np.unique(np.linspace(0, len(ends) - 1, min(len(ends), CURVE_POINTS)).astype(int))
        return {
            "count": total,
            "quantiles": {q: _up(float(ends[i])) for q, i in zip(QUANTILES, position, strict=True)},
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
