"""Vectors of the largest tables in place of the finest common cells: the same estimates, and bounds that hold."""

import shutil
import tracemalloc
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

import prdp
from benchmarks.worth import tables_of
from pipeline.plan.load import load_plan
from pipeline.publication.public_totals import Atoms
from pipeline.publication.released_tables import Group as ReleasedGroup
from pipeline.publication.released_tables import groups_of
from tests.estimates.test_solve import any_group
from tests.support.estimates import Dense, level, matrix, nothing, observed, table
from udfs.estimates import residuals as module
from udfs.estimates import rounding, solve
from udfs.estimates.cliques import Cliques, TooLarge, _within
from udfs.estimates.fixed import FixedInCliques
from udfs.estimates.group import Group
from udfs.estimates.residuals import Residuals
from udfs.estimates.rounding import above_zero, raked
from udfs.estimates.solve import CliqueSolver, Estimates
from udfs.estimates.tables import EstimateError, Observed, Sums, common
from udfs.estimates.variances import Variances

UNIT, CLOSE, MOST = 1e-7, 1e-4, 10**6


def programme(seed: int) -> list[Observed]:
    """Up to 7 tables of industry × place (counties, states, areas across states) × form × class × ZIP code.

    Some leave places out, have parts with noise of their own, or hang together in a ring; no table has all keys.
    """
    random = np.random.default_rng(seed)
    industry, sector = np.arange(5), level(5, 2, random)
    county, state = np.arange(6), level(6, 2, random)
    area = random.permutation([0, 0, 1, 1, 2, -1])
    ways = [
        [(industry, sector, nothing(5)), (county, state, area, nothing(6))],
        [(nothing(2), np.arange(2)), (nothing(3), np.arange(3)), (nothing(4), np.arange(4))],
    ]
    tables = [
        table("state", industry, state, np.arange(2), np.arange(3), nothing(4)),
        table("county", (industry, sector)[seed % 2], county, nothing(2), np.arange(3), nothing(4)),
        table("zip", sector, nothing(6), nothing(2), (nothing(3), np.arange(3))[seed % 2], np.arange(4)),
        table("area", industry, area, nothing(2), nothing(3), nothing(4)),
    ]
    for number in range(int(random.integers(0, 4))):
        axes = [each[random.integers(len(each))] for way in ways for each in way]
        axes[int(random.integers(2, 5))] = nothing(len(axes[int(random.integers(2, 5))]))
        axes[2:] = [axis if len(axis) == n else nothing(n) for axis, n in zip(axes[2:], (2, 3, 4), strict=True)]
        tables.append(table(f"t{number}", *axes))
    variances: list[np.ndarray | float] = [float(random.choice([1.0, 4.0, 25.0])) for _ in tables]
    variances[0] = random.choice([1.0, 9.0, 400.0], size=(1, 1, 1, 3, 1))
    return observed(tables, np.round(random.gamma(1, 40, size=(5, 6, 2, 3, 4))), variances, random)


