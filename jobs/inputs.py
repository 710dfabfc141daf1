"""What a call reads, writes and runs on: its engine and its locations; options come before the plan."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.engines.protocol import Engine
from pipeline.engines.registry import OPTIONS, open_engine
from pipeline.errors import PlanError
from pipeline.ledger.store import in_a_file
from pipeline.plan.model import Plan
from pipeline.preparation.pinned import Table
from pipeline.storage.location import Location
from pipeline.storage.uri import locate


@contextmanager
def chosen_engine(arguments: argparse.Namespace) -> Iterator[Engine]:
    """Yield the engine of --engine, the only one that is imported; close it afterwards.

    Raises PlanError on an option of another engine.
    """
    options = {option: getattr(arguments, option) for option in OPTIONS}
    with open_engine(arguments.engine, options, flag="--") as engine:
        if hasattr(arguments, "ledger") and in_a_file(arguments.ledger) and engine.driver_moves:
            raise PlanError(
                "spark-submit --deploy-mode cluster: the ledger is a file, and the driver's machine would begin a new "
                "one, which knows of no earlier loss: submit with --deploy-mode client, or give a ledger on PostgreSQL"
            )
        yield engine


def option_location(text: str | None, option: str) -> Location | None:
    """Return the location that an option names, None without the option."""
    return None if text is None else locate(text, what=option).resolve(option)


def microdata_location(arguments: argparse.Namespace, plan: Plan) -> Location | Table:
    """Return where the microdata of a release are."""
    location = option_location(arguments.data, "--data") or plan.dataset.path
    return Table(plan.dataset.table or "") if location is None else location.resolve("microdata")


def output_location(arguments: argparse.Namespace, plan: Plan) -> Location:
    """Return where a release is published."""
    return option_location(arguments.out, "--out") or locate(plan.path.parent / "releases").resolve("--out")
