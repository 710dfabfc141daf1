"""Bounds on a release's losses as they were certified when it was charged, so that no later version lowers them."""

import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib.metadata import version
from typing import Any

import numpy as np

from pipeline.accounting.accountant import BudgetLimit, Certified
from pipeline.accounting.curves import ORDERS, record_curve
from pipeline.accounting.firm import query_loss
from pipeline.accounting.policy import PolicySum
from pipeline.errors import StateError
from pipeline.ledger.limits import limit_json, limit_of
from udfs.exact import exact, up_decimal

VERSION = 1  # of the form in which policies and bounds are kept
LARGEST = Fraction(sys.float_info.max)  # what is lost beyond it is in no limit's reach


def certified_json(policy: PolicySum, limits: Sequence[BudgetLimit]) -> dict[str, Any]:
    """Return upper bounds of the policy and of each query at every reference of `limits`, at the worst place."""
    wide = [limit.anywhere() for limit in limits if not limit.without(policy.measures)]
    wide = [limit for limit in wide if limit.loss(policy) <= LARGEST]
    distinct = [limit for i, limit in enumerate(wide) if limit.at not in [other.at for other in wide[:i]]]
    bounds = [
        {"reference": limit_json(limit), "rho": up_decimal(limit.loss(policy)), "queries": _by_query(policy, limit)}
        | _curve_json(policy, limit)
        for limit in distinct
    ]
    return {"version": VERSION, "prdp": version("prdp"), "orders": ORDERS.tolist(), "bounds": bounds}


def _curve_json(policy: PolicySum, limit: BudgetLimit) -> dict[str, Any]:
    """Return the divergences of all orders at a record; a firm's are those that its rho says."""
    if isinstance(limit.at, tuple):
        return {}
    curve = np.minimum(record_curve(policy, limit.at), float(LARGEST))
    return {"divergences": curve.tolist()}


def certified_of(release: str, data: Mapping[str, Any] | None) -> tuple[Certified, ...]:
    """Return the bounds that `certified_json` wrote; older entries hold none, or none of the curves.

    Raises StateError where a later version of prdp wrote them in a form that is unknown here.
    """
    if data is None:
        return ()
    if data["version"] != VERSION:
        raise StateError(f"release {release}: was charged by a later version of prdp: use that, or a later one")
    known = data.get("orders") == ORDERS.tolist()
    return tuple(
        Certified(
            at=limit_of(bound["reference"]).at,
            rho=exact(bound["rho"]),
            curve=np.array(bound["divergences"]) if known and "divergences" in bound else None,
        )
        for bound in data["bounds"]
    )


def _by_query(policy: PolicySum, limit: BudgetLimit) -> dict[str, float]:
    if isinstance(limit.at, tuple):
        distinct = dict.fromkeys(query.name for query in policy.queries)
        return {name: up_decimal(query_loss(policy, limit.at, name)) for name in distinct}
    return {query.label: up_decimal(query.loss_at(limit.at)) for query in policy.queries}
