"""prdp explain: what a plan promises; reads no microdata."""

import argparse

from jobs.cli import show_json
from pipeline.changes import explain_changes, parse_change, parse_factor, render_changes
from pipeline.explain import explain, parse_at, render
from pipeline.plan.load import load_plan
from pipeline.report.curves import plot_curves


def run(given: argparse.Namespace) -> None:
    """Print the losses of reference records."""
    plan = load_plan(given.plan)
    explained = explain(plan, [parse_at(text, plan) for text in given.at], given.delta)
    changes = [parse_change(text, plan) for text in given.change] + [parse_factor(text) for text in given.factor]
    if changes:
        explained |= {"changes": explain_changes(plan, changes, given.delta)}
    if given.plot is not None:
        plot_curves(plan, given.plot)
    if given.json:
        show_json(explained)
    else:
        print(render(explained, plan))
        if changes:
            print(render_changes(explained["changes"]))
