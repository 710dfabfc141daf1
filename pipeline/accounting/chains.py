"""Nested tables that are reconciled after they are published: the variances that their cells then have.

Of tables whose cells are sums of cells of the next finer one, `prdp reconcile` publishes the least-squares estimates.
Where every cell has as many parts and a table one variance, each table's estimates have one variance, found in two
passes (docs/mathematics.md, section 14): up from the finest one, what a cell's own value and its parts tell of it, and
down again, what is told from outside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from udfs.estimates.variances import combined
from udfs.numbers.arrays import Floats

APART = 1e-4  # of a variance's logarithm, over which slopes are measured


@dataclass(frozen=True)
class Chain:
    """Policies, by number, of nested tables from the finest on, and how many parts a cell of each has on average.

    `parts` has one number less than `members`: those of the second and further tables' cells in the table before.
    """

    members: tuple[int, ...]
    parts: tuple[float, ...]

    def reconciled(self, variances: Sequence[float] | Floats) -> Floats:
        """Return the variance of each table's estimates, from those of its noise."""
        own = [np.asarray(each) for each in variances]
        inside = own[:1]
        for variance, number in zip(own[1:], self.parts, strict=True):
            inside.append(combined(variance, number * inside[-1]))
        outside = np.asarray(np.inf)
        estimates = []
        for t in reversed(range(len(own))):
            estimates.append(float(combined(inside[t], outside)))
            if t:
                outside = combined(own[t], outside) + (self.parts[t - 1] - 1) * inside[t - 1]
        return np.array(estimates[::-1])

    def pulls(self, variances: Sequence[float], weights: Sequence[float]) -> Floats:
        """Return by how much the weighted sum of the estimates' variances grows with ln of each table's own."""
        here = np.array(variances)
        total = float(np.dot(weights, self.reconciled(here)))
        grown = [here * np.where(np.arange(len(here)) == t, 1 + APART, 1.0) for t in range(len(here))]
        return np.array([float(np.dot(weights, self.reconciled(each))) - total for each in grown]) / APART
