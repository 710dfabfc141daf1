"""What a call reads, writes and runs on: its engine and its locations; options come before the plan."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.engines.protocol import Engine
from pipeline.errors import PlanError
from pipeline.ledger.store import in_a_file
from pipeline.plan.model import Plan
from pipeline.preparation.pinned import Table
from pipeline.storage.location import Place, place, resolved


@contextmanager
def chosen_engine(arguments: argparse.Namespace) -> Iterator[Engine]:
    """Yield the engine of --engine, of whose library alone the import is paid; close it afterwards.

    Raises PlanError on an option of another engine.
    """
    foreign = {"dask": ("master",), "spark": ("scheduler", "workers")}[arguments.engine]
    for option in foreign:
        if getattr(arguments, option) is not None:
            raise PlanError(f"--{option}: it is not an option of --engine {arguments.engine}; leave it out")
    if arguments.engine == "dask":
        from pipeline.engines.dask import DaskEngine  # noqa: PLC0415

        yield DaskEngine(arguments.scheduler, arguments.workers)
        return
    from pipeline.engines.spark import SparkEngine  # noqa: PLC0415
    from pipeline.engines.spark_session import in_cluster_mode  # noqa: PLC0415

    if hasattr(arguments, "ledger") and in_a_file(arguments.ledger) and in_cluster_mode():
        raise PlanError(
            "spark-submit --deploy-mode cluster: the ledger is a file, and the driver's machine would begin a new one, "
            "which knows of no earlier loss: submit with --deploy-mode client, or give a ledger on PostgreSQL"
        )
    engine = SparkEngine(arguments.master)
    try:
        yield engine
    finally:
        engine.close()


def option_location(text: str | None, option: str) -> Place | None:
    """Return the location that an option names, None without the option."""
    return None if text is None else resolved(place(text, what=option), option)


def microdata_location(arguments: argparse.Namespace, plan: Plan) -> Place | Table:
    """Return where the microdata of a release are."""
    location = option_location(arguments.data, "--data") or plan.dataset.path
    return Table(plan.dataset.table or "") if location is None else resolved(location, "microdata")


def output_location(arguments: argparse.Namespace, plan: Plan) -> Place:
    """Return where a release is published."""
    return option_location(arguments.out, "--out") or resolved(plan.path.parent / "releases", "--out")
