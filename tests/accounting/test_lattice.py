"""Errors of tables that add up, from the sizes of levels: against least squares over all cells."""

from itertools import product
from math import prod

import numpy as np
import pytest

from pipeline.accounting.level_errors import Lattice, LatticeTable
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
        tables=[LatticeTable.of(combinations.index(table), {i: 1.0}) for i, table in enumerate(tables)],
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
    return np.array([((each @ inverse) * each).sum(axis=1).mean() for each in sums])


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


# Noise of its own for each class: a third key, whose codes each table has as they are, or adds up.


def classes_of(keys: list[Key], tables: list[tuple[int, ...]], split: list[bool], classes: int) -> Lattice:
    """Return the lattice of tables of two keys and, where `split` says so, by class; members by table, then class."""
    of_one = lattice_of(keys, tables)
    members = iter(range(len(tables) * classes))
    rows = [
        LatticeTable(
            table.combination,
            np.eye(classes),
            np.ones(classes) / classes,
            {next(members): unit for unit in np.eye(classes)},
        )
        if parts
        else LatticeTable(table.combination, np.ones((1, classes)), np.ones(1), {next(members): np.ones(1)})
        for table, parts in zip(of_one.tables, split, strict=True)
    ]
    return Lattice(of_one.cells, of_one.coarser, rows)


def least_squares_of_classes(
    keys: list[Key], tables: list[tuple[int, ...]], split: list[bool], classes: int, variances: Floats
) -> Floats:
    """Return the mean diagonal of A·(Σ Aᵀ·diag(1/V)·A)⁻¹·Aᵀ of each part."""
    sums, left = [], iter(variances)
    for table, parts in zip(tables, split, strict=True):
        of_keys = np.ones((1, 1))
        for key, level in zip(keys, table, strict=True):
            of_keys = np.kron(of_keys, np.unique(key[level])[:, None] == key[level])
        sums += [
            (np.kron(each, of_keys), next(left))
            for each in (np.eye(classes) if parts else np.ones((1, classes)))[:, None]
        ]
    inverse = np.linalg.pinv(sum(each.T @ each / variance for each, variance in sums), rcond=1e-13, hermitian=True)
    return np.array([((each @ inverse) * each).sum(axis=1).mean() for each, _ in sums])


def cases_of_classes(count: int, seed: int) -> list[tuple[list[tuple[int, ...]], list[bool], Floats]]:
    """Return tables, of which about half are by three classes, whose standard errors differ up to a hundredfold."""
    random = np.random.default_rng(seed)
    found = []
    for tables, _ in cases(count, seed):
        split = [bool(random.random() < 0.5) for _ in tables[1:]] + [True]
        size = sum(3 if parts else 1 for parts in split)
        found.append((tables, split, np.exp(random.normal(0, 2.5, size))))
    return found


@pytest.mark.parametrize("case", range(5))
def test_classes_with_noise_of_their_own_are_those_of_least_squares(case: int) -> None:
    keys = [even(1, 2, 4), even(1, 2, 4, 8)]
    tables, split, variances = cases_of_classes(5, seed=6)[case]
    lattice = classes_of(keys, tables, split, 3)
    exact = least_squares_of_classes(keys, tables, split, 3, variances)
    assert lattice.reconciled_members(variances) == pytest.approx(exact, rel=1e-6)
    assert [len(each) for each in lattice.members] == [3 if parts else 1 for parts in split]
    means = [exact[i : i + n].mean() for i, n in _spans(split)]
    assert lattice.reconciled(variances) == pytest.approx(np.array(means), rel=1e-6)


def _spans(split: list[bool]) -> list[tuple[int, int]]:
    counts = [3 if parts else 1 for parts in split]
    return [(sum(counts[:t]), n) for t, n in enumerate(counts)]


