"""A programme of tables: which cells are usable once tables add up, and what limits spend, as functions of ln scale.

    missed(x) = Σ_t weight_t · mean over the cells of t of 2Φ(−within·total/σ̂_t)

with σ̂ the standard error of a table's estimates (pipeline/accounting/level_errors.py), or of its noise where no
lattice has the table. Losses and variances are cubics between knots of a scale's logarithm, which is no guarantee:
whoever rounds the scales keeps every limit exactly."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import log, pi, sqrt
from typing import Any, Self

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import nnls
from scipy.special import ndtr

from pipeline.accounting.allocation_problem import Bound, Problem, Unknown
from pipeline.accounting.calibrate import Family
from pipeline.accounting.targets import CalibrationError, Target
from udfs.numbers.arrays import Floats, Int64s

ROUNDED = 0.997  # of a wished variance: what is left to the rounding of scales
TINY = 1e-300
REACHED = 1e-3  # of a limit or a wish that is met, the logarithm
KNOT, BEYOND = 0.5, 9.0  # of a scale's logarithm: between knots, and from the largest influence on


@dataclass(frozen=True, eq=False)
class Curve:
    """ln of a loss or a variance by ln of a scale, between the first knot and the last."""

    knots: Floats
    values: Floats

    @cached_property
    def value(self) -> PchipInterpolator:
        """Its values at any x."""
        return PchipInterpolator(self.knots, self.values)

    @cached_property
    def slope(self) -> PchipInterpolator:
        """Its slopes at any x."""
        return self.value.derivative()


class Stack:
    """Several curves, evaluated at once, each at an x of its own: what `value` and `slope` of each give, bit by bit."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        """`curves`: one for each x; the same may be there several times."""
        own = {id(curve): curve for curve in curves}
        row = {key: n for n, key in enumerate(own)}
        self.rows = np.array([row[id(curve)] for curve in curves], dtype=np.int64)
        self.last = np.array([len(curve.knots) - 2 for curve in own.values()], dtype=np.int64)[self.rows]
        longest = int(self.last.max(initial=0)) + 2
        self.knots = np.full((len(own), longest), np.inf)
        self.factors = np.zeros((4, len(own), longest))
        for n, curve in enumerate(own.values()):
            self.knots[n, : len(curve.knots)] = curve.knots
            self.factors[:, n, : len(curve.knots) - 1] = curve.value.c

    def __call__(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the values and the slopes, from the first knot to the last, or as the nearest interval has them."""
        knots = self.knots[self.rows]
        places = np.clip((knots <= x[:, None]).sum(axis=1) - 1, 0, self.last)
        cubes, squares, lines, starts = self.factors[:, self.rows, places]
        s = x - knots[np.arange(len(x)), places]
        square = s * s
        return starts + lines * s + squares * square + cubes * (
            square * s
        ), lines + 2 * squares * s + 3 * cubes * square


class Curves:
    """The curves of families of noise, each computed once for all tables that share it."""

    def __init__(self, largest: Mapping[Fraction, Fraction]) -> None:
        """`largest`: the largest influence of the limits' references, by the step of the noise."""
        self.largest = largest
        self._knots: dict[Any, tuple[Family, Floats, list[int]]] = {}
        self._known: dict[Any, Curve] = {}

    def variance(self, family: Family) -> Curve:
        """Return that of the variance."""
        return self._curve(family, None, lambda mechanism: mechanism.variance(0.0))

    def loss(self, family: Family, influence: Fraction) -> Curve:
        """Return that of the loss at an influence."""
        return self._curve(family, influence, lambda mechanism: float(mechanism.loss_at(influence)))

    def _curve(self, family: Family, influence: Fraction | None, value: Callable[[Any], float]) -> Curve:
        key = self._key(family)
        if (key, influence) not in self._known:
            shared, knots, numbers = self._grid(family)
            mechanisms = [shared.at(n) for n in numbers]
            self._known[key, influence] = Curve(knots, np.log([max(value(each), TINY) for each in mechanisms]))
        return self._known[key, influence]

    def _grid(self, family: Family) -> tuple[Family, Floats, list[int]]:
        key = self._key(family)
        if key not in self._knots:
            top = log(max(self.largest.get(family.step, Fraction(0)), family.step) / family.times) + BEYOND
            low = log(family.step / family.times) - 3
            numbers = [family.number_at(x) for x in np.arange(top, low, -KNOT)]
            mechanisms = ((n, family.at(n)) for n in numbers)
            least = float(family.step) / 2
            usable = [n for n, each in mechanisms if each is not None and each.mean_absolute_error(0.0) >= least]
            if len(usable) < 2:
                raise CalibrationError("no scale within the limits leaves noise of half a step")
            self._knots[key] = family, np.array([family.log_noise(n) for n in usable[::-1]]), usable[::-1]
        return self._knots[key]

    def _key(self, family: Family) -> Any:
        return family.kind, tuple(sorted(family.fixed.items())), family.step, family.times


