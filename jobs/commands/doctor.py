"""prdp doctor: what is wrong with this machine and its ledger, and how to mend it."""

import argparse

from jobs.options import Parser, add_call, add_json, called
from jobs.output import print_findings
from prdp.verified import doctor

EXAMPLE = "prdp doctor --ledger /srv/prdp/ledger/ledger.sqlite --out /srv/prdp/releases"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_call(parser, doctor)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print what was found."""
    print_findings(called(doctor, arguments), arguments.json)
