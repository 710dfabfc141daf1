"""The most that the records of a firm lose in several tables, by prices: one by one, and tables taken together.

Prices of single policies add up (pipeline/accounting/placements.py). Two more kinds are of several tables that a record
meets all or none of; x_j is then its influence on the first, and P_i stands for P_i(c_i·S), c_i the largest ratio:

    joined     those of Σ_i P_i, where all have the same cells
    nested     y_j = x_j · sup Σ_i P_i(S_i)/S_i over x_j ≤ S_1 ≤ S_2 ≤ …, where each cell of one lies in one of the next

for the loss Σ_i Σ_c P_i(S_c) is shared among the records in proportion to their influences, and a record's cell in the
next table holds all that its cell in this one does. Of all combinations the smallest counts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from pipeline.accounting.placements import ANYWHERE, UP, Exposure, Floats, Prices, Units, running
from pipeline.accounting.references import QuerySet

# Levels, the coarsest first; others are nested in none.
NESTED = (("nation", "state", "county"), ("naics2", "naics3", "naics4", "naics5", "naics6"))
Ints = NDArray[np.int64]

Chain = Sequence[Sequence[int]]  # tables with nested cells, by number, those of equal cells together, finest first


def most_lost(exposures: Sequence[Exposure], options: Sequence[frozenset[QuerySet]]) -> Floats:
    """Return an upper bound of Σ over exposures and cells of P(S), of shape (m,), wherever the records lie.

    `options`: of the records of each lot the query sets that its cell can have, of which it meets one; none: no query.
    """
    if not exposures:
        return np.zeros(1)
    with np.errstate(over="ignore"):  # infinite is a bound
        offers = {each.policies: each.prices for each in exposures}
        bound = _least(offers, options, exposures[0].times)
        for policies, prices in _together(exposures, frozenset(options)):
            rest = {other: kinds for other, kinds in offers.items() if not other <= policies}
            bound = np.minimum(bound, _least(rest | {policies: prices}, options, exposures[0].times))
    return bound


def _together(
    exposures: Sequence[Exposure], options: frozenset[frozenset[QuerySet]]
) -> Iterator[tuple[QuerySet, list[Prices]]]:
    for tables in _met_at_once(exposures, options):
        for chain in chains_of(tables):
            levels = [[tables[i] for i in level] for level in chain]
            for level in levels:
                joined = _joined(level) if len(level) > 1 else None
                if joined is not None:
                    yield joined.policies, joined.prices
            every = [each for level in levels for each in level]
            ratios = _ratios(every) if len(levels) > 1 else None
            if ratios is not None:
                yield frozenset[int]().union(*(each.policies for each in every)), [_nested(levels, ratios)]


def _least(
    offers: Mapping[QuerySet, Sequence[Prices]], options: Sequence[frozenset[QuerySet]], times: NDArray[np.int64]
) -> Floats:
    """Return the least bound that is found among prices offered for each set of policies."""
    members: dict[frozenset[QuerySet], list[int]] = {}
    for j, sets in enumerate(options):
        if sets:
            members.setdefault(sets, []).append(j)
    order, m = list(offers), max(y.shape[1] for kinds in offers.values() for _, y in kinds)
    groups = [
        _Group(np.array(lots), np.array([[policies <= met for met in sets] for policies in order]))
        for sets, lots in members.items()
    ]
    chosen = [
        min(kinds, key=lambda prices: prices[0].sum() + times @ prices[1].sum(axis=1)) for kinds in offers.values()
    ]

    # Σ over the others is what comes before and what comes after: prices before were chosen last, those after first.
    after_fixed = np.cumsum([np.zeros(m), *(np.broadcast_to(fixed, m) for fixed, _ in chosen[:0:-1])], axis=0)[::-1]
    after = [group.sums_after([y for _, y in chosen], m) for group in groups]
    before_fixed: Floats = np.zeros(1)
    before: list[Floats] = [np.zeros((1, 1, 1)) for _ in groups]
    best: Floats | None = None
    for n, policies in enumerate(order):
        bounds = []
        for fixed, y in offers[policies]:
            total = before_fixed + after_fixed[n] + fixed
            for group, earlier, later in zip(groups, before, after, strict=True):
                most = np.maximum((earlier + later[n] + group.paid(n, y)).max(axis=0), 0.0)
                total = total + times[group.lots] @ most
            bounds.append(np.asarray(total * UP))
        least = min(range(len(bounds)), key=lambda k: bounds[k].sum())
        fixed, y = offers[policies][least]
        before_fixed = before_fixed + fixed
        before = [earlier + group.paid(n, y) for group, earlier in zip(groups, before, strict=True)]
        best = np.minimum.reduce(bounds if best is None else [best, *bounds])
    assert best is not None
    return best


@dataclass(frozen=True, eq=False)
class _Group:
    """Lots of the same query sets, by number. `pays`: (policies, sets), whether a record in one pays for the other."""

    lots: Ints
    pays: NDArray[np.bool_]

    def paid(self, n: int, y: Floats) -> Floats:
        """Return (sets, lots, m) what is paid for the n-th policies at these prices."""
        return np.where(self.pays[n][:, None, None], y[self.lots], 0.0)

    def sums_after(self, prices: Sequence[Floats], m: int) -> list[Floats]:
        """Return for each policies (sets, lots, m) what the prices of all after them come to."""
        sums: list[Floats] = [np.zeros((self.pays.shape[1], len(self.lots), m))]
        for n in range(len(prices) - 1, 0, -1):
            sums.append(sums[-1] + self.paid(n, prices[n]))
        return sums[::-1]


def _met_at_once(exposures: Sequence[Exposure], options: frozenset[frozenset[QuerySet]]) -> Iterator[list[Exposure]]:
    """Return the tables of known cells, of which a record has all or none."""
    met = frozenset[QuerySet]().union(*options)
    groups: dict[frozenset[QuerySet], list[Exposure]] = {}
    for each in exposures:
        if each.by is not None:
            groups.setdefault(frozenset(q for q in met if each.policies <= q), []).append(each)
    yield from groups.values()


def most_cells(group: Sequence[Exposure]) -> int | None:
    """Return in how many cells the records may be taken to be, where each is one of all tables; None: not known.

    A cell that only the first of two tables has may be taken as one with a cell that only the second has, for more
    records in a cell never lose less. Of three and more tables, such cells may meet each other in turn.
    """
    rooms = [each.room for each in group if each.room is not None]
    if len(rooms) < len(group):
        return None
    return max(rooms) if len(group) < 3 or any(each.unfiltered for each in group) else sum(rooms)


def _ratios(group: Sequence[Exposure]) -> list[Fraction] | None:
    """Return the largest ratio of a record's influence on each policy and on the first; None where one is infinite."""
    first, *_ = group
    rows = zip(*(each.influences for each in group), strict=True)
    if not any(first.influences) or any(any(others) and not x for x, *others in rows):
        return None
    pairs = ([(x, y) for x, y in zip(first.influences, each.influences, strict=True) if x] for each in group)
    return [max(y / x for x, y in each) for each in pairs]


