"""Intervals of estimates that are little else than their own published value: narrower, and still as sure."""

from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pipeline.publication.reconcile.released_tables import OwnNoise, Spread
from udfs.estimates.intervals import Law, multiplier
from udfs.mechanisms.catalogue import build
from udfs.numbers.arrays import Floats

DRAWS = 200_000
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
    steps = np.searchsorted(half / half[-1], random.random(DRAWS), side="right").astype(np.float64)
    return steps * random.choice([-1.0, 1.0], DRAWS)


def intervals(kind: dict[str, Any], coverage: float) -> tuple[OwnNoise, Spread]:
    law = Law.SYMMETRIC
    spread = Spread(law, multiplier(1 - coverage, law), 1.0, coverage)
    table: Any = SimpleNamespace(mechanisms={None: build(kind, Fraction(1))})
    return OwnNoise.of(table, spread), spread


def missed(errors: Floats, half: float, coverage: float) -> bool:
    """Whether errors leave an interval more often than its coverage can explain."""
    q = 1 - coverage
    return bool((np.abs(errors) > half).mean() > q + SURE * np.sqrt(q * (1 - q) / DRAWS))


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
