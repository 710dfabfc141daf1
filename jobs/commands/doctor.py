"""prdp doctor: what is wrong with this machine and its ledger, and how to mend it."""

import argparse

from jobs.options import Parser, above_zero, add_json
from jobs.output import print_findings
from pipeline.engines.registry import ENGINES
from prdp.health import doctor

EXAMPLE = "prdp doctor --ledger /srv/prdp/ledger/ledger.sqlite --out /srv/prdp/releases"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("--ledger", metavar="URL", help="the ledger (default: the site's, or a file of the user's)")
    parser.add_argument("--staging", metavar="URI", help="as of prdp release (default: those that the ledger knows)")
    parser.add_argument("--out", metavar="URI", help="as of prdp release (default: that of the last release)")
    parser.add_argument("--engine", choices=list(ENGINES), help="the engine that must run (default: what is set up)")
    parser.add_argument("--least-free", type=above_zero, default=1.0, metavar="GB", help="on each disk (default: 1)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print what was found."""
    given = {name: getattr(arguments, name) for name in ("ledger", "staging", "out", "engine", "least_free")}
    print_findings(doctor(**given), arguments.json)
