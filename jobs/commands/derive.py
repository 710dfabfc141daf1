"""prdp derive: ratios, shares and change of published totals, with their errors; for everyone."""

import argparse
from collections.abc import Mapping
from math import isnan
from typing import Any

from jobs.commands.reconcile import add_estimates, estimate_options
from jobs.options import Parser, add_json, add_new_folder
from jobs.output import print_json
from pipeline.errors import PlanError
from pipeline.product.derived import Derived
from prdp.derived import derive, derive_table

EXAMPLE = 'prdp derive releases/cbp-2023 --ratio payroll/employment --where "naics2=31-33, state=06"'


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("releases", nargs="+", metavar="OUT/RELEASE", help="folders or URIs that hold release.json")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--total", metavar="MEASURE", help="the total itself, or with --since its change")
    what.add_argument("--ratio", metavar="MEASURE/MEASURE", help="one total over another, such as payroll/employment")
    what.add_argument("--share", metavar="MEASURE", help="the share that --where has of --inside, or of all cells")
    parser.add_argument(
        "--where", default="", metavar="CELLS", help='the cells, such as "naics2=31-33, state in 06,48"'
    )
    parser.add_argument(
        "--inside", default="", metavar="CELLS", help="the cells of the total of --share (default: all)"
    )
    parser.add_argument("--since", nargs="+", metavar="OUT/RELEASE", help="releases of before, to compare --total with")
    parser.add_argument("--published", action="store_true", help="take totals as published, without reconciling them")
    parser.add_argument("--mean", action="store_true", help="the best mean of all published tables of stable noise")
    add_new_folder(parser, required=False)
    parser.epilog = (
        f"{parser.epilog}\n\nWith --out the statistic is one of each cell; MEASURE is then the name of a table."
    )
    parser.add_argument("--csv", action="store_true", help="write the table of --out as CSV too")
    add_estimates(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the statistic, or write that of every cell."""
    chosen = {name: getattr(arguments, name) for name in ("total", "ratio", "share", "since", "published")}
    options: dict[str, Any] = chosen | estimate_options(arguments)
    if arguments.out is None:
        if arguments.csv:
            raise PlanError("prdp derive --csv: it goes with --out")
        cells = {name: getattr(arguments, name) for name in ("where", "inside", "mean")}
        found = derive(arguments.releases, **cells, **options)
        if arguments.json:
            print_json([each.to_json() for each in found])
            return
        for each in found:
            _print(each)
        return
    if arguments.where or arguments.inside or arguments.mean:
        raise PlanError("prdp derive --out: its tables have all cells; --where, --inside and --mean go without it")
    facts = derive_table(arguments.releases, arguments.out, csv=arguments.csv, **options)
    if arguments.json:
        print_json(facts)
    else:
        _print_table(facts, arguments.out)


def _print(derived: Derived) -> None:
    told = {level: codes for total in derived.totals.values() for level, codes in total.where.items()}
    cells = ", ".join(f"{level} in {','.join(codes)}" for level, codes in told.items()) or "all cells"
    error = "" if isnan(derived.standard_error) else f", standard error {derived.standard_error:,.6g}"
    ends = f", {100 * derived.interval:g} % between {derived.lower:,.6g} and {derived.upper:,.6g}"
    print(f"{derived.statistic}, {cells}: {derived.value:,.6g}{error}{'' if isnan(derived.lower) else ends}")
    for note in derived.notes:
        print(f"  {note}")


def _print_table(facts: Mapping[str, Any], out: Any) -> None:
    print(f"{facts['table']}: {facts['statistic']} of {facts['rows']:,} cells in {out}")
    for note in facts["notes"]:
        print(f"  {note}")
