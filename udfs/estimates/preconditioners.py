"""A preconditioner for tables that cross: levels of each axis, and what only their crossings tell apart.

The tables' cells are averages over blocks of neighbours; where blocks of one axis lie in each other or apart, these
averages commute, and base values fall into orthogonal parts, one for each crossing of levels that a table has or two
tables share. On each part the normal equations are nearly a product cell by cell, which is inverted
(docs/mathematics.md, section 14).
"""

from dataclasses import dataclass, field

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from udfs.estimates.group import Group, Known
from udfs.estimates.tables import Int32s, Sums, joint_positions
from udfs.numbers.arrays import Floats

MOST_NODES = 200  # crossings; with more, tables of least weight do without


@dataclass(frozen=True, eq=False)
class _Node:
    """One crossing of levels: how base cells add up to its cells, and how many entries each position of an axis has."""

    levels: tuple[int, ...]
    sums: Sums
    counts: tuple[Floats, ...]

    def times(self, cells: Floats, power: int) -> Floats:
        """Multiply cells in place by a power of the number of base cells in each; return them."""
        for axis, counts in enumerate(self.counts):
            cells *= (counts**power).reshape([-1 if other == axis else 1 for other in range(cells.ndim)])
        return cells


class Lattice:
    """M⁻¹ = Σ P G P over orthogonal parts P; symmetric and positive."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._axes: list[list[Int32s]] = [[np.arange(n, dtype=np.int32)] for n in group.shape]
        base = (0,) * len(group.shape)
        self.of: dict[str, tuple[int, ...]] = {}
        self._joins: dict[tuple[int, int, int], int] = {}
        nodes = {base}
        for known in sorted(group.upper, key=lambda one: -float(np.max(one.weights))):
            levels = self._levels(known)
            if levels is None:
                continue
            closed = self._closed(nodes, levels)
            if len(closed) <= MOST_NODES:
                nodes, self.of[known.name] = closed, levels
        order = sorted(nodes, key=lambda one: -self._cells(one))
        self.nodes = [self._node(levels) for levels in order]
        axes = range(len(base))
        self._below = [
            [j for j, one in enumerate(order) if one != other and tuple(map(self._joined, axes, one, other)) == one]
            for other in order
        ]
        self._trees = [self._tree(i) for i in range(len(order))]
        self._gains = self._inverses()

    def _levels(self, known: Known) -> tuple[int, ...] | None:
        numbers = []
        for axis, positions in enumerate(known.table.positions):
            outside = np.where(positions < 0, np.arange(len(positions)), -1).astype(np.int32)
            labels = joint_positions([positions + 1, outside + 1])
            number = self._number(axis, labels)
            if number is None:
                return None
            numbers.append(number)
        return tuple(numbers)

    def _number(self, axis: int, labels: Int32s) -> int | None:
        for number, other in enumerate(self._axes[axis]):
            if np.array_equal(other, labels):
                return number
        if any(_coarsening(other, labels) is None for other in self._axes[axis]):
            return None
        self._axes[axis].append(labels)
        return len(self._axes[axis]) - 1

    def _closed(self, nodes: set[tuple[int, ...]], levels: tuple[int, ...]) -> set[tuple[int, ...]]:
        closed, new = set(nodes), {levels}
        while new and len(closed) <= MOST_NODES:
            one = new.pop()
            if one in closed:
                continue
            new |= {tuple(map(self._joined, range(len(one)), one, other)) for other in closed}
            closed.add(one)
        return closed

    def _joined(self, axis: int, one: int, other: int) -> int:
        if (axis, one, other) not in self._joins:
            labels = _coarsening(self._axes[axis][one], self._axes[axis][other])
            assert labels is not None
            number = self._number(axis, labels)
            assert number is not None
            self._joins[axis, one, other] = number
        return self._joins[axis, one, other]

    def _cells(self, levels: tuple[int, ...]) -> int:
        return int(np.prod([int(self._axes[axis][level].max()) + 1 for axis, level in enumerate(levels)]))

    def _node(self, levels: tuple[int, ...]) -> _Node:
        positions = tuple(self._axes[axis][level] for axis, level in enumerate(levels))
        widths = tuple(int(p.max()) + 1 for p in positions)
        counts = tuple(np.bincount(p, minlength=w).astype(np.float64) for p, w in zip(positions, widths, strict=True))
        return _Node(levels, Sums(positions, widths), counts)

    def _between(self, finer: int, coarser: int) -> Sums:
        to = []
        for axis, (a, b) in enumerate(zip(self.nodes[finer].levels, self.nodes[coarser].levels, strict=True)):
            own = self._axes[axis][a]
            step = np.zeros(int(own.max()) + 1, dtype=np.int32)
            step[own] = self._axes[axis][b]
            to.append(step)
        return Sums(tuple(to), self.nodes[coarser].sums.widths)

    def _tree(self, top: int) -> list[tuple[int, int, Sums]]:
        """Return (node, the smallest finer node below `top`, sums between) for all coarser nodes, finest first."""
        inside = [top, *self._below[top]]
        steps = []
        for node in self._below[top]:
            source = [other for other in inside if other < node and node in self._below[other]][-1]
            steps.append((node, source, self._between(source, node)))
        return steps

    def _inverses(self) -> list[Floats]:
        """Return G of each node: 1 over what all tables tell of a vector that is constant on each of its cells.

        That is Σ w·m²/n over a table's cells in each cell: m their base cells, n the cell's.
        """
        own = self._own_weight()
        weight = [own if own.size == 1 else node.times(node.sums.up(own.copy()), -1) for node in self.nodes]
        for known in self.group.upper:
            if known.name not in self.of:
                continue
            top = next(i for i, node in enumerate(self.nodes) if node.levels == self.of[known.name])
            finer = self.nodes[top]
            weights = np.broadcast_to(self._on_node(known, finer), finer.sums.widths)
            folded = {top: finer.times(weights.copy(), 2)}
            weight[top] = weight[top] + finer.times(weights.copy(), 1)
            for number, source, step in self._trees[top]:
                folded[number] = step.up(folded[source])
                weight[number] = weight[number] + self.nodes[number].times(folded[number].copy(), -1)
        return [1 / _filled(one) for one in weight]

    def _own_weight(self) -> Floats:
        """Return the weight of each base cell by itself: its table's, and of tables that the lattice leaves out.

        What is known without noise weighs nothing: the solution does not move along it.
        """
        own = self.group.base
        if own is not None and np.isfinite(own.variance).all():
            return own.weights if own.weights.size == 1 else np.broadcast_to(own.weights, self.group.shape)
        total = np.zeros(self.group.shape) if own is None else np.broadcast_to(own.weights, self.group.shape).copy()
        for known in self.group.upper:
            if known.name not in self.of:
                self.group.sums[known.name].down(np.broadcast_to(known.weights, known.table.widths), total)
        return total

    def _on_node(self, known: Known, node: _Node) -> Floats:
        weights = known.weights
        if weights.size == 1 and all((axis >= 0).all() for axis in known.table.positions):
            return weights
        index = []
        for axis, positions in enumerate(known.table.positions):
            cells_of = np.full(node.sums.widths[axis], -1)
            cells_of[self._axes[axis][node.levels[axis]]] = positions
            index.append(cells_of)
        padded = np.pad(np.broadcast_to(weights, known.table.widths), [(0, 1)] * weights.ndim)
        cells: Floats = padded[np.ix_(*index)]
        return cells

    def solve(self, right: Floats) -> Floats:
        """Return M⁻¹·right."""
        sums: dict[int, Floats] = {0: right}
        for node, source, step in self._trees[0]:
            sums[node] = step.up(sums[source])
        parts: dict[int, Floats] = {}
        for number in reversed(range(1, len(self.nodes))):
            parts[number] = self.nodes[number].times(sums.pop(number), -1)
            self._add_spread(number, parts, parts[number], -1.0)
        first = self._gains[0]
        out: dict[int, Floats] = {}
        if first.size > 1:
            out[0] = right.copy()
            self._add_spread(0, parts, out[0], -1.0)
            out[0] *= first
        for number in range(0 if 0 in out else 1, len(self.nodes)):
            if number:
                own = self.nodes[number].times(self._gains[number] * parts[number], 1)
                out[number] = np.subtract(own, out[number], out=own) if number in out else own
            folded = {number: out[number]}
            for node, source, step in self._trees[number]:
                folded[node] = step.up(folded[source])
                out[node] = out[node] + folded[node] if node in out else folded[node].copy()
        for number in range(1, len(self.nodes)):
            self.nodes[number].times(out[number], -1)
            if 0 not in out:
                out[number] -= first * parts[number]
        base = out[0] if 0 in out else right * first
        self._add_spread(0, out, base, 1.0)
        return base

    def _add_spread(self, top: int, cells: dict[int, Floats], out: Floats, factor: float) -> None:
        """Add `factor` times the sum of all coarser nodes' cells to those of node `top`."""
        held: dict[int, Floats] = {}
        for node, source, step in reversed(self._trees[top]):
            own = factor * cells[node]
            if node in held:
                own += held.pop(node)
            if source != top and source not in held:
                held[source] = np.zeros(self.nodes[source].sums.widths)
            step.down(own, out if source == top else held[source])


