"""From a draft to its plan: the unknown scales with what is wanted of them, and the limits within which they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, count, pairwise
from math import isfinite

from pipeline.accounting.allocation_problem import Bound, Chain, Problem, Unknown
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
        families = {numbers[name]: family_of(each, _step(query), times[name]) for name, each in parts.items()}
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
    chains = _chains(plan) if draft.reconciled else []
    problem = Problem(policy_of(plan), bounds, unknowns, chains)
    for unlimited in problem.unlimited():
        raise PlanError(
            f"calibrate: no limit's reference has a record in the cells of {unlimited}, so that its noise could be as "
            "small as it likes: add a limit there, or an accuracy"
        )
    for each in unknowns:
        _require_errors(each)
    return Allocation(problem, [limit.at for limit in limits], places)


def _chains(plan: Plan) -> list[Chain]:
    """Return chains of tables of additive noise, one for each statistic and filter: the longest from the finest on.

    A cell has the parts that cells of its table have on average. Tables whose parts have noise of their own, and those
    beside a chain, are in none: they count as they are published.
    """
    sizes = [plan.domain.query_cells(query.by, query.where).size for query in plan.queries]
    numbers = list(accumulate((len(query.parts) for query in plan.queries), initial=0))
    whole = [q for q, query in enumerate(plan.queries) if query.split is None and _is_additive(query.mechanisms[0])]
    chains: list[list[int]] = []
    for q in sorted(whole, key=lambda q: -sizes[q]):
        fitting = (chain for chain in chains if _nests(plan, plan.queries[chain[-1]], plan.queries[q]))
        found = next(fitting, None)
        if found is None:
            chains.append([q])
        else:
            found.append(q)
    return [
        Chain(tuple(numbers[q] for q in chain), tuple(sizes[f] / sizes[c] for f, c in pairwise(chain)))
        for chain in chains
        if len(chain) > 1
    ]


def _is_additive(mechanism: Mechanism) -> bool:
    """Return whether noise is the same at all totals, and has a variance."""
    return mechanism.additive and isfinite(mechanism.variance(0.0))


def _nests(plan: Plan, fine: Query, coarse: Query) -> bool:
    """Return whether each cell of a table is made up of cells of the other, and of all their records."""
    if (fine.statistic, fine.where) != (coarse.statistic, coarse.where):
        return False
    finer, coarser = (plan.domain.query_cells(query.by, query.where) for query in (fine, coarse))
    if cheapest([Base(finer, ("",))], coarser, "") is None:
        return False  # the coarse table has records that are in no cell of the fine one
    levels = {plan.domain.dimension(level).key: level for level in fine.by}
    kept = {plan.domain.dimension(level).key: level for level in coarse.by}
    return all(
        key in levels and plan.domain.dimension(level).between(levels[key], level) is not None
        for key, level in kept.items()
    )


def _step(query: Query) -> Fraction:
    return query.parts[0].mechanism.step


def _require_errors(unknown: Unknown) -> None:
    """Raise PlanError where weighted noise has no finite error, be it ever so small."""
    family = unknown.family
    least = family.number_at(family.log_noise(family.start) - FINEST)
    if unknown.weight is not None and not any(isfinite(max(unknown.errors(n))) for n in (family.start, least)):
        raise PlanError(
            f"calibrate: the noise of {unknown.label} has no {unknown.error.what}: let the plan minimise "
            "mean_absolute_error or interval"
        )
