"""Fixed bins of losses, 64 to a doubling: counts in them add up exactly, whatever the order and the cut of the data.

A bin is the leading digits of the double itself, so that no logarithm is taken. A quantile read from the bins is the
upper end of its bin: at least the true one, and above it by less than one part in 64.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.plan.model import Measure, Plan, Query
from pipeline.report.losses import by_paper
from pipeline.tables.totals import Layout, Table
from udfs.mechanisms.additive import states_tight
from udfs.numbers.exact import up_text
from udfs.records.codes import dimension_of
from udfs.records.decoding import NOWHERE, SumSpec
from udfs.records.influence import QueryLoss

DIGITS = 6  # binary digits after the first: 2⁶ bins to a doubling
SHIFT = np.finfo(np.float64).nmant - DIGITS
LOWEST, HIGHEST = -150, 350  # exponents of two: a smaller loss above 0 counts in the first bin, a larger in the last


def _key(loss: NDArray[np.float64]) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = loss.view(np.int64) >> SHIFT
    return keys


FIRST, LAST = (int(key) for key in _key(np.array([2.0**LOWEST, 2.0**HIGHEST])))
BINS = LAST - FIRST + 2  # bin 0: losses of exactly 0


def bins_of(loss: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each loss ≥ 0; infinity lies in the last."""
    return np.where(loss > 0, np.clip(_key(loss), FIRST, LAST) - (FIRST - 1), 0)


def upper_ends(bins: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the upper end of each bin: 0 of bin 0, infinity of the last."""
    ends = ((bins + FIRST) << SHIFT).view(np.float64)
    return np.where(bins == 0, 0.0, np.where(bins == BINS - 1, np.inf, ends))


# Distributions of losses as counts in fixed bins: they add up exactly, so no cut of the data changes them.


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


# What of a plan the tasks of a diagnostics run need: how records become losses, and how they are classed.


SIZE_MEASURE = "employment"
SIZES = (0, 1, 5, 10, 20, 50, 100, 250, 500, 1000, 5000)  # the smallest size of each class
SECTOR = "naics2"


@dataclass(frozen=True, eq=False)
class LossSpec:
    """The scan, the tables, and each query's losses, in the plan's order.

    `by_paper`: the paper's bound of the same noise, of each query whose policy is tight, by its place in `queries`.
    `size`: the measure that classes records by size, among those that the plan sums (None: there is none). `sector_of`:
    the place in `sectors` of each industry of the domain.
    """

    scan: SumSpec
    tables: tuple[Table, ...]
    queries: tuple[QueryLoss, ...]
    by_paper: Mapping[int, QueryLoss]
    size: Measure | None
    sectors: tuple[str, ...]
    sector_of: Int64s

    def size_class(self, values: Int64s) -> Int64s:
        """Return the class of each size, given in steps of the measure: its place in SIZES."""
        edges = [edge / self.size.step for edge in SIZES] if self.size else []
        return np.searchsorted([-(-e.numerator // e.denominator) for e in edges], np.abs(values), "right") - 1


def loss_spec(plan: Plan, layout: Layout) -> LossSpec:
    """Return what the tasks need; `layout` is that of the plan's release."""
    domain = plan.domain
    queries = tuple(_query_loss(table, plan) for table in layout.tables)
    return LossSpec(
        scan=layout.spec,
        tables=layout.tables,
        queries=queries,
        by_paper={i: _by_paper(query) for i, query in enumerate(queries) if any(map(states_tight, query.mechanisms))},
        size=_size_measure(plan, layout.spec),
        sectors=domain.naics.level_codes(SECTOR),
        sector_of=domain.naics.parent(SECTOR).astype(np.int64),
    )


def with_names(spec: LossSpec, columns: Sequence[str]) -> LossSpec:
    """Return the same with more columns read, which the files of single records name them by."""
    return replace(spec, scan=replace(spec.scan, also=tuple(columns)))


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
    query, cells = table.query, table.cells
    numbers = {
        "naics": np.where(cells.naics.position >= 0, 0, NOWHERE),
        "county": np.where(cells.county.position >= 0, 0, NOWHERE),
    }
    if query.split is not None:
        key = dimension_of(query.split)
        part = _parts(query, plan)
        numbers[key] = np.where((part >= 0) & (numbers[key] == 0), part, NOWHERE)
    return QueryLoss(
        name=query.name,
        base=table.base_number,
        addend=table.addend,
        step=query.parts[0].mechanism.step,
        naics=numbers["naics"],
        county=numbers["county"],
        mechanisms=query.mechanisms,
    )


def _by_paper(query: QueryLoss) -> QueryLoss:
    return replace(query, mechanisms=tuple(by_paper(mechanism) for mechanism in query.mechanisms))


def _parts(query: Query, plan: Plan) -> Int64s:
    """Return the part of each of the finest codes of the key by which the query's mechanism is given, −1 for none."""
    assert query.split is not None
    dimension = plan.domain.dimension(query.split)
    part_of = {code: i for i, part in enumerate(query.parts) for code in part.codes}
    of_code = np.array([part_of.get(code, -1) for code in dimension.level_codes(query.split)], dtype=np.int64)
    return of_code[dimension.parent(query.split)]
