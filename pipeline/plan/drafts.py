"""From a draft to its plan: the unknown scales, what is wanted of them, and the lattices of the tables that have them.

Tables of one statistic and one filter, of additive noise, tell of each other's cells once they are made to add up: the
lattices hold which combinations of levels tell of which others, and how many cells they have.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, lru_cache
from itertools import count, product
from math import isfinite, sqrt

import numpy as np

from pipeline.accounting.allocation_problem import Bound, Problem, Unknown
from pipeline.accounting.level_errors import Lattice, LatticeTable
from pipeline.accounting.references import Limit, Reference
from pipeline.base.errors import PlanError
from pipeline.plan.domain.cells import Base, cheapest
from pipeline.plan.model import DerivedTable, Plan, Query
from pipeline.plan.plan_mechanisms import error_of, family_of, open_parts, wish_of
from pipeline.plan.plan_schema import AllocationSpec, PlanSpec
from pipeline.plan.total_policy import limits_of, policy_of
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import Floats

EXACT = 1e-100  # variance in place of 0
MOST_CODES = 64  # of a level whose parts have noise of their own; of more their noise counts by its mean variance

Levels = dict[str, str]  # key → level
Nests = Callable[[str, str | None, str | None], bool]  # of a key: is the first level coarser than the second, or it?


@dataclass(frozen=True, eq=False)
class _Table:
    """A table, its levels by key, and the number of the first policy of one that is measured."""

    query: Query | DerivedTable
    levels: Levels
    number: int

    @property
    def split(self) -> str | None:
        """The level whose codes may have noise of their own."""
        return self.query.split if isinstance(self.query, Query) else None


@dataclass(frozen=True, eq=False)
class _Split:
    """The level whose codes have noise of their own, in which key; its codes.

    `shares`: of it and finer levels of the key, which share of their codes each of its codes has.
    """

    key: str
    level: str
    codes: tuple[str, ...]
    shares: Mapping[str, Floats]


def lattices_of(plan: Plan) -> list[Lattice]:
    """Return the lattice of each statistic and filter of which there are several tables of additive noise.

    Derived tables are among them, without policies.
    """
    alike: list[list[_Table]] = []
    number = 0
    for query in plan.published:
        mechanisms = query.mechanisms if isinstance(query, Query) else ()
        if all(map(_is_additive, mechanisms)):
            table = _Table(query, {plan.domain.dimension(level).key: level for level in query.by}, number)
            for group in alike:
                if _alike(group[0].query, query):
                    group.append(table)
                    break
            else:
                alike.append([table])
        number += len(mechanisms)
    return [_lattice(plan, group) for group in alike if len(group) > 1]


@lru_cache(maxsize=4)
def reconciled_errors(plan: Plan) -> Mapping[str, tuple[float | None, ...]]:
    """Return, by table, the expected standard error of its reconciled values, of each part; of a derived one just one.

    It is the root of the mean variance that the lattice has. None where it has none: of noise that grows with the
    total, and of a derived table of another filter than all others. Tables which no other tells are not among them.
    """
    own = [mechanism.variance(0.0) for query in plan.queries for mechanism in query.mechanisms]
    errors: dict[str, tuple[float | None, ...]] = {}
    for query in plan.published:
        if isinstance(query, DerivedTable):
            errors[query.name] = (None,)
        elif any(_alike(query, each) for each in plan.published if each is not query):
            additive = all(map(_is_additive, query.mechanisms))
            errors[query.name] = tuple(sqrt(m.variance(0.0)) if additive else None for m in query.mechanisms)
    for lattice in lattices_of(plan):
        variances = np.array([max(own[i], EXACT) for i in lattice.numbers])
        of_members = iter(np.minimum(lattice.reconciled_members(variances), variances).tolist())
        for name, table, of_table in zip(lattice.names, lattice.tables, lattice.reconciled(variances), strict=True):
            known = [next(of_members) for _ in table.parts] or [float(of_table)]
            errors[name] = tuple(map(sqrt, known))
    return errors


def _alike(one: Query | DerivedTable, other: Query | DerivedTable) -> bool:
    return one.statistic.adds_up and (one.statistic, one.where) == (other.statistic, other.where)


def _lattice(plan: Plan, tables: Sequence[_Table]) -> Lattice:
    """Return the combinations of these tables' levels that are coarser than one of them, or one of them.

    A combination is coarser where each of its cells is made up of cells of the other, and of all their records. Where
    the codes of a level have noise of their own, combinations have this level, or a finer one.
    """
    domain, where = plan.domain, tables[0].query.where
    nests = _nesting(plan, where)
    split = _split(plan, tables, nests)
    keys = sorted({key for table in tables for key in table.levels})
    used = {key: sorted({table.levels[key] for table in tables if key in table.levels}) for key in keys}

    if split is not None:
        used[split.key] = sorted({*used[split.key], split.level})

    def within(levels: Levels) -> Levels:
        """Return levels with that of the codes which have their own noise in place of a coarser one."""
        if split is None or not nests(split.key, levels.get(split.key), split.level):
            return levels
        return {**levels, split.key: split.level}

    def is_coarser(coarse: Levels, fine: Levels) -> bool:
        return all(nests(key, coarse.get(key), fine.get(key)) for key in keys)

    published = [within(table.levels) for table in tables]
    chosen = product(*((None, *used[key]) for key in keys))
    levels = [{key: level for key, level in zip(keys, each, strict=True) if level} for each in chosen]
    levels = [each for each in levels if within(each) == each and any(is_coarser(each, table) for table in published)]
    sizes = {i: domain.query_cells(tuple(each.values()), where).size for i, each in enumerate(levels)}
    order = sorted(sizes, key=lambda i: (sizes[i], len(levels[i])))
    levels = [levels[i] for i in order]
    return Lattice(
        cells=np.array([sizes[i] for i in order]) / (len(split.codes) if split else 1),
        coarser=np.array([[is_coarser(coarse, fine) for fine in levels] for coarse in levels]),
        tables=[
            _measured(plan, table, levels.index(each), split) for table, each in zip(tables, published, strict=True)
        ],
        names=[table.query.name for table in tables],
    )


def _nesting(plan: Plan, where: Mapping[str, tuple[str, ...]]) -> Nests:
    domain = plan.domain

    @cache
    def nests(key: str, coarse: str | None, fine: str | None) -> bool:
        if coarse == fine or fine is None:
            return coarse == fine
        cells = domain.query_cells((fine,), where)
        if coarse is None:
            listed = domain.uses_all_keys and bool((domain.dimension(fine).parent(fine) >= 0).all())
            return listed or cells.axes[0].everyone
        made_up = cheapest([Base(cells, ("",))], domain.query_cells((coarse,), where), "") is not None
        return made_up and domain.dimension(fine).between(fine, coarse) is not None

    return nests


def _split(plan: Plan, tables: Sequence[_Table], nests: Nests) -> _Split | None:
    """Return the level by which most tables have parts; None for none, or where some table's levels cross it."""
    splits = Counter(table.split for table in tables if table.split is not None)
    if not splits:
        return None
    level = splits.most_common(1)[0][0]
    where = tables[0].query.where
    key, codes = plan.domain.dimension(level).key, plan.domain.codes_met(level, where)
    own = {table.levels.get(key) for table in tables}
    nest = all(nests(key, each, level) or nests(key, level, each) for each in own)
    if not nest or len(codes) > MOST_CODES:
        return None
    shares = {level: np.ones(len(codes)) / len(codes)}
    for finer in (each for each in own if each is not None and nests(key, level, each)):
        of_code = [len(plan.domain.codes_met(finer, {**where, level: (code,)})) for code in codes]
        shares[finer] = np.array(of_code) / sum(of_code)
    return _Split(key, level, codes, shares)


