"""Lower bounds of what any noise within limits can do: below all that a search by brute force finds, and near it."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from pipeline.planning.study.design_bound import FALLS as FLOORS
from pipeline.planning.study.design_bound import Certificate
from pipeline.planning.study.design_program import ORDERS, Cost
from udfs.noise.piecewise import PiecewiseWeights

SHIFT, RHO = 2, 1.0
FALLS = tuple(Fraction(i, 16) for i in range(25))  # of log-weights, to the distances 1, 2 and 3; the last one goes on
LATTICE = np.arange(-90, 91)
COSTS = (Cost(power=2), Cost(power=1), Cost(beyond=1))


def _least_by_brute_force(cost: Cost) -> tuple[float, PiecewiseWeights]:
    """Return the least error of noise within the limit, summed point by point, and that noise."""
    falls = np.array([some for some in product(FALLS, repeat=3) if some[2] >= Fraction(1, 4)], dtype=np.float64)
    distance = np.arange(LATTICE[-1] + SHIFT + 1)
    logs = -np.cumsum(falls, axis=1)[:, np.minimum(distance, 3) - 1] - np.outer(
        falls[:, 2], np.maximum(distance - 3, 0)
    )
    logs[:, 0] = 0
    logs -= np.log(2 * np.exp(logs[:, 1:]).sum(axis=1) + 1)[:, None]
    p, q = logs[:, np.abs(LATTICE)], logs[:, np.abs(LATTICE - SHIFT)]
    kept = np.ones(len(falls), dtype=np.bool_)
    for order in ORDERS:
        kept[kept] = np.log(np.exp(order * p[kept] - (order - 1) * q[kept]).sum(axis=1)) <= (order - 1) * order * RHO
    errors = np.where(kept, np.exp(p) @ cost.at(np.abs(LATTICE).astype(np.float64)), np.inf)
    best = int(errors.argmin())
    steps = [Fraction(x) for x in (0, *np.cumsum(falls[best]))]
    logs_of_best = (*(-x for x in steps), steps[2] - 2 * steps[3])
    return float(errors[best]), PiecewiseWeights(steps=(0, 1, 2, 3, 4), logs=logs_of_best)


@pytest.mark.parametrize("cost", COSTS)
def test_no_noise_is_below_the_bound_and_the_bound_is_near_the_best(cost: Cost) -> None:
    least, noise = _least_by_brute_force(cost)
    certificates = [Certificate(noise, [(SHIFT, RHO)], fall) for fall in FLOORS]
    assert all(certificate.least(cost) <= least for certificate in certificates)
    certificate = max(certificates, key=lambda some: some.least(cost))
    multipliers = certificate.multipliers(cost)
    assert 0.7 * least < certificate.bound(cost, multipliers) <= least
    # whatever the multipliers, and whatever the noise that they are taken with
    random = np.random.default_rng(1)
    for factor in random.exponential(size=20):
        assert certificate.bound(cost, factor * multipliers) <= least
    other = PiecewiseWeights(steps=(0, 3, 20), logs=(Fraction(0), Fraction(-1), Fraction(-9)))
    assert Certificate(other, [(SHIFT, RHO)], 4.0).least(cost) <= least
    # the broken twin: a multiplier that counts twice in the means and once in the price
    assert certificate.bound(cost, multipliers) + float(multipliers.sum()) / 2 > least


def test_the_bound_stands_where_no_order_is_active() -> None:
    steep = PiecewiseWeights(steps=(0, 1), logs=(Fraction(0), Fraction(-1, 8)))
    assert Certificate(steep, [(1, 50.0)], 4.0).least(Cost(power=2)) == 0
