"""How often intervals of reconciled estimates hold: of every family of noise, in a hierarchy of three levels.

    python -m benchmarks.coverage

A nation of 8 states of 8 counties each; one table of each level, of one mechanism. Values are drawn as releases draw
them, and reconciled; docs/reconcile/figures.txt says in which share of 20,000 draws intervals hold the total.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from tests.support.bits import cell_bits
from tests.support.kinds import STAIRS
from udfs.estimates.intervals import Law, Totals, combined, half_step, law_of, multiplier, ratio
from udfs.estimates.solve import reconcile
from udfs.estimates.tables import Observed
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.numbers.arrays import Floats

STATES, COUNTIES = 8, 8
LEAVES = STATES * COUNTIES
POSITIONS = {"county": np.arange(LEAVES), "state": np.arange(LEAVES) // COUNTIES, "nation": np.zeros(LEAVES, dtype=int)}
WIDTHS = {"county": LEAVES, "state": STATES, "nation": 1}
LEVELS = (0.5, 0.9, 0.95)
DRAWS = 20_000
UNIT = 1e-9
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gaussian": {"kind": "gaussian", "sigma": 20},
    "laplace": {"kind": "laplace", "sigma": 20},
    "generalized_gaussian, p = 0.5": {"kind": "generalized_gaussian", "p": 0.5, "sigma": 5},
    "exponential_polylog, p = 2": {
        "kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 2.718281828459045, "sigma": 20,
    },
    "designed, in stairs": {"kind": "designed", "weights": STAIRS},
    "unit_splitting": {"kind": "unit_splitting", "threshold": 10, "rho": 0.1},
    "root, k = 2": {"kind": "root", "k": 2, "a": 100, "sigma": 1},
    "log, sigma = 0.2": {"kind": "log", "a": 10, "sigma": 0.2},
    "log, laplace, sigma = 0.2": {"kind": "log", "a": 10, "sigma": 0.2, "noise": "laplace"},
    "groupwise_log, sigma = 0.2": {"kind": "groupwise_log", "a": 10, "sigma": 0.2},
    "groupwise_noisy, r = 0.2": {"kind": "groupwise_noisy", "r": 0.2, "sigma": 5},
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Drawn:
    """Errors of estimates of one family, and standard errors: by level, of (draws, cells) and (cells)."""

    errors: Mapping[str, Floats]
    standard_errors: Mapping[str, Floats]
    law: Law
    published: Mapping[str, Floats]  # standard errors before reconciling

    def missed(self, level: str, coverage: float, k: float | None = None) -> float:
        """Return the share of intervals of a level that miss; `k` in place of the law's multiplier."""
        error = self.standard_errors[level]
        reach = (multiplier(1 - coverage, self.law) + half_step(float(1 / error.min())) if k is None else k) * error
        return float(np.mean(np.abs(self.errors[level]) > reach))


def totals() -> dict[str, Floats]:
    """True totals by level: counties from 5 to 1,000."""
    leaves = np.rint(np.geomspace(5, 1000, LEAVES))
    return {level: np.bincount(POSITIONS[level], weights=leaves) for level in WIDTHS}


def drawn(spec: Mapping[str, Any], draws: int, wrong: float = 1.0) -> Drawn:
    """Draw and reconcile; `wrong`: what the expected totals, from which weights are made, are of the true ones."""
    mechanism, truth = build(spec, Fraction(1)), totals()
    noisy = {level: _values(mechanism, truth[level], draws, number) for number, level in enumerate(WIDTHS)}
    at = {level: np.array([mechanism.variance(x * wrong) for x in truth[level]]) for level in WIDTHS}
    solution, variances = solved(at)
    whole = np.concatenate([noisy[level] for level in WIDTHS], axis=1)
    errors = {level: whole @ solution[level].T - truth[level] for level in WIDTHS}
    law = combined([law_of(mechanism)] * 3)
    return Drawn(errors, {x: np.sqrt(variances[x]) for x in WIDTHS}, law, {x: np.sqrt(at[x]) for x in WIDTHS})


