"""Ratios and change of noisy totals: Fieller's set against its definition, and coverage with noise as it is drawn."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy import stats

from tests.support.bits import cell_bits
from udfs.estimates.intervals import (
    Law,
    Statistics,
    Totals,
    combined,
    difference,
    law_of,
    multiplier,
    ratio,
    ratio_of_intervals,
    relative_change,
)
from udfs.mechanisms.base import Released
from udfs.mechanisms.catalogue import build

DRAWS = 20_000
SURE = 4.9  # standard deviations of a count of misses: a false alarm in 10⁶ checks, of 66 here in all
LEVELS = (0.5, 0.9, 0.95)
MECHANISMS = {
    "gaussian": ({"kind": "gaussian", "sigma": 20}, Law.GAUSSIAN),
    "laplace": ({"kind": "laplace", "sigma": 20}, Law.SYMMETRIC),
    "polylog": ({"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 2.718281828459045, "sigma": 20}, Law.SYMMETRIC),
    "generalized": ({"kind": "generalized_gaussian", "p": 0.5, "sigma": 5}, Law.SYMMETRIC),
    "log": ({"kind": "log", "a": 10, "sigma": 0.2}, Law.UNIMODAL),
}


def released(name: str, total: int, query: int) -> Released:
    mechanism = build(MECHANISMS[name][0], Fraction(1))
    return mechanism.release(np.full(DRAWS, total), cell_bits(DRAWS, query=query), Fraction(95, 100))


def drawn(name: str, total: int, query: int) -> Totals:
    """Released values of one total, with the variances that are published with them."""
    out = released(name, total, query)
    return Totals(out.value.astype(np.float64), out.standard_error**2)


def too_often_missed(found: Statistics, truth: float, level: float) -> bool:
    """Whether intervals miss the truth more often than 1 − level can explain; none stated misses nothing."""
    q = 1 - level
    missed = np.count_nonzero((found.lower > truth) | (found.upper < truth))
    return bool(missed > DRAWS * q + SURE * np.sqrt(DRAWS * q * (1 - q)))


def by_delta(n: Totals, d: Totals, k: float) -> Statistics:
    """The broken twin: θ ± k standard errors of the delta method."""
    value = n.value / np.where(d.value == 0, 0.5, d.value)
    error = np.sqrt(n.variance + value**2 * d.variance) / np.maximum(np.abs(d.value), 0.5)
    return Statistics(value, error, value - k * error, value + k * error)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("times", [2, 40])
def test_stated_intervals_miss_as_rarely_as_they_say(name: str, times: int) -> None:
    """The denominator is 2 or 40 standard errors from 0 (of log noise: 40 and 800 in value), the ratio is 3."""
    below = round(times * np.sqrt(build(MECHANISMS[name][0], Fraction(1)).variance(0))) if name != "log" else 20 * times
    n, d = drawn(name, 3 * below, 0), drawn(name, below, 1)
    law = combined([MECHANISMS[name][1]] * 2)
    for level in LEVELS:
        k = multiplier(1 - level, law)
        assert not too_often_missed(ratio(n, d, k), 3.0, level)
        assert not too_often_missed(relative_change(n, d, k), 2.0, level)
        assert not too_often_missed(difference(n, d, k), 2.0 * below, level)


def test_the_check_rejects_the_delta_method_and_gaussian_multipliers() -> None:
    gaussian, laplace = (
        (drawn(name, 3 * below, 0), drawn(name, below, 1)) for name, below in (("gaussian", 40), ("laplace", 1000))
    )
    assert too_often_missed(by_delta(*gaussian, multiplier(0.1, Law.GAUSSIAN)), 3.0, 0.9)
    assert too_often_missed(ratio(*laplace, multiplier(0.05, Law.GAUSSIAN)), 3.0, 0.95)
    assert too_often_missed(ratio(*gaussian, multiplier(0.1, Law.GAUSSIAN), covariance=300.0), 3.0, 0.9)


ESTIMATES = st.tuples(st.floats(-50, 50), st.floats(0.1, 9))


@given(ESTIMATES, ESTIMATES, st.floats(-1, 1), st.floats(0.5, 4))
def test_the_interval_is_fiellers_set(
    numerator: tuple[float, float], denominator: tuple[float, float], correlation: float, k: float
) -> None:
    (n, sn), (d, sd) = numerator, denominator
    c = correlation * sn * sd
    found = ratio(Totals(np.array(n), np.array(sn**2)), Totals(np.array(d), np.array(sd**2)), k, c)
    if abs(d) <= k * sd:
        assert np.isnan([found.lower, found.upper, found.standard_error]).all()
        return
    middle, half = (found.upper + found.lower) / 2, (found.upper - found.lower) / 2
    room = 1e-6 * (1 + half + abs(middle))
    for theta, inside in ((middle, True), (middle + half - room, half > room), (middle + half + room, False)):
        within = (n - theta * d) ** 2 <= k**2 * (sn**2 - 2 * theta * c + theta**2 * sd**2) + 1e-9 * (1 + n**2)
        assert within or not inside
    beyond = found.upper + 1e-2 * (1 + half)
    assert (n - beyond * d) ** 2 > k**2 * (sn**2 - 2 * beyond * c + beyond**2 * sd**2) - 1e-9


def test_a_share_of_a_total_that_holds_it_has_no_error_at_one() -> None:
    """N inside D = N + R: with R = 0 known, both are the same estimate and the share is 1 without error."""
    same = Totals(np.array([100.0]), np.array([25.0]))
    found = ratio(same, same, 3.0, covariance=25.0)
    assert [found.value[0], found.standard_error[0], found.lower[0], found.upper[0]] == pytest.approx([1, 0, 1, 1])


def test_no_variance_no_interval() -> None:
    known, unknown = Totals(np.array([9.0, 1]), np.array([1.0, 1])), Totals(np.array([9.0, 0]), np.array([np.inf, 1]))
    assert np.isnan(ratio(known, unknown, 2.0).upper).all()
    assert np.isnan(ratio(known, unknown, 2.0).value[1])
    assert np.isnan(difference(known, unknown, 2.0).upper[0])


def test_ratios_of_intervals_hold_every_ratio_in_them() -> None:
    """Cauchy noise has no variance; 1 − √q each makes 1 − q of both, as the noise is independent."""
    mechanism = build({"kind": "symmetric_stable", "alpha": 1, "gamma": 20}, Fraction(1))
    level = Fraction(9, 10)
    n, d = (
        stated(out.value, out.lower, out.upper)
        for out in (mechanism.release(np.full(DRAWS, t), cell_bits(DRAWS, query=t), level) for t in (3000, 1000))
    )
    found = ratio_of_intervals(n, d)
    assert not too_often_missed(found, 3.0, 0.81)
    narrow = stated(found.value, found.value * 0.95, found.value * 1.05)
    assert too_often_missed(narrow, 3.0, 0.81)
    assert np.isnan(ratio_of_intervals(stated(1, 1, 1), stated(1, -1, 3)).lower[0])
    below = ratio_of_intervals(stated(2, -1, 5), stated(-2, -4, -1))
    assert (below.lower[0], below.upper[0]) == (-5.0, 1.0)


def stated(value: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> Statistics:
    """Values with their intervals alone."""
    ends = [np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (value, lower, upper)]
    return Statistics(ends[0], np.full(ends[0].shape, np.nan), ends[1], ends[2])


@given(st.floats(0.001, 0.999))
def test_the_bound_of_gauss_is_reached_and_not_passed(q: float) -> None:
    """Of all symmetric laws with one peak those of a peak at 0 and a uniform part are the worst."""
    k = multiplier(q, Law.SYMMETRIC)
    half = np.linspace(k + 1e-9, 40 + 4 * k, 20_000)  # uniform on ±half with such a share that the variance is 1
    share = np.minimum(3 / half**2, 1.0)
    beyond = np.where(half**2 >= 3, share * (1 - k / half), 0.0)
    assert beyond.max() <= q + 1e-9
    assert beyond.max() == pytest.approx(q, rel=1e-3) or multiplier(q, Law.SYMMETRIC) == pytest.approx(3**0.5 * (1 - q))


@given(st.floats(0.001, 0.9), st.floats(0.05, 1.2))
def test_laws_that_lean_to_one_side_stay_within_their_bounds(q: float, shape: float) -> None:
    for law in (stats.lognorm(shape), stats.gamma(shape), stats.uniform(), stats.norm(), stats.laplace()):
        for known in (Law.UNIMODAL, Law.ANY):
            k = multiplier(q, known) * law.std()
            assert law.cdf(law.mean() - k) + law.sf(law.mean() + k) <= q + 1e-12


def test_less_known_is_never_narrower_and_sums_know_no_more_than_their_parts() -> None:
    for q in (0.5, 0.3, 0.1, 0.05, 0.01):
        ks = [multiplier(q, law) for law in Law]
        assert ks == sorted(ks)
    assert [round(multiplier(q, Law.SYMMETRIC), 3) for q in (0.05, 0.1, 0.5)] == [2.981, 2.108, 0.866]
    assert combined([Law.GAUSSIAN, Law.SYMMETRIC]) is Law.SYMMETRIC
    assert combined([Law.GAUSSIAN, Law.UNIMODAL]) is Law.UNIMODAL
    assert combined([Law.UNIMODAL, Law.UNIMODAL]) is Law.ANY
    assert combined([]) is Law.GAUSSIAN


def test_laws_are_those_of_the_noise_and_the_curve() -> None:
    """Gaussian noise of few steps is not taken for Gaussian; of transformed noise only e^noise keeps its one peak."""

    def law(**spec: object) -> Law:
        return law_of(build(spec, Fraction(1)))

    assert law(kind="gaussian", sigma=4) is law(kind="unit_splitting", threshold=10, rho=0.1) is Law.GAUSSIAN
    assert law(kind="gaussian", sigma=3) is law(kind="laplace", sigma=99) is Law.SYMMETRIC
    assert law(kind="log", a=1, sigma=0.2, noise="laplace") is law(kind="groupwise_log", a=1, sigma=0.2) is Law.UNIMODAL
    assert law(kind="log", a=1, sigma=0.2, estimator="median") is law(kind="root", k=2, a=9, sigma=1) is Law.ANY
