"""prdp ledger: what disclosure officers read and do."""

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs.commands.ledger_show import print_budget, show, show_release
from jobs.options import (
    Parser,
    above_zero,
    add_address,
    add_json,
    add_ledger,
    add_plan,
    example,
    ledger_options,
    reason,
    sentence,
    values_set,
)
from jobs.output import print_findings, print_json, put, say, tell
from pipeline.base.errors import PlanError
from pipeline.ledger.database import SCHEMA_VERSION
from pipeline.ledger.entries import MOST, Required
from pipeline.ledger.store import Ledger, create_ledger, migrate_ledger, open_ledger
from pipeline.release.installation import operator_named, site
from pipeline.storage.paths import locate

EXAMPLE = "prdp ledger show --at employment=10,payroll=500"
EXAMPLES = {  # act → a call, after `prdp ledger`
    "create": "create /srv/prdp/ledger/ledger.sqlite",
    "init": "init cbp-2023 --budget budget.yaml",
    "correct": "correct cbp-2023 --budget budget.yaml",
    "raise": 'raise cbp-2023 --budget budget.yaml --reason "a second year of tables"',
    "check": "check plan.yaml",
    "page": "page --out officers.html",
    "show": "show --at employment=10,payroll=500",
    "health": "health --json",
    "verify": "verify --release releases/cbp-2023-county",
    "migrate": "migrate",
    "approve": "approve cbp-2023-county",
    "revoke": "revoke cbp-2023-county",
    "require": "require --approvals 2 --by-others",
    "reject": 'reject cbp-2023-county --reason "wrong vintage of codes"',
    "abort": "abort cbp-2023-county",
    "withdraw": 'withdraw cbp-2023-county --reason "wrong microdata"',
    "export": "export",
    "import": "import entries.jsonl postgresql://owner@localhost/ledger",
    "close": 'close --reason "restored from a backup"',
    "reopen": "reopen --out releases",
    "purge": "staging purge",
}
OF_ENTRIES = ("verify", "health", "export", "page", "staging")  # of a new ledger they would say that all is well
Run = Callable[[Ledger, argparse.Namespace], None]


