"""The log mechanism with Laplace noise, and with median-unbiased values: sums over the noise and closed forms.

Laplace noise of scale b is summed over its whole lattice, as two geometric series: for j·b < 1,
Σ_k e^{jkλ}·e^{−|k|λ/b} = 1/(1 − r) + 1/(1 − s) − 1 with r = e^{(j − 1/b)λ}, s = e^{−(j + 1/b)λ}.
"""

from fractions import Fraction
from itertools import pairwise, product
from math import expm1, inf, isfinite
from typing import Any

import numpy as np
import pytest

from tests.support.lattice import CTX, real
from tests.support.released import INTERVAL, coverage, noise_of, release
from udfs.mechanisms.base import ParameterError
from udfs.mechanisms.transformed_kinds import Log

TOTALS = (0, 1, 40, 12_345, 2**60 - 1)
CHOICES = [("gaussian", "mean"), ("gaussian", "median"), ("laplace", "mean"), ("laplace", "median")]


def mechanism(noise: str, estimator: str, sigma: str = "0.2", a: str = "2") -> Log:
    return Log(a=Fraction(a), sigma=Fraction(sigma), noise=noise, estimator=estimator)


def exponential_moment(m: Log, j: int) -> Any:
    """E e^{jZ} of the lattice noise; infinite where it is."""
    s, step = real(m.sigma), real(m.lattice_step)
    if m.noise == "gaussian":
        return CTX.exp(j**2 * s**2 / 2)  # Poisson summation: the lattice is too fine to be seen
    if j * m.sigma >= 1:
        return CTX.inf

    def sides(i: int) -> Any:
        return -1 / CTX.expm1((i - 1 / s) * step) - 1 / CTX.expm1(-(i + 1 / s) * step) - 1

    return sides(j) / sides(0)


def factors(m: Log, total: int) -> tuple[Any, Any]:
    """The value + a, and the standard error, as multiples of e^Z·(q + a), the same at three noises."""
    noise = [-(2**31), 0, 2**29]
    released, shifted = release(m, total, noise), float(total + m.a)
    grown = np.exp(np.array(noise) * float(m.lattice_step)) * shifted
    value, error = (released.value + float(m.a)) / grown, released.standard_error / grown
    assert value == pytest.approx(value[1], rel=1e-8)  # rounding moves e^ṽ by λ/2
    assert isfinite(error[1]) == bool(np.all(np.isfinite(error)))
    if isfinite(error[1]):
        assert error == pytest.approx(error[1], rel=1e-8)
    return CTX.mpf(float(value[1])), CTX.mpf(float(error[1]))


@pytest.mark.parametrize(("noise", "estimator"), CHOICES)
@pytest.mark.parametrize("sigma", ["0.01", "0.2", "0.45"])
def test_moments_are_those_stated(noise: str, estimator: str, sigma: str) -> None:
    m = mechanism(noise, estimator, sigma)
    once, twice = (exponential_moment(m, j) for j in (1, 2))
    for total in TOTALS:
        value, error = factors(m, total)
        mean = float(value * once - 1)  # relative to q + a
        assert abs(mean) < 1e-8 if estimator == "mean" else mean > 4e-5
        variance = float(value**2 * (twice - once**2) * real(total + m.a) ** 2)
        assert m.variance(float(total)) == pytest.approx(variance, rel=1e-7)
        assert float(error**2 * twice * real(total + m.a) ** 2) == pytest.approx(variance, rel=1e-7)
        # The broken twin: what is right for the other estimator.
        other = mechanism(noise, "median" if estimator == "mean" else "mean", sigma)
        assert other.variance(float(total)) != pytest.approx(variance, rel=5e-5)


def test_laplace_variances_are_those_of_math_section_3() -> None:
    m, b = mechanism("laplace", "mean", "0.3"), 0.3
    assert m.variance(10.0) == pytest.approx(144 * b**2 * (2 + b**2) / (1 - 4 * b**2), rel=1e-12)
    assert Log(a=Fraction(1), sigma=Fraction("0.4479620520")).variance(2.0) == pytest.approx(
        9 * expm1(0.20067), rel=1e-8
    )
    assert 9 * expm1(0.20067) == pytest.approx(2, rel=1e-4)  # docs/calibration.md: variance 2 at q = 2


