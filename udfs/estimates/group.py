"""The tables of one group on their common base: which refines which, and the normal equations as sums and spreads."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from udfs.estimates.tables import EstimateError, Int32s, Observed, Sums, joint_positions, sums_between
from udfs.numbers.arrays import Floats, Mask

Weights = Floats | tuple[Floats, ...]  # of all cells of the given base, or their factor for each entry of each axis


@dataclass(frozen=True, eq=False)
class Known:
    """One set of cells with what is published of it: values and variances of all tables that have just these cells.

    Weights are 1/variance, and 0 of what is known without noise, which is held fixed (`fixed`, a mask or None).
    """

    name: str
    table: Observed
    values: Floats
    variance: Floats

    @cached_property
    def weights(self) -> Floats:
        """The weight of each cell, broadcastable: 0 of fixed cells and of unknown ones."""
        with np.errstate(divide="ignore"):
            return np.where(self.variance > 0, 1 / self.variance, 0.0)

    @cached_property
    def fixed(self) -> Mask | None:
        """Mask of the cells known without noise; None where there are none."""
        zero = self.variance == 0
        return np.broadcast_to(zero, self.table.widths) if zero.any() else None


@dataclass(frozen=True, eq=False)
class Contrast:
    """A sum of cells that a user picks: its value, its variance, and by how much each published value enters it."""

    value: float
    variance: float
    coefficients: Mapping[str, Floats]
    direction: Floats  # N⁻¹c as a vector: of two contrasts c and d, cᵀN⁻¹d is the covariance


class Group:
    """Weighted tables of one group, each set of cells once, from the finest to the coarsest.

    `atoms` are, for each axis, the class of each entry of the given axis: entries that no weighted table tells apart
    are one entry of the group's own base. Of each table, `within[name]` are the tables whose cells its cells make up.
    """

    def __init__(self, tables: Sequence[Observed]) -> None:
        weighted = [_checked(table) for table in tables if table.values is not None]
        if not weighted:
            raise EstimateError("no table of the group has values that can be weighted: there is nothing to reconcile")
        stacked = zip(*(table.positions for table in weighted), strict=True)
        self.atoms: tuple[Int32s, ...] = tuple(joint_positions(axis) for axis in stacked)
        self._firsts = tuple(_firsts(axis) for axis in self.atoms)
        self.shape = tuple(len(first) for first in self._firsts)
        self.size = math.prod(self.shape)
        if not self.size:
            raise EstimateError("no weighted table of the group has a cell: there is nothing to reconcile")
        own = sorted(
            map(self.on_base, weighted),
            key=lambda table: -math.prod(len(np.unique(axis[axis >= 0])) for axis in table.positions),
        )
        self.known: list[Known] = []
        for table in own:
            self._merge(table)
        self.sums = {known.name: Sums(known.table.positions, known.table.widths) for known in self.known}
        self.base = next((known for known in self.known if self.sums[known.name].same), None)
        self.within: Mapping[str, Mapping[str, Sums]] = {
            finer.name: {
                coarser.name: Sums(to, coarser.table.widths)
                for coarser in self.known[number + 1 :]
                if (to := sums_between(finer.table, coarser.table)) is not None
            }
            for number, finer in enumerate(self.known)
        }
        self.source = {known.name: self._smallest_above(known.name) for known in self.known}

    def factors(self, weights: tuple[Floats, ...]) -> tuple[Floats, ...]:
        """Return the factors of axes on the group's own base; raises EstimateError where its entries differ in them."""
        own = tuple(one[first] for one, first in zip(weights, self._firsts, strict=True))
        back = (np.append(one, 0.0)[axis] for one, axis in zip(own, self.atoms, strict=True))
        if not all(np.array_equal(one, other) for one, other in zip(back, weights, strict=True)):
            raise EstimateError("no weighted tables make up the cells of this sum")
        return own

    def on_base(self, table: Observed) -> Observed:
        """Return the table on the group's own base; raises EstimateError where it tells one of its cells apart."""
        positions = tuple(p[first] for p, first in zip(table.positions, self._firsts, strict=True))
        back = (np.append(p, -1)[axis] for p, axis in zip(positions, self.atoms, strict=True))
        if not all(np.array_equal(p, q) for p, q in zip(back, table.positions, strict=True)):
            raise EstimateError(f"{table.name}: no weighted tables make up its cells")
        return replace(table, positions=positions)

    def from_given(self, weights: Weights) -> Floats:
        """Return weights on the given base as weights on the group's own; raises EstimateError where they differ."""
        if isinstance(weights, tuple):
            return self.from_given(reduce(np.multiply.outer, weights))
        if all(np.array_equal(axis, np.arange(width)) for axis, width in zip(self.atoms, self.shape, strict=True)):
            return np.ascontiguousarray(weights, dtype=np.float64)
        own: Floats = np.ascontiguousarray(weights[np.ix_(*self._firsts)], dtype=np.float64)
        if not np.array_equal(np.pad(own, [(0, 1)] * own.ndim)[np.ix_(*self.atoms)], weights):
            raise EstimateError("no weighted tables make up the cells of this sum")
        return own

    def _merge(self, table: Observed) -> None:
        assert table.values is not None
        assert table.variance is not None
        values, variance = table.values, table.variance
        base = Observed("", tuple(np.arange(n, dtype=np.int32) for n in self.shape), self.shape, None, None)
        if (to := sums_between(table, base)) is not None and sums_between(base, table) is not None:
            values, variance = _moved(values, to, self.shape, 0), _moved(variance, to, self.shape, np.inf)
            table = replace(base, name=table.name)
        for number, known in enumerate(self.known):
            to = sums_between(table, known.table)
            if to is None or sums_between(known.table, table) is None:
                continue
            widths = known.table.widths
            values, variance = _moved(values, to, widths, 0), _moved(variance, to, widths, np.inf)
            self.known[number] = _joined(known, table.name, values, variance)
            return
        self.known.append(Known(table.name, table, np.asarray(values, dtype=np.float64), variance))

    def _smallest_above(self, name: str) -> str | None:
        """The smallest table whose cells make up those of this one, which is added up from it; None: from the base."""
        above = [known.name for known in self.known if known is not self.base and name in self.within[known.name]]
        return above[-1] if above else None

    @cached_property
    def upper(self) -> list[Known]:
        """All tables but the one that is the base itself."""
        return [known for known in self.known if known is not self.base]

    def steps(self, name: str) -> Sums:
        """How this table is added up from its source: another table, or the base."""
        source = self.source[name]
        return self.sums[name] if source is None else self.within[source][name]

    def folded(self, base: Floats) -> dict[str, Floats]:
        """Return the sums of all upper tables from values on the base."""
        out: dict[str, Floats] = {}
        for known in self.upper:
            source = self.source[known.name]
            out[known.name] = self.steps(known.name).up(base if source is None else out[source])
        return out

    def spread(self, cells: dict[str, Floats], out: Floats) -> None:
        """Add to the base `out` the values of all upper cells that each base cell lies in; `cells` is used up."""
        for known in reversed(self.upper):
            source = self.source[known.name]
            self.steps(known.name).down(cells.pop(known.name), out if source is None else cells[source])

    def zeros(self) -> Floats:
        """Return base values of nothing."""
        return np.zeros(self.shape)

    def up(self, table: Observed, base: Floats) -> Floats:
        """Return the sums of a table's cells."""
        return Sums(table.positions, table.widths).up(base)

    def down(self, table: Observed, cells: Floats, out: Floats) -> None:
        """Add to the base `out` the values of a table's cells that each base cell lies in."""
        Sums(table.positions, table.widths).down(cells, out)

    def signs(self, random: np.random.Generator) -> Floats:
        """Return Aᵀ√W·z for signs z, of which N is the covariance: N⁻¹ of it is the error of the base in one draw."""

        def drawn(known: Known) -> Floats:
            cells = random.integers(0, 2, size=known.table.widths, dtype=np.int8).astype(np.float64)
            cells -= 0.5
            cells *= 2 * np.sqrt(known.weights)
            return cells

        out = self.zeros() if self.base is None else drawn(self.base)
        self.spread({known.name: drawn(known) for known in self.upper}, out)
        return out

    def normal(self, base: Floats) -> Floats:
        """Return N·base = Σ Aᵀ W A·base over all tables."""
        out = np.zeros(self.shape) if self.base is None else base * self.base.weights
        sums = self.folded(base)
        for known in self.upper:
            sums[known.name] = sums[known.name] * known.weights
        self.spread(sums, out)
        return out

    def gradient(self, base: Floats) -> Floats:
        """Return Σ Aᵀ W (y − A·base), the residual of the normal equations."""
        out = np.zeros(self.shape) if self.base is None else self.base.values - base
        if self.base is not None:
            out *= self.base.weights
        sums = self.folded(base)
        for known in self.upper:
            sums[known.name] = (known.values - sums[known.name]) * known.weights
        self.spread(sums, out)
        return out


