"""Budgets of datasets and of families of datasets: what officers registered, as the ledger keeps it.

A family is a set of datasets of the same establishments, such as the vintages of a year: its limits bind the sum of all
their releases.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.accounting.references import Limit
from pipeline.base.errors import StateError
from pipeline.ledger.database import Connection
from pipeline.ledger.entries import BUDGETED, FINGERPRINTS, Act, Entry, entries
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.reservation import RECORD_RULES, Difference, Reservation
from udfs.numbers.exact import as_json

INIT, CORRECT, RAISE = "init", "correct", "raise"
REFUSALS = 10  # of releases of a dataset, or family, because of its records, where no officer states another number
WHAT_A_RECORD_IS = ("unit", "record", *RECORD_RULES)
OF_OFFICERS = "the budget's file"  # where officers state what they register


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The record of a registered dataset, or of a family, whose `facts` and `source` are None."""

    name: str
    unit: str
    limits: Sequence[Limit]  # of the accumulated loss, anywhere in the domain
    facts: Mapping[str, Any] | None = None  # what a record is, unit, columns, measures, types and steps, as JSON
    source: str | None = None  # where the microdata lie
    family: str | None = None  # that the dataset belongs to
    refusals: int = REFUSALS  # because of records that its releases, of a family those of all members, may have
    synthetic: bool = False  # its microdata carry the mark of `prdp generate`: it takes no others
    fingerprints: Mapping[str, Any] | None = None  # of its files when it was registered, salted, if they were read
    since: int = 0  # the number of the entry that registered it
    raised: int | None = None  # the number of the last act that stated the limits anew
    reason: str | None = None  # of that act

    @property
    def kind(self) -> str:
        """Dataset or family, in a word."""
        return "family" if self.facts is None else "dataset"

    @property
    def stated(self) -> list[Limit]:
        """The limits, each with a label that says whose it is."""
        act = raising(self.name)
        label = f"(the limit of {self.kind} {self.name})"
        return [replace(limit, label=f"{limit.label} {label}", raised_by=act) for limit in self.limits]

    def to_json(self) -> dict[str, Any]:
        """The budget as `prdp ledger show --json` prints it."""
        return {
            "dataset": self.name,
            "state": "registered",
            "kind": self.kind,
            "unit": self.unit,
            "family": self.family,
            "limits": [{"at": limit.label, "rho": as_json(limit.rho)} for limit in self.limits],
            "refusals": self.refusals,
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


def raising(name: str) -> str:
    """Return the command by which an officer states limits anew."""
    return f"prdp ledger raise {name} --budget FILE --reason TEXT"


def registering(name: str) -> str:
    """Return the command by which an officer registers a dataset or family."""
    return f"prdp ledger init {name} --budget FILE"


def budget_step(before: Budget | None, entry: Entry) -> Budget:
    """Return the record after `entry`; raises StateError where it may not follow: facts are registered once."""
    facts = entry.facts
    limits = tuple(Limit.from_json(limit) for limit in facts["limits"])
    refusals = int(facts.get("refusals", REFUSALS))  # older entries state none
    stated = {key: facts[key] for key in ("unit", "facts", "source", "family")}
    stated["synthetic"] = bool(facts.get("synthetic"))
    if (facts["act"] == INIT and before is None) or (facts["act"] == CORRECT and before is not None):
        files = facts.get(FINGERPRINTS)
        return Budget(
            name=entry.dataset, limits=limits, refusals=refusals, fingerprints=files, since=entry.seq, **stated
        )
    if facts["act"] == RAISE and before is not None:
        if any(getattr(before, key) != value for key, value in stated.items()) or not facts["reason"]:
            raise StateError(f"{before.kind} {before.name}: a new budget gives a reason, and changes the limits alone")
        return replace(before, limits=limits, refusals=refusals, raised=entry.seq, reason=facts["reason"])
    raise _registered(facts["kind"], entry.dataset) if before else _unregistered(facts["kind"], entry.dataset)


def _registered(kind: str, name: str) -> StateError:
    return StateError(f"{kind} {name}: is registered already: state new limits by {raising(name)}")


def _unregistered(kind: str, name: str) -> StateError:
    return StateError(f"{kind} {name}: is not registered: begin with {registering(name)}")


def budgets_of(connection: Connection) -> dict[str, Budget]:
    """Return all registered datasets and families by name."""
    budgets: dict[str, Budget] = {}
    for entry in entries(connection, "event = ?", BUDGETED):
        budgets[entry.dataset] = budget_step(budgets.get(entry.dataset), entry)
    return budgets


def with_joined(budgets: Mapping[str, Budget], states: Iterable[ReleaseState]) -> dict[str, Budget]:
    """Return the `budgets` and, without limits, the datasets of charged releases whose plans name a family."""
    joined = (
        _joined(state.dataset, family, state.reservation["dataset_facts"])
        for state in states
        if (family := _family(state.reservation)) is not None
    )
    return {budget.name: budget for budget in joined} | dict(budgets)


def with_wanted(
    budgets: Mapping[str, Budget], kin: Mapping[str, Budget], wanted: Reservation, mend: str = ""
) -> Mapping[str, Budget]:
    """Return `kin`, and the dataset of `wanted` where its plan makes it one of a family, which must fit."""
    family = _family({"plan": wanted.plan})
    known = kin.get(wanted.dataset)
    if known is not None and known.family != family and (family is not None or wanted.dataset not in budgets):
        raise StateError(
            f"dataset {wanted.dataset}: its family is {known.family or 'none'} in the ledger, but {family or 'none'} "
            f"in the plan: change dataset.family there{mend}"
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


def require_same_facts(
    dataset: str, there: Mapping[str, Any], here: Mapping[str, Any], where: str, mend: str = ""
) -> None:
    """Raise StateError where the facts in `where` are not the dataset's, naming the first key that differs."""
    other = Difference.between(_known(there, here), _known(here, there))
    if other is not None:
        raise StateError(
            f"dataset {dataset}: {other.key} is {other.there} in the ledger, but {other.here} in {where}: "
            f"change {where}{mend}"
        )


def require_new(budgets: Mapping[str, Budget], budget: Budget, kin: Mapping[str, Budget]) -> None:
    """Raise StateError where `budget` cannot be registered beside those that are, and those of a family, `kin`."""
    if budget.name in budgets:
        raise _registered(budgets[budget.name].kind, budget.name)
    same = next((b for b in budgets.values() if same_microdata(b.source, budget.source)), None)
    if same is not None:
        raise StateError(f"dataset {budget.name}: its microdata {budget.source} are those of dataset {same.name}")
    if budget.name in kin and kin[budget.name].family != budget.family:
        raise StateError(
            f"dataset {budget.name}: its releases are of family {kin[budget.name].family}: register it as one of that"
        )
    if budget.family is not None:
        _require_kin(kin, budget, budget.family)


def mending(registered: Budget | None, states: Iterable[ReleaseState]) -> str:
    """Return, as the end of a message, how what is registered can be changed in place of a plan; "" if it cannot."""
    if registered is None or _first_release(states) is not None:
        return ""
    act = f"prdp ledger correct {registered.name} --budget FILE"
    return f"; or, as nothing was released under it yet, have an officer register it anew: {act}"


def _first_release(states: Iterable[ReleaseState]) -> str | None:
    return next((state.release for state in states if state.tests or not state.refunded), None)


def require_correctable(budgets: Mapping[str, Budget], wanted: Budget, states: Iterable[ReleaseState]) -> None:
    """Raise StateError unless `wanted` may take the place of what is registered: nothing was released under it yet."""
    before = budgets.get(wanted.name)
    if before is None or before.kind != wanted.kind:
        raise _unregistered(wanted.kind, wanted.name)
    named = {wanted.name, *members(budgets, wanted.name)}
    release = _first_release(state for state in states if state.dataset in named)
    if release is not None:
        raise StateError(
            f"{wanted.kind} {wanted.name}: has a release, {release}: only its limits are stated anew, by "
            f"{raising(wanted.name)}"
        )
    if before.unit != wanted.unit and len(named) > 1:
        raise StateError(f"family {wanted.name}: its datasets have the unit {before.unit}: correct them first")


def require_fits_releases(budget: Budget, states: Sequence[ReleaseState]) -> None:
    """Raise StateError where earlier releases of its name are of something else, or of its microdata under another."""
    for state in states:
        source = state.reservation.get("source")
        if state.dataset != budget.name:
            if state.counts and same_microdata(budget.source, source):
                raise StateError(
                    f"{budget.kind} {budget.name}: its microdata {budget.source} were released as dataset "
                    f"{state.dataset} by {state.release}, from {source}: register them under that name"
                )
        elif budget.facts is None:
            raise StateError(f"family {budget.name}: has the name of a dataset: give the family one of its own")
        elif state.counts:
            facts = state.reservation["dataset_facts"]
            require_same_facts(budget.name, fixed_by(state, facts), fixed_by(state, budget.facts), OF_OFFICERS)


def require_same_record(before: Budget | None, wanted: Budget) -> Budget:
    """Return `wanted` with the facts as registered; StateError where it is not `before` with other limits."""
    if before is None:
        raise _unregistered(wanted.kind, wanted.name)
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


def registered_at(budgets: Mapping[str, Budget], names: Iterable[str | None]) -> Budget | None:
    """Return a registered dataset of which one of the names is the source, a part of it, or a folder above it."""
    named = list(names)
    return next((b for b in budgets.values() if any(same_microdata(b.source, name) for name in named)), None)


def members(budgets: Mapping[str, Budget], family: str) -> list[str]:
    """Return the datasets of a family."""
    return [budget.name for budget in budgets.values() if budget.family == family]


def _known(facts: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key in others or key not in RECORD_RULES}


def _require_kin(budgets: Mapping[str, Budget], budget: Budget, name: str) -> None:
    family = budgets.get(name)
    if family is None or family.kind != "family":
        raise StateError(
            f"dataset {budget.name}: its family {name} is not registered: have an officer register it first: "
            f"{registering(name)}, a YAML file with the keys unit ({budget.unit}) and limits"
        )
    if family.unit != budget.unit:
        raise StateError(f"dataset {budget.name}: its unit is {budget.unit}, but {family.unit} in family {name}")
    mine: Mapping[str, Any] = (budget.facts or {})["measures"]
    for kin in (budgets[member] for member in members(budgets, name)):
        theirs: Mapping[str, Any] = (kin.facts or {})["measures"]
        for measure in sorted(mine.keys() & theirs.keys()):
            # A column may be called otherwise in another year; what its numbers mean may not differ.
            if any(mine[measure][key] != theirs[measure][key] for key in ("type", "step")):
                raise StateError(
                    f"dataset {budget.name}: measure {measure} has another type or step in dataset {kin.name} "
                    f"of family {name}: give the measure a name of its own"
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
    dataset: str, rules: Mapping[str, Any], budgets: Mapping[str, Budget], states: Iterable[ReleaseState], where: str
) -> None:
    """Raise StateError where `rules`, as in `where`, and those of the dataset's releases and family are not all one."""
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
                    f"dataset {dataset}: {key} is {rules[key]}, but {other} in dataset {name} of family "
                    f"{budgets[name].family}: losses of different records do not add up"
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
            "their losses are of different records and do not add up: nothing more is released under it"
        )
    if first and value not in first:
        raise StateError(
            f"dataset {dataset}: {key} is {next(iter(first))} in the ledger, but {value} in {where}: change {where}"
        )
