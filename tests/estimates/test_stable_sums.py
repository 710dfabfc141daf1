"""Sums and means of stable noise: laws against sums of weights and convolutions, intervals against draws."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.signal import fftconvolve

from tests.support.bits import cell_bits
from udfs.estimates.intervals import Term, best_weights, half_width, scale_of
from udfs.mechanisms.catalogue import build
from udfs.noise.heavy_weights import CauchyWeights, StableWeights
from udfs.noise.weights import LogWeights
from udfs.numbers.arrays import Floats

FAR = 1 << 19
DRAWS = 20_000
SURE = 4.9  # standard deviations of a count of misses: a false alarm in 10⁶ checks


def weights_of(alpha: str, scale: str) -> LogWeights:
    if alpha == "1":
        return CauchyWeights(scale=Fraction(scale))
    return StableWeights(alpha=Fraction(alpha), scale=Fraction(scale))


def masses(alpha: str, scale: str, apart: int = 1) -> Floats:
    """P(Z = k) for |k| < FAR, from the weights that are drawn; on every `apart`-th place."""
    w = np.exp(weights_of(alpha, scale).fast(np.arange(FAR, dtype=np.float64)))
    beyond = np.exp(weights_of(alpha, scale).log_sum(FAR, 0))
    p = w / (2 * (w.sum() + beyond) - 1)
    spread = np.zeros((FAR - 1) * apart + 1)
    spread[::apart] = p
    return np.concatenate([spread[:0:-1], spread])


def within(law: Floats, c: int) -> float:
    middle = len(law) // 2
    return float(law[middle - c : middle + c + 1].sum())


@pytest.mark.parametrize("alpha", ["1", "1.01", "1.5", "1.999"])
@pytest.mark.parametrize("scale", ["0.3", "1", "20", "1000000000"])
def test_one_cell_has_the_quantile_of_its_weights(alpha: str, scale: str) -> None:
    for coverage in ("0.5", "0.95", "0.999"):
        ours = half_width([Term(alpha=float(alpha), scale=float(scale))], float(coverage))
        assert ours == pytest.approx(weights_of(alpha, scale).quantile(1 - Fraction(coverage)), rel=2e-6)


def test_the_characteristic_function_is_that_of_the_weights() -> None:
    t = np.array([0.1, 1.0, 2.5, np.pi])
    p = masses("1.5", "0.7")
    direct = [float((p * np.cos(at * np.arange(1 - FAR, FAR))).sum()) for at in t]
    assert np.exp(Term(alpha=1.5, scale=0.7).log_characteristic(t)) == pytest.approx(direct, abs=1e-7)
    cauchy = np.cosh(0.4 * (np.pi - t)) / np.cosh(0.4 * np.pi)
    assert np.exp(Term(alpha=1, scale=0.4).log_characteristic(t)) == pytest.approx(cauchy, rel=1e-12)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95])
def test_sums_have_the_quantiles_of_convolved_weights(coverage: float) -> None:
    """Three cells of two scales, and of two exponents; narrow noise, where the closed form alone would not do."""
    for parts in ((("1.5", "0.6"), ("1.5", "0.6"), ("1.5", "2")), (("1.5", "0.6"), ("1.8", "0.5"), ("1.8", "0.5"))):
        law = masses(*parts[0])
        for part in parts[1:]:
            law = fftconvolve(law, masses(*part), mode="same")
        c = int(half_width([Term(alpha=float(a), scale=float(s)) for a, s in parts], coverage))
        assert within(law, c) >= coverage - 1e-6
        assert within(law, c - 1) < coverage


def test_weighted_means_have_the_quantiles_of_convolved_weights_or_barely_more() -> None:
    """0.7·Z₁ + 0.3·Z₂ on tenths of a step."""
    terms = [Term(alpha=1.5, scale=2, weight=0.7), Term(alpha=1.8, scale=3, weight=0.3)]
    law = fftconvolve(masses("1.5", "2", 7)[FAR * 5 : -FAR * 5], masses("1.8", "3", 3), mode="same")
    for coverage in (0.5, 0.9, 0.95):
        c = half_width(terms, coverage)
        assert within(law, int(10 * c)) >= coverage - 1e-6
        assert within(law, int(10 * c * 0.96) - 1) < coverage


@given(st.floats(1.02, 2.0), st.lists(st.floats(0.1, 100), min_size=2, max_size=4), st.integers(0, 100))
def test_best_weights_have_the_least_scale(alpha: float, scales: list[float], seed: int) -> None:
    best = best_weights(alpha, scales)
    powers = np.asarray(scales) ** (-alpha / (alpha - 1) / 50)  # the closed form of the least scale, without overflow
    assert best.sum() == pytest.approx(1)
    least = float((np.abs(best) ** alpha * np.asarray(scales) ** alpha).sum() ** (1 / alpha))
    assert least == pytest.approx(np.linalg.norm(powers, 50) ** (-50 * (alpha - 1) / alpha), rel=1e-9)
    other = best + 0.1 * (moved := np.random.default_rng(seed).normal(size=len(scales))) - 0.1 * moved.mean()
    assert (np.abs(other) ** alpha * np.asarray(scales) ** alpha).sum() ** (1 / alpha) >= least * (1 - 1e-12)


def test_best_weights_are_found_by_a_search_too() -> None:
    scales = np.array([3.0, 5.0, 8.0])
    found = minimize(lambda w: (np.abs([*w, 1 - w.sum()]) ** 1.5 * scales**1.5).sum(), [0.3, 0.3], tol=1e-12)
    assert best_weights(1.5, scales.tolist())[:2] == pytest.approx(found.x, abs=1e-4)
    assert best_weights(2, scales.tolist()) == pytest.approx(scales**-2 / (scales**-2).sum())
    assert best_weights(1, [3.0, 2.0, 8.0]).tolist() == [0, 1, 0]


def test_wide_noise_has_the_closed_form() -> None:
    """n cells of scale γ: the quantile of one cell of scale γ·n^{1/α}."""
    many = [Term(alpha=1.5, scale=1000, count=64)]
    assert scale_of(many) == pytest.approx(1000 * 64 ** (1 / 1.5))
    assert half_width(many, 0.95) == pytest.approx(half_width([Term(alpha=1.5, scale=16_000)], 0.95), abs=1)


def test_intervals_of_drawn_sums_hold_as_often_as_they_say() -> None:
    """Sums of nine cells; a scale that grows like √n, as of Gaussian noise, is the broken twin."""
    mechanism = build({"kind": "symmetric_stable", "alpha": 1.5, "gamma": 1.5}, Fraction(1))
    noise = mechanism.release(np.zeros(9 * DRAWS, dtype=np.int64), cell_bits(9 * DRAWS), Fraction(1, 2)).value
    sums = np.abs(noise.reshape(DRAWS, 9).sum(axis=1))
    for coverage in (0.5, 0.9, 0.95):
        room = SURE * np.sqrt(DRAWS * coverage * (1 - coverage))
        most = DRAWS * (1 - coverage) + room
        assert np.count_nonzero(sums > half_width([Term(alpha=1.5, scale=1.5, count=9)], coverage)) <= most
        assert np.count_nonzero(sums > half_width([Term(alpha=1.5, scale=1.5 * 3)], coverage)) > most


def test_what_cannot_be_stated_is_refused() -> None:
    with pytest.raises(ValueError, match="coverage"):
        half_width([Term(alpha=1.5, scale=2)], 0.99999)
    with pytest.raises(ValueError, match="too narrow"):
        half_width([Term(alpha=1.5, scale=0.001)], 0.5)
