"""prdp prepare: checked, typed, sorted microdata for repeated releases; confidential."""

import argparse
from pathlib import Path

from jobs.inputs import chosen_engine
from jobs.options import Parser, add_engine, add_json, add_ledger, add_new_folder
from jobs.output import print_json
from pipeline.ledger.store import open_ledger
from pipeline.plan.load import load_plan
from pipeline.preparation.prepare import PrepareJob, prepare
from pipeline.storage.uri import locate

EXAMPLE = "prdp prepare raw.csv --plan plan.yaml --out prepared"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("raw", metavar="RAW", help="the microdata, Parquet or CSV, a file or a folder")
    parser.add_argument("--plan", type=Path, required=True, metavar="PLAN", help="a plan of the dataset, a YAML file")
    add_new_folder(parser)
    add_engine(parser)
    add_ledger(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Prepare the microdata, then print where they are; their number stays in the confidential manifest."""
    with chosen_engine(arguments) as engine:
        plan = load_plan(arguments.plan)
        job = PrepareJob(
            plan=plan,
            raw=locate(arguments.raw, what="RAW").resolve("RAW"),
            out=arguments.out.absolute(),
            ledger=open_ledger(arguments.ledger),
            engine=engine,
            log=arguments.log,
        )
        manifest = prepare(job)
    if arguments.json:
        result = {"dataset": plan.dataset.name, "out": str(manifest.parent), "manifest": str(manifest)}
        print_json(result | {"confidential": True})
    else:
        print(f"prepared microdata of {plan.dataset.name}, confidential\nmanifest {manifest}")
        print(f"release from them: prdp release {arguments.plan} --data {manifest.parent}")
