"""prdp export: published or reconciled tables in another format; for everyone."""

import argparse
from pathlib import Path

from jobs.options import Parser, add_json
from jobs.output import print_json
from pipeline.product.export import EXPORTS, export
from pipeline.storage.uri import locate

EXAMPLE = "prdp export releases/cbp-2023-county --to csv --out tables"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "folder", metavar="OUT/RELEASE", help="the folder or URI that holds release.json or reconciled.json"
    )
    parser.add_argument("--to", choices=EXPORTS, required=True, help="format of the tables")
    parser.add_argument("--table", action="append", default=[], metavar="TABLE", help="this table alone; repeatable")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder to write, new or empty (default: <release>-<format>)"
    )
    parser.add_argument("--agency", metavar="ID", help="sdmx: who maintains the structures (default: PRDP)")
    parser.add_argument("--year", type=int, help="sdmx: the year of the figures, as the dimension TIME_PERIOD")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the tables, then print where they are."""
    options = {"agency": arguments.agency, "year": arguments.year}
    made = export(locate(arguments.folder, what="OUT/RELEASE"), arguments.to, arguments.out, arguments.table, **options)
    if arguments.json:
        print_json(made)
        return
    if "release" in made:
        print(f"release {made['release']}, attempt {made['attempt']}: its files match the manifest")
    else:
        print(f"reconciled tables of {', '.join(made['releases'])}: their files match the manifest")
    for query, table in made["tables"].items():
        print(f"{query}: {table['rows']:,} rows in {table['path']}")
