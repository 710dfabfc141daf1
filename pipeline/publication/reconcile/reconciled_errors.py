"""The errors of estimates: their variances, exact where that is cheap, and how far intervals reach for a variance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from pipeline.plan.cells import Int32s
from pipeline.publication.reconcile.released_tables import ReleasedTable
from udfs.estimates.intervals import Law, combined, law_of, multiplier
from udfs.estimates.solve import Estimates
from udfs.estimates.variances import Drawn
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import exact

EXACT, BOUND, DRAWN = "exact", "bound", "drawn"  # standard errors: what they are; no less; no less, nearly surely
SHARES = (0.0, 0.02, 0.1, 0.3)  # of the probability to be outside an interval: what may be due to others' noise
ROUNDING = 1e-12  # relative: an estimate whose variance is that much below its own noise's is the published value
WORK = 5_000_000  # cells of a table times cells of the base: seconds, if one solve for each cell is to be worth it


@dataclass(frozen=True)
class Spread:
    """How far an interval reaches for a standard error: what is known of the noise of the tables that are weighted.

    Noise on a lattice of step λ has no density with one peak, but has one with noise uniform on half a step to both
    sides added: so σ² + λ²/12 stands for σ², and half a step is added. That is proved for equal factors of the noise,
    and an allowance that simulation confirms for unequal ones (docs/mathematics.md, section 15, multipliers).
    """

    law: Law
    k: float
    step: float
    interval: float

    @classmethod
    def of(cls, weighted: list[ReleasedTable], interval: float) -> "Spread":
        """Return the spread of sums of the tables' noise: Gaussian, or symmetric where it is additive."""
        laws = [law_of(mechanism) for each in weighted for mechanism in each.mechanisms.values()]
        steps = [float(mechanism.step) for each in weighted for mechanism in each.mechanisms.values()]
        cells = max((each.cells.size for each in weighted), default=0)
        transformed = Law.UNIMODAL in laws and (cells > 1 or len(laws) > 1)
        law = Law.ANY if transformed else combined(laws)
        return cls(law, multiplier(1 - interval, law), max(steps, default=0.0), interval)

    def half_width(self, variance: Floats | float, _: Int32s | int = 0) -> Any:
        """Return half the interval's length for a variance; 0 for 0."""
        return self.reach(variance, self.k)

    def reach(self, variance: Floats | float, k: float) -> Any:
        """Return what errors of this variance exceed no more often than `k` says; 0 for 0."""
        wide = k * np.sqrt(np.asarray(variance) + self.step**2 / 12) + self.step / 2
        return np.where(np.asarray(variance) > 0, wide, 0.0)


@dataclass(frozen=True, eq=False)
class OwnNoise:
    """Intervals of a weighted table whose estimates are little else than its own published values.

    With V the variance of a cell's own noise Z and F that of its estimate, the best estimate's error is (F/V)·Z + R,
    Var R = F·(1 − F/V). So it exceeds (F/V)·c + r with probability at most P(|Z| > c) + P(|R| > r), where the first is
    known as the noise is drawn (docs/mathematics.md, section 15). It needs F as it is, and additive noise.
    """

    spread: Spread
    variance: Floats  # of each part's noise
    reaches: Mapping[float, Floats]  # by the probability that R may exceed r: of each part c for what is left

    @classmethod
    def of(cls, table: ReleasedTable, spread: Spread) -> "OwnNoise":
        """Return what the noise of the table's parts tells."""
        noise = list(table.mechanisms.values())
        beyond = 1 - spread.interval
        reaches = {
            share * beyond: np.array([float(z.interval_around(0.0, exact(1 - (1 - share) * beyond))[1]) for z in noise])
            for share in SHARES
        }
        return cls(spread, np.array([each.variance(0.0) for each in noise]), reaches)

    def half_width(self, variance: Floats, part: Int32s | int) -> Floats:
        """Return half the interval's length for exact variances of cells of these parts: the least of all bounds."""
        of_noise = self.variance[part]
        share = np.divide(variance, of_noise, out=np.ones(np.shape(variance)), where=of_noise > variance)
        rest = np.where(share > 1 - ROUNDING, 0.0, variance * (1 - share))
        best: Floats = self.spread.half_width(variance)
        for beyond, reach in self.reaches.items():
            of_rest = self.spread.reach(rest, multiplier(beyond, self.spread.law)) if beyond else 0.0
            reached = np.where((rest > 0) & (beyond == 0), np.inf, share * reach[part] + of_rest)
            best = np.minimum(best, reached)
        return best


def drawn_of(estimates: Estimates, names: Sequence[str], draws: int) -> dict[str, Drawn]:
    """Return what drawn solutions show of the tables whose variances would else be bounds."""
    large = [name for name in names if not estimates.exact and _large(estimates, name)]
    return estimates.drawn(large, draws) if draws and large else {}


def _large(estimates: Estimates, name: str) -> bool:
    table = estimates.tables[name]
    return prod(table.widths) * prod(map(len, table.positions)) > WORK


def variances_of(estimates: Estimates, name: str, drawn: Mapping[str, Drawn]) -> tuple[Floats, dict[str, Any]]:
    """Return the variances of a table's estimates, broadcastable to its cells on the base, and how they were found.

    They are exact where tables nest in one chain, and where there are so few cells that each is solved for. Else they
    are upper bounds, from fewer data than the estimate uses, or upper ends of what was drawn where these are less:
    `monte_carlo_error` is by what share such a standard error lies above the one that was seen, at most.
    """
    bounds, table = estimates.variances(name), estimates.tables[name]
    if estimates.exact:
        return bounds, {"errors": EXACT}
    if name in drawn:
        seen = drawn[name]
        less = seen.upper < bounds
        shares = np.divide(seen.upper, seen.variance, out=np.ones(less.shape), where=less & (seen.variance > 0))
        error = float(f"{np.sqrt(shares.max(initial=1.0)) - 1:.3g}")
        return np.where(less, seen.upper, bounds), {"errors": DRAWN, "monte_carlo_error": error}
    if _large(estimates, name):
        return bounds, {"errors": BOUND}
    found = np.zeros(table.widths)
    for cell in np.ndindex(table.widths):
        inside = [(at == here).astype(np.float64) for at, here in zip(table.positions, cell, strict=True)]
        found[cell] = estimates.contrast(reduce(np.multiply.outer, inside)).variance
    return found, {"errors": EXACT}
