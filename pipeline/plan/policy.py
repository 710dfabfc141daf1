"""A plan's policy, and what it costs the plan's references, or a change of a record's values."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from pipeline.accounting.convert import Floats
from pipeline.accounting.distributions import ByDistribution, bounds_of_change
from pipeline.accounting.groups import simple
from pipeline.accounting.left_out import NAME, SHARE, LeftOutTest, with_left_out_test
from pipeline.accounting.policy import Cells, PolicySum, QueryPolicy
from pipeline.accounting.references import (
    Limit,
    Names,
    QuerySet,
    Reach,
    Reference,
    ReferenceRecord,
    typed_change,
    typed_number,
    typed_reference,
)
from pipeline.errors import PlanError
from pipeline.plan.cells import Int32s
from pipeline.plan.model import Plan
from udfs.losses.atoms import Pair, Response
from udfs.numbers.exact import as_json, up_float
from udfs.records.codes import LEVELS

MOST_PAIRS = 20_000  # of kinds of codes that are looked at; of more all records might meet


@dataclass(frozen=True)
class Loss:
    """What a query, or all together, may cost a record or a firm: upper bounds; `epsilon` None: no pure loss."""

    rho: Fraction
    epsilon: Fraction | None

    def to_json(self) -> dict[str, float | None]:
        """Both as doubles, rounded up."""
        return {"rho": up_float(self.rho), "epsilon": None if self.epsilon is None else up_float(self.epsilon)}


def policy_of(plan: Plan) -> PolicySum:
    """Return the policy of the plan's release."""
    queries = tuple(
        QueryPolicy(query.name, query.statistic, part.mechanism, part.name, Cells(query.by, number))
        for query in plan.queries
        for part, where in zip(query.parts, query.filters, strict=True)
        for number in [plan.domain.query_cells(query.by, where).size]
    )
    return with_left_out_test(PolicySum(queries, _query_sets(plan, {})))


def left_out_test_of(plan: Plan, site_share: Fraction = SHARE) -> LeftOutTest:
    """Return the test of records left out of the plan's release; `site_share` holds where the plan states no share."""
    return LeftOutTest(site_share if plan.max_left_out is None else plan.max_left_out)


def left_out_test_loss(plan: Plan, policy: PolicySum, at: Reference) -> Loss:
    """Return what the test of records left out costs a reference."""
    at = located(plan, at)
    return Loss(policy.query_loss_at(at, NAME), policy.query_pure_loss_at(at, NAME))


def query_sets_of(plan: Plan, keys: Mapping[str, str]) -> tuple[QuerySet, ...]:
    """Return the sets of policies that one public cell with the codes `keys` can meet; PlanError where none is."""
    test = sum(len(query.parts) for query in plan.queries)  # the last policy, which every record meets
    return tuple(met | {test} for met in _query_sets(plan, keys))


def _query_sets(plan: Plan, keys: Mapping[str, str]) -> tuple[QuerySet, ...]:
    query_sets = plan.domain.query_sets([(query.by, where) for query in plan.queries for where in query.filters], keys)
    if not query_sets:
        codes = ", ".join(f"{level}={code}" for level, code in keys.items())
        raise PlanError(f"reference {codes}: no cell of the domain has these codes; use codes of the domain")
    return query_sets


def limits_of(plan: Plan) -> tuple[Limit, ...]:
    """Return the plan's limits as the accountant checks them."""
    return tuple(replace(limit, at=located(plan, limit.at)) for limit in plan.budget)