def test_a_mean_of_the_classes_variances_is_no_substitute() -> None:
    """On uneven keys 19 of 20 standard errors are within 10 %; with either mean in their place most are not."""
    random = np.random.default_rng(7)
    off: dict[str, list[Floats]] = {"classes": [], "arithmetic": [], "harmonic": []}
    for tables, split, variances in cases_of_classes(25, seed=8):
        keys = [uneven(random, 1, 3, 6), uneven(random, 1, 2, 5, 9)]
        lattice = classes_of(keys, tables, split, 3)
        exact = least_squares_of_classes(keys, tables, split, 3, variances)
        off["classes"].append(lattice.reconciled_members(variances) / exact)
        groups = [variances[i : i + n] for i, n in _spans(split)]
        for name, mean in (("arithmetic", np.mean), ("harmonic", lambda each: 1 / np.mean(1 / each))):
            of_tables = np.concatenate([np.full(len(each), mean(each)) for each in groups])
            off[name].append(lattice.reconciled_members(of_tables) / exact)
    near = {name: float(np.mean(np.abs(np.sqrt(np.concatenate(each)) - 1) < 0.1)) for name, each in off.items()}
    assert near["classes"] > 0.9
    assert max(near["arithmetic"], near["harmonic"]) < 0.5


def test_a_table_that_is_not_measured_has_the_errors_of_what_tells_it() -> None:
    keys = [even(1, 3, 6), even(1, 2, 4, 12)]
    tables = [(2, 3), (0, 2), (1, 1), (2, 0)]
    variances = np.array([3.0, 0.5, 2.0])
    lattice = lattice_of(keys, tables)
    derived = Lattice(
        lattice.cells, lattice.coarser, [*lattice.tables[:3], LatticeTable.of(lattice.tables[3].combination, {})]
    )
    assert derived.members == [{0: 1.0}, {1: 1.0}, {2: 1.0}, {}]
    exact = least_squares(keys, tables, np.append(variances, 1e15))
    assert derived.reconciled(variances) == pytest.approx(exact, rel=1e-6)
    nothing = derived.reconciled(np.array([np.inf, 0.5, 2.0]))
    assert np.isinf(nothing).tolist() == [True, False, False, True]
    assert nothing[1] < 0.5
    by_class = classes_of(keys, [(0, 1), (1, 1)], [True, False], 3)
    own = np.array([1.0, np.inf, 1.0, 4.0])
    assert np.isinf(by_class.reconciled_members(own)).tolist() == [False, False, False, False]  # by the second's sums
    own[2] = np.inf
    assert np.isinf(by_class.reconciled_members(own)).tolist() == [False, True, True, False]


def test_pulls_of_classes_are_the_slopes_of_the_weighted_sum() -> None:
    keys = [even(1, 2, 4), even(1, 2, 4, 8)]
    for tables, split, variances in cases_of_classes(4, seed=9):
        lattice = classes_of(keys, tables, split, 3)
        weights, of_members = np.arange(1.0, len(tables) + 1), np.arange(1.0, len(variances) + 1)

        near = [(variances * np.exp(step), variances * np.exp(-step)) for step in 1e-5 * np.eye(len(variances))]
        totals = [
            [weights @ lattice.reconciled(each) + of_members @ lattice.reconciled_members(each) for each in both]
            for both in near
        ]
        slopes = [(above - below) / 2e-5 for above, below in totals]
        assert lattice.pulls(variances, weights, of_members) == pytest.approx(np.array(slopes), rel=1e-5)


def test_slopes_are_the_same_without_sums_of_one_term() -> None:
    """Each policy's cells are one row here: the short way gives the very numbers of the sums over rows."""
    keys = [even(1, 3, 6), even(1, 2, 4, 12)]
    for tables, split, variances in cases_of_classes(5, seed=9):
        lattice = classes_of(keys, tables, split, 3)
        short = lattice.slopes(variances)
        assert lattice._rows.own is not None
        vars(lattice._rows)["own"] = None
        for one, other in zip(short, lattice.slopes(variances), strict=True):
            assert np.array_equal(one, other)
        assert short[0] == pytest.approx(lattice.reconciled_members(variances), rel=1e-9)


def test_what_nothing_tells_is_known_without_the_errors() -> None:
    keys = [even(1, 3, 6), even(1, 2, 4, 12)]
    for tables, variances in cases(10, seed=11):
        lattice = lattice_of(keys, tables)
        for left in range(len(tables)):
            known = np.where(np.arange(len(tables)) == left, np.inf, variances)
            assert lattice.tells_all(known) == bool(np.isfinite(lattice.reconciled(known)).all())
        assert lattice.tells_all(variances)
        assert not lattice.tells_all(np.full(len(tables), np.inf))
