"""Runs of prdp from Python: which engine, where the microdata lie, what is written where."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.engines.registry import OPTIONS, open_engine
from pipeline.errors import PlanError
from pipeline.log import Log, plain_log
from pipeline.plan.model import Plan, default_out
from prdp.ledgers import Ledger, LedgerLike, is_in_a_file, open_ledger

if TYPE_CHECKING:
    from pipeline.engines.protocol import Engine
    from pipeline.storage.location import Location

LocationLike = str | os.PathLike[str]
DataLike = Any  # a LocationLike, or a pandas, Arrow, Dask or Spark DataFrame


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What runs a job over microdata; it shapes no byte of a table.

    Args:
        engine: "dask" or "spark"; None: Dask, or Spark for its own DataFrames.
        scheduler: Dask: a scheduler's address. Default: threads of this process.
        workers: Dask: threads to use. Default: all cores.
        master: Spark: a master of this machine, a server of Spark Connect (sc://…), or a session that is open, which
            stays open. Default: local[*].
        progress: Report stages on standard error.
        command_log: The log of the command line, which calls these functions too: messages then name its options.
    """

    engine: str | None = None
    scheduler: str | None = None
    workers: int | None = None
    master: Any = None
    progress: bool = False
    command_log: Log | None = None

    @cached_property
    def log(self) -> Log:
        """The command's log, a log for people, or a silent one."""
        return self.command_log or (plain_log() if self.progress else Log())

    def name(self, parameter: str) -> str:
        """Return a parameter as its user writes it."""
        return parameter if self.command_log is None else f"--{parameter}"

    @contextmanager
    def started(self, data: DataLike = None) -> "Iterator[Engine]":
        """Yield the engine, the only one that is imported; close it afterwards.

        Raises PlanError on an option of another engine.
        """
        options = {option: getattr(self, option) for option in OPTIONS}
        given = {option for option, value in options.items() if value is not None}
        session = self.master if _is_sparks(self.master) else None
        if _is_sparks(data) and not given:
            session = data.sparkSession
        name = self.engine or ("spark" if _is_sparks(data) or session is not None else "dask")
        if session is not None and name == "spark" and given <= {"master"}:
            from pipeline.engines.spark_frames import engine_on  # noqa: PLC0415

            with engine_on(session, self.log) as on_that_session:
                yield on_that_session
            return
        with open_engine(name, options, flag="" if self.command_log is None else "--", log=self.log) as engine:
            yield engine


def _is_sparks(given: object) -> bool:
    """Whether a session or a DataFrame is Spark's."""
    return type(given).__module__.partition(".")[0] == "pyspark"


def open_logged(ledger: LedgerLike, operator: str | None, runner: Runner) -> Ledger:
    """Return the ledger of a run, and log its address."""
    opened = open_ledger(ledger, operator=operator)
    runner.log.ledger(opened.address)
    return opened


def open_lasting(ledger: LedgerLike, operator: str | None, engine: "Engine", runner: Runner) -> Ledger:
    """Return the ledger of a run on `engine`, and log its address.

    Raises PlanError where the engine's driver moves to another machine and the ledger is a file: there it would be a
    new one, which knows of no earlier loss.
    """
    if engine.driver_moves and is_in_a_file(ledger):
        raise PlanError(
            "spark-submit --deploy-mode cluster: the ledger is a file, and the driver's machine would begin a new one, "
            "which knows of no earlier loss: submit with --deploy-mode client, or give a ledger on PostgreSQL"
        )
    return open_logged(ledger, operator, runner)


def location(at: LocationLike, what: str) -> "Location":
    """Return the location that a path or URI names, without links; PlanError begins with `what`."""
    from pipeline.storage.uri import locate  # noqa: PLC0415

    if not isinstance(at, str | os.PathLike):
        raise PlanError(f"{what}: a {type(at).__name__} is no location; write it to a file, and give its path")
    return locate(os.fspath(at), what=what).resolve(what)


def microdata_of(plan: Plan, data: DataLike, runner: Runner) -> Any:
    """Return where the microdata of a release lie, or the frame that holds them."""
    from pipeline.microdata.lakehouse import microdata_at  # noqa: PLC0415
    from pipeline.preparation.pinned import Table  # noqa: PLC0415

    if data is None:
        at = plan.dataset.path
        return Table(plan.dataset.table or "") if at is None else microdata_at(at.resolve("microdata"))
    if isinstance(data, str | os.PathLike):
        return microdata_at(location(data, runner.name("data")))
    from pipeline.preparation.frames import frame_of  # noqa: PLC0415 — pandas and Arrow

    return frame_of(data)


def out_of(plan: Plan, out: LocationLike | None, runner: Runner) -> "Location":
    """Return where a release is published."""
    return location(default_out(plan) if out is None else out, runner.name("out"))
