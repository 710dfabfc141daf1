"""Without microdata: synthetic records, parameters from an accuracy or a loss, and studies of mechanisms."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.errors import PlanError
from pipeline.log import Log, plain_log
from udfs.numbers.exact import exact

Number = int | float | str | Fraction


def generate(records: int, out: str | Path, *, seed: int = 0) -> Path:
    """Write synthetic microdata and all that a first release needs; return the plan's path.

    Args:
        records: The number of establishments.
        out: The folder to write, new or empty.
        seed: The same seed gives the same bytes.
    """
    from pipeline.economy.generate import generate as run  # noqa: PLC0415

    return run(records, seed, Path(out)).plan


def generate_like(figures: str, out: str | Path, *, states: Sequence[str] = (), seed: int = 0) -> Path:
    """Write synthetic establishments that add up to published figures by state and NAICS 6; return the plan's path.

    docs/cbp.md says what holds exactly and what is assumed.

    Args:
        figures: "cbp-2010" or "cbp-2011", County Business Patterns of that year.
        out: The folder to write, new or empty.
        states: Two-digit codes of states, such as "56"; all where there are none.
        seed: The same seed gives the same bytes.
    """
    from pipeline.economy.like import generate_like as run  # noqa: PLC0415

    return run(figures, seed, Path(out), states=states).plan


def withheld_today(figures: str) -> dict[str, Any]:
    """Return how much of published figures is withheld, by level, as `prdp generate --like … --describe --json`."""
    from pipeline.economy.published import withheld_today as run  # noqa: PLC0415

    return run(figures)


def calibrate(
    plan: "str | Path | None" = None,
    *,
    out: "str | Path | None" = None,
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

    With a plan: the scale of each of its `calibrate:`. With a kind: that mechanism. With neither: all families at equal
    accuracy, ranked by what records would lose.

    Args:
        plan: The plan's file.
        out: Write the plan here, in its own folder, with every `calibrate:` replaced by its solution.
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
    if plan is not None:
        from pipeline.report.calibrated import resolved_plan  # noqa: PLC0415

        return resolved_plan(Path(plan), None if out is None else Path(out))
    stated = {"standard_error": standard_error, "mean_absolute_error": mean_absolute_error}
    stated |= {"relative_error": relative_error, "interval": interval, "loss": loss, "epsilon": epsilon}
    given = {name: value for name, value in stated.items() if value is not None}
    beside = {"delta": delta, "group_loss": group_loss, "group": group}
    more = {name: _exact(name, value) for name, value in beside.items() if value is not None}
    target = _target(given, total, at, coverage, more, bound, best_alpha)
    if kind is not None:
        from pipeline.accounting.best_alpha import Least  # noqa: PLC0415
        from pipeline.report.calibrated import best_alpha_json, calibrated, mechanism_json  # noqa: PLC0415
        from udfs.mechanisms.catalogue import CATALOGUE  # noqa: PLC0415

        if total is at is None and kind in CATALOGUE and not CATALOGUE[kind].additive:
            raise PlanError("calibrate: total is missing; the error of this kind grows with the true total")
        fixed = {name: _exact_or_text(value) for name, value in (parameters or {}).items()}
        if best_alpha is not None:
            influence, tell = None if at is None else _exact("at", at), (plain_log() if progress else Log()).progress
            least = Least(what=best_alpha, coverage=_exact("coverage", coverage), influence=influence)
            described = {"kind": kind, **fixed}
            return best_alpha_json(
                described, _exact("step", step), target, least, lambda tried: tell(f"{tried} exponents tried")
            )
        mechanism = calibrated(kind, fixed, _exact("step", step), target)
        totals = () if total is None else (float(_exact("total", total)),)
        return mechanism_json(mechanism, totals, _exact("coverage", coverage), target)
    if best_alpha is not None:
        raise PlanError("calibrate: best_alpha goes with a kind, symmetric_stable")
    if at is not None or total is None:
        raise PlanError(
            "calibrate: a comparison is at equal accuracy; give a standard_error, for instance, and a total"
        )
    return _comparison(target, _exact("step", step), sizes, count, objective, limit, progress)


def gaussian_scales(
    epsilon: float, delta: float, at: float = 1.0, *, plot: "str | Path | None" = None
) -> dict[str, float | bool]:
    """Return scales of continuous Gaussian noise for (ε, δ), as `prdp calibrate --scales --json`, all rounded up.

    Args:
        epsilon: above 0.
        delta: above 0 and below 1.
        at: The influence of the record, in the unit of the scales.
        plot: An SVG or PNG file to write: the figures of docs/gaussian.md.

    Raises:
        PlanError: Where a number is out of its range.

    Examples:
        >>> scales = gaussian_scales(1, 1e-5)
        >>> [round(scales[name], 4) for name in ("exact", "closed", "classical", "ratio")]
        [3.7306, 4.6089, 4.8448, 1.0512]
    """
    from pipeline.accounting.gaussian import gaussian_scales as scales  # noqa: PLC0415

    try:
        found = scales(epsilon, delta, at).to_json()
    except ValueError as error:
        raise PlanError(f"gaussian_scales: {error}") from None
    if plot is not None:
        from pipeline.study.gaussian_scales import plot_scales  # noqa: PLC0415

        plot_scales(Path(plot))
    return found


def evaluate(
    study: str | Path,
    out: str | Path,
    *,
    records: int | None = None,
    seed: int | None = None,
    engine: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Write a study of mechanisms beside each other on synthetic microdata; return it, as `prdp evaluate --json`.

    Args:
        study: The study's YAML file.
        out: The folder to write, new or empty.
        records: The number of records. Default: the study's.
        seed: The seed of the microdata. Default: the study's.
        engine: "dask" (default) or "spark".
        **options: As of `Plan.release`.
    """
    from pipeline.study.run import StudyJob  # noqa: PLC0415
    from pipeline.study.run import evaluate as run  # noqa: PLC0415
    from pipeline.study.spec import load_study  # noqa: PLC0415
    from prdp.runs import Runner  # noqa: PLC0415

    read, runner = load_study(Path(study)), Runner(engine=engine, **options)
    records = read.data.records if records is None else records
    read = replace(read, data=replace(read.data, records=records, seed=read.data.seed if seed is None else seed))
    with runner.started() as started:
        return dict(run(StudyJob(study=read, out=Path(out), engine=started, log=runner.log)))


