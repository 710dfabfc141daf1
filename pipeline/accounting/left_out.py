"""The test of records left out: two noisy counts, by which a release notices that plan and microdata do not fit.

A record is *left out* where it is bad and dropped, or where its codes lie outside the domain; all others are *kept*.
Each record is in one of the two counts, so that all of its rows together change one count by one.

Guarantee (docs/mathematics.md, section 12): both counts with their noise cost a record what one count of this noise
costs an influence of 1, and a firm of n records what it costs an influence of n at most: n²/(2σ²) with Gaussian noise,
and with Laplace noise the pure loss n/σ. A share of records left out that does not exceed `share` is refused with a
probability below 10⁻⁶, whatever the share. The noise is Laplace noise where all queries have a pure loss: so has the
release.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Self

import numpy as np

from pipeline.accounting.policy import Cells, PolicySum, QueryPolicy
from pipeline.base.errors import StateError
from udfs.mechanisms.additive_kinds import Gaussian, Laplace
from udfs.mechanisms.base import Mechanism
from udfs.noise.keystream import CellBits, SecretKey
from udfs.numbers.exact import as_json, exact
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
        noisy = self.mechanism.release(np.array([kept, left_out], dtype=np.int64), bits, Fraction(1, 2)).value
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
