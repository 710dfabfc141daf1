"""prdp explain: what a plan promises; reads no microdata."""

import argparse

from jobs.cli import show_json
from pipeline.explain import explain, parse_at, render
from pipeline.plan.load import load_plan


def run(given: argparse.Namespace) -> None:
    """Print the losses of reference records."""
    plan = load_plan(given.plan)
    explained = explain(plan, [parse_at(text, plan) for text in given.at])
    if given.json:
        show_json(explained)
    else:
        print(render(explained, plan))
