"""What is to be allocated: unknown scales of a release's mechanisms, what is wanted of them, and limits.

Beside it what an allocation solves on the way: variances of reconciled tables, and geometric programs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import inf, isfinite, log
from typing import Any

import numpy as np

from pipeline.accounting.calibrate import Family
from pipeline.accounting.level_errors import Lattice
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Limit
from pipeline.accounting.targets import Sizes, Target, missed
from pipeline.base.errors import PrdpError
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import Floats, Mask

SLOPE = 0.02  # of a scale's logarithm, over which slopes are measured …
LEAST_STEPS = 0.5  # of the measure, by which values with a weight are off on average, or more
WIDTH_SLOPE = 0.2  # … and those of intervals, whose widths are whole steps
MOST_GROUPS = 1000  # of sizes of cells
Numbers = Mapping[int, int]  # number of an unknown → that of its decimal


# A geometric program of separate terms, as an allocation solves them one after another.
#
# It is solved by our own Newton's method: SciPy's SLSQP, tried first, leaves scales as they are whose errors do not
# show in the sum.

LARGEST = 2.0  # move of a scale's logarithm in one program
NEWTON, FAR, EXACT = 100, 3.0, 1e-9  # rounds and the largest step of Newton's method, and what counts as met there
ROUNDS, POLISH, NOTICED = 400, 20, 1e-4  # of the multipliers; how often they are polished, and those that pull so much
DEEPEST = 60.0  # by which the logarithm of a multiplier falls at most


@dataclass(frozen=True, eq=False)
class Program:
    """Minimise Σ_v exp(logs_v + rises_v·d_v) with fixed_k + Σ_v amounts_kv·exp(−slopes_kv·d_v) ≤ limits_k.

    Its solution is where rises·exp(logs + rises·d) = Σ_k λ_k·amounts_k·slopes_k·exp(−slopes_k·d) in every v, with
    multipliers λ_k ≥ 0 that are 0 where a limit is not reached. Both sides are taken as logarithms, so that tables
    of small errors are as exact as those of large ones.
    """

    logs: Floats  # (v,)
    rises: Floats
    limits: Floats  # (k,)
    fixed: Floats
    amounts: Floats  # (k, v)
    slopes: Floats

    def solved(self) -> Floats:
        """Return d. The multipliers rise and fall with what their limits are exceeded by, until a polish succeeds."""
        total = float(np.logaddexp.reduce(self.logs))
        multipliers = total - np.log(self.limits) - log(len(self.limits))
        least = multipliers - DEEPEST
        for n in range(ROUNDS):
            moves, pulls = self._moves(multipliers)
            excess, spent = self._excess(moves)
            if n % POLISH == POLISH - 1:
                polished = self._polished(multipliers, pulls.max(axis=1) > NOTICED)
                if polished is not None:
                    return polished
            rows = self._slopes(moves, pulls, spent).sum(axis=1)
            steps = np.clip(excess / np.maximum(rows, EXACT), -FAR, FAR)
            multipliers = np.maximum(multipliers + steps, least)
        return moves

    def _polished(self, multipliers: Floats, reached: Mask) -> Floats | None:
        """Return d with these limits reached exactly, by Newton's method; None where it does not keep all of them."""
        multipliers = np.where(reached, multipliers, -inf)
        for _ in range(POLISH):
            moves, pulls = self._moves(multipliers)
            excess, spent = self._excess(moves)
            if excess.max() < EXACT and np.abs(excess[reached]).max(initial=0.0) < EXACT:
                return moves
            slopes = self._slopes(moves, pulls, spent)[np.ix_(reached, reached)]
            steps = np.linalg.lstsq(slopes, excess[reached], rcond=1e-12)[0]
            multipliers[reached] += np.clip(steps, -FAR, FAR)
        return None

    def _slopes(self, moves: Floats, pulls: Floats, spent: Floats) -> Floats:
        """Return by how much ln of what is spent of each limit falls with the logarithm of each multiplier."""
        falls = self.slopes * spent / (self.fixed + spent.sum(axis=1))[:, None]
        stiff = self.rises + (pulls * self.slopes).sum(axis=0)
        slopes: Floats = (falls * np.where(np.abs(moves) < LARGEST, 1 / stiff, 0.0)) @ pulls.T
        return slopes

    def _excess(self, moves: Floats) -> tuple[Floats, Floats]:
        """Return ln of what is spent of each limit, as a share of it, and of which each unknown spends how much."""
        spent = self.amounts * np.exp(-self.slopes * moves)
        return np.log((self.fixed + spent.sum(axis=1)) / self.limits), spent

    def _moves(self, multipliers: Floats) -> tuple[Floats, Floats]:
        """Return d for the multipliers' logarithms, within ±LARGEST, and the share of each limit in each unknown."""
        with np.errstate(divide="ignore"):
            forces = multipliers[:, None] + np.log(self.amounts * self.slopes)
        moves = np.zeros_like(self.logs)
        for _ in range(NEWTON):
            pulls = forces - self.slopes * moves
            together = np.logaddexp.reduce(pulls, axis=0)
            shares = np.exp(pulls - np.where(together > -inf, together, 0.0))
            gap = np.log(self.rises) + self.logs + self.rises * moves - together
            steps = np.clip(gap / (self.rises + (shares * self.slopes).sum(axis=0)), -FAR, FAR)
            moved = np.clip(moves - steps, -LARGEST, LARGEST)
            if np.abs(moved - moves).max() < EXACT:
                break
            moves = moved
        return moved, shares


