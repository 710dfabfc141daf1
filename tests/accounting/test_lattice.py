"""Errors of tables that add up, from the sizes of levels: against least squares over all cells."""

from itertools import product
from math import prod

import numpy as np
import pytest

from pipeline.accounting.lattice import Lattice
from udfs.numbers.arrays import Floats, Int64s

Key = list[Int64s]  # by level, coarse to fine: the code of each finest code


def even(*sizes: int) -> Key:
    return [np.arange(sizes[-1]) * size // sizes[-1] for size in sizes]


def uneven(random: np.random.Generator, *sizes: int) -> Key:
    levels = [np.arange(sizes[-1])]
    for size in sizes[-2::-1]:
        parent = np.append(np.arange(size), random.integers(0, size, len(np.unique(levels[0])) - size))
        levels.insert(0, random.permutation(parent)[levels[0]])
    return levels


def lattice_of(keys: list[Key], tables: list[tuple[int, ...]]) -> Lattice:
    combinations = sorted(product(*(range(len(key)) for key in keys)), key=lambda c: (_cells(keys, c), c))
    return Lattice(
        cells=np.array([_cells(keys, each) for each in combinations], dtype=np.float64),
        coarser=np.array([[np.all(np.less_equal(a, b)) for b in combinations] for a in combinations]),
        tables=[combinations.index(table) for table in tables],
        members=range(len(tables)),
    )


def _cells(keys: list[Key], combination: tuple[int, ...]) -> int:
    return prod(len(np.unique(key[level])) for key, level in zip(keys, combination, strict=True))


def least_squares(keys: list[Key], tables: list[tuple[int, ...]], variances: Floats) -> Floats:
    """Return the mean diagonal of A·(Σ AᵀA/V)⁻¹·Aᵀ of each table."""
    sums = []
    for table in tables:
        matrix = np.ones((1, 1))
        for key, level in zip(keys, table, strict=True):
            matrix = np.kron(matrix, np.unique(key[level])[:, None] == key[level])
        sums.append(matrix)
    normal = sum(each.T @ each / variance for each, variance in zip(sums, variances, strict=True))
    inverse = np.linalg.pinv(normal)
    return np.array([np.einsum("ij,jk,ik->i", each, inverse, each).mean() for each in sums])


def cases(count: int, seed: int) -> list[tuple[list[tuple[int, ...]], Floats]]:
    """Return tables of two keys, of three and four levels, and their variances; the finest table is always there."""
    random = np.random.default_rng(seed)
    levels = list(product(range(3), range(4)))
    chosen = [[levels[i] for i in range(11) if random.random() < 0.6] + [levels[11]] for _ in range(count)]
    return [(tables, np.exp(random.normal(0, 1.5, len(tables)))) for tables in chosen]


@pytest.mark.parametrize("case", range(6))
def test_crossing_levels_of_equal_parts_are_those_of_least_squares(case: int) -> None:
    keys = [even(1, 3, 6), even(1, 2, 4, 12)]
    tables, variances = cases(6, seed=1)[case]
    exact = least_squares(keys, tables, variances)
    assert lattice_of(keys, tables).reconciled(variances) == pytest.approx(exact, rel=1e-9)
    assert (exact <= variances * (1 + 1e-9)).all()


def test_levels_of_uneven_parts_are_near_least_squares() -> None:
    """Standard errors: half are off by less than 2 %, nineteen of twenty by less than 10 %, none too small by 5 %."""
    random = np.random.default_rng(2)
    ratios = []
    for tables, variances in cases(40, seed=3):
        keys = [uneven(random, 1, 4, 12), uneven(random, 1, 3, 7, 16)]
        ratios.append(lattice_of(keys, tables).reconciled(variances) / least_squares(keys, tables, variances))
    off = np.sqrt(np.concatenate(ratios)) - 1
    assert np.quantile(np.abs(off), 0.5) < 0.02
    assert np.quantile(np.abs(off), 0.95) < 0.1
    assert off.min() > -0.05


def test_pulls_are_the_slopes_of_the_weighted_sum() -> None:
    keys = [even(1, 3, 6), even(1, 2, 4, 12)]
    for tables, variances in cases(5, seed=4):
        lattice, weights = lattice_of(keys, tables), np.arange(1.0, len(tables) + 1)
        here = weights @ lattice.reconciled(variances)
        steps = variances * (1 + 1e-6 * np.eye(len(tables)))
        slopes = [(weights @ lattice.reconciled(step) - here) / 1e-6 for step in steps]
        assert lattice.pulls(variances, weights) == pytest.approx(np.array(slopes), rel=1e-4)
