"""What a release reserves before any record is read, the bounds certified with it, and their form in the ledger."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.metadata import version
from typing import Any

import numpy as np

from pipeline.accounting.accountant import Certified, Charged
from pipeline.accounting.convert import ORDERS
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import Limit, Reference
from pipeline.canonical import canonical_json
from pipeline.errors import StateError
from pipeline.ledger.fold import PUBLIC, ReleaseState
from udfs.numbers.exact import exact, up_decimal

VERSION = 1  # of the form in which policies and bounds are kept
LARGEST = Fraction(sys.float_info.max)  # what is lost beyond it is in no limit's reach


def certified_json(policy: PolicySum, limits: Sequence[Limit]) -> dict[str, Any]:
    """Return upper bounds of the policy and of each query at every reference of `limits`, at the worst cells.

    They are certified when a release is charged, so that no later version lowers them.
    """
    anywhere = {limit.at.anywhere(): limit.anywhere() for limit in reversed(limits)}  # the first label of each
    bounds = []
    for at in dict.fromkeys(limit.at.anywhere() for limit in limits):
        if at.missing(policy.measures) or (loss := policy.loss_at(at)) > LARGEST:
            continue
        bound = {"reference": anywhere[at].to_json(), "rho": up_decimal(loss), "queries": _by_query(policy, at)}
        curve = policy.curve_at(at)
        if curve is not None:
            bound["divergences"] = np.minimum(curve, float(LARGEST)).tolist()
        bounds.append(bound)
    return {"version": VERSION, "prdp": version("prdp"), "orders": ORDERS.tolist(), "bounds": bounds}


def _by_query(policy: PolicySum, at: Reference) -> dict[str, float]:
    if at.listed:
        names = dict.fromkeys(query.name for query in policy.queries)
        return {name: up_decimal(policy.query_loss_at(at, name)) for name in names}
    (record,) = at.records
    return {query.label: up_decimal(query.mechanism.loss_at(query.influence(record))) for query in policy.queries}


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
            at=Limit.from_json(bound["reference"]).at,
            rho=exact(bound["rho"]),
            curve=np.array(bound["divergences"]) if known and "divergences" in bound else None,
        )
        for bound in data["bounds"]
    )


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
    limits: Sequence[Limit]
    out: str
    code: str
    staging: str | None = None  # where its totals and attempts are staged at first; None: beside the ledger
    source: str | None = None
    hold: bool = False

    def facts(self, stated: Sequence[Limit] = ()) -> dict[str, Any]:
        """The reservation as JSON, as the ledger keeps it, with bounds at the references of the limits `stated`."""
        elsewhere = {} if self.staging is None else {"staging": self.staging}
        return elsewhere | {
            "supersedes": self.supersedes,
            "dataset_facts": dict(self.dataset_facts),
            "digest": self.digest,
            "plan": dict(self.plan),
            "policy": self.policy.to_json(),
            "limits": [limit.to_json() for limit in self.limits],
            "out": self.out,
            "code": self.code,
            "source": self.source,
            "hold": self.hold,
            "certified": certified_json(self.policy, [*self.limits, *stated]),
        }


def limits_of(state: ReleaseState) -> tuple[Limit, ...]:
    """Return the limits under which the release was reserved."""
    return tuple(Limit.from_json(facts) for facts in state.reservation["limits"])


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
