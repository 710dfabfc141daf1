"""Estimators of transformed totals, continuous noise: errors against integrals, the log's law against a lognormal."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.densities import CTX, error
from udfs.noise.continuous import Gaussian, Laplace, LogEstimate, RootEstimate

CLOSE = 1e-12
Real = Any


def polynomial_moment(coefficients: dict[int, Real], v: Real, moments: dict[int, Real]) -> Real:
    """E Σ c_n (v + Z)^n from the even moments of Z."""
    terms = [
        c * math.comb(n, j) * v ** (n - j) * moments[j] for n, c in coefficients.items() for j in range(0, n + 1, 2)
    ]
    return CTX.fsum(terms)


def estimator(k: int, scale: Real, gaussian: bool) -> dict[int, Real]:
    """g(x) + a of docs/mathematics.md, section 4: σ^k·He_k(x/σ), or x^k − b²k(k−1)x^{k−2}."""
    if not gaussian:
        return {k: CTX.mpf(1)} | ({k - 2: -(scale**2) * k * (k - 1)} if k > 1 else {})
    return {
        k - 2 * m: CTX.mpf(-1) ** m
        * math.factorial(k)
        * scale ** (2 * m)
        / (math.factorial(m) * math.factorial(k - 2 * m) * 2**m)
        for m in range(k // 2 + 1)
    }


def moments_of_noise(scale: Real, gaussian: bool) -> dict[int, Real]:
    if gaussian:
        return {j: scale**j * CTX.fac2(j - 1) for j in range(0, 26, 2)}
    return {j: scale**j * math.factorial(j) for j in range(0, 26, 2)}


def squared(c: dict[int, Real]) -> dict[int, Real]:
    out: dict[int, Real] = {}
    for m, x in c.items():
        for n, y in c.items():
            out[m + n] = out.get(m + n, CTX.mpf(0)) + x * y
    return out


def noises(scale: float) -> list[Gaussian | Laplace]:
    return [Gaussian(sigma=scale), Laplace(scale=scale)]


@pytest.mark.parametrize("scale", [1e-3, 0.3, 2.0, 1e3])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 8, 12])
def test_roots_are_unbiased_with_the_stated_variance(k: int, scale: float) -> None:
    totals = np.array([0.0, 1.0, 37.0, 1e6, 1e15])
    for noise in noises(scale):
        gaussian = isinstance(noise, Gaussian)
        g, moments = estimator(k, CTX.mpf(scale), gaussian), moments_of_noise(CTX.mpf(scale), gaussian)
        with CTX.workprec(600):  # small noise on large totals: the variance is a difference of near numbers
            v = [CTX.root(CTX.mpf(q) + 2, k) for q in totals]
            means = [polynomial_moment(g, x, moments) for x in v]
            variances = [polynomial_moment(squared(g), x, moments) - x ** (2 * k) for x in v]
        assert all(abs(m / x**k - 1) < CTX.mpf(10) ** -30 for m, x in zip(means, v, strict=True))
        assert error(RootEstimate(k=k, a=2.0, noise=noise).variance(totals), variances) < CLOSE


def expected(function: Any, noise: Gaussian | Laplace, kinks: list[Real]) -> Real:
    """E function(Z) for noise of scale 1, by quadrature between kinks."""
    gaussian = isinstance(noise, Gaussian)

    def weighted(z: Real) -> Real:
        return function(z) * (CTX.npdf(z) if gaussian else CTX.exp(-abs(z)) / 2)

    end = 14 if gaussian else 100
    points = sorted(
        {CTX.mpf(x) for x in (-end, -end / 4, -end / 16, 0, end / 16, end / 4, end)}
        | {x for x in kinks if abs(x) < end}
    )
    return CTX.quad(weighted, points)


@pytest.mark.parametrize("total", [0.0, 3.0, 1e4])
def test_mean_absolute_errors_are_integrals(total: float) -> None:
    v, s = CTX.sqrt(total + 1), CTX.mpf(0.3)
    root = CTX.sqrt(v * v + s * s)
    square = expected(
        lambda z: abs((v + s * z) ** 2 - s * s - v * v), Gaussian(sigma=1), [(root - v) / s, (-root - v) / s]
    )
    assert error(RootEstimate(k=2, a=1.0, noise=Gaussian(sigma=0.3)).mean_absolute_error(total), square) < CLOSE
    for noise in noises(0.3):
        identity = RootEstimate(k=1, a=1.0, noise=noise).mean_absolute_error(total)
        assert error(identity, s * expected(abs, noise, [])) < CLOSE
        gaussian = isinstance(noise, Gaussian)
        log_c = -s * s / 2 if gaussian else CTX.log(1 - s * s)
        log = expected(lambda z, c=log_c: abs(CTX.expm1(c + s * z)), noise, [-log_c / s]) * (total + 1)
        assert error(LogEstimate(a=1.0, noise=noise).mean_absolute_error(total), log) < CLOSE
        twin = expected(lambda z: abs(CTX.expm1(s * z)), noise, []) * (total + 1)  # e^ṽ, which is biased
        assert error(LogEstimate(a=1.0, noise=noise).mean_absolute_error(total), twin) > 1e-3


@pytest.mark.parametrize("scale", [1e-3, 0.1, 0.3, 0.49])
def test_log_variances(scale: float) -> None:
    total, s = 1e6, CTX.mpf(scale)
    for noise in noises(scale):
        gaussian = isinstance(noise, Gaussian)
        # E e^{jZ} is e^{j²σ²/2}, or 1/(1 − j²b²)
        one, two = (CTX.exp(s * s / 2), CTX.exp(2 * s * s)) if gaussian else (1 / (1 - s * s), 1 / (1 - 4 * s * s))
        relative = two / one**2 - 1
        assert error(LogEstimate(a=0.5, noise=noise).variance(total), relative * (CTX.mpf(total) + 0.5) ** 2) < CLOSE
        assert error(float(s * s), relative) > 1e-7  # the broken twin: the variance of ṽ


def test_special_cases() -> None:
    assert LogEstimate(a=1.0, noise=Laplace(scale=0.5)).variance(3.0) == np.inf
    assert LogEstimate(a=1.0, noise=Gaussian(sigma=40.0)).variance(3.0) == np.inf
    np.testing.assert_allclose(RootEstimate(k=2, a=0.0, noise=Laplace(scale=0.5)).variance([0, 1]), [1.25, 3.25])
    np.testing.assert_allclose(RootEstimate(k=1, a=5.0, noise=Laplace(scale=0.5)).variance([0, 1]), [0.5, 0.5])


def test_calibration_of_math_10() -> None:
    fourth = [RootEstimate(k=4, a=a, noise=Gaussian(sigma=math.sqrt(s))) for a, s in ((0.0, 0.03914), (1.0, 0.02269))]
    log = LogEstimate(a=1.0, noise=Gaussian(sigma=math.sqrt(0.20067)))
    for estimate in (*fourth, log):
        assert float(estimate.variance(2.0)) == pytest.approx(2, rel=3e-4)
    for estimate in (
        RootEstimate(k=4, a=0.0, noise=Gaussian(sigma=math.sqrt(0.0392))),
        LogEstimate(a=0.99, noise=log.noise),
    ):
        assert float(estimate.variance(2.0)) != pytest.approx(2, rel=3e-4)  # the broken twins


def lognormal(x: float, q: float, a: float, sigma: float, tilt: float = 0.5) -> tuple[Real, Real, Real]:
    """Density, CDF and upper tail of (q + a)·e^{σZ − σ²/2} − a at x; the tilt ½ belongs to the mean-unbiased value."""
    xx, s = CTX.mpf(x) + CTX.mpf(a), CTX.mpf(sigma)
    z = (CTX.log(xx / (CTX.mpf(q) + CTX.mpf(a))) + tilt * s * s) / s
    return CTX.npdf(z) / (s * xx), CTX.erfc(-z / CTX.sqrt(2)) / 2, CTX.erfc(z / CTX.sqrt(2)) / 2


@given(
    q=st.one_of(st.just(0.0), st.floats(1e-3, 1e15)),
    log_a=st.floats(-3, 6),
    log_sigma=st.floats(-3, 0.7),
    log_tail=st.floats(-300, -0.302),
    upper=st.booleans(),
)
def test_the_released_log_is_a_shifted_lognormal(
    q: float, log_a: float, log_sigma: float, log_tail: float, upper: bool
) -> None:
    a, sigma, tail = 10**log_a, 10**log_sigma, 10**log_tail
    estimate = LogEstimate(a=a, noise=Gaussian(sigma=sigma))
    x = float(estimate.tail_quantile(tail, q) if upper else estimate.quantile(tail, q))
    if x + a < 1e-9 * a:  # x is −a but for its last bits: no more is asked than that it is not beyond the solution
        assert x >= -a
        assert lognormal(-a * (1 - 2e-9), q, a, sigma)[1] > tail
        return
    density, cdf, survival = lognormal(x, q, a, sigma)
    # the double nearest to x may be a last bit of a + |x| away from the solution
    assert abs((survival if upper else cdf) - CTX.mpf(tail)) / density < CLOSE * (abs(x) + a)
    if density > 1e-300:
        assert error(estimate.density(x, q), density) < CLOSE
    if cdf > 1e-300:
        assert error(estimate.cdf(x, q), cdf) < CLOSE
    if survival > 1e-300:
        assert error(estimate.survival(x, q), survival) < CLOSE
    assert error(estimate.cdf(x, q), lognormal(x, q, a, sigma, 0.0)[1]) > CLOSE or cdf > 0.99  # the broken twin


def test_the_log_of_laplace_noise() -> None:
    estimate = LogEstimate(a=2.0, noise=Laplace(scale=0.25))
    x, q = estimate.quantile([1e-200, 0.1, 0.5, 0.9], 40.0), CTX.mpf(42)
    log_c = CTX.log(1 - CTX.mpf(1) / 16)
    ends = [
        q * CTX.exp(log_c + CTX.log(2 * CTX.mpf(0.1)) / 4) - 2,
        q * CTX.exp(log_c) - 2,
        q * CTX.exp(log_c - CTX.log(2 * (1 - CTX.mpf(0.9))) / 4) - 2,
    ]
    assert error(x[1:], ends) < CLOSE
    np.testing.assert_allclose(estimate.cdf(x[1:], 40.0), [0.1, 0.5, 0.9], rtol=1e-12)
    assert estimate.density(x[2], 40.0) == pytest.approx(float(2 / (q * CTX.exp(log_c))), rel=1e-12)


def test_values_at_and_below_minus_a_and_broadcasting() -> None:
    estimate = LogEstimate(a=2.0, noise=Gaussian(sigma=0.5))
    np.testing.assert_array_equal(estimate.density([-3.0, -2.0, np.inf], 5.0), 0.0)
    np.testing.assert_array_equal(estimate.cdf([-3.0, -2.0, np.inf], 5.0), [0.0, 0.0, 1.0])
    assert estimate.cdf(np.zeros((3, 1)), np.ones(4)).shape == (3, 4)
    assert estimate.quantile(0.5, np.ones((2, 2))).shape == (2, 2)


def test_what_cannot_be_is_refused() -> None:
    noise = Gaussian(sigma=1.0)
    for k in (0, 21, 1.5, 2.0):
        with pytest.raises(ValueError, match="k: "):
            RootEstimate(k=k, a=0.0, noise=noise)  # type: ignore[arg-type]
    for a in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="a: "):
            RootEstimate(k=2, a=a, noise=noise)
    for a in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="a: "):
            LogEstimate(a=a, noise=noise)
    with pytest.raises(ValueError, match="scale: "):
        LogEstimate(a=1.0, noise=Laplace(scale=1.0))
    for total in (-2.0, np.nan):
        with pytest.raises(ValueError, match="total"):
            RootEstimate(k=2, a=1.0, noise=noise).variance(total)
        with pytest.raises(ValueError, match="total"):
            LogEstimate(a=1.0, noise=noise).cdf(1.0, total)
    with pytest.raises(ValueError, match="k: "):
        RootEstimate(k=3, a=1.0, noise=noise).mean_absolute_error(1.0)
    with pytest.raises(ValueError, match="k: "):
        RootEstimate(k=2, a=1.0, noise=Laplace(scale=1.0)).mean_absolute_error(1.0)
