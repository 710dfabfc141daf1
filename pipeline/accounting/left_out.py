"""The test of records left out: two noisy counts, by which a release notices that plan and microdata do not fit.

A record is *left out* where it is bad and dropped, or where its codes lie outside the domain; all others are *kept*.
Each record is in one of the two counts, so that all of its rows together change one count by one.

Guarantee (docs/mathematics.md, section 12): both counts with their noise cost a record 1/(2σ²), and a firm of n
records n²/(2σ²) at most; a share of records left out that does not exceed `share` is refused with a probability below
10⁻⁶, whatever the share.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.accounting.policy import Cells, PolicySum, QueryPolicy
from udfs.mechanisms.gaussian import Gaussian
from udfs.noise.keystream import CellBits, SecretKey
from udfs.numbers.exact import as_json, exact
from udfs.records.statistics import Count

NAME = "test of records left out"  # among a release's policies; no query can be called so
SIGMA = Fraction(100)  # records
MULTIPLE = Fraction("5.3")  # exp(-5.3²/2) < 10⁻⁶
SHARE = Fraction("0.01")  # where neither the plan nor the site states one


@dataclass(frozen=True)
class LeftOutTest:
    """Discrete Gaussian noise of scale `sigma` on each count; a release is refused beyond `share` and chance."""

    share: Fraction = SHARE
    sigma: Fraction = SIGMA
    multiple: Fraction = MULTIPLE

    @cached_property
    def mechanism(self) -> Gaussian:
        """The noise on each count."""
        return Gaussian(sigma=self.sigma)

    def draw(self, kept: int, left_out: int, key: SecretKey) -> tuple[int, int]:
        """Return both counts with their noise; `key` is used for nothing else."""
        bits = CellBits(key=key, query=0, cells=np.arange(2, dtype=np.uint64))
        noisy = self.mechanism.release(np.array([kept, left_out], dtype=np.int64), bits, Fraction(1, 2)).value
        return int(noisy[0]), int(noisy[1])

    def passes(self, kept: int, left_out: int) -> bool:
        """Return whether the noisy number left out exceeds the share of the noisy whole by no more than chance does.

        left_out − share·(kept + left_out) has noise of the scale σ·√((1 − share)² + share²); decided exactly.
        """
        beyond = (1 - self.share) * left_out - self.share * kept
        chance = (self.multiple * self.sigma) ** 2 * ((1 - self.share) ** 2 + self.share**2)
        return beyond <= 0 or beyond**2 <= chance

    def to_json(self) -> dict[str, Any]:
        """Return the test as a reservation keeps it."""
        return {"share": as_json(self.share), "sigma": as_json(self.sigma), "multiple": as_json(self.multiple)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "LeftOutTest":
        """Return the test that `to_json` wrote."""
        return cls(*(exact(data[name]) for name in ("share", "sigma", "multiple")))


def with_left_out_test(policy: PolicySum, test: LeftOutTest | None = None) -> PolicySum:
    """Return the policy of a release with the test of records left out, which every record meets."""
    last = QueryPolicy(NAME, Count(), (test or LeftOutTest()).mechanism, cells=Cells((), 1))
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
