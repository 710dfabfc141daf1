"""Heavy-tailed noise on transformed totals: its policy against exact divergences, its estimators against integrals."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mpmath import MPContext

from pipeline.planning.study.equal_mechanisms import (
    TransformedNoise,
    transformed_noise,
    unit_noise,
    unit_variance_terms,
)
from udfs.mechanisms.catalogue import build
from udfs.mechanisms.transformed_kinds import Log, Root
from udfs.noise.continuous import GeneralizedGaussian as ContinuousGeneralized
from udfs.noise.continuous import Laplace, RootEstimate
from udfs.noise.continuous_polylog import ExponentialPolylog as ContinuousPolylog
from udfs.noise.powers import expectation, unbiased_power, variance_of_power

ROOT = {"kind": "root", "k": 4, "a": 0}
LOG = {"kind": "log", "a": 1}
GENERALIZED = {"kind": "generalized_gaussian", "p": 0.5}
POLYLOG = {"kind": "exponential_polylog", "p": 2, "d": 1, "a": 2.718281828459046}
NOISES = (GENERALIZED, POLYLOG)
CTX: Any = MPContext()
CTX.dps = 40
KINDS = ("generalized_gaussian", "exponential_polylog")

# -- policies --------------------------------------------------------------------------------------------------------

STEP = Fraction(1, 8)
REACH = 4000  # lattice steps on both sides that divergences run over: a maximum is at the centre
TOTALS = 60


def coarse(curve: dict[str, Any], noise: dict[str, Any]) -> TransformedNoise:
    """A mechanism on a lattice so coarse that all of it can be summed up; the curve's scale makes its step 1/8."""
    shape = build(curve | {"sigma": 2**27}, Fraction(1))
    assert isinstance(shape, Root | Log)
    assert shape.lattice_step == STEP
    return TransformedNoise(curve=shape, noise=build(noise | {"sigma": Fraction(1, 3)}, STEP))


def log_masses(mechanism: TransformedNoise, reach: int) -> np.ndarray:
    """ln p(k), k = −reach … reach, up to a constant."""
    return mechanism.noise.log_weights.fast(np.abs(np.arange(-reach, reach + 1)).astype(np.float64))


def shifts(mechanism: TransformedNoise) -> dict[int, int]:
    """By influence, the most lattice steps that a record may move a transformed total, over totals up to 60."""
    places = mechanism.curve.on_lattice(np.arange(2 * TOTALS, dtype=np.int64))
    return {n: int((places[n:] - places[: len(places) - n]).max()) for n in range(1, TOTALS)}


def max_divergence(masses: np.ndarray, shift: int) -> float:
    return float(np.max(np.abs(masses[shift:] - masses[: len(masses) - shift])))


def renyi(masses: np.ndarray, shift: int, order: float) -> float:
    """D_α of the noise from itself moved, over the places that both reach."""
    p, q = masses[shift:], masses[: len(masses) - shift]
    whole = np.logaddexp.reduce(masses)
    return float(np.logaddexp.reduce(order * p + (1 - order) * q - whole) / (order - 1))


def exceeded(mechanism: TransformedNoise, pure: Any) -> list[int]:
    """The influences whose max divergence, of some total, is above the policy `pure`."""
    masses = log_masses(mechanism, REACH)
    return [n for n, shift in shifts(mechanism).items() if max_divergence(masses, shift) > pure(n) * (1 + 1e-12)]


@pytest.mark.parametrize("noise", NOISES, ids=KINDS)
@pytest.mark.parametrize("curve", [ROOT, ROOT | {"k": 2, "a": 3}, LOG, LOG | {"a": 20}], ids=str)
def test_no_divergence_on_a_small_lattice_exceeds_the_policy(curve: dict[str, Any], noise: dict[str, Any]) -> None:
    mechanism = coarse(curve, noise)
    assert exceeded(mechanism, lambda n: float(mechanism.pure_loss_at(Fraction(n)))) == []
    masses = log_masses(mechanism, REACH)
    for n, shift in shifts(mechanism).items():
        for order in (1.01, 2.0, 20.0):
            assert renyi(masses, shift, order) <= order * float(mechanism.loss_at(Fraction(n)))


