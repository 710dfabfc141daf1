"""Variances of estimates of crossing tables from drawn signs, pooled over cells that are alike.

Estimates are linear in the published values, so their variances depend on the variances of the noise alone, whatever
its law: in the place of noise of variance V stands ±√V, drawn (Hutchinson 1990), and is reconciled as values are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import chdtri

from udfs.estimates.group import Group, Known
from udfs.estimates.tables import Int32s, Observed, Sums, joint_positions
from udfs.numbers.arrays import Floats

ABOVE = 0.99  # the probability with which an upper end lies above the variance
LARGEST = 2**20  # among more cells whose variances differ, none are alike


@dataclass(frozen=True, eq=False)
class Drawn:
    """Of one table's cells: the variances that were seen, and upper ends that each holds with probability 0.99."""

    variance: Floats
    upper: Floats


class Draws:
    """Sums over draws of the squared errors of tables, pooled over cells that are alike."""

    def __init__(self, group: Group, tables: Sequence[Observed]) -> None:
        self._sums = {table.name: Sums(table.positions, table.widths) for table in tables}
        self._classes = {table.name: alike(table, group.known) for table in tables}
        self._pools = {
            name: Sums(classes, tuple(int(axis.max()) + 1 for axis in classes))
            for name, classes in self._classes.items()
        }
        self._seen: dict[str, list[Floats]] = {
            name: [np.zeros(pool.widths), np.zeros(pool.widths)] for name, pool in self._pools.items()
        }
        self._draws = 0

    def add(self, base: Floats) -> None:
        """Count one more solution of drawn signs."""
        self._draws += 1
        for name, pool in self._pools.items():
            squares = self._sums[name].up(base) ** 2
            mean = pool.up(squares) / pool.up(np.broadcast_to(1.0, squares.shape))
            self._seen[name][0] += mean
            self._seen[name][1] += mean**2

    def of(self, name: str) -> Drawn:
        """Return what the draws say of a table.

        A mean of squares of nearly Gaussian errors is like χ²/ν: ν follows from how much it varies between draws, and
        half of it is taken, at least one a draw, which holds for cells that depend on each other entirely.
        """
        total, squares = self._seen[name]
        mean = total / self._draws
        spread = np.maximum(squares / self._draws - mean**2, 0.0) * self._draws / max(self._draws - 1, 1)
        freedom = np.full(mean.shape, np.inf)
        np.divide(2 * mean**2, spread, out=freedom, where=spread > 0)
        degrees = self._draws * np.clip(freedom / 2, 1.0, 1e6)
        upper = mean * degrees / chdtri(degrees, ABOVE)
        cells = np.ix_(*self._classes[name])
        return Drawn(mean[cells], upper[cells])


def signs(group: Group, random: np.random.Generator) -> Floats:
    """Return Aᵀ√W·z for signs z, of which N is the covariance: N⁻¹ of it is the error of the base in one draw."""

    def drawn(known: Known) -> Floats:
        cells = random.integers(0, 2, size=known.table.widths, dtype=np.int8).astype(np.float64)
        cells -= 0.5
        cells *= 2 * np.sqrt(known.weights)
        return cells

    out = np.zeros(group.shape) if group.base is None else drawn(group.base)
    group.spread({known.name: drawn(known) for known in group.upper}, out)
    return out


def alike(table: Observed, known: Sequence[Known]) -> tuple[Int32s, ...]:
    """Return classes of the positions on each axis of a table: those that no variance and no level tells apart.

    Colour refinement: entries of the base have one colour where their positions on all tables have; positions, where
    their variances are the same and they hold as many entries of each colour.
    """
    found = []
    for axis in range(len(table.widths)):
        others = [(one.table.positions[axis], _kinds(one, axis)) for one in known]
        colours = np.zeros(len(table.positions[axis]), dtype=np.int32)
        while True:
            keys = [_held(colours, positions, kinds)[positions] for positions, kinds in others]
            finer = joint_positions([colours, *(np.where(p < 0, 0, k) for k, (p, _) in zip(keys, others, strict=True))])
            if finer.max(initial=0) == colours.max(initial=0):
                break
            colours = finer
        found.append(_held(colours, table.positions[axis], np.zeros(table.widths[axis], dtype=np.int32)))
    return tuple(found)


def _kinds(known: Known, axis: int) -> Int32s:
    """Return the class of each position on an axis by the variances of its cells."""
    variance, width = known.variance, known.table.widths[axis]
    if variance.shape[axis] == 1:
        return np.zeros(width, dtype=np.int32)
    if variance.size > LARGEST:
        return np.arange(width, dtype=np.int32)
    rows = np.moveaxis(variance, axis, 0).reshape(width, -1)
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int32)


def _held(colours: Int32s, positions: Int32s, kinds: Int32s) -> Int32s:
    """Return classes of positions: of one kind, and with as many entries of each colour.

    Two sets of colours are told apart by the sums of random numbers of 64 bits, one a colour.
    """
    random = np.random.default_rng(0).integers(2**64, size=int(colours.max(initial=0)) + 1, dtype=np.uint64)
    order = np.argsort(positions, kind="stable")
    ends = np.searchsorted(positions[order], np.arange(len(kinds) + 1))
    running = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(random[colours[order]])])
    sums = np.diff(running[ends])  # modulo 2⁶⁴
    return joint_positions([kinds, np.unique(sums, return_inverse=True)[1].astype(np.int32)])
