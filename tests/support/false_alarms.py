"""How the statistical tests decide, and how often a right sampler may fail them: the one place that says so.

Budget. Each check rejects a right sampler with probability at most FALSE_ALARM over the choice of its key; a check
that makes n comparisons gives each the share `level(n)` (Bonferroni). Under a hundred such checks exist, so a change
of keys makes the whole suite fail wrongly with probability under 10⁻⁴. Keys are fixed, so that a run is repeatable: a
check that fails, fails always, and is looked into, never run again.

Every function returns a p-value against the named hypothesis; small ones speak against the sampler.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

FALSE_ALARM = 1e-6
LEAST_EXPECTED = 100  # counts a pooled outcome is expected to have: the true level is then within a factor 2


def level(checks: int) -> float:
    """Return the share of the budget of one of `checks` comparisons."""
    return FALSE_ALARM / checks


def chi_square(counts: ArrayLike, probabilities: ArrayLike) -> float:
    """Return Pearson's p-value of `counts` of ordered outcomes against exact `probabilities` (which add up to 1).

    Neighbouring outcomes are pooled until each is expected at least LEAST_EXPECTED times.
    """
    observed, expected = np.asarray(counts, dtype=np.float64), np.asarray(probabilities, dtype=np.float64)
    if not abs(expected.sum() - 1) < 1e-9:
        raise ValueError("probabilities must add up to 1")
    expected = expected * observed.sum()
    groups, room = np.empty(len(expected), dtype=np.intp), 0.0
    group = 0
    for i, mass in enumerate(expected):
        groups[i] = group
        room += mass
        if room >= LEAST_EXPECTED:
            group, room = group + 1, 0.0
    if room and group:
        groups[groups == group] = group - 1  # what is left over joins the last full group
    observed, expected = (np.bincount(groups, column).astype(np.float64) for column in (observed, expected))
    if len(expected) < 2:
        raise ValueError("too few draws: all outcomes were pooled into one")
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    return float(stats.chi2.sf(statistic, len(expected) - 1))


def fit(values: NDArray[np.int64], probability: Mapping[int, float]) -> float:
    """Return the p-value of integer draws against exact probabilities; outcomes not named are pooled into one."""
    outcomes = sorted(probability)
    found, counts = np.unique(values, return_counts=True)
    count = dict(zip(found.tolist(), counts.tolist(), strict=True))
    named = [count.get(outcome, 0) for outcome in outcomes]
    masses = [probability[outcome] for outcome in outcomes]
    elsewhere = max(0.0, 1 - sum(masses))
    if elsewhere * len(values) < 1e-9 and sum(named) < len(values):
        return 0.0  # something came out that has no probability
    return chi_square([len(values) - sum(named), *named], [elsewhere, *masses])


def binned_fit(values: NDArray[np.int64], ends: list[int], masses: ArrayLike) -> float:
    """Return the p-value of draws in the bins (−∞, e₀], (e₀, e₁], …, (eₙ, ∞) against their exact `masses`."""
    place = np.searchsorted(np.array(ends, dtype=np.int64), values, side="left")
    return chi_square(np.bincount(place, minlength=len(ends) + 1), masses)


def moments(values: NDArray[np.float64], variance: float, fourth: float) -> float:
    """Return the p-value of mean 0 and the given variance, by normal approximation; `fourth`: E Z⁴.

    For draws by the hundred thousand from families with light tails.
    """
    n = len(values)
    mean = float(np.mean(values)) / np.sqrt(variance / n)
    spread = (float(np.mean(values**2)) - variance) / np.sqrt((fourth - variance**2) / n)
    return float(min(1.0, 2 * 2 * stats.norm.sf(max(abs(mean), abs(spread)))))


def repeats(values: NDArray[np.int64], collision: float) -> float:
    """Return the p-value of the number of equal pairs among independent draws; `collision`: P(two draws are equal).

    Sees noise that is shared by cells, whichever cells they are. Poisson approximation: for collisions that are rare.
    """
    _, counts = np.unique(values, return_counts=True)
    pairs = int(np.sum(counts * (counts - 1) // 2))
    return float(stats.poisson.sf(pairs - 1, len(values) * (len(values) - 1) / 2 * collision))


def dependence(first: NDArray[np.int64], second: NDArray[np.int64], bins: int = 8) -> float:
    """Return the p-value of independence of paired draws, each cut into `bins` equally frequent bins."""
    table = np.zeros((bins, bins))
    places = []
    for values in (first, second):
        cuts = np.quantile(values.astype(np.float64), np.arange(1, bins) / bins)
        places.append(np.searchsorted(cuts, values, side="left"))
    np.add.at(table, tuple(places), 1)
    table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
    return float(stats.chi2_contingency(table, correction=False).pvalue)
