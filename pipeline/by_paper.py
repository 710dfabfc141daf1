"""What the paper's bound says of the same noise, beside a tight policy: what the tighter bound gains."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.accounting.reference import At, AtFirm, losses_at, policy_of
from pipeline.plan.model import Plan, Query
from udfs.exact import up_float
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.tight import states_tight


def paper_losses(plan: Plan, references: Sequence[At | AtFirm]) -> list[dict[str, Any]]:
    """Return rho by the paper's policy at each reference, of each query and in total; nothing where no policy is tight.

    The noise is the same: only the bound that states its loss is another.
    """
    if not any(states_tight(part.mechanism) for query in plan.queries for part in query.parts):
        return []
    other = replace(plan, queries=tuple(_by_paper(query) for query in plan.queries))
    policy = policy_of(other)
    found = [(at, *losses_at(other, policy, at)) for at in references]
    return [
        {
            "at": at.to_json(),
            "queries": {query.name: up_float(loss.rho) for query, (_, loss) in zip(plan.queries, each, strict=True)},
            "rho": up_float(total.rho),
        }
        for at, each, total in found
    ]


def tight_queries(plan: Plan) -> list[str]:
    """Return the names of the queries with a tight policy."""
    return [query.name for query in plan.queries if any(states_tight(part.mechanism) for part in query.parts)]


def _by_paper(query: Query) -> Query:
    return replace(query, parts=tuple(replace(part, mechanism=by_paper(part.mechanism)) for part in query.parts))


def by_paper(mechanism: Mechanism) -> Mechanism:
    """Return the same noise under the paper's policy."""
    return replace(mechanism, policy="paper") if states_tight(mechanism) else mechanism  # type: ignore[call-arg]
