"""Totals known without noise: whether they agree, the vectors that meet them all, and whole units that do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from udfs.estimates.cliques import Cliques, added, count, measure_of_entries
from udfs.estimates.group import Group, Known
from udfs.estimates.tables import EstimateError, Int32s, Observed, Sums, joint_positions, sums_between
from udfs.numbers.arrays import Floats, Mask

MOST_CROSSING = 4000  # fixed cells of tables that cross: a dense matrix of their common parts is solved
MOST_PARTS = 2**22  # of all tables with fixed totals together
FIRM = 1e-3  # of the least variance: that of what is known without noise, in the inverse alone
WHOLE = 2.0**53  # doubles below it hold every whole number
CLOSE = 1e-3  # of a unit: how far a fixed total may seem from a whole number by rounding of its sums
LEAST_EIGENVALUE = 1e-10  # smaller ones, relative to the largest, belong to totals that follow from others


def require_agreement(group: Group, tolerance: float) -> None:
    """Refuse fixed totals off the domain, and those that do not equal the sum of their parts where all are fixed."""
    for known in group.known:
        if known.fixed is None:
            continue
        axes = zip(known.table.positions, known.table.widths, strict=True)
        parts = reduce(np.multiply.outer, (np.bincount(to + 1, minlength=n + 1)[1:] > 0 for to, n in axes))
        off = np.argwhere(~parts & (known.values != 0) & known.fixed)
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
    assert finer.fixed is not None
    assert coarser.fixed is not None
    free = sums.up(np.where(finer.fixed, 0.0, 1.0))
    mask: Mask = coarser.fixed & (free == 0)
    return mask


def _cell(cells: NDArray[np.intp]) -> str:
    return f"(cell {tuple(map(int, cells[0]))})"


def firmly(known: Sequence[Known]) -> list[Known]:
    """Return tables with a little noise in place of none."""
    noisy = (one.variance[(one.variance > 0) & np.isfinite(one.variance)] for one in known)
    least = FIRM * min((float(each.min()) for each in noisy if each.size), default=1.0)
    return [replace(one, variance=np.where(one.variance == 0, least, one.variance)) for one in known]


class Fixed:
    """The constraints C·x = f of fixed totals, over the common parts J of the tables that hold them.

    `metric` is how far, by what it costs, base cells may be moved: G, so that x + GCᵀ(CGCᵀ)⁻¹(f − C·x) meets them all.
    """

    def __init__(self, group: Group, variance: Floats) -> None:
        self.metric = np.where(variance > 0, variance, variance.max() or 1.0)
        self._hold(group)
        self.sums = Sums(self.joint.positions, self.joint.widths)
        self._solve(self.sums.up(np.broadcast_to(self.metric, group.shape)))

    def _hold(self, group: Group) -> None:
        held = [known for known in group.known if known.fixed is not None]
        self.held = [known for known in held if not _implied(known, held, group)]
        self.names = ", ".join(known.name for known in self.held)
        positions = tuple(joint_positions(axis) for axis in zip(*(k.table.positions for k in self.held), strict=True))
        widths = tuple(int(axis.max(initial=-1)) + 1 for axis in positions)
        if math.prod(widths) > MOST_PARTS:
            raise EstimateError(
                f"{self.names}: fixed totals of {math.prod(widths):,} common parts; at most {MOST_PARTS:,} can be held"
            )
        self.joint = Observed("common parts of the fixed totals", positions, widths, None, None)
        self.totals = np.concatenate([known.values[known.fixed] for known in self.held])
        self.rows = sparse.vstack([_rows(known, self.joint) for known in self.held], format="csr")

    def _solve(self, weight: Floats) -> None:
        """Factor CGCᵀ, from G's sums over the common parts."""
        matrix = self.rows @ sparse.diags_array(weight.ravel()) @ self.rows.T
        scale = np.sqrt(np.maximum(matrix.diagonal(), np.finfo(float).tiny))
        self.root = sparse.diags_array(1 / scale)  # where no totals cross
        if len(self.held) == 1:
            return
        if len(self.totals) > MOST_CROSSING:
            raise EstimateError(
                f"{self.names}: {len(self.totals):,} fixed totals in crossing tables; "
                f"at most {MOST_CROSSING:,} can be held"
            )
        values, vectors = np.linalg.eigh(matrix.toarray() / scale / scale[:, None])
        kept = values > LEAST_EIGENVALUE * values.max()
        self.root = (vectors[:, kept] / np.sqrt(values[kept])) / scale[:, None]

    def sums_of(self, vector: Floats) -> Floats:
        """Return C·x."""
        cells: Floats = self.rows @ self.sums.up(vector).ravel()
        return cells

    def _parts(self, cells: Floats) -> Floats:
        parts: Floats = (self.rows.T @ cells).reshape(self.joint.widths)
        return parts

    def _add(self, cells: Floats, vector: Floats) -> None:
        """Add GCᵀ·cells."""
        spread = np.zeros(vector.shape)
        self.sums.down(self._parts(cells), spread)
        spread *= self.metric
        vector += spread

    def _weighed(self, right: Floats) -> Floats:
        """Return CG·right."""
        cells: Floats = self.rows @ self.sums.up(right * self.metric).ravel()
        return cells

    def _take(self, cells: Floats, right: Floats) -> None:
        """Take Cᵀ·cells from a function of vectors."""
        self.sums.down(-self._parts(cells), right)

    def _solved(self, cells: Floats) -> Floats:
        solved: Floats = self.root @ (self.root.T @ cells)
        return solved

    def meet(self, vector: Floats, tolerance: float) -> None:
        """Move a vector, by as little as the metric allows, to meet all totals; raises where none does."""
        self._add(self._solved(self.totals - self.sums_of(vector)), vector)
        missed = np.abs(self.sums_of(vector) - self.totals)
        if (missed > tolerance + 1e-9 * np.abs(self.totals)).any():
            raise EstimateError(f"fixed totals contradict each other: {self.names} do not have a common solution")

    def within(self, vector: Floats) -> None:
        """Project a vector in place to those of which all fixed sums are 0."""
        self._add(self._solved(-self.sums_of(vector)), vector)

    def reduce(self, right: Floats) -> None:
        """Take from a residual, in place, what the fixed totals hold: the transposed projection.

        Without it rounding of that part would outweigh what is left, and lead away from the fixed totals.
        """
        self._take(self._solved(self._weighed(right)), right)


