"""Exponential polylogarithmic noise: closed forms and quadrature against integrals of the density's definition."""

import math
from typing import Any

import numpy as np
import pytest

from tests.support.densities import CTX, Law, error, polylog
from udfs.noise.continuous import GeneralizedGaussian
from udfs.noise.continuous_polylog import ExponentialPolylog

CLOSE = 1e-12
TAILS = [1e-300, 1e-30, 0.05, 0.2501, 0.4999]
LARGEST = 1e300
POWERS = [1, 1.05, 1.4, 2, 3, 5]
PLACES = [(0, 1e-3), (80.0, 7.3), (1e6, 1e9)]  # a (0: the least allowed) and sigma
DEGREES = [0.1, 0.7, 1.5, 4.0, 30.0, 1000.0]


def agrees(noise: ExponentialPolylog, law: Law, tails: list[float]) -> None:
    """Everything the noise states, where it lies within the doubles."""
    for tail, z in zip(tails, map(float, noise.tail_quantile(tails)), strict=True):
        if z > LARGEST:
            assert law.survival(LARGEST) > tail * (1 - CLOSE)
            continue
        f, s = law.density(z), law.survival(z)
        assert abs(s - CTX.mpf(tail)) < CLOSE * max(f * CTX.mpf(z), s)
        assert error(noise.survival(z), s) < CLOSE
        assert abs(CTX.mpf(float(noise.log_density(z))) - CTX.log(f)) < CLOSE * max(1, abs(CTX.log(f)))
        if f > 1e-300:
            assert error(noise.density(z), f) < CLOSE
    for stated, order in ((noise.variance(), 2), (noise.mean_absolute_error(), 1)):
        if stated < LARGEST:
            assert error(stated, law.moment(order)) < CLOSE


@pytest.mark.parametrize("d", DEGREES)
@pytest.mark.parametrize("p", POWERS)
def test_integrals_of_the_density(p: float, d: float) -> None:
    if (p == 1 and d < 1) or (p == 1.05 and d < 0.79) or (p == 1.4 and d < 0.15):
        with pytest.raises(ValueError, match="d: "):
            ExponentialPolylog(p=p, d=d, a=80.0, sigma=1)
        return
    a, sigma = PLACES[(POWERS.index(p) + DEGREES.index(d)) % 3]
    a = a or math.exp(p - 1)
    agrees(ExponentialPolylog(p=p, d=d, a=a, sigma=sigma), polylog(p, d, a, sigma), TAILS)


@pytest.mark.parametrize("z", [1e-12, 1e-3, 1.0, 1e6, 1e15])
@pytest.mark.parametrize(
    ("p", "d", "a"), [(1, 1.5, 1), (1, 1000, 3), (2, 0.1, 3), (2, 30, 3), (1.5, 1, 2), (5, 0.1, 60)]
)
def test_given_distances(p: float, d: float, a: float, z: float) -> None:
    noise, law = ExponentialPolylog(p=p, d=d, a=a, sigma=2.5), polylog(p, d, a, 2.5)
    logs = CTX.log(law.density(z)), CTX.log(law.survival(z))
    assert abs(CTX.mpf(float(noise.log_density(z))) - logs[0]) < CLOSE * max(1, abs(logs[0]))
    for stated, log in zip((noise.density(z), noise.survival(z)), logs, strict=True):
        if log > -690:
            assert error(stated, CTX.exp(log)) < CLOSE
        else:
            assert stated < 1e-299


def kappa(x: Any, y: Any, d: Any) -> Any:
    return CTX.ncdf(CTX.sqrt(2 * d) * (CTX.log(x) - y / d))


@pytest.mark.parametrize("d", [3.5, 4.0, 50.0])
def test_p_1_variance_and_its_misprint(d: float) -> None:
    noise, law = ExponentialPolylog(p=1, d=d, a=2.0, sigma=3.0), polylog(1, d, 2.0, 3.0)
    printed = 36 * (d - 1) * (1 / (d - 3) - 1 / (d - 2) + 1 / (d - 1))
    right = 36 * (d - 1) * (1 / (d - 3) - 2 / (d - 2) + 1 / (d - 1))
    assert error(noise.variance(), law.moment(2)) < CLOSE
    assert error(right, law.moment(2)) < 1e-9
    assert error(printed, law.moment(2)) > 0.1  # the broken twin: paper 1, table 3


