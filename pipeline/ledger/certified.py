"""Bounds on a release's losses as they were certified when it was charged, so that no later version lowers them."""

import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib.metadata import version
from typing import Any

from pipeline.accounting.accountant import BudgetLimit
from pipeline.accounting.firm import Firm, query_loss
from pipeline.accounting.policy import PolicySum, Reference
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
        for limit in distinct
    ]
    return {"version": VERSION, "prdp": version("prdp"), "bounds": bounds}


def certified_of(release: str, data: Mapping[str, Any] | None) -> tuple[tuple[Reference | Firm, Fraction], ...]:
    """Return the bounds that `certified_json` wrote, by reference; older entries hold none.

    Raises StateError where a later version of prdp wrote them in a form that is unknown here.
    """
    if data is None:
        return ()
    if data["version"] != VERSION:
        raise StateError(f"release {release}: was charged by a later version of prdp: use that, or a later one")
    return tuple((limit_of(bound["reference"]).at, exact(bound["rho"])) for bound in data["bounds"])


def _by_query(policy: PolicySum, limit: BudgetLimit) -> dict[str, float]:
    if isinstance(limit.at, tuple):
        distinct = dict.fromkeys(query.name for query in policy.queries)
        return {name: up_decimal(query_loss(policy, limit.at, name)) for name in distinct}
    return {query.label: up_decimal(query.loss_at(limit.at)) for query in policy.queries}
