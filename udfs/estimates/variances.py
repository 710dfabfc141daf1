"""Variances of estimates without drawing anything: exact where tables nest in one chain, upper bounds elsewhere.

What the least-squares estimate knows of a cell is at least what any selection of independent published values tells
(docs/mathematics.md, section 14): here the best that is found from inside the cell, and the best from outside it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtrc, chdtri

from udfs.estimates.group import Group, Known
from udfs.estimates.tables import (
    Along,
    EstimateError,
    Int32s,
    Observed,
    Positions,
    Sums,
    joint_positions,
    row_slabs,
    sums_between,
)
from udfs.numbers.arrays import Floats, Int64s


def combined(one: Floats, other: Floats) -> Floats:
    """Return the variance of the best mean of two independent values, 1/(1/v + 1/w); 0 and infinite ones included."""
    least, most = np.minimum(one, other), np.maximum(one, other)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.isinf(most) | (least == 0), least, least / (1 + least / most))


def _up(cells: Floats, to: Positions, widths: Sequence[int]) -> Floats:
    """Return the sums of cells, both broadcastable: an axis stays short where all its sums are alike."""
    for axis, (positions, width) in enumerate(zip(to, widths, strict=True)):
        if cells.shape[axis] == 1:
            counts = np.bincount(positions[positions >= 0], minlength=width).astype(np.float64)
            alike = counts[:1] if (counts == counts[:1]).all() else counts
            cells = cells * alike.reshape([-1 if other == axis else 1 for other in range(cells.ndim)])
        else:
            cells = Along(positions, width).up(cells, axis)
    return cells


def _at(cells: Floats, to: Positions, beside: float) -> Floats:
    """Return for each finer cell that of the coarser one it lies in, both broadcastable; `beside` where in none."""
    for axis, positions in enumerate(to):
        if cells.shape[axis] == 1 and (positions >= 0).all():
            continue
        ends = [(0, int(other == axis)) for other in range(cells.ndim)]
        index = positions if cells.shape[axis] > 1 else np.minimum(positions, 0)
        cells = np.pad(cells, ends, constant_values=beside).take(index, axis=axis, mode="wrap")
    return cells


class Variances:
    """Bounds of the variances of one group's estimates, broadcastable to tables' cells; each is computed once.

    With V the variance of a table's value: `inside`, B = 1/(1/V + Σ 1/D), D the sums of the parts' B over finer
    tables, each of which enters once; `outside`, O = U + D' − B, with U = 1/(1/V' + 1/O') and D' of the coarser cell
    it lies in, the least over the coarser tables. Published values that enter B and O are not the same, so
    1/(1/B + 1/O) bounds the variance. So does 1/(1/V + 1/S + Σ 1/D), S the sum of what is known of the parts in a
    finer table by themselves, with coarser ones that lie within the same entries of the axes on which it is finer.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._bounds: dict[str, Floats] = {}
        self._inside: dict[tuple[str, frozenset[str]], Floats] = {}
        self._outside: dict[tuple[str, frozenset[int]], Floats] = {}
        self._steps: dict[tuple[str, str], Positions | None] = {}

    def of(self, table: Observed) -> Floats:
        """Return the bounds of a table's cells on the group's base; raises where no weighted tables make them up."""
        for known in self.group.known:
            to = sums_between(table, known.table)
            if to is not None and sums_between(known.table, table) is not None:
                return np.broadcast_to(_at(self.bounds(known), to, 0.0), table.widths)  # 0 without base cells
        unknown = Known(table.name, table, np.zeros(()), np.full((1,) * len(table.widths), np.inf))
        if not np.isfinite(self.inside(unknown)).all():
            raise EstimateError(f"{table.name}: no weighted table makes up its cells")
        return np.broadcast_to(self.bounds(unknown), table.widths)

    def bounds(self, known: Known) -> Floats:
        """Return the least of all bounds."""
        if known.name not in self._bounds:
            best = combined(self.inside(known), self.outside(known))
            for part in self._nearest(self._finer(known), finer=True):
                best = np.minimum(best, self._from_parts(known, part))
            self._bounds[known.name] = best
        return self._bounds[known.name]

    def _from_parts(self, known: Known, part: Known) -> Floats:
        """Return the variance of V, S and all D that do not enter S; infinite where parts are not known better so."""
        to = self._to(part, known)
        axes = frozenset(axis for axis, step in enumerate(to) if len(np.unique(step)) < len(step))
        beyond = self._coarser(part, axes) if axes else []  # else V may be among them
        if not beyond:
            return np.full((1,) * len(to), np.inf)
        sums = _up(combined(self.inside(part), self.outside(part, axes)), to, known.table.widths)
        used = {one.name for top in beyond for one in (top, *self._finer(top))}
        return combined(sums, self.inside(known, frozenset(used)))

    def inside(self, known: Known, without: frozenset[str] = frozenset()) -> Floats:
        """Return B of a table's cells, from it and finer tables but for some.

        Each finer table enters through the next coarser one that has most cells: the finer the cells in which values
        are combined, the better.
        """
        finer = [one for one in self._finer(known) if one.name not in without]
        key = known.name, frozenset(one.name for one in finer)
        if key not in self._inside:
            best = {one.name: one.variance for one in (*finer, known)}
            for number, one in enumerate(finer):  # those of most cells first
                above = next((top for top in finer[number + 1 :] if self._step(one, top) is not None), known)
                sums = _up(best.pop(one.name), self._to(one, above), above.table.widths)
                best[above.name] = combined(best[above.name], sums)
            self._inside[key] = best[known.name]
        return self._inside[key]

    def outside(self, known: Known, axes: frozenset[int] = frozenset()) -> Floats:
        """Return O of a table's cells, from coarser tables that are not coarser on these axes."""
        key = known.name, axes
        if key not in self._outside:
            best = np.full((1,) * len(known.table.widths), np.inf)
            for top in self._nearest(self._coarser(known, axes), finer=False):
                to, inside = self._to(known, top), self.inside(known)
                beyond = combined(top.variance, self.outside(top, axes)) + _up(inside, to, top.table.widths)
                with np.errstate(invalid="ignore"):
                    rest = _at(beyond, to, np.inf) - inside  # infinite outside the coarser table
                best = np.fmin(best, np.maximum(rest, 0.0))
            self._outside[key] = best
        return self._outside[key]

    def _step(self, finer: Known, coarser: Known) -> Positions | None:
        """Return where positions of a strictly finer table lie in the coarser one; None where it is not finer."""
        key = finer.name, coarser.name
        if key not in self._steps:
            to = sums_between(finer.table, coarser.table)
            self._steps[key] = None if sums_between(coarser.table, finer.table) is not None else to
        return self._steps[key]

    def _to(self, finer: Known, coarser: Known) -> Positions:
        to = self._step(finer, coarser)
        assert to is not None
        return to

    def _finer(self, known: Known) -> list[Known]:
        return [one for one in self.group.known if self._step(one, known) is not None]

    def _coarser(self, known: Known, axes: frozenset[int]) -> list[Known]:
        """Return the coarser tables that are not coarser on these axes."""
        steps = [(one, self._step(known, one)) for one in self.group.known]
        return [one for one, to in steps if to and all(len(np.unique(to[axis])) == len(to[axis]) for axis in axes)]

    def _nearest(self, tables: Collection[Known], *, finer: bool) -> list[Known]:
        """Return the tables between which and the one that they are finer, or coarser, than lies none of the others."""

        def between(one: Known, other: Known) -> bool:
            return self._step(*((one, other) if finer else (other, one))) is not None

        return [one for one in tables if not any(between(one, other) for other in tables)]


