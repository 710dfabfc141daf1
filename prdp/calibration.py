"""Parameters of noise from a wanted accuracy or loss, and what losses mean; reads no microdata."""

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack, cast

from pipeline.base.errors import PlanError, arg
from pipeline.base.log import Log, plain_log
from prdp.declared import Arg, Number, Result, documented, frame, number_of, table
from udfs.numbers.exact import up_float

if TYPE_CHECKING:
    import pandas as pd

    from prdp.runs import Economy


NOTHING: Mapping[str, str] = {}
PLAN = "a plan whose mechanisms say calibrate:, or a draft with a key calibrate of its own"
WRITTEN = "write the plan, in its own folder, with its solutions"
VARIABLE = "the value of a variable of PLAN, or of a fixed parameter of --kind"
CLOSED = "of Gaussian noise: the exact condition, or the closed form"
SIZES = "a PUBLIC distribution of sizes, CSV with the header value,count; never of confidential microdata"
LEAST = "what is least: the mean absolute error or interval at a loss, or the loss at an accuracy"
RANKED = "rank by the largest loss, the mean loss, or the share of records that lose at most --limit"
COUNT = "for a count: every record has influence 1; with the kinds for counts"
MOST_LOST = "the size of a group, a record of which may lose --group-loss"
OF_KIND = ("parameters", "best_alpha", "group_loss", "group", "sizes", "count", "objective", "limit", "progress")


class Target(TypedDict, total=False):
    """What is wanted: one accuracy at a total, or one loss at an influence. Losses are in zCDP ρ, errors in units."""

    standard_error: Annotated[Number, Arg("a standard error at --total", "E")]
    mean_absolute_error: Annotated[Number, Arg("a mean absolute error at --total", "E")]
    relative_error: Annotated[Number, Arg("E|error| below R times the total, from --total on", "R")]
    interval: Annotated[Number, Arg("the width, end to end, of an interval at --total", "W")]
    loss: Annotated[Number, Arg("the largest loss of a record of influence --at", "RHO")]
    epsilon: Annotated[Number, Arg("the largest pure ε of a record of influence --at", "E")]
    delta: Annotated[Number, Arg("with --epsilon: (ε, δ) of the noise as drawn, in place of a pure ε", "D")]
    bound: Annotated[str, Arg(CLOSED, choices=("exact", "closed"), default="exact")]
    total: Annotated[Number, Arg("the true total for which an error is stated", "T", default="0")]
    at: Annotated[Number, Arg("the influence for which a loss or ε is stated", "X")]
    coverage: Annotated[Number, Arg("the coverage of intervals", "C", default="0.95")]
    step: Annotated[Number, Arg("the step of the measure", "S", default="1")]


class OfDraft(TypedDict, total=False):
    """The totals and sizes that a draft leaves open: those of typical synthetic cells."""

    records: Annotated[int, Arg("a draft: totals of so many synthetic establishments", "N", "at_least_one")]
    like: Annotated[str, Arg("a draft: totals that add up to published figures, cbp-2010 or cbp-2011", "FIGURES")]
    states: Annotated[list[str], Arg("with --like: 56,50", "CODES", "names", default="all")]
    seed: Annotated[int, Arg("seed of what is drawn", "S", "count", default="0")]
    times: Annotated[Number, Arg("a draft: all its limits so many times as large, and no share of cells wished", "X")]
    frontier: Annotated[bool, Arg("a draft of usable cells: what it is worth at smaller and larger limits")]
    plot: Annotated[str | Path, Arg("with --frontier: draw it into an SVG or PNG file", "FILE")]
    command_log: Log | None


class Wanted(Target, OfDraft, total=False):
    """What a call of calibration wants; of Python also what `compare`, `best_alpha` and `group_scale` take."""

    parameters: Mapping[str, Number]
    best_alpha: str
    group_loss: Number
    group: Number
    sizes: str | Path
    count: bool
    objective: str
    limit: Number
    progress: bool


class Calibrated(Result):
    """Parameters that meet a wish, as `prdp calibrate --json` prints them; `str()` is what it prints for people."""

    @property
    def scales(self) -> "pd.DataFrame":
        """The scales that were chosen: columns query, part (of a mechanism with parts), scale (its name), value."""
        if "mechanism" in self:
            chosen = [{"query": None, **self["mechanism"]}]
        else:
            chosen = [*self.get("found", ()), *self.get("solved", ())]
        rows = [
            (each["query"], each.get("part"), name, float(value))
            for each in chosen
            for name, value in each.items()
            if isinstance(value, int | float) and name in ("sigma", "gamma", "rho", "a", "r")
        ]
        return table(rows, query="object", part="object", scale="str", value="float")

    @property
    def losses(self) -> "pd.DataFrame":
        """What records of growing influence lose by the mechanism: columns influence, rho, epsilon (pure, or NaN)."""
        return frame(self.get("losses", ()), influence="float", rho="float", epsilon="float")


