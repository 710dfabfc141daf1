"""Multipliers from drawn errors: how many standard errors hold an error as often as is wanted, of cells that are alike.

Counted in bins, so that memory does not grow with draws; every step rounds up (docs/mathematics.md, section 15).
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtrc

from udfs.estimates.tables import Int32s, row_slabs
from udfs.numbers.arrays import Floats

SURE = 0.99  # the probability with which the quantile is at least the wanted one
MOST_CLASSES = 4096  # of a table: with more, few cells are alike, and counts take too much memory
ENDS = np.append(np.geomspace(0.02, 50, 401), np.inf)  # of bins, in standard errors: each 2 % above the last


def order_of(draws: int, coverage: float) -> int | None:
    """Return the k for which the k-th smallest of so many draws is at least the quantile, nearly surely; None: too few.

    It lies below with the probability that a binomial number, of `draws` and `coverage`, is at least k.
    """
    orders = np.arange(1, draws + 1)
    able = orders[bdtrc(orders - 1, draws, coverage) <= 1 - SURE]
    return int(able[0]) if able.size else None


class Pool:
    """The errors of one table's cells in some draws, in standard errors, cells that are alike together."""

    def __init__(self, classes: tuple[Int32s, ...]) -> None:
        self.classes = classes
        self.widths = tuple(int(axis.max()) + 1 for axis in classes)
        self._counts: NDArray[np.int64] = np.zeros((int(np.prod(self.widths)), len(ENDS)), dtype=np.int64)
        self._draws = 0

    @property
    def able(self) -> bool:
        """Whether there are few enough classes; no draw is counted where there are not."""
        return len(self._counts) <= MOST_CLASSES

    def add(self, errors: Floats) -> None:
        """Count the errors of one draw, in standard errors; shape: the table's."""
        self._draws += 1
        counts = self._counts.reshape(-1)
        for rows in row_slabs(errors.shape):
            of_cell = np.ravel_multi_index(np.ix_(self.classes[0][rows], *self.classes[1:]), self.widths)
            place = of_cell * len(ENDS) + np.searchsorted(ENDS, np.abs(errors[rows]))
            counts += np.bincount(place.reshape(-1), minlength=len(counts))

    def multipliers(self, coverage: float) -> Floats:
        """Return each cell's multiplier, shape: the table's; infinite where draws are too few, or beyond all bins.

        Cells of one draw depend on each other: the order is that of draws whose cells depend on each other entirely.
        """
        order = order_of(self._draws, coverage)
        if order is None:
            return np.full(tuple(map(len, self.classes)), np.inf)
        below = self._counts.cumsum(axis=1)
        reached = below * self._draws >= order * below[:, -1:]
        found: Floats = ENDS[reached.argmax(axis=1)].reshape(self.widths)[np.ix_(*self.classes)]
        return found