def by_cliques(tables: list[Observed], tolerance: float = CLOSE) -> Estimates:
    """The estimates as they are made where the base is too large: with vectors of cliques."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(solve, "solver_of", lambda group, *rest: CliqueSolver(group, *rest[:2], most=rest[2]))
        return solve.reconcile(tables, unit=UNIT, tolerance=tolerance)


def furthest(tables: list[Observed], estimates: Estimates, dense: Dense | None = None) -> float:
    """The largest difference from dense least squares, in standard errors; infinite where a sure total is not met."""
    dense, most = dense or Dense(tables), 0.0
    for one in tables:
        off, variance = np.abs(estimates.table(one.name) - dense.table(one)), dense.variances(one)
        sure = variance <= 1e-9 * max(1.0, float(variance.max()))
        ends = np.where(sure, np.where(off > 10 * UNIT, np.inf, 0.0), off / np.sqrt(np.where(sure, 1.0, variance)))
        most = max(most, float(ends.max()))
    return most


@given(st.integers(0, 2**31))
@settings(max_examples=12)
def test_programmes_agree_with_dense_least_squares(seed: int) -> None:
    tables = programme(seed)
    estimates, dense = by_cliques(tables), Dense(tables)
    assert len(estimates._solver.space.cliques) > 1
    assert furthest(tables, estimates, dense) < 1.1 * CLOSE
    for one in tables:
        assert (estimates.variances(one.name) >= dense.variances(one) * (1 - 1e-9)).all()
    picked = (np.arange(5) < 3, np.arange(6) >= 0, *(np.ones(n, dtype=bool) for n in (2, 3, 4)))
    contrast = estimates.contrast(tuple(each.astype(float) for each in picked))
    weights = np.einsum("a,b,c,d,e->abcde", *map(np.float64, picked)).ravel()
    true = weights @ dense.covariances @ weights
    assert contrast.variance == pytest.approx(true, rel=1e-6)
    assert contrast.value == pytest.approx(weights @ dense.base, abs=2 * CLOSE * np.sqrt(true))


@given(st.integers(0, 2**31))
def test_any_tables_agree_with_dense_least_squares(seed: int) -> None:
    """Filters, listed and repeated cells, fixed totals: whatever the solver of enumerated cells is tested with."""
    tables = any_group(seed)
    assert furthest(tables, by_cliques(tables, 1e-6)) < CLOSE


def test_the_comparison_rejects_cliques_that_do_not_hear_of_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = programme(1)
    assert furthest(tables, by_cliques(tables)) < 1.1 * CLOSE
    monkeypatch.setattr(CliqueSolver, "estimate", _each_by_itself)
    assert furthest(tables, by_cliques(tables)) > 0.1


def _each_by_itself(self: CliqueSolver) -> tuple[np.ndarray, float]:
    out = self.cliques.zeros()
    for one, view in zip(self.cliques.cliques, self.cliques.of(out), strict=True):
        view[...] = solve.Solver(one.group, CLOSE, UNIT).estimate()[0]
    return out, 0.0


@given(st.integers(0, 2**31))
@settings(max_examples=10)
def test_every_sum_that_two_tables_tell_is_the_same_to_the_last_unit(seed: int) -> None:
    tables = programme(seed)
    estimates = by_cliques(tables)
    shown = estimates.display()
    per = round(1 / estimates.unit)
    assert min(cells.min() for cells in shown.values()) >= 0
    for one, other in combinations(tables, 2):
        if both := common(one, other):
            for made in (lambda name: np.rint(estimates.table(name) * per), lambda name: shown[name].astype(float)):
                first, second = (Sums(each.positions, each.widths).up(made(each.name)) for each in both)
                assert np.array_equal(first, second)


def test_common_cells_are_what_both_tables_make_up() -> None:
    one = table("one", [0, 0, 1, 1, 2, 2, -1], [0, 1])
    other = table("other", [0, 1, 1, 0, 2, 3, 4], [0, 0])
    both = common(one, other)
    assert both is not None
    assert [axis.tolist() for axis in both[0].positions] == [[0, 0, 1], [0, 0]]
    assert [axis.tolist() for axis in both[1].positions] == [[0, 0, 1, 1, -1], [0]]
    assert common(table("a", [0, -1]), table("b", [-1, 0])) is None


def left(tables: list[Observed], seed: int, leave_out: int = 0) -> tuple[float, float, float, bool]:
    """What some residual tells, rᵀN⁻¹r, by dense matrices; its bounds by cliques without some tables, and by the base;
    and whether tables tell every residual by themselves."""
    random, group = np.random.default_rng(seed), Group(tables)
    cliques = Cliques(group, MOST)
    right = sum(cliques.signs(random) for _ in range(3))
    spread = np.zeros(group.shape)
    for one, part in zip(cliques.cliques, cliques.of(right), strict=True):
        widths = tuple(int(axis.max()) + 1 for axis in one.levels)
        Sums(one.levels, widths).down(part, spread)
    dense = Dense([group.on_base(one) for one in tables])
    residuals, of_base = Residuals(cliques), Residuals(Cliques(group, MOST, enumerated=True))
    del group.known[:leave_out]
    true = float(spread.ravel() @ dense.covariances @ spread.ravel())
    return true, residuals.bound(right), of_base.bound(spread.ravel()), residuals.bounds


def test_the_bound_lies_above_what_is_left_and_close_to_it() -> None:
    """Also where two tables are replaced by a finer one whose cells no table tells, on the cliques and on the base."""
    every = [left(programme(seed), seed) for seed in range(8)]
    assert all(true * (1 - 1e-9) <= min(bounds) <= max(bounds) <= 2 * true for true, *bounds, _ in every)
    assert {alone for *_, alone in every} == {True, False}
    without = [left(programme(seed), seed, 1) for seed in range(8)]  # of what one table represents nothing
    assert any(bound < true for true, bound, *_ in without)


def test_tables_that_leave_codes_out_represent_only_what_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two tables, each of other codes, tell a residual together alone, there is no bound: it is infinite."""
    seeds = [seed for seed in range(1, 60) if seed % 3]
    every = [left(any_group(seed), seed) for seed in seeds]
    assert all(true * (1 - 1e-9) <= min(bounds) for true, *bounds, _ in every)
    assert np.mean([np.isfinite(bound) for _, bound, *_ in every]) > 0.8
    monkeypatch.setattr(Residuals, "_states", lambda *_: True)
    assert any(bound < true * (1 - 1e-3) for true, bound, *_ in (left(any_group(seed), seed) for seed in seeds))


