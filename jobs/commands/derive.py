"""prdp derive: ratios, shares and change of published totals, with their errors; for everyone."""

import argparse
from math import isnan
from typing import Any

from jobs.options import Parser, add_call, add_json, called
from jobs.output import print_json, put
from pipeline.base.errors import PlanError
from prdp.reconciled import derive, derive_table

EXAMPLE = 'prdp derive releases/cbp-2023 --ratio payroll/employment --where "naics2=31-33, state=06"'


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_call(parser, derive)
    add_call(parser, derive_table, only=("out", "csv"))
    parser.epilog = (
        f"{parser.epilog}\n\nWith --out the statistic is one of each cell; MEASURE is then the name of a table."
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the statistic, or write that of every cell."""
    if arguments.out is None:
        if arguments.csv:
            raise PlanError("prdp derive --csv: it goes with --out")
        statistics = called(derive, arguments)
        if arguments.json:
            print_json([each.to_json() for each in statistics])
            return
        for each in statistics:
            _print(each)
        return
    if arguments.where or arguments.inside or arguments.mean:
        raise PlanError("prdp derive --out: its tables have all cells; --where, --inside and --mean go without it")
    facts = called(derive_table, arguments)
    if arguments.json:
        print_json(facts)
        return
    put(f"{facts['table']}: {facts['statistic']} of {facts['rows']:,} cells in {arguments.out}")
    for note in facts["notes"]:
        put(f"  {note}")


def _print(derived: Any) -> None:
    filters = {level: codes for total in derived.totals.values() for level, codes in total.where.items()}
    cells = ", ".join(f"{level} in {','.join(codes)}" for level, codes in filters.items()) or "all cells"
    error = "" if isnan(derived.standard_error) else f", standard error {derived.standard_error:,.6g}"
    ends = f", {100 * derived.interval:g} % between {derived.lower:,.6g} and {derived.upper:,.6g}"
    put(f"{derived.statistic}, {cells}: {derived.value:,.6g}{error}{'' if isnan(derived.lower) else ends}")
    for note in derived.notes:
        put(f"  {note}")