def _loss_of(group: Sequence[Exposure], ratios: Sequence[Fraction], sums: Units, unit: Fraction) -> Floats:
    return np.asarray(sum(each.loss(sums, unit * x) for each, x in zip(group, ratios, strict=True) if x))


def _joined(group: Sequence[Exposure]) -> Exposure | None:
    """Return policies of the same cells as one: a sum S of the first means at most S·max(x_ji/x_j1) of the i-th."""
    ratios = _ratios(group)
    if ratios is None:
        return None
    return replace(
        group[0],
        policies=frozenset[int]().union(*(each.policies for each in group)),
        cells=np.where(np.all([each.cells != ANYWHERE for each in group], axis=0), group[0].cells, ANYWHERE),
        apart=frozenset[tuple[int, int]].intersection(*(each.apart for each in group)),
        room=most_cells(group),
        loss=partial(_loss_of, group, ratios),
    )


def _nested(levels: Sequence[Sequence[Exposure]], ratios: Sequence[Fraction]) -> Prices:
    first, left = levels[0][0], list(ratios)
    priced = first.units > 0
    grid_of = []
    for level in levels:
        of_level, left = left[: len(level)], left[len(level) :]
        if any(of_level):
            together = replace(first, loss=partial(_loss_of, level, of_level))
            grid_of.append(together.grid(int(first.units[priced].min()), int(first.together.sum())))
    most: Floats = np.zeros((1, 1))
    for grid in reversed(grid_of):
        most = running(grid.rates + most)
    return first.paid(priced, most[np.searchsorted(grid_of[0].ends, first.units[priced])])


