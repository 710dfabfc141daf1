"""prdp site: a public site of a published release, also with reconciled figures; for everyone."""

import argparse

from jobs.options import Parser, add_json, add_new_folder
from jobs.output import print_json
from prdp.releases import site

EXAMPLE = "prdp site releases/cbp-2023-county reconciled --out site"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("release", metavar="OUT/RELEASE", help="the folder or URI that holds release.json")
    parser.add_argument(
        "reconciled", nargs="?", metavar="RECONCILED", help="a folder that prdp reconcile made: its figures are shown"
    )
    add_new_folder(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the site, then print where it is."""
    made = site(arguments.release, arguments.out, reconciled=arguments.reconciled)
    if arguments.json:
        print_json(made)
        return
    print(f"release {made['release']}, attempt {made['attempt']}: its files match the manifest")
    shown = f", {len(made['reconciled'])} of them with reconciled figures" if made["reconciled"] else ""
    print(f"site of {len(made['tables'])} tables{shown}: open {made['out']}/index.html")