@pytest.mark.parametrize("d", [0.5, 1.0, 10.0])
def test_p_2_variance_needs_its_last_term(d: float) -> None:
    a, dd = 3.0, CTX.mpf(d)

    def integral(j: int) -> Any:
        return CTX.exp(j * j / (4 * dd)) * CTX.sqrt(CTX.pi / dd) * (1 - kappa(CTX.mpf(a), CTX.mpf(j) / 2, dd))

    cut_off = (integral(3) - 2 * a * integral(2)) / integral(1)  # paper 1, table 3 ends before + a²
    variance = ExponentialPolylog(p=2, d=d, a=a, sigma=1.0).variance()
    assert error(variance, polylog(2, d, a, 1.0).moment(2)) < CLOSE
    assert error(variance, cut_off + a * a) < CLOSE
    assert error(variance, cut_off) > 0.1


@pytest.mark.parametrize("p", [1, 1.5, 2, 7, 20])
@pytest.mark.parametrize("sigma", [1e-30, 1.0])
def test_narrow_noise_is_nearly_laplace(p: float, sigma: float) -> None:
    noise = ExponentialPolylog(p=p, d=1e12, a=1e50, sigma=sigma)
    scale = sigma * 1e50 / (p * 1e12 * math.log(1e50) ** (p - 1))
    assert noise.variance() == pytest.approx(2 * scale**2, rel=1e-10, abs=0)
    assert noise.mean_absolute_error() == pytest.approx(scale, rel=1e-10, abs=0)
    assert float(noise.tail_quantile(0.05)) == pytest.approx(scale * math.log(10), rel=1e-10, abs=0)


@pytest.mark.parametrize("p", [1 + 2.0**-52, 1 + 1e-9, 2 - 1e-9, 2 + 1e-9])
def test_quadrature_beside_the_closed_forms_meets_them(p: float) -> None:
    a = math.exp(round(p) - 1) * (1 + 1e-8)
    beside = ExponentialPolylog(p=p, d=4, a=a, sigma=3.0)
    closed = ExponentialPolylog(p=round(p), d=4, a=a, sigma=3.0)
    z = closed.tail_quantile([1e-60, 1e-9, 0.2, 0.3, 0.49])
    np.testing.assert_allclose(beside.tail_quantile([1e-60, 1e-9, 0.2, 0.3, 0.49]), z, rtol=1e-5)
    np.testing.assert_allclose(beside.survival(z), closed.survival(z), rtol=1e-5)
    assert beside.variance() == pytest.approx(closed.variance(), rel=1e-6)


def test_moments_that_do_not_exist_are_infinite() -> None:
    assert ExponentialPolylog(p=1, d=3, a=2, sigma=1).variance() == math.inf
    assert ExponentialPolylog(p=1, d=3, a=2, sigma=1).mean_absolute_error() == 2
    assert ExponentialPolylog(p=1, d=2, a=2, sigma=1).mean_absolute_error() == math.inf
    assert ExponentialPolylog(p=1.05, d=1, a=2, sigma=1).variance() == math.inf  # finite, beyond the doubles


def test_quantiles_beyond_the_doubles_are_infinite() -> None:
    noise = ExponentialPolylog(p=1.05, d=1, a=2, sigma=1)
    assert noise.tail_quantile(1e-300) == np.inf
    assert 0 < noise.survival(1e300) < 0.5
    # the root is 10^340, while distances just below the largest double have no double ratio to sigma
    noise = ExponentialPolylog(p=1.0003, d=1.4857, a=8.49, sigma=0.0237)
    assert noise.tail_quantile(4e-186) == np.inf
    assert error(noise.survival(1.7e308), polylog(1.0003, 1.4857, 8.49, 0.0237).survival(1.7e308)) < CLOSE


def test_calibration_of_math_10() -> None:
    assert GeneralizedGaussian(p=0.5, sigma=0.12910).variance() == pytest.approx(2, rel=5e-5)
    assert ExponentialPolylog(p=2, d=1, a=math.e, sigma=0.54164).variance() == pytest.approx(2, rel=3e-5)
    # The broken twins: the next printed digits.
    assert GeneralizedGaussian(p=0.5, sigma=0.12920).variance() != pytest.approx(2, rel=5e-5)
    assert ExponentialPolylog(p=2, d=1, a=math.e, sigma=0.54174).variance() != pytest.approx(2, rel=3e-5)


@pytest.mark.parametrize(
    ("p", "d", "a", "words"),
    [
        (0.9, 2, 3, "p: must be between 1"),
        (21, 2, 1e40, "p: must be between 1"),
        (1, 1, 3, "d: must be above 1"),
        (1 + 2.0**-52, 2, 1, "a: must be at least"),
        (2, 1e13, 3, "d: must be at most"),
        (2, 1, 2.7, "a: must be at least"),
        (3, 1, 7.38, "a: must be at least"),
        (1.2, 0.1, 3, "d: too small"),
    ],
)
def test_parameters_outside_the_family_are_refused(p: float, d: float, a: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ExponentialPolylog(p=p, d=d, a=a, sigma=1.0)
