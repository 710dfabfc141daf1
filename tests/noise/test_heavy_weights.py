"""Log-weights of the heavy-tailed families against their formulas in high precision, and tails against sums."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product
from random import Random

import numpy as np
import pytest

from tests.support.cases import sizes
from tests.support.families import HEAVY, three, weights_of
from tests.support.heavy import GeneralizedGaussian, HeavyNoise, Polylog
from tests.support.kinds_mathematics import nearest
from tests.support.lattice import CTX, real
from udfs.noise.heavy_weights import PolylogWeights
from udfs.noise.lattice import REACH
from udfs.numbers.exact import context

Family = GeneralizedGaussian | Polylog
POWERS = ["1", "1.000001", "1.01", "1.5", "2", "2.7", "3", "5", "20.1", "60.3", "99.9", "100"]


def least_a(p: Fraction) -> Fraction:
    """e^{p−1}, rounded up to 30 digits behind the point."""
    return Fraction(int(CTX.ceil(CTX.exp(real(p - 1)) * 10**30)), 10**30)


def scale(random: Random) -> Fraction:
    return Fraction(f"{random.uniform(1, 10):.4f}e{random.randint(-3, 15)}")


def random_generalized(random: Random) -> Family:
    return GeneralizedGaussian(Fraction(f"{random.choice([random.uniform(0.05, 1), 0.05, 1]):.4f}"), scale(random))


def random_polylog(random: Random, powers: list[str] = POWERS) -> Family:
    p = Fraction(random.choice(powers))
    d = Fraction(f"{random.uniform(1, 10):.3f}e{random.randint(-1, 2)}") + (p == 1)
    least = least_a(p)
    a = random.choice([least, least * Fraction("1.01"), least * 10, max(least, Fraction(10) ** 6)])
    return Polylog(p, d, a, scale(random))


def some(seed: int, each: int) -> list[Family]:
    random = Random(seed)
    return [draw(random) for draw in (random_generalized, random_polylog, random_polylog) for _ in range(each)]


def distances(random: Random) -> list[int]:
    """From 1 up to 2⁶⁴, with those that a double rounds worst."""
    halfway = [(1 << bits) + (1 << bits - 53) for bits in range(53, 64)]
    drawn = [random.randrange(1, 1 << bits) for bits in range(4, 65, 4) for _ in range(2)]
    return [1, 2, 3, 17, *drawn, *(k + by for k in halfway for by in (-1, 1)), REACH]


def worst_error(fast: Callable[[np.ndarray], np.ndarray], family: Family, ks: list[int]) -> float:
    """The largest relative error of `fast` at the doubles nearest to `ks`, in comparison with w at `ks` itself."""
    found = fast(np.array(ks, dtype=np.float64)).tolist()
    exact = [family.log_weight(k) for k in ks]
    return max(float(abs(CTX.mpf(f) - w) / abs(w)) for f, w in zip(found, exact, strict=True))


@sizes(few=20, many=60)
def test_fast_weights_keep_their_error_bound(count: int) -> None:
    random = Random(1)
    for family in some(2, each=count):
        weights, ks = weights_of(family), distances(random)
        assert weights.fast_error < 1e-12  # the sampler's slow path stays rare
        assert worst_error(weights.fast, family, ks) < weights.fast_error
        # The broken twin: twice the error that is stated.
        assert worst_error(lambda k, w=weights: w.fast(k) * (1 + 2 * w.fast_error), family, ks) > weights.fast_error


def test_powers_of_a_power_near_a_hundred_keep_it_too() -> None:
    for exponent, shift in product((40, 47, 50, 54), range(6)):
        family = Polylog(Fraction("99.9"), Fraction(7), least_a(100 + Fraction(shift, 7)), Fraction(2**exponent))
        assert worst_error(weights_of(family).fast, family, distances(Random(shift))) < weights_of(family).fast_error


def test_the_formula_as_it_stands_in_doubles_would_be_seen() -> None:
    seen = 0
    for family in [random_polylog(random) for random in [Random(3)] for _ in range(30)]:
        p, d, a, s = (float(x) for x in (family.p, family.d, family.a, family.scale))

        def naive(k: np.ndarray, p: float = p, d: float = d, a: float = a, s: float = s) -> np.ndarray:
            return -d * (np.log(k / s + a) ** p - np.log(a) ** p)

        seen += worst_error(naive, family, distances(Random(4))) > weights_of(family).fast_error
    assert seen > 25


def test_weights_at_logarithms_reach_beyond_the_doubles() -> None:
    t = np.array([0.0, 0.5, 3, 10, 20.7, 30, 44, 60, 100, 700, 2000])
    for family in some(5, each=20):
        found = weights_of(family).fast_at_log(t)
        exact = [family.log_weight(nearest(CTX.exp(CTX.mpf(x)))) for x in t.tolist()]
        for x, f, w in zip(t.tolist(), found.tolist(), exact, strict=True):
            held = w if w > -np.finfo(np.float64).max else -CTX.inf
            assert f == held or abs(CTX.mpf(f) / held - 1) < 1e-13 * (10 + x), (family, x)


def test_high_weights_are_right_to_the_last_bits() -> None:
    random = Random(6)
    for family, bits in product(some(7, each=20), (128, 192)):
        weights, ctx = weights_of(family), context(bits)
        for k in distances(random)[::5]:
            exact = family.log_weight(k)
            assert abs(CTX.convert(weights.high(k, ctx)) - exact) <= (1 + abs(exact)) * CTX.ldexp(1, 9 - bits)


def test_weights_start_at_zero_fall_and_are_convex() -> None:
    random, ctx = Random(8), context(250)
    for family in some(9, each=25):
        weights = weights_of(family)
        assert weights.high(0, ctx) == 0
        assert weights.fast(np.zeros(2)).tolist() == [0, 0]
        starts = [0, 1, 2, 3, *(random.randrange(1 << bits) for bits in range(3, 60, 8))]
        for k in starts:
            step = random.choice([1, 1 + k // 1000, 1 + k])
            first, second, third = (weights.high(k + i * step, ctx) for i in range(3))
            assert first > second > third
            assert first + third - 2 * second >= third * ctx.ldexp(1, -200)  # third < 0
        places = np.array(sorted(distances(random)), dtype=np.float64)
        assert np.all(np.diff(weights.fast(places)) <= 0)


def test_an_offset_below_its_least_value_is_seen_not_to_be_convex() -> None:
    p, ctx = Fraction(3), context(250)
    weights = PolylogWeights(p=p, d=Fraction(2), a=Fraction(2), scale=Fraction(10))
    first, second, third = (weights.high(k, ctx) for k in range(3))
    assert second - first > third - second


@pytest.mark.parametrize("every", [2, pytest.param(1, marks=pytest.mark.drill)])
def test_tails_are_bracketed_and_the_gap_is_one_term(every: int) -> None:
    families = [family for family in some(10, each=6) if family.p < 6][::every]
    assert len(families) > 4
    for family, bits in product(families, (96, 192)):
        weights = weights_of(family)
        for k in (40, int(family.scale) + 1, REACH):
            exact = family.total(k, 0)
            low, high = (CTX.convert(bound) for bound in weights.tail(k, context(bits)))
            assert low <= exact * (1 + CTX.mpf(10) ** -19)
            assert high >= exact * (1 - CTX.mpf(10) ** -19)
            error = CTX.ldexp(1 + abs(family.log_weight(k)), 18 - bits)
            assert high - low <= family.weight(k + bits) * (1 + error) + exact * error


def test_gaps_of_tails_vanish_with_the_precision() -> None:
    family = Polylog(Fraction(2), Fraction(1), least_a(Fraction(2)), Fraction(2))
    gaps = [(high - low) / low for low, high in (weights_of(family).tail(1, context(bits)) for bits in (96, 384, 1536))]
    assert all(later < earlier / 100 for earlier, later in pairwise(map(CTX.convert, gaps)))


@pytest.mark.parametrize("a", ["1", "3", "1e6"])
def test_power_laws_are_straight_from_where_they_say(a: str) -> None:
    weights = PolylogWeights(p=Fraction(1), d=Fraction("2.5"), a=Fraction(a), scale=Fraction(7))
    t = weights.power_law_from
    low, middle, high = weights.fast_at_log(np.array([t, t + 40, t + 80])).tolist()
    assert low + high == pytest.approx(2 * middle, rel=1e-15)
    near = weights.fast_at_log(np.array([t - 50, t - 25, t])).tolist()
    assert near[0] + near[2] != pytest.approx(2 * near[1], rel=1e-5)  # 50 nats before it is not
    assert PolylogWeights(p=Fraction(2), d=Fraction(2), a=Fraction(3), scale=Fraction(7)).power_law_from == np.inf


@pytest.mark.parametrize("noise", three(HEAVY), ids=str)
@pytest.mark.parametrize("bits", [96, pytest.param(192, marks=pytest.mark.drill), 320])
def test_tails_are_bracketed(noise: HeavyNoise, bits: int) -> None:
    # Far out a tail is tiny: an integral whose error is absolute would be wrong there.
    for k in (1, 7, 300, 10**6, REACH):
        low, high = (CTX.mpf(bound) for bound in weights_of(noise).tail(k, context(bits)))
        exact, known = noise.weight_from(k), CTX.mpf(10) ** -27
        assert low <= exact * (1 + known)
        assert high >= exact * (1 - known)
        first = noise.weight(k)  # the bracket is a term wide
        assert high - low <= first + exact * CTX.ldexp(1 + abs(noise.log_weight(k)), 20 - bits)


@pytest.mark.parametrize("bits", [192, 320])
def test_tails_are_bracketed_where_the_exponents_digits_cancel(bits: int) -> None:
    noise = Polylog(Fraction(2), Fraction(10**50), Fraction(10**50), Fraction(2**55))
    low, high = (CTX.mpf(bound) for bound in weights_of(noise).tail(REACH, context(bits)))
    assert low <= noise.weight_from(REACH) <= high <= low * (1 + CTX.mpf(10) ** -10)
