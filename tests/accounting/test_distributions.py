"""(ε, δ) of whole releases by loss distributions: the worst query set, firms in known cells, what is not known."""

from fractions import Fraction
from pathlib import Path

import pytest

from pipeline.accounting.convert import ORDERS, approximate_epsilon_of, exact_scale
from pipeline.accounting.interpretation import bounds_at
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import QuerySet, Reference, Span
from pipeline.plan.total_policy import located, parse_at, policy_of
from tests.support.firms import COARSE, loaded
from tests.support.kinds import REGISTRY
from udfs.losses.atoms import Response
from udfs.losses.distribution import Bounds, bounds_of
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.records.statistics import Sum

DELTA = 1e-6
AT = Reference.of({"x": 5})
ONE = Fraction(1)
GAUSSIAN = build({"kind": "gaussian", "sigma": 4}, ONE)
WIDER = build({"kind": "gaussian", "sigma": 7}, ONE)
LAPLACE = build({"kind": "laplace", "sigma": 3}, ONE)
WIDE = build({"kind": "laplace", "sigma": 2**50}, ONE)
KINDS = [build({"kind": kind, **spec}, ONE) for kind, known in REGISTRY.items() for spec in known.published.values()]


def sum_of(*mechanisms: Mechanism, query_sets: tuple[QuerySet, ...] | None = None) -> PolicySum:
    queries = tuple(QueryPolicy(f"q{i}", Sum("x"), m) for i, m in enumerate(mechanisms))
    return PolicySum(queries, query_sets or (frozenset(range(len(queries))),))


def stated(policy: PolicySum, at: Reference = AT) -> Bounds:
    found = bounds_at(policy, at, DELTA)
    assert found is not None
    return found.bounds


def of(*mechanisms: Mechanism, influence: int = 5) -> Bounds:
    pairs = [m.pair_at(Fraction(influence)) for m in mechanisms]
    return bounds_of([pair for pair in pairs if pair is not None], DELTA, 0.05)


def test_every_kind_has_a_pair_and_states_at_most_what_its_divergences_imply() -> None:
    assert {m.kind for m in KINDS} == set(CATALOGUE)
    for m in KINDS:
        implied = approximate_epsilon_of(ORDERS, m.renyi_at(Fraction(5), ORDERS), DELTA)
        pure = m.pure_loss_at(Fraction(5))
        least = implied if pure is None else min(implied, float(pure))
        found = of(m).epsilon
        assert 0.3 * least < found
        assert not isinstance(m.pair_at(Fraction(5)), Response)
        assert found <= least * 1.01


def test_the_worst_query_set_is_stated_whichever_divergences_say() -> None:
    queries = (GAUSSIAN, WIDER, LAPLACE)
    for sets in ([{0}, {1}, {2}], [{0, 1}, {1, 2}, {2}], [{1}, {1, 2}, {0, 1, 2}]):
        policy = sum_of(*queries, query_sets=tuple(map(frozenset, sets)))
        each = [of(*(queries[i] for i in chosen)) for chosen in sets]
        assert stated(policy).epsilon == max(bounds.epsilon for bounds in each)
        assert stated(policy).power == max(bounds.power for bounds in each)
    assert stated(sum_of(GAUSSIAN, query_sets=(frozenset(),))).epsilon == pytest.approx(0, abs=1e-9)


def test_the_worst_class_is_stated_where_parts_differ_by_class() -> None:
    """Of records up to 9: in the class up to 4 less noise is drawn, above it more; each may be the worst."""
    for low, high in ((GAUSSIAN, WIDER), (WIDER, GAUSSIAN), (build({"kind": "gaussian", "sigma": 1}, ONE), WIDER)):
        queries = tuple(QueryPolicy("q", Sum("x"), each) for each in (low, high))
        spans: tuple[Span, ...] = ({"x": (Fraction(0), Fraction(4))}, {"x": (Fraction(5), None)})
        policy = PolicySum(queries, (frozenset([0]), frozenset([1])), spans)
        each = [of(low, influence=4), of(high, influence=9)]
        assert stated(policy, Reference.of({"x": 9})).epsilon == max(bounds.epsilon for bounds in each)
        assert stated(policy, Reference.of({"x": 9})).power == max(bounds.power for bounds in each)


def test_four_gaussian_queries_are_one_of_half_the_scale() -> None:
    found = stated(sum_of(*[WIDER] * 4)).epsilon
    assert exact_scale(found * 0.999, DELTA, 5) > 3.5 >= exact_scale(found * 1.001, DELTA, 5)


def test_a_query_without_a_known_law_is_named_and_one_that_is_too_wide_leaves_nothing() -> None:
    found = bounds_at(sum_of(GAUSSIAN, WIDE), AT, DELTA)
    assert found is not None
    assert found.coarse == ("q1",)
    wide = build({"kind": "gaussian", "sigma": 2**50}, ONE)
    assert bounds_at(sum_of(GAUSSIAN, wide), AT, DELTA) is None


def test_firms_in_known_cells_add_up_influences_and_others_have_no_distribution(tmp_path: Path) -> None:
    plan = loaded(tmp_path, queries=COARSE)
    policy = policy_of(plan)

    def found(text: str) -> Bounds | None:
        by = bounds_at(policy, located(plan, parse_at(text, plan)), DELTA)
        return None if by is None else by.bounds

    one, two = "employment=4,naics6=311111,county=06037", "employment=6,naics6=311111,county=06037"
    firm = found(f"{one};{two}")
    sector, west = policy.queries[0].mechanism, next(q for q in policy.queries if q.name == "west").mechanism
    test = policy.queries[-1].mechanism  # of records left out, a count that both are in
    pairs = [sector.pair_at(Fraction(10)), west.pair_at(Fraction(2)), test.pair_at(Fraction(2))]
    assert firm == bounds_of([pair for pair in pairs if pair is not None], DELTA, 0.05)
    alone = found(one)
    assert alone is not None
    assert firm is not None
    assert alone.epsilon < firm.epsilon
    assert found("employment=4;employment=6") is None
