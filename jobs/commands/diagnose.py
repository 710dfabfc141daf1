"""prdp diagnose: losses of the actual records, and errors against the true totals; confidential."""

import argparse
from pathlib import Path

from jobs.options import Parser, add_data, add_plan, add_run, run_options, values_set
from jobs.output import print_json
from prdp.microdata import diagnose
from prdp.plans import load_plan

EXAMPLE = "prdp diagnose plan.yaml --out confidential/cbp-2023"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_plan(parser)
    add_data(parser)
    parser.add_argument("--out", required=True, metavar="URI", help="folder to write, new or empty")
    parser.add_argument(
        "--release",
        type=Path,
        metavar="FOLDER",
        help="a published release of the plan to compare with the true totals (default: the one in releases/ beside "
        "the plan, if there)",
    )
    parser.add_argument(
        "--per-record", action="store_true", help="also write the losses of every record and firm, as Parquet"
    )
    add_run(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the diagnostics, then print where they are: their contents stay there."""
    made = diagnose(
        load_plan(arguments.plan, set=values_set(arguments)),
        arguments.out,
        arguments.data,
        release=arguments.release,
        per_record=arguments.per_record,
        **run_options(arguments),
    )
    if arguments.json:
        print_json(made)
    else:
        print(f"confidential diagnostics of {made['release']}\nreport {made['report']}\ndata   {made['diagnostics']}")