class FixedInCliques(Fixed):
    """The same over vectors of cliques: G is a product of measures of the axes, whose sums need no base cells."""

    def __init__(self, cliques: Cliques) -> None:
        self.cliques = cliques
        self._hold(cliques.group)
        axes = range(len(self.joint.widths))
        measures = [measure_of_entries(cliques.group.known, axis) for axis in axes]
        parts = [(to, each / each.mean()) for to, each in zip(self.joint.positions, measures, strict=True)]
        spans = [added(to, each, width) for (to, each), width in zip(parts, self.joint.widths, strict=True)]
        self._within = [
            [_crossing(labels, *part) for labels, part in zip(one.levels, parts, strict=True)]
            for one in cliques.cliques
        ]
        self._solve(reduce(np.multiply.outer, spans))

    def sums_of(self, vector: Floats) -> Floats:
        """Return C·x."""
        return np.concatenate([self.cliques.up(known.table, vector)[known.fixed] for known in self.held])

    def _add(self, cells: Floats, vector: Floats) -> None:
        parts = self._parts(cells)
        for view, maps in zip(self.cliques.of(vector), self._within, strict=True):
            np.add(view, _mapped(parts, maps), out=view)

    def _weighed(self, right: Floats) -> Floats:
        views = zip(self.cliques.of(right), self._within, strict=True)
        every = (_mapped(view, [one.T for one in maps]) for view, maps in views)
        cells: Floats = self.rows @ reduce(np.add, every).ravel()
        return cells

    def _take(self, cells: Floats, right: Floats) -> None:
        ends = np.cumsum([int(np.asarray(known.fixed).sum()) for known in self.held])
        for known, own in zip(self.held, np.split(cells, ends[:-1]), strict=True):
            spread = np.zeros(known.table.widths)
            spread[known.fixed] = -own
            self.cliques.down(known.table, spread, right)

    def shared(self, cells: Floats) -> Floats:
        """Return common parts that add up to these, shared out evenly."""
        from scipy.sparse.linalg import lsqr  # noqa: PLC0415

        parts: Floats = lsqr(self.rows, cells, atol=1e-14, btol=1e-14)[0].reshape(self.joint.widths)
        return parts

    def place(self, parts: Floats, vector: Floats) -> None:
        """Add to a vector what is told of the common parts, each in one of its base cells."""
        firsts = [first[codes >= 0] for codes, first in (np.unique(p, return_index=True) for p in self.joint.positions)]
        for one, view in zip(self.cliques.cliques, self.cliques.of(vector), strict=True):
            np.add.at(view, np.ix_(*(labels[first] for labels, first in zip(one.levels, firsts, strict=True))), parts)


