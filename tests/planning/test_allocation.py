"""Allocation: limits are kept exactly, and no scales that keep them have smaller weighted errors."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pipeline.accounting.allocation_problem import Bound, Problem, Unmet
from pipeline.accounting.level_errors import Lattice, LatticeTable
from pipeline.accounting.references import Limit, Reference
from pipeline.accounting.targets import CalibrationError, Target, missed
from pipeline.planning.allocation import FEWER, allocate, relaxed
from tests.support.allocated import AT_500, best_by_search, objective, problem
from udfs.mechanisms.catalogue import build
from udfs.numbers.exact import decimal

GAUSSIAN = {"kind": "gaussian"}
LAPLACE = {"kind": "laplace", "policy": "tight"}
BY_PAPER = {"kind": "laplace", "policy": "paper"}
HEAVY = {"kind": "exponential_polylog", "p": 1, "d": 4, "a": 3, "policy": "tight"}
LOG = {"kind": "log", "a": 100}
LOG_MEDIAN = {"kind": "log", "a": 100, "estimator": "median"}
LOG_LAPLACE = {"kind": "log", "a": 100, "noise": "laplace"}
SPLITTING = {"kind": "unit_splitting", "threshold": 20}
STABLE = {"kind": "symmetric_stable", "alpha": "1.5"}
CELLS = ((10.0, 100.0), (100.0, 400.0), (5000.0, 700.0))
DIGITS = 2e-3  # what rounding every scale to four digits may cost


def shares(asked: Problem, numbers: dict[int, int]) -> list[float]:
    return [each.share(asked.at(numbers)) for each in asked.bounds]


@given(
    influences=st.lists(st.integers(1, 10**5), min_size=1, max_size=5),
    data=st.data(),
    rho=st.fractions(Fraction(1, 100), 100, max_denominator=100),
)
@settings(derandomize=True, max_examples=12)
def test_gaussian_scales_are_those_of_the_closed_form(influences: list[int], data: Any, rho: Fraction) -> None:
    """σ_t² = Δ_t/√w_t · Σ Δ√w/(2ρ): stationary where w_t = λΔ_t²/(2σ_t⁴), and all of rho is spent."""
    weights = [data.draw(st.integers(1, 50)) for _ in influences]
    asked = problem([GAUSSIAN] * len(influences), weights, [(influences, str(rho))])
    found = allocate(asked)
    together = sum(x * sqrt(w) for x, w in zip(influences, weights, strict=True)) / (2 * float(rho))
    for v, (x, w) in enumerate(zip(influences, weights, strict=True)):
        closed = sqrt(x / sqrt(w) * together)
        if closed > 4:  # continuous noise and the lattice's differ below
            assert float(decimal(found[v])) == pytest.approx(closed, rel=DIGITS)
    assert asked.keeps(asked.at(found))


CASES = [
    ([GAUSSIAN, LAPLACE], [1, 4], [([10, 500], 1)]),
    ([GAUSSIAN, LAPLACE], [1, 1], [([10, 10], 1), ([1000, 300], 20)]),
    ([BY_PAPER, HEAVY], [1, 1], [([10, 40], 1), ([5000, 90000], 30)]),
    ([LOG, GAUSSIAN], [2, 1], [([10, 10], 1), ([5000, 50], 30)]),
    ([LOG_LAPLACE, SPLITTING], [1, 1], [([10, 100], 2), ([500, 900], 30)]),
    ([LOG_MEDIAN, SPLITTING], [1, 100], [([3, 8], 1), ([8, 9], 20), ([400, 700], 1)]),
]


@pytest.mark.parametrize(("kinds", "weights", "limits"), CASES)
def test_two_tables_are_allocated_as_a_search_over_all_scales_does(kinds: Any, weights: Any, limits: Any) -> None:
    asked = problem(kinds, weights, limits)
    found = allocate(asked)
    assert asked.keeps(asked.at(found))
    assert max(shares(asked, found)) > 1 - DIGITS
    assert all(n % FEWER == 0 for n in found.values())
    best = best_by_search(asked, found, 1.5, 41)
    assert objective(asked, found) <= best * (1 + 2 * DIGITS)
    twin = allocate(problem(kinds, [50 * weights[0], weights[1]], limits))  # for other weights
    assert asked.keeps(asked.at(twin))
    assert objective(asked, twin) > best * (1 + 2 * DIGITS)


def test_three_tables_under_two_limits() -> None:
    asked = problem([GAUSSIAN, BY_PAPER, LOG], [1, 3, 1], [([10, 10, 10], "0.02"), ([5000, 2000, 9000], 200)])
    found = allocate(asked)
    assert objective(asked, found) <= best_by_search(asked, found, 1.3, 15) * (1 + 2 * DIGITS)
    assert min(shares(asked, found)) > 1 - 2 * DIGITS  # both limits bind


def test_disjoint_tables_share_a_limit_that_each_may_use_up() -> None:
    apart = problem([GAUSSIAN, LAPLACE], [1, 1], [([10, 10], 1)], sets=(frozenset({0}), frozenset({1})))
    found = allocate(apart)
    for v in (0, 1):
        alone = allocate(problem([[GAUSSIAN, LAPLACE][v]], [1], [([10], 1)]))
        assert decimal(found[v]) == pytest.approx(decimal(alone[0]), rel=DIGITS)
    both = problem([GAUSSIAN, LAPLACE], [1, 1], [([10, 10], 1)])
    assert objective(both, allocate(both)) > 1.5 * objective(apart, found)


def nested(parts: tuple[int, int]) -> Lattice:
    """Three nested tables, the finest first, whose cells have these numbers of parts."""
    few, many = parts
    tables = [LatticeTable.of(e, {i: 1.0}) for i, e in enumerate((2, 1, 0))]
    return Lattice(np.array([1.0, many, few * many]), np.triu(np.ones((3, 3), dtype=bool)), tables)


@pytest.mark.parametrize("parts", [(3, 4), (1, 5), (2, 1)])
def test_reconciled_variances_are_those_of_least_squares(parts: tuple[int, int]) -> None:
    """The diagonal of A·(Σ AᵀA/V)⁻¹·Aᵀ for a tree in which every cell has as many parts."""
    few, many = parts
    tables = [np.eye(few * many), np.kron(np.eye(many), np.ones((1, few))), np.ones((1, few * many))]
    variances = [2.0, 5.0, 0.7]
    normal = sum(table.T @ table / variance for table, variance in zip(tables, variances, strict=True))
    exact = [(table @ np.linalg.inv(normal) @ table.T)[0, 0] for table in tables]
    lattice = nested(parts)
    assert lattice.reconciled(variances) == pytest.approx(exact, rel=1e-12)
    assert lattice.pulls(variances, [1, 2, 3]).sum() == pytest.approx(np.dot(exact, [1, 2, 3]))  # of degree 1


@pytest.mark.parametrize(("weights", "parts"), [((1, 1, 1), (10, 5)), ((100, 1, 1), (3, 4)), ((1, 1, 1000), (10, 10))])
def test_reconciled_errors_are_as_small_as_a_search_finds(weights: tuple[int, ...], parts: tuple[int, int]) -> None:
    apart = problem([GAUSSIAN] * 3, weights, [((100, 100, 100), 2)])
    lattice = nested(parts)
    asked = replace(apart, lattices=[lattice])

    def total(numbers: dict[int, int]) -> float:
        return float(np.dot(weights, lattice.reconciled(asked.variances(lattice, asked.at(numbers)))))

    found = allocate(asked)
    assert asked.keeps(asked.at(found))
    grid = np.linspace(0.005, 0.99, 40)
    shares = [np.array([u, v, 1 - u - v]) for u in grid for v in grid if u + v < 1 - 1e-9]
    best = min(float(np.dot(weights, lattice.reconciled(100**2 / (4 * share)))) for share in shares)
    assert total(found) <= best * (1 + DIGITS)
    assert total(allocate(apart)) > total(found)  # a broken twin: for the errors as they are published


UNUSABLE = [
    Target.of("unusable", within=Fraction("0.3"), sizes=sizes)
    for sizes in (((5.0, 10.0), (50.0, 10.0)), ((40.0, 30.0), (900.0, 5.0)), ((200.0, 1.0), (1000.0, 9.0), (1e5, 2.0)))
]


def missing(deviations: Sequence[float]) -> float:
    """Return Σ of the tables' expected shares of cells with errors of more than 0.3 of their totals."""
    return sum(
        sum(count * 2 * norm.sf(0.3 * size / deviation) for size, count in error.sizes)
        / sum(count for _, count in error.sizes)
        for error, deviation in zip(UNUSABLE, deviations, strict=True)
    )


