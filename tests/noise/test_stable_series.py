"""The stable density and its log-weights against the cosine integral, paper 4's numbers and sums in high precision."""

from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from functools import cache
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from mpmath import MPContext

from tests.support.kinds import three_of
from tests.support.stable import Stable
from udfs.noise import stable_series as series
from udfs.noise.heavy_weights import StableWeights
from udfs.noise.lattice import REACH
from udfs.noise.stable_density import Curve, curve
from udfs.noise.stable_series import far_terms, log_ratio, tail_integral
from udfs.numbers.exact import context

MP: Any = MPContext()
MP.prec = 130
ALPHAS = ["1.05", "1.2", "1.5", "1.8", "1.9", "1.99"]
DIGITS = MP.mpf(10) ** -30


def real(x: Fraction) -> Any:
    return MP.mpf(x.numerator) / x.denominator


def cosine_integral(alpha: Fraction, x: Fraction) -> Any:
    """p(x) = Re ∫ e^{−t^α + ixt} dt/π along t = r·e^{iπ/(4α)}, where it falls fast, by the trapezoidal rule in ln r.

    Another way than the product's series: the same integral of the characteristic function, its path turned.
    """
    y = 1j * real(x)
    return MP.fsum(MP.re(mass * MP.exp(y * t)) for t, mass in path(alpha)) / (30 * MP.pi)


@cache
def path(alpha: Fraction) -> list[tuple[Any, Any]]:
    turn, step = MP.expjpi(1 / (4 * real(alpha))), MP.mpf(1) / 30
    places = [MP.exp(i * step) * turn for i in range(-76 * 30, 6 * 30)]
    return [(t, t * MP.exp(-(t ** real(alpha)))) for t in places]


def at_zero(alpha: Fraction) -> Any:
    return MP.gamma(1 / real(alpha)) / (MP.pi * real(alpha))


def test_the_turned_integral_is_that_of_the_cosine() -> None:
    for alpha, x in product(("1.2", "1.9"), ("0.3", "4")):
        a, y = MP.mpf(alpha), MP.mpf(x)
        ends = [MP.mpf(i) / 2 for i in range(2 * (25 if alpha == "1.2" else 9))]
        plain = MP.quad(lambda t, a=a, y=y: MP.exp(-(t**a)) * MP.cos(y * t), ends) / MP.pi
        assert abs(cosine_integral(Fraction(alpha), Fraction(x)) / plain - 1) < 1e-12
    assert abs(cosine_integral(Fraction("1.5"), Fraction(0)) / at_zero(Fraction("1.5")) - 1) < DIGITS


@pytest.mark.parametrize("alpha", three_of(ALPHAS))
def test_densities_are_the_cosine_integral_to_thirty_digits(alpha: str) -> None:
    a = Fraction(alpha)
    for x in map(Fraction, ("1e-4", "0.3", "1.3", "4.9", "9.7", "30", "1000")):
        found = MP.convert(log_ratio(a, x, context(110)))
        exact = MP.log(cosine_integral(a, x) / at_zero(a))
        assert abs(found - exact) < DIGITS * (1 + abs(exact)) * (1 + real(x) ** 2)  # what the integral cancels
    # The broken twin: paper 4's eq. 25, which lost the k! (and eqs. 58, 59 the π of p(0)).
    x = Fraction(1000)
    without = [
        -((-1) ** k) * MP.gamma(real(a * k + 1)) * MP.sinpi(real(k * a / 2)) * real(x) ** -real(a * k + 1)
        for k in (1, 2, 3)
    ]
    exact = cosine_integral(a, x)
    assert abs(MP.fsum(without) / MP.pi / exact - 1) > 1e-8
    with_factorial = MP.fsum(term / MP.factorial(k) for k, term in enumerate(without, 1)) / MP.pi
    assert abs(with_factorial / exact - 1) < 1e-7
    assert abs(with_factorial / exact - 1) < abs(MP.fsum(without) / MP.pi / exact - 1) / 5


