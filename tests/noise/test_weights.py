"""Log-weights, tails, variances and quantiles against direct sums in high precision."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.kinds import three_a_kind
from tests.support.lattice import CTX, Noise, real
from udfs.noise.heavy_weights import PolylogWeights
from udfs.noise.weights import DIRECT_SCALE, FAST_ERROR, GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.exact import context

SMALL = ["1/10", "3.7", "4", "1/100", "1/7", "0.3", "1/3", "0.5", "1", "2", "3.999", "4.001", "10", "123.4"]
SWITCH = [str(DIRECT_SCALE - 1), str(DIRECT_SCALE), f"{DIRECT_SCALE}.001", str(DIRECT_SCALE + 1)]
LARGE = ["1000000", str(2**30), "1234567890123/7", str(10**18)]
BETAS = ["0.999", "0.5", "0.1", "0.05", "0.01", "0.001", "1e-6", "1e-9", "1e-15"]
POWERS = (1, 2)


def weights_of(noise: Noise) -> LogWeights:
    return LaplaceWeights(scale=noise.scale) if noise.power == 1 else GaussianWeights(scale=noise.scale)


def families(scales: list[str]) -> list[Any]:
    """Three narrow and three wide scales of either power in every run, the rest in the drill."""
    noises = (Noise(power, Fraction(scale)) for power, scale in product(POWERS, scales))
    return three_a_kind(noises, lambda noise: (noise.power, noise.scale > 1000))


def distances(random: Random) -> list[int]:
    """Up to 2⁶⁴, with those that a double rounds worst."""
    halfway = [(1 << bits) + (1 << bits - 53) for bits in range(53, 64)]
    return [
        *range(40),
        *(random.randrange(1 << bits) for bits in range(4, 65) for _ in range(5)),
        *(k + by for k in (*halfway, 2**53, 2**63) for by in (-1, 0, 1)),
        2**64 - 1,
    ]


def worst_error(fast: Callable[[np.ndarray], np.ndarray], noise: Noise, ks: list[int]) -> float:
    found = fast(np.array(ks, dtype=np.float64))
    exact = [noise.log_weight(k) for k in ks]
    return max(
        float(abs(CTX.mpf(float(f)) - w) / abs(w)) if w else abs(float(f)) for f, w in zip(found, exact, strict=True)
    )


@pytest.mark.parametrize("noise", families(SMALL + LARGE), ids=str)
def test_fast_weights_keep_their_error_bound(noise: Noise) -> None:
    ks, weights = distances(Random(4)), weights_of(noise)
    assert worst_error(weights.fast, noise, ks) < FAST_ERROR
    # The broken twin: single precision of the scale.
    assert worst_error(lambda k: weights.fast(k) * (1 + 2.0**-48), noise, ks) > FAST_ERROR
    for bits in (128, 192):
        ctx = context(bits)
        for k in ks[:60]:
            exact = noise.log_weight(k)
            assert abs(CTX.mpf(weights.high(k, ctx)) - exact) <= abs(exact) * CTX.ldexp(1, 4 - bits)


@pytest.mark.parametrize("noise", families(SMALL + LARGE), ids=str)
def test_weights_start_at_zero_and_never_rise(noise: Noise) -> None:
    weights, ctx = weights_of(noise), context(200)
    ks = sorted({k for d in distances(Random(5)) for k in (d, d + 1) if k < 1 << 64})
    high = [weights.high(k, ctx) for k in ks]
    assert high[0] == 0
    assert all(a > b for a, b in pairwise(high))
    fast = weights.fast(np.array(ks, dtype=np.float64))
    assert fast[0] == 0
    assert np.all(np.diff(fast) <= 0)


@pytest.mark.parametrize("noise", families([*SMALL, "600", *LARGE]), ids=str)
def test_tails_are_bracketed(noise: Noise) -> None:
    weights = weights_of(noise)
    ks = [k for k in (1, 2, 7, 300, int(3 * noise.scale) + 1, int(20 * noise.scale) + 1) if k < 60 * noise.scale + 9]
    for k, bits in product(ks, (96, 192)):
        low, high = (CTX.mpf(bound) for bound in weights.tail(k, context(bits)))
        exact = noise.weight_from(k)  # to 20 digits at least
        assert low <= exact * (1 + CTX.mpf(10) ** -20)
        assert high >= exact * (1 - CTX.mpf(10) ** -20)
        assert high - low <= exact * max(CTX.mpf(10) ** -18, 30 / real(noise.scale))
        if noise.scale < 100:
            assert low <= exact <= high


@pytest.mark.parametrize("noise", families([*SMALL, "60"]), ids=str)
def test_variances_are_those_of_the_lattice(noise: Noise) -> None:
    exact = noise.moment(2)
    assert abs(CTX.mpf(weights_of(noise).variance()) - exact) < 1e-13 * exact + 1e-300  # doubles end there


@pytest.mark.parametrize("scale", LARGE)
def test_variances_of_wide_noise(scale: str) -> None:
    s = Fraction(scale)
    assert GaussianWeights(scale=s).variance() == pytest.approx(float(s**2), rel=1e-13)  # theta functions: e^{−2π²s²}
    assert LaplaceWeights(scale=s).variance() == pytest.approx(float(2 * s**2 - Fraction(1, 6)), rel=1e-13)


def exactly_beyond(noise: Noise) -> Callable[[int], Fraction]:
    """P(|Z| > c) as a fraction, for comparisons with probabilities next to it."""

    def beyond(c: int) -> Fraction:
        _, mantissa, exponent, _ = noise.beyond(c)._mpf_
        return Fraction(0) if exponent < -10_000 else Fraction(int(mantissa)) * Fraction(2) ** int(exponent)

    return beyond


@pytest.mark.parametrize("noise", families(SMALL + SWITCH[1:3] + LARGE + SWITCH[::3]), ids=str)
def test_quantiles_cover_and_are_no_wider_than_promised(noise: Noise) -> None:
    weights, beyond = weights_of(noise), exactly_beyond(noise)
    slack = 0 if noise.scale <= DIRECT_SCALE else 2
    for beta in map(Fraction, BETAS):
        c = weights.quantile(beta)
        assert beyond(c) <= beta
        least = c - 1 - slack
        if least >= 0:
            assert beyond(least) > beta


@pytest.mark.parametrize("noise", families(SMALL + SWITCH[:2]), ids=str)
def test_quantiles_cover_at_the_edge_of_every_step(noise: Noise) -> None:
    weights, beyond = weights_of(noise), exactly_beyond(noise)
    few = sorted({0, 1, 2, *(int(noise.scale * z) for z in (0.5, 1, 1.96, 3, 4.5))})
    for c in few if noise.scale < 1000 else few[::3]:
        p = beyond(c)
        if p < Fraction(1, 10**25):
            continue
        below, at, above = (weights.quantile(p * (1 + Fraction(by, 10**11))) for by in (-1, 0, 1))
        assert above == c  # the smallest
        assert at in (c, c + 1)
        assert below == c + 1
        assert beyond(weights.quantile(p * (1 - Fraction(1, 10**30)))) <= p * (1 - Fraction(1, 10**30))


@pytest.mark.parametrize("d", ["5", "2", "2.5", "1e9"])
def test_terms_of_power_laws_are_those_of_the_log_weights(d: str) -> None:
    """Whole powers are taken without a logarithm: right to a few last bits of the context, as exp(w) is."""
    weights = PolylogWeights(p=Fraction(1), d=Fraction(d), a=Fraction("1.5"), scale=Fraction("28500.5"))
    for bits, start in product((96, 192), (0, 5, 4096, 10**15)):
        terms = [weights.term(k, context(bits)) for k in range(start, start + 9)]
        for k, term in enumerate(terms, start):
            w = -real(weights.d) * CTX.log1p(real(k / (weights.scale * weights.a)))
            assert abs(CTX.mpf(term) - CTX.exp(w)) <= CTX.exp(w) * (1 + abs(w)) * CTX.ldexp(1, 10 - bits)