@pytest.mark.parametrize("noise", NOISES, ids=KINDS)
@pytest.mark.parametrize("curve", [ROOT | {"k": 2, "a": 3}, LOG], ids=str)
def test_wrong_policies_are_found(curve: dict[str, Any], noise: dict[str, Any]) -> None:
    mechanism = coarse(curve, noise)

    def policy(rise: Any) -> Any:
        return lambda n: float(mechanism.noise.pure_loss_at(max(Fraction(rise(n)), Fraction(0))))

    def f(x: float) -> float:
        return math.log(x) if curve["kind"] == "log" else x ** (1 / curve["k"])

    a = curve["a"]
    assert exceeded(mechanism, policy(lambda n: f(n + a) - f(a)))  # rounding forgotten
    assert exceeded(mechanism, policy(lambda n: f(n + a + 100) - f(a + 100) + float(STEP)))  # at a total of 100, not 0
    assert exceeded(mechanism, policy(lambda n: f(n + a) / 2))


@pytest.mark.parametrize("curve", [ROOT, ROOT | {"a": 5}, LOG], ids=str)
def test_losses_are_those_of_the_formula(curve: dict[str, Any]) -> None:
    sigma, influences = Fraction(1, 20), (0, 1, 3, 100, 40_000)
    for noise in NOISES:
        mechanism = transformed_noise(curve, noise, sigma)
        stated = mechanism.loss(np.array(influences, dtype=np.float64))
        for influence, bound in zip(influences, stated.tolist(), strict=True):
            if not influence:
                assert bound == mechanism.loss_at(Fraction(0)) == 0
                continue
            a = CTX.mpf(curve["a"])
            f = CTX.log if curve["kind"] == "log" else lambda x: CTX.root(x, 4)
            d = (f(influence + a) - f(a) + CTX.mpf(2) ** (-33 if curve is LOG else -35)) * 20
            b = CTX.mpf(repr(POLYLOG["a"]))
            pure = CTX.sqrt(d) if noise is GENERALIZED else CTX.log(d + b) ** 2 - CTX.log(b) ** 2
            rho = CTX.tanh(pure / 2) * pure
            exact = mechanism.loss_at(Fraction(influence))
            assert rho <= CTX.mpf(exact.numerator) / exact.denominator <= rho * (1 + CTX.mpf(10) ** -15)
            assert rho <= bound <= rho * (1 + CTX.mpf(10) ** -10)


def test_noise_of_another_lattice_is_refused() -> None:
    curve = build(LOG | {"sigma": Fraction(1, 4)}, Fraction(1))
    with pytest.raises(ValueError, match="the curve's lattice"):
        TransformedNoise(curve=curve, noise=build(GENERALIZED | {"sigma": Fraction(1, 4)}, Fraction(1)))  # type: ignore[arg-type]


