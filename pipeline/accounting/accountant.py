"""The accountant: what releases of a dataset have spent at reference records, and whether one more fits.

A limit binds every unit that its reference covers, policies being monotone; a larger one has no limit, only its
accumulated policy. All sums are exact rationals of upper bounds, without tolerance.

**The test of records left out** is charged beside the queries: two noisy counts, by which a release notices that plan
and microdata do not fit. A record is *left out* where it is bad and dropped, or where its codes lie outside the domain;
all others are *kept*. Each record is in one of the two counts, so that all of its rows together change one count by
one. Guarantee (docs/mathematics.md, section 12): both counts with their noise cost a record what one count of this
noise costs an influence of 1, and a firm of n records what it costs an influence of n at most: n²/(2σ²) with Gaussian
noise, and with Laplace noise the pure loss n/σ. A share of records left out that does not exceed `share` is refused
with a probability below 10⁻⁶, whatever the share. The noise is Laplace noise where all queries have a pure loss: so has
the release.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Protocol, Self

import numpy as np

from pipeline.accounting.policy import Cells, PolicySum, QueryPolicy
from pipeline.accounting.references import Limit, Reference
from pipeline.base.errors import BudgetRefused, PlanError, StateError
from udfs.mechanisms.additive_kinds import Gaussian, Laplace
from udfs.mechanisms.base import Mechanism
from udfs.noise.keystream import CellBits, SecretKey
from udfs.numbers.exact import as_json, bound_text, exact
from udfs.records.statistics import Count

NAME = "test of records left out"  # among a release's policies; no query can be called so
SIGMA = Fraction(100)  # records
MULTIPLES = {  # of the scale, by noise, that chance exceeds with a probability below 10⁻⁶
    Gaussian.kind: Fraction("5.3"),  # exp(-5.3²/2) < 10⁻⁶
    Laplace.kind: Fraction(14),  # exp(-14) < 10⁻⁶
}
SHARE = Fraction("0.01")  # where neither the plan nor the site states one


MOST = {  # that the test costs a record, by the names of targets (pipeline.accounting.targets)
    "loss": 1 / (2 * SIGMA**2),  # whatever its noise: P·tanh(P/2) < P²/2
    "epsilon": 1 / SIGMA,
}


@dataclass(frozen=True)
class LeftOutTest:
    """Discrete noise of scale `sigma` on each count; a release is refused beyond `share` and chance.

    `noise`: the kind of the mechanism that draws it, gaussian or laplace.
    """

    share: Fraction = SHARE
    sigma: Fraction = SIGMA
    multiple: Fraction = MULTIPLES[Gaussian.kind]
    noise: str = Gaussian.kind

    @classmethod
    def beside(cls, queries: Iterable[Mechanism], share: Fraction = SHARE) -> Self:
        """Return the test of a release with these mechanisms: its noise has a pure loss where all of theirs has."""
        pure = all(query.pure_formula is not None for query in queries)
        noise = Laplace.kind if pure else Gaussian.kind
        return cls(share, multiple=MULTIPLES[noise], noise=noise)

    @property
    def pure(self) -> bool:
        """Whether the test has a pure loss, as then all queries of its release have."""
        return self.mechanism.pure_formula is not None

    @cached_property
    def mechanism(self) -> Gaussian | Laplace:
        """The noise on each count."""
        return Laplace(sigma=self.sigma) if self.noise == Laplace.kind else Gaussian(sigma=self.sigma)

    def draw(self, kept: int, left_out: int, key: SecretKey) -> tuple[int, int]:
        """Return both counts with their noise; `key` is used for nothing else."""
        bits = CellBits(key=key, query=0, cells=np.arange(2, dtype=np.uint64))
        noisy = self.mechanism.noisy(np.array([kept, left_out], dtype=np.int64), bits)
        return int(noisy[0]), int(noisy[1])

    def passes(self, kept: int, left_out: int) -> bool:
        """Return whether the noisy number left out exceeds the share of the noisy whole by no more than chance does.

        left_out − share·(kept + left_out) has noise of the scale σ·√((1 − share)² + share²), of which chance is at most
        `multiple` times as much; decided exactly.
        """
        beyond = (1 - self.share) * left_out - self.share * kept
        chance = (self.multiple * self.sigma) ** 2 * ((1 - self.share) ** 2 + self.share**2)
        return beyond <= 0 or beyond**2 <= chance

    def to_json(self) -> dict[str, Any]:
        """Return the test as a reservation keeps it; older ones, all Gaussian, name no noise."""
        stated = {name: as_json(getattr(self, name)) for name in ("share", "sigma", "multiple")}
        return stated | ({} if self.noise == Gaussian.kind else {"noise": self.noise})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LeftOutTest":
        """Return the test that `to_json` wrote."""
        noise = data.get("noise", Gaussian.kind)
        if noise not in MULTIPLES:
            raise StateError(f"test of records left out: the noise {noise} is unknown to this version of prdp")
        return cls(exact(data["share"]), exact(data["sigma"]), exact(data["multiple"]), noise)


def with_left_out_test(policy: PolicySum, test: LeftOutTest | None = None) -> PolicySum:
    """Return the policy of a release with the test of records left out, which every record meets.

    `test`: None for the one that goes with the policy's mechanisms.
    """
    test = test or LeftOutTest.beside(query.mechanism for query in policy.queries)
    last = QueryPolicy(NAME, Count(), test.mechanism, cells=Cells((), 1))
    number = len(policy.queries)
    return PolicySum((*policy.queries, last), tuple(met | {number} for met in policy.query_sets), policy.spans)


def left_out_test_alone(policy: PolicySum) -> PolicySum:
    """Return the policy of the test in a release's policy, without its queries."""
    tests = tuple(query for query in policy.queries if query.name == NAME)
    return PolicySum(tests, (frozenset(range(len(tests))),))