@pytest.mark.parametrize("estimator", ["mean", "median"])
@pytest.mark.parametrize("sigma", ["0.5", "0.7", "0.99"])
def test_wide_laplace_noise_has_no_standard_error(estimator: str, sigma: str) -> None:
    m = mechanism("laplace", estimator, sigma)
    released = release(m, 10, [-5, 0, 5])
    assert m.variance(10.0) == inf
    assert np.all(released.standard_error == inf)
    assert np.all(np.isfinite([released.value, released.lower, released.upper]))
    assert isfinite(mechanism("laplace", estimator, "0.4999").variance(10.0))


def test_a_mean_that_does_not_exist_is_refused() -> None:
    for sigma in ("1", "7"):
        with pytest.raises(ParameterError, match="sigma: must be below 1"):
            mechanism("laplace", "mean", sigma)
        assert mechanism("laplace", "median", sigma).mean_absolute_error(3.0) == inf
        mechanism("gaussian", "mean", sigma)


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("sigma", ["0.01", "0.3", "2"])
def test_medians_are_as_often_too_high_as_too_low(noise: str, sigma: str) -> None:
    m = mechanism(noise, "median", sigma)
    for total in TOTALS:
        value = release(m, total, [-(10**6), -2, 2, 10**6]).value
        # q lies between the values at −2 and 2 steps: P(value < q) and P(value > q) differ from ½ by 3 steps' mass
        slack = 4e-16 * (total + 2)
        assert value[0] < value[1] <= total + slack
        assert total - slack <= value[2] < value[3]
        if noise == "gaussian" and sigma == "0.3":
            assert release(mechanism(noise, "mean", sigma), total, [2]).value[0] < total  # the broken twin
    assert 3 / float(noise_of(m).scale) < 1e-7


@pytest.mark.parametrize("total", TOTALS[1:])
@pytest.mark.parametrize(("noise", "estimator"), CHOICES)
@pytest.mark.parametrize("interval", ["0.5", "0.95", "0.9999"])
def test_intervals_cover_and_are_not_wider_than_needed(total: int, noise: str, estimator: str, interval: str) -> None:
    m, share = mechanism(noise, estimator), Fraction(interval)
    covered = coverage(m, total, share)
    assert real(share) <= covered < real(share) + 1e-7
    assert coverage(m, total, share * (1 - Fraction(1, 10**5))) < real(share)  # the broken twin


@pytest.mark.parametrize(("noise", "estimator"), CHOICES)
@pytest.mark.parametrize("sigma", ["0.01", "0.3", "0.9", "1.5"])
def test_mean_absolute_errors_are_the_integrals(noise: str, estimator: str, sigma: str) -> None:
    if noise == "laplace" and sigma == "1.5":
        return
    m, s = mechanism(noise, estimator, sigma), CTX.mpf(sigma)
    factor = {"mean": {"gaussian": CTX.exp(-(s**2) / 2), "laplace": 1 - s**2}[noise], "median": CTX.mpf(1)}[estimator]
    with CTX.workprec(90):
        kink = -CTX.log(factor) / s
        ends = sorted({-CTX.inf, CTX.mpf(-9), CTX.mpf(0), kink, kink + 5, kink + 40, CTX.inf})
        density = (lambda z: CTX.exp(-abs(z)) / 2) if noise == "laplace" else CTX.npdf
        exact = CTX.quad(lambda z: abs(factor * CTX.exp(s * z) - 1) * density(z), ends)
    assert m.mean_absolute_error(5.0) == pytest.approx(7 * float(exact), rel=1e-9)


def test_released_columns_rise_with_the_noise() -> None:
    for (noise, estimator), total in product(CHOICES, TOTALS):
        m = mechanism(noise, estimator, "0.4")
        steps = [int(x / float(m.lattice_step)) for x in (-3, -1, 0, 1, 3)]
        released = release(m, total, steps, INTERVAL)
        for column in (released.value, released.lower, released.upper, released.standard_error):
            assert all(earlier <= later for earlier, later in pairwise(column.tolist()))
        assert np.all(released.lower <= np.maximum(released.value, 0))
        assert np.all(released.value <= released.upper)
