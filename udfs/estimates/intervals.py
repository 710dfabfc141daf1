"""How many standard errors an interval takes: from what is known of the error's law, never more than is known.

Result: `multiplier(q, law)` is a k with P(|error| > k·σ) ≤ q for every error of that law with mean 0 and standard
deviation σ. Proofs and sources: docs/mathematics.md, section 15.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from statistics import NormalDist

import numpy as np

from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.light_tailed import GaussianNoise
from udfs.mechanisms.log import LogMechanism
from udfs.numbers.arrays import Floats


class Law(IntEnum):
    """What is known of an error's law, from the most to the least."""

    GAUSSIAN = 0
    SYMMETRIC = 1  # one peak, the same to both sides: every sum of such noise is so too (Wintner 1938)
    UNIMODAL = 2  # one peak
    ANY = 3  # a variance


def combined(laws: Iterable[Law]) -> Law:
    """Return what is known of a linear combination of independent errors.

    Gaussian noise leaves any other law its one peak (Ibragimov 1956); two laws that are not symmetric may make two.
    """
    known = list(laws)
    if Law.ANY in known or known.count(Law.UNIMODAL) > 1:
        return Law.ANY
    if Law.UNIMODAL in known and Law.SYMMETRIC in known:
        return Law.ANY
    return max(known, default=Law.GAUSSIAN)


def multiplier(q: float, law: Law) -> float:
    """Return k for 0 < q < 1, the probability of an error beyond k standard deviations.

    Gaussian: its quantile. Symmetric with one peak (Gauss 1823, Camp-Meidell 1922): √(4/(9q)), or √3·(1 − q) for
    q > 1/3. One peak (Vysochanskij and Petunin 1980): √(4/(9q)), or 2/√(3q + 1) for q > 1/6. Any: 1/√q (Chebyshev).
    """
    if not 0 < q < 1:
        raise ValueError("q: it lies between 0 and 1")
    if law is Law.GAUSSIAN:
        return -NormalDist().inv_cdf(q / 2)
    if law is Law.ANY:
        return 1 / math.sqrt(q)
    if law is Law.SYMMETRIC:
        return math.sqrt(4 / (9 * q)) if q <= 1 / 3 else math.sqrt(3) * (1 - q)
    return math.sqrt(4 / (9 * q)) if q <= 1 / 6 else 2 / math.sqrt(3 * q + 1)


# What is known of the error of a published value: from the mechanism that drew its noise.


WIDE = Fraction(4)  # steps of the measure: Gaussian noise this wide is Gaussian to within half a step


def law_of(mechanism: Mechanism) -> Law:
    """Return the law of a value's error about the true total.

    All noise has its one peak at 0 and is symmetric; e^noise keeps the peak, powers of it may not.
    """
    if mechanism.additive:
        wide = isinstance(mechanism, GaussianNoise) and mechanism.scale >= WIDE * mechanism.step
        return Law.GAUSSIAN if wide else Law.SYMMETRIC
    return Law.UNIMODAL if isinstance(mechanism, LogMechanism) and mechanism.estimator == "mean" else Law.ANY


def half_step(*steps_in_errors: float) -> float:
    """Return what a multiplier grows by for noise on steps: half a step of each part, of the whole's standard error.

    The arguments are each part's step over its standard error, which bounds (Σ h·λ/2)/√(Σ h²σ²) for all factors h.
    """
    return math.sqrt(sum(share**2 for share in steps_in_errors)) / 2


# Ratios, shares and change of estimated totals, cell by cell, with intervals that keep their coverage.
#
# Result: the probability that an interval is stated and does not hold the true ratio is at most q, whatever the totals,
# if k (udfs.estimates.intervals) is right for every combination of the two errors. Source: Fieller, "Some problems in
# interval estimation" (1954); docs/mathematics.md, section 15.


@dataclass(frozen=True, eq=False)
class Totals:
    """Unbiased estimates of totals and the variances of their errors, arrays of one shape."""

    value: Floats
    variance: Floats


@dataclass(frozen=True, eq=False)
class Statistics:
    """Estimates with standard errors and intervals; NaN where none can be stated."""

    value: Floats
    standard_error: Floats
    lower: Floats
    upper: Floats

    def less(self, constant: float) -> "Statistics":
        """Return the same of the statistic less a constant."""
        return Statistics(self.value - constant, self.standard_error, self.lower - constant, self.upper - constant)


def ratio(numerator: Totals, denominator: Totals, k: float, covariance: Floats | float = 0.0) -> Statistics:
    """Return numerator/denominator; `covariance` is that of the two errors.

    The interval is Fieller's set {θ: |N − θD| ≤ k·sd(N − θD)}, which holds the true ratio whenever the error of N − θD
    is within k standard deviations: nothing is approximated. Where |D| ≤ k·sd(D) the set has no ends: the
    denominator is not told from 0, and neither interval nor standard error is stated. The standard error is the delta
    method's, right to the first order of sd(D)/D.
    """
    n, d, vn, vd, c = np.broadcast_arrays(
        numerator.value, denominator.value, numerator.variance, denominator.variance, covariance
    )
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        value = n / d
        spread = vn - 2 * value * c + value**2 * vd  # Var(N − θD) at the estimate, at least 0
        # a·θ² − 2b·θ + … ≤ 0, its discriminant k²·(D²·spread − k²·(vn·vd − c²)) free of differences of large squares
        a, b = d**2 - k**2 * vd, n * d - k**2 * c
        root = k * np.sqrt(np.maximum(d**2 * np.maximum(spread, 0) - k**2 * np.maximum(vn * vd - c**2, 0), 0))
        bounded = (a > 0) & np.isfinite(vn) & np.isfinite(vd) & (d != 0)
        value = np.where(d == 0, np.nan, value)
        error = np.where(bounded, np.sqrt(np.maximum(spread, 0)) / np.abs(d), np.nan)
        lower, upper = (np.where(bounded, (b + sign * root) / a, np.nan) for sign in (-1, 1))
    return Statistics(value, error, lower, upper)


def difference(after: Totals, before: Totals, k: float) -> Statistics:
    """Return the change between two estimates whose errors are independent: value ± k standard errors."""
    value, error = after.value - before.value, np.sqrt(after.variance + before.variance)
    known = np.where(np.isfinite(error), error, np.nan)
    return Statistics(value, known, value - k * known, value + k * known)


def relative_change(after: Totals, before: Totals, k: float) -> Statistics:
    """Return after/before − 1 of two estimates whose errors are independent."""
    return ratio(after, before, k).less(1)


def ratio_of_intervals(numerator: Statistics, denominator: Statistics) -> Statistics:
    """Return the ratio by intervals alone, for noise without a variance, or whose variance depends on the total.

    The interval holds every ratio of two totals in their intervals: it misses the true one only where one of these
    misses its total. None is stated where the denominator's interval holds 0.
    """
    n, d = numerator, denominator
    apart = (d.lower > 0) | (d.upper < 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        corners = np.stack([x / y for x in (n.lower, n.upper) for y in (d.lower, d.upper)])
        value = np.where(d.value == 0, np.nan, n.value / d.value)
    lower, upper = (np.where(apart, end, np.nan) for end in (corners.min(axis=0), corners.max(axis=0)))
    return Statistics(value, np.full(np.shape(value), np.nan), lower, upper)
