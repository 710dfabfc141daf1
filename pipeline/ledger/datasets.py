"""Budgets of datasets and of families of datasets: what officers registered, as the ledger keeps it.

A family is a set of datasets of the same establishments, such as the vintages of a year: its limits bind the sum of all
their releases.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from pipeline.accounting.references import Limit
from pipeline.errors import StateError
from pipeline.ledger.database import ENTRIES
from pipeline.ledger.entries import BUDGETED, FINGERPRINTS, Act, Entry, entries
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.reservation import Difference, Reservation
from udfs.numbers.exact import as_json

INIT, CORRECT, RAISE = "init", "correct", "raise"
REFUSALS = 10  # of releases of a dataset because of its records, where no officer states another number
RECORD_RULES = ("duplicates", "bad_records")  # facts that older ledgers lack: see pipeline/ledger/datasets.py
WHAT_A_RECORD_IS = ("unit", "record", *RECORD_RULES)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The record of a registered dataset, or of a family, whose `facts` and `source` are None.

    Attributes:
        limits: they bind the accumulated loss, anywhere in the domain.
        facts: what a record is, unit, columns, measures, types and steps, as JSON.
        source: where the microdata lie, as text.
        family: the family that the dataset belongs to.
        refusals: how many releases may be refused because of their records.
        synthetic: it is of microdata that carry the mark of `prdp generate`, and takes no others.
        fingerprints: of its files' contents when it was registered, salted; None where they could not be read.
        since: the number of the entry that registered it.
        raised, reason: the number of the last act that stated the limits anew, and its reason.
    """

    name: str
    unit: str
    limits: Sequence[Limit]
    facts: Mapping[str, Any] | None = None
    source: str | None = None
    family: str | None = None
    refusals: int = REFUSALS
    synthetic: bool = False
    fingerprints: Mapping[str, Any] | None = None
    since: int = 0
    raised: int | None = None
    reason: str | None = None

    @property
    def kind(self) -> str:
        """Dataset or family, in a word."""
        return "family" if self.facts is None else "dataset"

    @property
    def stated(self) -> list[Limit]:
        """The limits, each with a label that says whose it is."""
        return [replace(limit, label=f"{limit.label} (the limit of {self.kind} {self.name})") for limit in self.limits]

    def to_json(self) -> dict[str, Any]:
        """The budget as `prdp ledger show --json` prints it."""
        return {
            "dataset": self.name,
            "state": "registered",
            "kind": self.kind,
            "unit": self.unit,
            "family": self.family,
            "limits": [{"at": limit.label, "rho": as_json(limit.rho)} for limit in self.limits],
            "refusals": None if self.facts is None else self.refusals,
            "synthetic": None if self.facts is None else self.synthetic,
            "reason": self.reason,
        }

    def act(self, verb: str, reason: str | None = None) -> Act:
        """Return the act that registers this budget (`init`, `correct`), or states its limits anew (`raise`)."""
        facts = {
            "act": verb,
            "kind": self.kind,
            "unit": self.unit,
            "facts": None if self.facts is None else dict(self.facts),
            "source": self.source,
            "family": self.family,
            "limits": [limit.to_json() for limit in self.limits],
            "refusals": self.refusals,
            "reason": reason,
        }
        if self.synthetic:
            facts["synthetic"] = True
        return Act(BUDGETED, self.name, "", None, facts)


