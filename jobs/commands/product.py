"""prdp product: the files that users load, of published releases; for everyone."""

import argparse
from pathlib import Path

from jobs.options import Parser, add_json, add_new_folder, add_sign
from jobs.output import print_json
from prdp.releases import product

EXAMPLE = "prdp product releases/cbp-2023 --out cbp23 --year 2023"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("releases", nargs="+", metavar="OUT/RELEASE", help="folders or URIs that hold release.json")
    add_new_folder(parser)
    parser.add_argument(
        "--product",
        default="cbp",
        metavar="PRODUCT",
        help="a YAML file, or a name of conf/products (default: cbp)",
    )
    parser.add_argument("--year", type=int, help="the year in the names of files (default: the product's)")
    parser.add_argument(
        "--reconciled", metavar="DIR", help="what prdp reconcile made of these releases: shown in place of their values"
    )
    add_sign(parser, "product.json")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the product, then print what it holds."""
    options = {name: getattr(arguments, name) for name in ("product", "year", "reconciled", "sign")}
    made = product(arguments.releases, arguments.out, **options)
    if arguments.json:
        print_json(made)
        return
    for release in made["releases"]:
        print(f"release {release['release']}, attempt {release['attempt']}: its files match the manifest")
    size = sum(file["bytes"] for file in made["files"])
    print(f"product {made['product']}: {len(made['files'])} files, {size:,} bytes in {Path(arguments.out)}")
