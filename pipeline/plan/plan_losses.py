"""Losses of a plan beside its total policy: of values that change, and the least that a bound over placements can be.

**The metric view**: what a release shows of a record's values, where it is known that the record is there. Guarantee
(docs/mathematics.md, section 10): for two sets of microdata that differ in one record's values alone, which stays in
its codes, the Rényi divergence of all outputs is at most α·rho for every order α > 1 and in both directions, and the
max divergence at most epsilon: the sum over the queries that the record's cell meets. Counts do not depend on values:
they add nothing. The same holds where the unit is a firm, one of whose records changes.

Where the values lie in different classes of a measure, the record leaves a cell of every query that uses the class and
comes to another: that costs the policy at its old values there, and at its new values here, P(x) + P(x′), for counts
P(1) + P(1). Where cells are listed it may come to none, and out of the cells of all queries and of the records kept:
each costs as much. Without both values, as where a factor alone is known, it has no bound.

**A placement of a firm's records that loses much**: the most that a firm can lose lies between what a placement loses
that the domain allows and the bound that is stated (pipeline/accounting/placements.py): their ratio certifies how much
too large the bound may be. Nothing is claimed of the placement but that it is allowed, so that any search will do:
records are put by turns into a few cells, or all into one, and few are moved one by one, the largest first, into the
cell where the loss rises most.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import lcm, prod

import numpy as np

from pipeline.accounting.convert import Floats
from pipeline.accounting.interpretation import ByDistribution, Loss, bounds_of_change
from pipeline.accounting.placements import UP
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import QuerySet, Reference, ReferenceRecord, typed_change, typed_number
from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import PlanError, arg
from pipeline.plan.domain.cells import Int32s, Int64s
from pipeline.plan.domain.keys import Dimension
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import classed, names_of, query_sets_of, require_cell
from udfs.losses.atoms import Pair, Response
from udfs.numbers.exact import as_json, up_float

NOTHING = Loss(Fraction(0), Fraction(0))
UNTOUCHED = Response(0.0)


@dataclass(frozen=True)
class Change:
    """Values of a record that are the first or the second, by measure; its codes by level (none: anywhere).

    A measure that is not named has one value.
    """

    values: Mapping[str, tuple[Fraction, Fraction]]
    keys: Mapping[str, str]

    def to_json(self) -> dict[str, object]:
        """The change as JSON, values first."""
        return {name: [as_json(one), as_json(other)] for name, (one, other) in self.values.items()} | dict(self.keys)

    def loss(self, query: QueryPolicy) -> Loss | None:
        """Return what the change costs by one query."""
        if not self.values.keys() & query.statistic.measures:
            return NOTHING
        return Loss(*query.mechanism.change_losses_at(*self._addends(query)))

    def of_side(self, side: int) -> FrozenMap[Fraction]:
        """Return the values that are the first (0) or the second (1)."""
        return FrozenMap.of({name: pair[side] for name, pair in self.values.items()})

    def loss_alone(self, query: QueryPolicy, side: int) -> Loss | None:
        """Return what one query shows of the record's being in a cell with the values of one side; None: no bound."""
        if not self.values.keys() >= set(query.statistic.measures):
            return None
        influence = query.statistic.influence(self.of_side(side))
        return Loss(query.mechanism.loss_at(influence), query.mechanism.pure_loss_at(influence))

    def pair(self, query: QueryPolicy) -> Pair | None:
        """Return two laws of what the query shows, or worse ones; None where none are known."""
        if not self.values.keys() & query.statistic.measures:
            return UNTOUCHED
        return query.mechanism.change_pair_at(*self._addends(query))

    def _addends(self, query: QueryPolicy) -> tuple[Fraction, Fraction]:
        low, high = sorted(query.statistic.addend_at(self.of_side(side)) for side in (0, 1))
        return low, high


@dataclass(frozen=True)
class Factor:
    """Any values of a record, or others, each within a `factor` ≥ 1 of the first."""

    factor: Fraction

    @property
    def keys(self) -> Mapping[str, str]:
        """No codes: anywhere."""
        return {}

    def to_json(self) -> dict[str, object]:
        """The change as JSON."""
        return {"factor": as_json(self.factor)}

    def loss(self, query: QueryPolicy) -> Loss | None:
        """Return what the change costs by one query; None: no bound."""
        if not query.statistic.measures:
            return NOTHING
        losses = query.mechanism.factor_losses_at(query.statistic.factor(self.factor))
        return None if losses is None else Loss(*losses)

    def loss_alone(self, query: QueryPolicy, side: int) -> Loss | None:
        """Return what one query shows of any such record's being in a cell; None where that has no bound."""
        if query.statistic.measures:
            return None
        one = query.statistic.influence({})
        return Loss(query.mechanism.loss_at(one), query.mechanism.pure_loss_at(one))

    def pair(self, query: QueryPolicy) -> Pair | None:
        """Return two laws of what the query shows, or worse ones; None where none are known."""
        if not query.statistic.measures:
            return UNTOUCHED
        return query.mechanism.factor_pair_at(query.statistic.factor(self.factor))


