"""A plan's layout: what one scan of the microdata sums, and what each table is made of; totals from the sums."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from pipeline.errors import MicrodataError, PlanError
from pipeline.plan.cells import Base, Grouping, QueryCells, cheapest, grouping, roll_up_totals
from pipeline.plan.domain import Dimension
from pipeline.plan.model import Measure, Plan, Query
from pipeline.storage.location import Location
from pipeline.tables.files import Block, KeyColumn, ranges
from udfs.numbers.wide import Wide
from udfs.records.codes import dimension_of, roll_up
from udfs.records.contract import ColumnUnfit, ContractBroken, MeasureColumn
from udfs.records.decoding import OUTSIDE, BaseCells, CodeColumn, SumSpec
from udfs.records.sums import CELL, HIGH, broken_of


@dataclass(frozen=True, eq=False)
class Table:
    """All that is public of one query's table: how its totals come from sums, and what its files are made of.

    Sums of its addend by the cells of base number `base_number` roll up to its own `cells`.
    """

    number: int
    query: Query
    interval: Fraction
    base_number: int
    base: Base
    cells: QueryCells

    @property
    def name(self) -> str:
        """The query's name."""
        return self.query.name

    @property
    def addend(self) -> str:
        """What is summed."""
        return self.query.statistic.addend

    def block(self, first: int, end: int, totals: NDArray[np.int64], path: Location) -> Block:
        """Return the block of cells `first` … `end` − 1, whose totals are given, and its file `path`."""
        keys = self.cells.keys(first, end)
        return Block(
            query=self.name,
            number=self.number,
            first=first,
            keys=keys,
            totals=totals,
            mechanisms=self.query.mechanisms,
            part_of=_part_of(self.query, keys),
            interval=self.interval,
            integer=self.query.integer,
            path=str(path),
        )


@dataclass(frozen=True, eq=False)
class Layout:
    """What an engine has to do for a plan: the scan, and the tables of its sums. It names no secret key and no file."""

    dataset: str
    spec: SumSpec
    tables: tuple[Table, ...]


def layout_of(plan: Plan) -> Layout:
    """Return the scan and the tables of a plan."""
    bases = _bases(plan)
    tables = []
    for number, query in enumerate(plan.queries):
        base = cheapest(bases, _needed(query))
        cells = plan.domain.query_cells(query.by, query.where)
        tables.append(Table(number, query, plan.interval, base, bases[base], cells))
    return Layout(plan.dataset.name, sum_spec(plan), tuple(tables))


def sum_spec(plan: Plan) -> SumSpec:
    """Return what the scan for `plan` sums: each query's addend by the cheapest base that rolls up to it."""
    domain = plan.domain
    bases = _bases(plan)
    needed = [(cheapest(bases, _needed(query)), query.statistic.addend) for query in plan.queries]
    spec = SumSpec(
        naics=_code_column(plan.dataset.keys["naics"], "naics6", domain.naics),
        county=_code_column(plan.dataset.keys["county"], "county", domain.county),
        measures=measure_columns(plan),
        bases=tuple(
            BaseCells(
                size=base.size,
                naics=base.rows.astype(np.int64) * base.stride,
                county=base.columns.astype(np.int64),
                addends=tuple(sorted({addend for b, addend in needed if b == i})),
                listed=base.listed,
            )
            for i, base in enumerate(bases)
        ),
        bad_records=plan.dataset.bad_records,
        owner=plan.dataset.owner,
        record=None if plan.dataset.duplicates == "trust" else plan.dataset.record,
    )
    further = {query.statistic: None for query in plan.queries if query.statistic not in spec.statistics}
    return replace(spec, further_statistics=tuple(further))


