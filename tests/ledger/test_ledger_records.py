"""Losses add up over releases only where their records are the same: what a record is belongs to a dataset's facts."""

from pathlib import Path

import pytest

from pipeline.base.errors import StateError
from pipeline.ledger.datasets import Budget
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger
from pipeline.plan.load import load_plan
from tests.support.ledgers import FACTS, reservation
from tests.support.submit import Place, submit
from tests.support.world import budget_file, records, write_world

TRUST = {"duplicates": "trust", "bad_records": "refuse"}
OTHERS = [{"duplicates": "reject"}, {"duplicates": "combine"}, {"bad_records": "drop"}]


def told_of(changes: dict[str, str]) -> str:
    ((key, value),) = changes.items()
    return f"{key} is {TRUST[key]} in the ledger, but {value} in the plan: change the plan"


# Of this version


@pytest.mark.parametrize("changes", OTHERS[:1])  # of all: below, by the ledger alone
def test_a_registered_dataset_says_what_a_record_is(changes: dict[str, str], tmp_path: Path, ledger: Ledger) -> None:
    from pipeline.release.officers import load_budget

    write_world(tmp_path, records(20))
    ledger.register(load_budget(budget_file(tmp_path), "small-world"))
    plan = write_world(tmp_path, None, release="second", budget=[], dataset=changes)
    correct = "nothing was released under it yet, .*: prdp ledger correct small-world --budget FILE$"
    with pytest.raises(StateError, match=f"{told_of(changes)}; or, as {correct}"):
        submit(Place(plan, tmp_path))
    submit(Place(write_world(tmp_path, None, release="first", budget=[]), tmp_path))
    plan = write_world(tmp_path, None, release="second", budget=[], dataset=changes)
    with pytest.raises(StateError, match=f"{told_of(changes)}$"):
        submit(Place(plan, tmp_path))


def test_the_digest_of_a_plan_holds_no_more_than_before(tmp_path: Path) -> None:
    dataset = load_plan(write_world(tmp_path, None)).dataset
    assert dataset.resolved() == dataset.facts() | {"name": dataset.name}


# Older ledgers: only the plans that their reservations keep say what a record was


def older(release: str, dataset: str = "d", **rules: str) -> Reservation:
    plan = {"release": release, "dataset": rules}
    return reservation(release, dataset=dataset, source=f"/micro/{dataset}", plan=plan)


def newer(release: str, dataset: str = "d", **rules: str) -> Reservation:
    plan = {"release": release, "dataset": TRUST | rules}
    facts = FACTS | TRUST | rules
    return reservation(release, dataset=dataset, source=f"/micro/{dataset}", plan=plan, dataset_facts=facts)


def budget(dataset: str = "d", family: str | None = None, **rules: str) -> Budget:
    limits = reservation("r").limits
    return Budget(name=dataset, unit="record", limits=limits, facts=FACTS | rules, source=f"/micro/{dataset}",
                  family=family)  # fmt: skip


def append_older(ledger: Ledger, *wanted: Reservation) -> None:
    """Reserve as older versions did, which did not compare what a record is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.ledger.admission.require_like_records", lambda *told: None)
        for each in wanted:
            ledger.reserve(each)


@pytest.mark.parametrize("registered", [False, True])
@pytest.mark.parametrize("changes", OTHERS)
def test_an_older_release_fixes_what_its_plan_says(changes: dict[str, str], registered: bool, ledger: Ledger) -> None:
    if registered:
        ledger.register(budget())
    ledger.reserve(older("a", **TRUST))
    with pytest.raises(StateError, match=told_of(changes)):
        ledger.reserve(newer("b", **changes))
    assert ledger.reserve(older("a", **TRUST)).status == "reserved"  # what was reserved goes on
    ledger.reserve(newer("b"))
    ledger.verify()


@pytest.mark.parametrize("registered", [False, True])
def test_where_nothing_tells_the_next_release_fixes_it(registered: bool, ledger: Ledger) -> None:
    if registered:
        ledger.register(budget())
    ledger.reserve(older("a"))
    ledger.reserve(newer("b"))
    with pytest.raises(StateError, match=told_of(OTHERS[0])):
        ledger.reserve(newer("c", **OTHERS[0]))
    ledger.reserve(newer("c"))


def test_older_releases_that_disagree_are_the_last(ledger: Ledger) -> None:
    append_older(ledger, older("a", **TRUST), older("b", **TRUST | {"duplicates": "reject"}))
    for rules in ({}, {"duplicates": "reject"}):
        with pytest.raises(StateError) as refused:
            ledger.reserve(newer("c", **rules))
        assert str(refused.value) == (
            "dataset d: duplicates is trust in release a, but reject in release b: "
            "their losses are of different records and do not add up: nothing more is released under it"
        )
    assert ledger.reserve(older("b", **TRUST | {"duplicates": "reject"})).status == "reserved"
    with pytest.raises(StateError, match="duplicates is"):
        ledger.register(budget(**TRUST))


def test_releases_that_lost_nothing_fix_nothing(ledger: Ledger) -> None:
    ledger.reserve(newer("a", duplicates="reject"))
    ledger.abort("a")
    ledger.reserve(newer("b"))


def test_an_older_dataset_is_registered_and_its_limits_are_stated_anew(ledger: Ledger) -> None:
    ledger.register(budget())
    ledger.reserve(older("a", **TRUST))
    with pytest.raises(StateError, match="duplicates is trust in the ledger, but reject in the budget's file"):
        ledger.raise_limits(budget(**TRUST | {"duplicates": "reject"}), "why")
    ledger.raise_limits(budget(**TRUST), "why")
    ledger.raise_limits(budget(**TRUST), "why again")
    ledger.reserve(older("e", "e", **TRUST))
    with pytest.raises(StateError, match="duplicates is trust in the ledger, but reject in the budget's file"):
        ledger.register(budget("e", **TRUST | {"duplicates": "reject"}))
    ledger.register(budget("e", **TRUST))
    ledger.verify()


# Families


def registered_family(ledger: Ledger) -> None:
    ledger.register(Budget(name="f", unit="record", limits=reservation("r").limits))


@pytest.mark.parametrize("changes", OTHERS)
def test_datasets_of_a_family_have_the_same_records(changes: dict[str, str], ledger: Ledger) -> None:
    registered_family(ledger)
    ledger.register(budget("y2022", "f", **TRUST))
    ((key, value),) = changes.items()
    with pytest.raises(StateError, match=f"dataset y2023: {key} is {value}, but {TRUST[key]} in dataset y2022 of fam"):
        ledger.register(budget("y2023", "f", **TRUST | changes))
    ledger.register(budget("y2023", "f", **TRUST))


@pytest.mark.parametrize("changes", OTHERS)
def test_releases_of_an_older_family_have_the_same_records(changes: dict[str, str], ledger: Ledger) -> None:
    registered_family(ledger)
    for name in ("y2022", "y2023"):
        ledger.register(budget(name, "f"))
    ledger.reserve(older("a", "y2022", **TRUST))
    ((key, value),) = changes.items()
    with pytest.raises(StateError, match=f"dataset y2023: {key} is {value}, but {TRUST[key]} in dataset y2022 of fam"):
        ledger.reserve(newer("b", "y2023", **changes))
    with pytest.raises(StateError, match=f"dataset y2024: {key} is {value}, but {TRUST[key]} in dataset y2022 of fam"):
        ledger.register(budget("y2024", "f", **TRUST | changes))
    ledger.reserve(newer("b", "y2023"))
    ledger.verify()
