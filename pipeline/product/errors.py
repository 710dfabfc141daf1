"""How far intervals reach for a standard error: by what is known of the law of all noise that enters an estimate."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.product.given import Given
from udfs.estimates.laws import law_of
from udfs.estimates.multipliers import Law, combined, multiplier
from udfs.numbers.arrays import Floats


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
