"""prdp ledger: what disclosure officers read and do."""

import argparse
import json
from collections.abc import Callable, Mapping

from jobs.cli import show_json
from jobs.commands.ledger_show import show, show_release
from pipeline.ledger.database import SCHEMA_VERSION
from pipeline.ledger.entries import exported
from pipeline.ledger.store import Ledger, migrate_ledger, open_ledger
from pipeline.storage.location import place


def run(given: argparse.Namespace) -> None:
    """Do one act with the ledger that was named."""
    if given.act == "migrate":  # a ledger of an older version is opened by nothing else
        _migrate(given)
        return
    ACTS[given.act](open_ledger(given.ledger).signed(given.operator), given)


def _migrate(given: argparse.Namespace) -> None:
    before, ledger = migrate_ledger(given.ledger)
    entries, head = ledger.verify()
    if given.json:
        show_json({"from": before, "to": SCHEMA_VERSION, "entries": entries, "head": head})
    else:
        print(f"schema version {before} → {SCHEMA_VERSION}; the chain of {entries} entries is whole; head {head}")


def _init(ledger: Ledger, given: argparse.Namespace) -> None:
    from pipeline.release.officers import load_budget  # noqa: PLC0415 — the shape of plans takes a while to import

    ledger.register(load_budget(given.budget, given.dataset))
    _budgeted(ledger, given)


def _raise(ledger: Ledger, given: argparse.Namespace) -> None:
    from pipeline.release.officers import load_budget  # noqa: PLC0415

    ledger.raise_limits(load_budget(given.budget, given.dataset), given.reason)
    _budgeted(ledger, given)


def _budgeted(ledger: Ledger, given: argparse.Namespace) -> None:
    budget = ledger.budgets()[given.dataset]
    if given.json:
        show_json(budget.to_json())
    else:
        print(f"{budget.kind} {budget.name}: limits recorded: {len(budget.limits)}")


def _verify(ledger: Ledger, given: argparse.Namespace) -> None:
    from pipeline.release.verify import published_folders, require_in_chain  # noqa: PLC0415

    entries, head = ledger.verify()
    folders = [place(text, what="--release") for text in given.release]
    folders += published_folders(ledger) if given.manifests else []
    releases = [require_in_chain(ledger, folder) for folder in folders]
    if given.json:
        show_json({"entries": entries, "head": head, "releases": releases})
        return
    print(f"the chain of {entries} entries is whole; head {head}")
    for release in releases:
        print(f"{release}: what is published is what the chain says")


def _check(ledger: Ledger, given: argparse.Namespace) -> None:
    from jobs.places import microdata_of, out_of, place_given  # noqa: PLC0415 — as above
    from pipeline.plan.load import load_plan  # noqa: PLC0415
    from pipeline.release.run import Request, check  # noqa: PLC0415

    plan = load_plan(given.plan)
    request = Request(
        plan=plan,
        microdata=microdata_of(given, plan),
        out=out_of(given, plan),
        ledger=ledger,
        staging=place_given(given.staging, "--staging"),
        registered_only=given.registered_only,
    )
    state = check(request)
    status = None if state is None else state.status
    if given.json:
        show_json({"release": plan.release, "dataset": plan.dataset.name, "plan_digest": plan.digest, "state": status})
    else:
        print(f"release {plan.release}: {'fits the budget; nothing is reserved' if status is None else f'is {status}'}")


def _approve(ledger: Ledger, given: argparse.Namespace) -> None:
    from pipeline.release.officers import approve  # noqa: PLC0415 — a second of imports that reading does not need

    approve(ledger, given.release, given.record_only)
    show_release(ledger, given.release, given.json)


def _reject(ledger: Ledger, given: argparse.Namespace) -> None:
    from pipeline.release.officers import reject  # noqa: PLC0415

    reject(ledger, given.release, given.reason)
    show_release(ledger, given.release, given.json)


def _abort(ledger: Ledger, given: argparse.Namespace) -> None:
    from pipeline.release.attempts import give_up  # noqa: PLC0415

    give_up(ledger, given.release)
    show_release(ledger, given.release, given.json)


def _withdraw(ledger: Ledger, given: argparse.Namespace) -> None:
    from pipeline.release.officers import withdraw  # noqa: PLC0415

    withdraw(ledger, given.release, given.reason)
    show_release(ledger, given.release, given.json)


def _export(ledger: Ledger, given: argparse.Namespace) -> None:
    for entry in ledger.entries():
        print(json.dumps(exported(entry, given.confidential), ensure_ascii=False, allow_nan=False))


def _purge(ledger: Ledger, given: argparse.Namespace) -> None:
    from pipeline.release.officers import purge  # noqa: PLC0415

    purged = purge(ledger, given.release)
    if given.json:
        show_json([{"release": each.release, "staging": each.root, "names": list(each.names)} for each in purged])
        return
    for each in purged:
        print(f"{each.release}: removed {', '.join(each.names)} from {each.root}")
    if not purged:
        print("nothing is staged beside live attempts")


ACTS: Mapping[str, Callable[[Ledger, argparse.Namespace], None]] = {
    "init": _init,
    "raise": _raise,
    "check": _check,
    "show": show,
    "verify": _verify,
    "approve": _approve,
    "reject": _reject,
    "abort": _abort,
    "withdraw": _withdraw,
    "export": _export,
    "staging": _purge,
}