def _measured(plan: Plan, table: _Table, combination: int, split: _Split | None) -> LatticeTable:
    """Return a table of a lattice, with the shares of its cells that have each part's noise."""
    query = table.query
    measured = query if isinstance(query, Query) else None
    numbers = range(table.number, table.number + (len(measured.parts) if measured else 0))
    filters = measured.filters if measured else ()
    sizes = np.array([plan.domain.query_cells(query.by, each).size for each in filters], dtype=np.float64)
    if split is None:
        return LatticeTable.of(combination, dict(zip(numbers, sizes / sizes.sum(), strict=True)))
    sums = _sums(plan, split, table.levels.get(split.key))
    of_rows = split.shares.get(table.levels.get(split.key, ""), np.ones(len(sums)) / len(sums))
    if measured is not None and measured.split == split.level:
        parts = [np.array([float(code in part.codes) for code in split.codes]) for part in measured.parts]
    else:
        parts = [np.full(len(sums), size) for size in sizes / sizes.sum()]
    return LatticeTable(combination, sums, of_rows, dict(zip(numbers, parts, strict=True)))


def _sums(plan: Plan, split: _Split, level: str | None) -> Floats:
    """Return (rows, codes): which codes of the split's level a table of a level of its key adds up."""
    if level is None:
        return np.ones((1, len(split.codes)))
    dimension = plan.domain.dimension(split.level)
    above = dimension.between(split.level, level)
    if above is None or level == split.level:
        return np.eye(len(split.codes))
    index = dimension.index(split.level)
    of_codes = above[[index[code] for code in split.codes]]
    sums: Floats = (np.unique(of_codes)[:, None] == of_codes).astype(np.float64)
    return sums