def test_what_is_not_represented_at_once_is_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    merged = next(seed for seed in range(8) if not left(programme(seed), seed)[-1])
    assert np.isfinite(left(programme(merged), merged)[1])
    monkeypatch.setattr(module, "MOST_ROUNDS", 0)
    assert left(programme(merged), merged)[1] == np.inf


def hierarchy(random: np.random.Generator) -> list[Observed]:
    """Counties by industry, sector and in total, states and areas that cross them; tables that no release measured."""
    industry, sector = np.arange(8), np.repeat(np.arange(3), [1, 3, 4])
    county, state, area = np.arange(9), np.repeat(np.arange(3), 3), np.array([0, 0, 1, 1, 1, 2, 2, -1, -1])
    ways = [(industry, county, 9.0), (sector, county, 4.0), (nothing(8), county, 25.0), (industry, state, 4.0)]
    ways += [(nothing(8), area, 4.0), (industry, area, 400.0), (nothing(8), nothing(9), 100.0)]
    tables = [table(f"t{number}", way, place) for number, (way, place, _) in enumerate(ways)]
    made = observed(tables, np.full((8, 9), 50.0), [variance for *_, variance in ways], random)
    wanted = [(sector, area), (sector, state), (nothing(8), state), (sector, nothing(9)), (industry, nothing(9))]
    return [*made, *(table(f"d{number}", *axes) for number, axes in enumerate(wanted))]


def too_short(draws: int) -> tuple[float, float, float]:
    """Of 95 % intervals of the hierarchy: the least share of a table's that hold in draws of Gaussian noise, the least
    and the mean ratio of stated to true standard errors."""
    random = np.random.default_rng(2)
    tables = hierarchy(random)
    estimates, dense = solve.reconcile(tables, unit=UNIT), Dense(tables)
    errors = {one.name: np.sqrt(estimates.variances(one.name)) for one in tables}
    ratios = [errors[one.name] / np.sqrt(dense.variances(one)) for one in tables]
    held = {one.name: 0.0 for one in tables}
    for _ in range(draws):
        noise = {one.name: np.sqrt(one.variance) * random.normal(size=one.widths) for one in tables if one.variance}
        for name, off in estimates.errors(noise, held):
            held[name] += float((np.abs(off) <= 1.96 * errors[name]).mean()) / draws
    return min(held.values()), min(map(np.min, ratios)), float(np.mean([each.mean() for each in ratios]))


