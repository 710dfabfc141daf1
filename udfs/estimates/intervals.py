"""How many standard errors an interval takes: from what is known of the error's law, never more than is known.

Result: `multiplier(q, law)` is a k with P(|error| > k·σ) ≤ q for every error of that law with mean 0 and standard
deviation σ. Proofs and sources: docs/mathematics.md, section 15.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfs.mechanisms.additive_kinds import GaussianNoise
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.transformed_kinds import LogMechanism
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


def whole_range(lower: NDArray[Any], upper: NDArray[Any], step: float) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the ends of ranges as whole numbers.

    A total of whole steps is one of the whole numbers in its interval: rounded inwards, but for the error of doubles,
    the range holds it as often. Where none is in it, and of other steps, it is rounded outwards.
    """
    if step % 1 != 0:
        return np.floor(lower), np.ceil(upper)
    ends = (lower, upper)
    if all(each.dtype == np.int64 and -5e8 < each.min(initial=0) <= each.max(initial=0) < 5e8 for each in ends):
        return ends  # they are whole, and the slack below is at most a half
    slack = 1e-9 * np.maximum(1, np.maximum(np.abs(lower), np.abs(upper)))
    inner = np.ceil(lower - slack), np.floor(upper + slack)
    apart = inner[0] > inner[1]
    if apart.any():
        inner = np.where(apart, np.floor(lower), inner[0]), np.where(apart, np.ceil(upper), inner[1])
    return inner


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
        """Return the statistics of each value less a constant."""
        return Statistics(self.value - constant, self.standard_error, self.lower - constant, self.upper - constant)


def ratio(numerator: Totals, denominator: Totals, k: Floats | float, covariance: Floats | float = 0.0) -> Statistics:
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


def difference(after: Totals, before: Totals, k: Floats | float) -> Statistics:
    """Return the change between two estimates whose errors are independent: value ± k standard errors."""
    value, error = after.value - before.value, np.sqrt(after.variance + before.variance)
    known = np.where(np.isfinite(error), error, np.nan)
    return Statistics(value, known, value - k * known, value + k * known)


def relative_change(after: Totals, before: Totals, k: Floats | float) -> Statistics:
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


# Sums and weighted means of published totals with symmetric stable noise: their law, intervals and best weights.
#
# Result: lattice noise of weights p(kλ/γ) has, with s = γ/λ, the characteristic function (Poisson summation)
#
#     φ_s(t) = Σ_j exp(−(s·|t + 2πj|)^α) / Σ_j exp(−(s·2π|j|)^α)        over all whole j,
#
# so that the law of a combination Σ w·Z of independent noise is known without an approximation: Π φ_s(w·t). For smooth
# noise it is closed: of equal α the scale is (Σ |w|^α·γ^α)^{1/α}. Proofs: docs/mathematics.md, section 15.

NATS = 42.0  # e^{−42} is below 10⁻¹⁸
NARROWEST = 0.02  # steps: narrower noise is nearly always 0, and its series long
SURE = 1e-9  # what intervals cover beyond the coverage asked for, against the errors of integration
MOST = 0.9999  # coverage: beyond, integrals of heavy tails take too many waves
SMOOTHING = 1 / 400  # half-width of the smoothing variable, of the end of a search: 1/400 to 1/100 of the result
ORDER = 12  # of the smoothing variable: a sum of so many uniform ones
REACH = 70.0  # beyond this many half-widths the smoothing variable's characteristic function is below 10⁻¹²
AT, MASS = np.polynomial.legendre.leggauss(16)


@dataclass(frozen=True, kw_only=True)
class Term:
    """`count` independent noises of exponent `alpha` and scale `scale` (in lattice steps), each times `weight`."""

    alpha: float
    scale: float
    count: int = 1
    weight: float = 1.0

    def log_characteristic(self, t: Floats) -> Floats:
        """Return count·ln φ_s(weight·t); −∞ where φ is nothing."""
        u = np.abs(t * self.weight) % (2 * np.pi)
        u = np.minimum(u, 2 * np.pi - u)
        last = math.ceil(NATS ** (1 / self.alpha) / (2 * np.pi * self.scale)) + 1
        around = 2 * np.pi * np.arange(-last, last + 1)
        total = np.zeros_like(u)
        for turn in around:
            total += np.exp(-((self.scale * np.abs(u + turn)) ** self.alpha))
        with np.errstate(divide="ignore"):
            logs: Floats = np.log(total / np.exp(-((self.scale * np.abs(around)) ** self.alpha)).sum())
        return self.count * logs


def scale_of(terms: Sequence[Term]) -> float:
    """Return the scale of the combination where all α are equal: (Σ n·|w|^α·s^α)^{1/α}, in steps.

    Of different α it is that of the least one, after which the tails are: a size for searches, no law's parameter.
    """
    alpha = min(term.alpha for term in terms)
    logs = [alpha * math.log(term.scale * abs(term.weight)) + math.log(term.count) for term in terms if term.weight]
    return math.exp(np.logaddexp.reduce(logs) / alpha)


