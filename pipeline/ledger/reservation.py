"""What a release reserves before any record is read, the bounds certified with it, and their form in the ledger."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.metadata import version
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from pipeline.accounting.accountant import NAME, Certified, Charged, LeftOutTest, left_out_test_alone
from pipeline.accounting.convert import ORDERS
from pipeline.accounting.policy import PolicySum, measures_of
from pipeline.accounting.references import Limit, Reference
from pipeline.base.canonical import digest
from pipeline.base.errors import StateError
from pipeline.ledger.fold import ReleaseState
from udfs.numbers.exact import exact, up_decimal

VERSION = 1  # of the form in which policies and bounds are kept
RECORD_RULES = ("duplicates", "bad_records")  # facts that older ledgers lack: see pipeline/ledger/datasets.py
LARGEST = Fraction(sys.float_info.max)  # what is lost beyond it is in no limit's reach

LeastLoss = Callable[[Reference], float]  # what several records lose in a placement that the domain allows


def certified_json(policy: PolicySum, limits: Sequence[Limit], least_loss: LeastLoss | None = None) -> dict[str, Any]:
    """Return upper bounds of the policy and of each query at every reference of `limits`, at the worst cells.

    They are certified when a release is charged, so that no later version lowers them. Beside those of several records
    stands what was found that they lose, which no bound can be below.
    """
    anywhere = {limit.at.anywhere(): limit.anywhere() for limit in reversed(limits)}  # the first label of each
    bounds = []
    for reference in dict.fromkeys(limit.at.anywhere() for limit in limits):
        if reference.missing(policy.measures) or (loss := policy.loss_at(reference)) > LARGEST:
            continue
        bound = {
            "reference": anywhere[reference].to_json(),
            "rho": up_decimal(loss),
            "queries": _by_query(policy, reference),
        }
        if least_loss is not None and len(reference.records) > 1:
            bound["found"] = least_loss(reference)
        curve = np.minimum(policy.curve_at(reference), float(LARGEST)).tolist()
        bounds.append(bound | {"divergences": curve})
    return {"version": VERSION, "prdp": version("prdp"), "orders": ORDERS.tolist(), "bounds": bounds}


def _by_query(policy: PolicySum, reference: Reference) -> dict[str, float]:
    if reference.listed:
        names = dict.fromkeys(query.name for query in policy.queries)
        return {name: up_decimal(policy.query_loss_at(reference, name)) for name in names}
    (record,) = reference.records
    return {query.label: up_decimal(query.mechanism.loss_at(query.influence(record))) for query in policy.queries}


def certified_of(release: str, data: Mapping[str, Any] | None) -> tuple[Certified, ...]:
    """Return the bounds of ρ that `certified_json` wrote; older entries hold none.

    Raises StateError where a later version of prdp wrote them in a form that is unknown here.
    """
    if data is None:
        return ()
    if data["version"] != VERSION:
        raise StateError(f"release {release}: was charged by a later version of prdp: use that, or a later one")
    return tuple(
        Certified(Limit.from_json(bound["reference"]).at, exact(bound["rho"]), exact(bound.get("found", 0)))
        for bound in data["bounds"]
    )


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The frozen facts of a release, all known before any record is read."""

    release: str
    supersedes: str | None
    dataset: str
    dataset_facts: Mapping[str, Any]  # what a record is, unit, measures, types, steps; the same for all of `dataset`
    digest: str  # of the resolved plan
    plan: Mapping[str, Any]
    policy: PolicySum  # what one draw is charged, with the test
    limits: Sequence[Limit]  # those of the plan, which bind the dataset's accumulated loss
    out: str  # the absolute output location
    code: str  # the digest of the code
    staging: str | None = None  # where its totals and attempts are staged at first; None: beside the ledger
    source: str | None = None  # where the microdata lie
    fingerprints: Sequence[str] = ()  # of their files' contents
    synthetic: bool | None = None  # whether they carry the mark of `prdp generate`, where that can be known
    hold: bool = False  # nothing is published before an officer approves
    test: LeftOutTest | None = None  # of records left out; nothing is drawn before it is passed
    least_loss: LeastLoss | None = None  # what several records are found to lose; None: nothing is looked for

    def facts(self, stated: Sequence[Limit] = ()) -> dict[str, Any]:
        """Return the reservation as the ledger keeps it, with bounds also at the references of the limits `stated`."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # curves take long, most of it without Python's lock
            list(pool.map(attrgetter("loss_curve"), {query.mechanism for query in self.policy.queries}))
        test = None if self.test is None else self.test.to_json()
        known = {"staging": self.staging, "left_out_test": test, "synthetic": self.synthetic}
        return {name: value for name, value in known.items() if value is not None} | {
            "supersedes": self.supersedes,
            "dataset_facts": dict(self.dataset_facts),
            "digest": self.digest,
            "plan": dict(self.plan),
            "policy": self.policy.to_json(),
            "cells": self.policy.cells_json(),
            "limits": [limit.to_json() for limit in self.limits],
            "out": self.out,
            "code": self.code,
            "source": self.source,
            "hold": self.hold,
            "certified": certified_json(self.policy, [*self.limits, *stated], self.least_loss),
        }


class Origin(NamedTuple):
    """Where the microdata of a reservation lie, and the family that its plan names; None: not known, or none."""

    source: str | None
    family: str | None

    @classmethod
    def of(cls, reservation: Mapping[str, Any]) -> "Origin":
        """Return what the facts of a reservation say."""
        return cls(reservation.get("source"), reservation.get("plan", {}).get("dataset", {}).get("family"))


def in_brief(reservation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what other releases need of the facts of a reservation, but its policy; many say the same."""
    kept = ("dataset_facts", "limits", "synthetic", "source", "out", "staging")
    rules = reservation.get("plan", {}).get("dataset", {})
    plan = {"dataset": {key: rules[key] for key in (*RECORD_RULES, "family") if key in rules}}
    known = {key: reservation[key] for key in kept if key in reservation}
    return known | {"plan": plan, "measures": sorted(measures_of(reservation["policy"]))}


