"""Drawn variances beside those of a dense matrix, their upper ends, and which cells are alike."""

import numpy as np
import pytest

from tests.support.estimates import Dense, nothing, observed, table
from udfs.estimates.group import Group
from udfs.estimates.solve import Estimates, reconcile
from udfs.estimates.tables import Observed
from udfs.estimates.variances import ABOVE, alike

COUNTIES = np.arange(12)
STATES = np.repeat(np.arange(3), [3, 3, 6])  # two states alike, one larger
SIZES = np.arange(4)


def crossing() -> list[Observed]:
    tables = [
        table("cells", COUNTIES, SIZES),
        table("counties", COUNTIES, nothing(4)),
        table("states by size", STATES, SIZES // 2),
        table("sizes", nothing(12), SIZES),
    ]
    return observed(tables, np.full((12, 4), 50.0), [9.0, 4.0, 9.0, 4.0], np.random.default_rng(1))


@pytest.fixture(scope="module")
def estimates() -> Estimates:
    return reconcile(crossing(), unit=0.001)


def test_cells_alike() -> None:
    group = Group(crossing())
    counties, sizes = alike(group.known[0].table, group.known)
    assert np.array_equal(counties, [0] * 6 + [1] * 6)
    assert np.array_equal(sizes, [0] * 4)
    varied = crossing()
    varied[1] = varied[1].__class__(**vars(varied[1]) | {"variance": np.array([[9.0]] + [[4.0]] * 11)})
    counties, _ = alike(varied[0], Group(varied).known)
    assert np.array_equal(counties, [0, 1, 1, 2, 2, 2] + [3] * 6)


def test_drawn_variances_are_those_of_the_dense_solution(estimates: Estimates) -> None:
    """400 draws: pooled means lie within 5 standard deviations of χ² with a draw's one degree of freedom, 36 %."""
    dense, drawn = Dense(crossing()), estimates.drawn(list(estimates.tables), 400, seed=2)
    for one in crossing():
        ratio = drawn[one.name].variance / dense.variances(one)
        assert (np.abs(ratio - 1) < 5 * np.sqrt(2 / 400)).all()
        assert (drawn[one.name].upper > drawn[one.name].variance).all()


def test_upper_ends_hold_as_often_as_they_say_and_means_do_not(estimates: Estimates) -> None:
    """In 100 runs of 10 draws, each end may lie too low with probability 0.01: over 8 times is one in a million."""
    dense = {one.name: Dense(crossing()).variances(one).flat[0] for one in crossing()}
    missed = {(name, kind): 0 for name in dense for kind in ("upper", "variance")}
    for seed in range(100):
        drawn = estimates.drawn(list(dense), 10, seed)
        for name, kind in missed:
            missed[name, kind] += bool(getattr(drawn[name], kind).flat[0] < dense[name])
    assert max(count for (_, kind), count in missed.items() if kind == "upper") <= 8
    assert min(count for (_, kind), count in missed.items() if kind == "variance") > 8
    assert ABOVE == 0.99
