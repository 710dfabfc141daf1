"""A whole plan tried on synthetic microdata, before any ledger knows of it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import PlanError, PrdpError, StateError
from prdp.ledgers import Ledger, LedgerLike, open_ledger
from prdp.plans import Plan, load_plan
from prdp.runs import Runner

if TYPE_CHECKING:
    from pipeline.engines.protocol import Engine
    from pipeline.trial.microdata import Origin
    from pipeline.trial.run import TrialJob

PlanLike = str | os.PathLike[str] | Plan


def try_plan(
    plan: PlanLike,
    *,
    records: int | None = None,
    like: str | None = None,
    states: Sequence[str] = (),
    sizes: str | Path | None = None,
    declared_public_by: str | None = None,
    draws: int = 10,
    seed: int = 0,
    beside: Sequence[PlanLike] = (),
    page: str | Path | None = None,
    ledger: LedgerLike = None,
    **options: Any,
) -> dict[str, Any]:
    """Try a whole plan on synthetic microdata; return what `prdp try --json` prints (docs/try.md).

    Nothing is charged: the release that is rehearsed has a ledger of its own in a temporary folder, and keys that are
    thrown away. Microdata of the plan are not read.

    Args:
        plan: The plan's file, or a plan.
        records: The number of synthetic establishments. Default: 300,000.
        like: "cbp-2010" or "cbp-2011": establishments that add up to these published figures.
        states: With `like`: two-digit codes of states; all where there are none.
        sizes: A PUBLIC file: CSV with the header value,count, a distribution; or records in the plan's columns.
        declared_public_by: Who declares that file to be public; outputs name them.
        draws: How often errors are drawn; 0: they are not.
        seed: The same seed gives the same microdata. Draws differ from call to call.
        beside: Other plans to try on the same microdata.
        page: Write the page to play with the (first) plan here, one HTML file that loads nothing.
        ledger: With `sizes`: the ledger whose datasets' fingerprints the file must not have. Default: the site's, or
            the user's own if there is one. It is read for that alone.
        **options: workers or scheduler (Dask); `progress=True` reports on standard error.

    Returns:
        notice, microdata, draws, and of each plan: limits, tables with errors by class of the true total, losses of
        records and of firms, and what a release needs.

    Raises:
        PlanError: The economy has not the plan's keys or measures, or the call is wrong.
        StateError: The file declared public is known to the ledger as a dataset's.
    """
    from pipeline.trial.microdata import Origin, files_of, require_apart  # noqa: PLC0415
    from pipeline.trial.page import trial_page  # noqa: PLC0415
    from pipeline.trial.run import try_plans  # noqa: PLC0415

    runner = Runner(**options)
    plans = [_loaded(each) for each in (plan, *beside)]
    origin = Origin(
        records=records,
        like=like,
        states=tuple(states),
        sizes=None if sizes is None else Path(sizes),
        declared_public_by=declared_public_by,
        seed=seed,
    )
    files = files_of(origin)
    if files is not None:
        for each in plans:
            require_apart(each._model, files)
        _require_unknown(files, ledger)
    with runner.started() as started:
        tried = try_plans(_job(plans, origin, draws, runner, started))
    if page is not None:
        first = plans[0]
        _write(Path(page), trial_page(first._model, first.source, tried.document, tried.cells[0]))
    return tried.document


def _write(page: Path, text: str) -> None:
    try:
        page.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PrdpError(f"--page {page}: it cannot be written ({error.strerror}); give another file") from None


def publication(
    plan: PlanLike,
    out: "str | Path | None" = None,
    *,
    equal: str = "variance",
    kinds: "Sequence[str] | Mapping[str, Mapping[str, Any]]" = (),
    records: int | None = None,
    like: str | None = None,
    states: Sequence[str] = (),
    draws: int = 10,
    seed: int = 0,
    **options: Any,
) -> dict[str, Any]:
    """Study a whole publication with every kind of noise, each as accurate as the plan in every table.

    As `prdp evaluate --publication PLAN --json` (docs/publication.md). Synthetic microdata are written for it.

    Args:
        plan: The plan's file, or a plan.
        out: A folder to write the figures and the picture to, new or empty.
        equal: What is equal in every table: "variance", "mean_absolute_error", "median_relative_error" or "interval".
        kinds: Names of kinds of docs/publication.md, or mechanisms without a scale by names of your own. Default: all.
        records: The number of synthetic establishments. Default: 300,000.
        like: "cbp-2010" or "cbp-2011", as of `try_plan`; `states` with it.
        states: Two-digit codes of states.
        draws: How often errors are drawn; 0: they are not.
        seed: Of the microdata. Draws differ from call to call.
        **options: workers or scheduler (Dask); `progress=True` reports on standard error.

    Raises:
        PlanError: The call is wrong, the plan's own noise has no such accuracy, or the economy has not its keys.
    """
    from pipeline.names import hint  # noqa: PLC0415
    from pipeline.trial.equal import ACCURACIES, KINDS  # noqa: PLC0415
    from pipeline.trial.equal import publication as run  # noqa: PLC0415
    from pipeline.trial.equal_output import write  # noqa: PLC0415
    from pipeline.trial.microdata import Origin  # noqa: PLC0415

    if equal not in ACCURACIES:
        raise PlanError(f"--equal: must be one of {', '.join(ACCURACIES)}")
    unknown = [] if isinstance(kinds, Mapping) else [name for name in kinds if name not in KINDS]
    if unknown:
        raise PlanError(f"--kinds {unknown[0]}: unknown{hint(unknown[0], KINDS, 'kind')}")
    chosen = kinds if isinstance(kinds, Mapping) else {name: KINDS[name] for name in kinds or KINDS}
    runner = Runner(**options)
    origin = Origin(records=records, like=like, states=tuple(states), seed=seed)
    loaded = _loaded(plan)
    with runner.started() as started:
        document = run(_job([loaded], origin, draws, runner, started), equal, chosen)
    if out is not None:
        write(document, Path(out))
    return document


def _job(plans: Sequence[Plan], origin: "Origin", draws: int, runner: Runner, engine: "Engine") -> "TrialJob":
    from pipeline.release.site import site  # noqa: PLC0415
    from pipeline.trial.run import TrialJob  # noqa: PLC0415

    return TrialJob(
        plans=[each._model for each in plans],
        origin=origin,
        draws=draws,
        engine=engine,
        site_share=site().max_left_out,
        most_cells=site().max_cells,
        log=runner.log,
    )


def _loaded(plan: PlanLike) -> Plan:
    return load_plan(plan if isinstance(plan, Plan) else Path(plan))


def _require_unknown(files: Any, ledger: LedgerLike) -> None:
    """Raise StateError where a file is one of a dataset that the ledger knows; reads fingerprints alone."""
    from pipeline.ledger.address import own_file  # noqa: PLC0415
    from pipeline.microdata.identity import identity_of  # noqa: PLC0415
    from pipeline.release.site import site  # noqa: PLC0415

    if ledger is None and site().ledger is None and not own_file().exists():
        return
    opened = open_ledger(ledger)
    assert isinstance(opened, Ledger)
    known = opened._store.dataset_with(identity_of(files).fingerprints)
    if known is not None:
        raise StateError(
            f"--sizes {files.root}: a file of it is one of dataset {known} in {opened.address}: microdata of a dataset "
            "are not public; give another file"
        )
