"""Ledgers of many years, made of the entries of a real release, and how long one reservation takes in them.

python -m benchmarks.ledger fill LEDGER NEW RELEASES   a new ledger: a ledger's one release again and again
python -m benchmarks.ledger reserve LEDGER PLAN FILE   writes the seconds of a reservation alone
"""

import sys
import time
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from pipeline.ledger.entries import FINGERPRINTS, SUMMARY, Act, next_entry, write
from pipeline.ledger.store import create_ledger, open_ledger
from pipeline.plan.load import load_plan
from pipeline.release.request import Request, reservation_of
from pipeline.storage.paths import locate


def fill(source: str, target: str, releases: int) -> None:
    """Make a ledger of so many settled releases of one dataset."""
    template = open_ledger(source).entries()
    ledger = create_ledger(target)
    seq, head = ledger.head()
    with ledger._writing() as connection:
        for number in range(releases):
            for entry in template:
                facts = {key: value for key, value in entry.facts.items() if key not in (SUMMARY, FINGERPRINTS)}
                made = next_entry(seq, head, Act(entry.event, entry.dataset, f"r{number}", entry.attempt, facts))
                write(connection, made)
                seq, head = made.seq, made.hash


def reserve(address: str, plan: Path) -> float:
    """Reserve a release of a plan under a new name; return the seconds of that; a filled ledger's first is slow."""
    ledger, model = open_ledger(address), load_plan(plan)
    microdata, out = locate(plan.parent / "microdata"), locate(f"{address}-out")
    request = Request(plan=model, microdata=microdata, out=out, ledger=ledger)
    wanted = replace(reservation_of(request), release=f"r-{uuid4()}")
    begin = time.perf_counter()
    ledger.reserve(wanted)
    seconds = time.perf_counter() - begin
    ledger.abort(wanted.release)  # few releases of a dataset may be open at once
    return seconds


if __name__ == "__main__":
    act, *words = sys.argv[1:]
    if act == "fill":
        fill(words[0], words[1], int(words[2]))
    else:
        Path(words[2]).write_text(str(reserve(words[0], Path(words[1]))))
