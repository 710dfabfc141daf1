"""prdp reconcile: estimates of published tables that add up; for everyone."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jobs.options import Parser, add_engine, add_json, add_sign, at_least_one, count, engine_options, probability
from jobs.output import print_columns, print_json
from pipeline.engines.registry import OPTIONS
from pipeline.errors import PlanError
from pipeline.product.reconcile import Picked
from prdp.reconciled import reconcile

EXAMPLE = (
    'prdp reconcile releases/cbp-2023-county --out reconciled --sum "naics2=31-33, state in 06,48" --of employment'
)
AT_EXPECTED = "at the expected totals"  # which errors these are, of noise that grows with totals


def declare(parser: Parser) -> None:
    """Add the command's options."""
    parser.add_argument("releases", nargs="+", metavar="OUT/RELEASE", help="folders or URIs that hold release.json")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write, new or empty (with --sum not needed)")
    parser.add_argument("--sum", action="append", metavar="CELLS", help='such as "naics2=31-33, state in 06,48"')
    parser.add_argument("--of", metavar="MEASURE", help="what --sum adds up: a measure, or records")
    parser.add_argument("--csv", action="store_true", help="write every table as CSV too")
    add_sign(parser, "reconciled.json")
    parser.add_argument(
        "--draws",
        type=count,
        default=0,
        metavar="N",
        help="draw N solutions, for closer standard errors, where they are bounds, and shorter intervals (default: 0)",
    )
    add_estimates(parser)
    add_engine(parser, default=None)
    add_json(parser)


def add_estimates(parser: Parser) -> None:
    """Add the options that say how tables are weighted."""
    parser.add_argument(
        "--plan", type=Path, action="append", metavar="PLAN", help="the plan of a release that has no structure.json"
    )
    for option, what in (
        ("--fixed", "public totals without noise (CSV or Parquet: levels and value) that tables are held to"),
        ("--expected", "public totals to be expected, for weights of noise that depends on the total"),
    ):
        parser.add_argument(option, type=measured, action="append", metavar="MEASURE=FILE", help=what)
    parser.add_argument(
        "--weights-from",
        action="append",
        metavar="TABLE",
        help="a noisy table from which such weights are made; it is left out of the estimates",
    )
    parser.add_argument("--leave-out", action="append", metavar="TABLE", help="a table that carries no weight")
    parser.add_argument("--interval", type=probability, default=0.95, help="coverage of intervals (default: 0.95)")
    parser.add_argument(
        "--max-cells", type=at_least_one, metavar="N", help="most finest common cells (default: 200 million)"
    )


def measured(text: str) -> tuple[str, Path]:
    """Return the measure and the file of MEASURE=FILE."""
    measure, sign, path = text.partition("=")
    if not (measure and sign and path):
        raise argparse.ArgumentTypeError(f"{text!r} is not MEASURE=FILE")
    return measure, Path(path)


def _by_measure(given: Sequence[tuple[str, Path]] | None, option: str) -> dict[str, Path]:
    files = dict(given or ())
    if len(files) < len(given or ()):
        raise PlanError(f"{option}: two files of one measure: give one, with all its totals")
    return files


def estimate_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `add_estimates` as the functions of prdp take them."""
    return {
        "plans": arguments.plan or (),
        "fixed": _by_measure(arguments.fixed, "--fixed"),
        "expected": _by_measure(arguments.expected, "--expected"),
        "weights_from": arguments.weights_from or (),
        "leave_out": arguments.leave_out or (),
        "interval": arguments.interval,
        "max_cells": arguments.max_cells,
    }


def run(arguments: argparse.Namespace) -> None:
    """Write the tables, or the sums alone, then print what was made."""
    if arguments.out is None and not arguments.sum:
        raise PlanError("prdp reconcile: give --out DIR for the tables, --sum CELLS for a sum of cells, or both")
    engine = engine_options(arguments)
    if arguments.out is None and arguments.sign:
        raise PlanError("prdp reconcile: --sign signs the tables' manifest: give --out DIR")
    if arguments.out is None and any(engine[name] is not None for name in ("engine", *OPTIONS)):
        raise PlanError("prdp reconcile: engines make tables: give --out DIR, or leave the engine's options out")
    reconciled = reconcile(arguments.releases, draws=arguments.draws, **estimate_options(arguments))
    sums = [reconciled.sum(text, arguments.of) for text in arguments.sum or ()]  # what is wrong in them comes first
    if arguments.out is not None:
        reconciled = reconciled.write(arguments.out, csv=arguments.csv, sign=arguments.sign, **engine)
    if arguments.json:
        print_json(dict(reconciled.facts) | {"sums": [each.to_json() for each in sums]})
        return
    if arguments.out is not None:
        _print_tables(reconciled.facts, arguments.out)
    for each in sums:
        print(_told(each, arguments.interval))


def _print_tables(facts: Mapping[str, Any], out: Path) -> None:
    for release in facts["releases"]:
        print(f"release {release['release']}, attempt {release['attempt']}: its files match the manifest")
    rows = [("table", "cells", "standard errors", "weights")]
    unweighted = {name: why for group in facts["groups"] for name, why in group["unweighted"].items()}
    for name, table in facts["tables"].items():
        errors = table["errors"] + (f", {AT_EXPECTED}" if table["at_expected_totals"] else "")
        rows.append((name, f"{table['rows']:,}", errors, f"none: {unweighted[name]}" if name in unweighted else ""))
    print_columns(rows)
    for name, why in facts["not_reconciled"].items():
        print(f"{name}: not reconciled: {why}")
    print(f"{len(facts['tables'])} tables that add up in {out}")


def _told(sum_: Picked, interval: float) -> str:
    cells = ", ".join(f"{level} in {','.join(codes)}" for level, codes in sum_.where.items()) or "all cells"
    without = f"; records without a listed code in {', '.join(sum_.keys)} are in no table" if sum_.keys else ""
    at = f" {AT_EXPECTED}" if sum_.at_expected_totals else ""
    return (
        f"{sum_.of}, {cells}: {sum_.value:,.3f}, standard error {sum_.standard_error:,.3f}{at}, "
        f"{100 * interval:g} % between {sum_.lower:,.3f} and {sum_.upper:,.3f}{without}"
    )
