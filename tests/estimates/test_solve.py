"""Estimates beside dense least squares: values, variances, contrasts, on any levels, filters and fixed totals."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.linalg import null_space

from tests.support.estimates import Dense, level, matrix, nothing, observed, table
from udfs.estimates import tables as tables_module
from udfs.estimates.solve import Solver, reconcile
from udfs.estimates.tables import EstimateError, Observed, Sums

UNIT, TIGHT = 1e-6, 1e-7


def any_group(seed: int) -> list[Observed]:
    """Up to 5 tables over up to 3 axes: levels, filters, listed cells, repeated cells, fixed totals, known or not."""
    random = np.random.default_rng(seed)
    axes = []
    for n in map(int, random.integers(2, 7, size=random.integers(1, 4))):
        middle = level(n, int(random.integers(1, n + 1)), random)
        top = nothing(n) if middle.max() == 0 else level(middle.max() + 1, int(random.integers(1, 3)), random)[middle]
        some = np.where(random.random(n) < 0.6, np.arange(n), -1)
        some[some >= 0] = np.arange((some >= 0).sum())
        axes.append([np.arange(n), random.permutation(n), middle, top, nothing(n), some])
    count = int(random.integers(1, 6))
    tables = [table(f"t{i}", *(axis[random.integers(len(axis))] for axis in axes)) for i in range(count)]
    tables = [t for t in tables if all((axis >= 0).any() for axis in t.positions)] or [
        table("t", *(a[0] for a in axes))
    ]
    variances = [random.choice([1.0, 9.0]) if random.random() < 0.5 else random.gamma(2, 20, t.widths) for t in tables]
    if seed % 3 == 0:
        variances[int(random.integers(len(tables)))] = 0.0
        variances[int(random.integers(len(tables)))] = 0.0
    truth = np.round(random.gamma(1, 100, size=[len(axis[0]) for axis in axes]))
    return observed(tables, truth, variances, random)


@given(st.integers(0, 2**31))
@example(60898130)  # base cells that coarse tables alone see, beside cells of finer ones
def test_any_group_agrees_with_dense_least_squares(seed: int) -> None:
    tables = any_group(seed)
    estimates, dense = reconcile(tables, unit=UNIT, tolerance=TIGHT), Dense(tables)
    for one in tables:
        assert np.allclose(estimates.table(one.name), dense.table(one), rtol=1e-9, atol=20 * UNIT)
        bound, true = estimates.variances(one.name), dense.variances(one)
        assert (bound >= true * (1 - 1e-9) - 1e-9).all()
        if estimates.exact:
            assert np.allclose(bound, true, rtol=1e-9, atol=1e-9)
    shape = [len(axis) for axis in tables[0].positions]
    one, other = (matrix(tables[i])[0].reshape(shape) for i in (0, -1))
    contrast = estimates.contrast(one + 2 * other)
    weights = (one + 2 * other).ravel()
    assert contrast.value == pytest.approx(weights @ dense.base, rel=1e-9, abs=1e-4)
    assert contrast.variance == pytest.approx(weights @ dense.covariances @ weights, rel=1e-6, abs=1e-7)
    expected = weights @ dense.covariances @ other.ravel()
    assert estimates.covariance(contrast, other) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@given(st.integers(0, 2**31))
def test_tables_add_up_to_the_unit_and_fixed_totals_stand(seed: int) -> None:
    tables = any_group(seed)
    estimates = reconcile(tables, unit=0.001)
    assert estimates.base.size < 1000
    per = round(1 / estimates.unit)
    assert (np.rint(estimates.base * per) / per == estimates.base).all()
    for one in tables:
        cells = estimates.table(one.name)
        sums = matrix(estimates._solver.group.on_base(one)) @ np.rint(estimates.base.ravel() * per)
        assert (cells.ravel() == sums / per).all()
        if (one.variance == 0).all():
            assert np.array_equal(cells[cells != 0], one.values[cells != 0])
    assert estimates.rounding <= 0.001


@given(st.integers(0, 2**31))
@settings(max_examples=15)
def test_true_totals_stay_and_estimates_do_not_change_again(seed: int) -> None:
    """Estimates are linear in the values, so that A·x going in as A·x coming out makes them unbiased."""
    tables = any_group(seed)
    estimates = reconcile(tables, unit=UNIT, tolerance=TIGHT)
    again = reconcile([replace(t, values=estimates.table(t.name)) for t in tables], unit=UNIT, tolerance=TIGHT)
    for one in tables:
        assert np.allclose(again.table(one.name), estimates.table(one.name), rtol=0, atol=10 * UNIT)


def nested(random: np.random.Generator) -> list[Observed]:
    counties, states = np.arange(12), level(12, 4, random)
    tables = [table("county", counties), table("state", states), table("nation", nothing(12))]
    return observed(tables, random.gamma(1, 100, size=12), [4.0, 9.0, 1.0], random)


@pytest.mark.parametrize("broken", ["weights for variances", "children twice"])
def test_the_comparison_rejects_broken_solvers(broken: str) -> None:
    tables = nested(np.random.default_rng(1))
    dense = Dense(tables)
    twins = {
        "weights for variances": [replace(t, variance=1 / t.variance) for t in tables],
        "children twice": [tables[0], *tables],
    }
    estimates = reconcile(twins[broken], unit=UNIT)
    assert estimates.exact
    assert not np.allclose(estimates.table("state"), dense.table(tables[1]), rtol=1e-3, atol=1e-3)


def test_nested_tables_take_two_passes_and_crossing_ones_steps() -> None:
    random = np.random.default_rng(2)
    tables = nested(random)
    estimates = reconcile(tables, unit=UNIT)
    assert (estimates.exact, estimates.iterations, estimates.residual) == (True, 0, 0.0)
    cross = table("size", np.arange(12) % 3)
    crossing = [*tables, *observed([cross], random.gamma(1, 100, size=12), [2.0], random)]
    estimates = reconcile(crossing, unit=UNIT)
    assert not estimates.exact
    assert 0 < estimates.iterations < 20
    assert 0 < estimates.residual <= 1e-4


def test_hay_and_others_two_passes() -> None:
    """Equal variances on a binary tree: Hay, Rastogi, Miklau and Suciu (2010), section 4.1, by its own recursions."""
    random = np.random.default_rng(3)
    height, leaves = 4, 8
    values = [random.normal(100, 30, size=2**depth) for depth in range(height)]
    z = [values[-1]]
    for depth in range(height - 2, -1, -1):
        high = 2 ** (height - depth)  # a leaf has height 1 in the paper, and 2^l leaves under it stand as 2^l
        children = z[0].reshape(-1, 2).sum(axis=1)
        share = (high / 2) / (high - 1)
        z.insert(0, share * values[depth] + (1 - share) * children)
    final = [z[0]]
    for depth in range(1, height):
        parents = np.repeat(final[-1] - z[depth].reshape(-1, 2).sum(axis=1), 2)
        final.append(z[depth] + parents / 2)
    tables = [
        replace(table(f"depth{depth}", np.arange(leaves) >> (height - 1 - depth)), values=v, variance=np.array(7.0))
        for depth, v in enumerate(values)
    ]
    estimates = reconcile(tables, unit=UNIT)
    assert estimates.exact
    for depth in range(height):
        assert np.allclose(estimates.table(f"depth{depth}"), final[depth], rtol=0, atol=10 * UNIT)


OPENDP = {  # OpenDP 0.16.0, make_consistent_b_ary_tree (contrib): branches, a tree from the root down, its leaves then
    "binary": (
        2,
        [103, 48, 60, 22, 21, 35, 31, 9, 14, 8, 16, 19, 11, 18, 12],
        [8.847619047619, 13.847619047619, 7.180952380952, 15.180952380952, 19.752380952381, 11.752380952381,
         17.419047619048, 11.419047619048],
    ),
    "ternary, with negative values": (
        3,
        [-7, 4, -9, 2, 1, 3, -2, 5, -6, 0, 4, -1, 2],
        [1.019230769231, 3.019230769231, -1.980769230769, 2.519230769231, -8.480769230769, -2.480769230769,
         2.769230769231, -2.230769230769, 0.769230769231],
    ),
}  # fmt: skip


@pytest.mark.parametrize("tree", OPENDP)
def test_the_leaves_are_those_of_opendp(tree: str) -> None:
    branches, values, leaves = OPENDP[tree]
    tables, start, width = [], 0, 1
    while start < len(values):
        level_values = np.array(values[start : start + width], dtype=np.float64)
        positions = np.arange(len(leaves)) * width // len(leaves)
        tables.append(replace(table(f"{width}", positions), values=level_values, variance=np.array(2.0)))
        start, width = start + width, width * branches
    assert np.allclose(reconcile(tables, unit=UNIT).table(f"{len(leaves)}"), leaves, rtol=0, atol=2 * UNIT)


def programme(random: np.random.Generator) -> list[Observed]:
    """Crossing levels of very unequal sizes: 60 industries, 200 counties, 8 sizes."""
    industries, sectors = np.arange(60), (np.linspace(0, 1, 60, endpoint=False) ** 2 * 7).astype(int)
    states = (np.linspace(0, 1, 200, endpoint=False) ** 3 * 20).astype(int)
    axes = [(industries, sectors, nothing(60)), (np.arange(200), states, nothing(200)), (np.arange(8), nothing(8))]
    levels = [(i, j, k) for i in range(3) for j in range(3) for k in range(2) if (i + j + k) % 2 == 0 or i == 0]
    tables = [table(str(one), *(axis[number] for axis, number in zip(axes, one, strict=True))) for one in levels]
    truth = random.gamma(0.3, 30, size=(60, 200, 8))
    return [
        replace(t, values=(sums := Sums(t.positions, t.widths).up(truth)) + random.normal(0, 10, sums.shape),
                variance=np.array(100.0))
        for t in tables
    ]  # fmt: skip


@pytest.mark.parametrize("broken", [False, True])
def test_steps_are_few_however_unequal_cells_are(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the chain alone as preconditioner they are many times as many."""
    if broken:
        monkeypatch.setattr(Solver, "_preconditioned", lambda self, right: self.chain.solve(right))
    estimates = reconcile(programme(np.random.default_rng(9)), unit=0.001)
    assert (estimates.iterations > 40) == broken


