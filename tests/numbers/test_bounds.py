"""Rational upper bounds: at least the true value, close to it, and where policies need it monotone."""

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Any

import pytest

from tests.support.lattice import CTX, real
from udfs.numbers.exact import LARGE, SMALL, log1p_above, tanh_above

TIGHT = CTX.mpf(10) ** -19
Bound = Callable[[Fraction], Fraction]
PAIRS: list[tuple[Bound, Callable[[Any], Any]]] = [(log1p_above, CTX.log1p), (tanh_above, CTX.tanh)]


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


@pytest.mark.parametrize(("bound", "function"), PAIRS)
def test_bounds_are_above_and_close(bound: Bound, function: Callable[[Any], Any]) -> None:
    assert bound(Fraction(0)) == 0
    for x in points():
        true = function(real(x))
        assert true <= real(bound(x)) * (1 + CTX.mpf(10) ** -110)
        assert real(bound(x)) <= true * (1 + TIGHT)


@pytest.mark.parametrize(("bound", "function"), PAIRS)
def test_a_computation_without_the_slack_would_be_seen(bound: Bound, function: Callable[[Any], Any]) -> None:
    below = [x for x in points() if real(bound(x) * (1 - Fraction(1, 10**28))) < function(real(x))]
    assert len(below) > 100


def test_tanh_stays_below_its_argument_and_one() -> None:
    for x in points():
        assert tanh_above(x) <= x
        assert tanh_above(x) <= 1


@pytest.mark.parametrize(("bound", "function"), PAIRS)
def test_bounds_do_not_fall(bound: Bound, function: Callable[[Any], Any]) -> None:
    values = [bound(x) for x in points() if abs(x / SMALL - 1) > Fraction(1, 10**20)]
    assert values == sorted(values)
