"""prdp generate: synthetic microdata and all that a first release needs."""

import argparse
from typing import Any

from jobs.options import Parser, add_json, add_new_folder, count
from jobs.output import print_columns, print_json
from pipeline.economy.generate import generate
from pipeline.economy.like import generate_like
from pipeline.economy.published import FIGURES, withheld_today
from pipeline.errors import PlanError

EXAMPLE = "prdp generate --records 1000000 --out data"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--records", type=count, metavar="N", help="number of establishments")
    what.add_argument(
        "--like", choices=FIGURES, metavar="FIGURES", help=f"add up to published figures: {' or '.join(FIGURES)}"
    )
    parser.add_argument("--states", type=_codes, default=(), metavar="CODES", help="with --like: 56,50 (default: all)")
    parser.add_argument("--describe", action="store_true", help="with --like: what is withheld today; writes nothing")
    parser.add_argument("--seed", type=count, default=0, metavar="S", help="same seed, same bytes (default: 0)")
    add_new_folder(parser, required=False)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the microdata, the domain and a plan, or describe figures."""
    if not arguments.like and (arguments.describe or arguments.states):
        raise PlanError(f"--{'describe' if arguments.describe else 'states'}: it goes with --like alone")
    if arguments.describe and (arguments.out or arguments.states):
        raise PlanError("--describe: it writes nothing and counts all states: leave out --out and --states")
    if arguments.describe:
        described = withheld_today(arguments.like)
        if arguments.json:
            print_json(described)
        else:
            _print_withheld(described)
        return
    if arguments.out is None:
        raise PlanError("--out: a folder to write, new or empty, is needed")

    def tell(done: int, files: int) -> None:
        arguments.log.progress(f"wrote file {done} of {files}")

    if arguments.like:
        made = generate_like(arguments.like, arguments.seed, arguments.out, states=arguments.states, on_file=tell)
    else:
        made = generate(arguments.records, arguments.seed, arguments.out, on_file=tell)
    if arguments.json:
        print_json({"microdata": str(made.microdata), "plan": str(made.plan), "records": made.records})
    else:
        print(f"microdata {made.microdata}\nplan      {made.plan}\nnext      prdp release {made.plan}")


def _codes(text: str) -> list[str]:
    return text.split(",")


def _print_withheld(described: dict[str, Any]) -> None:
    kinds = {"listed": "as listed", "filled_in": "filled in"}
    rows = [
        ["level", *(f"{head} {kind}" for kind in kinds.values() for head in ("cells", "withheld", "establishments"))]
    ]
    for level in described["levels"]:
        shares = [
            text
            for counted in (level[kind] for kind in kinds)
            for text in (
                f"{counted['cells']:,}",
                f"{counted['cells_share']:.1%}",
                f"{counted['establishments_share']:.1%}",
            )
        ]
        rows.append([level["level"], *shares])
    print_columns(rows)
    rest = described["not_listed"]
    print("withheld: employment, flag D or S; establishments: those in withheld cells, of the level's")
    print("filled in: codes that the figures leave out, since they are their parent's only child")
    print(f"not listed: {rest['establishments']:,} establishments of eleven other codes, in {rest['cells']} cells")
