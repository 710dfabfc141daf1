"""Intervals of reconciled tables from drawn errors: shorter, and as sure as they say for noise that releases draw."""

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

import prdp
from pipeline.publication.estimated_totals import multipliers_of, worth_drawing
from pipeline.publication.reconciled import Options, Reconciliation, Solved
from pipeline.publication.released_tables import OwnNoise, Spread, variances_of
from pipeline.storage.paths import locate
from tests.publication.test_reconcile import BY_SIZE, LAPLACE, query, released
from tests.support.bits import cell_bits
from udfs.estimates.intervals import Law, multiplier
from udfs.mechanisms.catalogue import build
from udfs.numbers.arrays import Floats

HEAVY = {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 2.718281828459045, "sigma": 20}
QUERIES = [
    query("cells", ["naics2", "county", "size"], BY_SIZE, sum="employment"),
    query("states", ["naics2", "state"], HEAVY, sum="employment"),
    query("nation", ["nation", "naics2", "size"], LAPLACE | {"sigma": 40}, sum="employment"),
    query("n2", ["naics2", "county"], {"kind": "gaussian", "sigma": 9}),
    query("n2_state", ["naics2", "state"], {"kind": "gaussian", "sigma": 9}),
]
DRAWS = 200


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return released(tmp_path_factory.mktemp("release"), QUERIES)


def test_intervals_are_shorter_and_nothing_else_changes(release: Path, tmp_path: Path) -> None:
    bounds = prdp.reconcile(release, tmp_path / "bounds")
    drawn = prdp.reconcile(release, tmp_path / "drawn", draws=DRAWS)
    few = prdp.reconcile(release, tmp_path / "few", draws=80)
    told = {name: facts["intervals"] for name, facts in json.loads(_manifest(drawn))["tables"].items()}
    assert told == {"cells": "drawn", "states": "drawn", "nation": "drawn", "n2": "bound", "n2_state": "bound"}
    for name, table in drawn.items():
        same = ["value", "standard_error", "published", "display"]
        pd.testing.assert_frame_equal(table[same], bounds[name][same])
        length, most = (each.upper - each.lower for each in (table, bounds[name]))
        assert (length <= most * (1 + 1e-12)).all()
        if name in ("states", "nation"):  # those of `cells` are nearly the published ones, whose law is known
            assert (length < most * 0.95).any()
        pd.testing.assert_frame_equal(few[name], bounds[name])  # 80 draws do not tell a quantile of 95 %


def _manifest(made: Any) -> str:
    return (Path(made.folder) / "reconciled.json").read_text()


@pytest.fixture(scope="module")
def solved(release: Path) -> Solved:
    reconciliation = Reconciliation([locate(release)], Options(interval=0.9))
    return reconciliation.solved(next(each for each in reconciliation.groups if each.statistic.measure == "employment"))


def other_noise(solved: Solved, number: int, gaussian: bool) -> dict[str, Floats]:
    """Noise as releases draw it, under a known key; or of a wrong law, Gaussian and six times as large."""
    noise, random = {}, np.random.default_rng(number)
    for place, table in enumerate(solved.tables):
        widths = solved.atoms.widths(table.cells)
        part = np.broadcast_to(solved.atoms.placed(table.cells, table.part_numbers()), widths)
        each = np.zeros(widths)
        for which, mechanism in enumerate(table.mechanisms.values()):
            bits = cell_bits(each.size, query=1 + which + 5 * (place + len(solved.tables) * number))
            steps = mechanism.release(np.zeros(each.size, dtype=np.int64), bits, Fraction(1, 2)).value
            drawn = steps.reshape(widths) * float(mechanism.step)
            wrong = 6 * np.sqrt(mechanism.variance(0.0)) * random.normal(size=widths)
            each = np.where(part == which, wrong if gaussian else drawn, each)
        noise[table.name] = each
    return noise


def first_errors(solved: Solved, variances: Mapping[str, Floats], numbers: range, gaussian: bool) -> dict[str, Floats]:
    """Errors of the first cell of each table, in its standard errors, one a draw."""
    found: dict[str, list[float]] = {name: [] for name in variances}
    for number in numbers:
        for name, errors in solved.estimates.errors(other_noise(solved, number, gaussian), variances):
            found[name].append(float(errors.flat[0] / np.sqrt(variances[name].flat[0])))
    return {name: np.abs(each) for name, each in found.items()}


def test_they_hold_as_often_as_they_say_for_noise_as_releases_draw_it(solved: Solved) -> None:
    """Of one cell of each table, in 200 draws; noise of another law, six times as large, is seen to miss."""
    variances = {table.name: variances_of(solved.estimates, table.name, {})[0] for table in solved.tables}
    right = first_errors(solved, variances, range(200), gaussian=False)
    wrong = first_errors(solved, variances, range(100), gaussian=True)
    for coverage in (0.5, 0.9, 0.95):
        at = replace(solved, spread=replace(solved.spread, interval=coverage))
        assert worth_drawing(at, DRAWS)
        found = multipliers_of(at, variances, DRAWS)
        for errors, holds in ((right, True), (wrong, False)):
            for name, each in errors.items():
                least = coverage - 4.5 * np.sqrt(coverage * (1 - coverage) / len(each))
                assert (np.mean(each <= found[name].flat[0]) > least) == holds


