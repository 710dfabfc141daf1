"""The errors that tables have once they add up, from the sizes of their levels alone, with no cell enumerated.

Totals of a product of keys, each with levels, are the sum of independent parts: one for each combination of levels, of
what that combination tells beside all coarser ones (the residual basis; Xiao, He, Zhang and Kifer, arXiv 2305.08175).
Where every cell of a level has as many parts in the next, least squares of all tables decides each residual by itself:

    J_e = Σ_{T ≥ e} n_e / (V_T·n_T)                       the information of all tables about the residual of e
    V̂_T = Σ_{e ≤ T} (d_e/n_e)·(n_e/n_T)² / J_e            the variance of a cell of T

with n the number of cells, d_e = n_e − Σ_{f < e} d_f the residual's dimension, V_T the variance of a table's noise, and
e ≤ T where each cell of T lies in one of e. Real levels are uneven: n_e/n_T is then the mean number of parts, and V̂ is
off by a few per cent as a rule (docs/calibration.md).

**Noise of its own for each code of one level**, such as a class of size. All of this is then meant within one code, and
what tables tell of a residual is a matrix over the codes, as tables that add codes up tie them together:

    J_e = Σ_{T ≥ e} (n_e/n_T)·Aᵀ·diag(1/V_T)·A            (codes, codes); A (rows, codes): which codes a row adds up
    V̂_T = Σ_{e ≤ T} (d_e/n_e)·(n_e/n_T)²·diag(A·J_e⁻¹·Aᵀ)  (rows,)

as exact as the first pair. A mean of the variances would not be: sums over codes have the arithmetic mean, what other
tables know better the harmonic one, and what lies between neither (docs/calibration.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from udfs.numbers.arrays import Floats, Int64s, Mask

NOTHING = 1e-13  # of the largest information, after scaling, below which there is none
TINY = 1e-300
APART = 1e-5  # of a sum over codes that nothing tells


@dataclass(frozen=True, eq=False)
class LatticeTable:
    """A table that is published: which cells, and whose noise is in them.

    `combination`: the number of its levels, those of a code's cells. `sums`: (r, c), which codes each row of it adds
    up. `rows`: (r,), the share of its cells in each row. `parts`: by the number of a policy (r,), of which share of
    each row's cells that is the noise; none where the table is not measured, but derived from others.
    """

    combination: int
    sums: Floats
    rows: Floats
    parts: Mapping[int, Floats]

    @classmethod
    def of(cls, combination: int, members: Mapping[int, float]) -> Self:
        """Return the table of a lattice of one code, from the shares of its cells that have each policy's noise."""
        one = np.ones(1)
        return cls(combination, np.ones((1, 1)), one, {i: share * one for i, share in members.items()})

    @property
    def members(self) -> dict[int, float]:
        """The share of the table's cells that have each policy's noise."""
        return {i: float(self.rows @ share) for i, share in self.parts.items()}


