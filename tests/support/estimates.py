"""Groups of tables to reconcile, and their least-squares solution by dense matrices."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.linalg import null_space

from udfs.estimates.tables import Observed
from udfs.numbers.arrays import Floats


def matrix(table: Observed) -> Floats:
    """A: which base cells each cell of the table adds up, by enumeration."""
    rows = np.zeros((int(np.prod(table.widths)), int(np.prod([len(axis) for axis in table.positions]))))
    for atom, cell in enumerate(np.ndindex(*map(len, table.positions))):
        at = tuple(int(axis[i]) for axis, i in zip(table.positions, cell, strict=True))
        if min(at) >= 0:
            rows[np.ravel_multi_index(at, table.widths), atom] = 1
    return rows


class Dense:
    """minimises Σ (y − A·x)²/V where V > 0, subject to A·x = y where V = 0: by pseudo-inverses alone."""

    def __init__(self, tables: Sequence[Observed]) -> None:
        weighted = [table for table in tables if table.values is not None]
        a = np.vstack([matrix(table) for table in weighted])
        y = np.concatenate([table.values.ravel() for table in weighted])
        v = np.concatenate([np.broadcast_to(table.variance, table.widths).ravel() for table in weighted])
        fixed, noisy = v == 0, (v > 0) & np.isfinite(v)
        start, free = np.zeros(a.shape[1]), np.eye(a.shape[1])
        if fixed.any():
            start = np.linalg.pinv(a[fixed], rcond=1e-10) @ y[fixed]
            assert np.allclose(a[fixed] @ start, y[fixed])
            free = null_space(a[fixed], rcond=1e-10)
        root = 1 / np.sqrt(v[noisy])
        design = np.where(np.abs(seen := a[noisy] @ free) > 1e-10, seen, 0.0) * root[:, None]
        solve = free @ np.linalg.pinv(design, rcond=1e-10)
        self.base = start + solve @ (root * (y[noisy] - a[noisy] @ start))
        self.covariances = solve @ solve.T  # N⁻¹ on the space that fixed totals leave free

    def table(self, table: Observed) -> Floats:
        return (matrix(table) @ self.base).reshape(table.widths)

    def variances(self, table: Observed) -> Floats:
        a = matrix(table)
        return ((a @ self.covariances) * a).sum(axis=1).reshape(table.widths)


def level(codes: int, parts: int, random: np.random.Generator) -> np.ndarray:
    """Positions of a level: `parts` neighbouring groups of `codes` codes, none of them empty."""
    ends = np.sort(random.choice(np.arange(1, codes), parts - 1, replace=False))
    return np.searchsorted(ends, np.arange(codes), side="right").astype(np.int32)


def nothing(codes: int) -> np.ndarray:
    """Positions of an axis that is added up."""
    return np.zeros(codes, dtype=np.int32)


def table(name: str, *axes: np.ndarray) -> Observed:
    """A table without values at these positions."""
    positions = tuple(np.asarray(axis, dtype=np.int32) for axis in axes)
    return Observed(name, positions, tuple(int(axis.max(initial=0)) + 1 for axis in positions), None, None)


def observed(
    tables: Sequence[Observed], truth: Floats, variances: Sequence[Floats | float], random: np.random.Generator
) -> list[Observed]:
    """The tables with true values and Gaussian noise of these variances."""
    out = []
    for one, variance in zip(tables, variances, strict=True):
        spread = np.asarray(variance, dtype=np.float64)
        true = (matrix(one) @ truth.ravel()).reshape(one.widths)
        finite = np.where(np.isfinite(spread), spread, 1.0)
        out.append(replace(one, values=true + np.sqrt(finite) * random.normal(size=one.widths), variance=spread))
    return out
