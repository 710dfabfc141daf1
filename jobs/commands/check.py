"""prdp check: look at the microdata before a release; its report is private, and nothing is charged."""

import argparse

from jobs.options import Parser, add_data, add_plan, add_run, run_options, values_set
from jobs.output import print_json
from pipeline.errors import MicrodataError
from prdp.plans import load_plan

EXAMPLE = "prdp check plan.yaml --report confidential/cbp-2023.txt"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_plan(parser)
    add_data(parser)
    parser.add_argument(
        "--report",
        metavar="FILE",
        help="file to write, a new one, with --json as JSON (default: one in checks/ beside the ledger's staging)",
    )
    add_run(parser)


def run(arguments: argparse.Namespace) -> None:
    """Check the microdata, then say where the report is; exit code 4 where it tells of something."""
    made = load_plan(arguments.plan, set=values_set(arguments)).check_microdata(
        arguments.data,
        report=arguments.report,
        as_json=arguments.json,
        **run_options(arguments),
    )
    found = made.pop("found")
    if arguments.json:
        print_json(made)
    if found:
        raise MicrodataError(f"the check found something: read its report {made['report']}, which is confidential")
    if not arguments.json:
        print(f"the check of the microdata of {made['dataset']} found nothing\nreport {made['report']}, confidential")
