"""Complementary suppression by linear programs, and the attack on what is left: HiGHS through SciPy.

Published are sums A·x of base cells x ≥ 0. Who knows all sums but the hidden ones knows that x lies in
{x' ≥ 0: A_k·x' = A_k·x for every published sum k}, and so each hidden sum only up to an interval, whose ends are two
linear programs. A hidden sum is *protected* where its interval reaches from X − min(U, X) to X + U. As the set is
convex, that is so exactly where deviations y ≥ −x exist that leave every published sum alone and move this one so far.

Source: Fischetti and Salazar, Management Science 47 (2001), whose program is `least_pattern`; Kelly, Golden and Assad,
Networks 22 (1992), for one sum at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_array, csr_array, diags_array, vstack
from scipy.sparse.csgraph import connected_components

from pipeline.base.errors import PrdpError
from udfs.numbers.arrays import Floats, Int64s, Mask

NEAR = 1e-6  # of a unit or of a total, whichever is larger: solutions of programs are no better
SMALL = 400  # demands × sums: up to there the pattern is the least there is, not one sum at a time
TIDY = 2_000  # complementary sums × primary ones: up to there needless ones are sought
BLOCK = 1_000  # base cells: of a sum's neighbours only rows of at most so many belong to its block
UNBOUNDED = 3  # a status of HiGHS through SciPy
WIDER = 4_000  # base cells of a wider block
DEAR = 1_000.0  # times the change: if a block's pattern hides a larger total, a wider block is tried
Demand = tuple[int, float]  # a sum, and the change that must be possible


@dataclass(frozen=True, eq=False)
class Linked:
    """Sums that are published together: `matrix` is sums × base cells of 0 and 1, no two rows alike; `values` ≥ 0."""

    matrix: csr_array
    values: Floats

    @classmethod
    def of(cls, positions: Sequence[Int64s], values: Floats) -> tuple["Linked", list[Int64s]]:
        """Return the sums of tables whose cell of each base cell is given (−1: none), and those of their cells.

        Of each table the number of the sum that stands in each of its cells, −1 where no base cell lies in it. Sums of
        the same base cells are one.
        """
        known: dict[bytes, int] = {}
        rows: list[Int64s] = []
        numbers = []
        for cells in positions:
            number = np.full(int(cells.max(initial=-1)) + 1, -1, dtype=np.int64)
            order = np.argsort(cells, kind="stable")[np.count_nonzero(cells < 0) :]
            starts = np.flatnonzero(np.append(True, np.diff(cells[order]) != 0)[: len(order)])
            for row in np.split(order, starts[1:]) if len(order) else ():
                key = row.tobytes()
                if key not in known:
                    known[key] = len(rows)
                    rows.append(row)
                number[cells[row[0]]] = known[key]
            numbers.append(number)
        ends = np.cumsum([0, *map(len, rows)])
        columns = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        shape = (len(rows), len(values))
        return cls(csr_array((np.ones(len(columns)), columns, ends), shape=shape), values), numbers

    @cached_property
    def totals(self) -> Floats:
        """The true sums."""
        totals: Floats = self.matrix @ self.values
        return totals

    @cached_property
    def by_cell(self) -> csr_array:
        """The matrix with a row of each base cell."""
        return self.matrix.T.tocsr()


@dataclass(frozen=True, eq=False)
class Attacked:
    """What an attacker learns of sums that are hidden: `low` ≤ X ≤ `high`.

    The ends are exact where a sum is not `protected`; where it is, the truth lies at least so far from them.
    """

    low: Floats
    high: Floats
    protected: Mask


def suppressed(linked: Linked, protection: Floats) -> Mask:
    """Return which sums are hidden so that all with a protection above 0 are protected: those, and complementary ones.

    Small tables get the pattern that hides the least (the sum of hidden totals, each at least 1). In others one sum
    after the other, the largest protection first, gets the changes that cost least, among the sums of its block alone,
    and what they move is hidden; of middling tables what all are protected without is then published again.
    """
    hidden = protection > 0
    if 0 < 2 * int(hidden.sum()) * len(hidden) <= SMALL:
        hidden |= least_pattern(linked, protection)
    reached = Reached.of(linked, protection)
    for target in np.argsort(-protection, kind="stable")[: int((protection > 0).sum())]:
        for change in (protection[target], -min(protection[target], linked.totals[target])):
            if not reached.by(int(target), change):
                deviation, more = _complement(linked, hidden, (int(target), change))
                hidden |= more
                reached.add(deviation)
    return _tidied(linked, hidden, protection)


def _tidied(linked: Linked, hidden: Mask, protection: Floats) -> Mask:
    """Return the pattern without complementary sums that no protection needs, the largest first; it protects as before.

    Each is tried once by the attack; more than TIDY attacks of a sum are not made.
    """
    primary = protection > 0
    beside = np.flatnonzero(hidden & ~primary)
    if len(beside) * int(primary.sum()) > TIDY:
        return hidden
    for k in beside[np.argsort(-linked.totals[beside], kind="stable")]:
        fewer = hidden.copy()
        fewer[k] = False
        if attacked(linked, fewer, protection).protected.all():
            hidden = fewer
    return hidden


def _complement(linked: Linked, hidden: Mask, demand: Demand) -> tuple[Floats, Mask]:
    """Return a deviation that meets the demand, and the sums that it moves: by the target's block, or a wider one."""
    tried = []
    for block in (_block, _wider):
        columns = block(linked, demand[0])
        deviation = np.zeros(len(linked.values))
        deviation[columns] = _cheapest(linked, hidden, [demand], columns)[0]
        moved = np.abs(linked.matrix @ deviation) > _near(linked.totals)
        cost = float(linked.totals[moved & ~hidden].sum())
        tried.append((cost, deviation, moved))
        if cost <= DEAR * abs(demand[1]):
            break
    _, deviation, moved = min(tried, key=lambda each: each[0])
    return deviation, moved