def _filled(weight: Floats) -> Floats:
    """Give cells of which no table tells anything the least that is told of others: then none stands out."""
    seen = weight > 0
    return weight if seen.all() else np.where(seen, weight, weight[seen].min() if seen.any() else 1.0)


def _coarsening(one: Int32s, other: Int32s) -> Int32s | None:
    """Return the partition of the larger of both blocks everywhere; None where blocks cross."""
    both = joint_positions([one, other])
    sizes = [np.bincount(labels)[labels] for labels in (one, other, both)]
    inside_other, inside_one = sizes[2] == sizes[0], sizes[2] == sizes[1]
    if not (inside_other | inside_one).all():
        return None
    count = len(one) + 1
    larger = np.where(inside_other, other, one + count)
    return joint_positions([larger.astype(np.int32)])


# The exact solution for tables that nest one in another, in two passes: up from the base, and down again.

LEAST_SHARE = 1e-6  # of a base cell's own weight, where no table lies at the base: keeps the two passes finite
MOST_GAIN = 1e6  # a table known without noise counts like one that is known this much better


def over(numerator: Floats, denominator: Floats) -> Floats:
    """Return the quotient, 0 where both are 0: of nothing unknown, nothing is corrected."""
    return np.divide(
        numerator, denominator, out=np.zeros(np.broadcast(numerator, denominator).shape), where=denominator != 0
    )