def cost_digest(reservation: Mapping[str, Any]) -> str:
    """Return the digest of all that says what one charge costs: the policy, its cells, the certified bounds."""
    return digest([reservation.get(key) for key in ("policy", "cells", "certified")])


def limits_of(state: ReleaseState) -> tuple[Limit, ...]:
    """Return the limits under which the release was reserved."""
    return tuple(Limit.from_json(facts) for facts in state.reservation["limits"])


def charged(state: ReleaseState, times: int) -> Charged:
    """Return the policy that was reserved, counted `times` times, and tests, as the accountant takes them."""
    policy = PolicySum.from_json(state.reservation["policy"], state.reservation.get("cells"))
    known = certified_of(state.release, state.reservation.get("certified"))
    return Charged(state.release, policy, times, known, tests_of(state))


def tests_of(state: ReleaseState | None) -> tuple[Charged, ...]:
    """Return the tests of records left out that are charged by themselves."""
    return () if state is None else tuple(_test(state.release, test.reservation) for test in state.tests_alone)


def with_another_test(state: ReleaseState) -> Charged:
    """Return all that a release is charged, and one more test of records left out."""
    now = charged(state, state.charges)
    return replace(now, tests=(*now.tests, _test(state.release, state.reservation)))


def _test(release: str, reservation: Mapping[str, Any]) -> Charged:
    policy = left_out_test_alone(PolicySum.from_json(reservation["policy"], reservation.get("cells")))
    stated = (reservation.get("certified") or {"bounds": []})["bounds"]
    known = tuple(Certified(Limit.from_json(b["reference"]).at, exact(b["queries"][NAME])) for b in stated)
    return Charged(release, policy, 1, known)


@dataclass(frozen=True)
class Difference:
    """The first key in which two JSON values differ, such as measures.payroll.step, and what each has, in words."""

    key: str
    there: str
    here: str

    @classmethod
    def between(cls, there: Any, here: Any, key: str = "") -> "Difference | None":
        """Return the first difference, by the names of keys; None where the values are equal."""
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            pairs = ((name, there.get(name, "absent"), here.get(name, "absent")) for name in sorted({*there, *here}))
            differences = (cls.between(one, other, f"{key}.{name}" if key else name) for name, one, other in pairs)
            return next(filter(None, differences), None)
        words = ("present" if isinstance(value, Mapping) else str(value) for value in (there, here))
        return None if there == here else cls(key, *words)