@documented
def calibrate(
    plan: Annotated["str | Path | None", Arg(PLAN, "PLAN", "file")] = None,
    *,
    out: Annotated["str | Path | None", Arg(WRITTEN, "FILE")] = None,
    set: Annotated[Mapping[str, str], Arg(VARIABLE, "NAME=VALUE", "setting", many=True)] = NOTHING,
    kind: Annotated[str | None, Arg("one mechanism: its kind, as in a plan", "KIND")] = None,
    **wanted: Unpack[Wanted],
) -> Calibrated:
    """Return parameters that meet an accuracy or a loss, as `prdp calibrate --json`; reads no microdata.

    With a plan: the scale of each of its `calibrate:`, of a draft all scales that it asks for (`prdp.allocate`). With a
    kind: that mechanism, with `parameters` that are fixed; `best_alpha`, `group_loss` with `group`: as
    `prdp.best_alpha` and `prdp.group_scale`. With neither: all families at equal accuracy, as `prdp.compare`.

    Raises:
        PlanError: Where the call is wrong, or no scale can meet it.
        BudgetRefused: Where the limits of a draft cannot be kept with the accuracies wanted.

    Examples:
        >>> solution = calibrate(kind="laplace", standard_error=30, total=500)
        >>> solution["mechanism"]["kind"], solution["losses"][0]["influence"]
        ('laplace', 1)
    """
    options: dict[str, Any] = dict(wanted)
    log = options.pop("command_log", None)
    if plan is None and kind is None and log is not None:
        raise PlanError(
            f"give a plan, or {arg('kind')} (one mechanism); prdp study compares all families, and converts losses"
        )
    if plan is None:
        unfit = [name for name in ("out", *OfDraft.__annotations__) if options.get(name) or (name == "out" and out)]
        if unfit:
            raise PlanError(f"{arg(unfit[0])}: cannot be combined with {arg('kind')}; leave it out")
        if kind is None:
            return compare(**options)
        progress = log or _log(options.pop("progress", False))
        options["parameters"] = {**set, **options.get("parameters", {})}
        return _one(kind, options, progress)
    for name in ("kind", *Target.__annotations__, *OF_KIND):
        if options.get(name) is not None or (name == "kind" and kind is not None):
            raise PlanError(f"{arg(name)}: cannot be combined with a plan; leave it out")
    return _of_plan(Path(plan), None if out is None else Path(out), set, options, log)


def _of_plan(
    path: Path, out: Path | None, set: Mapping[str, str], drawn: dict[str, Any], log: Log | None
) -> Calibrated:
    from pipeline.plan.plan_text import read_text  # noqa: PLC0415 — here and below: import prdp stays light
    from pipeline.planning.allocated import allocated_text  # noqa: PLC0415
    from pipeline.planning.calibrated import resolved_plan, resolved_text  # noqa: PLC0415

    asks_frontier = drawn.pop("frontier", False)
    if read_text(path).data.get("calibrate") is None:
        if drawn or asks_frontier:
            name = next(iter(drawn), "frontier")
            raise PlanError(f"{arg(name)}: cannot be combined with a plan that is no draft; leave it out")
        return Calibrated(resolved_plan(path, out, set), resolved_text)
    from prdp.plans import allocate  # noqa: PLC0415

    if log is not None and {"records", "like"} & drawn.keys():
        drawn["command_log"] = log
    if asks_frontier:
        if unfit := ["out"] * (out is not None) + ["times"] * ("times" in drawn):
            raise PlanError(f"{arg(unfit[0])}: cannot be combined with {arg('frontier')}; leave it out")
        return frontier(path, set=set, **drawn)
    if "plot" in drawn:
        raise PlanError(f"{arg('plot')}: needs {arg('frontier')} beside it")
    return Calibrated(allocate(path, out=out, set=set, **drawn).to_json(), allocated_text)


