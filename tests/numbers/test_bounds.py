"""Bounds of powers, roots, logarithms and tangents against 120 digits: above the truth, by one part in 10¹⁹ at most."""

from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from mpmath import MPContext

from udfs.numbers.exact import (
    LARGE,
    SMALL,
    exp_above,
    laplace_zcdp_above,
    ln,
    log1p_above,
    log_power_rise_above,
    power_above,
    root_rise_above,
    s_over_sinh,
    tanh_above,
)

CTX: Any = MPContext()
CTX.prec = 2000  # differences of numbers that agree in 10⁻²⁰⁰ of their digits


def real(x: Fraction) -> Any:
    return CTX.mpf(x.numerator) / x.denominator


def sizes(seed: int, count: int, low: int = -150, high: int = 150) -> list[Fraction]:
    random = Random(seed)
    return [Fraction(f"{random.uniform(1, 10):.9f}e{random.randint(low, high)}") for _ in range(count)]


def assert_above(bound: Fraction, exact: Any) -> None:
    assert exact * (1 - CTX.mpf(10) ** -110) <= real(bound) <= exact * (1 + CTX.mpf(10) ** -19)


def points() -> list[Fraction]:
    random = Random(10)
    anywhere = [
        Fraction(random.randrange(1, 10**12), 10**12) * Fraction(10) ** e for e in range(-50, 40) for _ in range(6)
    ]
    edges = [
        edge * (1 + Fraction(by, 10**d)) for edge in (SMALL, Fraction(LARGE)) for by in (-1, 0, 1) for d in (3, 12, 40)
    ]
    thin = [Fraction(1, 3), Fraction(10**80 + 1, 10**80), Fraction(1, 10**10), Fraction(12, 10**11), Fraction(2) ** -33]
    return sorted({*anywhere, *edges, *thin})


def test_logarithms_beside_one_and_tangents() -> None:
    for x in points():
        assert_above(log1p_above(x), CTX.log1p(real(x)))
        assert_above(tanh_above(x), CTX.tanh(real(x)))
        assert tanh_above(x) <= min(x, 1)
    for bound in (log1p_above, tanh_above):
        assert bound(Fraction(0)) == 0
        values = [bound(x) for x in points() if abs(x / SMALL - 1) > Fraction(1, 10**20)]
        assert values == sorted(values)


def test_powers() -> None:
    for x, p in zip(sizes(1, 200), [*sizes(2, 100, -3, 1), *map(Fraction, range(1, 101))], strict=True):
        assert_above(power_above(x, p), real(x) ** real(p))
    assert power_above(Fraction(3, 7), Fraction(1)) == Fraction(3, 7)
    assert power_above(Fraction(0), Fraction(1, 2)) == 0


@pytest.mark.parametrize("a", ["1", "1.0000000001", "2.718281828459045", "3", "60", "1e6", "1e50"])
def test_rises_of_powers_of_logarithms(a: str) -> None:
    for p in ("1", "1.0000001", "1.5", "2", "5", "50", "100"):
        for x in sizes(3, 25):
            if Fraction(a) == 1 and p != "1":
                continue
            power, log_a = real(Fraction(p)), CTX.log(real(Fraction(a)))
            exact = (log_a + CTX.log(1 + real(x))) ** power - log_a**power
            assert_above(log_power_rise_above(x, Fraction(a), Fraction(p)), exact)
    assert log_power_rise_above(Fraction(0), Fraction(3), Fraction(2)) == 0


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 50, 100])
def test_rises_of_roots(k: int) -> None:
    for x, a in zip(sizes(4, 150, -60, 60), [Fraction(0), *sizes(5, 149, -50, 50)], strict=True):
        exact = CTX.root(real(x + a), k) - CTX.root(real(a), k)
        assert_above(root_rise_above(x, a, k), exact)
    assert root_rise_above(Fraction(0), Fraction(5), k) == 0


def test_the_loss_of_laplace_noise() -> None:
    for pure, s in zip(sizes(6, 300, -60, 60), sizes(7, 300, -40, 3), strict=True):
        p, step = real(pure), real(s)
        exact = p - step / CTX.sinh(step) * -CTX.expm1(-p)
        assert_above(laplace_zcdp_above(pure, s), exact)
        ratio = step / CTX.sinh(step)
        assert ratio - CTX.mpf(10) ** -84 <= real(s_over_sinh(s)) <= ratio * (1 + CTX.mpf(10) ** -110)
    assert laplace_zcdp_above(Fraction(0), Fraction(1)) == 0


def test_at_one_step_it_is_the_loss_of_a_pure_pair() -> None:
    for s in sizes(8, 50, -3, 1):  # docs/mathematics.md, section 4: tanh(P/2)·P
        exact = CTX.tanh(real(s) / 2) * real(s)
        assert_above(laplace_zcdp_above(s, s), exact)


def test_exponentials_and_logarithms() -> None:
    for x in sizes(9, 50, -5, 2):
        assert_above(exp_above(x), CTX.exp(real(x)))
    for x in [*sizes(10, 50), *(1 + x for x in sizes(11, 50, -40, -1))]:
        assert ln(x) == float(CTX.log(real(x)))  # to the last bit


RISING: dict[str, Callable[[Fraction], Fraction]] = {
    "power": lambda x: power_above(x, Fraction(1, 3)),
    "logarithm": lambda x: log_power_rise_above(x, Fraction("2.718281828459045"), Fraction(2)),
    "root": lambda x: root_rise_above(x, Fraction(7, 3), 4),
    "laplace": lambda x: laplace_zcdp_above(x, Fraction(1, 10**9)),
}


@pytest.mark.parametrize("bound", RISING.values(), ids=RISING)
def test_bounds_never_fall(bound: Callable[[Fraction], Fraction]) -> None:
    seams = [Fraction(1, 10**29) * f for f in (Fraction(9, 10), Fraction(999_999, 10**6), 1, Fraction(11, 10), 2, 3, 7)]
    points = sorted({Fraction(0), *sizes(12, 200), *seams, Fraction(199), Fraction(200), Fraction(201)})
    assert all(bound(a) <= bound(b) for a, b in pairwise(points))


def test_a_bound_from_below_is_seen() -> None:
    exact = CTX.sqrt(2)
    for bound, function in ((log1p_above, CTX.log1p), (tanh_above, CTX.tanh)):  # without the slack of the computation
        below = [x for x in points() if real(bound(x) * (1 - Fraction(1, 10**28))) < function(real(x))]
        assert len(below) > 100
    with pytest.raises(AssertionError):
        assert_above(power_above(Fraction(2), Fraction(1, 2)) * (1 - Fraction(1, 10**29)), exact)
    with pytest.raises(AssertionError):
        assert_above(power_above(Fraction(2), Fraction(1, 2)) * (1 + Fraction(1, 10**18)), exact)
