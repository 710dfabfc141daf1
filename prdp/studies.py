"""Without microdata: synthetic records, parameters from an accuracy or a loss, and studies of mechanisms."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pipeline.base.errors import PlanError, arg
from pipeline.base.log import Log, plain_log
from prdp.declared import FIGURES, Arg, NewFolder, documented
from prdp.runs import OnEngine, Runner

if TYPE_CHECKING:
    from prdp.ledgers import LedgerLike
    from prdp.plans import Plan

PLAIN = "all with one mechanism and no filter"
RULES = "the rules that hold, such as p=10,n=2; width=10: what the threshold protects, in %"
HELD = "p=10,n=2,k=85,threshold=3"
KNOWN = "read for fingerprints of known datasets"
NOTHING: Mapping[str, str] = {}
Number = int | float | str | Fraction


@documented
def generate(
    records: Annotated[int, Arg("number of establishments", "N", "count")],
    out: NewFolder,
    *,
    seed: Annotated[int, Arg("same seed, same bytes", "S", "count", default="0")] = 0,
) -> Path:
    """Write synthetic microdata and all that a first release needs; return the plan's path."""
    from pipeline.planning.economy.generate import generate as run  # noqa: PLC0415

    return run(records, seed, Path(out)).plan


@documented
def generate_like(
    figures: Annotated[str, Arg("establishments that add up to published figures", choices=FIGURES, flag="like")],
    out: NewFolder,
    *,
    states: Annotated[Sequence[str], Arg("with --like: 56,50", "CODES", "names", default="all")] = (),
    seed: int = 0,
) -> Path:
    """Write synthetic establishments that add up to published figures by state and NAICS 6; return the plan's path.

    docs/economy.md says what holds exactly and what is assumed.
    """
    from pipeline.planning.economy.like import generate_like as run  # noqa: PLC0415

    return run(figures, seed, Path(out), states=states).plan


def withheld_today(figures: str) -> dict[str, Any]:
    """Return how much of published figures is withheld, by level, as `prdp generate --like … --describe --json`."""
    from pipeline.planning.economy.published import withheld_today as run  # noqa: PLC0415

    return run(figures)


def beside_today(figures: str, plan: "str | Path | Plan") -> dict[str, Any]:
    """Return how large errors of a plan's tables by state and industry are in the cells of published figures.

    By today's flag and by true employment, with the share of today's withheld cells that become usable and what
    records lose for it (docs/economy.md). Nothing is drawn, and no microdata are read.

    Raises:
        PlanError: The plan has no such tables with additive noise.
    """
    from pipeline.planning.study.todays_practice import beside_today as run  # noqa: PLC0415
    from prdp.plans import load_plan  # noqa: PLC0415

    return run(figures, load_plan(plan)._model)