def located(plan: Plan, at: Reference) -> Reference:
    """Return the reference with, in place of its keys, what they mean to the plan's policies.

    Records of a list have also their cells, where the keys and the domain leave one alone: there influences add up.
    The list has its reach.
    """
    if not at.listed:
        (record,) = at.records
        sets = query_sets_of(plan, record.keys) if record.keys else None
        return Reference((ReferenceRecord(record.values, query_sets=sets),))
    kinds = {keys: kind for kind, keys in enumerate(dict.fromkeys(record.keys for record in at.records))}
    kind_of = tuple(kinds[record.keys] for record in at.records)
    query_sets = [query_sets_of(plan, keys) for keys in kinds]
    cells: list[list[tuple[int, int]]] = [[] for _ in kinds]
    reach = []
    for i, (by, where) in enumerate((query.by, where) for query in plan.queries for where in query.filters):
        positions = [plan.domain.positions(by, where, keys) for keys in kinds]
        query = plan.domain.query_cells(by, where)
        room, one = 0, set()
        for known, of_axes in zip(cells, positions, strict=True):
            if all(len(each) == 1 for each in of_axes):
                known.append((i, int(query.numbers(of_axes)[0])))
                one.add(known[-1])
            else:
                room += _combinations(of_axes)
        room = min(query.size, room + len(one))
        reach.append(Reach(kind_of, _apart(positions), room, not where))
    for known in cells:  # the test's: all records in one of its two counts, for no other way costs as much
        known.append((len(reach), 0))
    reach.append(Reach(kind_of, frozenset(), 1, True))
    known_cells = list(map(tuple, cells))
    records = (
        ReferenceRecord(record.values, query_sets=query_sets[kind], cells=known_cells[kind])
        for record, kind in zip(at.records, kind_of, strict=True)
    )
    return Reference(tuple(records), True, tuple(reach))


def _combinations(positions: Sequence[Int32s]) -> int:
    return prod(map(len, positions))


def _apart(positions: Sequence[Sequence[Int32s]]) -> frozenset[tuple[int, int]]:
    """Return the pairs of kinds, one of which can be in several cells, that have no position of a key in common."""
    several = [kind for kind, each in enumerate(positions) if _combinations(each) > 1]
    if len(several) * len(positions) > MOST_PAIRS:
        return frozenset()
    sets = [[frozenset(each.tolist()) for each in of_axes] for of_axes in positions]
    apart = {(k, n) for k in several for n, other in enumerate(sets) if any(map(frozenset.isdisjoint, sets[k], other))}
    return frozenset(apart | {(n, k) for k, n in apart})


def losses_at(plan: Plan, policy: PolicySum, at: Reference) -> tuple[tuple[tuple[Fraction, Loss], ...], Loss]:
    """Return for each query (influence, loss in its worst part), then the total loss, at the reference.

    Raises PlanError where the reference does not name every measure that a query sums.
    """
    for record in at.records:
        missing = Reference((record,)).missing(policy.measures)
        if missing:
            raise PlanError(f"reference {record.label}: it must also name {', '.join(missing)}, which a query sums")
    at = located(plan, at)
    queries = tuple(
        (
            policy.influence_at(at, query.name),
            Loss(policy.query_loss_at(at, query.name), policy.query_pure_loss_at(at, query.name)),
        )
        for query in plan.queries
    )
    return queries, Loss(policy.loss_at(at), policy.pure_loss_at(at))


def simple_losses_at(plan: Plan, policy: PolicySum, at: Reference) -> tuple[Fraction, ...]:
    """Return J·ΣP_j of a group's J records (paper 1's bound) for each query, then for the release."""
    records = [Reference((record,)) for record in located(plan, at).records]
    queries = (simple([policy.query_loss_at(each, query.name) for each in records]) for query in plan.queries)
    return (*queries, simple([policy.loss_at(each) for each in records]))


def curve_at(plan: Plan, policy: PolicySum, at: Reference) -> Floats:
    """Return the Rényi curve of the release at the reference."""
    return policy.curve_at(located(plan, at))


