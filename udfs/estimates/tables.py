"""Tables on a grid of finest common cells, and the sums that lead from one table's cells to another's."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
        spread: Floats = cells if self.same else cells.take(self.positions, axis=axis, mode="wrap")
        return spread


class Sums:
    """How the cells of a finer table add up to those of a coarser one, position by position along each axis.

    Work goes by slabs of the first axis, partial sums are added in the order of slabs: results do not depend on the
    number of threads.
    """

    def __init__(self, positions: Positions, widths: tuple[int, ...]) -> None:
        self.shape = tuple(map(len, positions))
        self.widths = widths
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
        if self.same:
            out += cells
            return
        every = [self._first, *(axis for _, axis in sorted(self._rest, key=lambda one: one[0]))]
        ends = [(0, int(axis.padded)) for axis in every]
        padded = np.pad(cells, ends) if any(end for _, end in ends) else cells
        if len(self.shape) == 1:
            out += padded.take(self._first.positions, mode="wrap")
            return
        deque(in_order(lambda slab: self._down(padded, out, *slab), self._slabs), maxlen=0)

    def _down(
        self, cells: Floats, out: Floats, part: slice, met: Int32s, inverse: NDArray[np.intp], _: sparse.csr_array
    ) -> None:
        spread = cells[met]
        for axis, along in reversed(self._rest):
            spread = along.down(spread, axis)
        out[part] += spread if len(met) == 1 or self._first.same else spread[inverse]


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
