"""Reference records: the sizes, and where wanted the place, at which losses are stated and limited."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from pipeline.accounting.accountant import BudgetLimit
from pipeline.accounting.policy import Place, PolicySum, QueryPolicy
from pipeline.errors import PlanError
from pipeline.plan.model import Plan
from udfs.exact import as_json, up_float


@dataclass(frozen=True)
class At:
    """A reference record: its values by measure, and its place by level (empty: anywhere in the domain)."""

    values: Mapping[str, Fraction]
    keys: Mapping[str, str]

    @classmethod
    def of(cls, at: Mapping[str, str | Fraction]) -> "At":
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
class Loss:
    """What one query (or all together) may cost a record: upper bounds; `epsilon` None where there is no pure loss."""

    rho: Fraction
    epsilon: Fraction | None

    def to_json(self) -> dict[str, float | None]:
        """Both as doubles, rounded up."""
        return {"rho": up_float(self.rho), "epsilon": None if self.epsilon is None else up_float(self.epsilon)}


def policy_of(plan: Plan) -> PolicySum:
    """Return the policy of the whole plan."""
    queries = tuple(QueryPolicy(q.name, q.measure.name if q.measure else None, q.mechanism) for q in plan.queries)
    return PolicySum(queries, places_of(plan, {}))


def places_of(plan: Plan, keys: Mapping[str, str]) -> tuple[Place, ...]:
    """Return the sets of queries that one public cell with the codes `keys` can belong to; PlanError where none has."""
    places = plan.domain.places([query.where for query in plan.queries], keys)
    if not places:
        named = ", ".join(f"{level}={code}" for level, code in keys.items())
        raise PlanError(f"reference {named}: no cell of the domain has these codes; use codes of the domain")
    return places


def limits_of(plan: Plan) -> tuple[BudgetLimit, ...]:
    """Return the plan's limits as the accountant checks them."""
    limits = []
    for limit in plan.budget:
        at = At.of(limit.at)
        limits.append(BudgetLimit(at.values, limit.rho, at.label, places_of(plan, at.keys) if at.keys else None))
    return tuple(limits)


def losses_at(plan: Plan, policy: PolicySum, at: At) -> tuple[tuple[tuple[Fraction, Loss], ...], Loss]:
    """Return for each query (influence, loss), then the total loss, of a record at the reference.

    Raises PlanError where the reference does not name every measure that a query sums.
    """
    missing = sorted(policy.measures - at.values.keys())
    if missing:
        raise PlanError(f"reference {at.label}: it must also name {', '.join(missing)}, which a query sums")
    places = places_of(plan, at.keys)
    met = frozenset[int]().union(*places)
    queries = tuple(_one(query, at, i in met) for i, query in enumerate(policy.queries))
    return queries, Loss(policy.loss_at(at.values, places), policy.pure_loss_at(at.values, places))


def _one(query: QueryPolicy, at: At, met: bool) -> tuple[Fraction, Loss]:
    if not met:
        return Fraction(0), Loss(Fraction(0), Fraction(0))
    return query.influence(at.values), Loss(query.loss_at(at.values), query.pure_loss_at(at.values))
