"""The inverse of nearly the normal equations over cliques, and a proved bound of what it leaves.

On all axes but one, values fall into residuals: what each crossing of levels tells beside all coarser ones, averages
being weighted by a measure of each axis under which a table's noise is even. In each residual the tables act along the
remaining axis alone, on which levels may cross (counties, states and metropolitan areas); there they are inverted as
they are, by sparse elimination of the coarser cells (docs/mathematics.md, section 14).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import fsum, prod
from typing import NamedTuple

import numpy as np
from scipy import sparse

from udfs.estimates.cliques import (
    Axis,
    Cliques,
    added,
    blocks,
    coarser,
    count,
    inside,
    level_of,
    levels_between,
    measure_of_entries,
    uneven_axis,
)
from udfs.estimates.fixed import firmly
from udfs.estimates.group import Known
from udfs.estimates.preconditioners import Inverse
from udfs.estimates.tables import Along, Int32s, Node, analysed, averaged, composed, in_order, shaped
from udfs.numbers.arrays import Floats, Int64s

LEAST = 1e-4  # of what coarser cells know least: where no table knows the cells of a residual by themselves
NOTHING, ROUNDING = 1e-6, 1e-12  # of a residual: what no table represents of it; what is not looked at any more
MOST_ROUNDS = 50  # to represent it where no table knows the cells of a residual by themselves
MOST_KINDS = 64  # of inverses in one residual
NEAR = 0.02  # logarithms of weights that differ by less count as equal
SLAB = 2**16  # cells that a thread takes apart at a time: what is made of them stays in its cache


class Share(NamedTuple):
    """What a table tells of a residual: on which level of the inverted axis, and its share of that level's weight."""

    level: int | None  # of the coarser ones; None: the finest
    share: Floats  # by column