def without_left_out_test(policy: PolicySum) -> PolicySum:
    """Return the policy of the queries alone, as releases were charged before there was a test."""
    kept = tuple(query for query in policy.queries if query.name != NAME)
    return PolicySum(kept, tuple(met & frozenset(range(len(kept))) for met in policy.query_sets), policy.spans)


MOST_NAMED = 10  # releases in a refusal


class Counted(Protocol):
    """A release as it counts against a budget."""

    @property
    def release(self) -> str:
        """Its name."""

    @property
    def measures(self) -> frozenset[str]:
        """The measures that a reference must name."""

    def loss_at(self, at: Reference) -> Fraction:
        """Return what the reference loses by it."""


@dataclass(frozen=True, eq=False)
class Certified:
    """The bound at a reference as it was stated when a release was charged.

    `attained`: what the records lose in a placement that the domain allows; 0: not known.
    """

    at: Reference
    rho: Fraction
    attained: Fraction = Fraction(0)


@dataclass(frozen=True)
class Charged:
    """A release whose policy counts `times` times: once, or for every draw where draws may have been seen.

    `certified`: bounds that were stated when it was charged, by reference, at the worst cells: none is ever lowered.
    `tests`: those of records left out under the same name of which nothing else was charged.
    """

    release: str
    policy: PolicySum
    times: int
    certified: tuple[Certified, ...] = ()
    tests: tuple["Charged", ...] = ()

    @property
    def measures(self) -> frozenset[str]:
        """The measures that a reference must name."""
        return self.policy.measures if self.times else frozenset()

    def loss_at(self, at: Reference) -> Fraction:
        """Return what the reference loses by this release; its query sets and cells, if any, are this release's."""
        before = sum((test.loss_at(at.anywhere()) for test in self.tests), Fraction(0))
        if not self.times:
            return before
        loss = self.policy.loss_at(at)
        return before + self.times * max([loss, *(known.rho for known in self._known(at))])

    def pure_loss_at(self, at: Reference) -> Fraction | None:
        """Return the pure loss likewise; None where something that is charged has none."""
        losses = [test.pure_loss_at(at.anywhere()) for test in self.tests]
        if self.times:
            once = self.policy.pure_loss_at(at)
            losses.append(None if once is None else self.times * once)
        known = [loss for loss in losses if loss is not None]
        return sum(known, Fraction(0)) if len(known) == len(losses) else None

    def tests_loss_at(self, at: Reference) -> Fraction:
        """Return what of `loss_at` the tests of records left out cost."""
        before = sum((test.loss_at(at.anywhere()) for test in self.tests), Fraction(0))
        tested = self.times and any(query.name == NAME for query in self.policy.queries)
        return before + self.times * self.policy.query_loss_at(at, NAME) if tested else before

    def attained_at(self, at: Reference) -> Fraction:
        """Return what the records lose at least by this release in some placement, its tests aside; 0: not known."""
        return self.times * max((known.attained for known in self._known(at)), default=Fraction(0))

    def _known(self, at: Reference) -> list[Certified]:
        return [known for known in self.certified if known.at.unordered == at.unordered]