@pytest.mark.parametrize("alpha", three_of(["1.01", "1.2", "1.9", "1.999"]))
def test_more_digits_confirm_fewer(alpha: str) -> None:
    # Where the two series meet, and at every precision that the sampler may ask for.
    a, random = Fraction(alpha), Random(3)
    for bits in (64, 120) if alpha == "1.01" else (64, 234):
        ctx, finer = context(bits), context(bits + 90)
        edge = next(x for x in (Fraction(i, 8) for i in range(8, 1000)) if far_terms(a, x, bits + 26))
        points = [edge, edge - Fraction(1, 8), Fraction(random.randrange(1, 10**6), 10**6)]
        for x in points if alpha == "1.01" else [*points, edge / 2, Fraction(1, 10**30), Fraction(10) ** 40]:
            exact = log_ratio(a, x, finer)
            assert abs(finer.convert(log_ratio(a, x, ctx)) - exact) <= abs(exact) * finer.ldexp(1, 3 - bits)
            whole = tail_integral(a, x, finer)
            assert abs(finer.convert(tail_integral(a, x, ctx)) - whole) <= whole * finer.ldexp(1, 3 - bits)


def test_threads_that_ask_at_once_get_the_same_numbers() -> None:
    # Coefficients are kept for all threads: one that another thread had put out of its place would be seen.
    a, points = Fraction("1.43"), [Fraction(i, 7) for i in range(1, 90, 4)]

    def ask(x: Fraction) -> str:
        return str(log_ratio(a, x, context(150)))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, points * 3))
    series._known.cache_clear()
    series._near.cache_clear()
    assert found == [ask(x) for x in points] * 3


def test_tail_integrals_are_those_of_the_density() -> None:
    a = Fraction("1.7")
    for low, high in ((0, 1), (1, 3), (9, 12), (40, 50)):
        inside = MP.quad(
            lambda x: MP.exp(MP.convert(log_ratio(a, Fraction(float(x)), context(110)))), [low, (low + high) / 2, high]
        )
        found = MP.convert(
            tail_integral(a, Fraction(low), context(110)) - tail_integral(a, Fraction(high), context(110))
        )
        assert abs(found / inside - 1) < 1e-13
    whole = MP.pi * real(a) / (2 * MP.gamma(1 / real(a)))
    assert abs(MP.convert(tail_integral(a, Fraction(0), context(110))) / whole - 1) < DIGITS


def distances(random: Random, scale: Fraction) -> list[int]:
    """From 1 to 2⁶⁴, those that a double rounds worst, and many where the pieces of the curve meet."""
    halfway = [(1 << bits) + (1 << bits - 53) for bits in range(53, 64)]
    drawn = [random.randrange(1, 1 << bits) for bits in range(2, 65, 3) for _ in range(3)]
    near = [int(scale * random.randrange(1, 4000) / 100) for _ in range(60)]
    return sorted({k for k in (1, 2, 3, *drawn, *near, *(h + by for h in halfway for by in (-1, 1)), REACH) if k})


def worst_error(weights: StableWeights, ks: list[int], factor: float = 1.0) -> float:
    ctx = context(130)
    found = weights.fast(np.array(ks, dtype=np.float64)) * factor
    exact = [weights.high(k, ctx) for k in ks]
    return max(abs(float((ctx.mpf(f) - w) / w)) for f, w in zip(found.tolist(), exact, strict=True))


@pytest.mark.parametrize("alpha", three_of(["1.01", *ALPHAS, "1.999"]))
def test_fast_weights_keep_their_proven_error(alpha: str) -> None:
    for scale in ("3.7", str(2**40), "1e-40"):
        weights = StableWeights(alpha=Fraction(alpha), scale=Fraction(scale))
        ks = distances(Random(5), weights.scale)
        assert weights.fast_error < 2.0**-46
        assert worst_error(weights, ks) < weights.fast_error
        assert worst_error(weights, ks, 1 + 2 * weights.fast_error) > weights.fast_error  # the broken twin
        assert weights.fast(np.zeros(2)).tolist() == [0, 0]


