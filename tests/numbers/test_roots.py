"""The root mechanism: estimators against their polynomials, moments against quadrature, intervals, refusals."""

from fractions import Fraction
from math import comb, factorial, inf, pi, sqrt
from typing import Any

import numpy as np
import pytest
from numpy.polynomial import hermite_e

from tests.noise.test_continuous_transformed import estimator, expected
from tests.support.bits import Injected, words_that_draw
from tests.support.densities import CTX
from tests.support.mechanisms import root_of
from udfs.mechanisms.base import ParameterError
from udfs.mechanisms.transformed_kinds import Root
from udfs.noise.continuous import Gaussian, Laplace
from udfs.noise.powers import unbiased_estimate
from udfs.numbers.arrays import LARGEST

INTERVAL = Fraction(19, 20)
NOISES = ("gaussian", "laplace")


@pytest.mark.parametrize("n", range(9))
def test_unbiased_polynomials(n: int) -> None:
    v, sigma = np.linspace(-6, 9, 31), 1.7
    hermite = sigma**n * hermite_e.hermeval(v / sigma, [0] * n + [1])
    np.testing.assert_allclose(
        unbiased_estimate(v, n, sigma, "gaussian"), hermite, rtol=1e-11, atol=1e-11 * sigma**n * factorial(n)
    )
    laplace = v**n - (sigma**2 * n * (n - 1) * v ** (n - 2) if n > 1 else 0)
    np.testing.assert_allclose(unbiased_estimate(v, n, sigma, "laplace"), laplace, rtol=1e-12, atol=1e-9)


def test_the_papers_square_and_fourth_root() -> None:
    x, sigma, a = np.array([0.3, 2.5, -1.0]), 2.0, 3.0
    np.testing.assert_allclose(root_of(2, "3").estimate(x), x**2 - sigma**2 - a, rtol=1e-14)
    np.testing.assert_allclose(root_of(4, "3").estimate(x), x**4 - 6 * x**2 * sigma**2 + 3 * sigma**4 - a, rtol=1e-13)


def expectation(noise: str, sigma: float, function: Any) -> Any:
    """E function(Z) of continuous noise, by quadrature (the lattice's step is 2⁻³⁰ of the scale)."""
    of = Laplace(scale=1) if noise == "laplace" else Gaussian(sigma=1)
    return expected(lambda z: function(z * CTX.mpf(sigma)), of, [])


def in_doubles(noise: str, sigma: float, function: Any) -> float:
    """E function(Z) by a sum over points 10⁻⁴ of a scale apart."""
    z = np.arange(-600_000, 600_001) / 1e4
    density = np.exp(-abs(z)) / 2 if noise == "laplace" else np.exp(-z * z / 2) / sqrt(2 * pi)
    return float((function(z * sigma) * density).sum() / 1e4)


def polynomial(m: Root, x: Any) -> Any:
    """The mean estimator of docs/mathematics.md, section 4 plus a, in high precision."""
    terms = estimator(int(m.k), CTX.mpf(float(m.sigma)), m.noise == "gaussian")
    return sum(c * x**n for n, c in terms.items())


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("k", [2, 3, 4, 7])
@pytest.mark.parametrize("total", [0, 5, 3000])
def test_mean_estimators_and_their_errors(noise: str, k: int, total: int) -> None:
    m = root_of(k, "2", "0.5", noise=noise)
    v = CTX.root(total + 2, k)
    assert abs(expectation(noise, 0.5, lambda z: polynomial(m, v + z)) - (total + 2)) < 1e-12 * (total + 2)
    variance = expectation(noise, 0.5, lambda z: (polynomial(m, v + z) - (total + 2)) ** 2)
    assert m.variance(total) == pytest.approx(float(variance), rel=1e-10)
    points = np.linspace(float(v) - 3, float(v) + 5, 9)
    exact = [float(polynomial(m, CTX.mpf(x)) - 2) for x in points]
    np.testing.assert_allclose(m.estimate(points), exact, rtol=1e-10, atol=1e-9)

    def unfloored(z: Any) -> Any:
        return sum(c * unbiased_estimate(float(v) + z, 2 * i, 0.5, noise) for i, c in enumerate(m.variance_terms))

    assert in_doubles(noise, 0.5, unfloored) == pytest.approx(float(variance), rel=1e-8)
    error = in_doubles(noise, 0.5, lambda z: abs(m.estimate(float(v) + z) - total))
    assert m.mean_absolute_error(total) == pytest.approx(error, rel=2e-3)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("k", [2, 3, 4, 5])
