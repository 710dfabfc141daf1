"""The engine that a command was asked to use."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.engines.protocol import Engine
from pipeline.errors import PlanError
from pipeline.ledger.store import in_a_file


@contextmanager
def chosen_engine(given: argparse.Namespace) -> Iterator[Engine]:
    """Yield the engine that was asked for, of whose library alone it costs the import; end it afterwards."""
    foreign = {"dask": ("master",), "spark": ("scheduler", "workers")}[given.engine]
    for option in foreign:
        if getattr(given, option) is not None:
            raise PlanError(f"--{option}: it is not an option of --engine {given.engine}; leave it out")
    if given.engine == "dask":
        from pipeline.engines.dask import DaskEngine  # noqa: PLC0415

        yield DaskEngine(given.scheduler, given.workers)
        return
    from pipeline.engines.spark import SparkEngine  # noqa: PLC0415
    from pipeline.engines.spark_session import in_cluster_mode  # noqa: PLC0415

    if hasattr(given, "ledger") and in_a_file(given.ledger) and in_cluster_mode():
        raise PlanError(
            "spark-submit --deploy-mode cluster: the ledger is a file, and the driver's machine would begin a new one, "
            "which knows of no earlier loss: submit with --deploy-mode client, or give a ledger on PostgreSQL"
        )
    engine = SparkEngine(given.master)
    try:
        yield engine
    finally:
        engine.close()