def change_losses(plan: Plan, policy: PolicySum, change: Change | Factor) -> tuple[list[Loss | None], Loss | None]:
    """Return the loss by each query in its worst part, then by all, at the worst cell; None where there is no bound.

    Raises PlanError where no cell has the change's codes.
    """
    require_cell(plan, change.keys)
    steps = _steps(plan, policy, change)
    of_query = [{i for i, part in enumerate(policy.queries) if part.name == query.name} for query in plan.queries]
    by_query = [
        _added([_worst_change(losses, [met & parts for met in sets]) for losses, sets in steps]) for parts in of_query
    ]
    return by_query, _added([_worst_change(losses, sets) for losses, sets in steps])


def change_bounds(plan: Plan, policy: PolicySum, change: Change | Factor, delta: float) -> ByDistribution | None:
    """Return (ε, δ) and the best test between the two values by their distribution; None where that is not known."""
    if _moving(plan, change):
        return None
    pairs = dict(enumerate(change.pair(query) for query in policy.queries))
    return bounds_of_change(policy, query_sets_of(plan, _keys(plan, change, 0)), pairs, delta)


Step = tuple[list[Loss | None], tuple[QuerySet, ...]]  # the loss by each policy, and the sets that one cell can meet


def _steps(plan: Plan, policy: PolicySum, change: Change | Factor) -> list[Step]:
    """Return the change as steps, whose losses add up: of values in one cell, out of a cell, and into another."""
    moving = _moving(plan, change)
    if not moving:
        return [([change.loss(query) for query in policy.queries], query_sets_of(plan, _keys(plan, change, 0)))]
    sides = [_keys(plan, change, side) for side in (0, 1)]
    both = {level: code for level, code in sides[0].items() if sides[1].get(level) == code}
    levels = {each.level for each in moving}
    listed = plan.domain.cells is not None  # then a record may come to no cell, out of all queries and the records kept
    parts = [query for query in plan.queries for _ in query.parts]
    moved = [listed or not levels.isdisjoint((*query.by, *query.where)) for query in parts]
    moved += [listed] * (len(policy.queries) - len(moved))  # the test of records left out
    stay = [NOTHING if moves else change.loss(query) for query, moves in zip(policy.queries, moved, strict=True)]
    steps: list[Step] = [(stay, query_sets_of(plan, both))]
    for side, keys in enumerate(sides):
        alone = [
            change.loss_alone(query, side) if moves else NOTHING
            for query, moves in zip(policy.queries, moved, strict=True)
        ]
        steps.append((alone, query_sets_of(plan, keys)))
    return steps


def _moving(plan: Plan, change: Change | Factor) -> list[Dimension]:
    """Return the keys whose classes a change moves between; PlanError where it may change codes of the owner."""
    used = {level for query in plan.queries for level in (*query.by, *query.where, query.split)}
    used |= set() if plan.domain.cells is None else plan.domain.levels.keys()
    for each in plan.domain.dimensions:
        rule = each.of_owner if each.level in used else None
        if rule and (isinstance(change, Factor) or rule.measure in change.values):
            raise PlanError(
                f"key {each.key}: it follows from all records of an owner, which a change of one may move to other "
                f"cells; state the owner before and after by {arg('at')}: it loses at most (√P + √P′)²"
            )
    classed_by = [(each, each.classes) for each in plan.domain.dimensions if each.classes is not None]
    if isinstance(change, Factor):
        return [each for each, _ in classed_by] if change.factor != 1 else []
    return [
        each
        for each, classes in classed_by
        if len({classes.class_of(value) for value in change.values.get(classes.measure, ())}) > 1
    ]


def _keys(plan: Plan, change: Change | Factor, side: int) -> Mapping[str, str]:
    """Return the codes of the record, those of its classes among them, with the values of one side."""
    if isinstance(change, Factor):
        return change.keys
    record = ReferenceRecord(change.of_side(side), change.keys)
    return classed(plan, Reference((record,))).records[0].keys


def _added(losses: Sequence[Loss | None]) -> Loss | None:
    known = [loss for loss in losses if loss is not None]
    if len(known) < len(losses):
        return None
    pure = [loss.epsilon for loss in known if loss.epsilon is not None]
    rho = sum((loss.rho for loss in known), Fraction(0))
    return Loss(rho, sum(pure, Fraction(0)) if len(pure) == len(known) else None)


def _worst_change(losses: Sequence[Loss | None], query_sets: Iterable[QuerySet]) -> Loss | None:
    """Return the largest sums over the losses of a query set; rho and epsilon may have theirs in different ones."""
    rho = epsilon = Fraction(0)
    pure = True
    for query_set in query_sets:
        loss = _added([losses[i] for i in query_set])
        if loss is None:
            return None
        rho, epsilon = max(rho, loss.rho), max(epsilon, loss.epsilon or Fraction(0))
        pure &= loss.epsilon is not None
    return Loss(rho, epsilon if pure else None)


def parse_change(text: str, plan: Plan) -> Change:
    """Return the change that `text` names, such as "employment=10:12,payroll=500:600" or "naics3=722,employment=10:12".

    Raises PlanError on anything that is no measure of the plan with two values, or no level with a code of the domain.
    """
    return Change(*typed_change(arg("change"), text, names_of(plan)))


def parse_factor(text: str) -> Factor:
    """Return the factor that `text` names; raises PlanError unless it is a number of at least 1."""
    factor = typed_number(arg("factor"), text, text)
    if factor < 1:
        raise PlanError(f"{arg('factor', text)}: must be at least 1; it bounds a change up and down")
    return Factor(factor)


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