@dataclass(frozen=True, eq=False)
class Bound:
    """A limit within which a programme stays that is released `times` times.

    As the accountant has it: one release at the limit's own cells, all others at their worst.
    """

    limit: Limit
    times: int = 1

    def spent(self, policy: PolicySum) -> Fraction:
        """Return what the programme costs the reference."""
        once = policy.loss_at(self.limit.at)
        return once if self.times == 1 else once + (self.times - 1) * policy.loss_at(self.limit.at.anywhere())

    def share(self, policy: PolicySum) -> float:
        """Return the same as a share of the limit; infinite where nothing may be spent."""
        return float(self.spent(policy) / self.limit.rho) if self.limit.rho else inf


@dataclass(frozen=True, eq=False, kw_only=True)
class Unknown:
    """One unknown scale: of a query, of one of its parts, or of several parts whose scales keep their proportions.

    `members`: the policies that share it, by number. `error`: what its errors are measured by, each member's; and with
    `weight` None what they are to be at most. `choices`: members of other kinds that it may have as well.
    `usable_share`: of cells, that are to be usable at least, beside a weight.
    """

    label: str
    members: Mapping[int, Family]
    error: Target
    weight: Fraction | None
    choices: Sequence[Mapping[int, Family]] = ()
    usable_share: Fraction | None = None

    @cached_property
    def family(self) -> Family:
        """The family by whose numbers the scale goes."""
        return next(iter(self.members.values()))

    def at(self, n: int) -> dict[int, Mechanism] | None:
        """Return the members' mechanisms at a number; None where one of them has none."""
        known = {i: family.at(n) for i, family in self.members.items()}
        return None if None in known.values() else {i: each for i, each in known.items() if each is not None}

    def errors(self, n: int) -> list[float]:
        """Return the members' errors; infinite where there is no mechanism."""
        mechanisms = self.at(n)
        return [inf] if mechanisms is None else [float(self.error.value(each)) for each in mechanisms.values()]

    def log_square(self, n: int) -> float:
        """Return ln Σ error² over the members; of unusable cells their share."""
        mechanisms = self.at(n)
        if mechanisms is None:
            return inf
        total = sum(map(self.error.cost, mechanisms.values()))
        return log(total) if total > 0 else -inf

    def nearly_exact(self, n: int) -> bool:
        """Return whether values of some member are off by less than half a step on average: hardly any noise."""
        mechanisms, total = (self.at(n) or {}).values(), float(self.error.total)
        return any(each.mean_absolute_error(total) < float(each.step) * LEAST_STEPS for each in mechanisms)

    def usable(self, n: int) -> bool:
        """Return whether there are mechanisms, with finite errors and some noise: no weight asks for less."""
        return isfinite(self.log_square(n)) and not self.nearly_exact(n)

    def meets(self, n: int) -> bool:
        """Return whether no error is larger than wanted."""
        return max(self.errors(n)) <= self.error.wanted

    @property
    def slope_step(self) -> float:
        """Over how much of the scale's logarithm errors are compared."""
        return WIDTH_SLOPE if self.error.quantity == "interval" else SLOPE


class Unmet(PrdpError):
    """No limit may be exceeded: `bound` is, the most, by the policy `least`; `wished`: the numbers of the wishes."""

    def __init__(self, bound: Bound, least: PolicySum, wished: Numbers) -> None:
        super().__init__(f"the limit at {bound.limit.label} cannot be kept")
        self.bound, self.least, self.wished = bound, least, wished