@pytest.mark.parametrize("total", [0, 3, 500])
def test_median_estimators_and_their_errors(noise: str, k: int, total: int) -> None:
    m = root_of(k, "1", "0.7", noise=noise, estimator="median")
    v = (total + 1) ** (1 / k)
    found = m.estimate(np.array([v - 1e-9, v, v + 1e-9, -50.0]))
    assert found[0] < total + 1e-6
    assert found[1] == pytest.approx(total, abs=1e-9 * (1 + total))
    assert np.all(np.diff(found[:3]) > 0)
    assert found[3] == (-1 if k % 2 == 0 else (-50.0) ** k - 1)  # even powers are cut at 0

    def power(z: Any) -> Any:
        return (v + z if k % 2 else np.maximum(v + z, 0)) ** k

    mean = in_doubles(noise, 0.7, power)
    variance = in_doubles(noise, 0.7, lambda z: (power(z) - mean) ** 2)
    assert m.variance(total) == pytest.approx(variance, rel=1e-6)


def test_the_variance_of_math_10_and_the_rows_of_the_papers_table() -> None:
    assert root_of(4, "0", str(sqrt(0.03914))).variance(2) == pytest.approx(2, rel=1e-3)
    assert root_of(4, "1", str(sqrt(0.02269))).variance(2) == pytest.approx(2, rel=1e-3)
    for k in range(2, 9):  # Σ_{i<k} C(k,i)²·(k − i)!·σ^{2(k−i)}·(q + a)^{2i/k}
        v2, s2 = 17 ** (2 / k), 0.8**2
        table = sum(comb(k, i) ** 2 * factorial(k - i) * s2 ** (k - i) * v2**i for i in range(k))
        assert root_of(k, "2", "0.8").variance(15) == pytest.approx(table, rel=1e-12)
    square = root_of(2, "2", "0.8", noise="laplace")
    assert square.variance(15) == pytest.approx(
        8 * 0.64 * 17 + 20 * 0.64**2, rel=1e-12
    )  # docs/mathematics.md, section 4


def test_standard_errors_are_floored_at_those_of_an_empty_cell() -> None:
    for k, noise in ((2, "gaussian"), (4, "laplace"), (5, "gaussian")):
        m = root_of(k, "3", "1.5", noise=noise)
        errors = m.error_estimate(np.linspace(-20, 20, 401))
        assert errors.min() == pytest.approx(sqrt(m.variance(0)), rel=1e-12)
        assert np.all(np.isfinite(errors))


def test_intervals_hold_the_total_exactly_as_often_as_promised() -> None:
    """Over the noise in steps: the ends move with it, so an interval holds the total for one stretch of noise."""
    for noise, total in (("gaussian", 0), ("gaussian", 12_345), ("laplace", 12_345), ("laplace", 2**60)):
        m = root_of(3, "1", "0.5", noise=noise)
        width = m.log_weights.quantile(1 - INTERVAL)
        far = width + 2 + width // 2**20  # an end is moved out by what doubles make of it
        noises = [-far, -width, width, far]
        words = [[words_that_draw(m.lattice_noise.table, k) for k in noises]]
        released = m.release(np.full(4, total, dtype=np.int64), Injected(words, lambda *_: 0), INTERVAL)
        held = (released.lower <= total) & (total <= released.upper)
        assert held.tolist() == [total == 0, True, True, False]  # at 0 both ends are cut at 0


@pytest.mark.parametrize(
    "given", [{"k": 0}, {"k": 1.5}, {"k": 101}, {"a": -1}, {"sigma": 0}, {"k": 100, "sigma": 1e10}]
)
def test_what_is_no_root_mechanism_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ParameterError) as caught:
        Root(**({"k": 2, "a": 0, "sigma": 1} | given))
    assert caught.value.parameter in given


def test_the_hundredth_root_releases_finite_values() -> None:
    m = root_of(100, "0", "0.5")
    bits = Injected([[words_that_draw(m.lattice_noise.table, k) for k in (2**33, -(2**33))]], lambda *_: 0)
    released = m.release(np.array([0, LARGEST]), bits, INTERVAL)
    columns = (released.value, released.lower, released.upper, released.standard_error)
    assert all(bool(np.all(np.isfinite(column))) for column in columns)
    assert m.variance(5) < inf
