"""The errors of estimates: their variances, exact where that is cheap, and how far intervals reach for a variance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from pipeline.product.given import Given
from udfs.estimates.errors import Drawn
from udfs.estimates.laws import law_of
from udfs.estimates.multipliers import Law, combined, multiplier
from udfs.estimates.solve import Estimates
from udfs.numbers.arrays import Floats

EXACT, BOUND, DRAWN = "exact", "bound", "drawn"  # standard errors: what they are; no less; no less, nearly surely
WORK = 5_000_000  # cells of a table times cells of the base: seconds, if one solve for each cell is to be worth it


@dataclass(frozen=True)
class Spread:
    """How far an interval reaches for a standard error: what is known of the noise of the tables that are weighted.

    Noise on a lattice of step λ has no density with one peak, but has one with noise uniform on half a step to both
    sides added: so σ² + λ²/12 stands for σ², and half a step is added (docs/mathematics.md, section on multipliers).
    """

    law: Law
    k: float
    step: float

    @classmethod
    def of(cls, weighted: list[Given], interval: float) -> "Spread":
        """Return the spread of sums of the tables' noise: Gaussian, or symmetric where it is additive."""
        laws = [law_of(mechanism) for each in weighted for mechanism in each.mechanisms.values()]
        steps = [float(mechanism.step) for each in weighted for mechanism in each.mechanisms.values()]
        cells = max((each.cells.size for each in weighted), default=0)
        transformed = Law.UNIMODAL in laws and (cells > 1 or len(laws) > 1)
        law = Law.ANY if transformed else combined(laws)
        return cls(law, multiplier(1 - interval, law), max(steps, default=0.0))

    def half_width(self, variance: Floats | float) -> Any:
        """Return half the interval's length for a variance; 0 for 0."""
        wide = self.k * np.sqrt(np.asarray(variance) + self.step**2 / 12) + self.step / 2
        return np.where(np.asarray(variance) > 0, wide, 0.0)


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