def _comparison(
    target: Any,
    step: Fraction,
    sizes: "str | Path | None",
    count: bool,
    objective: str,
    limit: Number | None,
    progress: bool,
) -> dict[str, Any]:
    from pipeline.study.comparison import BUILT_IN, ONE_EACH, Objective, compare, read_sizes, to_json  # noqa: PLC0415

    if count and sizes is not None:
        raise PlanError("calibrate: sizes mean nothing for a count, in which every record has an influence of 1")
    try:
        wanted = Objective(objective, None if limit is None else _exact("limit", limit))
    except ValueError as error:
        raise PlanError(f"calibrate: {error}") from None
    log = plain_log() if progress else Log()
    known = ONE_EACH if count else read_sizes(Path(sizes) if sizes else BUILT_IN)
    compared = compare(target, known, wanted, step, lambda tried: log.progress(f"{tried} shapes tried"))
    if not compared.candidates:
        raise PlanError("calibrate: no family can have this accuracy; ask for another")
    totals = sorted({0.0, float(target.total), 100 * float(target.total)})
    return dict(to_json(compared, tuple(totals)))


def _target(
    stated: Mapping[str, Number],
    total: Number | None,
    at: Number | None,
    coverage: Number,
    more: Mapping[str, Fraction],
    bound: str | None,
    best_alpha: str | None,
) -> Any:
    from pipeline.accounting import targets  # noqa: PLC0415

    if len(stated) != 1:
        raise PlanError(f"calibrate: give exactly one of {', '.join(targets.OF_NAME)}")
    ((name, value),) = stated.items()
    if at is None if name in targets.AT_A_RECORD else at is not None and best_alpha != "loss":
        raise PlanError("calibrate: at is the influence at which a loss is meant: give both or neither")
    if name in targets.AT_A_RECORD and total is not None:
        raise PlanError(f"calibrate: total means nothing with {name}; leave it out")
    given: dict[str, Fraction | None] = {name: _exact(name, value), "coverage": _exact("coverage", coverage), **more}
    for field, beside in targets.BESIDE:
        present = bound is not None if field == "bound" else field in more
        if present and beside not in given:
            raise PlanError(f"calibrate: {field} goes with {beside}; give both or neither")
    if "group_loss" in more and "group" not in more:
        raise PlanError("calibrate: group is missing: the number of records of the group that may lose so much")
    if bound not in (None, *targets.BOUNDS):
        raise PlanError(f"calibrate: bound must be one of {', '.join(targets.BOUNDS)}")
    given |= {} if total is None else {"total": _exact("total", total)}
    given |= {} if at is None else {"influence": _exact("at", at)}
    try:
        return targets.target_of(name, given, bound)
    except targets.CalibrationError as error:
        raise PlanError(f"calibrate: {error}") from None


def _exact(name: str, value: Number) -> Fraction:
    """Return a number as the decimal that was written, exactly."""
    try:
        return value if isinstance(value, Fraction) else exact(str(value))
    except ValueError:
        raise PlanError(f"calibrate: {name} must be a number") from None


def _exact_or_text(value: Number) -> Fraction | str:
    try:
        return value if isinstance(value, Fraction) else exact(str(value))
    except ValueError:
        return str(value)
