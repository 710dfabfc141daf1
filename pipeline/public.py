"""policy.json: what a release promises, for everyone, as data that can be evaluated without prdp."""

import json
from typing import Any

from pipeline.accounting.policy import curve_json
from pipeline.accounting.reference import at_of, losses_at, policy_of
from pipeline.guarantee import guarantee
from pipeline.plan.model import Plan, Query
from udfs.exact import as_json
from udfs.mechanisms.base import Mechanism

OF_A_RECORD = "P(r) = Σ P_q(Δ_q(r)) over the queries of one place; at a reference, the worst place"
CURVE = (
    "an influence above steps[i - 1] and at most steps[i] steps of the measure loses at most rho[i]; beyond the last "
    "of them, and wherever it is less, tanh(P/2)·P with the pure loss P"
)
OF_A_FIRM = (
    "P(f) = Σ P_q(Σ Δ_q(r)) over the queries and their cells, the inner sum over the firm's records r in the cell; at "
    "a reference at most (√P + √P(u_1) + √P(u_2) + …)², with P of the records whose keys tell their cells, and each "
    "other record u at its worst place"
)


def policy_document(plan: Plan) -> str:
    """Return the text of policy.json: mechanisms, parameters, policy functions and their sum at the references."""
    return json.dumps(public_policy(plan), ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def public_policy(plan: Plan) -> dict[str, Any]:
    """Return policy.json as JSON: of the plan alone, so equal for all engines and all microdata."""
    policy = policy_of(plan)
    references = [at_of(limit.at) for limit in plan.budget]
    return {
        "release": plan.release,
        "plan_digest": plan.digest,
        "unit": plan.dataset.unit,
        "interval": as_json(plan.interval),
        "guarantee": guarantee(plan.dataset.owner, plan.dataset.duplicates),
        "queries": [_query(query) for query in plan.queries],
        "sum": {
            "formula": OF_A_RECORD if plan.dataset.owner is None else OF_A_FIRM,
            "places": [[policy.queries[i].label for i in sorted(place)] for place in policy.places],
        },
        "references": [
            {
                "at": at.to_json(),
                "queries": {
                    query.name: {"influence": as_json(influence)} | loss.to_json()
                    for query, (influence, loss) in zip(plan.queries, losses, strict=True)
                },
                "total": total.to_json(),
            }
            for at in references
            for losses, total in [losses_at(plan, policy, at)]
        ],
    }


def _query(query: Query) -> dict[str, Any]:
    described = {
        "name": query.name,
        "statistic": {"sum": query.measure.name} if query.measure else {"count": "records"},
        "by": list(query.by),
        "where": {level: list(codes) for level, codes in query.where.items()},
    }
    if query.split is None:
        return described | _mechanism(query, query.parts[0].mechanism)
    parts = [{"part": part.name, "codes": list(part.codes)} | _mechanism(query, part.mechanism) for part in query.parts]
    return described | {"split": query.split, "parts": parts}


def _mechanism(query: Query, mechanism: Mechanism) -> dict[str, Any]:
    return {
        "mechanism": mechanism.describe(),
        "step": as_json(mechanism.step),
        "lattice_step": float(mechanism.lattice_step),
        "influence": f"|{query.measure.name}|" if query.measure else "1",
        "policy": {"rho": mechanism.formula, "epsilon": mechanism.pure_formula},
    } | _curve(mechanism)


def _curve(mechanism: Mechanism) -> dict[str, Any]:
    curve = curve_json(mechanism)
    return curve | ({"curve_says": CURVE} if curve else {})
