"""Display columns: non-negative whole numbers that add up, beside the unbiased estimates and never instead of them.

From the coarsest table of the chain to the base, one axis at a time: the parts of each displayed sum are the nearest
non-negative numbers that add up to it, then whole ones by carried fractions. What is displayed is biased upward where
estimates are negative, and downward beside them (docs/mathematics.md, section 14).
"""

import numpy as np

from udfs.estimates.chain import Chain
from udfs.estimates.rounding import Parts, carried, expanded
from udfs.estimates.tables import Along, Sums
from udfs.numbers.arrays import Floats, Mask


def displayed(chain: Chain, base: Floats) -> Floats:
    """Return whole numbers ≥ 0 for the base, each within 1 of its projection along its axis."""
    steps = [Parts.base(base.shape), *(Parts.of(level.known.table) for level in chain.levels)]
    whole = np.maximum(np.rint(Sums(*steps[-1]).up(base)), 0.0)
    for coarse, fine in zip(steps[:0:-1], steps[-2::-1], strict=True):
        whole = expanded(whole, (coarse, fine), Sums(*fine).up(base), None, _nonnegative)
    return whole


def _nonnegative(whole: Floats, real: Floats, _: Mask | None, along: Along, axis: int) -> Floats:
    return carried(whole, projected(whole, real, along, axis), None, along, axis)


def projected(sums: Floats, real: Floats, along: Along, axis: int) -> Floats:
    """Return the parts nearest to `real` in squared distance that are at least 0 and have these sums ≥ 0.

    They are max(x − τ, 0) with one τ for each sum (Michelot 1986): parts below τ are left out until none is.
    """
    active = np.ones(real.shape, dtype=bool)
    while True:
        counts = along.up(active.astype(np.float64), axis)
        above = along.up(np.where(active, real, 0.0), axis) - sums
        shift = along.down(above / np.maximum(counts, 1.0), axis)
        kept = active & (real > shift) & (along.down(sums, axis) > 0)
        if np.array_equal(kept, active):
            return np.where(active, real - shift, 0.0)
        active = kept
