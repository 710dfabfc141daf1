"""What a release reserves before any record is read, and its form in the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.accounting.accountant import BudgetLimit, Charged
from pipeline.accounting.policy import PolicySum
from pipeline.canonical import canonical_json
from pipeline.errors import StateError
from pipeline.ledger.certified import certified_json, certified_of
from pipeline.ledger.fold import PUBLIC, ReleaseState
from pipeline.ledger.limits import limit_json, limit_of


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