def test_stated_errors_are_near_the_true_ones_and_never_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 draws less than 0.91 hold with a probability of 1 in 100, of a table of one cell whose error is exact."""
    held, least, mean = too_short(200)
    assert least >= 1 - 1e-9
    assert mean < 1.2  # 1.26 with the least of finer tables, and nothing of the parts by themselves
    assert held > 0.91
    inside = Variances.inside
    monkeypatch.setattr(Variances, "inside", lambda self, known, without=(): inside(self, known))  # values enter twice
    assert too_short(10)[1] < 0.95


def test_vectors_are_those_of_the_largest_tables_and_rings_are_closed_by_a_finer_one() -> None:
    random = np.random.default_rng(0)
    cliques = Cliques(Group(programme(1)[:3]), MOST)
    assert sorted(one.group.size for one in cliques.cliques) == [24, 36, 60]
    a, b, c = np.arange(2), np.arange(3), np.arange(4)
    ring = [table("ab", a, b, nothing(4)), table("bc", nothing(2), b, c), table("ca", a, nothing(3), c)]
    tables = observed(ring, np.full((2, 3, 4), 7.0), [1.0, 1.0, 1.0], random)
    assert [one.group.size for one in Cliques(Group(tables), MOST).cliques] == [24]
    assert furthest(tables, by_cliques(tables)) < 1.1 * CLOSE
    with pytest.raises(TooLarge, match="tables bc, ca, ab: the finest of them have 26 cells"):
        Cliques(Group(tables), 23)


def test_three_crossing_levels_meet_in_a_finer_one() -> None:
    """Tables of three crossing levels may agree two by two and yet come from nothing: they are joined."""
    random = np.random.default_rng(3)
    levels = [np.array(one) for one in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0])]
    tables = [table(f"t{number}", np.arange(2), one) for number, one in enumerate(levels)]
    made = observed(tables, np.full((2, 4), 9.0), [1.0, 4.0, 9.0], random)
    assert furthest(made, by_cliques(made)) < 1.1 * CLOSE


def test_steps_are_few_where_areas_cross_states() -> None:
    random = np.random.default_rng(5)
    state, area = np.repeat(np.arange(8), 12), (np.arange(96) + 6) // 8
    where = [np.arange(96), state, area.astype(np.int32), nothing(96)]
    sector = np.repeat(np.arange(6), np.arange(1, 7))
    tables = [table(f"{i}-{j}", way, place, nothing(5)) for i, way in enumerate((np.arange(21), sector, nothing(21)))
              for j, place in enumerate(where)]  # fmt: skip
    tables.append(table("forms", np.arange(21), state, np.arange(5)))
    truth = np.zeros((21, 96, 5))
    variances = random.choice([1.0, 9.0, 100.0], size=len(tables))
    noisy = [
        Observed(one.name, one.positions, one.widths, np.sqrt(v) * random.normal(size=one.widths), np.asarray(v))
        for one, v in zip(tables, variances, strict=True)
    ]
    assert truth.size == 10_080
    estimates = by_cliques(noisy)
    assert estimates.size == 21 * 96 + 21 * 8 * 5
    assert 0 < estimates.iterations <= 25


def with_fixed_totals(seed: int) -> list[Observed]:
    """A programme beside the nation's industries, states and classes without noise, which cross; as may be some of all
    areas, of one class or of picked cells, or states that are not all known."""
    random, tables, no = np.random.default_rng(seed + 1), programme(seed), nothing
    extra = [
        table("industries", np.arange(5), no(6), no(2), no(3), no(4)),
        table("classes", no(5), no(6), no(2), np.arange(3), no(4)),
    ]
    extra.append(table("states", no(5), tables[0].positions[1], no(2), no(3), no(4)))
    variances: list[np.ndarray | float] = [*(one.variance for one in tables), 0.0, 0.0, 0.0]
    if seed % 4 == 0:
        variances[3] = 0.0
    elif seed % 4 == 1:
        variances[0] = np.array([0.0, 4.0, 9.0]).reshape(1, 1, 1, 3, 1)
    elif seed % 4 == 2:
        variances[1] = np.where(random.random(tables[1].widths) < 0.3, 0.0, 4.0)
    else:
        variances[-1] = np.where(np.arange(2) == 0, 0.0, np.inf).reshape(1, 2, 1, 1, 1)
    return observed([*tables, *extra], np.round(random.gamma(1, 40, size=(5, 6, 2, 3, 4))), variances, random)


def met(tables: list[Observed], estimates: Estimates) -> bool:
    """Whether all totals without noise stand, to the last unit."""
    fixed = {one.name: np.broadcast_to(one.variance == 0, one.widths) for one in tables}
    return all(np.array_equal(estimates.table(t.name)[fixed[t.name]], t.values[fixed[t.name]]) for t in tables)


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5])
def test_totals_without_noise_stand_and_the_others_are_the_best_beside_them(seed: int) -> None:
    tables = with_fixed_totals(seed)
    estimates, dense = by_cliques(tables), Dense(tables)
    assert len(estimates._solver.space.cliques) > 1
    assert furthest(tables, estimates, dense) < 1.1 * CLOSE
    assert met(tables, estimates)
    for one in tables:
        assert (estimates.variances(one.name) >= dense.variances(one) * (1 - 1e-7) - 1e-7).all()
    for industries in (np.arange(5) < 3, np.arange(5) >= 0):  # the second is known: all of all industries
        weights = tuple(each.astype(float) for each in (industries, *(np.ones(n) for n in (6, 2, 3, 4))))
        spread = np.einsum("a,b,c,d,e->abcde", *weights).ravel()
        assert estimates.contrast(weights).variance == pytest.approx(spread @ dense.covariances @ spread, abs=1e-6)


def test_the_bound_beside_totals_without_noise_is_one_and_the_checks_reject_broken_solvers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tables without noise represent what they can of a residual, and add nothing to the bound of it."""
    every = [left(with_fixed_totals(seed), seed) for seed in (0, 3, 4, 7)]
    assert all(true * (1 - 1e-9) <= min(bounds) <= max(bounds) < np.inf for true, *bounds, _ in every)
    assert np.median([bounds[0] / true for true, *bounds, _ in every]) < 2
    tables = with_fixed_totals(0)
    with monkeypatch.context() as patched:
        patched.setattr(solve, "settled", lambda *_: None)
        assert not met(tables, by_cliques(tables))  # each clique rounded by itself misses them by some units
    monkeypatch.setattr(FixedInCliques, "meet", lambda *_: None)
    assert furthest(tables, by_cliques(tables)) > 0.1  # from where no total is met steps lead elsewhere


