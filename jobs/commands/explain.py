"""prdp explain: what a plan promises; reads no microdata."""

import argparse
from typing import Annotated

from jobs.output import print_json, tell
from prdp.declared import Arg
from prdp.explanation import Explanation
from prdp.plans import Plan

CALL = Plan.explain
EXAMPLE = "prdp explain plan.yaml --at employment=10,payroll=500 --at employment=5000,payroll=300000"
PRINTS_JSON = True
DETAIL = "after the verdict: policy functions, curves, losses and errors of each table"
Detail = Annotated[bool, Arg(DETAIL)]
Plot = Annotated[str | None, Arg("draw the policy curves into an SVG or PNG file", "FILE")]


def show(made: Explanation, arguments: argparse.Namespace, *, detail: Detail = False, plot: Plot = None) -> None:
    """Print the verdict, and more where it is asked for; exit code 3 where the plan breaks its own limits."""
    if plot is not None:
        made.plot(plot)
    if arguments.json:
        print_json(made.to_json())
    else:
        tell(made.text(detail=detail))
    made.require_within()
