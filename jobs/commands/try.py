"""prdp try: a whole plan on synthetic microdata, with drawn errors, losses, and a page to play with."""

import argparse
from collections.abc import Mapping
from pathlib import Path

from jobs.options import Parser, add_json, add_plan, at_least_one, count, values_set
from jobs.output import print_json, tell
from pipeline.economy.published import FIGURES
from pipeline.errors import BudgetRefused
from pipeline.plan.text import read_text
from pipeline.trial.text import trial_text
from prdp.plans import load_plan
from prdp.trials import try_plan

EXAMPLE = "prdp try plan.yaml --draws 20 --page plan.html"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_plan(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--records", type=at_least_one, metavar="N", help="synthetic establishments (default: 300,000)")
    what.add_argument("--like", choices=FIGURES, metavar="FIGURES", help=f"add up to figures: {' or '.join(FIGURES)}")
    parser.add_argument("--states", type=_codes, default=(), metavar="CODES", help="with --like: 56,50 (default: all)")
    parser.add_argument(
        "--sizes",
        type=Path,
        metavar="FILE",
        help="a PUBLIC file: CSV with the header value,count, or records in the plan's columns",
    )
    parser.add_argument("--declared-public-by", metavar="NAME", help="who declares that file to be public")
    parser.add_argument("--draws", type=count, default=10, metavar="N", help="how often errors are drawn (default: 10)")
    parser.add_argument("--seed", type=count, default=0, metavar="S", help="same seed, same microdata (default: 0)")
    parser.add_argument(
        "--beside",
        type=Path,
        action="append",
        default=[],
        metavar="PLAN",
        help="another plan to try on the same microdata, with those values of --set that it declares (repeatable)",
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write an HTML page to play with the plan's scales")
    parser.add_argument(
        "--ledger", metavar="URL", help="with --sizes: read for fingerprints of known datasets (default: your own)"
    )
    parser.add_argument("--workers", type=at_least_one, metavar="N", help="local threads (default: all cores)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print what the trial found; BudgetRefused where a plan breaks a limit of its own."""
    names = ("records", "like", "states", "sizes", "declared_public_by", "draws", "seed", "page", "ledger")
    options = {name: getattr(arguments, name) for name in names}
    given = values_set(arguments)
    plan = load_plan(arguments.plan, set=given)
    beside = [load_plan(path, set=_of_its_own(path, given)) for path in arguments.beside]
    options |= {"beside": beside, "workers": arguments.workers}
    tried = try_plan(plan, **options, command_log=arguments.log)
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


def _of_its_own(path: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Return the values of those variables that another plan declares too."""
    declared = read_text(path).data.get("variables")
    return {name: value for name, value in given.items() if isinstance(declared, Mapping) and name in declared}


def _codes(text: str) -> list[str]:
    return text.split(",")