def declare(parser: Parser) -> None:
    """Add the acts, each with its options; `act_run` is what an act does with the opened ledger, if it takes one."""
    acts = parser.add_subparsers(dest="act", required=True, metavar="ACT", parser_class=type(parser))

    create = acts.add_parser("create", **_about("create", "make an empty ledger; one that is there is left as it is"))
    _add_new_address(create, "the ledger, as --ledger names it")

    init = _add(acts, "init", "register a dataset, or a family of datasets, with its limits", _state_limits)
    mend = _add(acts, "correct", "register anew what has no release yet, in all but its name", _state_limits)
    change = _add(acts, "raise", "replace the limits of a dataset or family, for a recorded reason", _state_limits)
    for stating in (init, mend, change):
        stating.add_argument("dataset", metavar="DATASET", help="the dataset or family")
        stating.add_argument(
            "--budget", type=Path, required=True, metavar="FILE", help="its facts and limits, a YAML file"
        )
    _add_reason(change, "why, for the record")

    check = _add(acts, "check", "whether a plan's release would be reserved; reserves nothing, reads no record", None)
    add_plan(check)
    for option in ("data", "out", "staging"):
        check.add_argument(f"--{option}", metavar="URI", help=f"as --{option} of prdp release")

    page = _add(acts, "page", "write a confidential page: spent and left, what waits or is stuck, who did what", _page)
    page.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the HTML file; an earlier page there is replaced"
    )

    shows = _add(acts, "show", "releases, and the loss spent and left by their limits, or at a reference", show)
    shows.add_argument("release", nargs="?", metavar="NAME", help="only this release, dataset or family")
    shows.add_argument("--dataset", metavar="DATASET", help="only this dataset, or family")
    shows.add_argument(
        "--at",
        metavar="REFERENCE",
        help="a reference record, such as employment=10,payroll=500; for a firm several records, separated by ';'",
    )

    health = _add(
        acts, "health", "exit code 1 where a release waits too long, or a disk or certificate runs out", _health
    )
    for option, hours in (("longest", "went no further (default: 1)"), ("longest-held", "was held (default: 168)")):
        help_text = f"a release must be looked at that {hours}"
        health.add_argument(f"--{option}", type=above_zero, metavar="HOURS", help=help_text)
    health.add_argument(
        "--least-free", type=above_zero, metavar="GB", help="that must be free on each disk (default: 1)"
    )
    health.add_argument("--metrics", metavar="PLACE", help="write metrics for Prometheus there, as prdp release does")

    verify = _add(acts, "verify", "check the chain of entries, and manifests against it", _verify)
    verify.add_argument(
        "--release",
        action="append",
        default=[],
        metavar="OUT/RELEASE",
        help="a published release whose manifest and files must match the chain (repeatable)",
    )
    verify.add_argument(
        "--manifests",
        action="store_true",
        help="check every release where it was published, and that no other lies beside",
    )

    migrate = _add(
        acts, "migrate", "bring the ledger's schema to this version of prdp; older versions refuse it afterwards", None
    )
    migrate.add_argument(
        "--leave-drawn", action="store_true", help="also where releases are drawn, which this version cannot finish"
    )

    _declare_decisions(acts)

    export = _add(acts, "export", "print every entry as a line of JSON, without confidential facts", _export)
    export.add_argument(
        "--confidential", action="store_true", help="with confidential facts: input digests, salts, locations"
    )
    take = acts.add_parser(
        "import",
        **_about("import", "make a ledger of an exported chain; it is closed at first"),
    )
    take.add_argument("file", type=Path, metavar="FILE", help="what prdp ledger export --confidential printed")
    _add_new_address(take, "as of create; a ledger there must be empty")
    close = _add(acts, "close", "let nothing be reserved, drawn or published, as of a ledger that was restored", _close)
    _add_reason(close, "why, for the record")
    reopen = _add(acts, "reopen", "open a closed ledger where its chain knows all that was published", _reopen)
    reopen.add_argument(
        "--out",
        action="append",
        default=[],
        metavar="URI",
        help="a folder of published releases, beside those that the ledger names (repeatable)",
    )
    staging = acts.add_parser("staging", help="staged files")
    purge = _add(
        staging.add_subparsers(dest="staging_act", required=True, metavar="ACT", parser_class=type(parser)),
        "purge",
        "remove staged files that belong to no live attempt, and record it",
        _purge,
    )
    purge.add_argument("release", nargs="?", metavar="RELEASE", help="only this release")


def _declare_decisions(acts: Any) -> None:
    approve = _add_for_release(acts, "approve", "approve a held release, and publish it", _decide)
    approve.add_argument(
        "--record-only", action="store_true", help="only record it: the next prdp release of the plan publishes"
    )
    _add_for_release(acts, "revoke", "take your approval of a held release back", _decide)
    reject = _add_for_release(acts, "reject", "never publish a held release; it stays charged", _decide)
    _add_reason(reject, "why, for the record")
    _add_for_release(acts, "abort", "give up a release that is not published", _decide)
    withdraw = _add_for_release(acts, "withdraw", "take a published release back; it stays charged", _decide)
    _add_reason(withdraw, "why; it is published in the notice of withdrawal")

    require = _add(
        acts,
        "require",
        "hold every later release until several roles of the ledger's server approved it; never lowered",
        _require,
    )
    require.add_argument("--approvals", type=_number, required=True, metavar="N", help="by so many roles, 1 to 9")
    require.add_argument("--by-others", action="store_true", help="none of them may have run the release")


def _about(name: str, summary: str) -> dict[str, Any]:
    call = example(f"prdp ledger {EXAMPLES[name]}")
    return {"help": summary, "description": sentence(summary), "epilog": call}


def _add(acts: Any, name: str, summary: str, act_run: Run | None) -> Parser:
    parser: Parser = acts.add_parser(name, **_about(name, summary))
    parser.set_defaults(act_run=act_run)
    add_ledger(parser)
    add_json(parser)
    return parser


def _add_new_address(parser: Parser, about: str) -> None:
    parser.add_argument("address", nargs="?", metavar="ADDRESS", help=about)
    add_address(parser)
    add_json(parser)


