"""Runs of prdp from Python: which engine, where the microdata lie, what is written where."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engines.registry import OPTIONS, open_engine
from pipeline.errors import PlanError
from pipeline.log import Log, plain_log
from pipeline.plan.model import Plan, default_out
from prdp.ledgers import Ledger, LedgerLike, open_ledger

if TYPE_CHECKING:
    from pipeline.engines.protocol import Engine
    from pipeline.storage.location import Location
    from prdp.releases import Release

LocationLike = str | os.PathLike[str]
DataLike = Any  # a LocationLike, or a pandas, Arrow, Dask or Spark DataFrame


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What runs a job over microdata; it shapes no byte of a table.

    Args:
        engine: "dask" or "spark"; None: Dask, or Spark for its own DataFrames.
        scheduler: Dask: a scheduler's address. Default: threads of this process.
        workers: Dask: threads to use. Default: all cores.
        master: Spark: a master of this machine. Default: local[*].
        progress: Report stages on standard error.
    """

    engine: str | None = None
    scheduler: str | None = None
    workers: int | None = None
    master: str | None = None
    progress: bool = False

    @property
    def log(self) -> Log:
        """A log for people, or a silent one."""
        return plain_log() if self.progress else Log()

    @contextmanager
    def started(self, data: DataLike = None, ledger: Ledger | None = None) -> "Iterator[Engine]":
        """Yield the engine, the only one that is imported; close it afterwards.

        Raises PlanError on an option of another engine, and for a `ledger` in a file where spark-submit has chosen the
        driver's machine.
        """
        of_spark = type(data).__module__.partition(".")[0] == "pyspark"
        name = self.engine or ("spark" if of_spark else "dask")
        if name == "spark" and ledger is not None and ledger._store.path is not None:
            from pipeline.engines.spark_session import in_cluster_mode  # noqa: PLC0415

            if in_cluster_mode():
                raise PlanError(
                    "spark-submit --deploy-mode cluster: the ledger is a file of a machine that the cluster chose, "
                    "which knows of no earlier loss: submit with --deploy-mode client, or give a ledger on PostgreSQL"
                )
        options = {option: getattr(self, option) for option in OPTIONS}
        if of_spark and name == "spark" and all(value is None for value in options.values()):
            from pipeline.engines.spark_frames import engine_of  # noqa: PLC0415

            with engine_of(data) as on_its_session:
                yield on_its_session
            return
        with open_engine(name, options) as engine:
            yield engine


def location(at: LocationLike, what: str) -> "Location":
    """Return the location that a path or URI names, without links; PlanError begins with `what`."""
    from pipeline.storage.uri import locate  # noqa: PLC0415

    if not isinstance(at, str | os.PathLike):
        raise PlanError(f"{what}: a {type(at).__name__} is no location; write it to a file, and give its path")
    return locate(os.fspath(at), what=what).resolve(what)


def release(
    plan: Plan,
    data: DataLike,
    runner: Runner,
    ledger: LedgerLike,
    out: LocationLike | None,
    staging: LocationLike | None,
    hold: bool,
    csv: bool,
    lineage: LocationLike | None,
    operator: str | None,
) -> "Release":
    """Release a plan, as `Plan.release` describes."""
    from pipeline.release.lineage import recorded_lineage  # noqa: PLC0415
    from pipeline.release.run import Job, run  # noqa: PLC0415
    from prdp.releases import Release  # noqa: PLC0415

    opened = open_ledger(ledger, operator=operator)
    with runner.started(data, opened) as engine:
        job = Job(
            plan=plan,
            microdata=_microdata(plan, data),
            out=_out(plan, out),
            staging=None if staging is None else location(staging, "staging"),
            engine=engine,
            ledger=opened._store,
            formats=("csv",) if csv else (),
            hold=hold,
            registered_only=opened._registered_only,
            log=runner.log,
        )
        with recorded_lineage(plan, job.ledger, None if lineage is None else Path(lineage)):
            return Release(run(job))


