"""The engine that a command was asked to use."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.engines.protocol import Engine
from pipeline.errors import PlanError


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

    engine = SparkEngine(given.master)
    try:
        yield engine
    finally:
        engine.close()
