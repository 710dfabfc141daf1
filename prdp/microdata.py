"""Microdata before and beside releases: prepared for repeated ones, and diagnosed; what is made is confidential."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Unpack

from pipeline.base.errors import PlanError, StateError, arg
from prdp.declared import Arg, Data, LocationLike, NewFolder, documented, located
from prdp.plans import Plan, load_plan
from prdp.runs import Run, Runner, microdata_of

PlanLike = str | Path | Mapping[str, Any] | Plan
COMPARED = "a published release of the plan to compare with the true totals"
BESIDE = "the one in releases/ beside the plan, if there"


@documented
def prepare(
    plan: Annotated[PlanLike, Arg("a plan of the dataset, a YAML file", "PLAN", option=True)],
    raw: Annotated[LocationLike, Arg("the microdata: Parquet or CSV files, a Delta or an Iceberg table", "RAW")],
    out: NewFolder,
    **options: Unpack[Run],
) -> dict[str, Any]:
    """Write checked, typed, sorted microdata for repeated releases, as `prdp prepare`; they are confidential.

    Returns:
        dataset, out, manifest, and registered: the place from which alone a registered dataset is released (None
        where it is not registered), as `prdp prepare --json`.
    """
    from pipeline.microdata.lakehouse import microdata_at, names_of  # noqa: PLC0415
    from pipeline.release.pinned import require_no_part  # noqa: PLC0415
    from pipeline.release.prepare import PrepareJob  # noqa: PLC0415
    from pipeline.release.prepare import prepare as run  # noqa: PLC0415

    model, runner = load_plan(plan)._model, Runner(**options)

    with runner.started() as started:
        store = runner.lasting(started)._store
        source = located(raw, "the raw microdata")
        names = names_of(source)
        if (owner := store.dataset_at(names)) is not None and owner.source not in names:
            raise StateError(
                f"{names[0]}: a part of the microdata of dataset {owner.name}, {owner.source}: give all of it"
            )
        require_no_part(source)
        raws, folder = microdata_at(source.resolve("the raw microdata")), Path(out).absolute()
        manifest = run(PrepareJob(plan=model, raw=raws, out=folder, ledger=store, engine=started, log=runner.log))
        registered = store.budgets().get(model.dataset.name)
    return {
        "dataset": model.dataset.name,
        "out": str(manifest.parent),
        "manifest": str(manifest),
        "registered": None if registered is None else registered.source,
        "confidential": True,
    }


@documented
def diagnose(
    plan: Annotated[PlanLike, Arg("the plan, a YAML file", "PLAN")],
    out: Annotated[LocationLike, Arg("folder to write, new or empty", "URI", option=True)],
    data: Data = None,
    *,
    release: Annotated[LocationLike | None, Arg(COMPARED, "FOLDER", default=BESIDE)] = None,
    per_record: Annotated[bool, Arg("also write the losses of every record and firm, as Parquet")] = False,
    **options: Unpack[Run],
) -> dict[str, Any]:
    """Write the losses of the actual records, and errors against the truth, as `prdp diagnose`; confidential.

    The ledger records the run before any record is read.

    Returns:
        The locations of what was written, as `prdp diagnose --json`; their contents are confidential.
    """
    from pipeline.diagnostics.diagnose import DOCUMENT, PAGE, DiagnosticsJob, default_release  # noqa: PLC0415
    from pipeline.diagnostics.diagnose import diagnose as run  # noqa: PLC0415
    from pipeline.microdata.lakehouse import Place  # noqa: PLC0415
    from pipeline.storage.paths import locate  # noqa: PLC0415

    model, runner = load_plan(plan)._model, Runner(**options)

    name = arg("out")
    target = locate(os.fspath(out), what=name)
    folder = target.as_path()
    if folder is None:
        raise PlanError(f"{name} {out}: diagnostics lie in a folder of mode 0700; name one of this machine")
    target.resolve(name)  # refused where its links lead in a circle
    with runner.started() as started:
        opened = runner.lasting(started)
        microdata = microdata_of(model, data, runner, opened, released=False)
        if not isinstance(microdata, Place):
            name = arg("data")
            raise PlanError(f"diagnostics read files: give a copy of the table or DataFrame with {name}")
        made = run(
            DiagnosticsJob(
                plan=model,
                microdata=microdata,
                out=folder,
                ledger=opened._store,
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
