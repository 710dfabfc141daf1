"""Engines run the kernels of udfs/ over many pieces; they know nothing of mechanisms and policies.

A new engine is a file of this folder and a line of ENGINES.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from pipeline.base.errors import PlanError, arg
from pipeline.base.log import Log

if TYPE_CHECKING:
    from pipeline.engines.protocol import Engine


@dataclass(frozen=True)
class EngineEntry:
    """An engine's class, imported when it is opened, and the options that its constructor takes, all optional."""

    where: str
    options: tuple[str, ...] = ()


ENGINES = {
    "dask": EngineEntry("pipeline.engines.dask:DaskEngine", ("scheduler", "workers")),
    "spark": EngineEntry("pipeline.engines.spark:SparkEngine", ("master",)),
}
OPTIONS = tuple(option for entry in ENGINES.values() for option in entry.options)


@contextmanager
def open_engine(name: str, options: Mapping[str, object], log: Log | None = None) -> Iterator["Engine"]:
    """Yield the engine of that name for a block, and close it afterwards; only its own library is imported.

    Options that are None are not set. Raises PlanError where there is no such engine, or it refuses an option.
    """
    if name not in ENGINES:
        raise PlanError(f"{arg('engine', name)}: there is no such engine; choose one of {', '.join(ENGINES)}")
    entry = ENGINES[name]
    chosen = {option: value for option, value in options.items() if value is not None}
    for option in chosen:
        if option not in entry.options:
            raise PlanError(f"{arg(option)}: it is not an option of {arg('engine', name)}; leave it out")
    engine: Engine = resolve_name(entry.where)(**chosen, log=log)
    try:
        yield engine
    finally:
        engine.close()