def totals_of(layout: Layout, frame: pd.DataFrame) -> tuple[NDArray[np.int64], ...]:
    """Return each table's totals in key order, in steps, from a frame of sums; cells without records are 0.

    They are exact, and held at ±(2⁶³ − 1) steps. Raises MicrodataError that names every broken rule, where one is.
    """
    spec = layout.spec
    cells = frame[CELL].to_numpy()
    require_unbroken(layout, broken_of(cells))
    sums = {}
    for i, base in enumerate(spec.bases):
        first, end = np.searchsorted(cells, (spec.offsets[i], spec.offsets[i + 1]))
        for addend in base.addends:
            words = [np.zeros(base.size, dtype=np.int64) for name in (addend, HIGH + addend) if name in frame]
            for word, name in zip(words, (addend, HIGH + addend), strict=False):
                word[cells[first:end] - spec.offsets[i]] = frame[name].to_numpy()[first:end]
            sums[i, addend] = Wide(*words)
    return tuple(
        roll_up_totals(sums[table.base_number, table.addend], table.base, table.cells) for table in layout.tables
    )


def require_unbroken(layout: Layout, broken: Iterable[int]) -> None:
    """Raise MicrodataError, which names every broken rule, if there are cells that stand for broken rules."""
    cells = [int(cell) for cell in broken]
    if cells:
        rules = [layout.spec.broken_rule(cell) for cell in cells]
        advice = "correct the records, or set bad_records: drop"
        raise MicrodataError(contract_message(layout.dataset, rules, advice))


def blocks_of(table: Table, totals: NDArray[np.int64], folder: Location) -> list[Block]:
    """Return the blocks of a table, one for each file, from the totals of all its cells."""
    return [table.block(first, end, totals[first:end], folder / name) for name, first, end in ranges(table.cells.size)]


def _part_of(query: Query, keys: Mapping[str, KeyColumn]) -> NDArray[np.int32] | None:
    """Return the number of each cell's part among the query's parts; None where there is one mechanism for all."""
    split = query.split
    if split is None:
        return None
    part_of = {code: i for i, part in enumerate(query.parts) for code in part.codes}
    level = next(level for level in query.by if dimension_of(level) == dimension_of(split))
    codes, indices = keys[level]
    of_code = np.array([part_of.get(roll_up(code, split), -1) for code in codes], dtype=np.int32)
    return of_code[indices]  # a code of part -1 is filtered out and has no cell


@contextmanager
def contract_checked(plan: Plan) -> Iterator[None]:
    """Turn a ContractBroken raised within into a dataset's MicrodataError, a ColumnUnfit into a PlanError."""
    try:
        yield
    except ContractBroken as error:
        advice = "correct the files, or the plan's columns"
        kind = PlanError if isinstance(error, ColumnUnfit) else MicrodataError
        raise kind(contract_message(plan.dataset.name, [(error.column, error.rule)], advice)) from None


def contract_message(dataset: str, broken: Sequence[tuple[str, str]], advice: str) -> str:
    """Return the message that names every broken rule once, by column, and no value."""
    rules = "; ".join(f"{column} {rule}" for column, rule in sorted(set(broken)))
    return f"dataset {dataset}: the microdata break the contract: {rules}; {advice}"


def _bases(plan: Plan) -> tuple[Base, ...]:
    return plan.domain.bases_for(_needed(query) for query in plan.queries)


def _needed(query: Query) -> Grouping:
    return grouping([*query.by, *query.where])


def _code_column(column: str, record_level: str, dimension: Dimension) -> CodeColumn:
    index = {code: i for i, code in enumerate(dimension.listed)}  # OTHER stands after them
    return CodeColumn(column, record_level, dimension.level, index, len(index) if dimension.has_other else OUTSIDE)


def measure_columns(plan: Plan, *, every: bool = False) -> tuple[MeasureColumn, ...]:
    """Return the measures that the plan reads, or every one of its dataset, as the kernels read them."""
    return tuple(
        MeasureColumn(
            name=measure.name,
            column=measure.column,
            step=measure.step,
            nonnegative=any(
                query.statistic.can_be_negative and mechanism.needs_nonnegative
                for query in _reading(plan, measure)
                for mechanism in query.mechanisms
            ),
        )
        for measure in plan.dataset.measures
        if every or _reading(plan, measure)
    )


def _reading(plan: Plan, measure: Measure) -> list[Query]:
    return [query for query in plan.queries if measure.name in query.statistic.measures]
