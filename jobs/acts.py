"""The options of `prdp ledger`, and those by which every command names its ledger and who acts."""

import argparse
from pathlib import Path
from typing import Any

LEDGER = "the ledger: a path or postgresql://user@host/database (default: the site's, or a file of the user's)"


def add_ledger(command: argparse.ArgumentParser) -> None:
    """Add the options that say which ledger is used, and by whom."""
    command.add_argument("--ledger", metavar="URL", help=LEDGER)
    command.add_argument(
        "--operator",
        metavar="NAME",
        help="who acts, for the record; it is supplied, not proved (default: PRDP_OPERATOR, or the login name)",
    )


def add_acts(acts: "argparse._SubParsersAction[Any]", debug: argparse.ArgumentParser) -> None:
    """Add what can be done with a ledger."""

    def act(name: str, about: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = acts.add_parser(name, parents=[debug], help=about)
        add_ledger(added)
        added.add_argument("--json", action="store_true", help="print JSON")
        return added

    def of_release(name: str, about: str, reason: str | None = None) -> argparse.ArgumentParser:
        added = act(name, about)
        added.add_argument("release", metavar="RELEASE", help="the release")
        if reason is not None:
            added.add_argument("--reason", required=True, type=_reason, metavar="TEXT", help=reason)
        return added

    for name, about in (
        ("init", "register a dataset, or a family of datasets, with its limits"),
        ("raise", "state the limits of a dataset or family anew, for a recorded reason"),
    ):
        stating = act(name, about)
        stating.add_argument("dataset", metavar="DATASET", help="the dataset or family")
        stating.add_argument("--budget", type=Path, required=True, metavar="FILE", help="what it is, and its limits")
        if name == "raise":
            stating.add_argument("--reason", required=True, type=_reason, metavar="TEXT", help="why, for the record")

    check = act("check", "whether a plan's release would be reserved or refused; reserves nothing, reads no record")
    check.add_argument("plan", type=Path, metavar="PLAN", help="the plan, a YAML file")
    for option, what in (("data", "microdata"), ("out", "output"), ("staging", "staging")):
        check.add_argument(f"--{option}", metavar="URI", help=f"the {what} place, as prdp release would be given it")

    show = act("show", "releases and budgets; with --at what is spent and left at a reference")
    show.add_argument("release", nargs="?", metavar="RELEASE", help="only this release")
    show.add_argument("--dataset", metavar="DATASET", help="only this dataset")
    show.add_argument(
        "--at",
        metavar="REFERENCE",
        help="a record, such as employment=10,payroll=500; of a firm several, with ';' between them",
    )
    verify = act("verify", "check the chain of entries, and manifests against it")
    verify.add_argument(
        "--release",
        action="append",
        default=[],
        metavar="OUT/RELEASE",
        help="a published release whose manifest and files must be those of the chain (repeatable)",
    )
    verify.add_argument("--manifests", action="store_true", help="so for every release, where it was published")

    act("migrate", "bring the ledger's schema to this version of prdp; older ones refuse it afterwards")

    approve = of_release("approve", "let a held release be published, and publish it")
    approve.add_argument(
        "--record-only", action="store_true", help="record it alone: the next prdp release of the plan publishes"
    )
    of_release("reject", "never publish a held release; it stays charged", "why, for the record")
    of_release("abort", "give up a release that is not published")
    of_release("withdraw", "take a published release back; it stays charged", "why: it is published in the note")
    export = act("export", "every entry as a line of JSON, without confidential facts")
    export.add_argument("--confidential", action="store_true", help="with them: input digests, salts, places")
    staging = acts.add_parser("staging", help="what is staged")
    purge = staging.add_subparsers(dest="staging_act", required=True, metavar="ACT").add_parser(
        "purge", parents=[debug], help="remove what is staged and is no live attempt, and record it"
    )
    purge.add_argument("release", nargs="?", metavar="RELEASE", help="only this release")
    add_ledger(purge)
    purge.add_argument("--json", action="store_true", help="print JSON")


def _reason(text: str) -> str:
    if not text.strip() or len(text) > 1000:
        raise argparse.ArgumentTypeError("a reason of 1 to 1,000 characters is needed")
    return text.strip()
