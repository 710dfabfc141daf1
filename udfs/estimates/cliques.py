"""Vectors over the largest tables of a group, where its finest common cells are too many to be enumerated.

Result: totals of all tables come from one signed measure on the finest common cells if and only if the *cliques*, the
largest tables, agree on what they have in common; so a vector is one array for each clique. On each axis the cliques'
levels lie in each other, and they form a tree in which what any two share lies in all between them: what one clique
says is then handed on to the next, cell by cell (docs/mathematics.md, section 14).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import numpy as np

from udfs.estimates.group import Group, Known, Weights
from udfs.estimates.tables import EstimateError, Int32s, Observed, Positions, Step, Sums, joint_positions
from udfs.numbers.arrays import Floats

Levels = tuple[Int32s, ...]  # of one clique: on each axis the block of each entry


class TooLarge(EstimateError):
    """Vectors would have more cells than are allowed."""


def blocks(positions: Int32s, width: int) -> Int32s:
    """Return a table's level as a partition: its positions, and one more block of all entries outside it."""
    labels = np.where(positions < 0, np.int32(width), positions)
    classes, numbers = np.unique(labels, return_inverse=True)
    return labels if len(classes) == classes[-1] + 1 else numbers.astype(np.int32)


def count(labels: Int32s) -> int:
    """Return the number of blocks."""
    return int(labels.max(initial=-1)) + 1


def coarser(fine: Int32s, coarse: Int32s) -> Int32s | None:
    """Return which coarser block each finer one lies in (−1: it has no entry); None where a finer one is cut."""
    to = np.full(count(fine), -1, dtype=np.int32)
    to[fine] = coarse
    return to if np.array_equal(to[fine], coarse) else None


def inside(fine: Int32s, coarse: Int32s) -> Int32s:
    """Return `coarser` of a level that is known to lie inside the other."""
    to = coarser(fine, coarse)
    assert to is not None
    return to


def _cells(levels: Levels) -> int:
    return math.prod(map(count, levels))


def _within(levels: Levels, positions: Iterable[Int32s]) -> Positions | None:
    """Return the positions of a table on the blocks of a clique; None where the clique does not make it up."""
    steps = [coarser(own, other) for own, other in zip(levels, positions, strict=True)]
    return None if any(step is None for step in steps) else tuple(step for step in steps if step is not None)


def _common(own: Int32s, positions: Int32s, width: int) -> tuple[Int32s, int] | None:
    """Return positions and width of the coarser of a clique's level and a table's, on the first; None: they cross."""
    to = coarser(own, positions)
    if to is not None:
        return to, width
    tells = (positions >= 0).all() and coarser(positions, own) is not None
    return (np.arange(count(own), dtype=np.int32), count(own)) if tells else None


@dataclass(frozen=True, eq=False)
class Clique:
    """One clique: its levels, the tables that are added up from it, and in the tree its neighbour nearer the root.

    `shared` is what it has in common with that neighbour, on the base of the clique's group; `from_parent` is the same
    on the base of the neighbour's. The root has neither.
    """

    levels: Levels
    group: Group
    parent: int | None
    shared: Observed | None
    from_parent: Sums | None
    part: slice  # of a vector


