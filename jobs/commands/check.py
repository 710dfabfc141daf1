"""prdp check: look at the microdata before a release; its report is private, and nothing is charged."""

import argparse

from jobs.options import Parser, add_call, add_json, called
from jobs.output import print_json, put
from pipeline.base.errors import MicrodataError
from prdp.plans import Plan

EXAMPLE = "prdp check plan.yaml --report confidential/cbp-2023.txt"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_call(parser, Plan.check_microdata)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Check the microdata, then say where the report is; exit code 4 where it tells of something."""
    made = called(Plan.check_microdata, arguments, as_json=arguments.json)
    mistaken = made.pop("found")
    if arguments.json:
        print_json(made)
    if mistaken:
        raise MicrodataError(f"the check found something: read its report {made['report']}, which is confidential")
    if not arguments.json:
        put(f"the check of the microdata of {made['dataset']} found nothing\nreport {made['report']}, confidential")
