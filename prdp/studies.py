"""Synthetic records, studies of mechanisms and plans on them, and noise designed for limits (docs/design.md)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pipeline.base.errors import PlanError, arg
from pipeline.base.log import Log
from prdp.declared import FIGURES, Arg, NewFolder, Result, documented
from prdp.runs import OnEngine, Runner
from udfs.numbers.exact import bound_text, exact

if TYPE_CHECKING:
    import prdp.mechanisms
    from pipeline.planning.study import design as study
    from prdp.ledgers import LedgerLike
    from prdp.plans import Plan

PLAIN = "all with one mechanism and no filter"
RULES = "the rules, such as p=10,n=2; width=10: what the threshold protects, in %"
HELD = "p=10,n=2,k=85,threshold=3"
KNOWN = "read for fingerprints of known datasets"


Records = Annotated[int | None, Arg("number of records", "N", "count")]
Of = Annotated[
    str | Path | None, Arg("in place of establishments: a YAML file, or a name of conf/economies", "ECONOMY")
]
Like = Annotated[str | None, Arg("establishments that add up to published figures", choices=FIGURES)]
States = Annotated[Sequence[str], Arg("with --like: 56,50", "CODES", "names", default="all")]
Seed = Annotated[int, Arg("seed of what is drawn", "S", "count", default="0")]


@documented
def made(
    out: NewFolder,
    *,
    records: Records = None,
    economy: Of = None,
    like: Like = None,
    states: States = (),
    seed: Seed = 0,
) -> Result:
    """Write synthetic microdata and all that a first release needs, as `prdp generate`; return where they lie."""
    import yaml  # noqa: PLC0415

    from pipeline.planning.economy.generate import generate as run  # noqa: PLC0415
    from pipeline.planning.economy.inventories import generate_economy  # noqa: PLC0415
    from pipeline.planning.economy.like import generate_like as run_like  # noqa: PLC0415

    if (records is None) == (like is None):
        raise PlanError(f"one of the arguments {arg('records')} and {arg('like')} is required")
    if states and like is None:
        raise PlanError(f"{arg('states')}: it goes with {arg('like')} alone")
    if economy is not None and like is not None:
        raise PlanError(f"{arg('economy')}: it goes with {arg('records')}")
    if economy is not None:
        written = generate_economy(economy, records or 0, seed, Path(out))
    elif records is not None:
        written = run(records, seed, Path(out))
    else:
        written = run_like(str(like), seed, Path(out), states=states)
    facts = {"microdata": str(written.microdata), "plan": str(written.plan), "records": written.records}
    variables = yaml.safe_load(written.plan.read_text(encoding="utf-8")).get("variables", {})
    values = "".join(f" --set {name}={name.upper()}" for name in variables)
    text = "microdata {microdata}\nplan      {plan}\nnext      prdp release {plan}" + values
    return Result(facts, lambda stated: text.format(**stated))


def generate(records: int, out: str | Path, *, seed: int = 0, economy: str | Path | None = None) -> Path:
    """Write synthetic microdata and all that a first release needs; return the plan's path.

    The same seed gives the same bytes. `economy`: another than establishments, a YAML file or a name of conf/economies:
    "labour", "farms" or "enterprises".
    """
    return Path(made(out, records=records, seed=seed, economy=economy)["plan"])


def generate_like(figures: str, out: str | Path, *, states: Sequence[str] = (), seed: int = 0) -> Path:
    """Write synthetic establishments that add up to published figures by state and NAICS 6; return the plan's path.

    `figures`: "cbp-2010" or "cbp-2011". docs/economy.md says what holds exactly and what is assumed.
    """
    return Path(made(out, like=figures, states=states, seed=seed)["plan"])


@documented
def today(
    like: Annotated[str, Arg("the published figures", choices=FIGURES, option=True)],
    *,
    beside: Annotated["Plan | None", Arg("errors of the plan's tables in the same cells", "PLAN", "plan")] = None,
    reconciled: Annotated[bool, Arg("with --beside: once tables add up, as of plans that derive some")] = False,
) -> dict[str, Any]:
    """Return what of published figures is withheld today, and with a plan its errors in the same cells."""
    if beside is not None:
        return beside_today(like, beside, reconciled=reconciled)
    if reconciled:
        raise PlanError(f"{arg('reconciled')}: it goes with {arg('beside')}")
    return withheld_today(like)


def withheld_today(figures: str) -> dict[str, Any]:
    """Return how much of published figures is withheld, by level, as `prdp study today --json`."""
    from pipeline.planning.economy.published import withheld_today as run  # noqa: PLC0415

    return run(figures)


def beside_today(figures: str, plan: "str | Path | Plan", *, reconciled: bool = False) -> dict[str, Any]:
    """Return how large errors of a plan's tables by state and industry are in the cells of published figures.

    By today's flag and by true employment, with the share of today's withheld cells that become usable and what
    records lose for it (docs/economy.md). With `reconciled`, and of a plan that derives tables, errors are those once
    all tables add up. Nothing is drawn, and no microdata are read.

    Raises:
        PlanError: The plan has no such tables with additive noise.
    """
    from pipeline.planning.study.todays_practice import beside_today as run  # noqa: PLC0415
    from prdp.plans import load_plan  # noqa: PLC0415

    return run(figures, load_plan(plan)._model, reconciled=reconciled)


@documented
def evaluate(
    study: Annotated[str | Path, Arg("the study, a YAML file such as conf/studies/slides.yaml", "STUDY")],
    out: NewFolder,
    *,
    records: Annotated[int | None, Arg("number of records", "N", "count", default="the study's")] = None,
    seed: Annotated[int | None, Arg("seed of what is drawn", "S", "count", default="the study's")] = None,
    **options: Unpack[OnEngine],
) -> dict[str, Any]:
    """Write a study of mechanisms beside each other on synthetic microdata; return it, as `prdp study run --json`."""
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
    command_log: Log | None = None,
) -> dict[str, Any]:
    """Return a plan's tables by cell suppression and by multiplicative noise beside the plan's own noise.

    As `prdp study suppression PLAN --json` (docs/comparisons.md). It reads the plan's microdata, which must be
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
            log=log or command_log or Log(),
        )
    )
    if out is not None:
        write(figures, Path(out))
    return figures