class Cliques:
    """A group's cliques, parents before their children, and the normal equations over vectors of them.

    Raises TooLarge where the cliques have more than `most` cells. With `enumerated` the one clique is the base.
    """

    def __init__(self, group: Group, most: int, *, enumerated: bool = False) -> None:
        self.group = group
        levels = [tuple(np.arange(n, dtype=np.int32) for n in group.shape)]
        if not enumerated:
            levels = _tree_like([tuple(map(blocks, k.table.positions, k.table.widths)) for k in group.known], most)
        size = sum(map(_cells, levels))
        if size > most:
            largest = sorted(group.known, key=lambda known: -math.prod(known.table.widths))
            names = f"{', '.join(known.name for known in largest[:3])}{', …' if len(largest) > 3 else ''}"
            raise TooLarge(f"tables {names}: the finest of them have {size:,} cells")
        self.home = {known.name: _smallest(levels, known.table) for known in group.known}
        self.cliques: list[Clique] = []
        self.size = 0
        order = _tree(levels)
        number = {one: i for i, (one, _) in enumerate(order)}
        self.home = {name: number[one] for name, one in self.home.items()}
        for one, parent in order:
            own = [known for known in group.known if self.home[known.name] == number[one]]
            self.cliques.append(self._clique(levels[one], own, None if parent is None else number[parent]))

    def _clique(self, levels: Levels, own: list[Known], parent: int | None) -> Clique:
        shape = tuple(map(count, levels))
        tables = []
        for known in own:
            positions = _within(levels, known.table.positions)
            assert positions is not None
            tables.append(Observed(known.name, positions, known.table.widths, known.values, known.variance))
        identity = tuple(np.arange(n, dtype=np.int32) for n in shape)
        if not any(Sums(table.positions, table.widths).same for table in tables):
            unknown = np.full((1,) * len(shape), np.inf)
            tables.append(Observed("", identity, shape, np.broadcast_to(0.0, shape), unknown))
        group = Group(tables)
        part = slice(self.size, self.size + math.prod(shape))
        self.size = part.stop
        if parent is None:
            return Clique(levels, group, None, None, None, part)
        above = self.cliques[parent]
        pairs = zip(levels, above.levels, strict=True)
        meet = [two if count(two) < count(one) else one for one, two in pairs]
        widths = tuple(map(count, meet))
        mine, other = _within(levels, meet), _within(above.levels, meet)
        assert mine is not None
        assert other is not None
        return Clique(levels, group, parent, Observed("", mine, widths, None, None), Sums(other, widths), part)

    def of(self, vector: Floats) -> list[Floats]:
        """Return views of a vector's arrays, one for each clique."""
        return [vector[one.part].reshape(one.group.shape) for one in self.cliques]

    def margins(self, tables: Sequence[Observed]) -> list[list[Sums]]:
        """Return for each clique the sums that it has in common with the tables, on the group's base, each once.

        Of a table of another clique they are sums of its cells: counties by size are, where counties are not, states.
        """
        every = []
        for clique in self.cliques:
            known: dict[tuple[bytes, ...], Sums] = {}
            for table in tables:
                axes = zip(clique.levels, table.positions, table.widths, strict=True)
                common = [_common(*axis) for axis in axes]
                levels = [each for each in common if each is not None]
                if len(levels) == len(common):
                    positions, widths = zip(*levels, strict=True)
                    known.setdefault(tuple(axis.tobytes() for axis in positions), Sums(positions, widths))
            every.append(list(known.values()))
        return every

    def zeros(self) -> Floats:
        """Return the vector of nothing."""
        return np.zeros(self.size)

    def _each(self, parts: Iterable[Floats]) -> Floats:
        out = self.zeros()
        for view, part in zip(self.of(out), parts, strict=True):
            view[...] = part
        return out

    def normal(self, vector: Floats) -> Floats:
        """Return N·vector, as a sum of functions of one clique each."""
        return self._each(one.group.normal(part) for one, part in zip(self.cliques, self.of(vector), strict=True))

    def gradient(self, vector: Floats) -> Floats:
        """Return Σ Aᵀ W (y − A·vector), the residual of the normal equations, in the same form."""
        return self._each(one.group.gradient(part) for one, part in zip(self.cliques, self.of(vector), strict=True))

    def folded(self, vector: Floats) -> dict[str, Floats]:
        """Return the sums of all tables."""
        sums = dict[str, Floats]()
        for one, part in zip(self.cliques, self.of(vector), strict=True):
            sums |= one.group.folded(part)
            if one.group.base is not None and one.group.base.name:
                sums[one.group.base.name] = part
        return sums

    def up(self, table: Observed, vector: Floats) -> Floats:
        """Return the sums of a table's cells; raises EstimateError where no clique makes them up."""
        number, sums = self._sums(table)
        return sums.up(self.of(vector)[number])

    def down(self, table: Observed, cells: Floats, vector: Floats) -> None:
        """Add a function of a table's cells to a vector."""
        number, sums = self._sums(table)
        sums.down(cells, self.of(vector)[number])

    def from_given(self, weights: Weights) -> Floats:
        """Return weights on the given base as a vector; raises EstimateError where no clique tells the sum."""
        if not isinstance(weights, tuple):
            raise EstimateError("of so many cells a sum needs a factor for each axis")
        factors = self.group.factors(weights)
        labels = [np.unique(one, return_inverse=True)[1].astype(np.int32) for one in factors]
        level = Observed("this sum", tuple(labels), tuple(map(count, labels)), None, None)
        number = _smallest([one.levels for one in self.cliques], level)
        out = self.zeros()
        own = [np.zeros(n) for n in self.cliques[number].group.shape]
        for cells, axis, factor in zip(own, self.cliques[number].levels, factors, strict=True):
            cells[axis] = factor
        self.of(out)[number][...] = reduce(np.multiply.outer, own)
        return out

    def _sums(self, table: Observed) -> tuple[int, Sums]:
        number = _smallest([one.levels for one in self.cliques], table)
        positions = _within(self.cliques[number].levels, table.positions)
        assert positions is not None
        return number, Sums(positions, table.widths)

    def signs(self, random: np.random.Generator) -> Floats:
        """Return Aᵀ√W·z for signs z, of which N is the covariance."""
        return self._each([one.group.signs(random) for one in self.cliques])


def _smallest(levels: Sequence[Levels], table: Observed) -> int:
    able = [number for number, one in enumerate(levels) if _within(one, table.positions) is not None]
    if not able:
        raise EstimateError(f"{table.name}: no weighted tables make up its cells")
    return min(able, key=lambda number: _cells(levels[number]))