@dataclass(frozen=True)
class Exceeded:
    """A limit that does not fit: what is `spent`, by which releases (name, loss), and what is `requested` on top."""

    limit: Limit
    spent: Fraction
    by: tuple[tuple[str, Fraction], ...]
    requested: Fraction


class LimitExceeded(BudgetRefused):
    """A limit would be exceeded, or is: `exceeded` holds which, by how much and by which releases."""

    def __init__(self, message: str, exceeded: Exceeded) -> None:
        super().__init__(message)
        self.exceeded = exceeded

    def __reduce__(self) -> tuple[type["LimitExceeded"], tuple[str, Exceeded]]:
        return type(self), (str(self), self.exceeded)


def check(limits: Sequence[Limit], spent: Sequence[Counted], requested: Charged) -> None:
    """Return if `requested` fits every limit on top of `spent`.

    Raises LimitExceeded, a BudgetRefused, naming the first failing reference, its limit, what is spent by which
    releases and what is requested; PlanError where a limit names too few measures to evaluate an earlier release.
    """
    exceeded = first_exceeded(limits, spent, requested)
    if exceeded is not None:
        raise LimitExceeded(
            f"refused by the budget at {exceeded.limit.whose}: requested rho {bound_text(exceeded.requested)}, spent "
            f"{bound_text(exceeded.spent)} by {named(exceeded.by)}, limit {as_json(exceeded.limit.rho)}; "
            f"{exceeded.limit.remedy}",
            exceeded,
        )


def first_exceeded(limits: Sequence[Limit], spent: Sequence[Counted], requested: Charged | None) -> Exceeded | None:
    """Return the first limit that `spent`, and `requested` on top, exceed; None where every limit holds."""
    releases = (*spent, requested) if requested else spent
    measures = frozenset[str]().union(*(release.measures for release in releases))
    for limit in limits:
        missing = limit.at.missing(measures)
        if missing:
            raise PlanError(
                f"budget limit at {limit.whose}: it does not name {', '.join(missing)}, "
                "which a release of the dataset uses, so it cannot be checked"
            )
        # An earlier release is taken at its worst cells, for they need not be this plan's.
        anywhere = limit.at.anywhere()
        by = tuple((release.release, release.loss_at(anywhere)) for release in spent)
        before = total(loss for _, loss in by)
        on_top = requested.loss_at(limit.at) if requested else Fraction(0)
        if before + on_top > limit.rho:
            return Exceeded(limit, before, by, on_top)
    return None


def total(losses: Iterable[Fraction]) -> Fraction:
    """Return the sum, fast where many losses have a denominator in common."""
    by_denominator: dict[int, int] = defaultdict(int)
    for loss in losses:
        by_denominator[loss.denominator] += loss.numerator
    return sum((Fraction(above, below) for below, above in by_denominator.items()), Fraction(0))


def named(spent: Sequence[tuple[str, Fraction]]) -> str:
    """Return the releases with what each has spent, in words; of very many the largest."""
    if len(spent) > MOST_NAMED:
        largest = sorted(spent, key=lambda each: each[1], reverse=True)[:MOST_NAMED]
        return f"{named(largest)} and {len(spent) - MOST_NAMED} others"
    return ", ".join(f"{release} {bound_text(loss)}" for release, loss in spent) or "no earlier release"


def tightest(limits: Iterable[Limit]) -> Sequence[Limit]:
    """Return the lowest limit on each reference, in the order in which references come first.

    All of `limits` hold where these do, whatever was spent. A dataset of n releases states n times its references;
    checking each of them against all n would take n² evaluations.
    """
    lowest: dict[Hashable, Limit] = {}
    for limit in limits:
        known = lowest.get(limit.at.unordered)
        if known is None or limit.rho < known.rho:
            lowest[limit.at.unordered] = limit
    return list(lowest.values())
