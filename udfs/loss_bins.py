"""Fixed bins of losses, 64 to a doubling: counts in them add up exactly, whatever the order and the cut of the data.

A bin is the leading digits of the double itself, so that no logarithm is taken. A quantile read from the bins is the
upper end of its bin: at least the true one, and above it by less than one part in 64.
"""

import numpy as np
from numpy.typing import NDArray

DIGITS = 6  # binary digits after the first: 2⁶ bins to a doubling
SHIFT = np.finfo(np.float64).nmant - DIGITS
LOWEST, HIGHEST = -150, 350  # exponents of two: a smaller loss above 0 counts in the first bin, a larger in the last


def _key(loss: NDArray[np.float64]) -> NDArray[np.int64]:
    keys: NDArray[np.int64] = loss.view(np.int64) >> SHIFT
    return keys


FIRST, LAST = (int(key) for key in _key(np.array([2.0**LOWEST, 2.0**HIGHEST])))
BINS = LAST - FIRST + 2  # bin 0: losses of exactly 0


def bins_of(loss: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each loss ≥ 0; infinity lies in the last."""
    return np.where(loss > 0, np.clip(_key(loss), FIRST, LAST) - (FIRST - 1), 0)


def upper_ends(bins: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the upper end of each bin: 0 of bin 0, infinity of the last."""
    ends = ((bins + FIRST) << SHIFT).view(np.float64)
    return np.where(bins == 0, 0.0, np.where(bins == BINS - 1, np.inf, ends))