def _tree_like(levels: list[Levels], most: int) -> list[Levels]:
    """Return cliques that make up all these levels: nested on each axis, none in another one, and forming a tree.

    Where levels cross, or tables hang together in a ring, two cliques are replaced by a finer one.
    """
    levels = _largest(levels)
    while sum(map(_cells, levels)) <= most:
        crossing = next(
            (
                (axis, one, other)
                for axis in range(len(levels[0]))
                for one, other in combinations(range(len(levels)), 2)
                if coarser(levels[one][axis], levels[other][axis]) is None
                and coarser(levels[other][axis], levels[one][axis]) is None
            ),
            None,
        )
        if crossing:
            axis, *pair = crossing
            both = joint_positions([levels[number][axis] for number in pair])
            finer = {number: (*levels[number][:axis], both, *levels[number][axis + 1 :]) for number in pair}
            number = min(pair, key=lambda number: _cells(finer[number]))
            levels = _largest([*levels[:number], finer[number], *levels[number + 1 :]])
        elif _is_tree(levels):
            break
        else:
            pairs = {pair: _finest([levels[number] for number in pair]) for pair in combinations(range(len(levels)), 2)}
            merged = min(pairs, key=lambda pair: _cells(pairs[pair]))
            levels = _largest([pairs[merged], *(one for number, one in enumerate(levels) if number not in merged)])
    first = [{count(axis): axis for axis in reversed(column)} for column in zip(*levels, strict=True)]
    return [tuple(first[i][count(axis)] for i, axis in enumerate(one)) for one in levels]  # one numbering of each level


def _finest(levels: Sequence[Levels]) -> Levels:
    return tuple(max(axis, key=count) for axis in zip(*levels, strict=True))


def _largest(levels: list[Levels]) -> list[Levels]:
    kept: list[Levels] = []
    for one in sorted(levels, key=lambda one: -_cells(one)):
        if all(_within(other, one) is None for other in kept):
            kept.append(one)
    return kept


def _ranks(levels: Sequence[Levels]) -> list[list[int]]:
    """Return for each clique and axis how many of the cliques' levels are coarser."""
    axes = [sorted({count(axis) for axis in column}) for column in zip(*levels, strict=True)]
    return [[axes[i].index(count(axis)) for i, axis in enumerate(one)] for one in levels]


def _tree(levels: Sequence[Levels]) -> list[tuple[int, int | None]]:
    """Return cliques, the largest first, each with its neighbour among those before it that shares most with it."""
    ranks = _ranks(levels)
    order: list[tuple[int, int | None]] = [(max(range(len(levels)), key=lambda i: _cells(levels[i])), None)]
    while len(order) < len(levels):
        seen = [one for one, _ in order]
        pairs = [(i, j) for i in range(len(levels)) if i not in seen for j in seen]
        order.append(max(pairs, key=lambda pair: _shared(ranks, *pair)))
    return order


def _shared(ranks: list[list[int]], one: int, other: int) -> int:
    return sum(map(min, ranks[one], ranks[other]))


def _is_tree(levels: Sequence[Levels]) -> bool:
    """Whether what two cliques share lies in all between them, in the tree of those that share most.

    A step from a level to the next finer one lies in some cliques; these hang together in the tree if and only if it
    has one edge less with it than there are such cliques.
    """
    ranks = _ranks(levels)
    edges = sum(_shared(ranks, one, other) for one, other in _tree(levels) if other is not None)
    steps: int = sum(map(sum, ranks)) - sum(max(axis) for axis in zip(*ranks, strict=True))
    return edges == steps


# The axes of cliques: their levels, one inside the other, and a measure of their entries.


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
        measure = [added(labels, entries, count(labels)) for labels in levels]
        steps = []
        for coarse, fine, above, below in zip(levels, levels[1:], measure, measure[1:], strict=False):
            to = inside(fine, coarse)
            steps.append(Step(to, count(coarse), below / above[to]))
        return cls(levels, entries, measure, steps)

    def number(self, labels: Int32s) -> int:
        """Return the number of the finest level that these blocks lie inside or are."""
        return max(number for number, one in enumerate(self.levels) if coarser(labels, one) is not None)


def added(to: Int32s, values: Floats, width: int) -> Floats:
    """Return the sum of the values at each position; those at −1 are left out."""
    held = to >= 0
    return np.bincount(to[held], weights=values[held], minlength=width).astype(np.float64, copy=False)


def level_of(known: Known, axis: int, labels: Int32s) -> Int32s:
    """Return in which block of a level each position of a table lies; −1 of one without entries."""
    positions = known.table.positions[axis]
    to = np.full(known.table.widths[axis], -1, dtype=np.int32)
    to[positions[positions >= 0]] = labels[positions >= 0]
    return to


def _comparable(one: Int32s, other: Int32s) -> bool:
    return coarser(one, other) is not None or coarser(other, one) is not None


def levels_between(cliques: Cliques, axis: int) -> list[Int32s]:
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


def measure_of_entries(known: list[Known], axis: int) -> Floats:
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


def uneven_axis(known: list[Known]) -> int:
    """Return the axis that is inverted: one on which levels cross, else the one with most entries."""
    axes = range(len(known[0].table.widths))

    def crossing(axis: int) -> int:
        of_tables = (blocks(each.table.positions[axis], each.table.widths[axis]) for each in known)
        levels = {one.tobytes(): one for one in of_tables}
        return sum(not _comparable(one, other) for one, other in combinations(levels.values(), 2))

    return max(axes, key=lambda axis: (crossing(axis), len(known[0].table.positions[axis])))
