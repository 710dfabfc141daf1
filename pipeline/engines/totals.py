"""A plan's layout: what one scan of the microdata sums, and what each table is made of; totals from the sums."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from pipeline.base.errors import MicrodataError, PlanError
from pipeline.engines.writers import Block, KeyColumn, ranges
from pipeline.plan.domain.cells import Base, Int32s, QueryCells, cheapest, roll_up_totals
from pipeline.plan.domain.keys import Dimension
from pipeline.plan.model import Measure, Plan, Query
from pipeline.plan.structure import cells_and_bases
from pipeline.storage.location import Location
from udfs.numbers.arrays import Wide
from udfs.records.codes import LEVELS
from udfs.records.contract import ColumnUnfit, ContractBroken, MeasureColumn
from udfs.records.decoding import OUTSIDE, BaseCells, ClassColumn, CodeColumn, OwnerColumn, OwnerCount, SumSpec
from udfs.records.sums import CELL, HIGH, Frame, broken_of


@dataclass(frozen=True, eq=False)
class Table:
    """All that is public of one query's table: how its totals come from sums, and what its files are made of.

    Sums of its addend by the cells of base number `base_number` roll up to its own `cells`. `part_of`: where its cells
    have several mechanisms, a level of theirs, and the part of each of its codes (−1: filtered out).
    """

    number: int
    query: Query
    interval: Fraction
    base_number: int
    base: Base
    cells: QueryCells
    part_of: tuple[str, Int32s] | None

    @property
    def name(self) -> str:
        """The query's name."""
        return self.query.name

    @property
    def addend(self) -> str:
        """What is summed."""
        return self.query.addend

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
            part_of=self._parts_of(keys),
            interval=self.interval,
            integer=self.query.integer,
            path=str(path),
        )

    def _parts_of(self, keys: Mapping[str, KeyColumn]) -> Int32s | None:
        if self.part_of is None:
            return None
        level, of_code = self.part_of
        parts: Int32s = of_code[keys[level][1]]
        return parts


@dataclass(frozen=True, eq=False)
class Layout:
    """What an engine has to do for a plan: the scan, and the tables of its sums. It names no secret key and no file."""

    dataset: str
    spec: SumSpec
    tables: tuple[Table, ...]


def layout_of(plan: Plan) -> Layout:
    """Return the scan and the tables of a plan: each query's addend is summed by the cheapest base that serves it."""
    cells, bases = cells_and_bases(plan)
    tables = []
    for number, (query, of_query) in enumerate(zip(plan.queries, cells, strict=True)):
        base = cheapest(bases, of_query, query.addend)
        assert base is not None  # bases_for made one for each query
        tables.append(Table(number, query, plan.interval, base, bases[base], of_query, _part_of(plan, query)))
    return Layout(plan.dataset.name, _sum_spec(plan, bases, tables), tuple(tables))


def _sum_spec(plan: Plan, bases: Sequence[Base], tables: Sequence[Table]) -> SumSpec:
    spec = SumSpec(
        keys=tuple(_key_column(plan, dimension) for dimension in plan.domain.dimensions),
        measures=measure_columns(plan),
        bases=tuple(map(_base_cells, bases)),
        bad_records=plan.dataset.bad_records,
        owner=plan.dataset.owner,
        record=None if plan.dataset.duplicates == "trust" else plan.dataset.record,
    )
    added = [query.statistic for query in plan.queries if query.statistic.adds_up]
    further = {statistic: None for statistic in added if statistic not in spec.statistics}
    counts = (
        OwnerCount(table.addend, table.base_number, _base_cells(Base(table.cells, (table.addend,))))
        for table in tables
        if not table.query.statistic.adds_up
    )
    return replace(spec, further_statistics=tuple(further), owner_counts=tuple(counts))


def row_by_row(plan: Plan) -> SumSpec:
    """Return the plan's scan for rows whose owners' codes are not known: a row is kept that some code leaves in a cell.

    For what looks at microdata row by row; a release brings owners' rows together.
    """
    spec = layout_of(plan).spec
    known = {number: each for number, each in enumerate(plan.domain.dimensions) if each.of_owner is None}
    if plan.domain.cells is None or len(known) == len(spec.keys):
        return spec
    cells = plan.domain.query_cells([each.level for each in known.values()], {})
    parts = {number: part for number, part in Base(cells, ()).parts().items() if number in known}
    return replace(spec, bases=(BaseCells(cells.size, parts, spec.bases[-1].addends, cells.listed),))


