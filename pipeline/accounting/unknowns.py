"""What is to be allocated: unknown scales of a release's mechanisms, what is wanted of them, and limits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from math import inf, isfinite, log
from typing import Any

import numpy as np

from pipeline.accounting.calibrate import Family
from pipeline.accounting.chains import Chain
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Limit
from pipeline.accounting.targets import Target
from pipeline.base.errors import PrdpError
from udfs.mechanisms.base import Mechanism
from udfs.numbers.arrays import Floats

SLOPE = 0.02  # of a scale's logarithm, over which slopes are measured …
LEAST_STEPS = 0.5  # of the measure, by which values with a weight are off on average, or more
WIDTH_SLOPE = 0.2  # … and those of intervals, whose widths are whole steps
Numbers = Mapping[int, int]  # number of an unknown → that of its decimal


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
    `weight` None what they are to be at most.
    """

    label: str
    members: Mapping[int, Family]
    error: Target
    weight: Fraction | None

    @cached_property
    def family(self) -> Family:
        """The family by whose numbers the scale goes."""
        return next(iter(self.members.values()))

    def at(self, n: int) -> dict[int, Mechanism] | None:
        """Return the members' mechanisms at a number; None where one of them has none."""
        found = {i: family.at(n) for i, family in self.members.items()}
        return None if None in found.values() else {i: each for i, each in found.items() if each is not None}

    def errors(self, n: int) -> list[float]:
        """Return the members' errors; infinite where there is no mechanism."""
        found = self.at(n)
        return [inf] if found is None else [float(self.error.value(each)) for each in found.values()]

    def log_square(self, n: int) -> float:
        """Return ln Σ error² over the members."""
        total = sum(each * each for each in self.errors(n))  # infinite where a power would overflow
        return log(total) if total > 0 else -inf

    def nearly_exact(self, n: int) -> bool:
        """Return whether values of some member are off by less than half a step on average: hardly any noise."""
        found, total = self.at(n), float(self.error.total)
        return found is not None and any(
            each.mean_absolute_error(total) < float(each.step) * LEAST_STEPS for each in found.values()
        )

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

    `chains`: nested tables whose errors count as they are once reconciled, all of one member and additive noise.
    """

    policy: PolicySum
    bounds: Sequence[Bound]
    unknowns: Sequence[Unknown]
    chains: Sequence[Chain] = ()

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
            found = self.unknowns[v].at(n)
            assert found is not None
            for i, mechanism in found.items():
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

    def variances(self, chain: Chain, policy: PolicySum) -> list[float]:
        """Return those of a chain's tables as they are published, under a policy of the problem."""
        return [policy.queries[i].mechanism.variance(0.0) for i in chain.members]

    def weights(self, chain: Chain) -> list[float]:
        """Return the weights of a chain's tables: 0 of those without one."""
        known = {i: float(each.weight or 0) for each in self.unknowns for i in each.members}
        return [known.get(i, 0.0) for i in chain.members]

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


_FREE: Any = _Free()
