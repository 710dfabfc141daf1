"""Multipliers from drawn errors hold as often as they say, with few draws and of heavy tails; naive ones do not."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from scipy.stats import binom, expon

from benchmarks.coverage import FAMILIES, POSITIONS, WIDTHS, drawn
from tests.support.estimates import matrix, nothing, observed, table
from udfs.estimates.intervals import Law, multiplier
from udfs.estimates.solve import reconcile
from udfs.estimates.variances import ENDS, Pool, order_of
from udfs.numbers.arrays import Floats

RUNS = 200


@pytest.mark.parametrize(("coverage", "draws"), [(0.5, 7), (0.5, 60), (0.9, 44), (0.95, 90), (0.95, 1000)])
def test_the_order_is_the_least_that_is_nearly_sure(coverage: float, draws: int) -> None:
    order = order_of(draws, coverage)
    assert order is not None
    assert binom.sf(order - 1, draws, coverage) <= 0.01 < binom.sf(order - 2, draws, coverage)
    # Of draws less one none is nearly sure, where all are needed.
    assert order < draws or order_of(draws - 1, coverage) is None


def missed(found: Floats, coverage: float, draws: int, multipliers: Callable[[Floats], float]) -> int:
    """In how many runs of so many draws the multiplier of one cell's errors holds too few of all of them."""
    random = np.random.default_rng(5)
    runs = (multipliers(random.choice(found, draws, replace=False)) for _ in range(RUNS))
    return sum(float(np.mean(np.abs(found) <= k)) < coverage for k in runs)


def one_cell(coverage: float, errors: Floats) -> float:
    pool = Pool((np.zeros(1, dtype=np.int32),))
    for error in errors:
        pool.add(np.array([error]))
    return float(pool.multipliers(coverage)[0])


@pytest.mark.parametrize("name", ["laplace", "exponential_polylog, p = 2"])
def test_multipliers_of_few_draws_are_large_enough_nearly_surely(name: str) -> None:
    """Too small with probability 0.01 each: in more than 11 of 200 runs once in 10⁶. Without the order: in half."""
    noise = drawn(FAMILIES[name], 20_000)
    errors = noise.errors["nation"][:, 0] / noise.standard_errors["nation"][0]
    for coverage, draws in ((0.5, 20), (0.9, 60), (0.95, 100)):
        assert missed(errors, coverage, draws, partial(one_cell, coverage)) <= 11
        naive = missed(errors, coverage, draws, lambda each, q=coverage: float(np.quantile(np.abs(each), q)))  # type: ignore[misc]
        assert naive > RUNS / 4
        found = one_cell(coverage, errors)  # of all: a little more than the quantile, and less than the inequality's
        assert np.quantile(np.abs(errors), coverage) <= found < multiplier(1 - coverage, Law.SYMMETRIC)


def test_intervals_of_pooled_cells_hold_as_often_as_they_say() -> None:
    """Counties together, states together: 200 draws for the multiplier, 4,000 others for the coverage of one cell."""
    noise = drawn(FAMILIES["exponential_polylog, p = 2"], 4_200)
    for level, width in WIDTHS.items():
        errors = noise.errors[level] / noise.standard_errors[level]
        for coverage in (0.5, 0.9, 0.95):
            pool = Pool((np.zeros(width, dtype=np.int32),))
            for draw in errors[:200]:
                pool.add(draw)
            k = pool.multipliers(coverage)
            share = np.mean(np.abs(errors[200:, 0]) <= k[0])
            assert share > coverage - 5.3 * np.sqrt(coverage * (1 - coverage) / 4_000)
    assert set(POSITIONS) == set(WIDTHS)


def test_classes_have_multipliers_of_their_own() -> None:
    random, classes = np.random.default_rng(1), (np.array([0, 0, 1], dtype=np.int32), np.zeros(50, dtype=np.int32))
    pool = Pool(classes)
    for _ in range(400):
        pool.add(random.exponential(size=(3, 50)) * np.array([[1.0], [1.0], [5.0]]))
    found = pool.multipliers(0.9)
    assert found.shape == (3, 50)
    assert (found[:2] == found[0, 0]).all()
    order = order_of(400, 0.9)
    assert order is not None
    np.testing.assert_allclose(found[[0, 2], 0] / expon.ppf(order / 400), [1, 5], rtol=0.05)
    assert np.isin(found, ENDS).all()


def test_too_few_draws_have_no_multiplier() -> None:
    assert order_of(89, 0.95) is None
    assert one_cell(0.95, np.zeros(89)) == np.inf
    assert one_cell(0.95, np.zeros(90)) == ENDS[0]


def test_errors_of_drawn_noise_are_those_of_a_dense_solution() -> None:
    """Estimates are linear in what is published: noise in the place of values has its estimates for errors."""
    counties, states = np.arange(6), np.repeat(np.arange(2), 3)
    tables = [table("cells", counties, np.arange(3)), table("sizes", nothing(6), np.arange(3)), table("states", states)]
    tables = [tables[0], tables[1], table("states", states, nothing(3))]
    random = np.random.default_rng(3)
    found = observed(tables, np.zeros((6, 3)), [4.0, 9.0, 1.0], random)
    noise = {one.name: one.values for one in found if one.values is not None}
    estimates = reconcile(found, unit=1e-9, tolerance=1e-8)
    errors = dict(estimates.errors(noise, list(noise)))
    for one in found:
        np.testing.assert_allclose(errors[one.name], estimates.table(one.name), atol=1e-6)
        a = matrix(one)
        np.testing.assert_allclose(a @ errors["cells"].ravel(), errors[one.name].ravel(), atol=1e-6)
