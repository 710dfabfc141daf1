"""The errors that tables have once they add up, from the sizes of their levels alone, with no cell enumerated.

Totals of a product of keys, each with levels, are the sum of independent parts: one for each combination of levels, of
what that combination tells beside all coarser ones (the residual basis; Xiao, He, Zhang and Kifer, arXiv 2305.08175).
Where every cell of a level has as many parts in the next, least squares of all tables decides each residual by itself:

    J_e = Σ_{T ≥ e} n_e / (V_T·n_T)                       the information of all tables about the residual of e
    V̂_T = Σ_{e ≤ T} (d_e/n_e)·(n_e/n_T)² / J_e            the variance of a cell of T

with n the number of cells, d_e = n_e − Σ_{f < e} d_f the residual's dimension, V_T the variance of a table's noise, and
e ≤ T where each cell of T lies in one of e. Real levels are uneven: n_e/n_T is then the mean number of parts, and V̂ is
off by a few per cent as a rule (docs/calibration.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from udfs.numbers.arrays import Floats, Mask


@dataclass(frozen=True, eq=False)
class Lattice:
    """The combinations of levels of one statistic, coarser ones first, and which of them are published.

    `cells`: (e,) how many cells each has. `coarser`: (e, e), whether each cell of the second lies in one of the first,
    as each does in itself. `tables`: (t,) the published combinations. `members`: (t,) the numbers of their policies.
    """

    cells: Floats
    coarser: Mask
    tables: Sequence[int]
    members: Sequence[int]

    @cached_property
    def dimensions(self) -> Floats:
        """(e,) the dimension of each residual; 0 where a combination tells nothing beside coarser ones."""
        dimensions = self.cells.astype(np.float64)
        for e in range(len(dimensions)):
            dimensions[e] -= dimensions[:e] @ self.coarser[:e, e]
        return np.maximum(dimensions, 0.0)  # crossing levels may share more than what is coarser than both

    def reconciled(self, variances: Sequence[float] | Floats) -> Floats:
        """Return (t,) the mean variance of each table's estimates, from those of its noise."""
        return self._weights @ (self.dimensions * self.cells / self._information(variances))

    def pulls(self, variances: Sequence[float] | Floats, weights: Sequence[float] | Floats) -> Floats:
        """Return (t,) by how much the weighted sum of the estimates' variances grows with ln of each table's own."""
        information = self._information(variances)
        growth = (np.asarray(weights) @ self._weights) * self.dimensions * (self.cells / information) ** 2
        pulls: Floats = self._shares(variances) @ growth
        return pulls

    def _shares(self, variances: Sequence[float] | Floats) -> Floats:
        """(t, e): 1/(V_T·n_T) where e ≤ T."""
        tables = list(self.tables)
        shares: Floats = self.coarser[:, tables].T / (np.asarray(variances) * self.cells[tables])[:, None]
        return shares

    def _information(self, variances: Sequence[float] | Floats) -> Floats:
        """(e,): J_e; infinite where nothing is to be known."""
        information = self.cells * self._shares(variances).sum(axis=0)
        return np.where(self.dimensions > 0, information, np.inf)

    @cached_property
    def _weights(self) -> Floats:
        """(t, e): 1/n_T² where e ≤ T."""
        tables = list(self.tables)
        weights: Floats = self.coarser[:, tables].T / self.cells[tables][:, None] ** 2
        return weights