# Intervals of estimates that are little else than their own published value: narrower, and still as sure.

SAMPLES = 200_000
SURE = 5.3  # standard deviations of a share of misses: a false alarm in 10⁷ checks, in 10⁵ runs of those here
KINDS: list[dict[str, Any]] = [
    {"kind": "gaussian", "sigma": 2},
    {"kind": "laplace", "sigma": 6},
    {"kind": "exponential_polylog", "p": 1, "d": 5, "a": 1, "sigma": 12},
]


NARROW: list[dict[str, Any]] = [
    {"kind": "gaussian", "sigma": 4},
    {"kind": "gaussian", "sigma": 0.5},
    {"kind": "laplace", "sigma": 1},
    {"kind": "laplace", "sigma": 0.25},
]
UNEQUAL = [(0.4, 0.3, 0.2, 0.1), (0.9, 0.1), (0.6, *[0.05] * 8), (1.0, 1.0, 1.0, 0.5)]


def drawn(kind: dict[str, Any], random: np.random.Generator) -> Floats:
    """Noise from the mechanism's own weights, by their cumulative sums: a hundred thousand steps hold all but 10⁻¹⁵."""
    weights = build(kind, Fraction(1)).log_weights
    chance = np.exp(weights.fast(np.arange(1.0, 100_001.0)))
    half = np.concatenate([[0.5], chance]).cumsum()
    steps = np.searchsorted(half / half[-1], random.random(SAMPLES), side="right").astype(np.float64)
    return steps * random.choice([-1.0, 1.0], SAMPLES)


def intervals(kind: dict[str, Any], coverage: float) -> tuple[OwnNoise, Spread]:
    law = Law.SYMMETRIC
    spread = Spread(law, multiplier(1 - coverage, law), 1.0, coverage)
    table: Any = SimpleNamespace(mechanisms={None: build(kind, Fraction(1))})
    return OwnNoise.of(table, spread), spread


def missed(errors: Floats, half: float, coverage: float) -> bool:
    """Whether errors leave an interval more often than its coverage can explain."""
    q = 1 - coverage
    return bool((np.abs(errors) > half).mean() > q + SURE * np.sqrt(q * (1 - q) / SAMPLES))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["kind"])
@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95])
def test_intervals_hold_whatever_share_of_the_error_is_their_own_noise(kind: dict[str, Any], coverage: float) -> None:
    random = np.random.default_rng(7)
    own, spread = intervals(kind, coverage)
    variance = build(kind, Fraction(1)).variance(0.0)
    noise, others = drawn(kind, random), sum(drawn(kind, random) for _ in range(4))
    for share in (1.0, 0.999, 0.95, 0.7, 0.4):
        rest = share * (1 - share) * variance
        errors = share * noise + np.sqrt(rest / (4 * variance)) * others
        half = float(own.half_width(np.array([share * variance]), 0)[0])
        assert not missed(errors, half, coverage)
        assert half <= spread.half_width(share * variance)
    assert float(own.half_width(np.array([variance]), 0)[0]) == pytest.approx(
        min(build(kind, Fraction(1)).interval_around(0.0, Fraction(str(coverage)))[1], spread.half_width(variance))
    )


def test_the_check_rejects_intervals_that_leave_out_what_others_add() -> None:
    random, kind = np.random.default_rng(8), KINDS[1]
    variance, share = build(kind, Fraction(1)).variance(0.0), 0.5
    others = sum(drawn(kind, random) for _ in range(4))
    errors = share * drawn(kind, random) + np.sqrt(share * (1 - share) / 4) * others
    own, _ = intervals(kind, 0.95)
    assert missed(errors, share * float(own.reaches[0.0][0]), 0.95)
    assert not missed(errors, float(own.half_width(np.array([share * variance]), 0)[0]), 0.95)


def narrow_noise_misses(coverage: float, allowed: bool) -> list[bool]:
    """Of each narrow noise and each set of unequal factors: whether sums leave the interval too often."""
    random, found = np.random.default_rng(9), []
    for kind in NARROW:
        mechanism = build(kind, Fraction(1))
        spread = Spread.of([cast(Any, SimpleNamespace(mechanisms={None: mechanism}, cells=np.zeros(1)))], coverage)
        for factors in UNEQUAL:
            errors = sum(factor * drawn(kind, random) for factor in factors)
            variance = mechanism.variance(0.0) * sum(factor**2 for factor in factors)
            half = float(spread.half_width(variance)) if allowed else spread.k * variance**0.5
            found.append(missed(cast(Floats, errors), half, coverage))
    return found


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95])
def test_intervals_of_sums_of_narrow_noise_hold_where_no_proof_covers_them(coverage: float) -> None:
    assert not any(narrow_noise_misses(coverage, allowed=True))


def test_the_check_rejects_intervals_of_narrow_noise_without_the_allowance_for_steps() -> None:
    assert any(narrow_noise_misses(0.9, allowed=False))
