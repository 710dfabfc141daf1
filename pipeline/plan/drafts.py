"""From a draft to its plan: the unknown scales with what is wanted of them, and the limits within which they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import count
from math import isfinite

from pipeline.accounting.allocation_problem import Bound, Problem, Unknown
from pipeline.accounting.references import Limit, Reference
from pipeline.base.errors import PlanError
from pipeline.plan.level_lattices import lattices_of
from pipeline.plan.model import Plan
from pipeline.plan.plan_mechanisms import error_of, family_of, open_parts, wish_of
from pipeline.plan.plan_schema import AllocationSpec, PlanSpec
from pipeline.plan.total_policy import limits_of, policy_of

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
