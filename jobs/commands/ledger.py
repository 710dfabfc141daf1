"""prdp ledger and prdp doctor: what disclosure officers and operators read and do."""

import argparse
import json
import shlex
from typing import Annotated, Any

from jobs.commands import print_findings, print_json, put, say, tell
from jobs.commands.ledger_show import print_budget, show, show_release
from jobs.options import Act
from prdp.declared import Arg
from prdp.ledgers import Ledger
from prdp.runs import unseen_budget

AT = "a reference, such as employment=10,payroll=500; several records are separated by ';'"


def _show(
    opened: Ledger,
    release: Annotated[str | None, Arg("only this release, dataset or family", "NAME")] = None,
    *,
    dataset: Annotated[str | None, Arg("only this dataset, or family", "DATASET")] = None,
    at: Annotated[str | None, Arg(AT, "REFERENCE")] = None,
    csv: Annotated[bool, Arg("with --at: what it lost by dataset, family and year, as CSV")] = False,
) -> Ledger:
    return opened


def _print_limits(_: None, arguments: argparse.Namespace) -> None:
    registered = arguments.opened._store.budgets()[arguments.name]
    if arguments.json:
        print_json(registered.to_json())
    else:
        print_budget(registered)


def _print_registered(_: None, arguments: argparse.Namespace) -> None:
    if (warning := unseen_budget(arguments.name, arguments.budget)) is not None:
        arguments.log.warning(warning)
    _print_limits(None, arguments)


def _print_release(_: Any, arguments: argparse.Namespace) -> None:
    show_release(arguments.opened._store, arguments.release, arguments.json)


def _print_created(made: dict[str, Any], _: argparse.Namespace) -> None:
    put(f"ledger {made['ledger']}: is there, with {made['entries']} entries; head {made['head']}")


def _print_imported(made: dict[str, Any], _: argparse.Namespace) -> None:
    put(f"ledger {made['ledger']}: has the chain of {made['entries']} entries; head {made['head']}")
    put("it is closed: where nothing was published since the export,")
    put(f"prdp ledger admin reopen --ledger {shlex.quote(made['ledger'])}")


def _print_migrated(made: dict[str, Any], _: argparse.Namespace) -> None:
    versions = f"schema version {made['from']} → {made['to']}"
    put(f"{versions}; the chain of {made['entries']} entries is complete; head {made['head']}")


def _print_verified(verified: dict[str, Any], _: argparse.Namespace) -> None:
    tell(f"the chain of {verified['entries']} entries is complete; head {verified['head']}")
    for release in verified["releases"]:
        say(f"{release}: the published files match the chain")


def _print_afforded(checked: dict[str, Any], _: argparse.Namespace) -> None:
    state = "fits the budget; nothing is reserved" if checked["state"] is None else f"is {checked['state']}"
    say(f"release {checked['release']}: {state}")


def _print_required(_: None, arguments: argparse.Namespace) -> None:
    required = arguments.opened._store.required()
    if arguments.json:
        print_json(None if required is None else required.facts)
    elif required is not None:
        say(f"every release that is reserved from now on is held, and takes {required.words}")


def _print_entries(entries: list[dict[str, Any]], _: argparse.Namespace) -> None:
    for entry in entries:
        put(json.dumps(entry, ensure_ascii=False, allow_nan=False))


def _print_open(releases: list[str] | None, arguments: argparse.Namespace) -> None:
    closed, matching = arguments.opened._store.closed() is not None, releases or []
    if arguments.json:
        print_json({"closed": closed, "found": matching})
    elif closed:
        say("the ledger is closed: nothing is reserved, drawn or published before prdp ledger admin reopen")
    else:
        put(f"the ledger is open; published releases whose heads are in its chain: {len(matching)}")


