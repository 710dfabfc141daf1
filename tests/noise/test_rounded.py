"""Noise of a fine lattice, rounded to the measure's steps: what it is like, and that rounding is post-processing."""

from fractions import Fraction
from itertools import product
from math import isinf
from typing import Any

import numpy as np
import pytest

from tests.support.bits import Injected, words_that_draw
from tests.support.divergence import renyi_of
from tests.support.families import weights_of
from tests.support.heavy import GeneralizedGaussian, Polylog
from tests.support.lattice import CTX, LatticeNoise, Noise
from udfs.mechanisms.additive import FINE, fineness_of
from udfs.mechanisms.catalogue import build
from udfs.noise.lattice import REACH, rounded_distance, rounded_moments, rounded_quantile
from udfs.numbers.arrays import LARGEST

INTERVAL = Fraction(19, 20)
BY_TERMS = 1 << 21
E = Fraction("2.718281828459046")


def laplace(s: Fraction, n: int) -> tuple[Any, Any]:
    """E|R| and E R² of the two-sided geometric, in closed form: P(|R| ≥ j) = 2·q^{nj − h}/(1 + q), q = e^{−1/s}."""
    q = CTX.exp(-CTX.mpf(s.denominator) / s.numerator)
    first, ratio = 2 * q ** (n - (n - 1) // 2) / (1 + q), q**n
    return first / (1 - ratio), first * (1 + ratio) / (1 - ratio) ** 2


@pytest.mark.parametrize(("scale", "n"), [*product(["30", "40", "1500.5", "1e5", "3e7"], [3, 101, 1001])])
def test_moments_of_rounded_laplace_noise_are_the_closed_forms(scale: str, n: int) -> None:
    s = Fraction(scale)
    found, (mean, square) = rounded_moments(weights_of(Noise(1, s)), n), laplace(s, n)
    assert abs(found.mean_abs / mean - 1) < 1e-9
    assert abs(found.variance / square - 1) < 1e-9
    fine = weights_of(Noise(1, s)).variance() / n**2  # the broken twin: the fine lattice's own variance
    assert s > 1e3 or abs(fine / square - 1) > 1e-6


HEAVY = [
    GeneralizedGaussian(Fraction(1, 2), Fraction(1500)),
    GeneralizedGaussian(Fraction(1, 2), Fraction(177)),
    GeneralizedGaussian(Fraction(9, 10), Fraction(1001)),
    Polylog(Fraction(2), Fraction(3, 2), E, Fraction(1200)),
    Polylog(Fraction(1), Fraction(5), Fraction(2), Fraction(1100)),
]


@pytest.mark.parametrize(("family", "n"), [*product(HEAVY, [11, 1001])], ids=str)
def test_moments_of_rounded_heavy_noise_are_the_sums(family: LatticeNoise, n: int) -> None:
    end = n * (BY_TERMS // n) + (n - 1) // 2  # whole blocks; beyond, (k ± n/2)² bounds what a block is rounded to
    k = np.arange(1, end + 1, dtype=np.float64)
    weight, steps = np.exp(weights_of(family).fast(k)), np.floor((k + (n - 1) // 2) / n)
    norm, found = family.normaliser, rounded_moments(weights_of(family), n)
    tail = [family.total(end + 1, order) for order in (0, 1, 2)]
    slack = [n * tail[0] / 2, n * tail[1] + n**2 * tail[0] / 4]
    for order, figure in ((1, found.mean_abs), (2, found.variance)):
        near = CTX.mpf(float(np.sum(weight * steps**order)))
        middle = 2 * (near + tail[order] / n**order) / norm
        room = 2 * slack[order - 1] / n**order / norm + middle * CTX.mpf(10) ** -9
        assert abs(figure - middle) <= room
        assert room < middle * 2e-3  # the bounds say something


def test_what_has_no_variance_has_none_when_rounded() -> None:
    family = Polylog(Fraction(1), Fraction(5, 2), Fraction(2), Fraction(1100))
    found = rounded_moments(weights_of(family), 101)
    assert isinf(found.variance)
    assert found.mean_abs < 1e3


@pytest.mark.parametrize(
    ("family", "n"), [*product([HEAVY[0], HEAVY[-1], Noise(1, Fraction(2000))], [3, 1001])], ids=str
)
def test_quantiles_cover_and_no_smaller_one_does(family: LatticeNoise, n: int) -> None:
    h = (n - 1) // 2
    for beta in (Fraction(1, 2), Fraction(1, 20), Fraction(1, 10**6)):
        c = rounded_quantile(weights_of(family), n, beta)
        assert family.beyond(n * c + h) <= CTX.mpf(beta.numerator) / beta.denominator
        assert c == 0 or family.beyond(n * (c - 1) + h) > CTX.mpf(beta.numerator) / beta.denominator


def test_the_fine_lattice_has_a_thousand_steps_in_a_noise_scale_or_is_the_measures() -> None:
    for scale in map(Fraction, ("1e-9", "0.17735", "1", "5", "37.3", "999", "1000", "1e9")):
        n = fineness_of("fine", scale)
        assert n % 2 == 1
        assert n * scale >= FINE or n == FINE + 1
        assert n == 1 or (n - 2) * scale < FINE
        assert fineness_of("measure", scale) == 1


SPECS = [
    {"kind": "laplace", "sigma": 4},
    {"kind": "generalized_gaussian", "p": 0.5, "sigma": 0.2},
    {"kind": "exponential_polylog", "p": 1, "d": 1.2, "a": 1, "sigma": 3},
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_released_value_is_the_fine_noisy_value_to_the_nearest_step(spec: dict[str, Any]) -> None:
    m = build(spec | {"lattice": "fine"}, Fraction(1))
    n = m.lattice_noise.fineness
    far = (10**12, REACH - 1) if m.kind == "exponential_polylog" else ()  # the others have no mass there
    draws = [k * sign for k in (1, n // 2, n // 2 + 1, n, 7 * n + n // 2, *far) for sign in (1, -1)]
    bits = Injected([[words_that_draw(m.lattice_noise.table, k) for k in draws]], lambda *_: 0)
    for total in (0, 12_345, -(10**15)):
        value = m.release(np.full(len(draws), total, dtype=np.int64), bits, INTERVAL).value
        nearest = [round(Fraction(n * total + k, n)) for k in draws]  # n is odd: nothing lies half-way
        largest = (LARGEST - n) // n
        assert value.tolist() == [max(-largest, min(largest, v)) for v in nearest]


def test_every_value_within_the_range_is_reached_from_every_total() -> None:
    m = build(SPECS[-1] | {"lattice": "fine"}, Fraction(1))
    n, largest = m.lattice_noise.fineness, (LARGEST - m.lattice_noise.fineness) // m.lattice_noise.fineness
    assert n * (2 * largest) + n // 2 < REACH  # the fine noise from one end to the other
    assert n * (2 * LARGEST) > REACH  # the range of the measure's own lattice would not do
    ends = [words_that_draw(m.lattice_noise.table, k) for k in (REACH, -REACH)]
    held = np.array([-LARGEST, -largest - 1, -largest, 0, largest, LARGEST], dtype=np.int64)
    for words, end in zip(ends, (largest, -largest), strict=True):
        released = m.release(held, Injected([[words] * len(held)], lambda *_: 0), INTERVAL)
        assert released.value.tolist() == [end] * len(held)
        assert released.lower.min() >= -largest
        assert released.upper.max() <= largest
    still = m.release(held, Injected([[words_that_draw(m.lattice_noise.table, 0)] * len(held)]), INTERVAL)
    assert still.value.tolist() == [max(-largest, min(largest, q)) for q in held.tolist()]


def test_distances_are_rounded_within_64_bits() -> None:
    distance = np.array([0, 1, 50, 51, 151, 152, REACH - 1, REACH], dtype=np.uint64)
    assert rounded_distance(distance, 101).tolist() == [(k + 50) // 101 for k in distance.tolist()]


def test_what_is_released_depends_on_the_noisy_value_alone() -> None:
    """The same fine value from two totals is the same release. Ties that the noise's sign decides would break that."""

    def from_both(n: int, k: int) -> tuple[int, int]:
        here, there = (np.array([abs(noise)], dtype=np.uint64) for noise in (k, k - n))
        signs = (1 if k >= 0 else -1, 1 if k >= n else -1)
        distances = [int(rounded_distance(d, n)[0]) if n % 2 else int(d[0] + n // 2) // n for d in (here, there)]
        return signs[0] * distances[0], 1 + signs[1] * distances[1]

    for n, k in product((3, 101, 1001), range(-2500, 2500, 7)):
        here, there = from_both(n, k)
        assert here == there
    assert any(len(set(from_both(2, k))) == 2 for k in range(-5, 5))


def test_divergences_of_rounded_values_stay_below_those_of_the_fine_lattice() -> None:
    n, reach = 3, 600
    fine = {k: CTX.exp(-CTX.mpf(abs(k)) / 2) for k in range(-reach, reach + 1)}

    def released(total: int, step: int) -> dict[int, Any]:
        masses: dict[int, Any] = {}
        for k, mass in fine.items():
            v = (n * total + k + step // 2) // step
            masses[v] = masses.get(v, 0) + mass
        return masses

    def divergence(step: int) -> Any:
        p, q = released(0, step), released(1, step)
        inside = [v for v in p if v in q and abs(v * step) < reach // 2]
        return renyi_of({v: p[v] for v in inside}, {v: q[v] for v in inside}, Fraction(2))

    assert 0.9 * divergence(1) < divergence(n) <= divergence(1)
