"""Coverage of reconciled estimates' intervals, with noise as releases draw it: every family with a variance."""

import numpy as np
import pytest

from benchmarks.coverage import FAMILIES, LEVELS, WIDTHS, Drawn, drawn
from udfs.estimates.intervals import Law, multiplier

DRAWS = 4_000
SURE = 5.3  # standard deviations of a share of misses: a false alarm in 10⁷ checks, in 10⁵ runs of all of them here


def rejected(found: Drawn, level: str, coverage: float, k: float | None = None) -> bool:
    """Whether intervals of one leaf cell, or of the nation, miss more often than 1 − coverage can explain."""
    q = 1 - coverage
    cell = Drawn(
        {level: found.errors[level][:, :1]}, {level: found.standard_errors[level][:1]}, found.law, found.published
    )
    return cell.missed(level, coverage, k) > q + SURE * np.sqrt(q * (1 - q) / DRAWS)


@pytest.mark.parametrize("name", FAMILIES)
def test_intervals_hold_as_often_as_they_say(name: str) -> None:
    """Weights and errors from the true totals, where noise grows with them."""
    found = drawn(FAMILIES[name], DRAWS)
    for level in WIDTHS:
        assert not any(rejected(found, level, coverage) for coverage in LEVELS)
        ratio = found.errors[level].std() / found.standard_errors[level].mean()
        assert level == "county" or found.law is Law.ANY or ratio == pytest.approx(1, abs=0.1)
        assert (found.standard_errors[level] <= found.published[level] * (1 + 1e-9)).all()


def test_the_check_rejects_gaussian_multipliers_of_heavy_tails_and_errors_before_reconciling() -> None:
    found = drawn(FAMILIES["exponential_polylog, p = 2"], DRAWS)
    assert rejected(found, "county", 0.99, multiplier(0.01, Law.GAUSSIAN))
    assert not rejected(found, "county", 0.99)
    wrong = Drawn(found.errors, {x: error / 2 for x, error in found.standard_errors.items()}, found.law, {})
    assert rejected(wrong, "nation", 0.95)
