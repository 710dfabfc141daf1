"""Refusals because of records tell something of them: few are had, at once, under other names and in a family too."""

import multiprocessing
from multiprocessing.connection import Connection
from typing import Any

import pytest

from pipeline.base.errors import BudgetRefused
from pipeline.ledger.datasets import Budget
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger, create_ledger, open_ledger
from tests.support.ledgers import FACTS, reservation

LIMITS = reservation("r").limits
AT_ONCE = 5


def of(release: str, dataset: str = "d", source: str = "/micro/d", family: str | None = None) -> Reservation:
    about: dict[str, Any] = {"duplicates": "trust"} | ({"family": family} if family else {})
    plan = {"release": release, "dataset": about}
    return reservation(release, dataset=dataset, source=source, plan=plan)


def registered(name: str, refusals: int, facts: Any = None, source: str | None = None) -> Budget:
    return Budget(name=name, unit="record", limits=LIMITS, facts=facts, source=source, refusals=refusals)


def refused(ledger: Ledger, wanted: Reservation) -> None:
    ledger.reserve(wanted)
    ledger.refuse(wanted.release)


def reserve_then_be_refused(address: str, number: int, pipe: Connection) -> None:
    """A run whose scan ends badly, once all others have begun theirs."""
    ledger = open_ledger(address)
    pipe.recv()
    try:
        ledger.reserve(of(f"r{number}"))
    except BudgetRefused:
        pipe.send(False)
        return
    pipe.send(True)
    pipe.recv()
    ledger.refuse(f"r{number}")
    pipe.send(True)


def test_runs_at_once_are_refused_no_more_often_than_one_after_another(address: str) -> None:
    ledger = create_ledger(address)
    ledger.register(registered("d", 2, FACTS, "/micro/d"))
    context = multiprocessing.get_context("spawn")
    pipes, runs = [], []
    for number in range(AT_ONCE):
        mine, its = context.Pipe()
        runs.append(context.Process(target=reserve_then_be_refused, args=(address, number, its)))
        pipes.append(mine)
        runs[-1].start()
    for pipe in pipes:
        pipe.send("all at once")
    scanning = [pipe for pipe in pipes if pipe.recv()]
    for pipe in scanning:
        pipe.send("the records are bad")
        assert pipe.recv()
    for run in runs:
        run.join()
    assert len(scanning) == 2
    assert ledger.refusals() == {"d": 2}
    ledger.verify()


def test_what_is_being_read_counts_until_it_ends_well(address: str) -> None:
    ledger = create_ledger(address)
    ledger.register(registered("d", 2, FACTS, "/micro/d"))
    for name in ("a", "b"):
        ledger.reserve(of(name))
    words = r"dataset d: 0 of its releases .* and 2 may still be \(a, b: run or abort them\), 2 may be: have an officer"
    for step in (ledger.reserve, ledger.check):
        with pytest.raises(BudgetRefused, match=words):
            step(of("c"))
    assert ledger.reserve(of("a")).status == "reserved"  # a run that was killed goes on
    attempt = ledger.draw("a", "sha256:pin")
    ledger.reserve(of("c"))
    ledger.destroyed("a", attempt, "incomplete", False)  # its microdata are read again
    ledger.refuse("b")
    for name, others in (("a", "1 may still be \\(c:"), ("b", "2 may still be \\(a, c:")):
        with pytest.raises(BudgetRefused, match=f"dataset d: 1 of its releases .* and {others} run"):
            ledger.reserve(of(name))
    ledger.abort("c")
    ledger.reserve(of("a"))


@pytest.mark.parametrize("family", [None, "kin"])
def test_other_names_of_the_same_microdata_are_refused_no_more_often(address: str, family: str | None) -> None:
    ledger = create_ledger(address)
    if family:
        ledger.register(registered(family, 10))
    for number in range(10):
        refused(ledger, of(f"r{number}", f"month-{number % 3}", "/micro/all", family))
    for dataset, source in (("month-0", "/micro/all"), ("month-9", "/micro/all"), ("month-9", "/micro/all/part")):
        with pytest.raises(BudgetRefused, match="10 of its releases were refused"):
            ledger.reserve(of("more", dataset, source, family))
    ledger.reserve(of("more", "month-9", "/micro/others"))


def test_a_name_that_takes_other_microdata_does_not_forget_refusals(address: str) -> None:
    ledger = create_ledger(address)
    for _ in range(10):
        refused(ledger, of("r"))
    with pytest.raises(BudgetRefused):
        ledger.reserve(of("r", "e"))
    ledger.reserve(of("r", "e", "/micro/e"))
    ledger.abort("r")
    with pytest.raises(BudgetRefused):
        ledger.reserve(of("s", "e"))


def test_a_family_is_refused_as_often_as_its_officer_states(address: str) -> None:
    ledger = create_ledger(address)
    ledger.register(registered("kin", 3))
    for number in range(3):
        refused(ledger, of(f"r{number}", f"year-{number}", f"/micro/{number}", "kin"))
    assert ledger.refusals() == {"kin": 3, "year-0": 1, "year-1": 1, "year-2": 1}
    with pytest.raises(BudgetRefused, match=r"family kin: 3 of its .* 3 may be: have an officer state its budget anew"):
        ledger.reserve(of("more", "year-3", "/micro/3", "kin"))
    ledger.raise_limits(registered("kin", 4), "the files are mended")
    ledger.reserve(of("more", "year-3", "/micro/3", "kin"))
    ledger.verify()