# Variances of estimates of crossing tables from drawn signs, pooled over cells that are alike.
#
# Estimates are linear in the published values, so their variances depend on the variances of the noise alone, whatever
# its law: in the place of noise of variance V stands ±√V, drawn (Hutchinson 1990), and is reconciled as values are.

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
        self._classes = {table.name: alike(table, group.known) for table in tables}
        self._pools = {
            name: Sums(classes, tuple(int(axis.max()) + 1 for axis in classes))
            for name, classes in self._classes.items()
        }
        self._seen: dict[str, list[Floats]] = {
            name: [np.zeros(pool.widths), np.zeros(pool.widths)] for name, pool in self._pools.items()
        }
        self._draws = 0

    def add(self, cells: Mapping[str, Floats]) -> None:
        """Count one more solution of drawn signs: the tables' cells."""
        self._draws += 1
        for name, pool in self._pools.items():
            squares = cells[name] ** 2
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


def alike(table: Observed, known: Sequence[Known]) -> tuple[Int32s, ...]:
    """Return classes of the positions on each axis of a table: those that no variance and no level tells apart.

    Colour refinement: entries of the base have one colour where their positions on all tables have; positions, where
    their variances are the same and they hold as many entries of each colour.
    """
    classes = []
    for axis in range(len(table.widths)):
        others = [(one.table.positions[axis], _kinds(one, axis)) for one in known]
        colours = np.zeros(len(table.positions[axis]), dtype=np.int32)
        while True:
            keys = [_held(colours, positions, kinds)[positions] for positions, kinds in others]
            finer = joint_positions([colours, *(np.where(p < 0, 0, k) for k, (p, _) in zip(keys, others, strict=True))])
            if finer.max(initial=0) == colours.max(initial=0):
                break
            colours = finer
        classes.append(_held(colours, table.positions[axis], np.zeros(table.widths[axis], dtype=np.int32)))
    return tuple(classes)


def _kinds(known: Known, axis: int) -> Int32s:
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


# Multipliers from drawn errors: how many standard errors hold an error as often as is wanted, of cells that are alike.
#
# Counted in bins, so that memory does not grow with draws; every step rounds up (docs/mathematics.md, section 15).

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
        self._counts: Int64s = np.zeros((int(np.prod(self.widths)), len(ENDS)), dtype=np.int64)
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
            bins = of_cell * len(ENDS) + np.searchsorted(ENDS, np.abs(errors[rows]))
            counts += np.bincount(bins.reshape(-1), minlength=len(counts))

    def multipliers(self, coverage: float) -> Floats:
        """Return each cell's multiplier, shape: the table's; infinite where draws are too few, or beyond all bins.

        Cells of one draw depend on each other: the order is that of draws whose cells depend on each other entirely.
        """
        order = order_of(self._draws, coverage)
        if order is None:
            return np.full(tuple(map(len, self.classes)), np.inf)
        below = self._counts.cumsum(axis=1)
        reached = below * self._draws >= order * below[:, -1:]
        ends: Floats = ENDS[reached.argmax(axis=1)].reshape(self.widths)[np.ix_(*self.classes)]
        return ends