@pytest.mark.parametrize("parts", [None, (3, 4)])
@pytest.mark.parametrize("rho", ["0.3", "2"])
def test_cells_that_are_missed_are_as_few_as_a_search_finds(rho: str, parts: tuple[int, int] | None) -> None:
    apart = problem([GAUSSIAN] * 3, (1, 1, 1), [((10, 10, 10), rho)], errors=UNUSABLE)
    lattices = [] if parts is None else [nested(parts)]

    def total(variances: Any) -> float:
        return missing(np.sqrt(lattices[0].reconciled(variances) if lattices else variances))

    def reached(asked: Problem) -> float:
        policy = asked.at(allocate(asked))
        assert asked.keeps(policy)
        return total([each.mechanism.variance(0.0) for each in policy.queries])

    grid = np.linspace(0.005, 0.99, 60)
    shares = [np.array([u, v, 1 - u - v]) for u in grid for v in grid if u + v < 1 - 1e-9]
    best = min(total(50 / (float(rho) * share)) for share in shares)
    assert reached(replace(apart, lattices=lattices)) <= best * 1.01
    squares = replace(apart, unknowns=[replace(each, error=AT_500) for each in apart.unknowns], lattices=lattices)
    assert reached(squares) > best * 1.01  # a broken twin: for squared errors