def budget_step(before: Budget | None, entry: Entry) -> Budget:
    """Return the record after `entry`; raises StateError where it may not follow: facts are registered once."""
    facts = entry.facts
    limits = tuple(Limit.from_json(limit) for limit in facts["limits"])
    refusals = int(facts.get("refusals", REFUSALS))  # older entries state none
    if (facts["act"] == INIT and before is None) or (facts["act"] == CORRECT and before is not None):
        return Budget(
            name=entry.dataset,
            unit=facts["unit"],
            limits=limits,
            facts=facts["facts"],
            source=facts["source"],
            family=facts["family"],
            refusals=refusals,
            synthetic=bool(facts.get("synthetic")),
            fingerprints=facts.get(FINGERPRINTS),
            since=entry.seq,
        )
    if facts["act"] == RAISE and before is not None:
        kept = (before.unit, before.facts, before.source, before.family, before.synthetic)
        stated = (facts["unit"], facts["facts"], facts["source"], facts["family"], bool(facts.get("synthetic")))
        if stated != kept or not facts["reason"]:
            raise StateError(f"{before.kind} {before.name}: a new budget gives a reason, and changes the limits alone")
        return replace(before, limits=limits, refusals=refusals, raised=entry.seq, reason=facts["reason"])
    problem = "is registered already: state new limits with prdp ledger raise" if before else "is not registered"
    raise StateError(f"{facts['kind']} {entry.dataset}: {problem}")


def budgets_of(connection: Connection) -> dict[str, Budget]:
    """Return all registered datasets and families by name."""
    budgets: dict[str, Budget] = {}
    for entry in entries(connection, ENTRIES.c.event == BUDGETED):
        budgets[entry.dataset] = budget_step(budgets.get(entry.dataset), entry)
    return budgets


def with_joined(budgets: Mapping[str, Budget], states: Iterable[ReleaseState]) -> dict[str, Budget]:
    """Return the registered `budgets` and, without limits, the datasets that are not, but whose plans name a family.

    `states` are releases that count against a budget.
    """
    joined = (
        _joined(state.dataset, family, state.reservation["dataset_facts"])
        for state in states
        if (family := _family(state.reservation)) is not None
    )
    return {budget.name: budget for budget in joined} | dict(budgets)


def with_wanted(budgets: Mapping[str, Budget], kin: Mapping[str, Budget], wanted: Reservation) -> Mapping[str, Budget]:
    """Return `kin`, of the registered `budgets`, and the dataset of `wanted` where its plan makes it one of a family.

    Raises StateError where the family is not registered, does not fit, or is not the one that the dataset has.
    """
    family = _family({"plan": wanted.plan})
    known = kin.get(wanted.dataset)
    if known is not None and known.family != family and (family is not None or wanted.dataset not in budgets):
        raise StateError(
            f"dataset {wanted.dataset}: its family is {known.family or 'none'} in the ledger, but {family or 'none'} "
            "in the plan: change dataset.family, or name another dataset"
        )
    if known is not None or family is None:
        return kin
    joined = _joined(wanted.dataset, family, wanted.dataset_facts)
    _require_kin(kin, joined, family)
    return {**kin, joined.name: joined}


def _family(reservation: Mapping[str, Any]) -> str | None:
    family = reservation["plan"].get("dataset", {}).get("family")
    return None if family is None else str(family)


def _joined(dataset: str, family: str, facts: Mapping[str, Any]) -> Budget:
    return Budget(name=dataset, unit=facts["unit"], limits=(), facts=facts, family=family, since=sys.maxsize)