def _new_address(arguments: argparse.Namespace) -> str | None:
    """Return the address of a ledger to make, by position or as --ledger."""
    if None not in (arguments.address, arguments.ledger) and arguments.address != arguments.ledger:
        raise PlanError(f"prdp ledger {arguments.act}: ADDRESS and --ledger name two ledgers: give one of them")
    address: str | None = arguments.ledger or arguments.address
    return address


def _add_for_release(acts: Any, name: str, summary: str, act_run: Run) -> Parser:
    parser = _add(acts, name, summary, act_run)
    parser.add_argument("release", metavar="RELEASE", help="the release")
    return parser


def _add_reason(parser: Parser, about: str) -> None:
    parser.add_argument("--reason", required=True, type=reason, metavar="TEXT", help=about)


def run(arguments: argparse.Namespace) -> None:
    """Carry out one act on the ledger."""
    if arguments.act in NOT_OPENED:
        NOT_OPENED[arguments.act](arguments)
        return
    url = site().ledger_for(arguments.ledger)
    ledger = open_ledger(url, first_use=arguments.act not in OF_ENTRIES)
    arguments.log.ledger(ledger.address)
    arguments.act_run(ledger.signed(operator_named(arguments.operator)), arguments)


def _create(arguments: argparse.Namespace) -> None:
    ledger = create_ledger(site().ledger_for(_new_address(arguments)))
    entries, head = ledger.head()
    if arguments.json:
        print_json({"ledger": ledger.address, "entries": entries, "head": head})
    else:
        put(f"ledger {ledger.address}: is there, with {entries} entries; head {head}")


def _migrate(arguments: argparse.Namespace) -> None:
    before, ledger = migrate_ledger(site().ledger_for(arguments.ledger), leave_drawn=arguments.leave_drawn)
    arguments.log.ledger(ledger.address)
    entries, head = ledger.verify()
    if arguments.json:
        print_json({"from": before, "to": SCHEMA_VERSION, "entries": entries, "head": head})
    else:
        put(f"schema version {before} → {SCHEMA_VERSION}; the chain of {entries} entries is complete; head {head}")


# Imports inside the acts below take up to a second, which `prdp ledger show` does not need.


def _state_limits(ledger: Ledger, arguments: argparse.Namespace) -> None:
    from pipeline.release.officers import correct, load_budget, register, unseen  # noqa: PLC0415

    budget = load_budget(arguments.budget, arguments.dataset)
    if arguments.act == "raise":
        ledger.raise_limits(budget, arguments.reason)
    else:
        (register if arguments.act == "init" else correct)(ledger, budget)
        if (warning := unseen(budget)) is not None:
            arguments.log.warning(warning)
    registered = ledger.budgets()[arguments.dataset]
    if arguments.json:
        print_json(registered.to_json())
    else:
        print_budget(registered)


def _verify(ledger: Ledger, arguments: argparse.Namespace) -> None:
    from pipeline.release.verify_releases import published_folders, require_in_chain, require_no_others  # noqa: PLC0415

    entries, head = ledger.verify()
    folders = [locate(text, what="--release") for text in arguments.release]
    folders += published_folders(ledger) if arguments.manifests else []
    if arguments.manifests:
        require_no_others(ledger)
    releases = [require_in_chain(ledger, folder) for folder in folders]
    if arguments.json:
        print_json({"entries": entries, "head": head, "releases": releases})
        return
    tell(f"the chain of {entries} entries is complete; head {head}")
    for release in releases:
        say(f"{release}: the published files match the chain")


def _health(ledger: Ledger, arguments: argparse.Namespace) -> None:
    from prdp.ledgers import Ledger as Public  # noqa: PLC0415

    given = {name: getattr(arguments, name) for name in ("longest", "longest_held", "least_free", "metrics")}
    print_findings(Public(ledger, False).health(**{k: v for k, v in given.items() if v is not None}), arguments.json)


def _check(arguments: argparse.Namespace) -> None:
    from prdp.plans import load_plan  # noqa: PLC0415

    locations = {name: getattr(arguments, name) for name in ("data", "out", "staging")}
    options = ledger_options(arguments) | {"command_log": arguments.log}
    checked = load_plan(arguments.plan, set=values_set(arguments)).check(**locations, **options)
    if arguments.json:
        print_json(checked)
    else:
        state = "fits the budget; nothing is reserved" if checked["state"] is None else f"is {checked['state']}"
        say(f"release {checked['release']}: {state}")


