"""What of a plan the tasks of a diagnostics run need: how records become losses, and how they are classed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pipeline.by_paper import by_paper
from pipeline.plan.model import Measure, Plan, Query
from pipeline.totals import Layout, Table
from udfs.codes import dimension_of
from udfs.influence import QueryLoss
from udfs.mechanisms.tight import states_tight
from udfs.scan import NOWHERE, SumSpec

SIZE_MEASURE = "employment"
SIZES = (0, 1, 5, 10, 20, 50, 100, 250, 500, 1000, 5000)  # the smallest size of each class
SECTOR = "naics2"

Int64s = NDArray[np.int64]


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