def solved(variances: Mapping[str, Floats]) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Return the linear map from all published values to each level's estimates, and their variances, by the solver."""
    size = sum(WIDTHS.values())
    maps = {level: np.zeros((width, size)) for level, width in WIDTHS.items()}
    known: dict[str, Floats] = {}
    for column in range(size):
        parts = np.split(np.eye(size)[column], np.cumsum(list(WIDTHS.values()))[:-1])
        estimates = reconcile(
            [
                Observed(level, (POSITIONS[level].astype(np.int32),), (width,), values, variances[level])
                for (level, width), values in zip(WIDTHS.items(), parts, strict=True)
            ],
            unit=UNIT,
        )
        for level, of_level in maps.items():
            of_level[:, column] = estimates.table(level)
        known = known or {level: estimates.variances(level) for level in WIDTHS}
    return maps, known


def _values(mechanism: Mechanism, truth: Floats, draws: int, query: int) -> Floats:
    """Released values of all cells of one table, one row a draw."""
    cells = np.tile(truth.astype(np.int64), draws)
    out = mechanism.release(cells, cell_bits(len(cells), query=query), Fraction(95, 100))
    return out.value.astype(np.float64).reshape(draws, -1)


def ratios_missed(spec: Mapping[str, Any], below: int, level: float, draws: int) -> tuple[float, float, float]:
    """Return how often Fieller's interval of a ratio of 3 misses, the delta method's does, and none is stated."""
    mechanism = build(spec, Fraction(1))
    sides = []
    for query, total in enumerate((3 * below, below)):
        out = mechanism.release(np.full(draws, total), cell_bits(draws, query=query), Fraction(95, 100))
        sides.append(Totals(out.value.astype(np.float64), out.standard_error**2))
    law = combined([law_of(mechanism)] * 2)
    steps = (1 / float(np.sqrt(side.variance.min())) for side in sides)
    found = ratio(*sides, multiplier(1 - level, law) + half_step(*steps))
    theta = sides[0].value / np.where(sides[1].value == 0, 0.5, sides[1].value)
    error = np.sqrt(sides[0].variance + theta**2 * sides[1].variance) / np.maximum(np.abs(sides[1].value), 0.5)
    delta = np.abs(theta - 3) > multiplier(1 - level, Law.GAUSSIAN) * error
    missed = (found.lower > 3) | (found.upper < 3)
    return float(missed.mean()), float(delta.mean()), float(np.isnan(found.lower).mean())


def print_ratios() -> None:
    """Print the table of ratios, the denominator some standard errors from 0."""
    heads = [f"{name} {level:.0%}" for level in LEVELS for name in ("Fieller", "delta", "none")]
    print(f"| noise | denominator | {' | '.join(heads)} |\n|---|---:|{'---:|' * len(heads)}")
    for name in (
        "gaussian",
        "laplace",
        "generalized_gaussian, p = 0.5",
        "exponential_polylog, p = 2",
        "log, sigma = 0.2",
    ):
        spec = FAMILIES[name]
        error = float(np.sqrt(build(spec, Fraction(1)).variance(0)))
        for times in (2, 5, 40):
            below = max(1, round(times * error))
            shares = [share for level in LEVELS for share in ratios_missed(spec, below, level, DRAWS)]
            print(f"| {name} | {times} | {' | '.join(f'{share:.2%}' for share in shares)} |", flush=True)


def main() -> None:
    """Print the tables of docs/reconcile/figures.txt."""
    print_ratios()
    heads = [f"{where} {coverage:.0%}" for coverage in LEVELS for where in ("county", "nation")]
    print(f"| noise | multiplier | {' | '.join(heads)} |\n|---|---|{'---:|' * len(heads)}")
    for name, spec in FAMILIES.items():
        for wrong in (1.0, 0.5):
            if wrong != 1.0 and build(spec, Fraction(1)).additive:
                continue
            found = drawn(spec, DRAWS, wrong)
            shares = [f"{1 - found.missed(where, c):.2%}" for c in LEVELS for where in ("county", "nation")]
            told = name if wrong == 1.0 else f"{name}, expected totals half the true ones"
            print(f"| {told} | {found.law.name.lower()} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