# -- estimators ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_known_noises_have_the_known_variances(k: int) -> None:
    gaussian = [math.factorial(2 * j) // (2**j * math.factorial(j)) for j in range(k + 1)]
    assert variance_of_power(k, gaussian) == tuple(math.comb(k, i) ** 2 * math.factorial(k - i) for i in range(k))
    hermite = {4: {4: 1, 2: -6, 0: 3}, 3: {3: 1, 1: -3}}
    assert k not in hermite or unbiased_power(k, gaussian) == hermite[k]
    terms = variance_of_power(k, [math.factorial(2 * j) for j in range(k + 1)])
    known = RootEstimate(k=k, a=0, noise=Laplace(scale=0.5))
    for total in (0.0, 2.0, 100.0):
        own = sum(c * 0.5 ** (2 * (k - i)) * total ** (2 * i / k) for i, c in enumerate(terms))
        assert own == pytest.approx(float(known.variance(total)), rel=1e-12)


@pytest.mark.parametrize("noise", NOISES, ids=KINDS)
def test_the_fourth_roots_value_is_unbiased_and_has_its_variance(noise: dict[str, Any]) -> None:
    mechanism = transformed_noise(ROOT, noise, Fraction(1, 50))
    moments = moments_by_quadrature(noise, CTX.mpf(1) / 50, 8)
    g, v = unbiased_power(4, moments), CTX.mpf(2) ** 0.25
    assert expectation(g, moments)[4] == 1
    assert all(abs(c) < 1e-25 for n, c in expectation(g, moments).items() if n < 4)
    # E g(v + Z)² − q², from moments about v alone
    powers = [sum(math.comb(n, j) * v ** (n - j) * moments[j // 2] for j in range(0, n + 1, 2)) for n in range(9)]
    second = sum(c * d * powers[n + m] for n, c in g.items() for m, d in g.items())
    assert mechanism.variance(2.0) == pytest.approx(float(second - 4), rel=1e-12)


def moments_by_quadrature(noise: dict[str, Any], sigma: Any, most: int) -> list[Any]:
    """E Z^{2j}, by integrals of the density over t = ln(z/σ + 1)."""

    def density(t: Any) -> Any:
        z = CTX.expm1(t)
        if noise["kind"] == "generalized_gaussian":
            return CTX.exp(t - CTX.sqrt(z))
        return CTX.exp(t - CTX.log(z + CTX.mpf(repr(noise["a"]))) ** 2)

    def integral(order: int) -> Any:
        return CTX.quad(lambda t: density(t) * CTX.expm1(t) ** order, [0, 1, 2, 4, 6, 8, 10, 12, 16, 30])

    whole = integral(0)
    return [sigma**n * integral(n) / whole for n in range(0, most + 1, 2)]


@pytest.mark.parametrize(
    ("noise", "density"),
    [
        (ContinuousGeneralized(p=0.7, sigma=2), lambda z: CTX.exp(-((z / 2) ** CTX.mpf("0.7")))),
        (ContinuousPolylog(p=1, d=8, a=1.5, sigma=2), lambda z: (z / 2 + 1.5) ** -8),
        (ContinuousPolylog(p=2, d=1.25, a=4, sigma=0.5), lambda z: CTX.exp(-1.25 * CTX.log(2 * z + 4) ** 2)),
        (ContinuousPolylog(p=3, d=0.5, a=8, sigma=1), lambda z: CTX.exp(-0.5 * CTX.log(z + 8) ** 3)),
    ],
)
def test_moments_are_integrals(noise: ContinuousGeneralized | ContinuousPolylog, density: Any) -> None:
    cuts = [0, *(CTX.mpf(10) ** n for n in range(-1, 12)), CTX.inf]
    whole = CTX.quad(density, cuts)
    for order in (1, 2, 3, 4, 6):
        exact = CTX.quad(lambda z, n=order: z**n * density(z), cuts) / whole
        assert noise.moment(order) == pytest.approx(float(exact), rel=1e-9)


def test_moments_that_are_not_there_are_infinite() -> None:
    heavy = ContinuousPolylog(p=1, d=8, a=1.5, sigma=2)
    assert (heavy.moment(6) < math.inf, heavy.moment(7)) == (True, math.inf)
    assert unit_variance_terms(4, build(POLYLOG | {"p": 1, "d": 8, "sigma": 1}, Fraction(1))) == (math.inf,) * 4  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", NOISES, ids=KINDS)
def test_a_logarithm_with_heavy_noise_has_no_mean(noise: dict[str, Any]) -> None:
    mechanism = transformed_noise(LOG, noise, Fraction(1, 100))
    assert mechanism.variance(2.0) == math.inf
    # e^z times the density grows without end, for whatever scale
    z = np.array([1e4, 1e5, 1e6])
    far = unit_noise(mechanism.noise).log_density(z) + 0.01 * z
    assert (np.diff(far) > 50).all()