def check(
    plan: Plan,
    data: LocationLike | None,
    ledger: LedgerLike,
    out: LocationLike | None,
    staging: LocationLike | None,
    operator: str | None,
) -> dict[str, Any]:
    """Ask whether a release would be reserved, as `Plan.check` describes."""
    from pipeline.release.run import Request  # noqa: PLC0415
    from pipeline.release.run import check as run  # noqa: PLC0415

    opened = open_ledger(ledger, operator=operator)
    state = run(
        Request(
            plan=plan,
            microdata=_microdata(plan, data),
            out=_out(plan, out),
            ledger=opened._store,
            staging=None if staging is None else location(staging, "staging"),
            registered_only=opened._registered_only,
        )
    )
    status = None if state is None else state.status
    return {"release": plan.release, "dataset": plan.dataset.name, "plan_digest": plan.digest, "state": status}


def prepare(
    plan: Plan, raw: LocationLike, out: LocationLike, runner: Runner, ledger: LedgerLike, operator: str | None
) -> dict[str, Any]:
    """Prepare microdata, as `prdp.prepare` describes."""
    from pipeline.preparation.prepare import PrepareJob  # noqa: PLC0415
    from pipeline.preparation.prepare import prepare as run  # noqa: PLC0415

    opened = open_ledger(ledger, operator=operator)
    with runner.started(ledger=opened) as engine:
        manifest = run(
            PrepareJob(
                plan=plan,
                raw=location(raw, "raw"),
                out=Path(out).absolute(),
                ledger=opened._store,
                engine=engine,
                log=runner.log,
            )
        )
    return {
        "dataset": plan.dataset.name,
        "out": str(manifest.parent),
        "manifest": str(manifest),
        "confidential": True,
    }


def diagnose(
    plan: Plan,
    out: LocationLike,
    data: LocationLike | None,
    published: LocationLike | None,
    per_record: bool,
    runner: Runner,
    ledger: LedgerLike,
    operator: str | None,
) -> dict[str, Any]:
    """Diagnose a plan on microdata, as `prdp.diagnose` describes."""
    from pipeline.diagnostics.run import DOCUMENT, PAGE, DiagnosticsJob, default_release  # noqa: PLC0415
    from pipeline.diagnostics.run import diagnose as run  # noqa: PLC0415

    at = plan.dataset.path if data is None else location(data, "data")
    if at is None:
        raise PlanError("dataset.source: diagnostics read files; give a copy of the table as data")
    opened = open_ledger(ledger, operator=operator)
    with runner.started(ledger=opened) as engine:
        made = run(
            DiagnosticsJob(
                plan=plan,
                microdata=at,
                out=Path(out).absolute(),
                ledger=opened._store,
                engine=engine,
                published=default_release(plan) if published is None else Path(published),
                per_record=per_record,
                log=runner.log,
            )
        )
    written = {"release": plan.release, "plan_digest": plan.digest, "out": str(made)}
    written |= {"report": str(made / PAGE), "diagnostics": str(made / DOCUMENT)}
    written |= {name: str(made / name) for name in ("records", "firms") if (made / name).is_dir()}
    return written | {"confidential": True}


def _microdata(plan: Plan, data: DataLike) -> Any:
    """Return where the microdata of a release lie, or the frame that holds them."""
    from pipeline.preparation.pinned import Table  # noqa: PLC0415

    if data is None:
        at = plan.dataset.path
        return Table(plan.dataset.table or "") if at is None else at.resolve("microdata")
    if isinstance(data, str | os.PathLike):
        return location(data, "data")
    from pipeline.preparation.frames import frame_of  # noqa: PLC0415 — pandas and Arrow

    return frame_of(data)


def _out(plan: Plan, out: LocationLike | None) -> "Location":
    return location(default_out(plan) if out is None else out, "out")
