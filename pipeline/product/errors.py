"""The errors of estimates: their variances, exact where that is cheap, and how far intervals reach for a variance."""

from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from pipeline.product.given import Given
from udfs.estimates.laws import law_of
from udfs.estimates.multipliers import Law, combined, multiplier
from udfs.estimates.solve import Estimates
from udfs.numbers.arrays import Floats

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


def variances_of(estimates: Estimates, name: str) -> tuple[Floats, bool]:
    """Return the variances of a table's estimates, broadcastable to its cells on the base, and whether they are exact.

    They are where tables nest in one chain, and where there are so few cells that each is solved for; else they are
    upper bounds: those of the best chain through the table, from fewer data than the estimate uses.
    """
    bounds, table = estimates.variances(name), estimates.tables[name]
    if estimates.exact or prod(table.widths) * prod(map(len, table.positions)) > WORK:
        return bounds, estimates.exact
    found = np.zeros(table.widths)
    for cell in np.ndindex(table.widths):
        inside = [(at == here).astype(np.float64) for at, here in zip(table.positions, cell, strict=True)]
        found[cell] = estimates.contrast(reduce(np.multiply.outer, inside)).variance
    return found, True
