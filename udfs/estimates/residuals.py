"""The inverse of nearly the normal equations over cliques, and a proved bound of what it leaves.

On all axes but one, values fall into residuals: what each crossing of levels tells beside all coarser ones, averages
being weighted by a measure of each axis under which a table's noise is even. In each residual the tables act along the
remaining axis alone, on which levels may cross (counties, states and metropolitan areas); there they are inverted as
they are, by sparse elimination of the coarser cells (docs/mathematics.md, section 14).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, product
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import splu

from udfs.estimates.cliques import Cliques, blocks, coarser, count, inside
from udfs.estimates.group import Known
from udfs.estimates.tables import Along, Int32s
from udfs.numbers.arrays import Floats

LEAST = 1e-4  # of what coarser cells know least: where no table knows the cells of a residual by themselves
NOTHING, ROUNDING = 1e-6, 1e-12  # of a residual: what no table represents of it; what is not looked at any more
MOST_ROUNDS = 50  # to represent it where no table knows the cells of a residual by themselves
MOST_KINDS = 64  # of inverses in one residual
NEAR = 0.02  # logarithms of weights that differ by less count as equal

Scalar = TypeVar("Scalar", bound=np.generic)
Node = tuple[int, ...]  # a level of each axis by its number, coarser ones first; 0 on the axis that is inverted


class Step(NamedTuple):
    """From a level to the next coarser one: where blocks lie, and the share of each in the block that it lies in."""

    along: Along
    share: Floats


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis that is averaged over: its levels, coarsest first, each inside the one before, and their measure."""

    levels: list[Int32s]
    entries: Floats
    measure: list[Floats]
    steps: list[Step]  # from level j + 1 to level j

    @classmethod
    def of(cls, levels: list[Int32s], entries: Floats) -> "Axis":
        """Return the axis of these levels, a measure of its entries given."""
        measure = [_added(labels, entries, count(labels)) for labels in levels]
        steps = []
        for coarse, fine, above, below in zip(levels, levels[1:], measure, measure[1:], strict=False):
            to = inside(fine, coarse)
            steps.append(Step(Along(to, count(coarse)), below / above[to]))
        return cls(levels, entries, measure, steps)

    def number(self, labels: Int32s) -> int:
        """Return the number of the finest level that these blocks lie inside or are."""
        return max(number for number, one in enumerate(self.levels) if coarser(labels, one) is not None)


def _added(to: Int32s, values: Floats, width: int) -> Floats:
    held = to >= 0
    return np.bincount(to[held], weights=values[held], minlength=width).astype(np.float64, copy=False)


def _shaped(values: NDArray[Scalar], axis: int, dimensions: int) -> NDArray[Scalar]:
    return values.reshape([-1 if other == axis else 1 for other in range(dimensions)])


def analysed(
    cells: Floats, node: Node, axes: Mapping[int, Axis], todo: Sequence[int] | None = None
) -> Iterator[tuple[Node, Floats]]:
    """Yield of a function of cells, at the levels `node`, its part in each residual, which it is the sum of."""
    todo = list(axes) if todo is None else todo
    if not todo:
        yield node, cells
        return
    axis, rest = todo[0], todo[1:]
    for level in range(node[axis], 0, -1):
        along, share = axes[axis].steps[level - 1]
        means = along.up(cells * _shaped(share, axis, cells.ndim), axis)
        yield from analysed(cells - along.down(means, axis), _moved(node, axis, level), axes, rest)
        cells = means
    yield from analysed(cells, _moved(node, axis, 0), axes, rest)


def _moved(node: Node, axis: int, level: int) -> Node:
    return (*node[:axis], level, *node[axis + 1 :])


def composed(
    parts: Mapping[Node, Floats],
    node: Node,
    axes: Mapping[int, Axis],
    todo: Sequence[int] | None = None,
    *,
    adjoint: bool,
) -> Floats:
    """Return cells at the levels `node` from parts in all coarser crossings.

    `adjoint`: totals of cells, the transpose of what `analysed` does; else functions of cells, which it undoes.
    """
    todo = list(axes) if todo is None else todo
    if not todo:
        return parts[node]
    axis, rest = todo[0], todo[1:]
    cells = composed(parts, _moved(node, axis, 0), axes, rest, adjoint=adjoint)
    for level in range(1, node[axis] + 1):
        along, share = axes[axis].steps[level - 1]
        own = composed(parts, _moved(node, axis, level), axes, rest, adjoint=adjoint)
        below = cells - along.up(own, axis) if adjoint else cells
        cells = own + along.down(below, axis) * (_shaped(share, axis, own.ndim) if adjoint else 1.0)
    return cells


