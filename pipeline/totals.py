"""From a plan to what one scan sums, and from the sums to each query's totals and blocks of work."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.cells import Base, Grouping, cheapest, grouping, roll_up_totals
from pipeline.errors import MicrodataError
from pipeline.plan.model import Plan, Query
from pipeline.tables import Block, KeyColumn, ranges
from udfs.codes import dimension_of, roll_up
from udfs.contract import MeasureColumn
from udfs.sums import CELL, RECORDS, BaseCells, CodeColumn, SumSpec


@dataclass(frozen=True, eq=False, repr=False)
class Totals:
    """Each query's exact totals in key order, in steps, materialised: confidential, so without a repr."""

    of_query: tuple[NDArray[np.int64], ...]


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
        owner=plan.dataset.owner,
    )


def totals_of(plan: Plan, frame: pd.DataFrame) -> Totals:
    """Return the queries' totals from a frame of sums; cells without records are 0.

    Raises MicrodataError that names every broken rule, where one is, or the query with a total beyond 63 bits.
    """
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
    bases = _bases(plan)
    return Totals(tuple(_rolled_up(plan, query, bases, sums) for query in plan.queries))


def _rolled_up(
    plan: Plan, query: Query, bases: tuple[Base, ...], sums: Mapping[tuple[int, str], NDArray[np.int64]]
) -> NDArray[np.int64]:
    base = cheapest(bases, _needed(query))
    try:
        return roll_up_totals(sums[base, _addend(query)], bases[base], plan.domain.query_cells(query.by, query.where))
    except OverflowError:
        raise MicrodataError(f"query {query.name}: a total lies beyond 63 bits; use a larger step") from None


def blocks_of(plan: Plan, number: int, totals: Totals, folder: Path) -> list[Block]:
    """Return the blocks of query `number`, one for each file of its table."""
    query = plan.queries[number]
    cells = plan.domain.query_cells(query.by, query.where)
    values = totals.of_query[number]
    blocks = []
    for name, first, end in ranges(cells.size):
        keys = cells.keys(first, end)
        blocks.append(
            Block(
                query=query.name,
                number=number,
                first=first,
                keys=keys,
                totals=values[first:end],
                mechanisms=query.mechanisms,
                part_of=_part_of(query, keys),
                interval=plan.interval,
                integer=query.measure is None or query.measure.type == "integer",
                path=str(folder / name),
            )
        )
    return blocks


def _part_of(query: Query, keys: Mapping[str, KeyColumn]) -> NDArray[np.int32] | None:
    """Return the place of each cell's part among the query's parts; None where there is one mechanism for all."""
    if query.split is None:
        return None
    split = query.split
    part_of = {code: i for i, part in enumerate(query.parts) for code in part.codes}
    level = next(level for level in query.by if dimension_of(level) == dimension_of(split))
    codes, places = keys[level]
    of_code = np.array([part_of.get(roll_up(code, split), -1) for code in codes], dtype=np.int32)
    return of_code[places]  # a code of part -1 is filtered out and has no cell


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
            nonnegative=any(m.needs_nonnegative for query in _summing(plan, measure.name) for m in query.mechanisms),
        )
        for measure in plan.dataset.measures
        if _summing(plan, measure.name)
    )


def _summing(plan: Plan, measure: str) -> list[Query]:
    return [query for query in plan.queries if query.measure is not None and query.measure.name == measure]
