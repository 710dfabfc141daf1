"""What a release reserves before any record is read, and its form in the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.accounting.accountant import BudgetLimit, Charged
from pipeline.accounting.firm import Row
from pipeline.accounting.policy import PolicySum
from pipeline.canonical import canonical_json
from pipeline.errors import StateError
from pipeline.ledger.fold import ReleaseState
from udfs.exact import as_json, exact


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The frozen facts of a release, all known before any record is read.

    `dataset_facts` (unit, measures with types and steps) are JSON and the same for all releases of `dataset`;
    `digest` and `plan` are the resolved plan's; `policy` is what one draw is charged; `limits` bind the dataset's
    accumulated loss; `out` is the absolute output place; `code` the digest of the code.
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

    def facts(self) -> dict[str, Any]:
        """The reservation as JSON, as the ledger keeps it."""
        elsewhere = {} if self.staging is None else {"staging": self.staging}
        return elsewhere | {
            "supersedes": self.supersedes,
            "dataset_facts": dict(self.dataset_facts),
            "digest": self.digest,
            "plan": dict(self.plan),
            "policy": self.policy.to_json(),
            "limits": [_limit_json(limit) for limit in self.limits],
            "out": self.out,
            "code": self.code,
        }


def limits_of(state: ReleaseState) -> tuple[BudgetLimit, ...]:
    """Return the limits under which the release was reserved."""
    return tuple(_limit(facts) for facts in state.reservation["limits"])


def charged(state: ReleaseState, times: int) -> Charged:
    """Return the policy that was reserved, counted `times` times, as the accountant takes it."""
    return Charged(state.release, PolicySum.from_json(state.reservation["policy"]), times)


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
    # The noise must be drawn under the policy that was charged, so a new version may not finish what is undrawn.
    unfinished = state.status in ("reserved", "drawn")
    if unfinished and canonical_json(state.reservation["policy"]) != canonical_json(wanted.policy.to_json()):
        raise StateError(
            f"release {state.release}: this version of prdp charges the plan another policy than was reserved: "
            "finish with the version that reserved, or abort and choose another release name"
        )


def require_dataset(facts: Mapping[str, Any], wanted: Reservation) -> None:
    """Raise StateError where `wanted` disagrees with the dataset's `facts`, naming the first key that differs."""
    found = _difference(facts, wanted.dataset_facts, "")
    if found is not None:
        key, there, here = found
        raise StateError(
            f"dataset {wanted.dataset}: {key} is {there} in the ledger, but {here} in the plan: "
            "change the plan, or name another dataset"
        )


def _difference(there: Any, here: Any, key: str) -> tuple[str, str, str] | None:
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        for name in sorted({*there, *here}):
            below = f"{key}.{name}" if key else name
            found = _difference(there.get(name, "absent"), here.get(name, "absent"), below)
            if found is not None:
                return found
        return None
    return None if there == here else (key, _told(there), _told(here))


def _told(value: Any) -> str:
    return "present" if isinstance(value, Mapping) else str(value)


def _limit_json(limit: BudgetLimit) -> dict[str, Any]:
    if isinstance(limit.at, tuple):
        return {"label": limit.label, "firm": [row.to_json() for row in limit.at], "rho": as_json(limit.rho)}
    return {
        "label": limit.label,
        "at": {measure: as_json(value) for measure, value in limit.at.items()},
        "rho": as_json(limit.rho),
        "places": None if limit.places is None else [sorted(place) for place in limit.places],
    }


def _limit(facts: Mapping[str, Any]) -> BudgetLimit:
    if "firm" in facts:
        return BudgetLimit(tuple(Row.from_json(row) for row in facts["firm"]), exact(facts["rho"]), facts["label"])
    places = facts["places"]
    return BudgetLimit(
        at={measure: exact(value) for measure, value in facts["at"].items()},
        rho=exact(facts["rho"]),
        label=facts["label"],
        places=None if places is None else tuple(frozenset(place) for place in places),
    )
