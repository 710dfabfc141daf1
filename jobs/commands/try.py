"""prdp try: a whole plan on synthetic microdata, with drawn errors, losses, and a page to play with."""

import argparse

from jobs.options import Parser, add_call, add_json, called, values_set
from jobs.output import print_json, tell
from prdp.trials import try_plan, with_own_values

EXAMPLE = "prdp try plan.yaml --draws 20 --page plan.html"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_call(parser, try_plan, but=("scheduler", "master"))
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print what the trial showed; BudgetRefused where a plan breaks a limit of its own."""
    values = values_set(arguments)
    beside = [with_own_values(path, values) for path in arguments.beside or ()]
    tried = called(try_plan, arguments, beside=beside)
    if arguments.json:
        print_json(tried)
    else:
        tell(str(tried))
    tried.require_within()
