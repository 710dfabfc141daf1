"""prdp release: release a plan's tables, or continue where an earlier run stopped."""

import argparse
from pathlib import Path

import pyarrow.parquet as pq

from jobs.inputs import chosen_engine, microdata_location, option_location, output_location
from jobs.options import Parser, add_data, add_engine, add_json, add_ledger, add_plan
from jobs.output import print_json
from pipeline.ledger.store import open_ledger
from pipeline.plan.load import load_plan
from pipeline.release.lineage import recorded_lineage
from pipeline.release.run import Job, Outcome
from pipeline.release.run import run as run_job
from pipeline.storage.uri import locate

EXAMPLE = "prdp release plan.yaml --out releases --csv"
ROWS_SHOWN = 4


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_plan(parser)
    add_data(parser)
    parser.add_argument("--out", metavar="URI", help="where to publish (default: releases/ beside the plan)")
    parser.add_argument(
        "--staging", metavar="URI", help="where draws lie until they are published (default: beside the ledger)"
    )
    add_engine(parser)
    add_ledger(parser)
    parser.add_argument(
        "--hold", action="store_true", help="publish nothing before an officer approves (prdp ledger approve)"
    )
    parser.add_argument(
        "--lineage",
        type=Path,
        metavar="FILE",
        help="append the release's inputs and outputs to FILE, as OpenLineage events, one a line",
    )
    parser.add_argument("--csv", action="store_true", help="write every table as CSV too")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Release or hold, then print where the tables are, and a few rows of published ones."""
    with chosen_engine(arguments) as engine:
        plan = load_plan(arguments.plan)
        job = Job(
            plan=plan,
            microdata=microdata_location(arguments, plan),
            out=output_location(arguments, plan),
            staging=option_location(arguments.staging, "--staging"),
            engine=engine,
            ledger=open_ledger(arguments.ledger).signed(arguments.operator),
            formats=("csv",) if arguments.csv else (),
            hold=arguments.hold,
            registered_only=arguments.registered_only,
            log=arguments.log,
        )
        with recorded_lineage(plan, job.ledger, arguments.lineage):
            outcome = run_job(job)
    if arguments.json:
        print_json(outcome.to_json())
    else:
        _show(outcome)


def _show(outcome: Outcome) -> None:
    print(f"release {outcome.release}, attempt {outcome.attempt}: {outcome.state}")
    if outcome.state == "held":
        print("nothing is published yet: an officer looks at the staged tables, which are confidential, and runs")
        print(f"prdp ledger approve {outcome.release}, or prdp ledger reject {outcome.release} --reason TEXT")
    else:
        print(f"manifest {outcome.out / outcome.release / 'release.json'}")
    for query, table in outcome.tables.items():
        print(f"\n{query}: {table['rows']:,} rows in {table['path']}")
        if outcome.state == "held":
            continue
        first = locate(table["path"]) / "part-00000.parquet"
        with first.open() as raw, pq.ParquetFile(raw) as file:
            print(next(file.iter_batches(ROWS_SHOWN)).to_pandas().to_string(index=False))