def calibrate(
    plan: "str | Path | None" = None,
    *,
    out: "str | Path | None" = None,
    set: Mapping[str, str] = NOTHING,
    kind: str | None = None,
    parameters: Mapping[str, Number] | None = None,
    best_alpha: str | None = None,
    step: Number = 1,
    standard_error: Number | None = None,
    mean_absolute_error: Number | None = None,
    relative_error: Number | None = None,
    group_loss: Number | None = None,
    group: Number | None = None,
    interval: Number | None = None,
    loss: Number | None = None,
    epsilon: Number | None = None,
    delta: Number | None = None,
    bound: str | None = None,
    total: Number | None = None,
    at: Number | None = None,
    coverage: Number = "0.95",
    sizes: "str | Path | None" = None,
    count: bool = False,
    objective: str = "largest",
    limit: Number | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Return parameters that meet an accuracy or a loss, as `prdp calibrate --json`; reads no microdata.

    With a plan: the scale of each of its `calibrate:`, of a draft all scales that it asks for (`prdp.allocate`). With a
    kind: that mechanism. With neither: all families at equal accuracy, ranked by what records would lose.

    Args:
        plan: The plan's file.
        out: Write the plan here, in its own folder, with every `calibrate:` replaced by its solution.
        set: The values of the plan's variables, which stay in the plan that is written.
        kind: The kind of mechanism, as in a plan.
        parameters: The kind's fixed parameters.
        best_alpha: Of symmetric_stable: find the alpha too, with the least "error" (mean absolute) or "interval" (its
            width) at a loss or epsilon, or with the least "loss" of a record of influence `at` at an accuracy.
        step: The step of the measure.
        standard_error: A standard error at `total`, in the measure's unit; or one of the following targets.
        mean_absolute_error: A mean absolute error at `total`.
        relative_error: A bound of the mean absolute error over the true total, from `total` on.
        group_loss: Of groupwise_log: the most that a record in a group of `group` records may lose; it sets `a` too.
        group: The number of records in that group.
        interval: The width, end to end, of an interval of `coverage` at `total`.
        loss: The most, in zCDP ρ, that a record of influence `at` may lose.
        epsilon: The most, as a pure ε or with `delta` as (ε, δ), that a record of influence `at` may lose.
        delta: The δ of (ε, δ), for the noise as it is drawn.
        bound: Of Gaussian noise: "exact" (default), or "closed" for the closed form of the second paper.
        total: The true total at which an error is meant.
        at: The influence at which a loss or ε is meant.
        coverage: The coverage of intervals.
        sizes: A PUBLIC distribution of sizes, CSV with the header value,count. Default: employment of establishments
            in the synthetic economy; never one of confidential microdata.
        count: Compare mechanisms of a count: each record has an influence of 1.
        objective: What is best of all families: largest, mean or share.
        limit: For the objective share: the share of records that lose less than this.
        progress: Report on standard error how many shapes were tried.

    Raises:
        PlanError: Where the call is wrong, or no scale can meet it.

    Examples:
        >>> solution = calibrate(kind="laplace", standard_error=30, total=500)
        >>> solution["mechanism"]["kind"], solution["losses"][0]["influence"]
        ('laplace', 1)
    """
    asked = dict(locals())
    if plan is None and set:
        raise PlanError("set: gives the values of a plan's variables; of a kind give parameters")
    if plan is not None:
        from pipeline.plan.plan_text import read_text  # noqa: PLC0415
        from pipeline.planning.explain.allocated import allocated_plan, resolved_plan  # noqa: PLC0415

        path, new = Path(plan), None if out is None else Path(out)
        text = read_text(path)
        if text.data.get("calibrate") is None:
            return resolved_plan(path, new, set)
        return allocated_plan(text, path, new, set)[0]
    from pipeline.planning.explain.calibrated import Asked  # noqa: PLC0415
    from pipeline.planning.study.comparison import to_json  # noqa: PLC0415

    call, log = Asked(asked), plain_log() if progress else Log()
    if kind is not None:
        return call.one(lambda tried: log.progress(f"{tried} exponents tried"))
    compared = call.comparison(lambda tried: log.progress(f"{tried} shapes tried"))
    return dict(to_json(compared, compared.totals))


def gaussian_scales(
    epsilon: float, delta: float, at: float = 1.0, *, plot: "str | Path | None" = None
) -> dict[str, float | bool]:
    """Return scales of continuous Gaussian noise for (ε, δ), as `prdp calibrate --scales --json`, all rounded up.

    Args:
        epsilon: above 0.
        delta: above 0 and below 1.
        at: The influence of the record, in the unit of the scales.
        plot: An SVG or PNG file to write: the figures of docs/noise.md.

    Raises:
        PlanError: Where a number is out of its range.

    Examples:
        >>> scales = gaussian_scales(1, 1e-5)
        >>> [round(scales[name], 4) for name in ("exact", "closed", "classical", "ratio")]
        [3.7306, 4.6089, 4.8448, 1.0512]
    """
    from pipeline.accounting.convert import gaussian_scales as scales  # noqa: PLC0415

    try:
        found = scales(epsilon, delta, at).to_json()
    except ValueError as error:
        raise PlanError(f"gaussian_scales: {error}") from None
    if plot is not None:
        from pipeline.planning.explain.calibrated import plot_scales  # noqa: PLC0415

        plot_scales(Path(plot))
    return found


@documented
def evaluate(
    study: Annotated[str | Path, Arg("the study, a YAML file such as conf/studies/slides.yaml", "STUDY")],
    out: NewFolder,
    *,
    records: Annotated[int | None, Arg("number of records", "N", "count", default="the study's")] = None,
    seed: Annotated[int | None, Arg("seed of the microdata", "S", "count", default="the study's")] = None,
    **options: Unpack[OnEngine],
) -> dict[str, Any]:
    """Write a study of mechanisms beside each other on synthetic microdata; return it, as `prdp evaluate --json`."""
    from pipeline.diagnostics.synthetic_microdata import aggregate  # noqa: PLC0415
    from pipeline.planning.study.studies import StudyJob  # noqa: PLC0415
    from pipeline.planning.study.studies import evaluate as run  # noqa: PLC0415
    from pipeline.planning.study.study_spec import load_study  # noqa: PLC0415

    read, runner = load_study(Path(study)), Runner(**options)
    records = read.data.records if records is None else records
    read = replace(read, data=replace(read.data, records=records, seed=read.data.seed if seed is None else seed))
    with runner.started() as started:
        return dict(run(StudyJob(study=read, out=Path(out), scan=partial(aggregate, started), log=runner.log)))


@documented
def suppression(
    plan: Annotated["str | Path | Plan", Arg("a plan beside microdata of prdp generate, which are read", "PLAN")],
    out: NewFolder = None,
    *,
    measure: Annotated[
        str | None, Arg("the measure whose tables are taken", "MEASURE", flag="sum", default="the first")
    ] = None,
    tables: Annotated[Sequence[str], Arg("the tables", "NAME,…", "names", default=PLAIN)] = (),
    rules: Annotated[Mapping[str, float] | None, Arg(RULES, "RULES", "numbers", default=HELD)] = None,
    factors: tuple[float, float] = (1.05, 1.15),
    firm: Annotated[str | None, Arg("the column of firms", "COLUMN", default="the plan's unit, or firm_id")] = None,
    draws: int = 20,
    seed: Annotated[int, Arg("seed of what is drawn", "S", "count", default="0")] = 0,
    ledger: Annotated["LedgerLike", Arg(KNOWN, "URL", default="your own, if there is one")] = None,
    log: Log | None = None,
) -> dict[str, Any]:
    """Return a plan's tables by cell suppression and by multiplicative noise beside the plan's own noise.

    As `prdp evaluate --suppression PLAN --json` (docs/comparisons.md). It reads the plan's microdata, which must be
    those of `prdp generate`, on this machine. `factors`: how far from 1 those of the multiplicative noise are, at least
    and at most, as factors above 1; `draws`: how often noise is drawn; `log`: for progress.

    Raises:
        PlanError: The call is wrong, the plan has no such tables, or the microdata are not synthetic.
        StateError: The microdata are known to the ledger as a dataset's.
    """
    from pipeline.diagnostics.synthetic_microdata import rows_in_tables  # noqa: PLC0415
    from pipeline.planning.study.suppression import OWNER, SuppressionJob, write  # noqa: PLC0415
    from pipeline.planning.study.suppression import suppression as run  # noqa: PLC0415
    from pipeline.planning.study.todays_practice import FactorNoise, Rules  # noqa: PLC0415
    from prdp.ledgers import KnownDatasets  # noqa: PLC0415
    from prdp.plans import load_plan  # noqa: PLC0415

    if not draws >= 1:
        raise PlanError("draws: must be at least 1")
    try:
        held = Rules() if rules is None else Rules.named(rules)
        today = FactorNoise(a=factors[0], b=factors[1])
    except ValueError as error:
        raise PlanError(f"{arg('rules')}: {error}" if rules is not None else str(error)) from None
    model, known = load_plan(plan)._model, KnownDatasets.of(ledger)
    if model.dataset.path is not None:
        known.require_none_at(model.dataset.path, f"microdata {model.dataset.path}")
    figures = run(
        SuppressionJob(
            plan=model,
            rows=partial(rows_in_tables, known.with_files),
            measure=measure,
            tables=tuple(tables),
            rules=held,
            today=today,
            firm=firm or OWNER,
            draws=draws,
            seed=seed,
            log=log or Log(),
        )
    )
    if out is not None:
        write(figures, Path(out))
    return figures