class Inverse:
    """K⁻¹ of K = 1 + Σ r·AᵀA over coarser cells of one axis, r the weight of each cell."""

    def __init__(self, sums: sparse.csr_array, weights: Floats) -> None:
        kept = np.flatnonzero(weights > 0)
        self.sums = sums[kept]
        self.solved = None
        if len(kept):
            core = sparse.diags_array(1 / weights[kept]) + self.sums @ self.sums.T
            self.solved = splu(core.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})

    def times(self, right: Floats) -> Floats:
        """Return K⁻¹·right, column by column."""
        if self.solved is None:
            return right
        out: Floats = right - self.sums.T @ self.solved.solve(self.sums @ right)
        return out


class Share(NamedTuple):
    """What a table tells of a residual: on which level of the inverted axis, and its share of that level's weight."""

    level: int | None  # of the coarser ones; None: the finest
    share: Floats  # by column


class Residual:
    """N⁻¹ of one residual: a column for each crossing of the other axes' cells, solved along one axis.

    `own` is the weight of the finest cells of a column, `ratios` that of each coarser level over it, of columns alike.
    """

    def __init__(self, finest: Int32s, axis: int, columns: int, weights: Mapping[str, tuple[Int32s, Floats]]) -> None:
        self.axis, self.width = axis, count(finest)
        levels: dict[bytes, int] = {}
        sums: list[sparse.csr_array] = []
        total = [np.zeros(columns)]
        place = dict[str, int]()
        for name, (labels, weight) in weights.items():
            to = inside(finest, labels)
            key = b"" if np.array_equal(to, np.arange(self.width)) else to.tobytes()
            if key and key not in levels:
                levels[key] = len(sums)
                held = np.flatnonzero(to >= 0)
                shape = (int(to.max()) + 1, self.width)
                sums.append(sparse.csr_array((np.ones(len(held)), (to[held], held)), shape=shape))
                total.append(np.zeros(columns))
            place[name] = 1 + levels[key] if key else 0
            total[place[name]] += weight.reshape(-1)
        own, others = total[0], np.array(total[1:]).reshape(len(sums), columns)
        least = np.where(others > 0, others, np.inf).min(axis=0, initial=np.inf)
        self.unknown = np.flatnonzero((own == 0) & np.isfinite(least))
        self.untold = np.flatnonzero((own == 0) & np.isinf(least))  # no table tells anything: nothing comes there
        some = float(np.concatenate([own, others.reshape(-1)]).max(initial=0.0)) or 1.0
        self.own = np.where(own > 0, own, LEAST * np.where(np.isinf(least), some, least))
        self.kinds, self.ratios = _alike(others / self.own)
        starts = np.cumsum([0, *(one.shape[0] for one in sums)])
        self.rows = [slice(a, b) for a, b in pairwise(starts)]
        self.sums = sparse.csr_array(sparse.vstack(sums)) if sums else sparse.csr_array((0, self.width))
        self.inverses = [Inverse(self.sums, np.repeat(ratios, np.diff(starts))) for ratios in self.ratios]
        self.shares = {}
        for name, (_, weight) in weights.items():
            of = total[place[name]]
            share = np.divide(weight.reshape(-1), of, out=np.zeros(of.size), where=of > 0)
            self.shares[name] = Share(place[name] - 1 if place[name] else None, share)

    def _columns(self, cells: Floats) -> Floats:
        return np.moveaxis(cells, self.axis, 0).reshape(cells.shape[self.axis], -1)

    def _back(self, columns: Floats, shape: tuple[int, ...]) -> Floats:
        widths = (len(columns), *shape[: self.axis], *shape[self.axis + 1 :])
        return np.moveaxis(columns.reshape(widths), 0, self.axis)

    def _through(self, columns: Floats) -> Floats:
        """Return K⁻¹ of columns, those of one kind together."""
        if len(self.inverses) == 1:
            return self.inverses[0].times(columns)
        out = np.empty(columns.shape)
        for kind, inverse in enumerate(self.inverses):
            mine = np.flatnonzero(self.kinds == kind)
            out[:, mine] = inverse.times(columns[:, mine])
        return out

    def solve(self, right: Floats) -> Floats:
        """Return N⁻¹·right."""
        return self._back(self._through(self._columns(right)) / self.own, right.shape)

    def eliminated(self, right: Floats) -> tuple[Floats, float]:
        """Return what `represented` makes the tables' parts of, and what is left that they do not represent.

        That is K⁻¹·right; where no table knows the finest cells, what these would represent is eliminated again.
        """
        columns = self._columns(right)
        least = ROUNDING * float(np.abs(columns).max(initial=0.0))
        left = float(np.abs(columns[:, self.untold]).max(initial=0.0))
        columns = self._through(columns)
        rounds, rest = 0, np.zeros_like(columns) if len(self.unknown) else columns[:, :0]
        if len(self.unknown):
            rest[:, self.unknown] = columns[:, self.unknown]
        while rounds < MOST_ROUNDS and np.abs(rest).max(initial=0.0) > least:
            rest, rounds = self._through(rest), rounds + 1
            columns = columns + rest
        return self._back(columns, right.shape), max(left, float(np.abs(rest).max(initial=0.0)))

    def represented(self, name: str, eliminated: Floats) -> Floats:
        """Return a table's part in the right side: functions of the cells of all tables that it is the sum of."""
        level, share = self.shares[name]
        columns = self._columns(eliminated)
        if level is not None:
            columns = (self.sums[self.rows[level]] @ columns) * self.ratios[self.kinds, level]
        return self._back(columns * share, eliminated.shape)


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