def _crossing(labels: Int32s, to: Int32s, measure: Floats) -> sparse.csr_array:
    """Return the measure of what each block of a level and each position have in common."""
    held = np.flatnonzero(to >= 0)
    shape = count(labels), int(to.max(initial=-1)) + 1
    return sparse.csr_array(sparse.coo_array((measure[held], (labels[held], to[held])), shape=shape))


def _mapped(cells: Floats, maps: Sequence[sparse.csr_array]) -> Floats:
    """Return cells with each axis mapped by its matrix, those that it shortens first."""
    for axis in sorted(range(cells.ndim), key=lambda axis: maps[axis].shape[0] / max(maps[axis].shape[1], 1)):
        moved = np.moveaxis(cells, axis, 0)
        cells = np.moveaxis((maps[axis] @ moved.reshape(len(moved), -1)).reshape(-1, *moved.shape[1:]), 0, axis)
    return cells


def _implied(known: Known, held: list[Known], group: Group) -> bool:
    return any(
        known.name in group.within[finer.name]
        and bool((_all_parts(finer, known, group.within[finer.name][known.name]) == known.fixed).all())
        for finer in held
        if finer is not known
    )


def _rows(known: Known, joint: Observed) -> sparse.csr_array:
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


@dataclass(frozen=True)
class Units:
    """Decimal units: 10^−`digits` of the measure's."""

    digits: int

    @classmethod
    def of(cls, base: Floats, unit: float) -> Self:
        """Return `unit`, a power of ten, or the next by tens of which all sums are whole below 2⁵³."""
        digits = round(-math.log10(unit))
        if not math.isclose(10.0**-digits, unit):
            raise EstimateError(f"the unit {unit} is no power of ten")
        most = float(np.abs(base).sum()) + base.size * 10.0**-digits
        while most * 10.0**digits >= WHOLE:
            digits -= 1
        return cls(digits)

    @property
    def per(self) -> float:
        """How many there are in one unit of the measure."""
        return 10.0**self.digits

    @property
    def unit(self) -> float:
        """One of them."""
        return float(f"1e{-self.digits}")

    def values(self, integers: Floats) -> Floats:
        """Return whole units in the measure's unit: the doubles nearest to the decimals."""
        return integers / 10.0**self.digits if self.digits >= 0 else integers * 10.0**-self.digits


def wanted(fixed: Fixed, units: Units) -> Floats:
    """Return the fixed totals in whole units."""
    totals = fixed.totals * units.per
    integers: Floats = np.rint(totals)
    if (np.abs(totals - integers) > CLOSE).any():
        raise EstimateError(f"{fixed.names}: a fixed total is no multiple of {units.unit:g}, the unit of the estimates")
    return integers


def meeting(real: Floats, totals: Floats, fixed: Fixed, units: Units) -> Floats:
    """Return whole common parts near `real` that add up to these totals of whole units."""
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 — loaded where totals are fixed alone

    cells = real.ravel()
    floor = np.floor(cells + CLOSE / 2)
    rows = sparse.csr_array(fixed.rows)
    for more in (0, 1, 2, 8, 64):  # the parts may lie this much further from their real values
        solved = milp(
            np.where(cells - floor > 0.5, -1.0, 1.0) * np.abs(1 - 2 * (cells - floor)),
            integrality=np.ones(len(cells)),
            bounds=Bounds(-more, 1 + more),
            constraints=LinearConstraint(rows, totals - rows @ floor, totals - rows @ floor),
        )
        if solved.x is not None:
            result: Floats = (floor + np.rint(solved.x)).reshape(real.shape)
            return result
    raise EstimateError(f"{fixed.names}: no whole multiples of {units.unit:g} meet all fixed totals")


def settled(vector: Floats, fixed: FixedInCliques, units: Units) -> None:
    """Move a vector of whole units, in place, to meet all fixed totals: few units of each common part."""
    missing = wanted(fixed, units) - fixed.sums_of(vector)
    if missing.any():
        fixed.place(meeting(fixed.shared(missing), missing, fixed, units), vector)