def _base_cells(base: Base) -> BaseCells:
    return BaseCells(base.size, base.parts(), base.addends, base.cells.listed)


def totals_of(layout: Layout, frame: Frame) -> tuple[NDArray[np.int64], ...]:
    """Return each table's totals in key order, in steps, from a frame of sums; cells without records are 0.

    They are exact, and held at ±(2⁶³ − 1) steps. Raises MicrodataError that names every broken rule, where one is.
    """
    spec = layout.spec
    cells = frame[CELL]
    require_unbroken(layout, broken_of(cells))
    sums = {}
    for i, base in enumerate(spec.bases):
        first, end = np.searchsorted(cells, (spec.offsets[i], spec.offsets[i + 1]))
        for addend in base.addends:
            words = [np.zeros(base.size, dtype=np.int64) for name in (addend, HIGH + addend) if name in frame]
            for word, name in zip(words, (addend, HIGH + addend), strict=False):
                word[cells[first:end] - spec.offsets[i]] = frame[name][first:end]
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


def _part_of(plan: Plan, query: Query) -> tuple[str, Int32s] | None:
    if query.split is None:
        return None
    dimension = plan.domain.dimension(query.split)
    level = next(level for level in query.by if level in dimension.levels)
    parent = dimension.between(level, query.split)
    assert parent is not None  # a plan's check saw to it
    return level, parts_of_codes(query, dimension)[parent]


def parts_of_codes(query: Query, dimension: Dimension) -> Int32s:
    """Return the part of each code at the level that splits a query's mechanism, −1 for none."""
    part_of = {code: i for i, part in enumerate(query.parts) for code in part.codes}
    return np.array([part_of.get(code, -1) for code in dimension.level_codes(str(query.split))], dtype=np.int32)


def _key_column(plan: Plan, dimension: Dimension) -> CodeColumn | ClassColumn | OwnerColumn:
    if (rule := dimension.of_owner) is not None:
        if rule.classes is not None:
            return OwnerColumn(rule.measure, tuple(int(low / rule.classes.step) for low in rule.classes.lowest))
        number = plan.domain.levels[str(rule.main)]
        of_code = np.append(plan.domain.dimensions[number].parent(rule.main).astype(np.int64), OUTSIDE)
        return OwnerColumn(rule.measure, key=number, of_code=of_code)
    if dimension.classes is not None:
        step = dimension.classes.step
        return ClassColumn(dimension.classes.measure, tuple(int(low / step) for low in dimension.classes.lowest))
    index = {code: i for i, code in enumerate(dimension.listed)}  # OTHER stands after them
    built_in = LEVELS.get(dimension.key)
    return CodeColumn(
        column=plan.dataset.keys[dimension.key],
        record_level=built_in[-1] if built_in else None,
        level=dimension.level,
        index=index,
        other=len(index) if dimension.has_other else OUTSIDE,
        digits=None if built_in else dimension.digits,
        optional=dimension.optional,
    )


def measure_columns(plan: Plan, *, every: bool = False) -> tuple[MeasureColumn, ...]:
    """Return the measures that the plan reads, or every one of its dataset, as the kernels read them."""
    classed = {measure for dimension in plan.domain.dimensions for measure in dimension.measures}
    return tuple(
        MeasureColumn(
            name=measure.name,
            column=measure.column,
            step=measure.step,
            nonnegative=measure.name in classed
            or any(
                query.statistic.can_be_negative and mechanism.needs_nonnegative
                for query in _reading(plan, measure)
                for mechanism in query.mechanisms
            ),
        )
        for measure in plan.dataset.measures
        if every or measure.name in classed or _reading(plan, measure)
    )


def _reading(plan: Plan, measure: Measure) -> list[Query]:
    return [query for query in plan.queries if measure.name in query.statistic.measures]
