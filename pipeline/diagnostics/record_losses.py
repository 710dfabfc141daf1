"""What of a plan the tasks of a diagnostics run need: how records become losses, and how they are classed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.engines.totals import Layout, Table, parts_of_codes
from pipeline.plan.model import Measure, Plan
from pipeline.plan.total_policy import left_out_test_of
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import Int64s
from udfs.records.codes import NOWHERE
from udfs.records.decoding import SumSpec
from udfs.records.influence import QueryLoss

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
            keys=tuple(each.key for each in plan.domain.dimensions if each.classes is None),
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
        addend=table.addend,
        step=query.parts[0].mechanism.step,
        part_of=numbers,
        mechanisms=query.mechanisms,
    )
