"""Tables on a grid of finest common cells, and the sums that lead from one table's cells to another's."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse import csgraph

from udfs.numbers.arrays import Floats, Int64s

Int32s = NDArray[np.int32]
Positions = tuple[Int32s, ...]
Item = TypeVar("Item")
Result = TypeVar("Result")
Scalar = TypeVar("Scalar", bound=np.generic)

SLAB = 2**19  # cells that one thread works on at a time: a few megabytes, whatever the table's size
THREADS = min(4, os.cpu_count() or 1)


class EstimateError(ValueError):
    """The tables do not allow the estimate that is asked for; the message is one plain line."""


@dataclass(frozen=True, eq=False)
class Observed:
    """One published table on the axes of its group's base, whose cells it adds up.

    `positions[axis][atom]` is where the atom lies on the table's axis, −1 where the table has no cell of it; `widths`
    are the lengths of the table's axes, 1 where an axis is added up. `values` have the shape `widths`; None: the table
    is to be estimated, and carries no weight. `variance` is that of the noise, broadcastable to `widths`: 0 of what is
    known without noise, infinite of what is not known.
    """

    name: str
    positions: Positions
    widths: tuple[int, ...]
    values: Floats | None
    variance: Floats | None


def in_order(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Yield work(item) for each item in order, computed by a few threads: the same results for any number of them."""
    if len(items) < 2 or THREADS < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(THREADS) as threads:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(threads.submit(work, item))
            if len(waiting) > 2 * THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def row_slabs(shape: tuple[int, ...]) -> list[slice]:
    """Return the slabs of the first axis that threads work on."""
    rows = max(1, SLAB // max(1, int(np.prod(shape[1:]))))
    return [slice(start, min(start + rows, shape[0])) for start in range(0, shape[0], rows)]


def _pieces(base: Floats) -> list[slice]:
    return [slice(start, start + SLAB) for start in range(0, base.size, SLAB)]


def dot(one: Floats, other: Floats) -> float:
    """Return the sum of products, added piece by piece in order: the same for any number of threads."""
    a, b = one.reshape(-1), other.reshape(-1)
    return math.fsum(in_order(lambda piece: float(np.einsum("i,i->", a[piece], b[piece])), _pieces(a)))


def add_scaled(out: Floats, factor: float, other: Floats) -> None:
    """Add `factor`·`other` to `out`, without an array of that size."""
    a, b = out.reshape(-1), other.reshape(-1)

    def add(piece: slice) -> None:
        a[piece] += factor * b[piece]

    for _ in in_order(add, _pieces(a)):
        pass


class Along:
    """The sums along one axis: the position of each of its `length` entries on the axis of a coarser table, or −1."""

    def __init__(self, positions: Int32s, width: int) -> None:
        self.positions, self.width, self.length = positions, width, len(positions)
        self.same = self.length == width and bool((positions == np.arange(width)).all())
        self.all = width == 1 and bool((positions == 0).all())
        self.padded = bool((positions < 0).any())
        order = np.argsort(positions, kind="stable")
        held = positions[order]
        order, held = order[held >= 0], held[held >= 0]
        self.starts = np.flatnonzero(np.diff(held, prepend=-1))
        self.filled = held[self.starts]
        self.order = None if np.array_equal(order, np.arange(self.length)) else order

    def up(self, cells: Floats, axis: int) -> Floats:
        """Add up cells along an axis."""
        if self.same:
            return cells
        if self.all and math.prod(cells.shape[axis + 1 :]) == 1:
            rows = cells.reshape(-1, self.length)
            ones: Floats = np.einsum("ij->i", rows)
            return ones.reshape(*cells.shape[:axis], 1, *cells.shape[axis + 1 :])
        if self.all:
            total: Floats = cells.sum(axis=axis, keepdims=True)
            return total
        if self.order is not None:
            cells = cells.take(self.order, axis=axis)
        shape = (*cells.shape[:axis], self.width, *cells.shape[axis + 1 :])
        if not len(self.starts):
            return np.zeros(shape)
        sums = np.add.reduceat(cells, self.starts, axis=axis)
        if len(self.filled) == self.width:
            return sums
        out = np.zeros(shape)
        out[(slice(None),) * axis + (self.filled,)] = sums
        return out

    def down(self, cells: Floats, axis: int) -> Floats:
        """Give each entry the cell it lies in; cells have a 0 at the end for those at −1 where there are any."""
        if self.all:
            return np.broadcast_to(cells, (*cells.shape[:axis], self.length, *cells.shape[axis + 1 :]))
        spread: Floats = cells if self.same else cells.take(self.positions, axis=axis, mode="wrap")
        return spread


class Step:
    """From a level of an axis to the next coarser one: where blocks lie, and the share of each in its larger block."""

    def __init__(self, to: Int32s, width: int, share: Floats) -> None:
        self._along, self._share = Along(to, width), share
        ends = to, np.arange(len(to))
        self._sums, self._means = (
            sparse.csr_array((each, ends), shape=(width, len(to))) for each in (np.ones(len(to)), share)
        )

    def up(self, cells: Floats, axis: int, *, means: bool) -> Floats:
        """Return sums of blocks, or means by their shares."""
        shape = (*cells.shape[:axis], self._along.width, *cells.shape[axis + 1 :])
        before = math.prod(shape[:axis])
        if before == 1:  # rows are added as they lie
            of_rows: Floats = (self._means if means else self._sums) @ cells.reshape(self._along.length, -1)
            return of_rows.reshape(shape)
        if self._along.all:
            weights = self._share if means else np.ones(self._along.length)
            of_all: Floats = np.einsum("ijk,j->ik", cells.reshape(before, self._along.length, -1), weights)
            return of_all.reshape(shape)
        return self._along.up(cells * shaped(self._share, axis, cells.ndim) if means else cells, axis)

    def down(self, cells: Floats, axis: int, *, shared: bool) -> Floats:
        """Give each block its larger block's cell, or its share of it."""
        spread = self._along.down(cells, axis)
        return spread * shaped(self._share, axis, cells.ndim) if shared else spread


Node = tuple[int, ...]  # a level of each axis by its number, coarser ones first; 0 on an axis without steps
Steps = Mapping[int, Sequence[Step]]  # of axes: from level j + 1 to level j


def shaped(values: NDArray[Scalar], axis: int, dimensions: int) -> NDArray[Scalar]:
    """Return values of an axis's entries, broadcastable to arrays of so many dimensions."""
    return values.reshape([-1 if other == axis else 1 for other in range(dimensions)])


def moved(node: Node, axis: int, level: int) -> Node:
    """Return the crossing with another level of one axis."""
    return (*node[:axis], level, *node[axis + 1 :])


def averaged(cells: Floats, node: Node, to: Node, steps: Steps) -> Floats:
    """Return the means of a function of cells at the levels `node` over cells at the coarser levels `to`."""
    for axis, every in steps.items():
        for level in range(node[axis], to[axis], -1):
            cells = every[level - 1].up(cells, axis, means=True)
    return cells


def analysed(
    cells: Floats, node: Node, steps: Steps, todo: Sequence[int] | None = None
) -> Iterator[tuple[Node, Floats]]:
    """Yield of a function of cells, at the levels `node`, its part in each residual, which it is the sum of."""
    todo = list(steps) if todo is None else todo
    if not todo:
        yield node, cells
        return
    axis, rest = todo[0], todo[1:]
    for level in range(node[axis], 0, -1):
        step = steps[axis][level - 1]
        means = step.up(cells, axis, means=True)
        own = cells - step.down(means, axis, shared=False)
        yield from analysed(own, moved(node, axis, level), steps, rest)
        cells = means
    yield from analysed(cells, moved(node, axis, 0), steps, rest)


def composed(
    parts: Mapping[Node, Floats], node: Node, steps: Steps, todo: Sequence[int] | None = None, *, adjoint: bool
) -> Floats | None:
    """Return cells at the levels `node` from parts in some coarser crossings; None of none.

    `adjoint`: totals of cells, the transpose of what `analysed` does; else functions of cells, which it undoes.
    """
    todo = list(steps) if todo is None else todo
    if not todo:
        return parts.get(node)
    axis, rest = todo[0], todo[1:]
    cells = composed(parts, moved(node, axis, 0), steps, rest, adjoint=adjoint)
    for level in range(1, node[axis] + 1):
        step = steps[axis][level - 1]
        own = composed(parts, moved(node, axis, level), steps, rest, adjoint=adjoint)
        if own is not None and adjoint:
            sums = step.up(own, axis, means=False)
            cells = np.negative(sums, out=sums) if cells is None else np.subtract(cells, sums, out=sums)
        spread = None if cells is None else step.down(cells, axis, shared=adjoint)
        cells = own if spread is None or own is None else own + spread
        cells = spread if cells is None else cells
    return cells


class Sums:
    """How the cells of a finer table add up to those of a coarser one, position by position along each axis.

    Work goes by slabs of the first axis, partial sums are added in the order of slabs: results do not depend on the
    number of threads.
    """

    def __init__(self, positions: Positions, widths: tuple[int, ...]) -> None:
        self.shape = tuple(map(len, positions))
        self.positions, self.widths = positions, widths
        self._first = Along(positions[0], widths[0])
        axes = [(number, Along(p, w)) for number, (p, w) in enumerate(zip(positions, widths, strict=True)) if number]
        self._rest = sorted(axes, key=lambda one: one[1].width / max(one[1].length, 1))
        self.same = self._first.same and all(axis.same for _, axis in axes)

    @cached_property
    def _slabs(self) -> list[tuple[slice, Int32s, NDArray[np.intp], sparse.csr_array]]:
        """Rows of each slab, the rows of the coarser table that they meet, where each row lies, and their sums."""
        slabs = []
        for part in row_slabs(self.shape):
            met, inverse = np.unique(self._first.positions[part], return_inverse=True)
            here = inverse if met[0] >= 0 else inverse - 1  # a row at −1 lies in none
            held = np.flatnonzero(here >= 0)
            shape = (len(met) - int(met[0] < 0), len(inverse))
            adds = sparse.csr_array((np.ones(len(held)), (here[held], held)), shape=shape)
            slabs.append((part, met, inverse, adds))
        return slabs

    @cached_property
    def _flat(self) -> NDArray[np.intp]:
        return self._first.positions.astype(np.intp) + 1

    def up(self, cells: Floats) -> Floats:
        """Return the sums, shape `widths`, of cells of shape `shape`; the very array where nothing is to be added."""
        if self.same:
            return cells
        if len(self.shape) == 1:
            sums = np.bincount(self._flat, weights=cells, minlength=self.widths[0] + 1)[1:]
            return sums.astype(np.float64, copy=False)
        out = np.zeros(self.widths)
        for met, part in in_order(lambda slab: self._up(cells, *slab), self._slabs):
            out[met] += part
        return out

    def _up(
        self, cells: Floats, part: slice, met: Int32s, inverse: NDArray[np.intp], adds: sparse.csr_array
    ) -> tuple[Int32s, Floats]:
        sums = cells[part]
        for axis, along in self._rest:
            sums = along.up(sums, axis)
        met = met[met >= 0]
        if not (len(met) == len(inverse) and self._first.same):
            sums = (adds @ sums.reshape(len(inverse), -1)).reshape(len(met), *sums.shape[1:])
        return met, sums

    def down(self, cells: Floats, out: Floats) -> None:
        """Add to each of the finer cells `out` the coarser cell that it lies in."""
        self._each(np.add, cells, out)

    def scale(self, cells: Floats, out: Floats) -> None:
        """Multiply each of the finer cells `out` by the coarser cell that it lies in; each lies in one."""
        self._each(np.multiply, cells, out)

    def _each(self, change: np.ufunc, cells: Floats, out: Floats) -> None:
        if self.same:
            change(out, cells, out=out)
            return
        every = [self._first, *(axis for _, axis in sorted(self._rest, key=lambda one: one[0]))]
        ends = [(0, int(axis.padded)) for axis in every]
        padded = np.pad(cells, ends) if any(end for _, end in ends) else cells
        if len(self.shape) == 1:
            change(out, padded.take(self._first.positions, mode="wrap"), out=out)
            return

        def work(slab: tuple[slice, Int32s, NDArray[np.intp], sparse.csr_array]) -> None:
            part, met, inverse, _ = slab
            spread = padded[met]
            for axis, along in reversed(self._rest):
                spread = along.down(spread, axis)
            change(out[part], spread if len(met) == 1 or self._first.same else spread[inverse], out=out[part])

        deque(in_order(work, self._slabs), maxlen=0)


def sums_between(finer: Observed, coarser: Observed) -> Positions | None:
    """Return where each position of `finer` lies in `coarser`; None where its cells do not make up the coarser ones."""
    moved = []
    for own, other, width in zip(finer.positions, coarser.positions, finer.widths, strict=True):
        if bool(((own < 0) & (other >= 0)).any()):
            return None
        held = own >= 0
        to = np.full(width, -1, dtype=np.int32)
        to[own[held]] = other[held]
        if not np.array_equal(to[own[held]], other[held]):
            return None
        moved.append(to)
    return tuple(moved)


def joint_positions(positions: Sequence[Int32s]) -> Int32s:
    """Return the class of each entry of one axis, two in one class where they agree everywhere; in order of appearance.

    Entries that are −1 everywhere have class −1.
    """
    codes = reduce(_paired, positions, np.zeros(len(positions[0]), dtype=np.int64))
    somewhere = reduce(np.logical_or, (axis >= 0 for axis in positions))
    _, first, inverse = np.unique(codes[somewhere], return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int32)
    number[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    classes = np.full(len(codes), -1, dtype=np.int32)
    classes[somewhere] = number[inverse]
    return classes


def _paired(codes: Int64s, positions: Int32s) -> Int64s:
    both = codes * (int(positions.max(initial=0)) + 2) + positions + 1
    inverse: Int64s = np.unique(both, return_inverse=True)[1].astype(np.int64, copy=False)
    return inverse


def common(one: Observed, other: Observed) -> tuple[Observed, Observed] | None:
    """Return the finest table whose cells both tables make up, from the cells of each; None where they share none.

    On each axis its positions are the smallest sets of entries that hold every position of both either entirely or
    not at all, and that neither table leaves out.
    """
    steps: tuple[list[Int32s], list[Int32s]] = [], []
    for axis, (a, b) in enumerate(zip(one.positions, other.positions, strict=True)):
        widths = one.widths[axis], other.widths[axis]
        met = (a >= 0) | (b >= 0)
        ends = np.where(a < 0, widths[0], a)[met], np.where(b < 0, widths[1], b)[met] + widths[0] + 1
        nodes = sum(widths) + 2  # positions of both, and outside each
        graph = sparse.csr_array((np.ones(len(ends[0])), ends), shape=(nodes, nodes))
        label = csgraph.connected_components(graph, directed=False)[1]
        label[np.isin(label, label[[widths[0], nodes - 1]])] = -1
        label[np.setdiff1d(np.arange(nodes), np.concatenate(ends))] = -1  # positions without an entry
        if (label < 0).all():
            return None
        label = joint_positions([label.astype(np.int32)])
        steps[0].append(label[: widths[0]])
        steps[1].append(label[widths[0] + 1 : nodes - 1])
    both = tuple(int(axis.max()) + 1 for axis in steps[0])
    return Observed(one.name, tuple(steps[0]), both, None, None), Observed(
        other.name, tuple(steps[1]), both, None, None
    )
