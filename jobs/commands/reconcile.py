"""prdp reconcile: estimates of published tables that add up; for everyone."""

import argparse
from collections.abc import Mapping
from typing import Any

from jobs.options import Parser, add_call, add_json, called
from jobs.output import print_columns, print_json, put
from pipeline.base.errors import PlanError
from prdp.reconciled import Reconciled, reconcile

EXAMPLE = (
    'prdp reconcile releases/cbp-2023-county --out reconciled --sum "naics2=31-33, state in 06,48" --of employment'
)
AT_EXPECTED = "at the expected totals"  # which errors these are, of noise that grows with totals


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_call(parser, reconcile)
    add_call(parser, Reconciled.sum)
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write the tables, or the sums alone, then print what was made."""
    engine = {name: getattr(arguments, name) for name in ("engine", "scheduler", "workers", "master")}
    if arguments.out is None:
        if not arguments.where:
            raise PlanError("prdp reconcile: give --out DIR for the tables, --sum CELLS for a sum of cells, or both")
        if arguments.sign:
            raise PlanError("prdp reconcile: --sign signs the tables' manifest: give --out DIR")
        if any(value is not None for value in engine.values()):
            raise PlanError("prdp reconcile: engines make tables: give --out DIR, or leave the engine's options out")
    reconciled = called(reconcile, arguments, out=None, sign=False, **dict.fromkeys(engine))
    sums = [reconciled.sum(text, arguments.of) for text in arguments.where or ()]  # what is wrong in them comes first
    if arguments.out is not None:
        written = {"csv": arguments.csv, "sign": arguments.sign, "command_log": arguments.log}
        reconciled = reconciled.write(arguments.out, **written, **engine)
    if arguments.json:
        print_json(dict(reconciled.facts) | {"sums": [each.to_json() for each in sums]})
        return
    if arguments.out is not None:
        _print_tables(reconciled.facts, arguments.out)
    for each in sums:
        put(_sum_text(each, 0.95 if arguments.interval is None else arguments.interval))


def _print_tables(facts: Mapping[str, Any], out: str) -> None:
    for release in facts["releases"]:
        put(f"release {release['release']}, attempt {release['attempt']}: its files match the manifest")
    rows = [("table", "cells", "standard errors", "weights")]
    unweighted = {name: why for group in facts["groups"] for name, why in group["unweighted"].items()}
    for name, table in facts["tables"].items():
        errors = table["errors"] + (f", {AT_EXPECTED}" if table["at_expected_totals"] else "")
        rows.append((name, f"{table['rows']:,}", errors, f"none: {unweighted[name]}" if name in unweighted else ""))
    print_columns(rows)
    for name, why in facts["not_reconciled"].items():
        put(f"{name}: not reconciled: {why}")
    for name, why in facts["apart"].items():
        put(f"{name}: {why}")
    put(f"{len(facts['tables'])} tables that add up in {out}")


def _sum_text(sum_: Any, interval: float) -> str:
    cells = ", ".join(f"{level} in {','.join(codes)}" for level, codes in sum_.where.items()) or "all cells"
    without = f"; records without a listed code in {', '.join(sum_.keys)} are in no table" if sum_.keys else ""
    where = f" {AT_EXPECTED}" if sum_.at_expected_totals else ""
    return (
        f"{sum_.of}, {cells}: {sum_.value:,.3f}, standard error {sum_.standard_error:,.3f}{where}, "
        f"{100 * interval:g} % between {sum_.lower:,.3f} and {sum_.upper:,.3f}{without}"
    )
