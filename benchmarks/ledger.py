"""A ledger of many years beside a young one: what reserving, checking and showing cost, as ratios.

A real release of synthetic microdata is made once, and its entries are chained again under other names: settled
releases, each with the whole of what a reservation holds. `first` is the first reservation after an upgrade, which
evaluates every earlier release anew; the others are medians of rounds in which the ledgers take turns. `check` and
`show` are whole commands, from the shell and back.

    python -m benchmarks.ledger [--releases N] [--entries N] [--rounds N] [--json FILE]
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import insert

import prdp
from pipeline.ledger.copies import salted
from pipeline.ledger.database import ENTRIES
from pipeline.ledger.entries import FINGERPRINTS, SUMMARY, Act, Entry, next_entry
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger, create_ledger
from pipeline.plan.load import load_plan
from pipeline.release.request import Request, reservation_of
from pipeline.storage.uri import locate

FEW, YEARS, DATASETS = 10, 20, 20


def main() -> None:
    """Make the ledgers, let them take turns, and print medians and ratios."""
    parser = argparse.ArgumentParser(description="a ledger of many years beside a young one")
    parser.add_argument("--releases", type=int, default=1000, help="earlier releases of one dataset (beside 10)")
    parser.add_argument("--entries", type=int, default=100_000, help="entries of 20 datasets (beside 100)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="prdp-bench-") as folder:
        home = Path(folder)
        plan = _plan(home)
        released = create_ledger(str(home / "made" / "ledger.sqlite"))
        prdp.load_plan(plan).release(ledger=released.address, out=home / "out")
        template = released.entries()
        a_release = len(template)
        sizes = {
            "10 releases": (FEW, 1),
            f"{given.releases:,} releases": (given.releases, 1),
            "100 entries": (100 // a_release, DATASETS),
            f"{given.entries:,} entries": (given.entries // a_release, DATASETS),
        }
        ledgers = {name: _filled(home / name.replace(" ", "-"), template, *size) for name, size in sizes.items()}
        wanted = {name: _wanted(plan, ledger, home) for name, ledger in ledgers.items()}
        found: dict[str, dict[str, list[float]]] = {name: {"first": [], "reserve": []} for name in sizes}
        for name, ledger in ledgers.items():
            found[name]["first"].append(_seconds(_reserving(ledger, wanted[name], -1)))
        for number in range(given.rounds):
            for name, ledger in ledgers.items():
                found[name]["reserve"].append(_seconds(_reserving(ledger, wanted[name], number)))
                for act in (["check", str(plan)], ["show"]):
                    seconds = _seconds(lambda act=act, at=ledger.address: _command(*act, "--ledger", at))
                    found[name].setdefault(act[0], []).append(seconds)
    medians = {name: {step: median(each) for step, each in steps.items()} for name, steps in found.items()}
    names = list(sizes)
    ratios = {f"{old} beside {young}": _ratios(medians[old], medians[young]) for young, old in (names[:2], names[2:])}
    print(json.dumps({"seconds": medians, "ratios": ratios}, indent=1))
    if given.json:
        given.json.write_text(json.dumps({"seconds": medians, "ratios": ratios}, indent=1))


def _plan(home: Path) -> Path:
    """Return a plan on 1,000 records whose limits bind nothing here."""
    plan = Path(prdp.generate(1000, home / "data"))
    wide = re.sub(r"(- \{at: .*, rho: )[0-9.]+", r"\g<1>1000000000", plan.read_text())
    plan.write_text(wide)
    return plan


def _filled(folder: Path, template: Sequence[Entry], releases: int, datasets: int) -> Ledger:
    """Return a new ledger with so many settled releases of so many datasets."""
    ledger = create_ledger(str(folder / "ledger.sqlite"))
    seq, head = ledger.head()
    with ledger._writing() as connection:
        for number in range(releases):
            rows = []
            own = number % datasets == 0
            for entry in template:
                facts = {key: value for key, value in entry.facts.items() if key not in (SUMMARY, FINGERPRINTS)}
                if entry.event == "reserved" and not own:  # another dataset has other files
                    facts |= salted((os.urandom(8).hex(),))
                dataset = entry.dataset if own else f"{entry.dataset}-{number % datasets}"
                made = next_entry(seq, head, Act(entry.event, dataset, f"r{number}", entry.attempt, facts))
                rows.append(made.columns)
                seq, head = made.seq, made.hash
            connection.execute(insert(ENTRIES), rows)
    return ledger


def _wanted(plan: Path, ledger: Ledger, home: Path) -> Reservation:
    model = load_plan(plan)
    request = Request(
        plan=model, microdata=locate(model.dataset.path), out=locate(home / "out"), ledger=ledger, staging=None
    )
    return reservation_of(request)


def _reserving(ledger: Ledger, wanted: Reservation, number: int) -> Callable[[], Any]:
    return lambda: ledger.reserve(replace(wanted, release=f"new{number}"))


def _command(*arguments: str) -> None:
    command = [sys.executable, "-m", "jobs.cli", "ledger", *arguments]
    subprocess.run(command, check=True, capture_output=True)


def _seconds(step: Callable[[], Any]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def _ratios(old: dict[str, float], young: dict[str, float]) -> dict[str, float]:
    return {step: round(old[step] / young[step], 2) for step in old}


if __name__ == "__main__":
    main()
