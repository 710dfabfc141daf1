"""prdp generate: synthetic microdata and all that a first release needs."""

import argparse
from pathlib import Path
from typing import Any

from jobs.options import Parser, add_json, add_new_folder, add_set, count, values_set
from jobs.output import print_columns, print_json, put
from pipeline.base.errors import PlanError
from pipeline.planning.economy.generate import generate
from pipeline.planning.economy.like import generate_like
from pipeline.planning.economy.published import FIGURES, withheld_today
from prdp.plans import load_plan
from prdp.studies import beside_today
from udfs.numbers.exact import bound_text

EXAMPLE = "prdp generate --records 1000000 --out data"
MEASURED = ("establishments", "employment", "payroll")


def declare(parser: Parser) -> None:
    """Add the command's options."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--records", type=count, metavar="N", help="number of establishments")
    what.add_argument(
        "--like", choices=FIGURES, metavar="FIGURES", help=f"add up to published figures: {' or '.join(FIGURES)}"
    )
    parser.add_argument("--states", type=_codes, default=(), metavar="CODES", help="with --like: 56,50 (default: all)")
    parser.add_argument("--describe", action="store_true", help="with --like: what is withheld today; writes nothing")
    parser.add_argument(
        "--beside", type=Path, metavar="PLAN", help="with --describe: errors of the plan's tables in the same cells"
    )
    add_set(parser, "the value of a variable of --beside's plan")
    parser.add_argument("--seed", type=count, default=0, metavar="S", help="same seed, same bytes (default: 0)")
    add_new_folder(parser, required=False)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the microdata, the domain and a plan, or describe figures."""
    if not arguments.like and (arguments.describe or arguments.states):
        raise PlanError(f"--{'describe' if arguments.describe else 'states'}: it goes with --like alone")
    if arguments.describe and (arguments.out or arguments.states):
        raise PlanError("--describe: it writes nothing and counts all states: leave out --out and --states")
    if arguments.beside and not arguments.describe:
        raise PlanError("--beside: it goes with --describe alone")
    if arguments.set and not arguments.beside:
        raise PlanError("--set: it goes with --beside alone")
    if arguments.describe:
        described, show = (
            (beside_today(arguments.like, load_plan(arguments.beside, set=values_set(arguments))), _print_beside)
            if arguments.beside
            else (withheld_today(arguments.like), _print_withheld)
        )
        (print_json if arguments.json else show)(described)
        return
    if arguments.out is None:
        raise PlanError("--out: a folder to write, new or empty, is needed")

    if arguments.like:
        made = generate_like(arguments.like, arguments.seed, arguments.out, states=arguments.states)
    else:
        made = generate(arguments.records, arguments.seed, arguments.out)
    if arguments.json:
        print_json({"microdata": str(made.microdata), "plan": str(made.plan), "records": made.records})
    else:
        put(f"microdata {made.microdata}\nplan      {made.plan}\nnext      prdp release {made.plan}")


def _codes(text: str) -> list[str]:
    return text.split(",")


def _print_withheld(described: dict[str, Any]) -> None:
    rows = [["level", *(head for kind in ("cells listed", "filled in") for head in (kind, "withheld", "these hold"))]]
    for level in described["levels"]:
        rows.append([level["level"]])
        for counted in (level["listed"], level["filled_in"]):
            shares = (f"{counted[f'{of}_share']:.1%}" for of in ("cells", "establishments"))
            rows[-1] += [f"{counted['cells']:,}", *shares]
    print_columns(rows)
    rest = described["not_listed"]
    put("withheld: employment, flag D or S; these hold: their share of establishments")
    put("filled in: with codes that figures leave out as their parent's only child")
    put(f"not listed: {rest['establishments']:,} establishments of eleven other codes, in {rest['cells']} cells")


def _print_beside(figures: dict[str, Any]) -> None:
    """Print what `beside_today` returned: by today's flag, by size of cell, and what records lose."""
    rows = [["level", "today", "cells", "employment", "90 %", "usable", "payroll", "90 %", "usable"]]
    for level in figures["levels"]:
        for flag, cells in level["flags"].items():
            measured = [_text(cells[of]) for of in ("employment", "payroll")]
            rows.append([level["level"], flag, f"{cells['cells']:,}", *measured[0], *measured[1]])
    print_columns(rows)
    put("today: G, H: published with noise of less than 2 % and 5 %; D, S: withheld")
    put("employment, payroll: median relative error; 90 %: nine in ten errors are below")
    put()
    rows = [["level", "withheld today", "of these usable: employment"]]
    for level in figures["levels"]:
        rows.append([level["level"], f"{level['withheld_share']:.1%}", f"{level['usable_employment']:.0%}"])
    print_columns(rows)
    put("usable: the chance of a relative error of at most 30 %, on average over cells")
    put()
    rows = [["level", "employees", "cells", *(head for of in ("estab.", *MEASURED[1:]) for head in (of, "90 %"))]]
    for level in figures["levels"]:
        for cells in level["sizes"]:
            errors = [text for of in MEASURED for text in _text(cells[of])[:2]]
            rows.append([level["level"], f"from {cells['from']:,}", f"{cells['cells']:,}", *errors])
    print_columns(rows)
    put()
    rows = [["a record of", "loses in these tables", "in the whole plan", "all no larger"]]
    for loss in figures["losses"]:
        rows.append([loss["label"], *(bound_text(loss[kind], 3) for kind in ("tables", "plan", "all_no_larger"))])
    print_columns(rows)


def _text(errors: dict[str, float | None]) -> list[str]:
    shares = (errors[kind] for kind in ("median", "ninety", "usable"))
    return ["-" if share is None else f"{share:.2%}" if 0 < share < 0.1 else f"{share:,.0%}" for share in shares]