@dataclass(frozen=True, eq=False)
class Problem:
    """A release's policy, in which mechanisms are to be found, and the limits within which they are.

    `lattices`: tables whose errors count as they are once reconciled, all of additive noise.
    `derive`: of these the ones may be left unmeasured that others tell nearly as well.
    """

    policy: PolicySum
    bounds: Sequence[Bound]
    unknowns: Sequence[Unknown]
    lattices: Sequence[Lattice] = ()
    derive: bool = False

    @property
    def weighted(self) -> list[int]:
        """The numbers of the unknowns that have a weight."""
        return [v for v, each in enumerate(self.unknowns) if each.weight is not None]

    @property
    def wished(self) -> list[int]:
        """The numbers of those that have a wanted accuracy."""
        return [v for v, each in enumerate(self.unknowns) if each.weight is None]

    def at(self, numbers: Numbers) -> PolicySum:
        """Return the policy with the mechanisms at these numbers, all of which have one."""
        queries = list(self.policy.queries)
        for v, n in numbers.items():
            mechanisms = self.unknowns[v].at(n)
            assert mechanisms is not None
            for i, mechanism in mechanisms.items():
                queries[i] = replace(queries[i], mechanism=mechanism)
        return replace(self.policy, queries=tuple(queries))

    def without(self, unknowns: Sequence[int], policy: PolicySum) -> PolicySum:
        """Return a policy in which the members of some unknowns cost nothing."""
        queries = list(policy.queries)
        for i in (i for v in unknowns for i in self.unknowns[v].members):
            queries[i] = replace(queries[i], mechanism=_FREE)
        return replace(policy, queries=tuple(queries))

    def worst(self, policy: PolicySum) -> tuple[float, Bound] | None:
        """Return the largest share of a limit that is spent, and which; None without limits."""
        shares = [(each.share(policy), each) for each in self.bounds]
        return max(shares, key=lambda each: each[0], default=None)

    def keeps(self, policy: PolicySum) -> bool:
        """Return whether every limit is kept, exactly."""
        return all(each.spent(policy) <= each.limit.rho for each in self.bounds)

    def variances(self, lattice: Lattice, policy: PolicySum) -> list[float]:
        """Return (m,) those of the noise of a lattice's tables and parts, under a policy of the problem."""
        return [policy.queries[i].mechanism.variance(0.0) for i in lattice.numbers]

    def slopes(self, lattice: Lattice, reconciled: Floats) -> Floats:
        """Return (m,) by how much the sum grows with the variance of each's estimates: 0 of those without a weight.

        Of squared errors that is the weight; of unusable cells so many times what their share grows by.
        """
        weighted = {i: each for each in self.unknowns for i in each.members}
        slopes = np.zeros(len(reconciled))
        for t, (i, variance) in enumerate(zip(lattice.numbers, reconciled, strict=True)):
            if i in weighted and (weight := weighted[i].weight) is not None:
                error = weighted[i].error
                is_share = error.quantity == "unusable"
                slopes[t] = float(weight) * (missed(error, np.sqrt([variance]))[1] / variance if is_share else 1)
        return slopes

    def unlimited(self) -> list[str]:
        """Return the labels of those with a weight that no limit reaches."""
        met = frozenset[int]().union(*(self.policy.met_at(each.limit.at) for each in self.bounds))
        return [self.unknowns[v].label for v in self.weighted if not met & self.unknowns[v].members.keys()]


class _Free:
    """Stands in for a mechanism that costs nothing."""

    def loss_at(self, influence: Fraction) -> Fraction:
        return Fraction(0)

    def loss(self, influence: Floats) -> Floats:
        return np.zeros_like(influence)

    def variance(self, total: float) -> float:
        return inf


_FREE: Any = _Free()


def grouped(sizes: Sizes) -> tuple[tuple[float, float], ...]:
    """Return pairs of a size above 0 and its count; of many sizes near ones together, as the smallest of them."""
    above = sizes.value > 0
    value, count = sizes.value[above], sizes.count[above]
    if len(value) <= MOST_GROUPS:
        return tuple(zip(value.tolist(), count.tolist(), strict=True))
    logs = np.log(value)
    number = np.floor((logs - logs[0]) / (logs[-1] - logs[0]) * (MOST_GROUPS - 1)).astype(int)
    first = np.unique(number, return_index=True)[1]
    return tuple(zip(value[first].tolist(), np.add.reduceat(count, first).tolist(), strict=True))
