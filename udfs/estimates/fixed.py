"""Totals known without noise: whether they agree with each other, and the base values that meet them all."""

from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from udfs.estimates.group import Group, Known
from udfs.estimates.tables import EstimateError, Observed, Sums, joint_positions, sums_between
from udfs.numbers.arrays import Floats, Mask

MOST_CROSSING = 4000  # fixed cells of tables that cross: a dense matrix of their common parts is solved
LEAST_EIGENVALUE = 1e-10  # smaller ones, relative to the largest, belong to totals that follow from others


def require_agreement(group: Group, tolerance: float) -> None:
    """Refuse fixed totals off the domain, and those that do not equal the sum of their parts where all are fixed."""
    for known in group.known:
        if known.fixed is None:
            continue
        parts = group.sums[known.name].up(np.broadcast_to(1.0, group.shape))
        off = np.argwhere((parts == 0) & (known.values != 0) & known.fixed)
        if len(off):
            raise EstimateError(f"{known.name}: a fixed total lies in a cell {_cell(off)} that has no base cell")
    for finer, coarser in combinations((known for known in group.known if known.fixed is not None), 2):
        sums = group.within[finer.name].get(coarser.name)
        if sums is None:
            continue
        differ = _all_parts(finer, coarser, sums) & (np.abs(sums.up(finer.values) - coarser.values) > tolerance)
        if differ.any():
            cell = _cell(np.argwhere(differ))
            raise EstimateError(
                f"fixed totals contradict each other: {finer.name} do not add up to {coarser.name} {cell}"
            )


def _all_parts(finer: Known, coarser: Known, sums: Sums) -> Mask:
    """Mask of the fixed cells of the coarser table all of whose parts are fixed too."""
    assert finer.fixed is not None
    assert coarser.fixed is not None
    free = sums.up(np.where(finer.fixed, 0.0, 1.0))
    mask: Mask = coarser.fixed & (free == 0)
    return mask


def _cell(found: NDArray[np.intp]) -> str:
    return f"(cell {tuple(map(int, found[0]))})"


class Fixed:
    """The constraints C·x = f of fixed totals, over the common parts J of the tables that hold them."""

    def __init__(self, group: Group, variance: Floats) -> None:
        self.group = group
        held = [known for known in group.known if known.fixed is not None]
        held = [known for known in held if not _implied(known, held, group)]
        self.names = ", ".join(known.name for known in held)
        positions = tuple(joint_positions(axis) for axis in zip(*(k.table.positions for k in held), strict=True))
        widths = tuple(int(axis.max(initial=-1)) + 1 for axis in positions)
        self.joint = Observed("common parts of the fixed totals", positions, widths, None, None)
        self.sums = Sums(positions, widths)
        self.metric = np.where(variance > 0, variance, variance.max() or 1.0)
        weight = self.sums.up(np.broadcast_to(self.metric, group.shape))
        self.totals = np.concatenate([known.values[known.fixed] for known in held])
        self.rows = sparse.vstack([_rows(known, self.joint) for known in held], format="csr")
        matrix = self.rows @ sparse.diags_array(weight.ravel()) @ self.rows.T
        scale = np.sqrt(np.maximum(matrix.diagonal(), np.finfo(float).tiny))
        self.root = sparse.diags_array(1 / scale)  # where no totals cross
        if len(held) == 1:
            return
        if len(self.totals) > MOST_CROSSING:
            raise EstimateError(
                f"{self.names}: {len(self.totals):,} fixed totals in crossing tables; "
                f"at most {MOST_CROSSING:,} can be held"
            )
        values, vectors = np.linalg.eigh(matrix.toarray() / scale / scale[:, None])
        kept = values > LEAST_EIGENVALUE * values.max()
        self.root = (vectors[:, kept] / np.sqrt(values[kept])) / scale[:, None]

    def _solved(self, right: Floats) -> Floats:
        """(C V Cᵀ)⁺·right, spread to the common parts."""
        spread: Floats = self.rows.T @ (self.root @ (self.root.T @ right))
        return spread.reshape(self.joint.widths)

    def meet(self, base: Floats, tolerance: float) -> None:
        """Move base values, by as little as the metric allows, to meet all totals; raises where none do."""
        self._move(base, self.totals)
        missed = np.abs(self.rows @ self.sums.up(base).ravel() - self.totals)
        if (missed > tolerance + 1e-9 * np.abs(self.totals)).any():
            raise EstimateError(f"fixed totals contradict each other: {self.names} do not have a common solution")

    def within(self, base: Floats) -> None:
        """Project base values in place to those of which all fixed sums are 0."""
        self._move(base, np.zeros(len(self.totals)))

    def _move(self, base: Floats, totals: Floats) -> None:
        spread = np.zeros(self.group.shape)
        self.sums.down(self._solved(totals - self.rows @ self.sums.up(base).ravel()), spread)
        spread *= self.metric
        base += spread

    def reduce(self, right: Floats) -> None:
        """Take from a residual, in place, what the fixed totals hold: the transposed projection.

        Without it rounding of that part would outweigh what is left, and lead away from the fixed totals.
        """
        cells = self.rows @ self.sums.up(right * self.metric).ravel()
        self.sums.down(-self._solved(cells), right)


def _implied(known: Known, held: list[Known], group: Group) -> bool:
    """Whether all fixed cells of a table are sums of fixed cells of a finer one."""
    return any(
        known.name in group.within[finer.name]
        and bool((_all_parts(finer, known, group.within[finer.name][known.name]) == known.fixed).all())
        for finer in held
        if finer is not known
    )


def _rows(known: Known, joint: Observed) -> sparse.csr_array:
    """Return which common parts each fixed cell adds up, one row a cell."""
    to = sums_between(joint, known.table)
    assert to is not None
    assert known.fixed is not None
    cells = np.zeros(joint.widths, dtype=np.int64)
    inside = np.ones(joint.widths, dtype=bool)
    for axis, (positions, width) in enumerate(zip(to, known.table.widths, strict=True)):
        shape = tuple(-1 if number == axis else 1 for number in range(len(to)))
        cells = cells * width + positions.reshape(shape)
        inside &= (positions >= 0).reshape(shape)
    number = np.full(known.fixed.size, -1)
    number[known.fixed.ravel()] = np.arange(int(known.fixed.sum()))
    row = np.where(inside, number[np.where(inside, cells, 0)], -1).ravel()
    kept = np.flatnonzero(row >= 0)
    shape = (int(known.fixed.sum()), row.size)
    return sparse.csr_array((np.ones(len(kept)), (row[kept], kept)), shape=shape)