def _decide(ledger: Ledger, arguments: argparse.Namespace) -> None:
    from pipeline.release.attempts import give_up  # noqa: PLC0415
    from pipeline.release.officers import approve, reject, revoke, withdraw  # noqa: PLC0415

    release = arguments.release
    if arguments.act == "approve":
        approve(ledger, release, arguments.record_only)
    elif arguments.act in ("abort", "revoke"):
        (give_up if arguments.act == "abort" else revoke)(ledger, release)
    else:
        (reject if arguments.act == "reject" else withdraw)(ledger, release, arguments.reason)
    show_release(ledger, release, arguments.json)


def _number(text: str) -> int:
    if text not in map(str, range(1, MOST + 1)):
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MOST}")
    return int(text)


def _require(ledger: Ledger, arguments: argparse.Namespace) -> None:
    ledger.require_approvals(Required(arguments.approvals, arguments.by_others))
    required = ledger.required()
    if arguments.json:
        print_json(None if required is None else required.facts)
    elif required is not None:
        say(f"every release that is reserved from now on is held, and takes {required.words}")


def _export(ledger: Ledger, arguments: argparse.Namespace) -> None:
    for entry in ledger.entries():
        put(json.dumps(entry.exported(arguments.confidential), ensure_ascii=False, allow_nan=False))


def _import(arguments: argparse.Namespace) -> None:
    from prdp.ledgers import import_ledger  # noqa: PLC0415

    ledger = import_ledger(arguments.file, _new_address(arguments))._store
    arguments.log.ledger(ledger.address)
    entries, head = ledger.head()
    if arguments.json:
        print_json({"ledger": ledger.address, "entries": entries, "head": head, "closed": True})
    else:
        put(f"ledger {ledger.address}: has the chain of {entries} entries; head {head}")
        put("it is closed: where nothing was published since the export,")
        put(f"prdp ledger reopen --ledger {shlex.quote(ledger.address)}")


def _close(ledger: Ledger, arguments: argparse.Namespace) -> None:
    ledger.verify()  # a chain that is not whole is put back again from a backup, not closed
    ledger.close(arguments.reason)
    _say_open(ledger, arguments, [])


def _reopen(ledger: Ledger, arguments: argparse.Namespace) -> None:
    from pipeline.release.verify_releases import reopen  # noqa: PLC0415

    found = reopen(ledger, [locate(out, what="--out") for out in arguments.out])
    _say_open(ledger, arguments, found)


def _say_open(ledger: Ledger, arguments: argparse.Namespace, found: list[str]) -> None:
    closed = ledger.closed() is not None
    if arguments.json:
        print_json({"closed": closed, "found": found})
    elif closed:
        say("the ledger is closed: nothing is reserved, drawn or published before prdp ledger reopen")
    else:
        put(f"the ledger is open; published releases whose heads are in its chain: {len(found)}")


def _page(ledger: Ledger, arguments: argparse.Namespace) -> None:
    from pipeline.operations.officer_page import write_officer_page  # noqa: PLC0415

    path = write_officer_page(ledger, arguments.out)
    if arguments.json:
        print_json({"page": str(path), "confidential": True})
    else:
        put(f"page {path}: confidential")


def _purge(ledger: Ledger, arguments: argparse.Namespace) -> None:
    from pipeline.release.officers import purge  # noqa: PLC0415

    purged = purge(ledger, arguments.release)
    if arguments.json:
        print_json([{"release": each.release, "staging": each.root, "names": list(each.names)} for each in purged])
        return
    for each in purged:
        put(f"{each.release}: removed {', '.join(each.names)} from {each.root}")
    if not purged:
        put("nothing is staged beside live attempts")


# Acts that open the ledger by themselves: it may be absent, of an older version, or left to a function of prdp.
NOT_OPENED: dict[str, Callable[[argparse.Namespace], None]] = {
    "create": _create,
    "import": _import,
    "check": _check,
    "migrate": _migrate,
}
