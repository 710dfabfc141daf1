"""From a draft to its plan: the unknown scales with what is wanted of them, and the limits within which they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import accumulate, count, product
from math import isfinite

import numpy as np

from pipeline.accounting.allocation_problem import Bound, Problem, Unknown
from pipeline.accounting.lattice import Lattice
from pipeline.accounting.references import Reference
from pipeline.base.errors import PlanError
from pipeline.plan.cells import Base, cheapest
from pipeline.plan.model import Plan, Query
from pipeline.plan.plan_mechanisms import error_of, family_of, open_parts, wish_of
from pipeline.plan.plan_schema import PlanSpec
from pipeline.plan.total_policy import limits_of, policy_of
from udfs.mechanisms.base import Mechanism

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
        apart = [families] if wish.proportions else [{i: family} for i, family in families.items()]
        for members in filter(None, apart):
            name = places[next(iter(members))].part
            label = query.name if name is None or len(apart) < len(families) else f"{query.name} ({name})"
            unknowns.append(Unknown(label=label, members=members, error=error, weight=wish.weight))
    stated = [limit.resolved(plan.dataset.unit) for limit in draft.limits]
    limits, years = [*stated, *plan.budget], int(draft.years)
    located = limits_of(replace(plan, budget=tuple(limits)))
    bounds = [Bound(each, years if i < len(stated) or not stated else 1) for i, each in enumerate(located)]
    lattices = _lattices(plan) if draft.reconciled else []
    problem = Problem(policy_of(plan), bounds, unknowns, lattices)
    for unlimited in problem.unlimited():
        raise PlanError(
            f"calibrate: no limit's reference has a record in the cells of {unlimited}, so that its noise could be as "
            "small as it likes: add a limit there, or an accuracy"
        )
    for each in unknowns:
        _require_errors(each)
    return Allocation(problem, [limit.at for limit in limits], places)


def _lattices(plan: Plan) -> list[Lattice]:
    """Return the lattice of each statistic and filter, of the tables of additive noise that have no parts."""
    numbers = list(accumulate((len(query.parts) for query in plan.queries), initial=0))
    alike: list[list[tuple[Query, int]]] = []
    for query, number in zip(plan.queries, numbers, strict=False):
        if query.split is None and _is_additive(query.mechanisms[0]):
            for group in alike:
                if (group[0][0].statistic, group[0][0].where) == (query.statistic, query.where):
                    group.append((query, number))
                    break
            else:
                alike.append([(query, number)])
    return [_lattice(plan, *zip(*group, strict=True)) for group in alike if len(group) > 1]


def _lattice(plan: Plan, tables: Sequence[Query], members: Sequence[int]) -> Lattice:
    """Return the combinations of these tables' levels that are coarser than one of them, or one of them.

    A combination is coarser where each of its cells is made up of cells of the other, and of all their records.
    """
    domain, where = plan.domain, tables[0].where
    published = [{domain.dimension(level).key: level for level in table.by} for table in tables]
    keys = sorted({key for levels in published for key in levels})
    used = {key: sorted({levels[key] for levels in published if key in levels}) for key in keys}

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

    def is_coarser(coarse: Mapping[str, str], fine: Mapping[str, str]) -> bool:
        return all(nests(key, coarse.get(key), fine.get(key)) for key in keys)

    chosen = product(*((None, *used[key]) for key in keys))
    levels = [{key: level for key, level in zip(keys, each, strict=True) if level} for each in chosen]
    levels = [each for each in levels if any(is_coarser(each, table) for table in published)]
    sizes = {i: domain.query_cells(tuple(each.values()), where).size for i, each in enumerate(levels)}
    levels = [levels[i] for i in sorted(sizes, key=lambda i: (sizes[i], len(levels[i])))]
    return Lattice(
        cells=np.array(sorted(sizes.values()), dtype=np.float64),
        coarser=np.array([[is_coarser(coarse, fine) for fine in levels] for coarse in levels]),
        tables=[levels.index(each) for each in published],
        members=members,
    )


def _is_additive(mechanism: Mechanism) -> bool:
    """Return whether noise is the same at all totals, and has a variance."""
    return mechanism.additive and isfinite(mechanism.variance(0.0))


def _require_errors(unknown: Unknown) -> None:
    """Raise PlanError where weighted noise has no finite error, be it ever so small."""
    family = unknown.family
    least = family.number_at(family.log_noise(family.start) - FINEST)
    if unknown.weight is not None and not any(isfinite(max(unknown.errors(n))) for n in (family.start, least)):
        raise PlanError(
            f"calibrate: the noise of {unknown.label} has no {unknown.error.what}: let the plan minimise "
            "mean_absolute_error or interval"
        )