def _is_additive(mechanism: Mechanism) -> bool:
    """Return whether noise is the same at all totals, and has a variance."""
    return mechanism.additive and isfinite(mechanism.variance(0.0))


FINEST = 9.0  # of a scale's logarithm, by which noise is made less to see whether it then has errors


@dataclass(frozen=True)
class Place:
    """Where in a plan a scale is: the number of its query, and its part (None: all cells)."""

    query: int
    part: str | None


@dataclass(frozen=True, eq=False)
class Allocation:
    """The problem of a draft, the references of its limits as they are written, and where in the plan scales are.

    `places`: by the number of the policy.
    """

    problem: Problem
    references: Sequence[Reference]
    places: Mapping[int, Place]


def allocation_of(plan: Plan, spec: PlanSpec) -> Allocation:
    """Return the problem of a draft without mistakes.

    Raises PlanError where noise has no errors of the kind that is minimised, or where no limit reaches a query.
    """
    draft = spec.calibrate
    assert draft is not None
    unknowns: list[Unknown] = []
    places: dict[int, Place] = {}
    number = count()
    for q, (query, shape) in enumerate(zip(plan.queries, spec.queries, strict=True)):
        numbers = {part.name: next(number) for part in query.parts}
        wish, parts = wish_of(draft, query.name), open_parts(shape)
        times = {name: wish.proportions.get(str(name), Fraction(1)) for name in parts}
        families = {
            numbers[name]: family_of(each, query.parts[0].mechanism.step, times[name]) for name, each in parts.items()
        }
        places |= {numbers[name]: Place(q, name) for name in parts}
        error = error_of(draft, wish, plan)
        others = [
            {i: family_of(kind, family.step, family.times) for i, family in families.items()} for kind in draft.kinds
        ]
        apart = [families] if wish.proportions else [{i: family} for i, family in families.items()]
        for members in filter(None, apart):
            name = places[next(iter(members))].part
            label = query.name if name is None or len(apart) < len(families) else f"{query.name} ({name})"
            choices = [{i: each[i] for i in members} for each in others if wish.weight is not None]
            unknowns.append(
                Unknown(
                    label=label,
                    members=members,
                    error=error,
                    weight=wish.weight,
                    choices=choices,
                    usable_share=wish.usable,
                )
            )
    bounds = bounds_of(plan, draft)
    lattices = lattices_of(plan) if draft.reconciled else []
    problem = Problem(policy_of(plan), bounds, unknowns, lattices, draft.derive)
    for unlimited in problem.unlimited():
        raise PlanError(
            f"calibrate: no limit's reference has a record in the cells of {unlimited}, so that its noise could be as "
            "small as it likes: add a limit there, or an accuracy"
        )
    for each in unknowns:
        _require_errors(each)
    return Allocation(problem, [limit.at for limit in _limits(plan, draft)[0]], places)


def bounds_of(plan: Plan, draft: AllocationSpec) -> list[Bound]:
    """Return the limits of a draft as those of a plan of it."""
    limits, times = _limits(plan, draft)
    located = limits_of(replace(plan, budget=tuple(limits)))
    return [Bound(each, years) for each, years in zip(located, times, strict=True)]


def _limits(plan: Plan, draft: AllocationSpec) -> tuple[list[Limit], list[int]]:
    """Return the limits that a draft names and those of its budget, and how often the tables are released in each."""
    stated, years = [limit.resolved(plan.dataset.unit) for limit in draft.limits], int(draft.years)
    limits = [*stated, *plan.budget]
    return limits, [years if i < len(stated) or not stated else 1 for i in range(len(limits))]


def _require_errors(unknown: Unknown) -> None:
    """Raise PlanError where weighted noise has no finite error, be it ever so small."""
    family = unknown.family
    least = family.number_at(family.log_noise(family.start) - FINEST)
    if unknown.weight is not None and not any(isfinite(max(unknown.errors(n))) for n in (family.start, least)):
        raise PlanError(
            f"calibrate: the noise of {unknown.label} has no {unknown.error.what}: let the plan minimise "
            "mean_absolute_error or interval"
        )
