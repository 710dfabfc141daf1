"""The search for a programme: its scales, its kinds of noise, and the tables that are measured.

Result: a local optimum. SciPy's SLSQP, a sequence of quadratic programs, finds the scales; under the limits'
multipliers λ scales take the kinds of least Σ λ·loss at their variances; tables that others tell nearly as well are
left unmeasured.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, inf, log, sqrt
from typing import Any

import numpy as np
from scipy.optimize import minimize

from pipeline.accounting.allocation_problem import Problem, Unknown
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.targets import CalibrationError
from pipeline.planning.programme import ROUNDED, Curve, Curves, Programme, goals_of
from udfs.numbers.arrays import Floats

Gaps = Callable[[Floats], tuple[Floats, Floats]]  # logarithms that are to be at most 0, and their slopes
ROUNDS = 12  # of kinds, and of worst query sets
STEPS, EXACT, ROUGH = 250, 1e-9, 1e-6  # of SLSQP, and of the share of cells at which it stops
FEW = 60  # steps of SLSQP where it need not be exact
STEEPEST = 1.0  # of the share's slopes, scaled: SLSQP begins with a curvature of 1, and so ends sooner, and lower
DISAPPOINTED = 3  # kinds that promised less than they cost, after which no other is tried
CHEAPER = 1e-3  # relative, by which another kind must be
DERIVED = 3e-4  # of the mean share of cells, that all tables may cost that are not measured
RESTARTS = 3  # of SLSQP, whose line searches may end early
SHARPER = (3.0, 30.0, 300.0)  # of the smooth largest of several logarithms
OF_PROGRAMMES = "go with minimise: unusable, additive noise, and limits at single records"
MOST_MISSED = 5  # wishes of which a refusal says what could be had
SLACK = 1e-9  # of a share: cells are counted in floats
MET = 1e-4  # of the logarithm of a variance, by which a wish may be off


class Unreached(CalibrationError):
    """No scales reach the wished shares of usable cells: `shares` are those of errors that are all `times` as large."""

    def __init__(self, times: float, shares: Mapping[str, tuple[float, float]]) -> None:
        missed = sorted((share - wanted, name) for name, (wanted, share) in shares.items() if share < wanted - SLACK)
        had = [f"{name}: {shares[name][1]:.4g} in place of {shares[name][0]:.4g}" for _, name in missed]
        more = f"; and less than asked for in {len(had) - MOST_MISSED} others" if len(had) > MOST_MISSED else ""
        super().__init__(
            f"the shares of usable cells asked for cannot be had together within the limits; the nearest, with "
            f"standard errors {times:.4g} times what they would have to be: {'; '.join(had[:MOST_MISSED])}{more}"
        )


def solved(programme: Programme, x: Floats, exact: float = EXACT) -> Floats:
    """Return x from which nothing near is better; raises Unreached where wishes are not met."""
    for _ in range(ROUNDS):
        x = _solved_once(programme, x, exact)
        if exact > EXACT or not programme.add_worst(programme.policy(x)):
            break
    return x


def _solved_once(programme: Programme, x: Floats, exact: float) -> Floats:
    wished = bool(programme.wished)
    if wished and not _is_met(programme, x):
        excess, x = least_excess(programme, x, of_limits=False, steps=STEPS if exact == EXACT else FEW)
        if excess > 2 * MET:
            raise Unreached(sqrt(np.exp(excess)), _shares(programme, x))
    constraints = [_at_most(programme.spent), *([_at_most(programme.wishes)] if wished else [])]
    for _ in range(RESTARTS if exact == EXACT else 1):
        before, slopes = programme.missed(x)
        times = STEEPEST / max(float(np.abs(slopes).max()), ROUGH)

        def scaled(x: Floats, times: float = times) -> tuple[float, Floats]:
            share, slopes = programme.missed(x)
            return times * share, times * slopes

        solved = minimize(
            scaled,
            x,
            jac=True,
            method="SLSQP",
            bounds=programme.bounds(),
            constraints=constraints,
            options={"maxiter": STEPS if exact == EXACT else FEW, "ftol": times * exact},
        )
        if _is_met(programme, x) and not _is_met(programme, solved.x):
            break
        x = solved.x
        if not before - programme.missed(x)[0] > ROUGH:
            break
    return x


def _solved_or_none(programme: Programme, x: Floats) -> Floats | None:
    """Return a solution by few steps; None where wishes are not met."""
    try:
        return solved(programme, x, ROUGH)
    except Unreached:
        return None


def _is_met(programme: Programme, x: Floats) -> bool:
    """Return whether limits and wishes are kept, but for MET."""
    return bool(max(programme.spent(x)[0].max(initial=-1), programme.wishes(x)[0].max(initial=-1)) <= MET)


def _shares(programme: Programme, x: Floats) -> dict[str, tuple[float, float]]:
    """Return the wished shares of usable cells, and those at x."""
    variances = zip(programme.goals, programme.goal_variances(x), strict=True)
    return {goal.label: (goal.wanted, goal.share(each)) for goal, each in variances if goal.wanted is not None}


def _at_most(of: Gaps) -> dict[str, Any]:
    """Return the constraint that logarithms are at most 0."""
    return {"type": "ineq", "fun": lambda x: -of(x)[0], "jac": lambda x: -of(x)[1]}


def least_excess(programme: Programme, x: Floats, *, of_limits: bool, steps: int = STEPS) -> tuple[float, Floats]:
    """Return the least logarithm by which all limits, or else all wished variances, are exceeded; and where.

    The others are kept. With `of_limits` limits that many times as large are the smallest under which wishes are met.
    The largest is taken smoothly, ln(Σ exp(k·gap))/k, for growing k.
    """
    looser, kept = (programme.spent, programme.wishes) if of_limits else (programme.wishes, programme.spent)
    low, high = np.array(programme.bounds()).T
    if of_limits:
        while (programme.wishes(x)[0] > 0).any() and (x > low).any():
            x = np.maximum(x - 1, low)
    else:
        while (programme.spent(x)[0] > 0).any() and (x < high).any():
            x = np.minimum(x + 1, high)
    x = _least(programme, looser, [kept], x, steps)
    return float(looser(x)[0].max()), x


def _least(programme: Programme, looser: Gaps, kept: Sequence[Gaps], x: Floats, steps: int = STEPS) -> Floats:
    """Return where the largest of some logarithms is least, others being at most 0."""
    for sharpness in SHARPER:

        def largest(x: Floats, k: float = sharpness) -> tuple[float, Floats]:
            gaps, slopes = looser(x)
            largest = float((k * gaps).max())
            shares, is_largest = np.exp(k * gaps - largest), k * gaps == largest
            times = int(is_largest.sum())  # the others' shares are summed apart, as they may be tiny
            others = float(np.where(is_largest, 0.0, shares).sum()) / times
            return float(np.log1p(others) + np.log(times) + largest) / k, shares / shares.sum() @ slopes

        solved = minimize(
            largest,
            x,
            jac=True,
            method="SLSQP",
            bounds=programme.bounds(),
            constraints=[_at_most(each) for each in kept],
            options={"maxiter": steps, "ftol": MET / 10},
        )
        if max(each(solved.x)[0].max(initial=-1) for each in kept) <= MET:
            x = solved.x
    return x


def is_programme(problem: Problem) -> bool:
    """Return whether what is minimised are unusable cells of additive noise, under limits at single records."""
    weighted = [problem.unknowns[v] for v in problem.weighted]
    families = [family for each in weighted for choice in (each.members, *each.choices) for family in choice.values()]
    starts = [family.at(family.start) for family in families]
    return (
        bool(weighted)
        and all(each.error.quantity == "unusable" for each in weighted)
        and all(each is not None and each.additive and np.isfinite(each.variance(0.0)) for each in starts)
        and not any(bound.limit.at.listed for bound in problem.bounds)
    )


@dataclass(frozen=True, eq=False)
class Chosen:
    """A problem with its kinds chosen, the logarithms of its scales, which of its unknowns are not measured.

    `buys`: by the number of a limit, by how much less is missed where it is a hundredth larger.
    """

    problem: Problem
    logs: Mapping[int, float]
    derived: Sequence[int]
    buys: Mapping[int, float]

    @property
    def numbers(self) -> dict[int, int]:
        """Return the numbers of what is measured, of decimals of 8 digits."""
        return {v: self.problem.unknowns[v].family.number_at(x) for v, x in self.logs.items()}


def chosen(problem: Problem) -> Chosen:
    """Return the kinds, scales and measured tables of a programme, all of whose unknowns have a weight.

    Raises Unreached where wished shares cannot be had, CalibrationError where no scale leaves noise.
    """
    programme, x = _first(problem)
    programme, x = _with_best_kinds(programme, solved(programme, x))
    if problem.derive:
        programme, x = _without_needless(programme, x)
    measured = programme.measured
    derived = [v for v in range(len(problem.unknowns)) if v not in measured]
    buys = dict.fromkeys(range(len(problem.bounds)), 0.0)
    for price, (b, _, _) in zip(programme.prices(x).tolist(), programme.sets, strict=True):
        buys[b] += price / 100
    return Chosen(programme.problem, dict(zip(measured, x.tolist(), strict=True)), derived, buys)


def require_wished(chosen: Chosen, policy: PolicySum) -> None:
    """Raise Unreached where a wished share of usable cells is missed by a policy, whose scales were rounded."""
    problem = chosen.problem
    reconciled = [lattice.reconciled_members(problem.variances(lattice, policy)) for lattice in problem.lattices]
    shares: dict[str, tuple[float, float]] = {}
    times = 1.0
    for goal in goals_of(problem):
        if goal.wanted is not None:
            if goal.lattice is None:
                variance = policy.queries[goal.row].mechanism.variance(0.0)
            else:
                variance = float(reconciled[goal.lattice][goal.row])
            shares[goal.label] = goal.wanted, goal.share(variance)
            times = max(times, sqrt(variance / goal.most))
    if any(share < wanted - SLACK for wanted, share in shares.values()):
        raise Unreached(times, shares)


def _first(problem: Problem) -> tuple[Programme, Floats]:
    """Return a programme and x within its limits, near the best without wishes, where wishes are met if they can be.

    With the stated kinds, or where these miss the wishes with the best ones.
    """
    everything = range(len(problem.unknowns))
    programme = Programme(problem, Curves(_largest(problem)), everything)
    x = _start(programme)
    wished = bool(programme.wished)
    if not wished or _is_met(programme, x):
        return programme, x
    other = _unwished(programme)
    x = solved(other, x, ROUGH)
    excess, there = least_excess(programme, x, of_limits=False)
    if excess <= 2 * MET or not any(each.choices for each in problem.unknowns):
        return programme, there
    for swapped, start in _with_kinds_of_wishes(programme, there):
        excess, there = least_excess(swapped, start, of_limits=False)
        if excess <= 2 * MET:
            return swapped, there
    other, x = _with_best_kinds(other, x)
    shares = [each.usable_share for each in problem.unknowns]
    unknowns = [replace(each, usable_share=share) for each, share in zip(other.problem.unknowns, shares, strict=True)]
    return Programme(replace(other.problem, unknowns=unknowns), programme.curves, everything, other.seen), x


def _with_kinds_of_wishes(programme: Programme, x: Floats) -> Iterator[tuple[Programme, Floats]]:
    """Yield the programme with the first other kind of all unknowns that have a wish, with their second, …"""
    wished = [v for v, each in enumerate(programme.unknowns) if each.usable_share is not None]
    for k in range(max(len(programme.unknowns[v].choices) for v in wished)):
        able = [v for v in wished if len(programme.unknowns[v].choices) > k]
        yield _changed(programme, x, [(v, *_as_kind(programme, v, x[v], k + 1), 0.0) for v in able])


def _unwished(programme: Programme, label: str | None = None) -> Programme:
    """Return a programme without its wishes, or without those of one label alone."""
    problem = programme.problem
    left = [replace(each, usable_share=None) if label in (None, each.label) else each for each in problem.unknowns]
    return Programme(replace(problem, unknowns=left), programme.curves, programme.measured, programme.seen)


def nearest_alone(problem: Problem) -> tuple[str, float, float] | None:
    """Return of several wishes the farthest off, its share, and what it can be beside the others; None for nothing."""
    programme, x = _first(problem)
    farthest = int(programme.wishes(solved(_unwished(programme), x, ROUGH))[0].argmax())
    goal = programme.goals[programme.wished[farthest]]
    own = [k for k, g in enumerate(programme.wished) if programme.goals[g].label == goal.label]
    beside = _unwished(programme, goal.label)
    excess, x = least_excess(beside, x, of_limits=False)
    if excess > 2 * MET:
        return None
    kept = [beside.spent, beside.wishes]
    x = _least(programme, lambda x: (programme.wishes(x)[0][own], programme.wishes(x)[1][own]), kept, x)
    share = goal.share(max(programme.goal_variances(x)[programme.wished[k]] for k in own) / ROUNDED)
    return goal.label, float(goal.wanted or 0), floor(share * 10_000) / 10_000


def smallest_limits(problem: Problem) -> float:
    """Return the logarithm of the least factor of all limits with which all wishes can be met; infinite for none."""
    programme, x = _first(problem)
    excess, x = least_excess(programme, x, of_limits=True)
    while programme.add_worst(programme.policy(x)):
        excess, x = least_excess(programme, x, of_limits=True)
    return excess if programme.wishes(x)[0].max(initial=-1) <= MET else inf


def _largest(problem: Problem) -> dict[Fraction, Fraction]:
    """Return the largest influence at any limit, by the step of the noise it meets."""
    largest: dict[Fraction, Fraction] = {}
    for bound in problem.bounds:
        for i, influence in problem.policy.worst_at(bound.limit.at):
            step = problem.policy.queries[i].mechanism.step
            largest[step] = max(largest.get(step, Fraction(0)), influence)
    return largest


def _start(programme: Programme) -> Floats:
    """Return x at which each unknown spends an equal part of every limit, or less."""
    part = log(1 / (1 + len(programme.unknowns)))
    programme.add_worst(programme.policy(np.array([(low + high) / 2 for low, high in programme.bounds()])))
    x = []
    for v, (low, high) in enumerate(programme.bounds()):
        grid = np.linspace(low, high, 200)
        terms = [term for _, _, terms in programme.sets for term in terms if term.unknown == v]
        modest = np.all([np.log(term.times) + term.curve.value(grid) <= part for term in terms], axis=0)
        x.append(float(grid[np.argmax(modest)]) if np.any(modest) else high)
    return np.array(x)


def _with_best_kinds(programme: Programme, x: Floats) -> tuple[Programme, Floats]:
    """Return a programme in which another kind of a single table makes nothing better that prices promise.

    Kinds change a quarter of the tables at once, or fewer, those first that promise the most: prices hold nearby.
    """
    missed, kept, changes = programme.missed(x)[0], set[int](), False
    while len(kept) < DISAPPOINTED:
        prices = programme.prices(x)
        better = [(v, _best_kind(programme, v, x[v], prices)) for v in range(len(x)) if v not in kept]
        promised = [(v, *each) for v, each in better if each is not None]
        batch = sorted(promised, key=lambda each: -each[3])[: -(-len(x) // 4)]
        if not batch:
            break
        while batch:
            changed, start = _changed(programme, x, batch)
            there = _solved_or_none(changed, start)
            if there is not None and changed.missed(there)[0] < missed - ROUGH:
                programme, x, missed, changes = changed, there, changed.missed(there)[0], True
                break
            if len(batch) == 1:
                kept.add(batch[0][0])
            batch = batch[: len(batch) // 2]
    return programme, solved(programme, x) if changes else x


def _changed(
    programme: Programme, x: Floats, batch: Sequence[tuple[int, Unknown, float, float]]
) -> tuple[Programme, Floats]:
    """Return the programme with other kinds of some unknowns, and x at their variances."""
    unknowns, x = list(programme.problem.unknowns), x.copy()
    for v, unknown, log_scale, _ in batch:
        unknowns[programme.measured[v]], x[v] = unknown, log_scale
    problem = replace(programme.problem, unknowns=unknowns)
    problem = replace(problem, policy=problem.at({v: each.family.start for v, each in enumerate(unknowns)}))
    return Programme(problem, programme.curves, programme.measured, programme.seen), x


def _best_kind(programme: Programme, v: int, x: float, prices: Floats) -> tuple[Unknown, float, float] | None:
    """Return an unknown with the kind that costs least at its variance, its x, and what that spares; None as it is."""
    unknown = programme.unknowns[v]
    kinds = [unknown.members, *unknown.choices]
    variance = float(programme.curves.variance(unknown.family).value(x))
    costs = []
    for members in kinds:
        moved = _at_variance(programme.curves.variance(next(iter(members.values()))), variance)
        cost = 0.0
        for price, (_, _, terms) in zip(prices, programme.sets, strict=True):
            cost += price * sum(
                term.times * float(np.exp(programme.curves.loss(members[term.member], term.influence).value(moved)))
                for term in terms
                if term.unknown == v
            )
        costs.append((cost, moved))
    best = min(range(len(kinds)), key=lambda k: costs[k][0])
    if best == 0 or not costs[best][0] < costs[0][0] * (1 - CHEAPER):
        return None
    return *_as_kind(programme, v, x, best), costs[0][0] - costs[best][0]


def _as_kind(programme: Programme, v: int, x: float, k: int) -> tuple[Unknown, float]:
    """Return an unknown with its k-th other kind, from 1, and the x at which that has its variance at x."""
    unknown = programme.unknowns[v]
    kinds = [unknown.members, *unknown.choices]
    variance = float(programme.curves.variance(unknown.family).value(x))
    moved = _at_variance(programme.curves.variance(next(iter(kinds[k].values()))), variance)
    others = tuple(each for i, each in enumerate(kinds) if i != k)
    return replace(unknown, members=kinds[k], choices=others), moved


def _at_variance(curve: Curve, variance: float) -> float:
    """Return the x at which a curve, which rises, has a value: an end where it has it nowhere."""
    grid = np.linspace(curve.knots[0], curve.knots[-1], 40 * len(curve.knots))
    return float(np.interp(variance, np.maximum.accumulate(curve.value(grid)), grid))


def _without_needless(programme: Programme, x: Floats) -> tuple[Programme, Floats]:
    """Return a programme without tables that others tell nearly as well, and its solution.

    Tables are left out from the one whose own noise matters least, as long as what is missed grows by at most DERIVED
    in all; each only where some table with a scale has its cells or finer ones.
    """
    allowed = programme.missed(x)[0] + DERIVED
    kept: set[int] = set()  # tried and needed
    while True:
        order = [v for v in programme.by_use(x) if programme.measured[v] not in kept]
        if not order:
            return programme, x
        batch = order[: max(1, len(order) // 4)]
        while batch:
            left = [m for v, m in enumerate(programme.measured) if v not in batch]
            fewer = Programme(programme.problem, programme.curves, left, programme.seen)
            spared = np.delete(x, batch)
            if fewer.tells_all():
                there = _solved_or_none(fewer, spared)
                if there is not None and fewer.missed(there)[0] <= allowed:
                    programme, x = fewer, there
                    break
            if len(batch) == 1:
                kept.add(programme.measured[batch[0]])
            batch = batch[: len(batch) // 2]