# The metric view: what a release shows of a record's values, where it is known that the record is there.
#
# Guarantee (docs/mathematics.md, section 10): for two sets of microdata that differ in one record's values alone, which
# stays in its cells, the Rényi divergence of all outputs is at most α·rho for every order α > 1 and in both directions,
# and the max divergence at most epsilon: the sum over the queries that the record's cell meets. Counts do not depend on
# values: they add nothing. The same holds where the unit is a firm, one of whose records changes.


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

    def pair(self, query: QueryPolicy) -> Pair | None:
        """Return two laws of what the query shows, or worse ones; None where none are known."""
        if not self.values.keys() & query.statistic.measures:
            return UNTOUCHED
        return query.mechanism.change_pair_at(*self._addends(query))

    def _addends(self, query: QueryPolicy) -> tuple[Fraction, Fraction]:
        low, high = sorted(
            query.statistic.addend_at({name: pair[i] for name, pair in self.values.items()}) for i in (0, 1)
        )
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
        """Return what the change costs by one query; None where that has no bound."""
        if not query.statistic.measures:
            return NOTHING
        losses = query.mechanism.factor_losses_at(query.statistic.factor(self.factor))
        return None if losses is None else Loss(*losses)

    def pair(self, query: QueryPolicy) -> Pair | None:
        """Return two laws of what the query shows, or worse ones; None where none are known."""
        if not query.statistic.measures:
            return UNTOUCHED
        return query.mechanism.factor_pair_at(query.statistic.factor(self.factor))


def change_losses(plan: Plan, policy: PolicySum, change: Change | Factor) -> tuple[list[Loss | None], Loss | None]:
    """Return the loss by each query in its worst part, then by all, at the worst cell; None where there is no bound.

    Raises PlanError where no cell has the change's codes.
    """
    query_sets = query_sets_of(plan, change.keys)
    losses = [change.loss(query) for query in policy.queries]
    of_query = [{i for i, part in enumerate(policy.queries) if part.name == query.name} for query in plan.queries]
    by_query = [_worst_change(losses, [met & parts for met in query_sets]) for parts in of_query]
    return by_query, _worst_change(losses, query_sets)


def change_bounds(plan: Plan, policy: PolicySum, change: Change | Factor, delta: float) -> ByDistribution | None:
    """Return (ε, δ) and the best test between the two values by their distribution; None where that is not known."""
    pairs = dict(enumerate(change.pair(query) for query in policy.queries))
    return bounds_of_change(policy, query_sets_of(plan, change.keys), pairs, delta)


def _worst_change(losses: Sequence[Loss | None], query_sets: Iterable[QuerySet]) -> Loss | None:
    """Return the largest sums over the losses of a query set; rho and epsilon may have theirs in different ones."""
    rhos, epsilons = [Fraction(0)], [Fraction(0)]
    pure = True
    for query_set in query_sets:
        met = [losses[i] for i in query_set]
        known = [loss for loss in met if loss is not None]
        if len(known) < len(met):
            return None
        rhos.append(sum((loss.rho for loss in known), Fraction(0)))
        epsilons.append(sum((loss.epsilon or Fraction(0) for loss in known), Fraction(0)))
        pure &= all(loss.epsilon is not None for loss in known)
    return Loss(max(rhos), max(epsilons) if pure else None)


# References and changes as they are typed for a plan.


def parse_at(text: str, plan: Plan) -> Reference:
    """Return the reference that `text` names, such as "employment=10,payroll=500" or "naics3=722,employment=10".

    Several records, separated by ";", are a firm, where that is the unit, or else a group that comes or goes as one.
    Raises PlanError on anything that is no measure of the plan and no level with a code of the domain.
    """
    return typed_reference("--at", text, _names(plan), listed=plan.dataset.owner is not None or ";" in text)


def parse_change(text: str, plan: Plan) -> Change:
    """Return the change that `text` names, such as "employment=10:12,payroll=500:600" or "naics3=722,employment=10:12".

    Raises PlanError on anything that is no measure of the plan with two values, or no level with a code of the domain.
    """
    return Change(*typed_change("--change", text, _names(plan)))


def parse_factor(text: str) -> Factor:
    """Return the factor that `text` names; raises PlanError unless it is a number of at least 1."""
    factor = typed_number("--factor", text, text)
    if factor < 1:
        raise PlanError(f"--factor {text}: must be at least 1; it bounds a change up and down")
    return Factor(factor)


def _names(plan: Plan) -> Names:
    """Return what the text of a reference or of a change may name in a plan."""
    measures = [measure.name for measure in plan.dataset.measures]
    built_in = [level for key, levels in LEVELS.items() if key in plan.domain.keys for level in levels]
    levels = dict.fromkeys([*built_in, *plan.domain.levels])
    return Names(measures, list(levels), plan.domain.require_code)
