"""prdp try: a whole plan on synthetic microdata, with drawn errors, losses, and a page to play with."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from jobs.options import Parser, add_call, add_json, called, values_set
from jobs.output import print_json, tell
from pipeline.base.errors import BudgetRefused
from pipeline.plan.plan_text import read_text
from pipeline.planning.study.trial_text import trial_text
from prdp.plans import load_plan
from prdp.trials import try_plan

EXAMPLE = "prdp try plan.yaml --draws 20 --page plan.html"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_call(parser, try_plan, but=("scheduler", "master"))
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print what the trial found; BudgetRefused where a plan breaks a limit of its own."""
    given = values_set(arguments)
    beside = [load_plan(path, set=_of_its_own(path, given)) for path in arguments.beside or ()]
    tried = called(try_plan, arguments, beside=beside)
    if arguments.json:
        print_json(tried)
    else:
        tell(trial_text(tried))
    broken = [plan["release"] for plan in tried["plans"] if not all(limit["within"] for limit in plan["limits"])]
    if broken:
        raise BudgetRefused(
            f"release {broken[0]}: breaks a limit of its own plan, and would be refused: "
            "choose larger scales, or play with --page FILE"
        )


def _of_its_own(path: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the values of those variables that another plan declares too."""
    declared = read_text(Path(path)).data.get("variables")
    return {name: value for name, value in given.items() if isinstance(declared, Mapping) and name in declared}
