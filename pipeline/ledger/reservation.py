"""Limits in the form in which the ledger keeps them."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from typing import Any

import numpy as np

from pipeline.accounting.accountant import BudgetLimit, Certified, Charged
from pipeline.accounting.groups import Row, query_loss
from pipeline.accounting.policy import ORDERS, PolicySum, record_curve
from pipeline.canonical import canonical_json
from pipeline.errors import StateError
from pipeline.ledger.fold import PUBLIC, ReleaseState
from udfs.numbers.exact import as_json, exact, up_decimal


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


# Bounds on a release's losses as they were certified when it was charged, so that no later version lowers them.


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


# What a release reserves before any record is read, and its form in the ledger.


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The frozen facts of a release, all known before any record is read.

    `dataset_facts` (what a record is, unit, measures with types and steps) are JSON and the same for all releases of
    `dataset`;
    `digest` and `plan` are the resolved plan's; `policy` is what one draw is charged; `limits` bind the dataset's
    accumulated loss; `out` is the absolute output place; `code` the digest of the code; `source` where the microdata
    lie; `hold`: nothing is published before an officer approves.
    """

    release: str
    supersedes: str | None
    dataset: str
    dataset_facts: Mapping[str, Any]
    digest: str
    plan: Mapping[str, Any]
    policy: PolicySum
    limits: Sequence[BudgetLimit]
    out: str
    code: str
    staging: str | None = None  # where its totals and attempts are staged at first; None: beside the ledger
    source: str | None = None
    hold: bool = False

    def facts(self, stated: Sequence[BudgetLimit] = ()) -> dict[str, Any]:
        """The reservation as JSON, as the ledger keeps it, with bounds at the references of the limits `stated`."""
        elsewhere = {} if self.staging is None else {"staging": self.staging}
        return elsewhere | {
            "supersedes": self.supersedes,
            "dataset_facts": dict(self.dataset_facts),
            "digest": self.digest,
            "plan": dict(self.plan),
            "policy": self.policy.to_json(),
            "limits": [limit_json(limit) for limit in self.limits],
            "out": self.out,
            "code": self.code,
            "source": self.source,
            "hold": self.hold,
            "certified": certified_json(self.policy, [*self.limits, *stated]),
        }


def limits_of(state: ReleaseState) -> tuple[BudgetLimit, ...]:
    """Return the limits under which the release was reserved."""
    return tuple(limit_of(facts) for facts in state.reservation["limits"])


def charged(state: ReleaseState, times: int) -> Charged:
    """Return the policy that was reserved, counted `times` times, as the accountant takes it."""
    known = certified_of(state.release, state.reservation.get("certified"))
    return Charged(state.release, PolicySum.from_json(state.reservation["policy"]), times, known)


def require_same(state: ReleaseState, wanted: Reservation) -> None:
    """Raise StateError where `wanted` is not what was reserved under its name, naming what differs."""
    for name, here in (("digest", wanted.digest), ("out", wanted.out)):
        there = state.reservation[name]
        if there != here:
            told = {"digest": "another plan (digest)", "out": "another output place"}[name]
            raise StateError(
                f"release {state.release}: is {state.status} with {told}: {there}, not {here}: "
                "go back to that, or choose another release name"
            )
    unfinished = state.status in ("reserved", "drawn")
    reserved_from = state.reservation.get("source")  # older entries name none
    if unfinished and reserved_from is not None and reserved_from != wanted.source:
        raise StateError(
            f"release {state.release}: is {state.status} for the microdata {reserved_from}, not {wanted.source}: "
            "go back to those, or abort and reserve anew"
        )
    # The noise must be drawn under the policy that was charged, so a new version may not finish what is undrawn.
    if unfinished and canonical_json(state.reservation["policy"]) != canonical_json(wanted.policy.to_json()):
        raise StateError(
            f"release {state.release}: this version of prdp charges the plan another policy than was reserved: "
            "finish with the version that reserved, or abort and choose another release name"
        )


def require_superseded(wanted: Reservation, others: Sequence[ReleaseState]) -> None:
    """Raise StateError where what `wanted` supersedes is none of the dataset's `others` that were published."""
    published = {state.release for state in others if state.status in (*PUBLIC, "withdrawn")}
    if wanted.supersedes is not None and wanted.supersedes not in published:
        raise StateError(
            f"release {wanted.release}: supersedes {wanted.supersedes}, which is no published release "
            f"of dataset {wanted.dataset}: correct the name"
        )


def difference(there: Any, here: Any, key: str = "") -> tuple[str, str, str] | None:
    """Return the first key in which two JSON values differ, with what is there and here; None where they are equal."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in sorted({*there, *here}):
            below = f"{key}.{name}" if key else name
            found = difference(there.get(name, "absent"), here.get(name, "absent"), below)
            if found is not None:
                return found
        return None
    return None if there == here else (key, _told(there), _told(here))


def _told(value: Any) -> str:
    return "present" if isinstance(value, Mapping) else str(value)