def _print_page(path: Any, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json({"page": str(path), "confidential": True})
    else:
        put(f"page {path}: confidential")


def _print_purged(purged: list[dict[str, Any]], _: argparse.Namespace) -> None:
    for each in purged:
        put(f"{each['release']}: removed {', '.join(each['names'])} from {each['staging']}")
    if not purged:
        put("nothing is staged beside live attempts")


def _print_key(made: dict[str, str], _: argparse.Namespace) -> None:
    say(f"private key {made['key']}: keep it secret, and a copy of it in a safe")
    put(f"public key {made['public']}: give it to everyone who is to check releases")
    put(f"SHA-256 {made['fingerprint']}")
    say(f"releases are signed where the site's file says signing_key: {made['key']}, or PRDP_SIGNING_KEY={made['key']}")


def _of_ledger(about: str, method: str, example: str, show: Any, **how: Any) -> Act:
    return Act(about, f"prdp.ledgers.Ledger.{method}", example, show, **{"prints_json": True} | how)


PURGE = _of_ledger(
    "remove staged files that belong to no live attempt, and record it",
    "purge_staging",
    "purge",
    _print_purged,
    prints_json=False,
    first_use=False,
)
ADMIN = {
    "import": Act(
        "make a ledger of an exported chain; it is closed at first",
        "prdp.runs.take_in",
        "import entries.jsonl postgresql://owner@localhost/ledger",
        _print_imported,
    ),
    "export": _of_ledger(
        "print every entry as a line of JSON, without confidential facts",
        "entries",
        "export",
        _print_entries,
        first_use=False,
    ),
    "close": _of_ledger(
        "freeze the ledger, for example after a restore: nothing is reserved, drawn or published",
        "close",
        'close --reason "restored from a backup"',
        _print_open,
    ),
    "reopen": _of_ledger(
        "open a closed ledger where its chain knows all that was published",
        "reopen",
        "reopen --out releases",
        _print_open,
    ),
    "migrate": Act(
        "bring the ledger's schema to this version of prdp; older versions refuse it afterwards",
        "prdp.runs.migrate",
        "migrate",
        _print_migrated,
    ),
    "staging": Act("staged files", example="staging purge", acts={"purge": PURGE}),
    "keys": Act(
        "the key with which a site signs its releases",
        example="keys create /srv/prdp/site.key",
        acts={
            "create": Act(
                "make a new key: FILE, which stays secret, and FILE.pub for everyone",
                "prdp.verified.create_key",
                "create /srv/prdp/site.key",
                _print_key,
            )
        },
    ),
}
LEDGER = {
    "create": Act(
        "make an empty ledger; one that is there is left as it is",
        "prdp.runs.create",
        "create /srv/prdp/ledger/ledger.sqlite",
        _print_created,
    ),
    "init": _of_ledger(
        "register a dataset, or a family of datasets, with its limits",
        "register",
        "init cbp-2023 --budget budget.yaml",
        _print_registered,
    ),
    "correct": _of_ledger(
        "register anew what has no release yet, in all but its name",
        "correct",
        "correct cbp-2023 --budget budget.yaml",
        _print_registered,
    ),
    "raise": _of_ledger(
        "replace the limits of a dataset or family, for a recorded reason",
        "raise_limits",
        'raise cbp-2023 --budget budget.yaml --reason "a second year of tables"',
        _print_limits,
    ),
    "afford": Act(
        "whether the budget affords a plan's release; reserves nothing, reads no record",
        "prdp.plans.Plan.check",
        "afford plan.yaml",
        _print_afforded,
    ),
    "page": _of_ledger(
        "write a confidential page: spent and left, what waits or is stuck, who did what",
        "page",
        "page --out officers.html",
        _print_page,
        first_use=False,
    ),
    "show": Act(
        "releases, and the loss spent and left by their limits, or at a reference",
        _show,
        "show --at employment=10,payroll=500",
        lambda ledger, arguments: show(ledger._store, arguments),
        prints_json=True,
    ),
    "verify": _of_ledger(
        "check the chain of entries, and manifests against it",
        "verify",
        "verify --release releases/cbp-2023-county",
        _print_verified,
        prints_json=False,
        first_use=False,
    ),
    "approve": _of_ledger(
        "approve a held release, and publish it", "approve", "approve cbp-2023-county", _print_release
    ),
    "revoke": _of_ledger(
        "take your approval of a held release back", "revoke", "revoke cbp-2023-county", _print_release
    ),
    "reject": _of_ledger(
        "never publish a held release; it stays charged",
        "reject",
        'reject cbp-2023-county --reason "wrong vintage of codes"',
        _print_release,
    ),
    "abort": _of_ledger("give up a release that is not published", "abort", "abort cbp-2023-county", _print_release),
    "withdraw": _of_ledger(
        "take a published release back; it stays charged",
        "withdraw",
        'withdraw cbp-2023-county --reason "wrong microdata"',
        _print_release,
    ),
    "require": _of_ledger(
        "hold every later release until several roles of the ledger's server approved it; never lowered",
        "require_approvals",
        "require --approvals 2 --by-others",
        _print_required,
    ),
    "admin": Act(
        "close, reopen, import, export, migrate; staged files; keys", example="admin close --reason TEXT", acts=ADMIN
    ),
}
ACTS = {
    "ledger": Act("", example="ledger show --at employment=10,payroll=500", acts=LEDGER),
    "doctor": Act(
        "",
        "prdp.verified.doctor",
        "doctor --ledger /srv/prdp/ledger/ledger.sqlite --out /srv/prdp/releases",
        lambda document, arguments: print_findings(document, arguments.json),
        prints_json=True,
    ),
}