@dataclass(frozen=True, eq=False)
class Term:
    """Losses of one member of an unknown in a query set of a limit: `times` the curve, as a share of the limit."""

    unknown: int
    member: int
    influence: Fraction
    curve: Curve
    times: float


@dataclass(frozen=True, eq=False)
class Goal:
    """A table whose cells are to be usable: the totals of its cells with their shares, its weight, and its wish.

    `row`: the number of its noise in `lattice`, or without one the member whose noise it has.
    """

    label: str
    lattice: int | None
    row: int
    error: Target
    weight: float
    wanted: float | None

    @cached_property
    def sizes(self) -> tuple[Floats, Floats]:
        """(n,) totals, rising, and the share of cells that each has."""
        totals, counts = np.array(sorted(self.error.sizes)).T
        return totals, counts / counts.sum()

    @property
    def most(self) -> float:
        """The largest variance at which the wished share of cells is usable."""
        totals, shares = self.sizes
        assert self.wanted is not None
        enough = np.cumsum(shares[::-1])[::-1] >= self.wanted - 1e-12
        largest = float(totals[enough].max()) if enough.any() else float(totals.min())
        return (float(self.error["within"]) * largest) ** 2 * ROUNDED

    def share(self, variance: float) -> float:
        """Return the share of cells that are usable at a variance."""
        totals, shares = self.sizes
        return float(shares[float(self.error["within"]) * totals >= sqrt(variance)].sum())


