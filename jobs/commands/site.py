"""prdp site: a public site of a published release, also with reconciled figures and a product; for everyone."""

import argparse

from jobs.options import Parser, add_json, add_new_folder
from jobs.output import print_json
from prdp.releases import site

EXAMPLE = "prdp site releases/cbp-2023-county reconciled --product cbp23 --out site"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("release", metavar="OUT/RELEASE", help="the folder or URI that holds release.json")
    parser.add_argument(
        "reconciled", nargs="?", metavar="RECONCILED", help="a folder that prdp reconcile made: its figures are shown"
    )
    parser.add_argument(
        "--product",
        metavar="PRODUCT",
        help="a folder that prdp product made of the release: its files are for download",
    )
    add_new_folder(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the site, then print where it is."""
    made = site(arguments.release, arguments.out, reconciled=arguments.reconciled, product=arguments.product)
    if arguments.json:
        print_json(made)
        return
    print(f"release {made['release']}, attempt {made['attempt']}: its files match the manifest")
    shown = f", {len(made['reconciled'])} of them with reconciled figures" if made["reconciled"] else ""
    shown += f", {len(made['product'])} files of the product" if made["product"] else ""
    print(f"site of {len(made['tables'])} tables{shown}: open {made['out']}/index.html")