def least_pattern(linked: Linked, protection: Floats) -> Mask:
    """Return the hidden sums of least total that protect: one mixed-integer program, for small tables."""
    hidden = protection > 0
    up = [(int(i), float(protection[i])) for i in np.flatnonzero(hidden)]
    down = [(i, -min(needed, linked.totals[i])) for i, needed in up]
    _, used = _cheapest(linked, hidden, up + down, np.arange(len(linked.values)), integral=True)
    hidden[used] = True
    return hidden


def attacked(linked: Linked, hidden: Mask, protection: Floats) -> Attacked:
    """Return what the attacker learns of the sums with a protection above 0, all of which are hidden.

    The unknown base cells fall into components that no published sum joins: each is a program of its own, and the
    interval of a sum over several adds up.
    """
    components = _components(linked, hidden)
    low, high, protected = linked.totals.copy(), linked.totals.copy(), np.ones(len(hidden), dtype=bool)
    for target in np.flatnonzero(protection > 0).tolist():
        parts = components[target]
        total, near = linked.totals[target], _near(linked.totals[target])
        wanted = min(protection[target], total), protection[target]
        ends = [sum(part.reached(target, side) for part in parts) for side in (0, 1)]
        for side in (0, 1):
            if ends[side] < wanted[side] - near:
                ends[side] = sum(part.end(target, side) for part in parts)
                protected[target] &= ends[side] >= wanted[side] - near
        if not protected[target]:  # then both ends are stated
            ends = [sum(part.end(target, side) for part in parts) for side in (0, 1)]
        low[target], high[target] = total - ends[0], total + ends[1]
    return Attacked(low, high, protected)


@dataclass(eq=False)
class Component:
    """Unknown base cells that published sums join: how far each sum's part in it may lie below and above the truth.

    `rows`: the sums that have a part here; `ends`: 2 × rows, the farthest that was met so far, for a solution of one
    sum's program bounds the others' too.
    """

    rows: Int64s
    parts: csr_array  # rows × columns
    known: csr_array  # published sums × columns
    values: Floats
    ends: Floats
    solved: set[tuple[int, int]]

    def reached(self, target: int, side: int) -> float:
        """Return how far the sum's part was found to reach: side 0 below the truth, 1 above."""
        return float(self.ends[side, np.searchsorted(self.rows, target)])

    def end(self, target: int, side: int) -> float:
        """Return how far it reaches, exactly."""
        row = int(np.searchsorted(self.rows, target))
        if (row, side) not in self.solved:
            self.solved.add((row, side))
            cost = self.parts[[row]].toarray()[0] * (1 - 2 * side)
            solution = milp(cost, bounds=Bounds(-self.values, np.inf), constraints=[LinearConstraint(self.known, 0, 0)])
            if solution.status == UNBOUNDED:
                self.ends[side, row] = np.inf
            elif solution.x is None:
                raise PrdpError(f"the attacker's linear program has no solution ({solution.message})")
            else:
                moved = self.parts @ solution.x
                self.ends = np.maximum(self.ends, [-moved, moved])
        return float(self.ends[side, row])


def _components(linked: Linked, hidden: Mask) -> dict[int, list[Component]]:
    published = linked.matrix[~hidden]
    sizes = np.diff(published.indptr)
    free = np.ones(len(linked.values), dtype=bool)
    free[published.indices[np.repeat(sizes == 1, sizes)]] = False
    columns = np.flatnonzero(free)
    known, all_of = published[:, columns], linked.matrix[:, columns].tocsc()
    known = known[np.diff(known.indptr) > 0]
    _, joined = connected_components(block_array([[None, known], [known.T, None]]), directed=False)
    order = np.argsort(joined[known.shape[0] :], kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(joined[known.shape[0] :][order]) != 0)[: len(order)])
    components: dict[int, list[Component]] = {int(target): [] for target in np.flatnonzero(hidden)}
    by_column = known.tocsc()
    for mine in np.split(order, starts[1:]) if len(order) else ():
        parts, rows = all_of[:, mine].tocsr(), by_column[:, mine].tocsr()
        touched = np.flatnonzero(np.diff(parts.indptr))
        rows = rows[np.diff(rows.indptr) > 0]
        ends = np.zeros((2, len(touched)))
        component = Component(touched, parts[touched], rows, linked.values[columns[mine]], ends, set())
        for target in touched[hidden[touched]].tolist():
            components[target].append(component)
    return components