def test_a_cell_is_unusable_beyond_its_share_and_missed_smoothly() -> None:
    target = UNUSABLE[1]
    mechanism = build({"kind": "gaussian", "sigma": 100}, Fraction(1))
    assert target.value(mechanism) == pytest.approx(30 / 35)  # 12 is below 100, 270 is not
    deviation = np.sqrt([mechanism.variance(0.0)])
    share, grows = missed(target, deviation)
    assert share == pytest.approx((30 * 2 * norm.sf(12 / deviation[0]) + 5 * 2 * norm.sf(270 / deviation[0])) / 35)
    assert grows == pytest.approx((missed(target, deviation * exp(1e-6 / 2))[0] - share) / 1e-6, rel=1e-4)


def test_years_and_the_test_of_a_firm_use_the_policys_own_total() -> None:
    once = problem([GAUSSIAN, LAPLACE], [1, 1], [([10, 10], 1)])
    often = problem([GAUSSIAN, LAPLACE], [1, 1], [([10, 10], 5)], times=5)
    assert allocate(often) == allocate(once)
    firm = Reference.of([{"m0": 10, "m1": 10}, {"m0": 30, "m1": 5}])
    asked = Problem(once.policy, [Bound(Limit(firm, Fraction(1)))], once.unknowns)
    found = allocate(asked)
    total = asked.at(found).loss_at(firm)
    assert 1 - DIGITS < total <= 1
    assert objective(asked, found) <= best_by_search(asked, found, 1.3, 21) * 1.01  # its bound has kinks


WISHES = [
    (GAUSSIAN, Target.of("standard_error", standard_error=Fraction(30))),
    (HEAVY, Target.of("mean_absolute_error", mean_absolute_error=Fraction(7))),
    (LOG, Target.of("standard_error", standard_error=Fraction(30), total=Fraction(500))),
    (STABLE, Target.of("interval", interval=Fraction(60), coverage=Fraction(9, 10))),
    (LAPLACE, Target.of("quantile", relative_error=Fraction(1, 10), quantile=Fraction(1, 2), total=Fraction(100))),
    (LOG, Target.of("quantile", relative_error=Fraction(1, 10), quantile=Fraction(9, 10), total=Fraction(100))),
    (SPLITTING, Target.of("standard_error", standard_error=Fraction(30), total=Fraction(500))),
    (LAPLACE, Target.of("share", share=Fraction(9, 10), within=Fraction(1, 10), sizes=CELLS)),
    (LOG, Target.of("share", share=Fraction(3, 4), within=Fraction(1, 10), sizes=CELLS)),
]