class Programme:
    """One choice of kinds and of measured tables: functions of the logarithms x of the unknowns' scales."""

    def __init__(self, problem: Problem, curves: Curves, measured: Sequence[int], seen: Iterable[Any] = ()) -> None:
        """`seen`: query sets that were the worst of a limit, by its number."""
        self.problem, self.curves, self.measured = problem, curves, list(measured)
        self.unknowns = [problem.unknowns[v] for v in self.measured]
        self.owner = {i: (v, family) for v, each in enumerate(self.unknowns) for i, family in each.members.items()}
        self.goals = goals_of(problem)
        self.cells = Cells.of(self.goals)
        self.wished = [g for g, goal in enumerate(self.goals) if goal.wanted is not None]
        self.most = np.array([self.goals[g].most for g in self.wished])
        self.fixed = {
            i: problem.policy.queries[i].mechanism.variance(0.0)
            for lattice in problem.lattices
            for i in lattice.numbers
            if not any(i in each.members for each in problem.unknowns)
        }
        self.sets: list[tuple[int, float, list[Term]]] = []  # of limits: number, what is fixed, what is chosen
        self.seen = dict.fromkeys(seen)
        self._noises = Stack([self.curves.variance(family) for _, family in self.owner.values()])
        self._owned = (
            np.array(list(self.owner), dtype=np.int64),
            np.array([v for v, _ in self.owner.values()], np.int64),
        )
        self._goals, self._moved = self._places()
        for b, terms in tuple(self.seen):
            self._add(b, terms)
        self._stacked: dict[int, tuple[Stack, Int64s, Floats, list[tuple[int, int]]]] = {}
        self._last: tuple[bytes, Floats, Floats] | None = None
        self._paid: tuple[tuple[int, bytes], Floats, Floats] | None = None

    def _places(self) -> tuple[list[Any], list[Any]]:
        """Return, of each lattice, its goals with their rows; its rows that move, with their unknowns and members."""
        lattices = self.problem.lattices
        goals = [
            [(g, goal.row) for g, goal in enumerate(self.goals) if goal.lattice == n] for n in range(len(lattices))
        ]
        moved = [[(m, self.owner[i][0], i) for m, i in enumerate(of.numbers) if i in self.owner] for of in lattices]
        return [_columns(each, 2) for each in goals], [_columns(each, 3) for each in moved]

    def bounds(self) -> list[tuple[float, float]]:
        """Return the range of each x in which there is noise."""
        ranges = []
        for each in self.unknowns:
            knots = [self.curves.variance(family).knots for family in each.members.values()]
            ranges.append((max(k[0] for k in knots), min(k[-1] for k in knots)))
        return ranges

    def add_worst(self, policy: Any) -> bool:
        """Take up the query sets that are the worst of a policy; return whether there is a new one."""
        grown = False
        for b, bound in enumerate(self.problem.bounds):
            worst = policy.worst_at(bound.limit.at)
            others = policy.worst_at(bound.limit.at.anywhere()) if bound.times > 1 else ()
            terms = (*worst, *others * (bound.times - 1))
            if (b, terms) not in self.seen:
                self._add(b, terms)
                grown = True
        return grown

    def _add(self, b: int, terms: Sequence[tuple[int, Fraction]]) -> None:
        self.seen[b, terms] = None
        self.sets.append((b, *self._set(self.problem.bounds[b], terms)))

    def _set(self, bound: Bound, terms: Sequence[tuple[int, Fraction]]) -> tuple[float, list[Term]]:
        fixed, chosen, limit = 0.0, [], float(bound.limit.rho)
        for (i, influence), times in Counter(terms).items():
            if i in self.owner:
                v, family = self.owner[i]
                chosen.append(Term(v, i, influence, self.curves.loss(family, influence), times / limit))
            elif not any(i in each.members for each in self.problem.unknowns):
                fixed += times * float(self.problem.policy.queries[i].mechanism.loss_at(influence)) / limit
        return fixed, chosen

    def spent(self, x: Floats) -> tuple[Floats, Floats]:
        """Return (k,) ln of what each query set spends of its limit, and (k, v) its slopes; the last x's."""
        if self._paid is None or self._paid[0] != (len(self.sets), x.tobytes()):
            self._paid = (len(self.sets), x.tobytes()), *self._spent(x)
        return self._paid[1:]

    def _spent(self, x: Floats) -> tuple[Floats, Floats]:
        shares, slopes = np.empty(len(self.sets)), np.zeros((len(self.sets), len(x)))
        for k, (_, fixed, terms) in enumerate(self.sets):
            if k not in self._stacked:
                self._stacked[k] = _stacked(terms)
            stack, numbers, times, starts = self._stacked[k]
            values, rises = stack(x[numbers])
            losses = times * np.exp(values)
            total = fixed
            for first, end in starts:
                total += float(losses[first:end].sum())
            slopes[k] = np.bincount(numbers, losses * rises, len(x)) / max(total, TINY)
            shares[k] = log(max(total, TINY))
        return shares, slopes

    def variances(self, x: Floats) -> tuple[Floats, Floats]:
        """Return by a policy's number the variance of its noise, infinite where it is not measured, and its slope."""
        known, slopes = self._known(np.inf), np.zeros(len(self.problem.policy.queries))
        members, numbers = self._owned
        values, slopes[members] = self._noises(x[numbers])
        known[members] = np.exp(values)
        return known, slopes

    def _known(self, variance: float) -> Floats:
        known = np.full(len(self.problem.policy.queries), np.inf)
        for i, of_noise in self.fixed.items():
            known[i] = of_noise
        known[self._owned[0]] = variance
        return known

    def missed(self, x: Floats) -> tuple[float, Floats]:
        """Return the weighted mean of the smooth shares of unusable cells, and its slopes."""
        variances, slopes = self._estimates(x)
        shares, grows = self.cells.missed(variances)
        weights = np.array([goal.weight for goal in self.goals])
        return float(weights @ shares), (weights * grows) @ slopes

    def _estimates(self, x: Floats) -> tuple[Floats, Floats]:
        """Return (g,) the variance of each goal, and (g, v) the slopes of its logarithm; the last x's."""
        if self._last is None or self._last[0] != x.tobytes():
            known, slopes = self.variances(x)
            lattices = [self._reconciled(n, known, slopes) for n in range(len(self.problem.lattices))]
            variances, rows = np.empty(len(self.goals)), np.zeros((len(self.goals), len(x)))
            for g, goal in enumerate(self.goals):
                if goal.lattice is None:
                    variances[g], rows[g, self.owner[goal.row][0]] = known[goal.row], slopes[goal.row]
            for (goals, places), (reconciled, pulls) in zip(self._goals, lattices, strict=True):
                variances[goals] = reconciled[places]
                rows[goals] = pulls[places] / reconciled[places, None]
            self._last = x.tobytes(), variances, rows
        return self._last[1:]

    def _reconciled(self, n: int, known: Floats, slopes: Floats) -> tuple[Floats, Floats]:
        """Return (m,) the variances of the n-th lattice's estimates, and (m, v) their slopes."""
        lattice = self.problem.lattices[n]
        reconciled, of_members = lattice.slopes(known[lattice.numbers])
        moved = np.zeros((len(lattice.numbers), len(self.unknowns)))
        rows, unknowns, members = self._moved[n]
        moved[rows, unknowns] = slopes[members]
        return reconciled, of_members @ moved

    def wishes(self, x: Floats) -> tuple[Floats, Floats]:
        """Return ln(variance / largest wished) of each goal with a wish, and its slopes."""
        variances, slopes = self._estimates(x)
        return np.log(variances[self.wished] / self.most), slopes[self.wished]

    def goal_variances(self, x: Floats) -> Floats:
        """Return the variance of the cells of each goal."""
        return self._estimates(x)[0]

    def by_use(self, x: Floats) -> list[int]:
        """Return the unknowns that are all of a table in a lattice, what matters least to what is missed first."""
        tables = [set(table.parts) for lattice in self.problem.lattices for table in lattice.tables]
        slopes = self.missed(x)[1]
        able = [v for v, each in enumerate(self.unknowns) if set(each.members) in tables]
        return sorted(able, key=lambda v: slopes[v])

    def tells_all(self) -> bool:
        """Return whether every table of a lattice has a finite variance."""
        known = np.where(np.isfinite(self._known(1.0)), 1.0, np.inf)
        return all(lattice.tells_all(known[lattice.numbers]) for lattice in self.problem.lattices)

    def policy(self, x: Floats) -> Any:
        """Return the policy at x, with nothing spent by what is not measured."""
        problem = self.problem
        dropped = [v for v in range(len(problem.unknowns)) if v not in self.measured]
        numbers = {v: self.unknowns[k].family.number_at(x[k]) for k, v in enumerate(self.measured)}
        return problem.without(dropped, problem.at(numbers))

    def prices(self, x: Floats) -> Floats:
        """Return (k,) the multiplier of each query set: by how much less is missed where it may spend more."""
        _, gradient = self.missed(x)
        (shares, slopes), (gaps, of_wishes) = self.spent(x), self.wishes(x)
        free = [v for v, (low, high) in enumerate(self.bounds()) if low + 1e-6 < x[v] < high - 1e-6]
        reached = shares > -REACHED
        prices = np.zeros(len(shares))
        if reached.any() and free:
            rows = np.concatenate([slopes[reached], of_wishes[gaps > -REACHED]])[:, free]
            prices[reached] = nnls(-rows.T, gradient[free])[0][: reached.sum()]
        return prices


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> Any:
    return tuple(np.array(rows, dtype=np.int64).reshape(-1, width).T)