class Residuals:
    """M⁻¹ over vectors of cliques; symmetric and positive, and the same for all ways to write a function of them."""

    def __init__(self, cliques: Cliques) -> None:
        self.cliques = cliques
        known = cliques.group.known
        self.dimensions = len(known[0].table.widths)
        self.axis = _uneven(known)
        self.axes = {
            axis: Axis.of(_levels(cliques, axis), _measure(known, axis))
            for axis in range(self.dimensions)
            if axis != self.axis
        }
        self.tops = [self._node(one.levels) for one in cliques.cliques]
        self.of = {one.name: self._node(list(map(blocks, one.table.positions, one.table.widths))) for one in known}
        self.nodes: dict[Node, Residual] = {}
        self._stated: dict[Node, Residual] = {}  # of the tables that represent functions in a residual
        finest: dict[Node, Int32s] = {}
        for one, top in zip(cliques.cliques, self.tops, strict=True):
            for node in product(*(range(level + 1) for level in top)):
                if node not in finest or count(one.levels[self.axis]) > count(finest[node]):
                    finest[node] = one.levels[self.axis]
        for node, labels in finest.items():
            weights = {
                one.name: (one.table.positions[self.axis], self._weight(one, node))
                for one in known
                if all(a >= b for a, b in zip(self.of[one.name], node, strict=True))
            }
            columns = prod(len(of.measure[node[axis]]) for axis, of in self.axes.items())
            self.nodes[node] = self._stated[node] = Residual(labels, self.axis, columns, weights)
            stated = {one.name: weights[one.name] for one in known if one.name in weights and self._states(one, node)}
            if len(stated) < len(weights):
                self._stated[node] = Residual(labels, self.axis, columns, stated)
        self.bounds = not any(len(one.unknown) + len(one.untold) for one in self._stated.values())
        self._into = [
            {
                node: Along(inside(labels, one.levels[self.axis]), count(one.levels[self.axis]))
                for node, labels in finest.items()
                if all(a >= b for a, b in zip(top, node, strict=True))
            }
            for one, top in zip(cliques.cliques, self.tops, strict=True)
        ]

    def _node(self, levels: "tuple[Int32s, ...] | list[Int32s]") -> Node:
        return tuple(self.axes[i].number(one) if i in self.axes else 0 for i, one in enumerate(levels))

    def _weight(self, known: Known, node: Node) -> Floats:
        """Return what a table tells of each column of a residual: Σ w·m² over its cells, m each cell's share."""
        weight = known.weights.mean(axis=self.axis, keepdims=True)
        for axis, of in self.axes.items():
            positions, labels = known.table.positions[axis], of.levels[node[axis]]
            to = _level_of(known, axis, labels)
            squares = _added(positions, of.entries, len(to)) ** 2
            if weight.shape[axis] == 1:
                weight = weight * _shaped(_added(to, squares, count(labels)), axis, self.dimensions)
            else:
                weight = Along(to, count(labels)).up(weight * _shaped(squares, axis, self.dimensions), axis)
            weight = weight / _shaped(of.measure[node[axis]] ** 2, axis, self.dimensions)
        return np.asarray(weight, dtype=np.float64)

    def _states(self, known: Known, node: Node) -> bool:
        """Whether functions in a residual are some of a table's cells: it has all of each larger block, or nothing."""
        for axis, of in self.axes.items():
            outside = (known.table.positions[axis] < 0).astype(np.int32)
            if outside.any() and (not node[axis] or coarser(of.levels[node[axis] - 1], outside) is None):
                return False
        return True

    def _parts(self, right: Floats) -> dict[Node, Floats]:
        """Return a function of cliques' cells as functions of the finest cells of each residual."""
        parts: dict[Node, Floats] = {}
        for top, into, cells in zip(self.tops, self._into, self.cliques.of(right), strict=True):
            for node, part in analysed(cells, top, self.axes):
                finer = into[node].down(part, self.axis)
                parts[node] = parts[node] + finer if node in parts else finer
        return parts

    def solve(self, right: Floats) -> Floats:
        """Return M⁻¹·right: totals of cliques that agree."""
        parts = self._parts(right)
        for node, residual in self.nodes.items():
            parts[node] = residual.solve(parts[node])
        out = self.cliques.zeros()
        for top, into, view in zip(self.tops, self._into, self.cliques.of(out), strict=True):
            own = {node: along.up(parts[node], self.axis) for node, along in into.items()}
            view[...] = composed(own, top, self.axes, adjoint=True)
        return out

    def bound(self, right: Floats) -> float:
        """Return a bound of rᵀN⁻¹r for r = right: Σ V·ρ² for functions ρ of the tables' cells that r is the sum of.

        r = Σ Aᵀρ, so for every x (rᵀx)² = (Σ ρᵀA·x)² ≤ Σ V·ρ² · Σ (A·x)²/V = Σ V·ρ² · xᵀNx.
        Infinite where tables do not represent all of it.
        """
        parts, left = self._parts(right), 0.0
        most = max(float(np.abs(part).max(initial=0.0)) for part in parts.values())
        for node, residual in self._stated.items():
            parts[node], rest = residual.eliminated(parts[node])
            left = max(left, rest)
        total = 0.0 if left <= NOTHING * most else np.inf
        for known in self.cliques.group.known:
            top = self.of[known.name]
            own, width = {}, int(known.table.positions[self.axis].max()) + 1
            for node, residual in self._stated.items():
                if known.name in residual.shares:
                    own[node] = residual.represented(known.name, parts[node])
                elif all(a >= b for a, b in zip(top, node, strict=True)):
                    own[node] = np.zeros([width if n == self.axis else m for n, m in enumerate(parts[node].shape)])
            cells = composed(own, top, self.axes, adjoint=False)
            for axis, of in self.axes.items():
                to, width = _level_of(known, axis, of.levels[top[axis]]), len(of.measure[top[axis]])
                cells = np.where(_shaped(to >= 0, axis, self.dimensions), Along(to, width).down(cells, axis), 0)
            total += float((known.variance * cells**2).sum())
        return total if np.isfinite(total) else np.inf