def test_a_table_without_its_remainder_would_be_seen() -> None:
    """The broken twin of the curve: panels of twice the width, by a polynomial of the same degree."""
    good = curve(Fraction("1.5"))
    edges = good.edges[::2]
    middles, halves = (edges[1:] + edges[:-1]) / 2, (edges[1:] - edges[:-1]) / 2
    nodes = np.cos(np.pi * (2 * np.arange(good.panels.shape[0]) + 1) / (2 * good.panels.shape[0]))
    rows = [
        np.polyfit(nodes, np.exp(good.log_ratio(m + h * nodes)), len(nodes) - 1)
        for m, h in zip(middles, halves, strict=True)
    ]
    coarse = Curve(good.alpha, good.near, edges, np.array(rows).T, good.far, good.log_c, good.error)
    x = np.linspace(0.5, edges[-1] - 0.01, 4001)
    assert np.max(np.abs(coarse.log_ratio(x) / good.log_ratio(x) - 1)) > 4 * good.error


@pytest.mark.parametrize("alpha", ["1.05", "1.5", "1.99"])
def test_weights_at_logarithms_reach_beyond_the_doubles(alpha: str) -> None:
    weights = StableWeights(alpha=Fraction(alpha), scale=Fraction(50))
    t = np.array([0.0, 0.5, 3, 6.2, 6.9, 7.4, 10, 44, 100, 700, 2000])
    for x, found in zip(t.tolist(), weights.fast_at_log(t).tolist(), strict=True):
        with MP.workprec(300):
            at = MP.exp(x) / 50
        exact = float(log_ratio(weights.alpha, Fraction(int(at * 2**80), 2**80), context(120)))
        assert found == pytest.approx(exact, rel=1e-12)
    t0 = weights.power_law_from
    low, middle, high = weights.fast_at_log(np.array([t0, t0 + 40, t0 + 80])).tolist()
    assert low + high == pytest.approx(2 * middle, rel=1e-15)


@pytest.mark.parametrize(("alpha", "scale"), [("1.2", "0.7"), ("1.8", "2")])
def test_moments_are_the_sums(alpha: str, scale: str) -> None:
    noise, weights = (
        Stable(Fraction(alpha), Fraction(scale)),
        StableWeights(alpha=Fraction(alpha), scale=Fraction(scale)),
    )
    found = weights.moments
    assert found.log_normaliser == pytest.approx(float(MP.log(MP.convert(noise.normaliser))), rel=1e-12)
    assert found.mean_abs == pytest.approx(float(noise.moment(1)), rel=1e-11)
    assert found.beyond == pytest.approx(float(noise.beyond(2**63 - 1)), rel=1e-11)
    assert found.variance == np.inf
    for beta in map(Fraction, ("0.5", "0.05", "1e-6")):
        c = weights.quantile(beta)
        assert noise.beyond(c) <= float(beta) < noise.beyond(c - 1)


@pytest.mark.parametrize(
    ("alpha", "error"), [("1.999", 1.1289), ("1.99", 1.1340), ("1.95", 1.1576), ("1.9", 1.1903), ("1.8", 1.2687)]
)
def test_mean_absolute_errors_are_the_papers(alpha: str, error: float) -> None:
    """(2γ/π)·Γ(1 − 1/α) of continuous noise; that of wide lattice noise tends to it, that of narrow noise differs."""
    a = Fraction(alpha)
    continuous = float(2 / MP.pi * MP.gamma(1 - 1 / real(a)))
    assert round(continuous, 4) == error
    wide, narrow = (StableWeights(alpha=a, scale=Fraction(s)).moments.mean_abs / s for s in (10**7, 1))
    assert wide == pytest.approx(continuous, rel=1e-10)
    assert 0.001 < abs(narrow / continuous - 1) < 0.2