@dataclass(frozen=True, eq=False)
class Lattice:
    """The combinations of levels of one statistic, coarser ones first, and which of them are published.

    `cells`: (e,) how many cells each has, of one code. `coarser`: (e, e), whether each cell of the second lies in one
    of the first, as each does in itself. `names`: those of the tables, where they have any.
    """

    cells: Floats
    coarser: Mask
    tables: Sequence[LatticeTable]
    names: Sequence[str] = ()

    @cached_property
    def members(self) -> list[dict[int, float]]:
        """Of each table the numbers of its policies, with their shares of its cells; none of a derived one."""
        return [table.members for table in self.tables]

    @cached_property
    def numbers(self) -> list[int]:
        """(m,) the numbers of all policies, by table."""
        return [i for table in self.tables for i in table.parts]

    @cached_property
    def dimensions(self) -> Floats:
        """(e,) the dimension of each residual; 0 where a combination tells nothing beside coarser ones."""
        dimensions = self.cells.astype(np.float64)
        for e in range(len(dimensions)):
            dimensions[e] -= dimensions[:e] @ self.coarser[:e, e]
        return np.maximum(dimensions, 0.0)  # crossing levels may share more than what is coarser than both

    def reconciled(self, variances: Sequence[float] | Floats) -> Floats:
        """Return (t,) the mean variance of each table's estimates, from (m,) those of noise; inf where nothing tells.

        An infinite variance is as good as no table.
        """
        estimates = zip(self.tables, self._estimates(variances), strict=True)
        return np.array([_mean(of, table.rows) for table, of in estimates])

    def tells_all(self, variances: Sequence[float] | Floats) -> bool:
        """Return whether something is known of all cells of all tables."""
        unknown = self._inverses(variances)[1]
        return all(self._is_told(table, unknown)[table.rows > 0].all() for table in self.tables)

    def reconciled_members(self, variances: Sequence[float] | Floats) -> Floats:
        """Return (m,) the same of each policy's own cells."""
        return np.array(
            [
                _mean(of, shares * table.rows)
                for table, of in zip(self.tables, self._estimates(variances), strict=True)
                for shares in table.parts.values()
            ]
        )

    def pulls(
        self,
        variances: Sequence[float] | Floats,
        weights: Sequence[float] | Floats,
        of_members: Sequence[float] | Floats | None = None,
    ) -> Floats:
        """Return (m,) by how much a weighted sum of the estimates' variances grows with ln of each policy's own.

        Σ weights·reconciled + Σ of_members·reconciled_members; estimates that nothing tells do not count.
        """
        own, inverses, unknown = self._own(variances), *self._inverses(variances)
        extra = iter(np.zeros(len(self.numbers)) if of_members is None else np.asarray(of_members))
        growth = np.zeros_like(inverses)
        for weight, table in zip(weights, self.tables, strict=True):
            wanted = weight * table.rows
            for shares in table.parts.values():
                wanted = wanted + next(extra) * shares * table.rows / max(shares @ table.rows, TINY)
            wanted = np.where(self._is_told(table, unknown), wanted, 0.0)
            growth += self._factors(table)[:, None, None] * ((table.sums.T * wanted) @ table.sums)
        growth = inverses @ growth @ inverses
        pulls: list[float] = []
        left = iter(np.asarray(variances, dtype=np.float64))
        for table, variance in zip(self.tables, own, strict=True):
            grows = np.einsum("e,rc,ecd,rd->r", self._shares(table), table.sums, growth, table.sums, optimize=True)
            has = np.isfinite(variance)
            for shares in table.parts.values():
                of_part = next(left)
                pulls.append(float(grows[has] @ (shares[has] * of_part / variance[has] ** 2)))
        return np.array(pulls)

    def slopes(self, variances: Sequence[float] | Floats) -> tuple[Floats, Floats]:
        """Return (m,) what `reconciled_members` does, and (m, m) by how much each grows with ln of each policy's own.

        Some table must tell something of every residual.
        """
        rows, precisions = self._rows, self._rows.precisions(variances)
        inverses, _ = self._inverses(variances, precisions)
        known = np.where(np.isfinite(variances), variances, 0.0)
        covariances = rows.sums @ inverses @ rows.sums.T
        squares = covariances**2
        estimates, grows = np.empty(len(rows.parts)), np.empty((len(rows.parts), len(rows.parts)))
        for k, some in enumerate(rows.of_kinds):
            estimates[some] = rows.factors[some] @ covariances[:, k, k]
            grows[some] = rows.factors[some] @ (rows.shares.T * np.take(squares[:, k], rows.kind, axis=1))
        if rows.own is not None:  # what the sums below come to, of one term each
            return estimates[rows.own], grows[np.ix_(rows.own, rows.own)] * (known * precisions[rows.own] ** 2)
        return rows.weights @ estimates, rows.weights @ grows @ (rows.parts * known * precisions[:, None] ** 2)

    @cached_property
    def _rows(self) -> "_Rows":
        parts = np.zeros((sum(len(table.rows) for table in self.tables), len(self.numbers)))
        weights = np.zeros_like(parts.T)
        row = member = 0
        for table in self.tables:
            for shares in table.parts.values():
                place = slice(row, row + len(shares))
                parts[place, member] = shares
                weights[member, place] = shares * table.rows / max(float(shares @ table.rows), TINY)
                member += 1
            row += len(table.rows)
        sums, kind = np.unique(np.concatenate([table.sums for table in self.tables]), axis=0, return_inverse=True)
        of_rows = [(self._shares(table), self._factors(table)) for table in self.tables for _ in table.rows]
        shares, factors = (np.array(each) for each in zip(*of_rows, strict=True))
        squares = (sums[:, :, None] * sums[:, None, :]).reshape(len(sums), -1)[kind]
        return _Rows(squares, sums, kind, parts, weights, shares, factors)

    def _estimates(self, variances: Sequence[float] | Floats) -> list[Floats]:
        """(r,) for each table: the variance of its rows' estimates."""
        inverses, unknown = self._inverses(variances)
        return [
            np.where(
                self._is_told(table, unknown),
                np.einsum("e,rc,ecd,rd->r", self._factors(table), table.sums, inverses, table.sums, optimize=True),
                np.inf,
            )
            for table in self.tables
        ]

    def _own(self, variances: Sequence[float] | Floats) -> list[Floats]:
        """(r,) for each table: the variance of its rows' noise, infinite where it has none."""
        left = iter(np.asarray(variances, dtype=np.float64))
        own = []
        for table in self.tables:
            of_parts = [(shares, next(left)) for shares in table.parts.values()]
            sums = sum((np.where(shares > 0, variance, 0) * shares for shares, variance in of_parts), 0 * table.rows)
            own.append(sums if of_parts else np.full(len(table.rows), np.inf))
        return own

    def _shares(self, table: LatticeTable) -> Floats:
        """(e,): n_e/n_T where e ≤ T."""
        shares: Floats = self.coarser[:, table.combination] * self.cells / self.cells[table.combination]
        return np.where(self.dimensions > 0, shares, 0.0)

    def _factors(self, table: LatticeTable) -> Floats:
        """(e,): d_e·n_e/n_T² where e ≤ T."""
        factors: Floats = self._shares(table) * self.dimensions / self.cells[table.combination]
        return factors

    def _is_told(self, table: LatticeTable, unknown: Floats) -> Mask:
        """(r,): whether something is known of all residuals of a row's cells."""
        rows = np.abs(np.einsum("rc,ecd->erd", table.sums, unknown)).max(axis=2)
        seen: Mask = (rows <= APART)[self._shares(table) > 0].all(axis=0)
        return seen

    def _inverses(self, variances: Sequence[float] | Floats, precisions: Floats | None = None) -> tuple[Floats, Floats]:
        """(e, c, c): J_e⁻¹, as far as anything is known; and the directions of which nothing is, of length 1."""
        codes = self.tables[0].sums.shape[1]
        rows = self._rows
        precisions = rows.precisions(variances) if precisions is None else precisions
        information = (rows.shares.T * precisions) @ rows.squares
        information = information.reshape(len(self.cells), codes, codes)
        diagonal = np.einsum("ecc->ec", information)
        scales = np.divide(1, np.sqrt(diagonal), out=np.zeros_like(diagonal), where=diagonal > 0)
        most = scales.max(axis=1, keepdims=True)
        scales = np.where(diagonal > 0, scales, np.where(most > 0, most, 1.0))
        values, vectors = np.linalg.eigh(information * scales[:, :, None] * scales[:, None, :])
        seen = (values > NOTHING)[:, None, :]
        roots = scales[:, :, None] * vectors / np.sqrt(np.where(seen, values[:, None, :], np.inf))
        unknown = np.where(seen, 0.0, scales[:, :, None] * vectors)
        largest = np.linalg.norm(unknown, axis=1, keepdims=True)
        return roots @ roots.swapaxes(1, 2), unknown / np.where(largest > 0, largest, 1.0)


