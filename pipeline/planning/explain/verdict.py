"""Whether a plan keeps its limits: totals against them, each table's share of the loss, and the errors to expect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, isfinite, sqrt
from typing import Any

from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import OWN_REMEDY, Reference
from pipeline.base.errors import BudgetRefused, in_a_line
from pipeline.plan.model import Plan, Query
from pipeline.plan.total_policy import limits_of, located, policy_of, require_measures
from pipeline.planning.explain.remedies import Remedy, remedies
from udfs.mechanisms.base import Mechanism
from udfs.numbers.exact import as_json, bound_text, up_float

CELLS = (10, 1_000, 100_000)  # true totals of a small, a middle and a large cell, in the measure's unit
MEDIAN = Fraction(1, 2)


@dataclass(frozen=True, eq=False)
class Standing:
    """What all units lose at most that are no larger than a reference, against the plan's limit there.

    `limit` None: the plan has none at this reference. `tables`: the loss in each table, in its worst part; together
    they are at least `rho`, and more where a record cannot be in all tables.
    """

    at: Reference
    rho: Fraction
    limit: Fraction | None
    tables: Mapping[str, Fraction]

    @property
    def within(self) -> bool | None:
        """Whether the limit holds; None without one."""
        return None if self.limit is None else self.rho <= self.limit

    @property
    def used(self) -> float | None:
        """The share of the limit that is lost, rounded up: above 1 it is broken; None without a limit above 0."""
        return up_float(self.rho / self.limit) if self.limit else None

    @property
    def shares(self) -> dict[str, float]:
        """Each table's loss as a share of the total, largest first."""
        ordered = sorted(self.tables.items(), key=lambda each: -each[1])
        return {name: float(loss / self.rho) if self.rho else 0.0 for name, loss in ordered}

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON, losses rounded up."""
        return {
            "at": self.at.to_json(),
            "rho": up_float(self.rho),
            "limit": None if self.limit is None else as_json(self.limit),
            "within": self.within,
            "used": self.used,
            "shares": self.shares,
        }


def standings(plan: Plan, policy: PolicySum, references: Sequence[Reference] = ()) -> list[Standing]:
    """Return how the plan's limits stand, as a ledger without other releases checks them, then the `references`."""
    require_measures(policy, references)
    places = [(limit.at, bound.at, limit.rho) for limit, bound in zip(plan.budget, limits_of(plan), strict=True)]
    limited = {at.unordered for at, _, _ in places}
    others = [(at, located(plan, at, below=True), None) for at in references if at.unordered not in limited]
    return [
        Standing(
            at,
            policy.loss_at(place),
            limit,
            {query.name: policy.query_loss_at(place, query.name) for query in plan.queries},
        )
        for at, place, limit in [*places, *others]
    ]


def cell_errors(mechanism: Mechanism, total: float) -> dict[str, float | None]:
    """Return as JSON the median of |error| / total, and the standard error, of a released value at a true total > 0.

    null: infinite. Of the noise as it is drawn, whatever the microdata.
    """
    relative, standard = float(mechanism.error_quantile(total, MEDIAN)) / total, sqrt(mechanism.variance(total))
    return {
        "total": total,
        "median_relative_error": relative if isfinite(relative) else None,
        "standard_error": standard if isfinite(standard) else None,
    }


def table_errors(query: Query, totals: Sequence[float] = CELLS) -> list[dict[str, Any]]:
    """Return `cell_errors` of each part of a table at each of the totals."""
    return [
        ({} if part.name is None else {"part": part.name}) | cell_errors(part.mechanism, total)
        for part in query.parts
        for total in totals
    ]


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whether a plan keeps its limits by this release alone, and what would mend it where it does not."""

    plan: Plan
    standings: Sequence[Standing]
    remedies: Sequence[Remedy] = ()

    @property
    def within(self) -> bool | None:
        """Whether all limits hold; None where the plan has none."""
        kept = [each.within for each in self.standings if each.within is not None]
        return all(kept) if kept else None

    @property
    def broken(self) -> list[Standing]:
        """The limits that are broken, the worst first."""
        broken = [each for each in self.standings if each.within is False]
        return sorted(broken, key=lambda each: -(each.used or inf))

    def require_within(self) -> None:
        """Raise BudgetRefused where a limit is broken, naming the worst."""
        if self.broken:
            worst, *others = self.broken
            limit = f"rho {bound_text(worst.rho)}, limit {as_json(Fraction(worst.limit or 0))}"
            more = f", and {len(others)} more" if others else ""
            raise BudgetRefused(
                f"release {self.plan.release}: breaks its plan's budget at {in_a_line(worst.at.label)}: {limit}{more}; "
                f"{OWN_REMEDY}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        return {
            "within_limits": self.within,
            "references": [each.to_json() for each in self.standings],
            "remedies": [each.to_json() for each in self.remedies],
            "tables": [{"name": query.name, "errors": table_errors(query)} for query in self.plan.queries],
        }


def verdict(plan: Plan, references: Sequence[Reference] = ()) -> Verdict:
    """Return the verdict on a plan, at its limits and at the `references`; no microdata are read.

    Raises PlanError where a reference does not name every measure that a query sums.
    """
    policy = policy_of(plan)
    if not references and not plan.budget and not policy.measures:
        references = [Reference.of({}, listed=plan.dataset.owner is not None)]
    stand = standings(plan, policy, references)
    judged = Verdict(plan, stand)
    return replace(judged, remedies=remedies(plan, policy, list(judged.broken[0].shares))) if judged.broken else judged