@documented
def frontier(
    draft: "str | Path | Mapping[str, Any]",
    *,
    folder: "str | Path | None" = None,
    set: Mapping[str, str] = NOTHING,
    records: int | None = None,
    seed: int = 0,
    plot: "str | Path | None" = None,
    **options: Any,
) -> Calibrated:
    """Return the share of usable cells of a draft's tables at 0.1, 0.3, 1 and 3 times its limits.

    As `prdp calibrate DRAFT --frontier --json`: wishes are left aside, and `needed` is the factor with which they are
    just met. The arguments are those of `prdp.allocate`; `plot`: draw it into an SVG or PNG file.

    Raises:
        PlanError: Where the draft is wrong, or minimises something else than unusable cells.
    """
    from pipeline.base.plots import require_format  # noqa: PLC0415
    from pipeline.planning.frontier import frontier as of_draft  # noqa: PLC0415
    from pipeline.planning.frontier import frontier_text  # noqa: PLC0415
    from pipeline.planning.frontier import plot as draw  # noqa: PLC0415
    from prdp.plans import sized  # noqa: PLC0415

    if plot is not None:
        require_format(Path(plot))
    with sized(draft, folder, set, records, seed, cast("Economy", options)) as (text, path, made):
        result = of_draft(text, path, set, made)
    if plot is not None:
        draw(result, Path(plot))
    return Calibrated(result, frontier_text)


@documented
def compare(
    *,
    sizes: Annotated[str | Path | None, Arg(SIZES, "FILE", default="employment in the synthetic economy")] = None,
    count: Annotated[bool, Arg(COUNT)] = False,
    objective: Annotated[str, Arg(RANKED, choices=("largest", "mean", "share"))] = "largest",
    limit: Annotated[Number | None, Arg("a loss; needed for --objective share", "RHO")] = None,
    plot: Annotated[str | Path | None, Arg("draw the comparison into an SVG or PNG file", "FILE")] = None,
    progress: bool = False,
    command_log: Log | None = None,
    **target: Unpack[Target],
) -> Calibrated:
    """Return all families of noise at equal accuracy, ranked by what records would lose, as `prdp study compare`.

    Raises:
        PlanError: Where the call is wrong, or no family can have the accuracy.
    """
    from pipeline.base.plots import require_format  # noqa: PLC0415
    from pipeline.planning.study.comparison import notes, summary, to_json  # noqa: PLC0415
    from pipeline.planning.study.comparison import plot as draw  # noqa: PLC0415
    from pipeline.planning.study.comparison import table as columns  # noqa: PLC0415

    if plot is not None:
        require_format(Path(plot))
        if count:
            raise PlanError(f"{arg('plot')}: cannot be combined with {arg('count')}; leave it out")
    log = command_log or _log(progress)
    own = {"sizes": sizes, "count": count, "objective": objective, "limit": limit}
    compared = _asked({**target, **own}).comparison(_every(20, "shapes", log))
    if plot is not None:
        draw(compared, Path(plot))
    return Calibrated(
        to_json(compared, compared.totals),
        lambda _: "\n".join([summary(compared), "", columns(compared, compared.totals), "", *notes(compared)]),
    )


@documented
def best_alpha(
    least: Annotated[str, Arg(LEAST, choices=("error", "interval", "loss"), option=True)],
    *,
    kind: Annotated[str, Arg("the kind of stable noise", "KIND")] = "symmetric_stable",
    set: Annotated[Mapping[str, str], Arg("a fixed parameter", "NAME=VALUE", "setting", many=True)] = NOTHING,
    progress: bool = False,
    command_log: Log | None = None,
    **target: Unpack[Target],
) -> Calibrated:
    """Return symmetric stable noise with the alpha that is best for a target, as `prdp study alpha`."""
    return _one(kind, {**target, "parameters": set, "best_alpha": least}, command_log or _log(progress))


@documented
def group_scale(
    group_loss: Annotated[Number, Arg("what a record in a group of --group may lose", "V", option=True)],
    group: Annotated[Number, Arg(MOST_LOST, "N", option=True)],
    *,
    kind: Annotated[str, Arg("the kind of noise for counts", "KIND")] = "groupwise_log",
    set: Annotated[Mapping[str, str], Arg("a fixed parameter", "NAME=VALUE", "setting", many=True)] = NOTHING,
    **target: Unpack[Target],
) -> Calibrated:
    """Return groupwise noise whose offset follows from what a record in a group may lose, as `prdp study group`."""
    return _one(kind, {**target, "parameters": set, "group_loss": group_loss, "group": group}, Log())