def best_weights(alpha: float, scales: Sequence[float]) -> Floats:
    """Return the weights of sum 1 for which independent unbiased values of these scales have the mean of least scale.

    w ∝ γ^{−α/(α−1)} for α > 1 (2: inverse variances); for α = 1 the least scale has all the weight. The mean's scale
    is then (Σ γ^{−α/(α−1)})^{−(α−1)/α}; every quantile of smooth noise is proportional to it.
    """
    logs = np.log(np.asarray(scales, dtype=np.float64))
    if alpha == 1:
        powers = np.where(np.arange(len(logs)) == np.argmin(logs), 0.0, -np.inf)
    else:
        powers = -alpha / (alpha - 1) * (logs - logs.min())
    weights: Floats = np.exp(powers) / np.exp(powers).sum()
    return weights


def half_width(terms: Sequence[Term], coverage: float) -> float:
    """Return a c, in steps, with P(|Σ w·Z| ≤ c) ≥ `coverage`; of sums and differences (weights ±1) the least whole one.

    Exponents may differ. Other weights than ±1: X is smoothed by a variable U of half-width h, about a hundredth of
    the result, and P(|X| ≤ b + h) ≥ P(|X + U| ≤ b), so that c is too wide by 2·h at most.
    Raises ValueError for a coverage above 0.9999 or noise narrower than a fiftieth of its step.
    """
    if not 0 < coverage <= MOST:
        raise ValueError(f"intervals of sums of stable noise have a coverage of at most {MOST}")
    if not all(term.scale >= NARROWEST for term in terms):
        raise ValueError(f"stable noise of a scale below {NARROWEST} steps is too narrow for the intervals of sums")
    on_lattice = all(abs(term.weight) in (0.0, 1.0) for term in terms)
    return _least_step(terms, coverage) if on_lattice else _smoothed(terms, coverage)


@dataclass(frozen=True, eq=False)
class _Integral:
    """P(|Y| ≤ b) for b up to `most`, of a symmetric Y: Σ F_j·sin(b·t_j), F being its characteristic function's part."""

    t: Floats
    parts: Floats

    def within(self, b: float) -> float:
        return float(np.dot(self.parts, np.sin(b * self.t)))


def _panels(end: float, width: float) -> tuple[Floats, Floats]:
    """Return nodes and masses on [0, end]: panels of at most `width`, the first halved towards the bend |t|^α at 0."""
    edges = np.linspace(0, end, math.ceil(end / width) + 1)
    starts = np.concatenate([[0.0], edges[1] * 2.0 ** np.arange(-50, 0), edges[1:-1]])
    ends = np.concatenate([edges[1] * 2.0 ** np.arange(-50, 1), edges[2:]])
    half = (ends - starts) / 2
    return ((starts + half)[:, None] + half[:, None] * AT).ravel(), (half[:, None] * MASS).ravel()


def _logs(terms: Sequence[Term], t: Floats) -> Floats:
    return sum((term.log_characteristic(t) for term in terms if term.weight), np.zeros_like(t))


def _least_step(terms: Sequence[Term], coverage: float) -> float:
    """Search for the least whole c: P(|S| ≤ c) = (1/π)·∫₀^π Π φ(t)·sin((c + ½)t)/sin(t/2) dt.

    Each φ falls on [0, π] (e^{−|t|^α} is a mixture of Gaussians, and wrapped Gaussians fall), so the integral ends
    where the product is nothing.
    """
    scale = scale_of(terms)
    end = math.pi
    while end > math.ldexp(math.pi, -60) and _logs(terms, np.array([end / 2]))[0] < -NATS:
        end /= 2

    def integral(most: float) -> _Integral:
        t, mass = _panels(end, min(math.pi / (most + 0.5), 0.5 / max(scale, 0.5)))
        return _Integral(t, np.exp(_logs(terms, t)) * mass / (np.pi * np.sin(t / 2)))

    wanted = min(coverage + SURE, 1 - SURE)
    most = max(1.0, math.ceil(4 * scale))
    made = integral(most)
    while made.within(most + 0.5) < wanted:
        most *= 4
        made = integral(most)
    low, high = -1, int(most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if made.within(middle + 0.5) >= wanted else (middle, high)
    return float(high)


def _smoothed(terms: Sequence[Term], coverage: float) -> float:
    """Return b + h for the least b with P(|X + U| ≤ b) = (2/π)·∫₀^∞ φ_X(t)·(sin(ht/m)/(ht/m))^m·sin(bt)/t dt enough."""
    scale = scale_of(terms)
    wanted = coverage + SURE
    most = 4 * scale
    made, h = _smooth_integral(terms, most, scale)
    while made.within(most) < wanted:
        most *= 4
        made, h = _smooth_integral(terms, most, scale)
    low, high = 0.0, most
    while high - low > h / 64:
        middle = (low + high) / 2
        low, high = (low, middle) if made.within(middle) >= wanted else (middle, high)
    return high + h


def _smooth_integral(terms: Sequence[Term], most: float, scale: float) -> tuple[_Integral, float]:
    h = SMOOTHING * most
    t, mass = _panels(REACH / h, min(math.pi / most, 0.5 / scale))
    smooth = np.sinc(h * t / (ORDER * np.pi)) ** ORDER
    return _Integral(t, np.exp(_logs(terms, t)) * smooth * mass * 2 / (np.pi * t)), h
