"""The options of `prdp calibrate`."""

import argparse
from pathlib import Path

OBJECTIVES = ("largest", "mean", "share")


def add_options(calibrate: argparse.ArgumentParser) -> None:
    """Add what can be asked: of a plan, of one mechanism, or of all families at equal accuracy."""
    calibrate.add_argument("plan", nargs="?", type=Path, metavar="PLAN", help="a plan whose mechanisms ask calibrate:")
    calibrate.add_argument(
        "--out", type=Path, metavar="FILE", help="write the plan with every calibrate: replaced by its solution"
    )
    one = calibrate.add_argument_group("one mechanism")
    one.add_argument("--kind", metavar="KIND", help="the kind, as in a plan")
    one.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter that is fixed (repeatable)"
    )
    one.add_argument("--step", default="1", metavar="S", help="the step of the measure (default 1)")
    asked = calibrate.add_argument_group("what is asked, one of")
    asked.add_argument("--standard-error", metavar="E", help="a standard error at --total")
    asked.add_argument("--mean-absolute-error", metavar="E", help="a mean absolute error at --total")
    asked.add_argument("--interval", metavar="W", help="the width, end to end, of an interval at --total")
    asked.add_argument("--loss", metavar="RHO", help="the most that a record of influence --at may lose")
    asked.add_argument("--total", metavar="T", help="the true total at which an error is meant (default 0)")
    asked.add_argument("--at", metavar="X", help="the influence at which a loss is meant")
    asked.add_argument("--coverage", default="0.95", metavar="C", help="the coverage of intervals (default 0.95)")
    every = calibrate.add_argument_group("all families at equal accuracy")
    every.add_argument("--compare", action="store_true", help="rank families and shapes by what records would lose")
    every.add_argument(
        "--sizes",
        type=Path,
        metavar="FILE",
        help="a PUBLIC distribution of sizes, CSV with the header value,count (default: employment of establishments "
        "in the synthetic economy); never one of confidential microdata",
    )
    every.add_argument(
        "--count",
        action="store_true",
        help="of a count, in place of a sum: each record has an influence of 1; the kinds for counts are compared too",
    )
    every.add_argument(
        "--objective", choices=OBJECTIVES, default="largest", help="what is best (default largest: its loss is least)"
    )
    every.add_argument("--limit", metavar="RHO", help="for --objective share: the share of records that lose less")
    every.add_argument("--plot", type=Path, metavar="FILE", help="draw the comparison into an SVG or PNG file")
    calibrate.add_argument("--json", action="store_true", help="print JSON")