def _one(kind: str, options: Mapping[str, Any], log: Log) -> Calibrated:
    from pipeline.planning.calibrated import mechanism_lines  # noqa: PLC0415

    call = _asked({**options, "kind": kind})
    solution = call.one(_every(5, "exponents", log))
    return Calibrated(solution, lambda facts: mechanism_lines(facts, call.number("coverage")))


def _asked(options: Mapping[str, Any]) -> Any:
    from pipeline.planning.calibrated import Asked  # noqa: PLC0415

    names = (*Target.__annotations__, *OF_KIND, "kind")
    preset = {"step": 1, "coverage": "0.95", "objective": "largest", "count": False}
    stated = {name: value for name, value in options.items() if value is not None}
    return Asked(dict.fromkeys(names) | preset | stated)


def _log(progress: bool) -> Log:
    return plain_log() if progress else Log()


def _every(number: int, what: str, log: Log) -> Callable[[int], None]:
    return lambda tried: log.progress(f"{tried} {what} tried") if tried and tried % number == 0 else None


@documented
def gaussian_scales(
    epsilon: Annotated[Number, Arg("above 0", "E", option=True)],
    delta: Annotated[Number, Arg("above 0 and below 1", "D", option=True)],
    at: Annotated[Number, Arg("the influence of the record, in the unit of the scales", "X", option=True)] = 1.0,
    *,
    plot: Annotated["str | Path | None", Arg("write the figures of docs/noise.md as SVG or PNG", "FILE")] = None,
) -> Result:
    """Return scales of continuous Gaussian noise for (ε, δ), as `prdp study scales --json`, all rounded up.

    Raises:
        PlanError: Where a number is out of its range.

    Examples:
        >>> scales = gaussian_scales(1, 1e-5)
        >>> [round(scales[name], 4) for name in ("exact", "closed", "classical", "ratio")]
        [3.7306, 4.6089, 4.8448, 1.0512]
    """
    from pipeline.accounting.convert import gaussian_scales as scales  # noqa: PLC0415
    from pipeline.planning.calibrated import scales_text  # noqa: PLC0415
    from pipeline.planning.study.study_figures import plot_scales  # noqa: PLC0415
    from udfs.mechanisms.base import ParameterError  # noqa: PLC0415

    call = _asked({"epsilon": epsilon, "delta": delta, "at": at})
    try:
        known = scales(*(float(call.number(name)) for name in ("epsilon", "delta", "at")))
    except ParameterError as error:
        raise call.broken(error.parameter, error.rule) from None
    if plot is not None:
        plot_scales(Path(plot))
    return Result(known.to_json(), lambda _: scales_text(known))


@documented
def epsilon(
    *,
    rho: Annotated[Number, Arg("the loss, above 0", "RHO", option=True)],
    delta: Annotated[Number, Arg("above 0 and below 1", "D", option=True)],
) -> float:
    """Return the least ε that Rényi orders give: who loses at most `rho` (zCDP) has (ε, δ)-differential privacy.

        ε = min over α > 1 of  αρ + ln((α − 1)/α) − (ln δ + ln α)/(α − 1)

    Rounded up. It holds for every mechanism of this loss; where a plan's noise is known, `prdp explain` states less.

    Examples:
        >>> round(epsilon(rho=0.1, delta=1e-6), 5), round(epsilon(rho=1, delta="1e-6"), 5)
        (2.14194, 7.76622)
    """
    from pipeline.accounting.convert import approximate_epsilon  # noqa: PLC0415 — NumPy

    return approximate_epsilon(up_float(number_of("rho", rho)), _delta(delta))


@documented
def rho(
    *,
    epsilon: Annotated[Number, Arg("above 0", "E", option=True)],
    delta: Annotated[Number, Arg("above 0 and below 1", "D", option=True)],
) -> float:
    """Return the largest rho of which `prdp.epsilon` says at most `epsilon` at `delta`, rounded down.

    Examples:
        >>> largest = rho(epsilon=1, delta=1e-6)
        >>> round(largest, 4), epsilon(rho=largest, delta=1e-6) <= 1
        (0.0244, True)
    """
    from pipeline.accounting.convert import largest_rho  # noqa: PLC0415 — NumPy

    return largest_rho(_below(number_of("epsilon", epsilon)), _delta(delta))


def _delta(delta: Number) -> float:
    """Return δ, rounded down."""
    number = _below(number_of("delta", delta))
    if not 0 < number < 1:
        raise PlanError(f"{arg('delta')}: must be above 0 and below 1")
    return number


def _below(number: Fraction) -> float:
    return -up_float(-number)