def test_drawn_errors_are_those_of_dense_least_squares() -> None:
    tables = programme(1)[:3]
    estimates, dense, names = by_cliques(tables), Dense(tables), ["state", "county", "zip"]
    drawn = estimates.drawn(names, 60)
    for one in tables:
        true = dense.variances(one).mean()
        assert drawn[one.name].variance.mean() == pytest.approx(true, rel=0.2)
        assert (estimates.variances(one.name) <= one.variance * (1 + 1e-9)).all()
    noise = {one.name: np.ones(one.widths) for one in tables}
    shifted = [Observed(t.name, t.positions, t.widths, noise[t.name], t.variance) for t in tables]
    for name, errors in estimates.errors(noise, names):
        np.testing.assert_allclose(errors, Dense(shifted).table(estimates.tables[name]), atol=1e-3)


def test_what_no_clique_tells_is_refused() -> None:
    estimates = by_cliques(programme(1))
    one = tuple(np.eye(n)[0] for n in (5, 6, 2, 3, 4))
    with pytest.raises(EstimateError, match="no weighted tables make up its cells"):
        estimates.contrast(one)
    with pytest.raises(EstimateError, match="a factor for each axis"):
        estimates.contrast(np.ones((5, 6, 2, 3, 4)))
    assert matrix(estimates.tables["zip"]).shape == (8 * 3, 720)