class Residual:
    """N⁻¹ of one residual: a column for each crossing of the other axes' cells, solved along one axis.

    `gain` is 1 over the weight of the finest cells of a column, `ratios` are weights of coarser levels over it, of
    columns alike. A right side is a function of the finest cells, of which the sums over coarser cells are enough here,
    and functions of coarser cells that are to be added to it (`said`). `others`: levels that need have no weight.
    """

    def __init__(
        self,
        finest: Int32s,
        axis: int,
        shape: tuple[int, ...],
        weights: Mapping[str, tuple[Int32s, Floats]],
        others: Sequence[Int32s],
    ) -> None:
        self.axis, self.shape = axis, shape
        width, columns = count(finest), prod(shape)
        self.levels: dict[bytes, Int32s] = {}  # where the finest cells lie in coarser ones
        self._numbers: dict[bytes, int] = {}
        for labels in others:
            self._level(inside(finest, labels))
        total, place = [np.zeros(columns), *(np.zeros(columns) for _ in self.levels)], dict[str, int]()
        for name, (labels, weight) in weights.items():
            to = inside(finest, labels)
            place[name] = 0 if np.array_equal(to, np.arange(width)) else 1 + self._level(to)
            if place[name] == len(total):
                total.append(np.zeros(columns))
            total[place[name]] += weight.reshape(-1)
        own, coarse = total[0], np.array(total[1:]).reshape(len(total) - 1, columns)
        least = np.where(coarse > 0, coarse, np.inf).min(axis=0, initial=np.inf)
        self.unknown = np.flatnonzero((own == 0) & np.isfinite(least))
        self.untold = np.flatnonzero((own == 0) & np.isinf(least))  # no table tells anything: nothing comes there
        self.lost = np.concatenate([self.unknown, self.untold])  # what is left of it no table represents
        some = float(np.concatenate([own, coarse.reshape(-1)]).max(initial=0.0)) or 1.0
        known = np.where(own > 0, own, LEAST * np.where(np.isinf(least), some, least))
        self.gain = 1 / known.reshape(shape)
        self.kinds, self.ratios = _alike(coarse / known)
        sums = [_summing(to, width) for to in self.levels.values()]
        starts = np.cumsum([0, *(one.shape[0] for one in sums)])
        self.rows = [slice(int(a), int(b)) for a, b in pairwise(starts)]
        stacked = sparse.csr_array(sparse.vstack(sums)) if sums else sparse.csr_array((0, width))
        self._gram, self._spread = sparse.csr_array(stacked @ stacked.T), sparse.csr_array(stacked.T)
        self._pieces: dict[int, tuple[Int64s, sparse.csr_array, sparse.csr_array]] = {}
        self.inverses = [Inverse(stacked, np.repeat(ratios, np.diff(starts))) for ratios in self.ratios]
        self.shares = {}
        for name, (_, weight) in weights.items():
            of = total[place[name]]
            share = np.divide(weight.reshape(-1), of, out=np.zeros(of.size), where=of > 0)
            self.shares[name] = Share(place[name] - 1 if place[name] else None, share.reshape(shape))

    def _level(self, to: Int32s) -> int:
        self.levels.setdefault(to.tobytes(), to)
        return list(self.levels).index(to.tobytes())

    def rows_of(self, to: Int32s) -> slice:
        """Return the rows of a coarser level."""
        return self.rows[list(self.levels).index(to.tobytes())]

    def zeros(self) -> Floats:
        """Return nothing of all coarser cells, as columns."""
        return np.zeros((self._spread.shape[1], prod(self.shape)))

    def columns(self, cells: Floats) -> Floats:
        """Return cells as columns, rows along the axis."""
        return np.moveaxis(cells, self.axis, 0).reshape(cells.shape[self.axis], prod(self.shape))

    def back(self, columns: Floats) -> Floats:
        """Return columns as cells."""
        widths = (len(columns), *self.shape[: self.axis], *self.shape[self.axis + 1 :])
        return np.moveaxis(columns.reshape(widths), 0, self.axis)

    def _inner(self, sums: Floats, kinds: Int32s) -> Floats:
        """Return the coarser cells' part of K⁻¹ from columns of sums, of these kinds."""
        if len(self.inverses) == 1:
            return self.inverses[0].solve(sums)
        out = np.empty(sums.shape)
        for kind, inverse in enumerate(self.inverses):
            mine = np.flatnonzero(kinds == kind)
            out[:, mine] = inverse.solve(sums[:, mine])
        return out

    def eliminated(self, sums: Floats, said: Floats, *, again: bool = False) -> Floats:
        """Return functions of coarser cells, as columns, that a right side less those is K⁻¹ of it.

        `again`: where no table knows the finest cells, what these would represent of it is eliminated again and again.
        """
        sums = sums + self._gram @ said
        out = self._inner(sums, self.kinds)
        least, kinds = ROUNDING * float(np.abs(sums).max(initial=0.0)), self.kinds[self.unknown]
        rest, rounds = (sums - self._gram @ out)[:, self.unknown if again else []], 0
        while rounds < MOST_ROUNDS and np.abs(rest).max(initial=0.0) > least:
            inner, rounds = self._inner(rest, kinds), rounds + 1
            rest = rest - self._gram @ inner
            out[:, self.unknown] += inner
        return out

    def _piece(self, rows: slice) -> tuple[Int64s, sparse.csr_array, sparse.csr_array]:
        """Return the coarser cells that some rows of the finest meet, how these spread to the rows, and add them up."""
        if rows.start not in self._pieces:
            own = self._spread[rows]
            met = np.unique(own.indices).astype(np.int64)
            spread = sparse.csr_array(own[:, met])
            self._pieces[rows.start] = met, spread, sparse.csr_array(spread.T)
        return self._pieces[rows.start]

    def spread(self, said: Floats, rows: slice) -> Floats:
        """Return what columns of coarser cells add to some rows of the finest cells."""
        met, spread, _ = self._piece(rows)
        return self.back(spread @ said[met])

    def summed(self, part: Floats, rows: slice) -> tuple[Int64s, Floats]:
        """Return the coarser cells that some rows of the finest meet, and the sums of these, as columns."""
        met, _, sums = self._piece(rows)
        return met, sums @ self.columns(part)