@dataclass(frozen=True, eq=False)
class Level:
    """One table of a chain: how it is added up from the level below, and how well it is known from there.

    With V the variance of the table and D = Σ of its parts' variances, `gain` = D/(V + D) is how far its value moves
    the estimate from below, and the estimate from both has the variance D·(1 − gain).
    """

    known: Known
    sums: Sums
    below: Floats  # D
    gain: Floats = field(init=False)

    def __post_init__(self) -> None:
        variance = self.known.variance
        gain = np.where(
            np.isinf(variance), 0.0, over(self.below, np.where(np.isinf(variance), 1.0, variance) + self.below)
        )
        object.__setattr__(self, "gain", gain)

    @property
    def variance(self) -> Floats:
        """The variance of the estimate from this table and those below."""
        return self.below * (1 - self.gain)


class Chain:
    """The inverse of M = W₀ + Σ Aᵀ W A over the base and a chain of tables, each made up of cells of the one before."""

    def __init__(self, group: Group) -> None:
        self.group = group
        start = _first_variance(group, None)
        self.names = _best(group, start)
        self.start = _first_variance(group, self.names) if group.base is None else start
        self.levels: list[Level] = []
        parts, last = self.start, None
        for name in self.names:
            sums = group.sums[name] if last is None else group.within[last][name]
            known = next(known for known in group.known if known.name == name)
            below = sums.up(np.broadcast_to(parts, sums.shape))
            self.levels.append(Level(known, sums, below))
            parts, last = self.levels[-1].variance, name

    @property
    def bounds(self) -> bool:
        """Whether M ≤ N: all of M's weight is that of tables."""
        return self.group.base is not None and bool(np.isfinite(self.group.base.variance).all())

    @property
    def exact(self) -> bool:
        """Whether M = N: every table lies in the chain."""
        return self.bounds and len(self.names) == len(self.group.known) - 1

    def solve(self, right: Floats) -> Floats:
        """Return M⁻¹·right."""
        base: Floats = self.start * right
        correction = self._corrections(base, data=False)
        if correction is None:
            return base
        np.copyto(base, right)
        self.levels[0].sums.down(correction, base)
        base *= self.start
        return base

    def estimate(self) -> Floats:
        """Return the least-squares values on the base from the tables of the chain alone."""
        known = self.group.base
        base = np.zeros(self.group.shape) if known is None else known.values
        correction = self._corrections(base, data=True)
        if correction is None:
            return base.copy()
        out = np.zeros(self.group.shape)
        self.levels[0].sums.down(correction, out)
        out *= self.start
        out += base
        return out

    def _corrections(self, base: Floats, *, data: bool) -> Floats | None:
        """Return (estimate − sum of the base)/D of the first level's cells; None where there is no level."""
        sums, estimates, last = [], [], base
        for level in self.levels:
            sums.append(level.sums.up(last))
            step = level.known.values - sums[-1] if data else -sums[-1]
            last = sums[-1] + level.gain * step
            estimates.append(last)
        correction = None
        for number in reversed(range(len(self.levels))):
            level = self.levels[number]
            if correction is not None:
                spread = np.zeros(level.known.table.widths)
                self.levels[number + 1].sums.down(correction, spread)
                spread *= level.variance
                estimates[number] = estimates[number] + spread
            correction = over(estimates[number] - sums[number], level.below)
        return correction