def test_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "SLAB", 2**12)
    bases = []
    for threads in (1, 3):
        monkeypatch.setattr(tables_module, "THREADS", threads)
        bases.append(reconcile(programme(np.random.default_rng(10)), unit=0.001).base)
    assert np.array_equal(*bases)


def test_tables_to_be_estimated_only() -> None:
    random = np.random.default_rng(4)
    tables = nested(random)
    pairs = table("pairs", np.arange(12) // 2)
    estimates = reconcile([*tables, pairs], unit=UNIT)
    assert np.array_equal(estimates.table("pairs"), np.rint(estimates.table("county") * 1e6).reshape(6, 2).sum(1) / 1e6)
    true = Dense(tables).variances(pairs)
    assert (estimates.variances("pairs") >= true * (1 - 1e-12)).all()
    estimates = reconcile(
        [*tables[1:], tables[0].__class__("finer", *(tables[0].positions, (12,)), None, None)], unit=UNIT
    )
    with pytest.raises(EstimateError, match="finer: no weighted table"):
        estimates.table("finer")
    with pytest.raises(EstimateError, match="no weighted tables"):
        estimates.contrast(np.eye(12)[0])
    assert estimates.contrast(np.ones(12)).value == estimates.table("nation")[0]


def test_a_sum_that_crossing_tables_do_not_determine() -> None:
    random = np.random.default_rng(5)
    rows, columns = table("rows", np.arange(3), nothing(4)), table("columns", nothing(3), np.arange(4))
    tables = observed([rows, columns], np.full((3, 4), 50.0), [4.0, 4.0], random)
    estimates = reconcile([*tables, table("both", np.arange(3), np.arange(4))], unit=UNIT)
    with pytest.raises(EstimateError, match="both: no weighted table"):
        estimates.table("both")
    with pytest.raises(EstimateError, match="may not determine"):
        estimates.contrast(np.eye(12)[0].reshape(3, 4))


@given(st.integers(0, 2**31))
@example(2)  # it was answered with a variance of 10¹⁴
def test_sums_are_told_where_tables_determine_them_and_there_alone(seed: int) -> None:
    tables, random = any_group(seed), np.random.default_rng(seed)
    estimates, shape = reconcile(tables, unit=UNIT), [len(axis) for axis in tables[0].positions]
    unknown = null_space(np.vstack([matrix(each) for each in tables]), rcond=1e-10)
    for _ in range(4):
        contrast = (random.random(shape) < random.choice([0.1, 0.5, 1.0])).astype(float)
        determined = np.abs(unknown.T @ contrast.ravel()).max(initial=0.0) < 1e-8
        with nullcontext() if determined else pytest.raises(EstimateError, match=r"no weighted tables|determine"):
            estimates.contrast(contrast)


@given(st.integers(0, 2**31))
@example(33)  # cells of crossing tables that fixed totals alone make up
@example(139)
def test_every_cell_is_told_beside_fixed_totals(seed: int) -> None:
    random = np.random.default_rng(seed)
    tables = [replace(each, variance=np.maximum(each.variance, 1.0)) for each in any_group(seed)]
    shape = [len(axis) for axis in tables[0].positions]
    truth = np.round(random.gamma(1, 100, size=shape)).ravel()
    held = random.permutation(len(tables))[:2]
    for i in held:
        values = (matrix(tables[i]) @ truth).reshape(tables[i].widths)
        known = random.random(values.shape) < random.choice([0.4, 1.0])
        values = np.where(known, values, tables[i].values)
        tables[i] = replace(tables[i], values=values, variance=np.where(known, 0.0, tables[i].variance))
    estimates, dense = reconcile(tables, unit=1e-3), Dense(tables)
    for one in tables:
        for inside, variance in zip(matrix(one), dense.variances(one).ravel(), strict=True):
            if inside.any():
                found = estimates.contrast(inside.reshape(shape)).variance
                assert found == pytest.approx(variance, rel=1e-3, abs=1e-6)


def fix(one: Observed, values: np.ndarray) -> Observed:
    return replace(one, values=np.asarray(values, dtype=np.float64).reshape(one.widths), variance=np.array(0.0))


def test_crossing_fixed_totals_are_met_exactly_where_nothing_else_knows() -> None:
    """A third of a unit in every cell: rounding alone would miss rows and columns."""
    random = np.random.default_rng(6)
    cells = table("cells", np.arange(6), np.arange(6), np.arange(2))
    tables = observed([cells], random.gamma(1, 5, size=(6, 6, 2)), [5.0], random)
    rows = fix(table("rows", np.arange(6), nothing(6), nothing(2)), np.full(6, 40.001))
    columns = fix(table("columns", nothing(6), np.arange(6), nothing(2)), [40.001] * 5 + [40.001])
    estimates = reconcile([*tables, rows, columns], unit=0.001)
    assert np.array_equal(estimates.table("rows"), rows.values)
    assert np.array_equal(estimates.table("columns"), columns.values)
    assert np.allclose(estimates.table("cells"), Dense([*tables, rows, columns]).table(cells), rtol=0, atol=0.005)


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ([("states", [10, 20, 30, 40]), ("states again", [10, 20, 30, 41])], "fixed at different values"),
        ([("states", [10, 20, 30, 40]), ("nation", [101])], "states do not add up to nation"),
        ([("states", [10, 20, 30, 40]), ("kinds", [50, 51])], "do not have a common solution"),
        ([("states", [10, 20, 30, 40.0005]), ("kinds", [50, 50.0005])], "no multiple of 0.001"),
    ],
)
def test_fixed_totals_that_contradict(fixed: list, message: str) -> None:
    shapes = {"states": np.arange(12) // 3, "nation": nothing(12), "kinds": np.arange(12) % 2}
    tables = nested(np.random.default_rng(7))[:1]
    held = [fix(table(name, shapes[name.split()[0]]), np.array(values)) for name, values in fixed]
    with pytest.raises(EstimateError, match=message):
        reconcile([*tables, *held], unit=0.001)


def test_a_fixed_total_off_the_domain() -> None:
    tables = nested(np.random.default_rng(8))
    held = Observed(
        "states", (np.arange(12, dtype=np.int32) // 4,), (4,), np.array([1.0, 2.0, 3.0, 4.0]), np.array(0.0)
    )
    with pytest.raises(EstimateError, match="states: a fixed total lies in a cell"):
        reconcile([*tables, held], unit=0.001)


def test_groups_without_anything_to_weigh() -> None:
    with pytest.raises(EstimateError, match="nothing to reconcile"):
        reconcile([table("t", np.arange(3))], unit=0.001)
    with pytest.raises(EstimateError, match="nothing to reconcile"):
        reconcile([], unit=0.001)


def test_large_totals_take_coarser_units() -> None:
    one = replace(table("t", np.arange(2)), values=np.array([3e14, 4e14]), variance=np.array(1.0))
    estimates = reconcile([one], unit=0.001)
    assert estimates.unit == 0.1
    assert np.array_equal(estimates.table("t"), one.values)


def test_variances_of_the_base_may_differ_along_one_axis_where_tables_cross() -> None:
    """As those of a table whose noise is one for each class of size."""
    random = np.random.default_rng(8)
    codes, states, sizes = np.arange(6), np.repeat(np.arange(2), 3), np.arange(4)
    tables = [table("cells", codes, sizes), table("states", states, nothing(4)), table("sizes", nothing(6), sizes // 2)]
    found = observed(tables, np.full((6, 4), 9.0), [np.array([[16.0, 16.0, 4.0, 100.0]]), 4.0, 9.0], random)
    estimates, dense = reconcile(found, unit=1e-9, tolerance=1e-8), Dense(found)
    for one in found:
        np.testing.assert_allclose(estimates.table(one.name), dense.table(one), atol=1e-6)
