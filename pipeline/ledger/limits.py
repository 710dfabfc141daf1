"""Limits in the form in which the ledger keeps them."""

from collections.abc import Mapping
from typing import Any

from pipeline.accounting.accountant import BudgetLimit
from pipeline.accounting.firm import Row
from udfs.exact import as_json, exact


def limit_json(limit: BudgetLimit) -> dict[str, Any]:
    """Return a limit as JSON, as the ledger keeps it."""
    if isinstance(limit.at, tuple):
        return {"label": limit.label, "firm": [row.to_json() for row in limit.at], "rho": as_json(limit.rho)}
    return {
        "label": limit.label,
        "at": {measure: as_json(value) for measure, value in limit.at.items()},
        "rho": as_json(limit.rho),
        "places": None if limit.places is None else [sorted(place) for place in limit.places],
    }


def limit_of(facts: Mapping[str, Any]) -> BudgetLimit:
    """Return the limit that `limit_json` wrote."""
    if "firm" in facts:
        return BudgetLimit(tuple(Row.from_json(row) for row in facts["firm"]), exact(facts["rho"]), facts["label"])
    places = facts["places"]
    return BudgetLimit(
        at={measure: exact(value) for measure, value in facts["at"].items()},
        rho=exact(facts["rho"]),
        label=facts["label"],
        places=None if places is None else tuple(frozenset(place) for place in places),
    )
