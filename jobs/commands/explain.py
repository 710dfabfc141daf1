"""prdp explain: what a plan promises; reads no microdata."""

import argparse
from pathlib import Path

from jobs.options import Parser, add_json, add_plan, probability, values_set
from jobs.output import print_json, tell
from pipeline.plan.changes import parse_change, parse_factor
from pipeline.plan.load import load_plan
from pipeline.plan.total_policy import parse_at
from pipeline.planning.explain.explain_text import render, render_changes, render_verdict
from pipeline.planning.explain.explanation import explain, explain_changes, plot_policies
from pipeline.planning.explain.verdict import verdict
from pipeline.release.installation import site

EXAMPLE = "prdp explain plan.yaml --at employment=10,payroll=500 --at employment=5000,payroll=300000"


def declare(parser: Parser) -> None:
    """Add the command's options."""
    add_plan(parser)
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="REFERENCE",
        help="a reference record, such as employment=10,payroll=500; for a firm or a group several records, "
        "separated by ';' (repeatable; default: the references of the budget)",
    )
    parser.add_argument(
        "--change",
        action="append",
        default=[],
        metavar="VALUES",
        help="loss from distinguishing two values of a record, such as employment=10:12 (repeatable)",
    )
    parser.add_argument(
        "--factor",
        action="append",
        default=[],
        metavar="C",
        help="loss from distinguishing two values of a record within a factor C, such as 1.1 (repeatable)",
    )
    parser.add_argument(
        "--delta", type=probability, default=1e-9, metavar="D", help="δ at which --detail states (ε, δ) (default: 1e-9)"
    )
    parser.add_argument(
        "--detail",
        action="store_true",
        help="after the verdict: policy functions, curves, losses and errors of each table",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the policy curves into an SVG or PNG file")
    add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Print the verdict, and more where it is asked for; exit code 3 where the plan breaks its own limits."""
    plan = load_plan(arguments.plan, values_set(arguments))
    references = [parse_at(text, plan) for text in arguments.at]
    judged = verdict(plan, references)
    changes = [parse_change(text, plan) for text in arguments.change] + [
        parse_factor(text) for text in arguments.factor
    ]
    changed = {"changes": explain_changes(plan, changes, arguments.delta)} if changes else {}
    if arguments.plot is not None:
        plot_policies(plan, arguments.plot)
    if arguments.json or arguments.detail:
        explained = explain(plan, references, arguments.delta, site().max_left_out)
    if arguments.json:
        print_json({"verdict": judged.to_json()} | explained | changed)
    else:
        texts = [render_verdict(judged), *(["", render(explained, plan)] if arguments.detail else [])]
        tell("\n".join([*texts, *map(render_changes, changed.values())]))
    judged.require_within()
