"""What a plan promises, before any record is read: the losses of reference records and of changes, as JSON."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from pipeline.accounting.convert import DELTA
from pipeline.accounting.interpretation import Loss, interpret, interpret_at
from pipeline.accounting.left_out import SHARE
from pipeline.accounting.references import Reference
from pipeline.plan.changes import Change, Factor, change_bounds, change_losses
from pipeline.plan.model import Plan
from pipeline.plan.plan_placements import loss_found
from pipeline.plan.structure import accuracy, size_of, warnings
from pipeline.plan.total_policy import (
    left_out_test_loss,
    left_out_test_of,
    located,
    losses_at,
    no_larger,
    policy_of,
    simple_losses_at,
    total_loss,
)
from pipeline.planning.explain.policies import group_losses, paper_losses
from udfs.numbers.exact import as_json, up_float


def explain(
    plan: Plan, references: Sequence[Reference], delta: float = DELTA, site_share: Fraction = SHARE
) -> dict[str, Any]:
    """Return what the plan promises: all losses are upper bounds.

    A total, and what it means, holds for all units that are no larger, unless it has a bound for these (`…_below`, and
    `below` of its meaning).

    Args:
        plan: The plan; no microdata are read.
        references: The records or firms at which losses are stated; none: those of the plan's budget.
        delta: The δ at which (ε, δ) is stated.
        site_share: The share of records that may be left out where the plan states none.
    """
    policy, is_firm = policy_of(plan), plan.dataset.owner is not None
    references = list(references) or [limit.at for limit in plan.budget]
    if not references and not policy.measures:
        references = [Reference.of({}, listed=is_firm)]
    losses: list[list[dict[str, Any]]] = [[] for _ in plan.queries]
    excess: list[list[float | None]] = [[] for _ in plan.queries]
    totals, interpreted, tested = [], [], []
    for at in references:
        each, total = losses_at(plan, policy, at)
        here = located(plan, at)
        # the simple bounds of a group of records that are units of their own
        group = at.listed and not is_firm
        simple = simple_losses_at(plan, policy, at) if group else [None] * (len(plan.queries) + 1)
        for i, (influence, loss) in enumerate(each):
            losses[i].append({"at": at.to_json(), "influence": as_json(influence)} | _loss(loss, simple[i]))
            excess[i].append(policy.excess_at(here, plan.queries[i].name))
        tested.append({"at": at.to_json()} | left_out_test_loss(plan, policy, at).to_json())
        found = {"rho_found": loss_found(plan, policy, at)} if len(at.records) > 1 else {}
        totals.append({"at": at.to_json()} | _loss(total, simple[-1]) | found)
        interpreted.append(interpret_at(policy, here, total, delta))
        if (below := no_larger(plan, at)) is not None:
            most = total_loss(policy, below)
            totals[-1] |= {f"{name}_below": bound for name, bound in most.to_json().items()}
            interpreted[-1] |= {"below": interpret_at(policy, below, most, delta)}
    queries = [
        {
            "name": query.name,
            "mechanism": query.described(),
            "losses": stated,
            "excess": shares,
            "accuracy": accuracy(query, plan.interval),
            "warnings": warnings(query),
        }
        | ({"groups": groups} if (groups := group_losses(query)) else {})
        for query, stated, shares in zip(plan.queries, losses, excess, strict=True)
    ]
    paper = paper_losses(plan, references)
    return {
        "plan_digest": plan.digest,
        "unit": plan.dataset.unit,
        "size": size_of(plan).to_json(),
        "queries": queries,
        "left_out_test": left_out_test_of(plan, site_share).to_json() | {"losses": tested},
        "total": totals,
        "total_means": interpreted,
    } | ({"paper": paper} if paper else {})


def explain_changes(plan: Plan, changes: Sequence[Change | Factor], delta: float) -> list[dict[str, Any]]:
    """Return the loss from distinguishing the values of each change, by query and in all.

    `rho` null: no bound. `means`: (ε, δ) and the best test, null without a bound.
    """
    policy = policy_of(plan)
    explained = []
    for change in changes:
        losses, total = change_losses(plan, policy, change)
        explained.append(
            {
                "change": change.to_json(),
                "queries": [
                    {"name": query.name} | _loss(loss) for query, loss in zip(plan.queries, losses, strict=True)
                ],
                "total": _loss(total),
                "means": None
                if total is None
                else interpret(total, delta, None, change_bounds(plan, policy, change, delta)),
            }
        )
    return explained


def _loss(loss: Loss | None, simple: Fraction | None = None) -> dict[str, float | None]:
    stated = {"rho": None, "epsilon": None} if loss is None else loss.to_json()
    return stated | ({} if simple is None else {"rho_simple": up_float(simple)})
