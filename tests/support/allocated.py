"""Small allocation problems, and what a search over all scales finds for them."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from pipeline.accounting.allocation_problem import Bound, Problem, Unknown
from pipeline.accounting.calibrate import Family, scale_of
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import Limit, QuerySet, Reference
from pipeline.accounting.targets import Target
from pipeline.planning.allocation import FEWER
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.records.statistics import Sum

AT_500 = Target.of("standard_error", standard_error=Fraction(1), total=Fraction(500))
Kind = Mapping[str, Any]


def problem(
    kinds: Sequence[Kind],
    weights: Sequence[int | str | None],
    limits: Sequence[tuple[Sequence[int], int | str]],
    *,
    sets: Sequence[QuerySet] = (),
    errors: Sequence[Target] = (),
    times: int = 1,
) -> Problem:
    """Return a problem of one unknown a query, the i-th on measure mi; a limit is the mi's values and rho."""
    families = []
    for kind in kinds:
        fixed = tuple((name, value) for name, value in kind.items() if name != "kind")
        name = scale_of(CATALOGUE[kind["kind"]])
        assert name is not None
        families.append(Family(kind["kind"], name, fixed, Fraction(1), may_be_narrow=False))
    queries = []
    for i, family in enumerate(families):
        mechanism = family.at(family.start)
        assert mechanism is not None
        queries.append(QueryPolicy(f"q{i}", Sum(f"m{i}"), mechanism))
    unknowns = [
        Unknown(
            label=f"q{i}",
            members={i: family},
            error=errors[i] if errors else AT_500,
            weight=None if weight is None else Fraction(weight),
        )
        for i, (family, weight) in enumerate(zip(families, weights, strict=True))
    ]
    everywhere = tuple(sets) or (frozenset(range(len(kinds))),)
    bounds = [
        Bound(Limit(Reference.of({f"m{i}": x for i, x in enumerate(at)}), Fraction(rho)), times) for at, rho in limits
    ]
    return Problem(PolicySum(tuple(queries), everywhere), bounds, unknowns)


def objective(asked: Problem, numbers: Mapping[int, int]) -> float:
    """Return the weighted sum of squared errors."""
    return sum(
        float(asked.unknowns[v].weight or 0) * sum(error * error for error in asked.unknowns[v].errors(n))
        for v, n in numbers.items()
    )


def best_by_search(asked: Problem, found: Mapping[int, int], factor: float, points: int) -> float:
    """Return the least objective on a grid about `found`, of scales up to `factor` away, that keeps all limits.

    The last scale is not on a grid: the least noise is taken that keeps the limits, by halves.
    """
    *grid, last = found
    offsets = np.linspace(-np.log(factor), np.log(factor), points)
    best = np.inf
    for moves in product(offsets, repeat=len(grid)):
        numbers = {v: _moved(asked.unknowns[v], found[v], move) for v, move in zip(grid, moves, strict=True)}
        low, high = -np.log(factor), np.log(factor)

        def with_last(move: float, others: Mapping[int, int] = numbers) -> dict[int, int]:
            return {**others, last: _moved(asked.unknowns[last], found[last], move)}

        if not asked.keeps(asked.at(with_last(high))):
            continue
        for _ in range(12):
            middle = (low + high) / 2
            low, high = (low, middle) if asked.keeps(asked.at(with_last(middle))) else (middle, high)
        best = min(best, objective(asked, with_last(high)))
    return float(best)


def _moved(unknown: Unknown, n: int, move: float) -> int:
    return unknown.family.number_at(unknown.family.log_noise(n) + move) // FEWER * FEWER