def fixed_by(state: ReleaseState, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `facts` that a release fixes for its dataset: all, or of a mere test what a record is.

    A test of records left out releases nothing of a measure or key: mending a plan may take other columns for them.
    """
    return {key: value for key, value in facts.items() if state.charges > 0 or key in WHAT_A_RECORD_IS}


def require_same_facts(dataset: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise StateError where a plan's facts are not the dataset's, naming the first key that differs."""
    other = Difference.between(_known(there, here), _known(here, there))
    if other is not None:
        raise StateError(
            f"dataset {dataset}: {other.key} is {other.there} in the ledger, but {other.here} in the plan: "
            "change the plan, or name another dataset"
        )


def require_new(budgets: Mapping[str, Budget], budget: Budget, kin: Mapping[str, Budget]) -> None:
    """Raise StateError where `budget` cannot be registered beside those that are, and those of a family, `kin`."""
    if budget.name in budgets:
        raise StateError(
            f"{budgets[budget.name].kind} {budget.name}: is registered already: state new limits with prdp ledger raise"
        )
    same = next((b for b in budgets.values() if same_microdata(b.source, budget.source)), None)
    if same is not None:
        raise StateError(f"dataset {budget.name}: its microdata {budget.source} are those of dataset {same.name}")
    if budget.name in kin and kin[budget.name].family != budget.family:
        raise StateError(
            f"dataset {budget.name}: its releases are of family {kin[budget.name].family}: register it as one of that"
        )
    if budget.family is not None:
        _require_kin(kin, budget, budget.family)


def require_correctable(budgets: Mapping[str, Budget], wanted: Budget, states: Iterable[ReleaseState]) -> None:
    """Raise StateError unless `wanted` may take the place of what is registered: nothing was released under it yet."""
    before = budgets.get(wanted.name)
    if before is None or before.kind != wanted.kind:
        raise StateError(f"{wanted.kind} {wanted.name}: is not registered: begin with prdp ledger init")
    named = {wanted.name, *members(budgets, wanted.name)}
    release = next((s.release for s in states if s.dataset in named and (s.tests or not s.refunded)), None)
    if release is not None:
        raise StateError(
            f"{wanted.kind} {wanted.name}: has a release, {release}: state limits anew by prdp ledger raise"
        )
    if before.unit != wanted.unit and len(named) > 1:
        raise StateError(f"family {wanted.name}: its datasets have the unit {before.unit}: correct them first")


def require_fits_releases(budget: Budget, states: Sequence[ReleaseState]) -> None:
    """Raise StateError where earlier releases under the name of `budget` make it something else.

    Also where its microdata were released under another name: its limits would not count what that cost.
    """
    for state in states:
        source = state.reservation.get("source")
        if state.dataset != budget.name:
            if state.counts and same_microdata(budget.source, source):
                raise StateError(
                    f"{budget.kind} {budget.name}: its microdata {budget.source} were released as dataset "
                    f"{state.dataset} by {state.release}, from {source}: register them under that name"
                )
        elif budget.facts is None:
            raise StateError(f"family {budget.name}: is the name of a dataset: choose another name")
        elif state.counts:
            facts = state.reservation["dataset_facts"]
            require_same_facts(budget.name, fixed_by(state, budget.facts), fixed_by(state, facts))


def require_same_record(before: Budget | None, wanted: Budget) -> Budget:
    """Return `wanted` with the facts as registered; StateError where it is not `before` with other limits."""
    if before is None:
        raise StateError(f"{wanted.kind} {wanted.name}: is not registered: begin with prdp ledger init")
    keys = ("kind", "unit", "source", "family", "synthetic")
    mine, known = ({key: getattr(budget, key) for key in keys} for budget in (wanted, before))
    there, here = before.facts or {}, wanted.facts or {}
    other = Difference.between(known | {"dataset": _known(there, here)}, mine | {"dataset": _known(here, there)})
    if other is not None:
        raise StateError(
            f"{before.kind} {before.name}: {other.key} is {other.there} in the ledger, but {other.here} in the "
            "budget's file: only limits are stated anew"
        )
    return replace(wanted, facts=before.facts)


def same_microdata(one: str | None, other: str | None) -> bool:
    """Return whether one source is the other, or lies in it: a part of the microdata holds the same records."""
    if one is None or other is None:
        return False
    here, there = (source.rstrip("/") + "/" for source in (one, other))
    return here.startswith(there) or there.startswith(here)


def members(budgets: Mapping[str, Budget], family: str) -> list[str]:
    """Return the datasets of a family."""
    return [budget.name for budget in budgets.values() if budget.family == family]


def _known(facts: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return `facts` without what an older ledger does not know of the `others`."""
    return {key: value for key, value in facts.items() if key in others or key not in RECORD_RULES}


def _require_kin(budgets: Mapping[str, Budget], budget: Budget, name: str) -> None:
    family = budgets.get(name)
    if family is None or family.kind != "family":
        raise StateError(f"dataset {budget.name}: its family {name} is not registered: register it first")
    if family.unit != budget.unit:
        raise StateError(f"dataset {budget.name}: its unit is {budget.unit}, but {family.unit} in family {name}")
    mine: Mapping[str, Any] = (budget.facts or {})["measures"]
    for kin in (budgets[each] for each in members(budgets, name)):
        theirs: Mapping[str, Any] = (kin.facts or {})["measures"]
        for measure in sorted(mine.keys() & theirs.keys()):
            # A column may be called otherwise in another year; what its numbers mean may not differ.
            if any(mine[measure][key] != theirs[measure][key] for key in ("type", "step")):
                raise StateError(
                    f"dataset {budget.name}: measure {measure} has another type or step in dataset {kin.name} "
                    f"of family {name}: give it another name"
                )


# What a record is must agree wherever losses are added up: over a dataset's releases, and over a family's datasets.
#
# Older ledgers do not hold it among a dataset's facts; there the resolved plans of the releases that count state it,
# and where they do not either, the next release does.


def rules_of(facts: Mapping[str, Any] | None, plan: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what `facts`, or else the resolved plan, state of what a record is; no key where neither does."""
    known = {**(plan or {}).get("dataset", {}), **(facts or {})}
    return {key: known[key] for key in RECORD_RULES if key in known}


def silent_kin(budgets: Mapping[str, Budget], dataset: str) -> list[str]:
    """Return the other datasets of a dataset's family of which only releases state what a record is."""
    return [name for name in _kin(budgets, dataset) if len(rules_of(budgets[name].facts)) < len(RECORD_RULES)]


def require_like_records(
    dataset: str,
    rules: Mapping[str, Any],
    budgets: Mapping[str, Budget],
    states: Iterable[ReleaseState],
    where: str,
) -> None:
    """Raise StateError where `rules`, as `where` has them, are not those of the dataset's releases or of its family.

    Also where its releases, of an older version, disagree with each other.
    """
    released: dict[str, list[tuple[str, dict[str, Any]]]] = {}  # dataset → (release, its rules)
    for state in states:
        if state.counts:
            its = rules_of(state.reservation["dataset_facts"], state.reservation["plan"])
            released.setdefault(state.dataset, []).append((state.release, its))
    for key in (key for key in RECORD_RULES if key in rules):
        _require_own(dataset, key, rules[key], released.get(dataset, []), where)
        for name in _kin(budgets, dataset):
            theirs = [rules_of(budgets[name].facts), *(its for _, its in released.get(name, []))]
            other = next((its[key] for its in theirs if its.get(key, rules[key]) != rules[key]), None)
            if other is not None:
                raise StateError(
                    f"dataset {dataset}: {key} is {rules[key]}, but {other} in dataset {name} "
                    f"of family {budgets[name].family}: "
                    "losses of different records do not add up"
                )


def _kin(budgets: Mapping[str, Budget], dataset: str) -> list[str]:
    family = budgets[dataset].family if dataset in budgets else None
    return [name for name in members(budgets, family) if name != dataset] if family is not None else []


def _require_own(dataset: str, key: str, value: object, released: list[tuple[str, dict[str, Any]]], where: str) -> None:
    first: dict[object, str] = {}  # value → the first release that has it
    for release, rules in released:
        if key in rules:
            first.setdefault(rules[key], release)
    if len(first) > 1:
        (one, here), (other, there), *_ = first.items()
        raise StateError(
            f"dataset {dataset}: {key} is {one} in release {here}, but {other} in release {there}: "
            "their losses are of different records and do not add up: name another dataset"
        )
    if first and value not in first:
        raise StateError(
            f"dataset {dataset}: {key} is {next(iter(first))} in the ledger, but {value} in {where}: "
            f"change {where}, or name another dataset"
        )
