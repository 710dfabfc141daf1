"""A placement of a firm's records that loses much: what a bound over all placements cannot be below.

The most that a firm can lose lies between what a placement loses that the domain allows and the bound that is stated
(pipeline/accounting/placements.py): their ratio certifies how much too large the bound may be. Nothing is claimed of
the placement but that it is allowed, so that any search will do: records are put by turns into a few cells, or all into
one, and few are moved one by one, the largest first, into the cell where the loss rises most.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

import numpy as np

from pipeline.accounting.convert import Floats
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Reference
from pipeline.plan.cells import Int32s, Int64s
from pipeline.plan.model import Plan

MOST_CELLS = 48  # finest cells of a kind of record that are tried, or two a record
MOST_RECORDS = 60  # beyond them records are not put one by one
ABOVE = 1 + 2e-11  # policies of arrays are above the true ones by one part in 10¹¹ at most
SWEEPS = 3  # in which each record is moved once


@dataclass(frozen=True, eq=False)
class _Tried:
    """Finest cells: of each policy, a row each, its cell there (−1: none); which each kind may have; records' kinds."""

    cells: Int64s
    allowed: Sequence[Int64s]
    kinds: Int64s


def loss_found(plan: Plan, policy: PolicySum, at: Reference) -> float:
    """Return what the records lose in some placement that the domain allows, rounded down; `at` as it was written."""
    tried = _tried(plan, at)
    of_statistic = {
        statistic: np.array([float(statistic.influence(record.values)) for record in at.records])
        for statistic in {query.statistic for query in policy.queries}
    }
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
            placed = _moved(policy, tried, influences, allowed, start)
            losses.append(_loss(policy, tried.cells[:, placed], influences))
    return max(losses) / ABOVE


def _tried(plan: Plan, at: Reference) -> _Tried:
    domain = plan.domain
    finest = domain.query_cells((domain.naics.level, domain.county.level), {})
    filters = [(query.by, where) for query in plan.queries for where in query.filters]
    kinds = {keys: kind for kind, keys in enumerate(dict.fromkeys(record.keys for record in at.records))}
    allowed: list[Int64s] = []
    found: list[tuple[int, int]] = []
    for keys in kinds:
        naics, county = domain.positions(finest.by, {}, keys)
        most = max(MOST_CELLS, 2 * len(at.records))
        if domain.cells is None:
            pairs = _spread(naics, county, most)
        else:
            inside = np.isin(domain.cells[0], naics) & np.isin(domain.cells[1], county)
            listed = np.flatnonzero(inside)
            some = listed[np.linspace(0, len(listed) - 1, min(most, len(listed))).astype(np.int64)]
            pairs = [(int(domain.cells[0][i]), int(domain.cells[1][i])) for i in some]
        allowed.append(np.arange(len(found), len(found) + len(pairs)))
        found += pairs
    n, c = (np.array([pair[i] for pair in found]) for i in (0, 1))
    cells = []
    for by, where in filters:
        query = domain.query_cells(by, where)
        positions = query.naics.position[n], query.county.position[c]
        met = (positions[0] >= 0) & (positions[1] >= 0)
        cells.append(np.where(met, query.product_numbers(*(np.maximum(each, 0) for each in positions)), -1))
    cells.append(np.zeros(len(n), dtype=np.int64))  # of the test of records left out: all are kept
    return _Tried(np.array(cells), allowed, np.array([kinds[record.keys] for record in at.records]))


def _spread(naics: Int32s, county: Int32s, most: int) -> list[tuple[int, int]]:
    """Return all pairs, or some that are far from each other in both keys, and as many that share coarser codes."""
    if len(naics) * len(county) <= most:
        return [(int(n), int(c)) for n in naics for c in county]
    half = most // 2
    apart = [
        (int(naics[i * len(naics) // half]), int(county[(i * len(county) // half + 7 * i) % len(county)]))
        for i in range(half)
    ]
    wide = min(len(naics), max(isqrt(half), -(-half // len(county))))
    return apart + [(int(n), int(c)) for c in county[: -(-half // wide)] for n in naics[:wide]]


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
                    both = query.mechanism.loss(np.concatenate([there, there + x]))
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
            total += Fraction(float(query.mechanism.loss(np.bincount(which, x[met]).astype(np.float64)).sum()))
    return float(total)