Number = int | float | str | Fraction
MINIMISED = "what is least: variance, mean_absolute_error or interval"
LIMIT = "what a record of influence X, and every smaller one, may lose"


class Design:
    """A designed noise: what `design` returns."""

    def __init__(self, designed: "study.Design") -> None:
        self._designed = designed

    @property
    def mechanism(self) -> "prdp.mechanisms.Mechanism":
        """The mechanism, `prdp.mechanisms.Designed`, with certified losses and errors."""
        from prdp import mechanisms  # noqa: PLC0415

        noise = self._designed.mechanism
        return mechanisms.Designed(weights=noise.weights, step=noise.step)

    def to_json(self) -> dict[str, Any]:
        """Return limits with certified losses, errors, a lower bound of what is minimised for every noise within the
        limits (`lower_bound`), and the best named noise beside it, as `prdp study design --json`.
        """
        return self._designed.to_json()

    def save(self, path: str | Path) -> Path:
        """Write the table to a new file, which a plan names: `mechanism: {kind: designed, weights: FILE}`.

        Raises PlanError where the file cannot be made, or exists.
        """
        from pipeline.plan.plan_mechanisms import weights_file  # noqa: PLC0415

        text = weights_file(self._designed.mechanism.weights, self._designed.wish.step, self.to_json())
        try:
            with Path(path).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise PlanError(f"{path}: exists already; name another file") from None
        except OSError as error:
            raise PlanError(f"{path}: cannot be written: {error.strerror}") from None
        return Path(path)

    def __repr__(self) -> str:
        return f"<prdp.Design of the least {self.to_json()['minimise']} within {len(self.to_json()['limits'])} limits>"


def design(
    limits: Mapping[Number, Number], *, minimise: str = "variance", step: Number = 1, coverage: Number = 0.95
) -> Design:
    """Return the additive noise with the least error found within limits on losses; reads no microdata.

    Args:
        limits: influence → the most, in zCDP ρ, that a record of it may lose; each binds all smaller ones too.
        minimise: "variance", "mean_absolute_error" or "interval", the width of intervals.
        step: The step of the measure, of which influences are whole multiples.
        coverage: That of intervals, between 0 and 1.

    Raises:
        PlanError: Where limits do not rise together, or no named noise keeps them to start from.
    """
    from pipeline.planning.study.design import Wish  # noqa: PLC0415
    from pipeline.planning.study.design import design as run  # noqa: PLC0415

    pairs = sorted((_exactly("influence", x), _exactly("rho", most)) for x, most in limits.items())
    return Design(run(Wish(tuple(pairs), minimise, _exactly("step", step), _exactly("coverage", coverage))))


@documented
def designed(
    out: Annotated[str | Path, Arg("file to write; it must not exist", "FILE", option=True)],
    *,
    limit: Annotated[Iterable[tuple[Number, Number]], Arg(LIMIT, "X:RHO", "limit", many=True, option=True)],
    minimise: Annotated[str, Arg(MINIMISED, "ERROR")] = "variance",
    coverage: Annotated[Number, Arg("the coverage of intervals", "C")] = "0.95",
    step: Annotated[Number, Arg("the step of the measure", "S", default="1")] = 1,
) -> Result:
    """Write designed noise to a file that a plan names, as `prdp study design`; return what it is."""
    pairs = list(limit)
    if len(dict(pairs)) < len(pairs):
        raise PlanError(f"{arg('limit')}: an influence stands twice")
    if Path(out).exists():
        raise PlanError(f"{arg('out', out)}: exists already; name another file")
    made = design(dict(pairs), minimise=minimise, step=step, coverage=coverage)
    made.save(out)
    return Result(made.to_json() | {"file": str(out)}, lambda facts: "\n".join(_lines(made, facts)))


def _lines(made: Design, facts: Mapping[str, Any]) -> list[str]:
    start, bound = facts["start"], facts["lower_bound"]
    lines = [f"table    {facts['file']}", "", "    influence   limit      certified loss (rho)"]
    for limit in facts["limits"]:
        certified = bound_text(made.mechanism.mechanism.loss_at(exact(limit["influence"])))
        lines.append(f"    {limit['influence']:<12}{limit['rho']:<11}{certified}")
    shape = ", ".join(f"{name} {start[name]}" for name in ("p", "d", "a", "sigma"))
    least = []
    if bound:
        excess = 100 * (facts[facts["minimise"]] / bound - 1)
        least = [f"    at most {excess:.2g} % above the least possible within the limits ({bound:.6g})"]
    return [
        *lines,
        "",
        f"    standard error {facts['variance'] ** 0.5:.6g}, mean absolute error {facts['mean_absolute_error']:.6g}, "
        f"{facts['coverage']} intervals {facts['interval']:.6g} wide",
        f"    {facts['minimise'].replace('_', ' ')}: {facts['ratio']:.4g} times that of the best exponential "
        "polylogarithmic noise",
        f"    within the same limits ({shape})",
        *least,
        "",
        f"in a plan: mechanism: {{kind: designed, weights: {Path(facts['file']).name}}}",
    ]


def _exactly(name: str, value: Number) -> Fraction:
    try:
        return exact(value)
    except (ValueError, TypeError):
        raise PlanError(f"design: {name} must be a number, not {value!r}") from None