def chains_of(exposures: Sequence[Exposure]) -> list[Chain]:
    """Return the policies as chains of levels, each level finer than the next one; each policy is in one chain."""
    levels: dict[tuple[str, ...] | None, list[int]] = {}
    for i, each in enumerate(exposures):
        levels.setdefault(each.by, []).append(i)
    alone: list[Chain] = [[[i]] for i in levels.pop(None, [])]
    chains: list[tuple[tuple[str, ...], list[Sequence[int]]]] = []
    of_levels = (by for by in levels if by is not None)
    depths = {by: sum(each.index(level) for level in by for each in NESTED if level in each) for by in of_levels}
    for by in sorted(depths, key=depths.__getitem__, reverse=True):
        nested = [k for k, (last, _) in enumerate(chains) if _refines(last, by)]
        if nested:
            chains[nested[0]] = by, [*chains[nested[0]][1], levels[by]]
        else:
            chains.append((by, [levels[by]]))
    return [*alone, *(chain for _, chain in chains)]


def _refines(fine: tuple[str, ...], coarse: tuple[str, ...]) -> bool:
    """Return whether the codes at the levels `fine` tell those at the levels `coarse`."""
    coarser = {level for each in NESTED for own in fine if own in each for level in each[: each.index(own) + 1]}
    return coarser.union(fine, ["nation"]).issuperset(coarse)


# The most that a few records of a firm lose, over all ways to part them into cells: exact for one query.
#
# Of few records, or few different ones, every collection A has its loss P(Σ_A x_j) in one cell, and the largest sum
# over all partitions into cells is found by dynamic programming over collections. Policies whose cells are nested are
# taken together: where each cell of the first table lies in one of the second, V₁(A) is the most that A loses in the
# first, and the largest sum of P₂(A) + V₁(A) over partitions is the most that both lose. All ways in which the records
# can be in query sets are tried.
#
# What comes out bounds every placement from above (docs/mathematics.md, section 5): tables that are not nested are
# added up, and cells are told apart by their codes alone, be a record in the tables' filters or not.

MOST_PAIRS = 3**9  # of a collection and a part of it: those of 9 different records
MOST_WAYS = 4096  # in which records can be in query sets
MOST_MEMBERS = 64  # different collections in the tables of a chain that are looked at one by one
HUGE = 1e300  # stands for infinite, so that no difference of infinities is taken


