"""prdp prepare: checked, typed, sorted microdata for repeated releases; confidential."""

import argparse
from pathlib import Path

from jobs.options import Parser, add_new_folder, add_run, add_set, run_options, values_set
from jobs.output import print_json
from prdp.microdata import prepare
from prdp.plans import load_plan

EXAMPLE = "prdp prepare raw.csv --plan plan.yaml --out prepared"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("raw", metavar="RAW", help="the microdata: Parquet or CSV files, a Delta or an Iceberg table")
    parser.add_argument("--plan", type=Path, required=True, metavar="PLAN", help="a plan of the dataset, a YAML file")
    add_set(parser)
    add_new_folder(parser)
    add_run(parser)


def run(arguments: argparse.Namespace) -> None:
    """Prepare the microdata, then print where they are; their number stays in the confidential manifest."""
    plan = load_plan(arguments.plan, set=values_set(arguments))
    prepared = prepare(plan, arguments.raw, arguments.out, **run_options(arguments))
    if arguments.json:
        print_json(prepared)
    else:
        print(f"prepared microdata of {prepared['dataset']}, confidential\nmanifest {prepared['manifest']}")
        if prepared["registered"] in (None, prepared["out"]):
            values = "".join(f" --set {value}" for value in arguments.set)
            print(f"release from them: prdp release {arguments.plan}{values} --data {prepared['out']}")
        else:
            print(
                f"the ledger registers the dataset with {prepared['registered']}, and releases it from there alone: "
                f"before its first release an officer can register {prepared['out']} instead, by prdp ledger correct"
            )
