"""What a record is must agree wherever losses are added up: over a dataset's releases, and over a family's datasets.

Older ledgers do not hold it among a dataset's facts; there the resolved plans of the releases that count tell it, and
where they do not either, the next release does.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.errors import StateError
from pipeline.ledger.datasets import RECORD_RULES, Budget, members
from pipeline.ledger.fold import ReleaseState


def rules_of(facts: Mapping[str, Any] | None, plan: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what `facts`, or else the resolved plan, say of what a record is; no key where neither does."""
    told = {**(plan or {}).get("dataset", {}), **(facts or {})}
    return {key: told[key] for key in RECORD_RULES if key in told}


def silent_kin(budgets: Mapping[str, Budget], dataset: str) -> list[str]:
    """Return the other datasets of a dataset's family of which only releases can tell what a record is."""
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
    told: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for state in states:
        if state.charges > 0:
            said = rules_of(state.reservation["dataset_facts"], state.reservation["plan"])
            told.setdefault(state.dataset, []).append((state.release, said))
    for key in (key for key in RECORD_RULES if key in rules):
        _require_own(dataset, key, rules[key], told.get(dataset, []), where)
        for name in _kin(budgets, dataset):
            theirs = [rules_of(budgets[name].facts), *(said for _, said in told.get(name, []))]
            other = next((said[key] for said in theirs if said.get(key, rules[key]) != rules[key]), None)
            if other is not None:
                raise StateError(
                    f"dataset {dataset}: {key} is {rules[key]}, but {other} in dataset {name} "
                    f"of family {budgets[name].family}: "
                    "losses of different records do not add up"
                )


def _kin(budgets: Mapping[str, Budget], dataset: str) -> list[str]:
    family = budgets[dataset].family if dataset in budgets else None
    return [name for name in members(budgets, family) if name != dataset] if family is not None else []


def _require_own(dataset: str, key: str, value: object, told: list[tuple[str, dict[str, Any]]], where: str) -> None:
    first: dict[object, str] = {}
    for release, said in told:
        if key in said:
            first.setdefault(said[key], release)
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