def most_in_partitions(exposures: Sequence[Exposure], options: Sequence[frozenset[QuerySet]]) -> Floats | None:
    """Return an upper bound as `most_lost` does, of shape (m,); None where there are too many different records."""
    times = tuple(exposures[0].times.tolist()) if exposures else ()
    pairs, number = prod((t + 1) * (t + 2) // 2 for t in times), prod(t + 1 for t in times)
    if not times or pairs > MOST_PAIRS or number > exposures[0].fineness.sums:
        return None
    every = _collections(times)
    sets = [sorted(each, key=sorted) for each in options]
    if prod(comb(t + len(each) - 1, t) for t, each in zip(times, sets, strict=True) if each) > MOST_WAYS:
        sets = [[frozenset[int]().union(*each)] for each in sets]  # as if records were in all that they can meet
    # of each lot, in each way to spread its records over its query sets, how many are in each policy
    inside = [
        [
            [sum(n for n, met in zip(spread, each, strict=True) if exposure.policies <= met) for exposure in exposures]
            for spread in (_spread(t, len(each)) if each else [()])
        ]
        for t, each in zip(times, sets, strict=True)
    ]
    members = np.array([every.strides @ np.array(way) for way in product(*inside)])  # the collection in each policy
    losses = [_in_one_cell(each, every) for each in exposures]

    def most(chains: Sequence[Chain]) -> Floats:
        of_ways = sum(_most_of_chain(exposures, every, losses, members, chain) for chain in chains)
        return np.asarray(np.max(of_ways, axis=0))

    bound = np.minimum(most([[[i]] for i in range(len(exposures))]), most(chains_of(exposures))) * UP
    return np.where(bound < HUGE, bound, np.inf)


def _spread(number: int, among: int) -> Iterator[tuple[int, ...]]:
    if among == 1:
        yield (number,)
    else:
        yield from ((first, *rest) for first in range(number + 1) for rest in _spread(number - first, among - 1))


@dataclass(frozen=True, eq=False)
class _Collections:
    """All collections of lots of equal records, by number.

    `counts`: how many of each lot, shape (collections, lots); their number is counts @ strides. `parts` and `rests`:
    for each collection but the empty one, from `starts` on, the parts that hold a record of its first lot, and what
    they leave.
    """

    shape: tuple[int, ...]
    strides: Ints
    counts: Ints
    parts: Ints
    rests: Ints
    starts: Ints


@lru_cache(maxsize=64)
def _collections(times: tuple[int, ...]) -> _Collections:
    shape = tuple(t + 1 for t in times)
    strides = np.array([prod(shape[j + 1 :]) for j in range(len(shape))])
    counts = np.indices(shape).reshape(len(shape), -1).T
    first = np.argmax(counts > 0, axis=1)
    within = (counts[:, None] >= counts).all(axis=2) & (counts[:, first].T > 0)
    collections, parts = np.nonzero(within[1:])
    starts = np.searchsorted(collections, np.arange(len(counts) - 1))
    return _Collections(shape, strides, counts, parts, collections + 1 - parts, starts)


def _in_one_cell(exposure: Exposure, every: _Collections) -> Floats:
    """Return the most that those of each collection lose that can be in one cell, shape (collections, m)."""
    sums, some = every.counts @ exposure.units, every.counts > 0
    losses = np.minimum(exposure.at(np.maximum(sums, 1)), HUGE)
    losses[(sums == 0).astype(bool)] = 0
    for j, k in zip(*np.nonzero(_apart(exposure)), strict=True):
        losses[some[:, j] & some[:, k]] = 0
    grid = losses.reshape(*every.shape, -1)
    for axis in range(len(every.shape)):
        grid = np.maximum.accumulate(grid, axis=axis)
    return grid.reshape(losses.shape)


def _apart(exposure: Exposure) -> NDArray[np.bool_]:
    cells, kinds = exposure.cells, exposure.kinds.tolist()
    known = cells != ANYWHERE
    by_kind = [[(one, other) in exposure.apart for other in kinds] for one in kinds]
    return np.asarray(((cells[:, None] != cells) & known[:, None] & known) | by_kind)


def _most_of_chain(
    exposures: Sequence[Exposure], every: _Collections, losses: Sequence[Floats], members: Ints, chain: Chain
) -> Floats:
    """Return the most that is lost in the tables of a chain in each way, shape (ways, m)."""
    policies = [i for level in chain for i in level]

    def most(inside: Mapping[int, int]) -> Floats:
        """Return the most that each collection loses, of which only those inside are in a table."""
        finer: Floats = np.zeros(1)
        possible = _in_whole_cells(exposures[policies[0]].cells, every) if len(policies) == 1 else None
        for level in chain:
            kept = {i: np.minimum(every.counts, every.counts[inside[i]]) @ every.strides for i in level if i in inside}
            in_one = np.sum([losses[i][kept[i]] if i in kept else losses[i] for i in level], axis=0)
            room = most_cells([exposures[i] for i in level])
            finer = _parted(in_one + finer, every, int(every.counts[-1].sum()) if room is None else room, possible)
        return finer

    in_chain = members[:, policies]
    distinct, which = np.unique(in_chain, axis=0, return_inverse=True)
    if (in_chain == in_chain[:, :1]).all() or len(distinct) > MOST_MEMBERS:  # as if all were in every table of it
        return np.asarray(most({})[every.counts[in_chain].max(axis=1) @ every.strides])
    each = [most(dict(zip(policies, inside, strict=True)))[-1] for inside in distinct.tolist()]
    return np.array(each)[which.reshape(-1)]


def _in_whole_cells(cells: Ints, every: _Collections) -> NDArray[np.bool_]:
    """Return which parts hold all records of a known cell that there are, or none of them."""
    possible = np.ones(len(every.parts), dtype=bool)
    for cell in set(cells.tolist()) - {ANYWHERE}:
        inside, left = (every.counts[each][:, cells == cell].sum(axis=1) for each in (every.parts, every.rests))
        possible &= (inside == 0) | (left == 0)
    return possible


def _parted(in_one: Floats, every: _Collections, room: int, possible: NDArray[np.bool_] | None) -> Floats:
    """Return for each collection the largest sum over its partitions into at most `room` cells."""
    best, unlimited = in_one, room >= every.counts[-1].sum()
    for _ in range(room - 1):
        sums = (best if unlimited else in_one)[every.parts] + best[every.rests]
        if possible is not None:
            sums[~possible] = 0
        more = np.maximum.reduceat(sums, every.starts, axis=0)
        if (more <= best[1:]).all():
            break
        best = np.concatenate([best[:1], more])
    return best
