"""References: the sizes, and where wanted the places, of records or firms at which losses are stated and limited."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pipeline.accounting.accountant import BudgetLimit
from pipeline.accounting.groups import (
    Firm,
    Row,
    firm_influence,
    firm_loss,
    firm_pure_loss,
    query_loss,
    query_pure_loss,
    simple,
)
from pipeline.accounting.policy import Floats, Place, PolicySum, QueryPolicy, record_curve
from pipeline.errors import PlanError
from pipeline.plan.model import Plan, Values
from udfs.numbers.exact import as_json, up_float


@dataclass(frozen=True)
class At:
    """A reference record: its values by measure, and its place by level (empty: anywhere in the domain)."""

    values: Mapping[str, Fraction]
    keys: Mapping[str, str]

    @classmethod
    def of(cls, at: Values) -> "At":
        """Split what a plan or a command line gives: numbers are values, text is codes."""
        numbers = {name: value for name, value in at.items() if isinstance(value, Fraction)}
        codes = {name: value for name, value in at.items() if isinstance(value, str)}
        return cls(numbers, codes)

    @property
    def label(self) -> str:
        """The reference in words."""
        return ", ".join(f"{name}={value}" for name, value in self.to_json().items()) or "any record"

    def to_json(self) -> dict[str, object]:
        """The reference as JSON, values first."""
        return {name: as_json(value) for name, value in self.values.items()} | dict(self.keys)


@dataclass(frozen=True)
class AtFirm:
    """A reference firm: all its records."""

    records: tuple[At, ...]

    @property
    def label(self) -> str:
        """The reference in words."""
        return "; ".join(record.label for record in self.records)

    def to_json(self) -> list[dict[str, object]]:
        """The reference as JSON."""
        return [record.to_json() for record in self.records]


@dataclass(frozen=True)
class Loss:
    """What a query, or all together, may cost a record or a firm: upper bounds; `epsilon` None: no pure loss."""

    rho: Fraction
    epsilon: Fraction | None

    def to_json(self) -> dict[str, float | None]:
        """Both as doubles, rounded up."""
        return {"rho": up_float(self.rho), "epsilon": None if self.epsilon is None else up_float(self.epsilon)}


def at_of(at: Values | tuple[Values, ...]) -> At | AtFirm:
    """Return the reference that a plan's limit names: a record, or where its unit is a firm a tuple of them."""
    return AtFirm(tuple(At.of(record) for record in at)) if isinstance(at, tuple) else At.of(at)


def policy_of(plan: Plan) -> PolicySum:
    """Return the policy of the whole plan."""
    queries = tuple(
        QueryPolicy(query.name, query.statistic, part.mechanism, part.name)
        for query in plan.queries
        for part in query.parts
    )
    return PolicySum(queries, places_of(plan, {}))


def places_of(plan: Plan, keys: Mapping[str, str]) -> tuple[Place, ...]:
    """Return the sets of policies that one public cell with the codes `keys` can meet; PlanError where none is."""
    places = plan.domain.query_sets([where for query in plan.queries for where in query.filters], keys)
    if not places:
        named = ", ".join(f"{level}={code}" for level, code in keys.items())
        raise PlanError(f"reference {named}: no cell of the domain has these codes; use codes of the domain")
    return places


def limits_of(plan: Plan) -> tuple[BudgetLimit, ...]:
    """Return the plan's limits as the accountant checks them."""
    limits = []
    for limit in plan.budget:
        at = at_of(limit.at)
        if isinstance(at, AtFirm):
            limits.append(BudgetLimit(firm_at(plan, at), limit.rho, at.label))
        else:
            limits.append(BudgetLimit(at.values, limit.rho, at.label, places_of(plan, at.keys) if at.keys else None))
    return tuple(limits)


def firm_at(plan: Plan, at: AtFirm) -> Firm:
    """Return the reference's records with the places that they can have, and their cells where the keys tell them."""
    policies = [(query.by, where) for query in plan.queries for where in query.filters]
    firm = []
    for record in at.records:
        found = [plan.domain.only_cell(by, where, record.keys) for by, where in policies]
        cells = {i: cell for i, cell in enumerate(found) if cell is not None}
        firm.append(Row(record.values, places_of(plan, record.keys), cells))
    return tuple(firm)


def losses_at(plan: Plan, policy: PolicySum, at: At | AtFirm) -> tuple[tuple[tuple[Fraction, Loss], ...], Loss]:
    """Return for each query (influence, loss in its worst part), then the total loss, at the reference.

    Raises PlanError where the reference does not name every measure that a query sums.
    """
    for record in at.records if isinstance(at, AtFirm) else [at]:
        missing = sorted(policy.measures - record.values.keys())
        if missing:
            raise PlanError(f"reference {record.label}: it must also name {', '.join(missing)}, which a query sums")
    return _firm_losses(plan, policy, at) if isinstance(at, AtFirm) else _record_losses(plan, policy, at)