def _level_of(known: Known, axis: int, labels: Int32s) -> Int32s:
    """Return in which block of a level each position of a table lies; −1 of one without entries."""
    positions = known.table.positions[axis]
    to = np.full(known.table.widths[axis], -1, dtype=np.int32)
    to[positions[positions >= 0]] = labels[positions >= 0]
    return to


def _comparable(one: Int32s, other: Int32s) -> bool:
    return coarser(one, other) is not None or coarser(other, one) is not None


def _levels(cliques: Cliques, axis: int) -> list[Int32s]:
    """Return the levels of an axis from the coarsest: those of cliques, and of the tables that fit between them."""
    known = sorted(cliques.group.known, key=lambda one: -float(np.max(one.weights)))
    own = [one.levels[axis] for one in cliques.cliques]
    own += [blocks(one.table.positions[axis], one.table.widths[axis]) for one in known]
    kept = [np.zeros(len(own[0]), dtype=np.int32)]
    for labels in own:
        if any(count(other) == count(labels) and coarser(labels, other) is not None for other in kept):
            continue
        if all(_comparable(labels, other) for other in kept):
            kept.append(labels)
    return sorted(kept, key=count)


def _measure(known: list[Known], axis: int) -> Floats:
    """Return a measure of the axis's entries: even, or as the variances of the finest table where they differ."""
    entries = np.ones(len(known[0].table.positions[axis]))
    uneven = [one for one in known if one.variance.shape[axis] > 1]
    if not uneven:
        return entries
    table = max(uneven, key=lambda one: one.table.widths[axis])
    others = tuple(other for other in range(table.variance.ndim) if other != axis)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.exp(np.log(table.variance).mean(axis=others))
    positions = table.table.positions[axis]
    held = (positions >= 0) & np.isfinite(variance[positions]) & (variance[positions] > 0)
    each = variance / np.maximum(np.bincount(positions[positions >= 0], minlength=len(variance)), 1)
    entries[held] = each[positions[held]]
    entries[~held] = entries[held].mean() if held.any() else 1.0
    return entries


def _uneven(known: list[Known]) -> int:
    """Return the axis that is inverted: one on which levels cross, else the one with most entries."""
    axes = range(len(known[0].table.widths))

    def crossing(axis: int) -> int:
        of_tables = (blocks(each.table.positions[axis], each.table.widths[axis]) for each in known)
        levels = {one.tobytes(): one for one in of_tables}
        return sum(not _comparable(one, other) for one, other in combinations(levels.values(), 2))

    return max(axes, key=lambda axis: (crossing(axis), len(known[0].table.positions[axis])))