@pytest.mark.parametrize(("kind", "target"), WISHES)
def test_a_wish_is_met_by_the_most_noise(kind: Any, target: Any) -> None:
    asked = problem([kind], [None], [], errors=[target])
    (found,) = allocate(asked).values()
    (unknown,) = asked.unknowns
    assert unknown.meets(found)
    assert not unknown.meets(found + FEWER)


def test_a_share_of_cells_is_that_of_scipys_laws() -> None:
    """Laplace noise of scale σ is within d with probability 1 − e^(−d/σ), on the lattice of steps far below σ."""
    target = Target.of("share", share=Fraction(9, 10), within=Fraction(1, 10), sizes=CELLS)
    mechanism = build({"kind": "laplace", "sigma": 300, "policy": "paper"}, Fraction(1))
    inside = sum(count * (1 - exp(-(0.1 * size + 0.5) / 300)) for size, count in CELLS) / 1200
    assert target.value(mechanism) == pytest.approx(1 - inside, rel=1e-5)


def test_wishes_are_kept_and_the_rest_goes_to_the_weights() -> None:
    wish = Target.of("standard_error", standard_error=Fraction(30))
    asked = problem([GAUSSIAN, GAUSSIAN], [None, 1], [([10, 10], 1)], errors=[wish, wish])
    found = allocate(asked)
    assert decimal(found[0]) == 30
    left = 1 - Fraction(100, 1800)
    assert float(decimal(found[1])) == pytest.approx(sqrt(100 / (2 * left)), rel=DIGITS)


def test_wishes_beyond_the_limit_are_refused_with_what_could_be_had() -> None:
    wish = Target.of("standard_error", standard_error=Fraction(10))
    asked = problem([GAUSSIAN] * 3, [None, None, 1], [([10, 10, 1], "0.75")], errors=[wish] * 3)
    with pytest.raises(Unmet) as caught:
        allocate(asked)
    assert caught.value.bound.spent(caught.value.least) == 1  # ½ each
    alone = relaxed(asked, caught.value.wished, [0])
    together = relaxed(asked, caught.value.wished, [0, 1])
    assert alone is not None
    assert together is not None
    assert float(decimal(alone[0])) == pytest.approx(sqrt(200), rel=2e-3)  # ¼ is left for it
    assert alone[1] == caught.value.wished[1]
    assert float(decimal(together[0])) == pytest.approx(sqrt(400 / 3), rel=2e-3)
    tight = problem([GAUSSIAN] * 2, [None, None], [([10, 10], "0.4")], errors=[wish] * 2)
    with pytest.raises(Unmet) as caught:
        allocate(tight)
    assert relaxed(tight, caught.value.wished, [0]) is None


def test_what_noise_cannot_have_is_told() -> None:
    asked = problem([STABLE], [None], [], errors=[Target.of("standard_error", standard_error=Fraction(30))])
    with pytest.raises(CalibrationError, match="the noise has no standard error"):
        allocate(asked)


def test_a_limit_below_what_the_release_costs_anyway_is_not_kept() -> None:
    asked = problem([GAUSSIAN], [1], [([10], 0)])
    with pytest.raises(Unmet):
        allocate(asked)


@pytest.mark.parametrize("kind", [HEAVY, GAUSSIAN, LOG])
def test_limits_that_allow_anything_do_not_take_the_noise_away(kind: Any) -> None:
    asked = problem([kind, BY_PAPER], [1, 1], [([3 * 10**5, 1], 10**12), ([0, 100], 1)])
    found = allocate(asked)
    (first, second) = (asked.at(found).queries[v].mechanism for v in (0, 1))
    assert 0.5 <= first.mean_absolute_error(500.0) < 0.52
    assert 1 - DIGITS < second.loss_at(Fraction(100)) <= 1  # and the other table has what it may


def test_tables_that_no_limit_reaches_are_named() -> None:
    asked = problem([GAUSSIAN, GAUSSIAN], [1, 1], [([10, 0], 1)])
    assert asked.unlimited() == ["q1"]
