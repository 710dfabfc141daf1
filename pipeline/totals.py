"""From a plan to what one scan sums, and from the sums to each query's totals and blocks of work."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.cells import Base, Grouping, cheapest, grouping, roll_up_totals
from pipeline.errors import MicrodataError
from pipeline.plan.model import Plan, Query
from pipeline.tables import Block, ranges
from udfs.contract import MeasureColumn
from udfs.sums import CELL, RECORDS, BaseCells, CodeColumn, SumSpec


@dataclass(frozen=True, eq=False, repr=False)
class Totals:
    """The exact sums of one scan, materialised: confidential, so without a repr. `sums`: (base, addend) → all cells."""

    plan: Plan
    bases: tuple[Base, ...]
    sums: dict[tuple[int, str], NDArray[np.int64]]

    def of(self, query: Query) -> NDArray[np.int64]:
        """Return the query's totals in key order, in steps; cells without records are 0.

        Raises MicrodataError where a total leaves 63 bits.
        """
        base = cheapest(self.bases, _needed(query))
        cells = self.plan.domain.query_cells(query.by, query.where)
        try:
            return roll_up_totals(self.sums[base, _addend(query)], self.bases[base], cells)
        except OverflowError:
            raise MicrodataError(f"query {query.name}: a total lies beyond 63 bits; use a larger step") from None


def sum_spec(plan: Plan) -> SumSpec:
    """Return what the scan for `plan` sums: each query's addend by the cheapest base that rolls up to it."""
    domain = plan.domain
    bases = _bases(plan)
    needed = [(cheapest(bases, _needed(query)), _addend(query)) for query in plan.queries]
    return SumSpec(
        naics=CodeColumn(plan.dataset.keys["naics"], "naics6", domain.naics.level, _numbered(domain.naics.codes)),
        county=CodeColumn(plan.dataset.keys["county"], "county", domain.county.level, _numbered(domain.county.codes)),
        measures=_measures(plan),
        bases=tuple(
            BaseCells(
                size=base.size,
                naics=base.n_of_naics.astype(np.int64) * base.stride,
                county=base.c_of_county.astype(np.int64),
                addends=tuple(sorted({addend for b, addend in needed if b == i})),
                listed=base.listed,
            )
            for i, base in enumerate(bases)
        ),
        bad_records=plan.dataset.bad_records,
    )


def totals_of(plan: Plan, frame: pd.DataFrame) -> Totals:
    """Return the totals in a frame of sums; raises MicrodataError that names every broken rule, where one is."""
    spec = sum_spec(plan)
    cells = frame[CELL].to_numpy()
    if len(cells) and cells.min() < 0:
        broken = [spec.broken_rule(int(cell)) for cell in cells[cells < 0]]
        raise MicrodataError(contract_message(plan, broken, "mend the records, or set bad_records: drop"))
    sums = {}
    for i, base in enumerate(spec.bases):
        first, end = np.searchsorted(cells, (spec.offsets[i], spec.offsets[i + 1]))
        for addend in base.addends:
            whole = np.zeros(base.size, dtype=np.int64)
            whole[cells[first:end] - spec.offsets[i]] = frame[addend].to_numpy()[first:end]
            sums[i, addend] = whole
    return Totals(plan, _bases(plan), sums)


def blocks_of(plan: Plan, number: int, totals: Totals, folder: Path) -> list[Block]:
    """Return the blocks of query `number`, one for each file of its table."""
    query = plan.queries[number]
    cells = plan.domain.query_cells(query.by, query.where)
    values = totals.of(query)
    return [
        Block(
            query=query.name,
            number=number,
            first=first,
            keys=cells.keys(first, end),
            totals=values[first:end],
            mechanism=query.mechanism,
            interval=plan.interval,
            integer=query.measure is None or query.measure.type == "integer",
            path=str(folder / name),
        )
        for name, first, end in ranges(cells.size)
    ]


def contract_message(plan: Plan, broken: Sequence[tuple[str, str]], advice: str) -> str:
    """Return the message that names every broken rule once, by column, and no value."""
    rules = "; ".join(f"{column} {rule}" for column, rule in sorted(set(broken)))
    return f"dataset {plan.dataset.name}: the microdata break the contract: {rules}; {advice}"


def _bases(plan: Plan) -> tuple[Base, ...]:
    return plan.domain.base_for(_needed(query) for query in plan.queries)


def _needed(query: Query) -> Grouping:
    return grouping([*query.by, *query.where])


def _addend(query: Query) -> str:
    return RECORDS if query.measure is None else query.measure.name


def _numbered(codes: Sequence[str]) -> dict[str, int]:
    return {code: i for i, code in enumerate(codes)}


def _measures(plan: Plan) -> tuple[MeasureColumn, ...]:
    return tuple(
        MeasureColumn(
            name=measure.name,
            column=measure.column,
            step=measure.step,
            nonnegative=any(query.mechanism.needs_nonnegative for query in _summing(plan, measure.name)),
        )
        for measure in plan.dataset.measures
        if _summing(plan, measure.name)
    )


def _summing(plan: Plan, measure: str) -> list[Query]:
    return [query for query in plan.queries if query.measure is not None and query.measure.name == measure]
