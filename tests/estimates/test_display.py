"""Display columns: at least 0, whole, adding up over all tables, and near the projection of the estimates."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.optimize import minimize

from tests.estimates.test_cliques import by_cliques
from tests.estimates.test_solve import any_group, nested
from tests.support.estimates import matrix, nothing, observed, table
from udfs.estimates import rounding, solve
from udfs.estimates.cliques import Cliques
from udfs.estimates.rounding import by_slabs, carried, projected
from udfs.estimates.solve import Estimates, reconcile
from udfs.estimates.tables import Along, Observed


@given(st.integers(0, 2**31))
@example(5911064)  # fractions of one half, and nothing after them
def test_display_is_whole_not_negative_and_adds_up(seed: int) -> None:
    random = np.random.default_rng(seed)
    tables = [replace(t, values=t.values - random.choice([0, 80])) for t in any_group(3 * (seed // 3) + 1)]
    estimates = reconcile(tables, unit=0.001)
    shown = estimates.display()
    finest = np.vstack([matrix(t) for t in tables])
    cells = np.concatenate([shown[t.name].ravel() for t in tables])
    assert (cells >= 0).all()
    base = np.linalg.lstsq(finest, cells, rcond=None)[0]
    assert np.allclose(finest @ base, cells, atol=1e-6)  # all tables are sums of one base


@given(st.integers(0, 2**31))
def test_parts_are_the_nearest_and_whole_ones_within_one_of_them(seed: int) -> None:
    random = np.random.default_rng(seed)
    along = Along(random.permutation(np.arange(9, dtype=np.int32) % 3), 3)
    real = random.normal(0, 10, size=(2, 9))
    sums = np.rint(random.gamma(1, 8, size=(2, 3)))
    near = projected(sums, real, along, 1)
    assert (near >= 0).all()
    assert np.allclose(along.up(near, 1), sums)
    for row, group in np.ndindex(2, 3):
        mine = along.positions == group
        start = np.full(3, sums[row, group] / 3)
        found = minimize(
            lambda x, mine=mine, row=row: ((x - real[row, mine]) ** 2).sum(), start, bounds=[(0, None)] * 3,
            constraints={"type": "eq", "fun": lambda x, s=sums[row, group]: x.sum() - s},
        )  # fmt: skip
        assert ((near[row, mine] - real[row, mine]) ** 2).sum() <= found.fun + 1e-5
    whole = carried(sums, near, None, along, 1)
    assert (np.rint(whole) == whole).all()
    assert (whole >= 0).all()
    assert np.array_equal(along.up(whole, 1), sums)
    assert (np.abs(whole - near) < 1 + 1e-9).all()


def test_a_tree_without_anything() -> None:
    counties = replace(table("county", np.arange(6)), values=np.full(6, -3.0), variance=np.array(4.0))
    nation = replace(table("nation", nothing(6)), values=np.array([0.0]), variance=np.array(1.0))
    shown = reconcile([counties, nation], unit=0.001).display()
    assert not shown["county"].any()
    assert not shown["nation"].any()


def test_a_table_that_nothing_makes_up_is_not_displayed() -> None:
    tables = nested(np.random.default_rng(1))
    shown = reconcile([tables[1], table("county", np.arange(12))], unit=0.001).display()
    assert list(shown) == ["state"]


@pytest.mark.parametrize("broken", [False, True])
def test_clipping_alone_would_not_add_up(broken: bool) -> None:
    estimates = reconcile(nested(np.random.default_rng(2)), unit=0.001)
    low = {name: estimates.table(name) - 200 for name in ("county", "state", "nation")}
    tables = [replace(t, values=low[t.name]) for t in nested(np.random.default_rng(2))]
    estimates = reconcile(tables, unit=0.001)
    shown = estimates.display()
    if broken:
        shown = {name: np.maximum(np.rint(estimates.table(name)), 0).astype(int) for name in low}
    states = np.bincount(tables[1].positions[0], weights=shown["county"])
    assert np.array_equal(states, shown["state"]) != broken


def counties_by_industry() -> list[Observed]:
    """240 counties of 6 states by 60 industries, most cells of less than one; nation and states are known well."""
    random = np.random.default_rng(4)
    industry, sector = np.arange(60), np.repeat(np.arange(6), 10)
    county, state, no = np.arange(240), np.repeat(np.arange(6), 40), nothing
    ways = [(industry, county, no(3), 1.2), (sector, county, no(3), 4.0), (no(60), county, no(3), 9.0)]
    ways += [(industry, state, np.arange(3), 20.0), (industry, state, no(3), 3.0), (industry, no(240), no(3), 9.0)]
    tables = [table(name, *axes) for name, (*axes, _) in zip("abcdef", ways, strict=True)]
    means = random.gamma(0.3, 1, size=(60, 1, 1)) * random.gamma(0.7, 1, size=(1, 240, 1)) * [[[0.6, 0.3, 0.1]]]
    return observed(tables, random.poisson(means).astype(float), [way[-1] for way in ways], random)


@pytest.mark.parametrize("solved", [by_cliques, partial(reconcile, unit=0.001)])
def test_sums_over_many_counties_keep_near_their_estimates(
    solved: Callable[[list[Observed]], Estimates], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole numbers of counties, made one county after the other, add up to what is known of states and the nation."""
    estimates = solved(counties_by_industry())
    errors = {name: np.sqrt(estimates.variances(name)) for name in "abef"}

    def off() -> list[float]:
        """By table, the root mean square of what is displayed less the estimates, in standard errors."""
        shown = estimates.display()
        ends = (np.abs(shown[name] - estimates.table(name)) / error for name, error in errors.items())
        return [float(np.sqrt((each**2).mean())) for each in ends]

    assert (np.array(off()) < [1.05, 0.75, 0.7, 0.5]).all()
    with monkeypatch.context() as patched:
        patched.setattr(rounding, "scanned", by_slabs(_each_by_itself))
        assert off()[-1] > 2  # a broken twin: the nation drifts with the fractions of its counties
    monkeypatch.setattr(solve, "beside", lambda *_: [])
    monkeypatch.setattr(Cliques, "margins", lambda *_: [[], []])
    assert off()[-1] > 5  # a broken twin: what is below 0 is taken from industries of the same county alone


def _each_by_itself(integers: np.ndarray, real: np.ndarray, _: None, along: Along, axis: int) -> np.ndarray:
    return carried(integers, projected(integers, real, along, axis), None, along, axis)
