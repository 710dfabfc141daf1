"""Whole Rényi curves: bounds at every order, added over queries and releases, converted once."""

import json
from fractions import Fraction
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.accounting.accountant import Charged
from pipeline.accounting.convert import ORDERS, approximate_epsilon, approximate_epsilon_of, interpretation
from pipeline.accounting.interpretation import Loss, interpret
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import Limit, Reference, ReferenceRecord
from pipeline.ledger.reservation import certified_json, certified_of
from tests.support.divergence import renyi, renyi_heavy
from tests.support.guarantee import CASES, named, neighbours, noise_of, three
from tests.support.heavy import HeavyNoise
from tests.support.lattice import CTX, LatticeNoise, real
from udfs.losses.curve import of_pure, of_zcdp
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.numbers.exact import exact
from udfs.records.statistics import Sum

SOME = np.array([1.001, 1.5, 2.0, 8.0, 64.0])
LAPLACE = build({"kind": "laplace", "sigma": 3, "policy": "paper"}, Fraction(1))
GAUSSIAN = build({"kind": "gaussian", "sigma": 4}, Fraction(1))


def sum_of(*mechanisms: Mechanism, query_sets: tuple[frozenset[int], ...] | None = None) -> PolicySum:
    queries = tuple(QueryPolicy(f"q{i}", Sum("x"), m) for i, m in enumerate(mechanisms))
    return PolicySum(queries, query_sets or (frozenset(range(len(queries))),))


def within(at: Reference, *query_sets: frozenset[int]) -> Reference:
    return Reference(tuple(ReferenceRecord(record.values, query_sets=query_sets) for record in at.records))


@pytest.mark.parametrize("pure", [1e-9, 1e-4, 0.3, 2.0, 40.0, 1e4])
def test_the_curve_of_a_pure_loss_is_randomised_responses(pure: float) -> None:
    found = of_pure(pure, ORDERS)
    assert (found <= pure).all()
    with CTX.workprec(400):
        p, q = 1 / (1 + CTX.exp(-CTX.mpf(pure))), 1 / (1 + CTX.exp(CTX.mpf(pure)))
        for order, bound in zip(ORDERS[::7], found[::7], strict=True):
            alpha = CTX.mpf(float(order))
            exactly = CTX.log(p**alpha * q ** (1 - alpha) + q**alpha * p ** (1 - alpha)) / (alpha - 1)
            assert bound >= exactly * (1 - CTX.mpf(10) ** -30)
            assert order * pure > 600 or bound <= exactly * (1 + CTX.mpf(10) ** -9)


def test_the_pure_curve_lies_below_the_papers_loss_and_meets_it_at_order_1() -> None:
    for pure in (0.01, 0.5, 3.0):
        rho = float(np.tanh(pure / 2) * pure)
        curve = of_pure(pure, ORDERS)
        assert (curve <= of_zcdp(rho, ORDERS) * (1 + 1e-9)).all()
        assert curve[-1] < 0.1 * of_zcdp(rho, ORDERS)[-1]
        assert isclose(of_pure(pure, np.array([1 + 1e-9]))[0], rho, rel_tol=1e-6)


def at_least(noise: LatticeNoise, shift: int, order: Fraction) -> Any:
    """The Rényi divergence of the noise, from below where tails are heavy."""
    heavy = isinstance(noise, HeavyNoise)
    return CTX.mpf(renyi_heavy(noise, shift, order)[0]) if heavy else renyi(noise, shift, order)


@pytest.mark.parametrize("m", three(m for m in CASES if m.additive), ids=named)
def test_curves_bound_the_noise_that_is_drawn_and_a_smaller_influence_does_not(m: Mechanism) -> None:
    noise, seen = noise_of(m), False
    for pair in neighbours(m)[:8]:
        if not pair.shift:
            continue
        curve = m.renyi_at(pair.influence, SOME)
        less = m.renyi_at(pair.influence - m.step, SOME)
        for order, bound, low in zip(SOME, curve, less, strict=True):
            exactly = at_least(noise, pair.shift, exact(float(order)))
            assert bound >= exactly * (1 - CTX.mpf(10) ** -9)
            seen |= bool(low < renyi(noise, pair.shift, exact(float(order))))
    assert seen


