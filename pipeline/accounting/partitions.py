"""The most that a few records of a firm lose, over all ways to part them into cells: exact for one query.

Of few records, or few different ones, every collection A has its loss P(Σ_A x_j) in one cell, and the largest sum over
all partitions into cells is found by dynamic programming over collections. Policies whose cells are nested are taken
together: where each cell of the first table lies in one of the second, V₁(A) is the most that A loses in the first, and
the largest sum of P₂(A) + V₁(A) over partitions is the most that both lose. All ways in which the records can be in
query sets are tried.

What comes out bounds every placement from above (docs/mathematics.md, section 5): tables that are not nested are added
up, and cells are told apart by their codes alone, be a record in the tables' filters or not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import comb, prod

import numpy as np
from numpy.typing import NDArray

from pipeline.accounting.joint import Chain, chains_of, most_cells
from pipeline.accounting.placements import ANYWHERE, UP, Exposure, Floats
from pipeline.accounting.references import QuerySet

MOST_PAIRS = 3**9  # of a collection and a part of it: those of 9 different records
MOST_WAYS = 4096  # in which records can be in query sets
MOST_MEMBERS = 64  # different collections in the tables of a chain that are looked at one by one
HUGE = 1e300  # stands for infinite, so that no difference of infinities is taken
Ints = NDArray[np.int64]


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
    """Return all ways to spread equal things."""
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
    whole, parts = np.nonzero(within[1:])
    starts = np.searchsorted(whole, np.arange(len(counts) - 1))
    return _Collections(shape, strides, counts, parts, whole + 1 - parts, starts)


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
    """Return which lots cannot be in one cell of the table, if they are in it."""
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
        possible = _whole(exposures[policies[0]].cells, every) if len(policies) == 1 else None
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


def _whole(cells: Ints, every: _Collections) -> NDArray[np.bool_]:
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