def _stacked(terms: Sequence[Term]) -> tuple[Stack, Int64s, Floats, list[tuple[int, int]]]:
    """Return terms, those of a curve together: curves, unknowns, factors, and where each curve's begin and end."""
    together: dict[int, list[Term]] = {}
    for term in terms:
        together.setdefault(id(term.curve), []).append(term)
    ordered = [term for some in together.values() for term in some]
    ends = np.cumsum([0, *map(len, together.values())]).tolist()
    unknowns = np.array([term.unknown for term in ordered], dtype=np.int64)
    times = np.array([term.times for term in ordered])
    return Stack([term.curve for term in ordered]), unknowns, times, [*pairwise(ends)]


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of several goals in one row: `within`·total and the share of each, and where each goal's begin."""

    errors: Floats
    shares: Floats
    starts: Int64s

    @classmethod
    def of(cls, goals: Sequence[Goal]) -> Self:
        """Return the cells of some goals."""
        sizes = [(float(goal.error["within"]) * goal.sizes[0], goal.sizes[1]) for goal in goals]
        errors, shares = (np.concatenate([np.zeros(0), *each]) for each in zip((np.zeros(0),) * 2, *sizes, strict=True))
        return cls(errors, shares, np.cumsum([0, *(len(each) for each, _ in sizes)]))

    def missed(self, variances: Floats) -> tuple[Floats, Floats]:
        """Return (g,) the means of 2Φ(−z), z = within·total/σ, and of z·φ(z), by which they grow with ln V."""
        counts = np.diff(self.starts)
        z = self.errors / np.repeat(np.sqrt(variances), counts)
        shares, grows = 2 * ndtr(-z) * self.shares, z * np.exp(-z * z / 2) / sqrt(2 * pi) * self.shares
        return np.add.reduceat(shares, self.starts[:-1]), np.add.reduceat(grows, self.starts[:-1])


def goals_of(problem: Problem) -> list[Goal]:
    """Return what each table of a lattice, and each other unknown with a weight, is to be."""
    by_member = {i: each for each in problem.unknowns for i in each.members}
    goals: list[Goal] = []
    placed: set[int] = set()
    for n, lattice in enumerate(problem.lattices):
        for row, i in enumerate(lattice.numbers):
            if i in by_member and by_member[i].error.quantity == "unusable":
                goals.append(_goal(by_member[i], n, row))
                placed.add(i)
    for i, each in by_member.items():
        if i not in placed and each.error.quantity == "unusable":
            goals.append(_goal(each, None, i))
    total = sum(goal.weight for goal in goals)
    return [replace(goal, weight=goal.weight / total) for goal in goals]


def _goal(unknown: Unknown, lattice: int | None, row: int) -> Goal:
    wanted = None if unknown.usable_share is None else float(unknown.usable_share)
    return Goal(unknown.label, lattice, row, unknown.error, float(unknown.weight or 0), wanted)
