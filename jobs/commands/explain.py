"""prdp explain: what a plan promises; reads no microdata."""

import argparse

from jobs.cli import show_json
from pipeline.plan.load import load_plan
from pipeline.report.explain import (
    explain,
    explain_changes,
    parse_at,
    parse_change,
    parse_factor,
    render,
    render_changes,
)
from pipeline.report.plots import plot_curves


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