def _alike(ratios: Floats) -> tuple[Int32s, Floats]:
    """Return the kind of each column, and the ratios of each kind: equal within a few per cent, and not too many."""
    near = NEAR
    with np.errstate(divide="ignore"):
        logs = np.log(ratios)
    while True:
        keys = np.where(np.isfinite(logs), np.rint(logs / near), -np.inf)
        kinds, number = np.unique(keys.T, axis=0, return_inverse=True)
        if len(kinds) <= MOST_KINDS:
            return number.reshape(-1).astype(np.int32), np.exp(kinds * near)
        near *= 2


class Use(NamedTuple):
    """What a clique says of residuals of which another one has the finest cells: on which rows of coarser ones."""

    top: Node
    rows: Mapping[Node, slice]


class Residuals:
    """M⁻¹ over vectors of cliques; symmetric and positive, and the same for all ways to write a function of them.

    Where a clique has the finest cells of a residual, these are taken apart and put together by slabs of the inverted
    axis: its coarser cells alone mix them. Their sums are those of the very parts from which they are taken again:
    weights may differ by 10⁹, and what is left be as small beside them.
    """

    def __init__(self, cliques: Cliques, *, firm: bool = True) -> None:
        self.cliques = cliques
        known = firmly(cliques.group.known) if firm else cliques.group.known
        self.dimensions = len(known[0].table.widths)
        self.axis = uneven_axis(known)
        self.axes = {
            axis: Axis.of(levels_between(cliques, axis), measure_of_entries(known, axis))
            for axis in range(self.dimensions)
            if axis != self.axis
        }
        known_of = {one.name: one for one in known}
        few = sorted(self.axes, key=lambda axis: len(self.axes[axis].steps))  # those of many are faster by themselves
        self.steps = {axis: self.axes[axis].steps for axis in few}
        self.tops = [self._node(one.levels) for one in cliques.cliques]
        self.of = {one.name: self._node(list(map(blocks, one.table.positions, one.table.widths))) for one in known}
        self.nodes: dict[Node, Residual] = {}
        self._stated: dict[Node, Residual] = {}  # of the tables that represent functions in a residual
        labels = [one.levels[self.axis] for one in cliques.cliques]
        tell: dict[Node, list[int]] = {}
        for number, top in enumerate(self.tops):
            for node in product(*(range(level + 1) for level in top)):
                tell.setdefault(node, []).append(number)
        self._owners = {node: max(telling, key=lambda number: count(labels[number])) for node, telling in tell.items()}
        for node, owner in self._owners.items():
            weights = {
                one.name: (one.table.positions[self.axis], self._weight(one, node))
                for one in known
                if _at_least(self.of[one.name], node)
            }
            shape = tuple(len(self.axes[i].measure[node[i]]) if i in self.axes else 1 for i in range(self.dimensions))
            others = [labels[number] for number in tell[node] if number != owner]
            stating = {name: float(self._states(known_of[name], node)) for name in weights}
            self.nodes[node] = self._stated[node] = Residual(labels[owner], self.axis, shape, weights, others)
            if not all(stating.values()):
                stated = {name: (positions, weight * stating[name]) for name, (positions, weight) in weights.items()}
                self._stated[node] = Residual(labels[owner], self.axis, shape, stated, others)
        self.bounds = not any(len(one.unknown) + len(one.untold) for one in self._stated.values())
        self._uses = []
        for number, own in enumerate(labels):
            owners = ((node, self._owners[node]) for node in tell if number in tell[node])
            rows = {
                node: self.nodes[node].rows_of(inside(labels[owner], own)) for node, owner in owners if owner != number
            }
            top = tuple(max(levels) for levels in zip(*rows, strict=True)) if rows else self.tops[number]
            self._uses.append(Use(top, rows))
        self._shared = {node for use in self._uses for node in use.rows}

    def _node(self, levels: "tuple[Int32s, ...] | list[Int32s]") -> Node:
        return tuple(self.axes[i].number(one) if i in self.axes else 0 for i, one in enumerate(levels))

    def _weight(self, known: Known, node: Node) -> Floats:
        """Return what a table tells of each column of a residual: Σ w·m² over its cells, m each cell's share."""
        weight = known.weights.mean(axis=self.axis, keepdims=True)
        for axis, of in self.axes.items():
            positions, labels = known.table.positions[axis], of.levels[node[axis]]
            to = level_of(known, axis, labels)
            squares = added(positions, of.entries, len(to)) ** 2
            if weight.shape[axis] == 1:
                weight = weight * shaped(added(to, squares, count(labels)), axis, self.dimensions)
            else:
                weight = Along(to, count(labels)).up(weight * shaped(squares, axis, self.dimensions), axis)
            weight = weight / shaped(of.measure[node[axis]] ** 2, axis, self.dimensions)
        return np.asarray(weight, dtype=np.float64)

    def _states(self, known: Known, node: Node) -> bool:
        """Whether functions in a residual are some of a table's cells: it has all of each larger block, or nothing."""
        if not np.isfinite(known.variance).all():
            return False
        for axis, of in self.axes.items():
            outside = (known.table.positions[axis] < 0).astype(np.int32)
            if outside.any() and (not node[axis] or coarser(of.levels[node[axis] - 1], outside) is None):
                return False
        return True

    def _right_parts(self, right: Floats) -> tuple[dict[Node, Floats], dict[Node, Floats]]:
        """Return of a function of cliques' cells, in each residual, the sums of its finest cells, and what is said."""
        sums, said = ({node: residual.zeros() for node, residual in self.nodes.items()} for _ in range(2))
        for number, (top, use, view) in enumerate(zip(self.tops, self._uses, self.cliques.of(right), strict=True)):

            def work(rows: slice, number: int = number, view: Floats = view) -> list[Summed]:
                parts = self._taken_apart(number, view, rows)
                return [(node, *self.nodes[node].summed(part, rows)) for node, part in parts]

            mixed = any(owner == number and self.nodes[node].levels for node, owner in self._owners.items())
            for every in in_order(work, _slabs(view, self.axis) if mixed else []):
                _add(every, sums)
            for node, part in analysed(averaged(view, top, use.top, self.steps), use.top, self.steps):
                if node in use.rows:
                    said[node][use.rows[node]] += self.nodes[node].columns(part)
        return sums, said

    def _at(self, rows: slice) -> tuple[slice, ...]:
        return (*(slice(None),) * self.axis, rows)

    def _taken_apart(self, number: int, view: Floats, rows: slice) -> Iterator[tuple[Node, Floats]]:
        """Yield the parts of some rows of a clique's cells in the residuals of which it has the finest."""
        for node, part in analysed(view[self._at(rows)].copy(), self.tops[number], self.steps):
            if self._owners[node] == number:
                yield node, part

    def solve(self, right: Floats) -> Floats:
        """Return M⁻¹·right: totals of cliques that agree."""
        sums, said = self._right_parts(right)
        shared = {node: self.nodes[node].zeros() for node in self._shared}
        for node, residual in self.nodes.items():
            said[node] -= residual.eliminated(sums[node], said[node])
        out = self.cliques.zeros()
        for number, (view, new) in enumerate(zip(self.cliques.of(right), self.cliques.of(out), strict=True)):

            def work(rows: slice, number: int = number, view: Floats = view, new: Floats = new) -> list[Summed]:
                own: dict[Node, Floats] = {}
                for node, part in self._taken_apart(number, view, rows):
                    residual = self.nodes[node]
                    own[node] = np.add(part, residual.spread(said[node], rows), out=part) if residual.levels else part
                    own[node] *= residual.gain
                made = composed(own, self.tops[number], self.steps, adjoint=True)
                if made is not None:
                    new[self._at(rows)] = made
                return [(node, *self.nodes[node].summed(own[node], rows)) for node in own.keys() & self._shared]

            for every in in_order(work, _slabs(view, self.axis)):
                _add(every, shared)
        for top, use, new in zip(self.tops, self._uses, self.cliques.of(out), strict=True):
            parts = {node: self.nodes[node].back(shared[node][rows]) for node, rows in use.rows.items()}
            cells = composed(parts, top, self.steps, adjoint=True)
            if cells is not None:
                np.add(new, cells, out=new)
        return out

    def bound(self, right: Floats) -> float:
        """Return a bound of rᵀN⁻¹r for r = right: Σ V·ρ² for functions ρ of the tables' cells that r is the sum of.

        r = Σ Aᵀρ, so for every x (rᵀx)² = (Σ ρᵀA·x)² ≤ Σ V·ρ² · Σ (A·x)²/V = Σ V·ρ² · xᵀNx.
        Infinite where tables do not represent all of it.
        """
        sums, said = self._right_parts(right)
        rest, finest = dict[Node, Floats](), dict[Node, Floats]()
        for node, residual in self._stated.items():
            sums[node] = residual.eliminated(sums[node], said[node], again=True)
            rest[node] = said[node] - sums[node]
        most = left = 0.0
        for number, view in enumerate(self.cliques.of(right)):

            def work(rows: slice, number: int = number, view: Floats = view) -> tuple[float, float]:
                ends = [(0.0, 0.0)]
                for node, part in self._taken_apart(number, view, rows):
                    residual = self._stated[node]
                    known = part + residual.spread(said[node], rows) if said[node].any() else part
                    left_over = part + residual.spread(rest[node], rows)
                    finest[node][self._at(rows)] = left_over
                    lost = residual.columns(left_over)[:, residual.lost]
                    ends.append((float(np.abs(known).max()), float(np.abs(lost).max(initial=0.0))))
                return max(one for one, _ in ends), max(other for _, other in ends)

            for node, owner in self._owners.items():
                if owner == number:
                    shape = self._stated[node].shape
                    finest[node] = np.empty([n if i != self.axis else view.shape[i] for i, n in enumerate(shape)])
            for one, other in in_order(work, _slabs(view, self.axis)):
                most, left = max(most, one), max(left, other)
        if not left <= NOTHING * most:
            return np.inf
        total = sum(self._weighed(known, finest, sums) for known in self.cliques.group.known)
        return total if np.isfinite(total) else np.inf

    def _weighed(self, known: Known, finest: Mapping[Node, Floats], sums: Mapping[Node, Floats]) -> float:
        """Return Σ V·ρ² of a table's cells."""
        top = self.of[known.name]
        telling = {node: one for node, one in self._stated.items() if known.name in one.shares}
        parts = {}
        for node, one in telling.items():
            level = one.shares[known.name].level
            parts[node] = finest[node] if level is None else one.back(sums[node][one.rows[level]])
        places = [(axis, level_of(known, axis, of.levels[top[axis]])) for axis, of in self.axes.items()]

        def work(rows: slice) -> float:
            own = {node: part[self._at(rows)] * telling[node].shares[known.name].share for node, part in parts.items()}
            cells = composed(own, top, self.steps, adjoint=False)
            if cells is None:
                return 0.0
            for axis, to in places:
                if not np.array_equal(to, np.arange(cells.shape[axis])):
                    held = shaped(to >= 0, axis, self.dimensions)
                    cells = np.where(held, cells.take(to, axis=axis, mode="wrap"), 0.0)
            variance = known.variance[self._at(rows)] if known.variance.shape[self.axis] > 1 else known.variance
            return float(np.multiply(variance, cells**2, out=np.zeros(cells.shape), where=cells != 0).sum())

        every = np.broadcast_to(0.0, [int(known.table.positions[i].max()) + 1 for i in range(self.dimensions)])
        return fsum(in_order(work, _slabs(every, self.axis)))


Summed = tuple[Node, Int64s, Floats]  # of a residual: coarser cells, and what is to be added to them, as columns


def _add(every: Sequence[Summed], out: Mapping[Node, Floats]) -> None:
    for node, met, cells in every:
        out[node][met] += cells


def _slabs(cells: Floats, axis: int) -> list[slice]:
    rows = max(1, SLAB * cells.shape[axis] // cells.size)
    return [slice(start, start + rows) for start in range(0, cells.shape[axis], rows)]


def _at_least(one: Node, other: Node) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True))


def _summing(to: Int32s, width: int) -> sparse.csr_array:
    held = np.flatnonzero(to >= 0)
    return sparse.csr_array((np.ones(len(held)), (to[held], held)), shape=(int(to.max()) + 1, width))
