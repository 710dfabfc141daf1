"""prdp ledger: read the ledger, or give a release up."""

import argparse

from jobs.cli import show_json
from pipeline.errors import PlanError
from pipeline.ledger.schema import SCHEMA_VERSION
from pipeline.ledger.store import Ledger, migrate_ledger, open_ledger


def run(given: argparse.Namespace) -> None:
    """Show the releases, verify the chain, migrate the schema, or abort a release that is not published."""
    if given.act == "migrate":
        _migrate(given.ledger, given.json)
        return
    ledger = open_ledger(given.ledger)
    if given.act == "verify":
        _verify(ledger, given.json)
        return
    if given.act == "abort":
        if given.release is None:
            raise PlanError("prdp ledger abort: name the release to give up")
        from pipeline.attempts import give_up  # noqa: PLC0415 — a second of imports that reading does not need

        give_up(ledger, given.release)
    _show(ledger, given.release, given.json)


def _migrate(url: str | None, as_json: bool) -> None:
    before, ledger = migrate_ledger(url)
    entries, head = ledger.verify()
    if as_json:
        show_json({"from": before, "to": SCHEMA_VERSION, "entries": entries, "head": head})
    else:
        print(f"schema version {before} → {SCHEMA_VERSION}; the chain of {entries} entries is whole; head {head}")


def _verify(ledger: Ledger, as_json: bool) -> None:
    entries, head = ledger.verify()
    if as_json:
        show_json({"entries": entries, "head": head})
    else:
        print(f"the chain of {entries} entries is whole; head {head}")


def _show(ledger: Ledger, release: str | None, as_json: bool) -> None:
    states = [state for state in ledger.states() if release in (None, state.release)]
    facts = [
        {
            "release": state.release,
            "dataset": state.dataset,
            "state": state.status,
            "attempt": state.attempt,
            "draws": state.draws,
            "charges": state.charges,
            "plan_digest": state.digest,
            "out": state.out,
        }
        for state in states
    ]
    diagnosed = [
        {
            "release": run.release,
            "dataset": run.dataset,
            "state": "diagnosed",
            "time": run.time,
            "plan_digest": run.digest,
            "engine": run.engine,
            "per_record": run.per_record,
            "compared": run.compared,
        }
        for run in ledger.diagnoses()
        if release in (None, run.release)
    ]
    if as_json:
        show_json([*facts, *diagnosed])
        return
    for fact in facts:
        print(
            f"{fact['release']}: {fact['state']}, draws {fact['draws']}, charged {fact['charges']} times, {fact['out']}"
        )
    for run in diagnosed:
        print(f"{run['release']}: confidential diagnostics of {run['dataset']} made at {run['time']}")
