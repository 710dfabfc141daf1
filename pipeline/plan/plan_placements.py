"""A placement of a firm's records that loses much: what a bound over all placements cannot be below.

The most that a firm can lose lies between what a placement loses that the domain allows and the bound that is stated
(pipeline/accounting/placements.py): their ratio certifies how much too large the bound may be. Nothing is claimed of
the placement but that it is allowed, so that any search will do: records are put by turns into a few cells, or all into
one, and few are moved one by one, the largest first, into the cell where the loss rises most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import lcm, prod

import numpy as np

from pipeline.accounting.convert import Floats
from pipeline.accounting.placements import UP
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Reference
from pipeline.plan.cells import Int32s, Int64s
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import classed
from udfs.numbers.exact import up_float

MOST_CELLS = 48  # finest cells of a kind of record that are tried, or two a record
MOST_RECORDS = 60  # beyond them records are not put one by one
ABOVE = 1 + 2e-11  # policies of arrays are above the true ones by one part in 10¹¹ at most
SWEEPS = 3  # in which each record is moved once


@dataclass(frozen=True, eq=False)
class _Tried:
    """Finest cells: of each policy, a row each, its cell there (−1: none); which each kind may have; records' kinds.

    The last one is outside the domain: records of a kind that no listed cell has are there.
    """

    cells: Int64s
    allowed: Sequence[Int64s]
    kinds: Int64s


def loss_found(plan: Plan, policy: PolicySum, at: Reference) -> float:
    """Return what the records lose in some placement that the domain allows, rounded down; `at` as it was written."""
    reference = classed(plan, at)
    tried = _tried(plan, reference)
    exact = {
        statistic: [statistic.influence(record.values) for record in reference.records]
        for statistic in {query.statistic for query in policy.queries}
    }
    of_statistic = {statistic: np.array(list(map(float, each))) for statistic, each in exact.items()}
    influences = np.array([of_statistic[query.statistic] for query in policy.queries])
    order = np.argsort(-influences.sum(axis=0), kind="stable")
    influences, kinds = influences[:, order], tried.kinds[order]
    placements = []
    for turns in sorted({1, 2, 3, 5, 8, len(order)} | {2**k for k in range(4, len(order).bit_length())}):
        for first in (0, 1):  # cells that are far from each other, or near
            placed = np.empty(len(order), dtype=np.int64)
            for kind, cells in enumerate(tried.allowed):
                mine = np.flatnonzero(kinds == kind)
                placed[mine] = cells[(first * len(cells) // 2 + mine % turns) % len(cells)]
            placements.append(placed)
    losses = [_loss(policy, tried.cells[:, placed], influences) for placed in placements]
    if len(order) <= MOST_RECORDS:
        allowed = [tried.allowed[kind] for kind in kinds]
        for start in (None, placements[int(np.argmax(losses))]):
            placements.append(_moved(policy, tried, influences, allowed, start))
            losses.append(_loss(policy, tried.cells[:, placements[-1]], influences))
    best = tried.cells[:, placements[int(np.argmax(losses))]][:, np.argsort(order)]
    return _loss_below(policy, best, [exact[query.statistic] for query in policy.queries]) / ABOVE


def _tried(plan: Plan, at: Reference) -> _Tried:
    domain = plan.domain
    filters = [(query.by, where) for query in plan.queries for where in query.filters]
    kinds = {keys: kind for kind, keys in enumerate(dict.fromkeys(record.keys for record in at.records))}
    most = max(MOST_CELLS, 2 * len(at.records))
    allowed: list[Int64s] = []
    finest: list[tuple[int, ...]] = []  # a code of each key
    for keys in kinds:
        if domain.cells is None:
            some = _spread(domain.finest(keys), most)
        else:
            listed = domain.cells_at(keys)
            chosen = listed[np.linspace(0, max(len(listed) - 1, 0), min(most, len(listed))).astype(np.int64)]
            some = list(zip(*(indices[chosen].tolist() for indices in domain.cells), strict=True))
        allowed.append(np.arange(len(finest), len(finest) + len(some)))
        finest += some
    outside = len(finest)
    codes = dict(enumerate(np.array(finest, dtype=np.int64).reshape(outside, len(domain.dimensions)).T))
    cells = [np.append(domain.query_cells(by, where).of_codes(codes), -1) for by, where in filters]
    cells.append(np.repeat([0, 1], [outside, 1]))  # of the test of records left out: the others are kept
    allowed = [each if len(each) else np.array([outside]) for each in allowed]
    return _Tried(np.array(cells), allowed, np.array([kinds[record.keys] for record in at.records]))


def _spread(allowed: Sequence[Int32s], most: int) -> list[tuple[int, ...]]:
    """Return all combinations of codes, or some that are far from each other, and as many that share coarser codes."""
    if prod(map(len, allowed)) <= most:
        return list(product(*(codes.tolist() for codes in allowed)))
    half = most // 2
    first = allowed[0]
    apart = [
        tuple(int(each[(i * len(each) // half + 7 * i * (each is not first)) % len(each)]) for each in allowed)
        for i in range(half)
    ]
    near, left = [], half  # of the first codes of each key, about as many of every one
    for i, codes in enumerate(allowed):
        others = prod(map(len, allowed[i + 1 :]))
        wide = min(len(codes), max(round(left ** (1 / (len(allowed) - i))), -(-left // others), 1))
        near.append(codes[:wide].tolist())
        left = -(-left // wide)
    return apart + list(product(*near))


def _moved(
    policy: PolicySum, tried: _Tried, influences: Floats, allowed: Sequence[Int64s], start: Int64s | None
) -> Int64s:
    """Return for each record the finest cell where it raises the loss most, beside the earlier ones or all others."""
    sums: list[dict[int, float]] = [{} for _ in policy.queries]

    def put(j: int, finest: int, sign: int) -> None:
        for of_policy, inside, x in zip(tried.cells, sums, influences[:, j], strict=True):
            cell = int(of_policy[finest])
            inside[cell] = inside.get(cell, 0.0) + sign * x

    placed = np.full(len(allowed), -1) if start is None else start.copy()
    for j, finest in enumerate(placed.tolist() if start is not None else []):
        put(j, finest, 1)
    for _ in range(SWEEPS):
        before = placed.copy()
        for j, cells in enumerate(allowed):
            if placed[j] >= 0:
                put(j, int(placed[j]), -1)
            rise = np.zeros(len(cells))
            for query, of_policy, inside, x in zip(policy.queries, tried.cells, sums, influences[:, j], strict=True):
                if x:
                    there = np.array([max(0.0, inside.get(cell, 0.0)) for cell in of_policy[cells].tolist()])
                    both = query.mechanism.loss(query.in_cell(np.concatenate([there, there + x])))
                    rise += np.where(of_policy[cells] >= 0, both[len(cells) :] - both[: len(cells)], 0)
            placed[j] = cells[int(np.argmax(rise))]
            put(j, int(placed[j]), 1)
        if (placed == before).all():
            break
    return placed


def _loss(policy: PolicySum, cells: Int64s, influences: Floats) -> float:
    total = Fraction(0)
    for query, of_policy, x in zip(policy.queries, cells, influences, strict=True):
        met = of_policy >= 0
        if met.any():
            _, which = np.unique(of_policy[met], return_inverse=True)
            sums = query.in_cell(np.bincount(which, x[met]).astype(np.float64))
            total += Fraction(float(query.mechanism.loss(sums).sum()))
    return float(total)


def _loss_below(policy: PolicySum, cells: Int64s, influences: Sequence[Sequence[Fraction]]) -> float:
    """Return the loss at exact sums, rounded down: a policy that rises by steps takes none that is not reached.

    A policy that is a table may be higher at a sum than what the records of the cell lose as a group.
    """
    total = Fraction(0)
    for query, of_policy, each in zip(policy.queries, cells, influences, strict=True):
        numbers, which = np.unique(of_policy[of_policy >= 0], return_inverse=True)
        if not len(numbers):
            continue
        below = lcm(*{x.denominator for x in each})
        met = [x.numerator * (below // x.denominator) for x, cell in zip(each, of_policy, strict=True) if cell >= 0]
        sums = [0] * len(numbers)
        for cell, units in zip(which.tolist(), met, strict=True):
            sums[cell] += units
        together, alone = (
            query.mechanism.loss(query.in_cell(np.array([-up_float(Fraction(-units, below)) for units in some])))
            for some in (sums, met)
        )
        as_group = np.bincount(which, np.sqrt(alone)) ** 2 * UP
        total += Fraction(float(np.minimum(together, as_group).sum()))
    return float(total)