def _checked(table: Observed) -> Observed:
    if table.variance is None or table.values is None:
        raise EstimateError(f"{table.name}: a table with values needs their variance")
    if table.values.shape != table.widths:
        raise EstimateError(f"{table.name}: values of shape {table.values.shape}, cells of shape {table.widths}")
    variance = np.asarray(table.variance, dtype=np.float64)
    variance = variance.reshape((1,) * (len(table.widths) - variance.ndim) + variance.shape)
    if not (variance >= 0).all():
        raise EstimateError(f"{table.name}: a variance is negative or no number")
    if not np.isfinite(table.values).all():
        raise EstimateError(f"{table.name}: a value is no finite number")
    return replace(table, variance=variance)


def _firsts(axis: Int32s) -> NDArray[np.intp]:
    classes, first = np.unique(axis, return_index=True)
    return first[classes >= 0]


def _moved(cells: Floats, to: Sequence[Int32s], widths: tuple[int, ...], else_: float) -> Floats:
    """Return cells, or broadcastable ones, at their positions on another table's axes; `else_` where nothing comes."""
    for axis, positions in enumerate(to):
        if cells.shape[axis] == 1 != len(positions) or np.array_equal(positions, np.arange(widths[axis])):
            continue
        held = np.flatnonzero(positions >= 0)
        moved = np.full((*cells.shape[:axis], widths[axis], *cells.shape[axis + 1 :]), else_, dtype=np.float64)
        moved[(slice(None),) * axis + (positions[held],)] = cells.take(held, axis=axis)
        cells = moved
    return cells


def _joined(known: Known, name: str, values: Floats, variance: Floats) -> Known:
    """Return the weighted mean of two tables of the same cells; values without noise stand as they are."""
    fixed = (known.variance == 0) & (variance == 0)
    if fixed.any() and (clash := np.argwhere(fixed & (known.values != values))).size:
        cell = tuple(map(int, clash[0]))
        raise EstimateError(f"{known.name} and {name} hold one sum fixed at different values (cell {cell})")
    with np.errstate(divide="ignore", invalid="ignore"):
        total = known.variance + variance
        share = np.where(np.isinf(variance), 0.0, np.where(np.isinf(known.variance), 1.0, known.variance / total))
        share = np.where(total == 0, 0.0, share)  # of the second
        both = np.where(share == 0, known.variance, np.where(share == 1, variance, variance * share))
    return Known(known.name, known.table, known.values + share * (values - known.values), both)