def curve_at(plan: Plan, policy: PolicySum, at: At | AtFirm) -> Floats | None:
    """Return the record's Rényi curve in the whole release; None of a firm or a group, whose ρ says all."""
    return None if isinstance(at, AtFirm) else record_curve(policy, at.values, places_of(plan, at.keys))


def _firm_losses(plan: Plan, policy: PolicySum, at: AtFirm) -> tuple[tuple[tuple[Fraction, Loss], ...], Loss]:
    firm = firm_at(plan, at)
    queries = tuple(
        (
            firm_influence(policy, firm, query.name),
            Loss(query_loss(policy, firm, query.name), query_pure_loss(policy, firm, query.name)),
        )
        for query in plan.queries
    )
    return queries, Loss(firm_loss(policy, firm), firm_pure_loss(policy, firm))


def simple_losses_at(plan: Plan, policy: PolicySum, at: AtFirm) -> tuple[Fraction, ...]:
    """Return J·ΣP_j of a group's J records (paper 1's bound) for each query, then for the release."""
    records = [(row,) for row in firm_at(plan, at)]
    queries = tuple(simple([query_loss(policy, record, query.name) for record in records]) for query in plan.queries)
    return (*queries, simple([firm_loss(policy, record) for record in records]))


def _record_losses(plan: Plan, policy: PolicySum, at: At) -> tuple[tuple[tuple[Fraction, Loss], ...], Loss]:
    places = places_of(plan, at.keys)
    met = frozenset[int]().union(*places)
    by_name: dict[str, list[QueryPolicy]] = {query.name: [] for query in plan.queries}
    for i in sorted(met):
        by_name[policy.queries[i].name].append(policy.queries[i])
    queries = tuple(_worst(parts, at) for parts in by_name.values())
    return queries, Loss(policy.loss_at(at.values, places), policy.pure_loss_at(at.values, places))


def _worst(parts: Sequence[QueryPolicy], at: At) -> tuple[Fraction, Loss]:
    """Return a record's influence on a query and its loss, of those parts of the query that it can meet."""
    if not parts:
        return Fraction(0), Loss(Fraction(0), Fraction(0))
    pure = [loss for loss in (part.pure_loss_at(at.values) for part in parts) if loss is not None]
    epsilon = max(pure) if len(pure) == len(parts) else None
    return parts[0].influence(at.values), Loss(max(part.loss_at(at.values) for part in parts), epsilon)


# The metric view: what a release tells of a record's values, where it is known that the record is there.
#
# Guarantee (docs/mathematics.md, section 10): for two sets of microdata that differ in one record's values alone,
# which
# stays in its cells, the Rényi divergence of all outputs is at most α·rho for every order α > 1 and in both
# directions,
# and the max divergence at most epsilon: the sum over the queries of the record's place. Counts do not see values:
# they
# add nothing. The same holds where the unit is a firm, one of whose records changes.


NOTHING = Loss(Fraction(0), Fraction(0))


@dataclass(frozen=True)
class Change:
    """Values of a record that are the first or the second, by measure; its place by level (empty: anywhere).

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
        low, high = sorted(
            query.statistic.addend_at({name: pair[i] for name, pair in self.values.items()}) for i in (0, 1)
        )
        return Loss(*query.mechanism.change_losses_at(low, high))


@dataclass(frozen=True)
class Factor:
    """Any values of a record, or others, each within a `factor` ≥ 1 of the first."""

    factor: Fraction

    @property
    def keys(self) -> Mapping[str, str]:
        """Its place: anywhere."""
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


def change_losses(plan: Plan, policy: PolicySum, change: Change | Factor) -> tuple[list[Loss | None], Loss | None]:
    """Return the loss by each query in its worst part, then by all, at the worst place; None where there is no bound.

    Raises PlanError where no cell has the change's codes.
    """
    places = places_of(plan, change.keys)
    losses = [change.loss(query) for query in policy.queries]
    of_query = [{i for i, part in enumerate(policy.queries) if part.name == query.name} for query in plan.queries]
    by_query = [_worst_change(losses, [place & parts for place in places]) for parts in of_query]
    return by_query, _worst_change(losses, places)


def _worst_change(losses: Sequence[Loss | None], places: Iterable[Place]) -> Loss | None:
    """Return the largest sums over the losses of a place; rho and epsilon may have theirs in different ones."""
    rhos, epsilons = [Fraction(0)], [Fraction(0)]
    pure = True
    for place in places:
        met = [losses[i] for i in place]
        known = [loss for loss in met if loss is not None]
        if len(known) < len(met):
            return None
        rhos.append(sum((loss.rho for loss in known), Fraction(0)))
        epsilons.append(sum((loss.epsilon or Fraction(0) for loss in known), Fraction(0)))
        pure &= all(loss.epsilon is not None for loss in known)
    return Loss(max(rhos), max(epsilons) if pure else None)