def _first_variance(group: Group, chain: list[str] | None) -> Floats:
    """Return the variance of base cells: their table's, or where there is none, of about what other tables tell.

    Only the speed of convergence depends on what stands for a missing table.
    """
    own = None if group.base is None else group.base.variance
    if own is not None and np.isfinite(own).all():
        return own
    weights, others = np.zeros(group.shape), np.zeros(group.shape)
    for known in group.known:
        spread = np.zeros(group.shape)
        group.sums[known.name].down(np.broadcast_to(known.weights, known.table.widths), spread)
        weights += spread
        if chain is None or known.name not in chain:
            others += spread
    weights[weights == 0] = 1.0
    missing = 1 / np.maximum(others, LEAST_SHARE * weights)
    return missing if own is None else np.where(np.isfinite(own), own, missing)


def _best(group: Group, start: Floats) -> list[str]:
    """Return the chain of tables, finest first, that tells most beyond the base: the largest sum of log(1 + D/V)."""
    spread = group.folded(np.broadcast_to(start, group.shape))
    best: dict[str, tuple[float, list[str]]] = {}
    for known in reversed(group.known):
        if known is group.base:
            continue
        below = spread[known.name]
        gain = float(np.log1p(below / np.maximum(known.variance, below / MOST_GAIN + (below == 0))).sum())
        after = max((best[name] for name in group.within[known.name]), default=(0.0, []), key=lambda one: one[0])
        best[known.name] = gain + after[0], [known.name, *after[1]]
    return max(best.values(), default=(0.0, []), key=lambda one: one[0])[1]


class Inverse:
    """The coarser cells' part of K⁻¹, K = 1 + Σ r·AᵀA over coarser cells of one axis, r the weight of each.

    K⁻¹ = 1 − Aᵀ(1/r + AAᵀ)⁻¹A; the inner matrix is inverted by the inverses of its sparse factors.
    """

    def __init__(self, sums: sparse.csr_array, weights: Floats) -> None:
        self.kept = np.flatnonzero(weights > 0)
        if len(self.kept):
            own = sums[self.kept]
            self._core = sparse.csr_array(sparse.diags_array(1 / weights[self.kept]) + own @ own.T)
            solved = splu(self._core.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
            self._lower = _inverted(sparse.csr_array(solved.L)).tocsc()[:, solved.perm_r].tocsr()
            upper = sparse.csr_array(solved.U)
            scale = sparse.diags_array(1 / upper.diagonal())
            self._upper = (_inverted(sparse.csr_array(scale @ upper)) @ scale).tocsr()[solved.perm_c]

    def solve(self, sums: Floats) -> Floats:
        """Return (1/r + AAᵀ)⁻¹ of columns of sums; 0 of cells without weight."""
        out = np.zeros(sums.shape)
        if len(self.kept):
            right = sums[self.kept]
            inner = self._upper @ (self._lower @ right)
            out[self.kept] = inner + self._upper @ (self._lower @ (right - self._core @ inner))  # refined
        return out


def _inverted(triangle: sparse.csr_array) -> sparse.csr_array:
    """Return the inverse of 1 − N, N strictly triangular: (1 + N)·(1 + N²)·(1 + N⁴)·…, until the power is 0."""
    out = sparse.eye_array(triangle.shape[0], format="csr")
    power = sparse.csr_array(out - triangle)
    while power.nnz:
        out = sparse.csr_array(out + out @ power)
        power = sparse.csr_array(power @ power)
    return out
