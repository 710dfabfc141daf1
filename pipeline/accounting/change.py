"""The metric view: what a release tells of a record's values, where it is known that the record is there.

Guarantee (docs/mathematics.md, section 10): for two sets of microdata that differ in one record's values alone, which
stays in its cells, the Rényi divergence of all outputs is at most α·rho for every order α > 1 and in both directions,
and the max divergence at most epsilon: the sum over the queries of the record's place. Counts do not see values: they
add nothing. The same holds where the unit is a firm, one of whose records changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from pipeline.accounting.policy import Place, PolicySum, QueryPolicy
from pipeline.accounting.reference import Loss, places_of
from pipeline.plan.model import Plan
from udfs.exact import as_json

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
        if query.measure is None or query.measure not in self.values:
            return NOTHING
        low, high = sorted(self.values[query.measure])
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
        if query.measure is None:
            return NOTHING
        losses = query.mechanism.factor_losses_at(self.factor)
        return None if losses is None else Loss(*losses)


def change_losses(plan: Plan, policy: PolicySum, change: Change | Factor) -> tuple[list[Loss | None], Loss | None]:
    """Return the loss by each query in its worst part, then by all, at the worst place; None where there is no bound.

    Raises PlanError where no cell has the change's codes.
    """
    places = places_of(plan, change.keys)
    losses = [change.loss(query) for query in policy.queries]
    of_query = [{i for i, part in enumerate(policy.queries) if part.name == query.name} for query in plan.queries]
    return [_worst(losses, [place & parts for place in places]) for parts in of_query], _worst(losses, places)


def _worst(losses: Sequence[Loss | None], places: Iterable[Place]) -> Loss | None:
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
