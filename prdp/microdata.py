"""Microdata before and beside releases: prepared for repeated ones, and diagnosed; what is made is confidential."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import PlanError
from prdp.ledgers import LedgerLike
from prdp.plans import Plan, load_plan
from prdp.runs import LocationLike, Runner, location, microdata_of, open_lasting


def prepare(
    plan: str | Path | Mapping[str, Any] | Plan,
    raw: LocationLike,
    out: str | Path,
    *,
    ledger: LedgerLike = None,
    engine: str | None = None,
    operator: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write checked, typed, sorted microdata for repeated releases, as `prdp prepare`; they are confidential.

    Args:
        plan: A plan of the dataset.
        raw: The location of the raw microdata: Parquet, CSV, a Delta or an Iceberg table.
        out: The folder to write, new or empty; it gets mode 0700.
        ledger: A ledger, or its path or URL: the microdata may not lie where it publishes.
        engine, operator, **options: As of `Plan.release`; the engine is Dask by default.

    Returns:
        dataset, out, manifest, and registered: the place from which alone a registered dataset is released (None
        where it is not registered), as `prdp prepare --json`.
    """
    from pipeline.microdata.lakehouse import microdata_at  # noqa: PLC0415
    from pipeline.preparation.prepare import PrepareJob  # noqa: PLC0415
    from pipeline.preparation.prepare import prepare as run  # noqa: PLC0415

    model, runner = load_plan(plan)._model, Runner(engine=engine, **options)

    with runner.started() as started:
        store = open_lasting(ledger, operator, started, runner)._store
        raws, folder = microdata_at(location(raw, "the raw microdata")), Path(out).absolute()
        manifest = run(PrepareJob(plan=model, raw=raws, out=folder, ledger=store, engine=started, log=runner.log))
        registered = store.budgets().get(model.dataset.name)
    return {
        "dataset": model.dataset.name,
        "out": str(manifest.parent),
        "manifest": str(manifest),
        "registered": None if registered is None else registered.source,
        "confidential": True,
    }


def diagnose(
    plan: str | Path | Mapping[str, Any] | Plan,
    out: str | Path,
    data: LocationLike | None = None,
    *,
    release: str | Path | None = None,
    per_record: bool = False,
    ledger: LedgerLike = None,
    engine: str | None = None,
    operator: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write the losses of the actual records, and errors against the truth, as `prdp diagnose`; confidential.

    The ledger records the run before any record is read.

    Args:
        plan: The plan.
        out: The folder to write, new or empty; it gets mode 0700.
        data: The location of the microdata. Default: the plan's dataset.path.
        release: A published release of the plan to compare. Default: releases/ beside the plan, if there.
        per_record: Write every record's and firm's losses, as Parquet.
        ledger, engine, operator, **options: As of `Plan.release`; the engine is Dask by default.

    Returns:
        The locations of what was written, as `prdp diagnose --json`; their contents are confidential.
    """
    from pipeline.diagnostics.run import DOCUMENT, PAGE, DiagnosticsJob, default_release  # noqa: PLC0415
    from pipeline.diagnostics.run import diagnose as run  # noqa: PLC0415
    from pipeline.preparation.pinned import Table  # noqa: PLC0415
    from pipeline.storage.uri import locate  # noqa: PLC0415

    model, runner = load_plan(plan)._model, Runner(engine=engine, **options)

    microdata = microdata_of(model, data, runner)
    if isinstance(microdata, Table):
        raise PlanError(f"dataset.source: diagnostics read files; give a copy of the table with {runner.name('data')}")
    name = runner.name("out")
    target = locate(os.fspath(out), what=name)
    folder = target.as_path()
    if folder is None:
        raise PlanError(f"{name} {out}: diagnostics lie in a folder of mode 0700; name one of this machine")
    target.resolve(name)  # refused where its links lead in a circle
    with runner.started() as started:
        made = run(
            DiagnosticsJob(
                plan=model,
                microdata=microdata,
                out=folder,
                ledger=open_lasting(ledger, operator, started, runner)._store,
                engine=started,
                published=default_release(model) if release is None else Path(release),
                per_record=per_record,
                log=runner.log,
            )
        )
    written = {"release": model.release, "plan_digest": model.digest, "out": str(made)}
    written |= {"report": str(made / PAGE), "diagnostics": str(made / DOCUMENT)}
    written |= {name: str(made / name) for name in ("records", "firms") if (made / name).is_dir()}
    return written | {"confidential": True}
