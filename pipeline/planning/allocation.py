"""Allocation: the noise scales of many mechanisms at once, from limits at references, weights and wanted accuracies.

Guarantee: the scales that are returned keep every limit exactly, by the release's own total policy; where none do, that
is told. Scales that follow from weights make Σ weight·error² least, as far as decimals of 4 digits allow, which are
rounded towards more noise. One that follows from an accuracy is the most noise with which errors are as wanted.

Method: a sequence of geometric programs. Near a scale s₀ a loss is a·(s/s₀)^(−b), a squared error c·(s/s₀)^d, with
the slopes b and d measured there. Under these powers the program is convex in the scales' logarithms, and its solution
is the next s₀. The total is that of the worst query set; each that was the worst once stays as a limit of its own. Of
a list of records it is the stated bound, with measured slopes. A point where nothing moves meets the conditions of
Karush, Kuhn and Tucker for the true losses and errors; it is the best one where losses are convex in the squared
errors. For Gaussian noise it is σ_t² ∝ Δ_t/√w_t (docs/calibration.md).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isfinite, log
from typing import Self

import numpy as np

from pipeline.accounting.allocation_problem import LARGEST, SLOPE, Bound, Numbers, Problem, Program, Unknown, Unmet
from pipeline.accounting.calibrate import solve
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.targets import CalibrationError
from pipeline.planning.programme_search import OF_PROGRAMMES, chosen, is_programme, require_wished
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import Floats, Mask
from udfs.numbers.exact import halved, neighbours

FEWER = 10_000  # decimals of 8 digits from one of 4 digits to the next
SMALLEST = 2e-4  # move of a scale's logarithm that counts as none
ROUNDS = 40
DAMPED = 12  # rounds from which moves shrink
KEPT = 4  # tangents of a list's total, the last ones
MOST_RELAXED, HALVINGS = 14.0, 12  # of wishes that cannot be met: the noise is looked at up to this logarithm
FARTHEST = 1 << 19  # decimals of 4 digits by which all scales may be moved to keep the limits
HELD = 20  # below which noise is not made less that is hardly any
NEAR = 1000  # … and by which a wish may be off its solution
LEAST_SLOPE, MOST_SLOPE = 1e-3, 1e3  # of logarithms of losses and squared errors
NEGLIGIBLE = 1e-5  # of what reconciled errors grow with, for a table that tells nothing beside the others
TINY = -700.0  # ln of an error that is none


def allocate(problem: Problem) -> dict[int, int]:
    """Return the decimal's number of each unknown: of the most noise for a wish, of the best allocation for weights.

    Raises CalibrationError where no noise is as accurate as wanted, Unmet where the limits cannot be kept.
    """
    wished = {v: most_noise(problem.unknowns[v]) for v in problem.wished}
    policy = problem.without(problem.weighted, problem.at(wished))
    _require_room(problem, policy, wished)
    if not problem.weighted:
        return wished
    return wished | _rounded(problem, wished, _Search(problem, wished).solved())


def _require_room(problem: Problem, policy: PolicySum, wished: Numbers) -> None:
    """Raise Unmet where wishes alone, with this policy, exceed a limit, or leave nothing of one to the others."""
    worst = problem.worst(policy)
    if worst is not None and not problem.keeps(policy):
        raise Unmet(worst[1], policy, wished)
    members = {i for v in problem.weighted for i in problem.unknowns[v].members}
    for bound in problem.bounds:
        if bound.spent(policy) >= bound.limit.rho and members & problem.policy.met_at(bound.limit.at):
            raise Unmet(bound, policy, wished)


@dataclass(frozen=True, eq=False)
class Settled:
    """A problem whose kinds and measured tables are chosen, and the numbers of its unknowns.

    `derived`: the unknowns that are not measured; they cost nothing in the problem, which has them no more. `buys`: by
    the number of a limit, by how much less of the weighted cells would be missed with a hundredth more of it.
    """

    problem: Problem
    numbers: Mapping[int, int]
    derived: Sequence[Unknown] = ()
    buys: Mapping[int, float] = field(default_factory=dict)


def settled(problem: Problem) -> Settled:
    """Return a problem with kinds and measured tables chosen, and its numbers, as `allocate` finds them.

    Raises CalibrationError too where what only programmes have is asked for, and where rounding misses a wished share.
    """
    if not is_programme(problem):
        if problem.derive or any(each.choices or each.usable_share is not None for each in problem.unknowns):
            raise CalibrationError(f"usable, kinds and derive {OF_PROGRAMMES}")
        return Settled(problem, allocate(problem))
    wished = {v: most_noise(problem.unknowns[v]) for v in problem.wished}
    _require_room(problem, problem.without(problem.weighted, problem.at(wished)), wished)
    wishes, kept = ([problem.unknowns[v] for v in numbers] for numbers in (problem.wished, problem.weighted))
    result = chosen(replace(problem, policy=problem.at(wished), unknowns=kept))
    final = replace(
        result.problem,
        policy=result.problem.without(result.derived, result.problem.policy),
        unknowns=[*wishes, *(result.problem.unknowns[v] for v in result.logs)],
    )
    fixed = dict(enumerate(wished.values()))
    numbers = fixed | _rounded(final, fixed, dict(enumerate(result.numbers.values(), len(wishes))))
    require_wished(result, final.at(numbers))
    return Settled(final, numbers, [result.problem.unknowns[v] for v in result.derived], result.buys)


def most_noise(unknown: Unknown) -> int:
    """Return the largest number, of a decimal of 4 digits, at which the wanted accuracy is met.

    Raises CalibrationError where it is met nowhere, with the best that can be had.
    """
    solved = []
    for family in unknown.members.values():
        mechanism = solve(family.kind, family.fixed, family.step, unknown.error)
        solved.append(family.number_at(family.log_noise_of(mechanism)))
    nearest = min(solved) // FEWER + 1
    for m in range(nearest, nearest - NEAR, -1):
        if unknown.meets(m * FEWER):
            return m * FEWER
    raise CalibrationError(f"a {unknown.error.what} of this size cannot be had with scales of 4 digits")


def relaxed(problem: Problem, wished: Numbers, which: Sequence[int]) -> dict[int, int] | None:
    """Return the wishes' numbers with the least common factor of noise on those of `which` that keeps every limit.

    What has a weight costs nothing here. None where no factor up to exp(MOST_RELAXED) does.
    """

    def by(move: float) -> dict[int, int] | None:
        families = {v: problem.unknowns[v].family for v in which}
        moved = {
            v: -(-each.number_at(each.log_noise(wished[v]) + move) // FEWER) * FEWER for v, each in families.items()
        }
        if any(not isfinite(max(problem.unknowns[v].errors(n))) for v, n in moved.items()):
            return None
        numbers = {**wished, **moved}
        return numbers if problem.keeps(problem.without(problem.weighted, problem.at(numbers))) else None

    high = next((move for move in np.arange(1.0, MOST_RELAXED) if by(move) is not None), None)
    if high is None:
        return None
    return by(halved(high, high - 1, lambda move: by(move) is not None, HALVINGS)[0])


@dataclass(frozen=True, eq=False)
class _Model:
    """What of a limit is spent near the numbers where it was measured: `fixed` + Σ amounts·exp(−slopes·moves)."""

    fixed: float
    amounts: Floats
    slopes: Floats

    def moved(self, moves: Floats) -> Self:
        return replace(self, amounts=self.amounts * np.exp(-self.slopes * moves))


class _Search:
    """The sequence of programs, over the logarithms of the scales of the unknowns that have a weight."""

    def __init__(self, problem: Problem, wished: Numbers) -> None:
        self.problem, self.wished = problem, wished
        self.order = problem.weighted
        self.unknowns = [problem.unknowns[v] for v in self.order]
        self.owner = {i: v for v, each in enumerate(self.unknowns) for i in each.members}
        self.reconciled = {i for lattice in problem.lattices for i in lattice.numbers}
        self.terms: dict[int, set[tuple[tuple[int, Fraction], ...]]] = {b: set() for b in range(len(problem.bounds))}
        self.tangents: dict[int, list[_Model]] = {b: [] for b in range(len(problem.bounds))}

    def solved(self) -> dict[int, int]:
        """Return the numbers, of decimals of 8 digits, at which nothing moves any more, or those after ROUNDS."""
        x = np.array([self._start(v) for v in self.order])
        for n in range(ROUNDS):
            moves = self._program(x)
            largest = LARGEST if n < DAMPED else LARGEST * 0.7 ** (n - DAMPED)
            moves = np.clip(moves, -largest, largest)
            moves = self._within(x, moves)
            x += moves
            for models in self.tangents.values():
                models[:] = [model.moved(moves) for model in models]
            if np.abs(moves).max() < SMALLEST:
                break
        return {self.order[v]: self._number(v, x[v]) for v in range(len(x))}

    def _start(self, v: int) -> float:
        """Return a scale, within a factor of e, with which an unknown alone spends its part of every limit."""
        unknown, others = self.problem.unknowns[v], [w for w in range(len(self.problem.unknowns)) if w != v]
        part = 1 / (1 + len(self.problem.unknowns))

        def modest(x: float) -> bool:
            policy = self.problem.at({v: unknown.family.number_at(x)})
            return all(each.share(self.problem.without(others, policy)) <= part for each in self.problem.bounds)

        def usable(x: float) -> bool:
            return unknown.usable(unknown.family.number_at(x))

        x = unknown.family.log_noise(unknown.family.start)
        way = -1 if modest(x) else 1
        while usable(x + way) and modest(x) == (way < 0):
            x += way
        return x

    def _number(self, v: int, x: float) -> int:
        return self.unknowns[v].family.number_at(x)

    def _policy(self, x: Floats) -> PolicySum:
        return self.problem.at({self.order[v]: self._number(v, x[v]) for v in range(len(x))} | dict(self.wished))

    def _within(self, x: Floats, moves: Floats) -> Floats:
        """Return moves, halved for each unknown until its noise is usable."""
        moves = moves.copy()
        for v, each in enumerate(self.unknowns):
            while moves[v] and not each.usable(self._number(v, x[v] + moves[v])):
                moves[v] = moves[v] / 2 if abs(moves[v]) > SMALLEST / 10 else 0.0
        return moves

    def _program(self, x: Floats) -> Floats:
        models = [
            (float(bound.limit.rho), model)
            for b, bound in enumerate(self.problem.bounds)
            for model in self._models(b, bound, x)
            if model.amounts.any()
        ]
        squares, rises = np.array([self._error(v, x[v]) for v in range(len(x))]).T
        weights = np.array([float(each.weight or 0) for each in self.unknowns])
        logs = np.log(weights) + squares
        useless = self._count_reconciled(logs, x)
        fixed, limits = (np.array(each) for each in zip(*((m.fixed, limit) for limit, m in models), strict=True))
        amounts, slopes = (np.array(each) for each in zip(*((m.amounts, m.slopes) for _, m in models), strict=True))
        moves = Program(logs, rises, limits, fixed, amounts, slopes).solved()
        return np.where(useless, np.minimum(moves, 0.0), moves)

    def _count_reconciled(self, logs: Floats, x: Floats) -> Mask:
        """Replace what tables of lattices add to the sum by what it grows with ln of their variances.

        Returns a mask of the tables that tell nearly nothing beside the others: more noise would spare nearly no loss.
        """
        useless = np.zeros(len(x), dtype=bool)
        policy = self._policy(x) if self.problem.lattices else None
        for lattice in self.problem.lattices:
            assert policy is not None
            variances = self.problem.variances(lattice, policy)
            slopes = self.problem.slopes(lattice, lattice.reconciled_members(variances))
            pulls = lattice.pulls(variances, np.zeros(len(lattice.tables)), slopes)
            owners = Counter[int]()
            for i, pull in zip(lattice.numbers, pulls.tolist(), strict=True):
                if i in self.owner:
                    owners[self.owner[i]] += pull
            for v, pull in owners.items():
                useless[v] = pull < NEGLIGIBLE * pulls.sum()
                logs[v] = log(max(pull, NEGLIGIBLE**2 * float(pulls.sum())))
        return useless

    def _error(self, v: int, x: float) -> tuple[float, float]:
        """Return ln Σ error² of an unknown, and its slope, measured on the sides where errors are finite."""
        unknown = self.unknowns[v]
        if unknown.error.quantity == "unusable" and not self.reconciled.isdisjoint(unknown.members):
            return 0.0, 2.0  # what it adds is known by its variance, which grows with the square of its scale
        step = unknown.slope_step
        here, above, below = (unknown.log_square(self._number(v, x + move)) for move in (0.0, step, -step))
        ends = [(move, log_square) for move, log_square in ((step, above), (0.0, here), (-step, below))]
        finite = [(move, log_square) for move, log_square in ends if isfinite(log_square)]
        if len(finite) < 2:
            return max(here, TINY), 2.0
        (high, top), (low, bottom) = finite[0], finite[-1]
        return max(here, TINY), max(LEAST_SLOPE, (top - bottom) / (high - low))

    def _models(self, b: int, bound: Bound, x: Floats) -> Iterator[_Model]:
        policy = self._policy(x)
        if bound.limit.at.listed:
            self.tangents[b] = [*self.tangents[b][1 - KEPT :], self._tangent(bound, policy, x)]
            yield from self.tangents[b]
            return
        worst = policy.worst_at(bound.limit.at)
        others = policy.worst_at(bound.limit.at.anywhere()) if bound.times > 1 else ()
        self.terms[b].add((*worst, *others * (bound.times - 1)))
        for terms in self.terms[b]:
            yield self._sum(terms, policy, x)

    def _sum(self, terms: tuple[tuple[int, Fraction], ...], policy: PolicySum, x: Floats) -> _Model:
        fixed, here, there = 0.0, np.zeros(len(x)), np.zeros(len(x))
        for (i, influence), times in Counter(terms).items():
            loss = float(policy.queries[i].mechanism.loss_at(influence))
            if i not in self.owner:
                fixed += times * loss
            elif loss:
                v = self.owner[i]
                moved, way = self._moved(v, x)
                here[v] += times * loss
                there[v] += times * loss * (float(moved[i].loss_at(influence)) / loss) ** way
        return _Model(fixed, here, self._slopes(here, here - there))

    def _moved(self, v: int, x: Floats) -> tuple[dict[int, Mechanism], int]:
        """Return an unknown's mechanisms with more noise and 1, or where there are none with less and −1."""
        for way in (1, -1):
            mechanisms = self.unknowns[v].at(self._number(v, x[v] + way * SLOPE))
            if mechanisms is not None:
                return mechanisms, way
        raise CalibrationError(f"{self.unknowns[v].label}: no scale beside this one has a mechanism")

    def _slopes(self, here: Floats, falls: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = -np.log1p(-falls / here) / SLOPE
        return np.clip(np.nan_to_num(slopes, nan=2.0, posinf=MOST_SLOPE), LEAST_SLOPE, MOST_SLOPE)

    def _tangent(self, bound: Bound, policy: PolicySum, x: Floats) -> _Model:
        """Return the model of a list's stated bound: a loss of the slope 2 in each unknown, with the measured fall."""
        total = float(bound.spent(policy))
        amounts = np.zeros(len(x))
        for v in range(len(x)):
            moved, way = self._moved(v, x)
            queries = list(policy.queries)
            for i, mechanism in moved.items():
                queries[i] = replace(queries[i], mechanism=mechanism)
            there = float(bound.spent(replace(policy, queries=tuple(queries))))
            amounts[v] = max(0.0, way * (total - there) / SLOPE / 2)
        known = float(amounts.sum())
        if known > total:
            amounts *= total / known
        return _Model(max(0.0, total - known), amounts, np.full(len(x), 2.0))


def _rounded(problem: Problem, wished: Numbers, solved: Numbers) -> dict[int, int]:
    """Return numbers of decimals of 4 digits, moved together by as little as keeps every limit, or as much as it may.

    Raises Unmet where no move keeps them.
    """
    nearest = {v: -(-n // FEWER) for v, n in solved.items()}
    held = {v for v, m in nearest.items() if problem.unknowns[v].nearly_exact((m - HELD) * FEWER)}

    def moved(by: int) -> dict[int, int] | None:
        numbers = {v: (m if by < 0 and v in held else m + by) * FEWER for v, m in nearest.items()}
        return None if any(problem.unknowns[v].at(n) is None for v, n in numbers.items()) else numbers

    def keeps(by: int) -> bool:
        numbers = moved(by)
        return numbers is not None and problem.keeps(problem.at({**wished, **numbers}))

    way = -1 if keeps(0) else 1
    last, stride = 0, 1
    while keeps(last + way * stride) == (way < 0):
        last, stride = last + way * stride, stride * 2
        if stride > FARTHEST:
            break
    low, high = sorted((last, last + way * stride))  # not kept at low, kept at high
    high, _ = neighbours(high, low, keeps)
    numbers = moved(high)
    if numbers is None or not keeps(high):
        policy = problem.at({**wished, **solved})
        worst = problem.worst(policy)
        assert worst is not None
        raise Unmet(worst[1], policy, wished)
    return numbers