@dataclass(frozen=True, eq=False)
class _Rows:
    """All rows of a lattice's tables together, and all policies.

    `squares`: (r, c·c) the products of each row's sums. `sums`: (k, c) those that differ, `kind` (r,) which a row has.
    `parts`: (r, m) which share of a row has which policy's noise. `weights`: (m, r) which rows each policy's own cells
    are. `shares`, `factors`: (r, e) those of the row's table.
    """

    squares: Floats
    sums: Floats
    kind: Int64s
    parts: Floats
    weights: Floats
    shares: Floats
    factors: Floats

    @cached_property
    def of_kinds(self) -> list[Int64s]:
        """The rows of each kind."""
        return [np.flatnonzero(self.kind == k) for k in range(len(self.sums))]

    @cached_property
    def own(self) -> Int64s | None:
        """(m,) the one row that each policy's cells are; None where some row has several, or some policy."""
        single = (self.parts == 1).sum(axis=0), (self.parts != 0).sum(axis=0), (self.parts != 0).sum(axis=1)
        same = np.array_equal(self.weights, self.parts.T) and all((count == 1).all() for count in single)
        return np.argmax(self.parts, axis=0) if same else None

    def precisions(self, variances: Sequence[float] | Floats) -> Floats:
        """Return (r,) 1 over the variance of each row's noise, 0 where it has none."""
        known = np.isfinite(variances)
        own = self.parts @ np.where(known, variances, 0.0)
        measured = (own > 0) & ~(self.parts[:, ~known] > 0).any(axis=1)
        precisions: Floats = np.divide(1.0, own, out=np.zeros_like(own), where=measured)
        return precisions


def _mean(values: Floats, weights: Floats) -> float:
    """Return the mean of values, those of weight 0 aside, which may be infinite."""
    counted = weights > 0
    return float(weights[counted] @ values[counted] / max(weights.sum(), TINY))
