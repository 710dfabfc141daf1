"""The tight loss of Laplace noise in doubles, for whole arrays; udfs.bounds.laplace_zcdp_above has it in rationals."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from udfs.bounds import s_over_sinh

Floats = NDArray[np.float64]
SERIES = 0.01  # below it P − 1 + e^{−P} is summed as a series


def laplace_zcdp(pure: Floats, s: Fraction) -> Floats:
    """Return P − c·(1 − e^{−P}), c = s/sinh s, in double precision: P = `pure` ≥ 0, s > 0.

    (P − 1 + e^{−P}) + (1 − c)·(1 − e^{−P}), where nothing cancels.
    """
    return _excess(pure) + float(1 - s_over_sinh(s)) * -np.expm1(-pure)


def _excess(pure: Floats) -> Floats:
    # P − 1 + e^{−P} = P²/2·(1 − P/3·(1 − P/4·(1 − …))) where the difference would cancel
    small, series = np.minimum(pure, SERIES), np.ones_like(pure)
    for n in range(9, 2, -1):
        series = 1 - small / n * series
    return np.where(pure < SERIES, small**2 / 2 * series, pure + np.expm1(-pure))