def test_what_is_displayed_keeps_exact_sums_where_small_cells_are_noise_alone() -> None:
    """Noise whose sums along every axis are 0 lies on sparse cells: sums of two axes are known exactly."""
    random = np.random.default_rng(5)
    truth = np.round(random.gamma(0.3, 60, size=(8, 9, 6)))
    noise = random.normal(0, 80, size=truth.shape)
    for axis in range(3):
        noise -= noise.mean(axis=axis, keepdims=True)
    margins = []
    for axis in range(3):
        positions = tuple(np.zeros(n, np.int32) if a == axis else np.arange(n) for a, n in enumerate(truth.shape))
        margins.append(Sums(positions, tuple(1 if a == axis else n for a, n in enumerate(truth.shape))))
    values = raked(truth + noise, margins)
    assert values.min() > 0

    def off(values: np.ndarray) -> float:
        """The largest difference of a sum over two axes, as a share of it."""
        pairs = [(values.sum(axis=a), truth.sum(axis=a)) for a in ((0, 1), (0, 2), (1, 2))]
        return max(float((np.abs(one - other) / other).max()) for one, other in pairs)

    assert off(values) < 0.05
    clipped = np.maximum(truth + noise, 0)
    assert off(clipped * truth.sum() / clipped.sum()) > 0.2  # a broken twin: what is below 0 is taken from all others


def test_what_is_displayed_does_not_start_from_noise_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counties by industry are known, and industries by size; of all three noise, and a plant that stands out."""
    random = np.random.default_rng(11)
    truth = np.round(random.gamma(0.2, [30, 10, 4, 2, 1, 0.5], size=(20, 25, 6)))
    base = truth + random.normal(0, 1500, size=truth.shape)
    base[4, 7, 5] += (plant := 20_000 - base[4, 7, 5])
    truth[4, 7, 5] += plant
    for axis in (0, 2):
        base += (truth - base).mean(axis=axis, keepdims=True)
    margins = [Sums((np.arange(20), np.arange(25), nothing(6)), (20, 25, 1))]
    margins.append(Sums((nothing(20), np.arange(25), np.arange(6)), (1, 25, 6)))
    monkeypatch.setattr(rounding, "RAKED", 12)

    def off() -> float:
        values = raked(base, margins)
        assert values[4, 7, 5] > 15_000
        return float(np.abs(values.sum(axis=2) - truth.sum(axis=2)).max())

    assert off() < 3
    monkeypatch.setattr(rounding, "NOISE", 1.0)
    assert off() > 30  # a broken twin: half of the cells start from nothing, wherever noise is below 0


def test_what_lies_below_zero_is_taken_from_all_alike() -> None:
    """The nearest sums of at least 0 that have the same total, by bisection; of a class of much noise, from itself."""
    random = np.random.default_rng(3)
    sums = random.gamma(0.3, 50, size=(40, 6)) + random.normal(0, 8, size=(40, 6))
    shift = brentq(lambda off: np.maximum(sums - off, 0).sum() - sums.sum(), 0, 100, xtol=1e-12)
    np.testing.assert_allclose(above_zero(sums), np.maximum(sums - shift, 0), atol=1e-8)
    noisy = sums + np.where(np.arange(6) == 5, random.normal(0, 8_000, size=(40, 6)), 0)
    for near, total in ((above_zero(noisy), noisy), (above_zero(noisy.T).T, noisy)):
        np.testing.assert_allclose(near.sum(axis=0), np.maximum(total.sum(axis=0), 0), atol=1e-6)


def test_what_is_displayed_of_a_clique_keeps_what_another_one_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counties by size tell states by size well, of which the many small industries of a state tell next to nothing."""
    random = np.random.default_rng(8)
    size, state = np.arange(4), np.repeat([0, 1], 6)
    industries = table("industries", np.arange(300), state, size)
    counties = table("counties", nothing(300), np.arange(12), size)
    truth = np.round(random.gamma(0.05, [80, 20, 8, 2], size=(300, 12, 4)))
    tables = observed([industries, counties], truth, [400.0, 4.0], random)

    def off() -> float:
        estimates = by_cliques(tables)
        estimate, shown = estimates.table("counties"), estimates.display()["counties"]
        return float(np.abs(shown - estimate).mean())

    assert off() < 4
    monkeypatch.setattr(Cliques, "margins", _of_own_tables)
    assert off() > 16  # a broken twin: each clique hears of its own tables alone


