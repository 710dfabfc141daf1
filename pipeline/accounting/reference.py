"""Reference records: the sizes, and where wanted the place, at which losses are stated and limited."""

from collections.abc import Mapping, Sequence
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
    queries = tuple(
        QueryPolicy(query.name, query.measure.name if query.measure else None, part.mechanism, part.name)
        for query in plan.queries
        for part in query.parts
    )
    return PolicySum(queries, places_of(plan, {}))


def places_of(plan: Plan, keys: Mapping[str, str]) -> tuple[Place, ...]:
    """Return the sets of policies that one public cell with the codes `keys` can meet; PlanError where none is."""
    places = plan.domain.places([where for query in plan.queries for where in query.filters], keys)
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
    """Return for each query (influence, loss in its worst part), then the total loss, of a record at the reference.

    Raises PlanError where the reference does not name every measure that a query sums.
    """
    missing = sorted(policy.measures - at.values.keys())
    if missing:
        raise PlanError(f"reference {at.label}: it must also name {', '.join(missing)}, which a query sums")
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