def test_curves_of_queries_add_up_and_query_sets_take_the_largest() -> None:
    at = Reference.of({"x": 5})
    both, either = sum_of(LAPLACE, GAUSSIAN), sum_of(LAPLACE, GAUSSIAN, query_sets=(frozenset({0}), frozenset({1})))
    one, other = (m.renyi_at(Fraction(5), ORDERS) for m in (LAPLACE, GAUSSIAN))
    assert np.allclose(both.curve_at(at), one + other, rtol=1e-9)
    assert (both.curve_at(at) >= one + other).all()
    assert (either.curve_at(at) >= np.maximum(one, other)).all()
    assert np.allclose(either.curve_at(at), np.maximum(one, other), rtol=1e-9)
    assert np.allclose(either.curve_at(within(at, frozenset({1}))), other, rtol=1e-9)
    assert not both.curve_at(within(at)).any()


def test_the_curve_says_less_than_rho_where_the_mechanism_is_pure() -> None:
    at, n = Reference.of({"x": 3}), 100
    policy = sum_of(*[LAPLACE] * n)
    rho, pure = float(policy.loss_at(at)), float(policy.pure_loss_at(at) or 0)
    curve = policy.curve_at(at)
    by_rho, stated = (interpretation(each, rho, pure, 1e-3) for each in (None, curve))
    assert stated["epsilon"] < 0.97 * min(pure, approximate_epsilon(rho, 1e-3, pure))
    assert stated["power"] <= by_rho["power"]
    gaussian = sum_of(*[GAUSSIAN] * n)
    by_curve = approximate_epsilon_of(ORDERS, gaussian.curve_at(at), 1e-9)
    assert isclose(by_curve, approximate_epsilon(float(gaussian.loss_at(at)), 1e-9), rel_tol=1e-2)


def test_what_is_infinite_is_null() -> None:
    assert interpretation(None, float("inf"), None, 1e-9)["epsilon"] is None
    json.dumps(interpretation(None, float("inf"), None, 1e-9), allow_nan=False)


def stored(policy: PolicySum, at: dict[str, Any]) -> Any:
    limit = Limit.from_json({"label": "x", "at": at, "rho": 9, "places": None})
    return json.loads(json.dumps(certified_json(policy, [limit])))


def test_a_bound_that_was_stated_is_never_lowered() -> None:
    at, policy = Reference.of({"x": 5}), sum_of(LAPLACE)
    (known,) = certified_of("r", stored(policy, {"x": 5}))
    quieter = sum_of(build({"kind": "laplace", "sigma": 30, "policy": "paper"}, Fraction(1)))  # a later version's
    assert Charged("r", quieter, 2, (known,)).loss_at(at) == 2 * known.rho > 2 * quieter.loss_at(at)
    louder = sum_of(build({"kind": "laplace", "sigma": 1, "policy": "paper"}, Fraction(1)))
    assert Charged("r", louder, 2, (known,)).loss_at(at) == 2 * louder.loss_at(at)


def test_the_orders_are_the_same_decimals_everywhere(tmp_path: Path) -> None:
    assert len(ORDERS) == 90
    assert (np.diff(ORDERS) > 0).all()
    assert ORDERS[0] == 1.001
    assert json.loads(json.dumps(ORDERS.tolist())) == ORDERS.tolist()
    assert real(exact(float(ORDERS[1]))) == CTX.mpf("1.00126")


def test_posteriors_too_are_read_off_the_curve_where_it_says_less() -> None:
    loss = Loss(Fraction(46), Fraction(100))
    low = np.minimum(ORDERS * 46.0, 2.0)  # a curve that ends far below the pure loss
    by_rho, by_curve = (interpret(loss, 1e-3, curve)["posteriors"] for curve in (None, low))
    for one, other in zip(by_rho, by_curve, strict=True):
        prior, t = other["prior"], 2.0 + np.log(1e3) / (ORDERS[-1] - 1)
        assert other["largest"] == pytest.approx(1 / (1 + (1 - prior) / prior * np.exp(-t)), rel=1e-6)
        assert other["largest"] < one["largest"]
        assert other["mean"] == one["mean"]
    above = interpret(loss, 1e-3, ORDERS * 1e6)["posteriors"]  # a curve that says more is not taken
    assert above == by_rho