def _of_own_tables(self: Cliques, tables: list[Observed]) -> list[list[Sums]]:
    pairs = [[(_within(one.levels, each.positions), each.widths) for each in tables] for one in self.cliques]
    return [[Sums(positions, widths) for positions, widths in each if positions is not None] for each in pairs]


@pytest.mark.drill
def test_the_programmes_records_take_few_steps_and_little_memory(tmp_path: Path) -> None:
    """Of conf/plans/cbp.yaml: ten states in 40 steps, though areas cross states, and in some ten vectors at once."""
    for states, most in ((["44", "56"], 20), (["09", "10", "24", "25", "33", "34", "36", "42", "44", "51"], 40)):
        folder = tmp_path / states[-1]
        prdp.generate_like("cbp-2011", folder, states=states)
        shutil.copy(Path(__file__).parents[2] / "conf" / "plans" / "cbp.yaml", folder)
        every = groups_of(tables_of(load_plan(folder / "cbp.yaml")))
        tables = next(of_noise(group) for group in every if group.statistic.measure is None)
        tracemalloc.start()
        solver = CliqueSolver(Group(tables), CLOSE, UNIT, most=10**7)
        vector, left = solver.estimate()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 0 < solver.iterations <= most
        assert left <= CLOSE
        assert peak <= 13 * vector.nbytes


def of_noise(group: ReleasedGroup) -> list[Observed]:
    """A group's tables, of noise alone: steps depend on variances, and on values next to nothing."""
    atoms = Atoms.of(group.tables[0].domain, {each.name: each.cells for each in group.tables})
    random, tables = np.random.default_rng(0), []
    for each in group.tables:
        variance, widths = atoms.placed(each.cells, each.variance(None)), atoms.widths(each.cells)
        values = np.sqrt(variance) * random.normal(size=widths)
        tables.append(Observed(each.name, atoms.positions(each.cells), widths, values, variance))
    return tables


def test_cliques_agree_where_weights_differ_by_ten_orders_of_magnitude() -> None:
    of, to, form, no = np.arange(30), np.repeat(np.arange(6), 4), np.arange(5), nothing
    ways = [(of, to, form, 1e12), (of, no(24), form, 1.0), (no(30), to, form, 4.0), (of, np.arange(24), no(5), 9.0)]
    tables = [table(f"t{number}", *axes) for number, (*axes, _) in enumerate(ways)]
    made = observed(tables, np.full((30, 24, 5), 90.0), [way[-1] for way in ways], np.random.default_rng(4))
    cliques = Cliques(Group(made), MOST)
    above, below = cliques.of(Residuals(cliques).solve(cliques.gradient(cliques.zeros())))
    child = cliques.cliques[1]
    parts = Sums(child.shared.positions, child.shared.widths).up(below), child.from_parent.up(above)
    np.testing.assert_allclose(*parts, atol=1e-9 * np.abs(parts[1]).max())
