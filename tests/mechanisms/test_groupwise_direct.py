"""Noise in proportion to the count: its divergences by quadrature, its orders without a bound, and its refusal."""

from collections.abc import Callable
from fractions import Fraction
from math import inf, isfinite, log, log1p
from pathlib import Path
from typing import Any

import pytest
from mpmath import MPContext

from pipeline.plan.messages import NEVER_RELEASED
from tests.support.groupwise_analysis import GroupwiseDirect, infinite_from
from tests.support.mistakes import PLAN, lines, write_domain
from udfs.mechanisms.base import ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, DIRECT, build

MP: Any = MPContext()
MP.dps = 30
CASES = [("0.1", 1), ("0.1", 10), ("0.01", 3), ("1", 2), ("0.3", 100)]


def by_quadrature(order: Any, first: int, second: int, r: Any) -> Any:
    """ln ∫ p^α q^{1 − α} / (α − 1) of N(first, r²first²) and N(second, r²second²), the integrand e^{quadratic}."""
    (a, s), (b, t) = ((MP.mpf(m), MP.mpf(m) * MP.mpf(r)) for m in (first, second))

    def exponent(y: Any) -> Any:
        p, q = -(((y - a) / s) ** 2) / 2 - MP.log(s), -(((y - b) / t) ** 2) / 2 - MP.log(t)
        return order * p + (1 - order) * q - MP.log(2 * MP.pi) / 2

    curvature = order / s**2 + (1 - order) / t**2
    middle = (order * a / s**2 + (1 - order) * b / t**2) / curvature
    top, width = exponent(middle), 1 / MP.sqrt(curvature)
    ends = [middle + n * width for n in range(-16, 17, 4)]
    return (top + MP.log(MP.quad(lambda y: MP.exp(exponent(y) - top), ends))) / (order - 1)


@pytest.mark.parametrize(("r", "x"), CASES)
def test_divergences_are_the_integrals(r: str, x: int) -> None:
    m, last = GroupwiseDirect(r=Fraction(r)), float(infinite_from(x))
    for order in (1.0001, 1 + (last - 1) / 3, 1 + 0.99 * (last - 1)):
        for pair in ((x, x + 1), (x + 1, x)):
            integral = by_quadrature(MP.mpf(order), *pair, MP.mpf(r))
            assert m.divergence(order, *pair) == pytest.approx(float(integral), rel=1e-9)
    # Paper 5 has 2·ln t where ln t stands.
    printed = m.divergence(2.0, x, x + 1) + log1p(1 / x)
    assert printed != pytest.approx(float(by_quadrature(MP.mpf(2), x, x + 1, MP.mpf(r))), rel=1e-5)


@pytest.mark.parametrize(("r", "x"), CASES)
def test_no_order_from_the_stated_one_on_is_bounded(r: str, x: int) -> None:
    m, last = GroupwiseDirect(r=Fraction(r)), infinite_from(x)
    assert last == Fraction((x + 1) ** 2, 2 * x + 1)
    assert isfinite(m.divergence(float(last) * (1 - 1e-9), x + 1, x))
    assert m.divergence(float(last) * (1 + 1e-9), x + 1, x) == inf == m.loss_up_to(float(last) * 2, x)
    assert isfinite(m.divergence(float(last) * 50, x, x + 1))  # the other direction alone would miss it
    # Why: the integrand falls below that order and rises from it on.
    for order, falls in ((last * Fraction(99, 100), True), (last * Fraction(101, 100), False)):
        assert (order / (x + 1) ** 2 + (1 - order) / Fraction(x) ** 2 > 0) is falls


@pytest.mark.parametrize(("r", "x"), CASES)
def test_a_truncated_loss_bounds_all_orders_up_to_its_own(r: str, x: int) -> None:
    m = GroupwiseDirect(r=Fraction(r))
    for share in (0.1, 0.5, 0.95):
        order = 1 + share * (float(infinite_from(x)) - 1)
        rho = m.loss_up_to(order, x)
        orders = [1 + (order - 1) * i / 300 for i in range(1, 301)]
        pairs = ((x, x + 1), (x + 1, x))
        assert all(m.divergence(o, *pair) <= o * rho * (1 + 1e-12) for o in orders for pair in pairs)
        beyond = 1 + (order - 1) * 1.01
        assert m.divergence(beyond, x + 1, x) > beyond * rho  # the twin: an order more


@pytest.mark.parametrize(("r", "x"), CASES)
def test_the_papers_claim_holds_up_to_the_stated_order_and_no_further(r: str, x: int) -> None:
    m = GroupwiseDirect(r=Fraction(r))
    until, v = m.claim_holds_to(x), 1 / (2 * (float(r) * x) ** 2)

    def broken(order: float) -> bool:
        return m.divergence(order, x + 1, x) > order * v + 2 * log((x + 1) / x)

    assert 1 < until < float(infinite_from(x))
    orders = [1 + (until - 1) * (1 - 1e-9) * i / 200 for i in range(1, 201)]
    assert not any(broken(order) for order in orders)
    assert all(broken(until + (float(infinite_from(x)) - until) * i / 50) for i in range(1, 51))
    assert all(m.divergence(order * 3, x, x + 1) <= order * 3 * v + log((x + 1) / x) for order in orders)


def test_a_count_of_zero_has_no_bound_at_any_order() -> None:
    m = GroupwiseDirect(r=Fraction(1, 10))
    assert m.divergence(1.0001, 0, 1) == m.divergence(1.0001, 1, 0) == m.loss_up_to(1.5, 0) == inf


WRONG: list[Callable[[], object]] = [
    lambda: GroupwiseDirect(r=Fraction(0)),
    lambda: GroupwiseDirect(r=Fraction(2)),
    lambda: GroupwiseDirect(r=Fraction(1)).divergence(1.0, 1, 2),
    lambda: GroupwiseDirect(r=Fraction(1)).divergence(2.0, 1, 3),
    lambda: GroupwiseDirect(r=Fraction(1)).divergence(float("nan"), 1, 2),
    lambda: GroupwiseDirect(r=Fraction(1)).claim_holds_to(0),
    lambda: infinite_from(0),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_has_no_meaning_is_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        wrong()


def test_no_plan_and_no_ledger_can_name_it(tmp_path: Path) -> None:
    assert DIRECT not in CATALOGUE
    with pytest.raises(ParameterError, match="kind"):
        build({"kind": DIRECT, "r": 0.1}, Fraction(1))
    edited = PLAN.replace("{kind: gaussian, sigma: 2}", "{kind: groupwise_direct, r: 0.1}")
    found = lines(write_domain(tmp_path), edited)
    assert found == [f"plan.yaml: queries[establishments].mechanism.kind: {NEVER_RELEASED[DIRECT]}"]
    assert "rho is infinite" in found[0]
    assert "order 4/3" in found[0]
