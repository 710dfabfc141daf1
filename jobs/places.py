"""The places that a command was asked to use: options come before the plan."""

import argparse

from pipeline.plan.model import Plan
from pipeline.preparation.pinned import Table
from pipeline.storage.location import Place, place, resolved


def place_given(text: str | None, option: str) -> Place | None:
    """Return the place that an option names, None where it was not given."""
    return None if text is None else resolved(place(text, what=option), option)


def microdata_of(given: argparse.Namespace, plan: Plan) -> Place | Table:
    """Return where the microdata of a release lie."""
    at = place_given(given.data, "--data") or plan.dataset.path
    return Table(plan.dataset.table or "") if at is None else resolved(at, "microdata")


def out_of(given: argparse.Namespace, plan: Plan) -> Place:
    """Return where a release is published."""
    return place_given(given.out, "--out") or resolved(plan.path.parent / "releases", "--out")
