"""Runs of prdp from Python: which engine, where the microdata lie, what is written where."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.engines.registry import OPTIONS, open_engine
from pipeline.errors import Interrupted, PlanError
from pipeline.log import Log, plain_log
from pipeline.plan.model import Plan, default_out
from prdp.ledgers import Ledger, LedgerLike, is_in_a_file, open_ledger

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
        command_log: The log of the command line, which calls these functions too: messages then name its options.
    """

    engine: str | None = None
    scheduler: str | None = None
    workers: int | None = None
    master: str | None = None
    progress: bool = False
    command_log: Log | None = None

    @property
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
        of_spark = type(data).__module__.partition(".")[0] == "pyspark"
        name = self.engine or ("spark" if of_spark else "dask")
        options = {option: getattr(self, option) for option in OPTIONS}
        if of_spark and name == "spark" and all(value is None for value in options.values()):
            from pipeline.engines.spark_frames import engine_of  # noqa: PLC0415

            with engine_of(data) as on_its_session:
                yield on_its_session
            return
        with open_engine(name, options, flag="" if self.command_log is None else "--") as engine:
            yield engine


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
    from pipeline.release.outcome import left_behind  # noqa: PLC0415
    from pipeline.release.run import Job, run  # noqa: PLC0415
    from pipeline.release.site import site  # noqa: PLC0415
    from prdp.releases import Release  # noqa: PLC0415

    with runner.started(data) as engine:
        runner.log.about(release=plan.release)
        opened = open_lasting(ledger, operator, engine, runner)
        job = Job(
            plan=plan,
            microdata=_microdata(plan, data, runner),
            out=_out(plan, out, runner),
            staging=None if staging is None else location(staging, runner.name("staging")),
            engine=engine,
            ledger=opened._store,
            formats=("csv",) if csv else (),
            hold=hold,
            registered_only=opened._registered_only,
            site_share=site().max_left_out,
            log=runner.log,
        )
        try:
            with recorded_lineage(plan, job.ledger, None if lineage is None else Path(lineage)):
                return Release(run(job))
        except KeyboardInterrupt:
            raise Interrupted(left_behind(plan.release, job.ledger.state(plan.release))) from None


def check(
    plan: Plan,
    data: LocationLike | None,
    ledger: LedgerLike,
    out: LocationLike | None,
    staging: LocationLike | None,
    operator: str | None,
    runner: Runner,
) -> dict[str, Any]:
    """Ask whether a release would be reserved, as `Plan.check` describes."""
    from pipeline.release.request import Request  # noqa: PLC0415
    from pipeline.release.request import check as run  # noqa: PLC0415
    from pipeline.release.site import site  # noqa: PLC0415

    opened = open_logged(ledger, operator, runner)
    state = run(
        Request(
            plan=plan,
            microdata=_microdata(plan, data, runner),
            out=_out(plan, out, runner),
            ledger=opened._store,
            staging=None if staging is None else location(staging, runner.name("staging")),
            registered_only=opened._registered_only,
            site_share=site().max_left_out,
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

    with runner.started() as engine:
        store = open_lasting(ledger, operator, engine, runner)._store
        raws, folder = location(raw, "the raw microdata"), Path(out).absolute()
        manifest = run(PrepareJob(plan=plan, raw=raws, out=folder, ledger=store, engine=engine, log=runner.log))
        registered = store.budgets().get(plan.dataset.name)
    return {
        "dataset": plan.dataset.name,
        "out": str(manifest.parent),
        "manifest": str(manifest),
        "registered": None if registered is None else registered.source,
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
    from pipeline.preparation.pinned import Table  # noqa: PLC0415
    from pipeline.storage.uri import locate  # noqa: PLC0415

    microdata = _microdata(plan, data, runner)
    if isinstance(microdata, Table):
        raise PlanError(f"dataset.source: diagnostics read files; give a copy of the table with {runner.name('data')}")
    name = runner.name("out")
    target = locate(os.fspath(out), what=name)
    folder = target.as_path()
    if folder is None:
        raise PlanError(f"{name} {out}: diagnostics lie in a folder of mode 0700; name one of this machine")
    target.resolve(name)  # refused where its links lead in a circle
    with runner.started() as engine:
        made = run(
            DiagnosticsJob(
                plan=plan,
                microdata=microdata,
                out=folder,
                ledger=open_lasting(ledger, operator, engine, runner)._store,
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


def check_microdata(
    plan: Plan,
    data: LocationLike | None,
    report: LocationLike | None,
    as_json: bool,
    runner: Runner,
    ledger: LedgerLike,
    operator: str | None,
) -> dict[str, Any]:
    """Check a plan's microdata, as `Plan.check_microdata` describes."""
    from pipeline.diagnostics.check import CheckJob  # noqa: PLC0415
    from pipeline.diagnostics.check import check as run  # noqa: PLC0415
    from pipeline.release.site import site  # noqa: PLC0415
    from pipeline.storage.location import Location  # noqa: PLC0415
    from pipeline.storage.uri import locate  # noqa: PLC0415

    microdata = _microdata(plan, data, runner)
    if not isinstance(microdata, Location):
        name = runner.name("data")
        raise PlanError(f"a check reads files: give a copy of the table or DataFrame with {name}")
    at = None if report is None else locate(os.fspath(report), what=runner.name("report")).as_path()
    if report is not None and at is None:
        raise PlanError(f"{runner.name('report')} {report}: a report is a file of mode 0600; name one of this machine")
    with runner.started() as engine:
        outcome = run(
            CheckJob(
                plan=plan,
                microdata=microdata,
                ledger=open_lasting(ledger, operator, engine, runner)._store,
                engine=engine,
                report=at,
                as_json=as_json,
                site_share=site().max_left_out,
                log=runner.log,
            )
        )
    made = {"release": plan.release, "dataset": plan.dataset.name, "plan_digest": plan.digest}
    return made | {"report": str(outcome.report), "confidential": True, "found": outcome.found}


def _microdata(plan: Plan, data: DataLike, runner: Runner) -> Any:
    """Return where the microdata of a release lie, or the frame that holds them."""
    from pipeline.preparation.pinned import Table  # noqa: PLC0415

    if data is None:
        at = plan.dataset.path
        return Table(plan.dataset.table or "") if at is None else at.resolve("microdata")
    if isinstance(data, str | os.PathLike):
        return location(data, runner.name("data"))
    from pipeline.preparation.frames import frame_of  # noqa: PLC0415 — pandas and Arrow

    return frame_of(data)


def _out(plan: Plan, out: LocationLike | None, runner: Runner) -> "Location":
    return location(default_out(plan) if out is None else out, runner.name("out"))