@dataclass(eq=False)
class Reached:
    """How far each sum can be moved down and up by deviations that were found so far, none of a published sum."""

    linked: Linked
    down: Floats
    up: Floats

    @classmethod
    def of(cls, linked: Linked, protection: Floats) -> "Reached":
        """Return nothing reached yet."""
        return cls(linked, np.zeros(len(protection)), np.zeros(len(protection)))

    def by(self, target: int, change: float) -> bool:
        """Return whether a sum is known to be moved by `change`."""
        reached = self.up[target] if change > 0 else -self.down[target]
        return bool(reached >= abs(change) - _near(self.linked.totals[target]))

    def add(self, deviation: Floats) -> None:
        """Take a deviation y ≥ −x, and as much of −y as leaves all cells at least 0."""
        falls = deviation > 0
        back = np.min(self.linked.values[falls] / deviation[falls], initial=1.0)
        for change in (self.linked.matrix @ deviation, -back * (self.linked.matrix @ deviation)):
            self.down, self.up = np.minimum(self.down, change), np.maximum(self.up, change)


def _cheapest(
    linked: Linked, hidden: Mask, demands: Sequence[Demand], columns: Int64s, *, integral: bool = False
) -> tuple[Floats, Int64s]:
    """Return deviations of the base cells `columns`, one after the other for each demand, that hide the least more.

    And the sums that they use, beyond the hidden ones.

    Variables are a deviation y_d ≥ −x for each demand d, and u_k ≥ 0 for each published sum k:

        min Σ_k max(X_k, 1)·u_k   with   |A_k·y_d| ≤ M·u_k for all d, k   and   A_target·y_d = change.

    `integral`: u_k is 0 or 1, and M beyond every deviation that is needed. Else M is the largest change demanded:
    then the program is linear, and u_k the share of it that the sum k moves by.
    """
    matrix = linked.matrix[:, columns]
    met = np.diff(matrix.indptr) > 0
    shown = np.flatnonzero(met & ~hidden)
    rows, count, n = matrix[shown], len(demands), len(columns)
    most = max(abs(change) for _, change in demands) + (linked.values.sum() if integral else 0.0)
    uses = vstack([diags_array(np.full(len(shown), most))] * count)
    moves = block_array([[rows if i == j else None for j in range(count)] for i in range(count)], format="csr")
    targets = vstack([csr_array(_one(matrix, target, d, count)) for d, (target, _) in enumerate(demands)])
    changes = np.array([change for _, change in demands])
    empty = csr_array((count, len(shown)))
    limits = [
        LinearConstraint(block_array([[moves, -uses]], format="csr"), -np.inf, 0),
        LinearConstraint(block_array([[-moves, -uses]], format="csr"), -np.inf, 0),
        LinearConstraint(block_array([[targets, empty]], format="csr"), changes, changes),
    ]
    cost = np.concatenate([np.zeros(n * count), np.maximum(linked.totals[shown], 1.0)])
    below = np.concatenate([np.tile(-linked.values[columns], count), np.zeros(len(shown))])
    above = np.concatenate([np.full(n * count, np.inf), np.full(len(shown), 1.0 if integral else np.inf)])
    kinds = np.concatenate([np.zeros(n * count), np.full(len(shown), int(integral))])
    solution = milp(cost, bounds=Bounds(below, above), constraints=limits, integrality=kinds)
    if solution.x is None:
        raise PrdpError(f"complementary suppression has no solution ({solution.message})")
    return solution.x[: n * count], shown[solution.x[n * count :] > 0.5]


def _one(matrix: csr_array, target: int, demand: int, count: int) -> Floats:
    row = np.zeros((1, count * matrix.shape[1]))
    row[0, demand * matrix.shape[1] + matrix[[target]].indices] = 1
    return row


def _block(linked: Linked, target: int) -> Int64s:
    """Return the base cells of all sums of at most BLOCK base cells that share one with the target, and its own."""
    mine = linked.matrix[[target]].indices
    beside = linked.by_cell[mine].indices
    sizes = np.diff(linked.matrix.indptr)
    rows = np.unique(beside[sizes[beside] <= BLOCK])
    return np.unique(np.concatenate([mine, linked.matrix[rows].indices])).astype(np.int64)


def _wider(linked: Linked, target: int) -> Int64s:
    """Return a block, and the base cells of the smallest sums that meet it, until there are WIDER."""
    columns = _block(linked, target)
    sizes = np.diff(linked.matrix.indptr)
    beside = np.unique(linked.by_cell[columns].indices)
    for row in beside[np.argsort(sizes[beside], kind="stable")]:
        if len(columns) + sizes[row] > WIDER:
            break
        columns = np.union1d(columns, linked.matrix.indices[linked.matrix.indptr[row] : linked.matrix.indptr[row + 1]])
    return columns.astype(np.int64)


def _near(totals: Floats | float) -> Floats:
    near: Floats = NEAR * np.maximum(totals, 1.0)
    return near
