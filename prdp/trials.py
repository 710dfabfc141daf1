"""A whole plan tried on synthetic microdata, before any ledger knows of it."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pipeline.base.errors import BudgetRefused, PlanError, PrdpError, StateError, arg, file_errors
from pipeline.plan.load import NOTHING, filled
from pipeline.plan.model import Plan as Model
from pipeline.plan.plan_text import read_text
from prdp.declared import Arg, NewFolder, Result, Value, documented, frame, located
from prdp.ledgers import KnownDatasets, LedgerLike
from prdp.plans import Plan, allocate, load_plan
from prdp.runs import Economy, Runner, economy_of
from udfs.numbers.exact import exact

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.accounting.allocation_problem import Bound
    from pipeline.diagnostics.plan_trials import TrialJob
    from pipeline.diagnostics.synthetic_microdata import Origin
    from pipeline.engines.protocol import Engine

EQUAL = "equal in every table: variance, mean_absolute_error, median_relative_error or interval"
RECORDS = "number of synthetic establishments"
SIZES = "a PUBLIC file: CSV with the header value,count, or records in the plan's columns"
USABLE = "up to this standard error, as a share of its total, a cell is usable"
BESIDE = "another plan to try on the same microdata, with the values of --set that it declares"
KNOWN = "with --sizes: read for fingerprints of known datasets"
DRAFT = "a plan, or a draft, whose scales are then those that prdp calibrate chooses"
LEAST = "what is least: variance, mean_absolute_error or interval"
VARIABLE = "the value of a variable of PLAN"
TOTAL = "the true total at which errors that grow with it are compared"
OF_CELLS = "totals are medians of cells of so many synthetic establishments"
PlanLike = str | os.PathLike[str] | Plan


@documented
def try_plan(
    plan: Annotated[PlanLike, Arg("the plan, a YAML file", "PLAN")],
    *,
    records: Annotated[int | None, Arg(RECORDS, "N", "at_least_one", default="300,000")] = None,
    sizes: Annotated[str | Path | None, Arg(SIZES, "FILE")] = None,
    declared_public_by: Annotated[str | None, Arg("who declares that file to be public", "NAME")] = None,
    draws: Annotated[int, Arg("how often errors are drawn", "N", "count")] = 10,
    seed: Annotated[int, Arg("seed of what is drawn", "S", "count", default="0")] = 0,
    usable: Annotated[float, Arg(USABLE, "SHARE", "above_zero")] = 0.3,
    beside: Annotated[Sequence[PlanLike], Arg(BESIDE, "PLAN", many=True)] = (),
    page: Annotated[str | Path | None, Arg("write an HTML page to play with the plan's scales", "FILE")] = None,
    ledger: Annotated[LedgerLike, Arg(KNOWN, "URL", default="your own, if there is one")] = None,
    **options: Unpack[Economy],
) -> "Trial":
    """Try a whole plan on synthetic microdata; return what `prdp try --json` prints (docs/calibration.md).

    Nothing is charged: the release that is rehearsed has a ledger of its own in a temporary folder, and keys that are
    thrown away. Microdata of the plan are not read. Draws differ from call to call.

    Returns:
        notice, microdata, draws, and of each plan: limits, tables with errors by class of the true total, released and
        reconciled standard errors and shares of usable cells, losses of records and of firms, and what a release needs.

    Raises:
        PlanError: The economy has not the plan's keys or measures, or the call is wrong.
        StateError: The file declared public is known to the ledger as a dataset's.
    """
    from pipeline.diagnostics.plan_trials import try_plans  # noqa: PLC0415
    from pipeline.diagnostics.synthetic_microdata import Origin, require_apart  # noqa: PLC0415
    from pipeline.microdata.source import find, identity_of  # noqa: PLC0415
    from pipeline.planning.trial_page import trial_page  # noqa: PLC0415
    from pipeline.planning.trial_text import trial_text  # noqa: PLC0415
    from pipeline.release.pinned import require_no_part  # noqa: PLC0415

    like, states, runner = economy_of(options)
    plans = [_loaded(each) for each in (plan, *beside)]
    origin = Origin(
        records=records,
        like=like,
        states=states,
        sizes=None if sizes is None else Path(sizes),
        declared_public_by=declared_public_by,
        seed=seed,
    )
    if sizes is not None:
        file_of_sizes, known = located(sizes, arg("sizes")), KnownDatasets.of(ledger)
        known.require_none_at(file_of_sizes, f"{arg('sizes')} {file_of_sizes}")
        require_no_part(file_of_sizes)
        for each in plans:
            require_apart(each._model, file_of_sizes, file_of_sizes)
        files = find(file_of_sizes.resolve(arg("sizes")))
        for each, file in product(plans, files.files):  # which may be links
            require_apart(each._model, file_of_sizes, file)
        dataset = known.with_files(identity_of(files).fingerprints)
        if dataset is not None:
            raise StateError(
                f"{arg('sizes', file_of_sizes)}: a file of it is one of dataset {dataset} in the ledger: microdata "
                "of a dataset are not public; give another file"
            )
    with runner.started() as started:
        tried = try_plans(replace(_job(plans, origin, draws, runner, started), usable=usable))
    if page is not None:
        first = plans[0]
        _write(Path(page), trial_page(first._model, first.source, tried.document, tried.cells[0]))
    return Trial(tried.document, trial_text)


class Trial(Result):
    """What a trial showed, as `prdp try --json` prints it; `str()` is what `prdp try` prints."""

    @property
    def limits(self) -> "pd.DataFrame":
        """The limits of each plan: columns plan, at, rho, limit, within."""
        limit = {"rho": "float", "limit": "float", "within": "object"}
        return frame(self["plans"], "limits", plan="str release", at="reference", **limit)

    @property
    def accuracy(self) -> "pd.DataFrame":
        """Standard errors: columns plan, query, part, standard_error and reconciled (`prdp.Explanation.errors`).

        NaN where an error grows with the total, is infinite or not known.
        """
        errors = {"part": "object", "standard_error": "float", "reconciled": "float"}
        return frame(self._tables, "errors", plan="str release", query="str name", **errors)

    @property
    def usable(self) -> "pd.DataFrame":
        """The cells of totals other than 0, and which shares of them are usable, released and reconciled, by table.

        Columns: plan, query, cells, released, reconciled.
        """
        shares = {"cells": "int", "released": "float", "reconciled": "float"}
        return frame([of | of["usable"] for of in self._tables], plan="str release", query="str name", **shares)

    @property
    def _tables(self) -> list[dict[str, Any]]:
        plans = self["plans"]
        return [{**of, "release": plan["release"]} for plan in plans for of in (*plan["tables"], *plan["derived"])]

    @property
    def errors(self) -> "pd.DataFrame":
        """The classes of each table by true total: columns plan, query, and those of a class in `--json`."""
        import pandas as pd  # noqa: PLC0415 — JSON is had without it

        return pd.DataFrame(
            {"plan": plan["release"], "query": of["name"]} | row
            for plan in self["plans"]
            for of in plan["tables"]
            for row in of["classes"]
        )

    def require_within(self) -> None:
        """Raise BudgetRefused where a plan breaks a limit of its own."""
        for plan in self["plans"]:
            if not all(limit["within"] for limit in plan["limits"]):
                raise BudgetRefused(
                    f"release {plan['release']}: breaks a limit of its own plan, and would be refused: "
                    f"choose larger scales, or play with {arg('page')} FILE"
                )


def with_own_values(path: str, values: Mapping[str, str]) -> Plan:
    """Return a plan that is tried beside another: with the values of those variables that it declares too."""
    from pipeline.plan.plan_text import read_text  # noqa: PLC0415

    declared = read_text(Path(path)).data.get("variables")
    own = {name: value for name, value in values.items() if isinstance(declared, Mapping) and name in declared}
    return load_plan(path, set=own)


def _write(page: Path, text: str) -> None:
    with file_errors(f"{arg('page', page)}: it cannot be written (", "); give another file", PrdpError):
        page.write_text(text, encoding="utf-8")


@documented
def publication(
    plan: Annotated[PlanLike, Arg("a plan, all of whose tables get each kind", "PLAN")],
    out: NewFolder = None,
    *,
    equal: Annotated[str, Arg(EQUAL, "ACCURACY")] = "variance",
    kinds: Annotated[
        Sequence[str] | Mapping[str, Mapping[str, Any]], Arg("kinds of noise", "NAME,…", "names", default="all")
    ] = (),
    records: Annotated[int | None, Arg(RECORDS, "N", "count", default="300,000")] = None,
    draws: Annotated[int, Arg("how often errors are drawn", "N", "count")] = 10,
    seed: Annotated[int, Arg("seed of what is drawn", "S", "count", default="0")] = 0,
    **options: Unpack[Economy],
) -> dict[str, Any]:
    """Study a whole publication with every kind of noise, each as accurate as the plan in every table.

    As `prdp study publication PLAN --json` (docs/comparisons.md). Synthetic microdata are written for it.
    In place of names `kinds` may be mechanisms without a scale by names of your own.

    Raises:
        PlanError: The call is wrong, the plan's own noise has no such accuracy, or the economy has not its keys.
    """
    from pipeline.base.errors import hint  # noqa: PLC0415
    from pipeline.diagnostics.plan_trials import try_kinds  # noqa: PLC0415
    from pipeline.diagnostics.synthetic_microdata import Origin  # noqa: PLC0415
    from pipeline.planning.study.equal_publication import ACCURACIES, KINDS, write  # noqa: PLC0415

    if equal not in ACCURACIES:
        raise PlanError(f"{arg('equal')}: must be one of {', '.join(ACCURACIES)}")
    unknown = [] if isinstance(kinds, Mapping) else [name for name in kinds if name not in KINDS]
    if unknown:
        raise PlanError(f"{arg('kinds', unknown[0])}: unknown{hint(unknown[0], KINDS, 'kind')}")
    chosen = kinds if isinstance(kinds, Mapping) else {name: KINDS[name] for name in kinds or KINDS}
    like, states, runner = economy_of(options)
    origin = Origin(records=records, like=like, states=states, seed=seed)
    loaded = _loaded(plan)
    with runner.started() as started:
        document = try_kinds(_job([loaded], origin, draws, runner, started), equal, chosen)
    if out is not None:
        write(document, Path(out))
    return document


@documented
def rank_kinds(
    plan: Annotated[str | os.PathLike[str], Arg(DRAFT, "PLAN", "file")],
    *,
    minimise: Annotated[str, Arg(LEAST, "ERROR")] = "variance",
    coverage: Annotated[Value | str, Arg("the coverage of intervals", "C")] = "0.95",
    total: Annotated[Value | str | None, Arg(TOTAL, "T", default="a draft's, else none")] = None,
    tables: Annotated[Sequence[str], Arg("the tables", "NAME,…", "names", default="all")] = (),
    kinds: Annotated[Sequence[str], Arg("kinds of noise", "NAME,…", "names", default="all, also designed")] = (),
    set: Annotated[Mapping[str, str], Arg(VARIABLE, "NAME=VALUE", "setting", many=True)] = NOTHING,
    out: Annotated[Any, Arg("new or empty folder for designed noise that is best", "DIR")] = None,
    records: Annotated[int | None, Arg(OF_CELLS, "N", "at_least_one")] = None,
    seed: Annotated[int, Arg("seed of what is drawn", "S", "count", default="0")] = 0,
    **options: Unpack[Economy],
) -> Result:
    """Return which kind of noise has the least error in each table of a plan within its own limits.

    As `prdp study kinds PLAN --json` (docs/calibration.md): every kind loses as much as the table does now at the limit
    that binds, and all limits hold. Reads no microdata; takes half a minute a table, most of it for designed noise.

    Raises:
        PlanError: The call is wrong, no limit counts records of a table, or its error needs a total.
        BudgetRefused: The limits of a draft cannot be kept with the accuracies wanted.
    """
    from pipeline.base.errors import hint  # noqa: PLC0415
    from pipeline.planning.study.design import MINIMISED  # noqa: PLC0415
    from pipeline.planning.study.kinds_within_limits import KINDS, Asked, ranked  # noqa: PLC0415
    from pipeline.planning.trial_text import file_of, ranked_json, ranked_text  # noqa: PLC0415
    from pipeline.storage.paths import filled as filled_folder  # noqa: PLC0415
    from prdp.studies import Design  # noqa: PLC0415

    if minimise not in MINIMISED:
        raise PlanError(f"{arg('minimise', minimise)}: must be one of {', '.join(MINIMISED)}")
    log = economy_of(options)[2].log
    model, bounds, totals, drafted = _limited(Path(plan), set, records, seed, options)
    for name, chosen, known in (("tables", tables, [q.name for q in model.queries]), ("kinds", kinds, KINDS)):
        for each in chosen:
            if each not in known:
                raise PlanError(f"{arg(name, each)}: unknown{hint(each, known, name[:-1])}")
    if total is not None:
        totals = {(query.name, part.name): exact(total) for query in model.queries for part in query.parts}
    asked = Asked(
        minimise=minimise,
        coverage=exact(coverage),
        kinds=kinds or KINDS,
        tables=tables or [query.name for query in model.queries],
        totals=totals,
    )
    tables_ranked = ranked(
        model, bounds, asked, lambda n: log.progress(f"{n} mechanisms tried") if n % 20 == 0 else None
    )
    if out is not None:
        with filled_folder(Path(out)) as folder:
            for table_of in tables_ranked:
                if table_of.best and (design := table_of.best[0].design) is not None:
                    Design(design).save(folder / file_of(table_of))
    return Result(ranked_json(model, bounds, asked, tables_ranked, drafted), ranked_text)


Part = tuple[str, str | None]


def _limited(
    path: Path, variables: Mapping[str, str], records: int | None, seed: int, options: Economy
) -> tuple[Model, list["Bound"], dict[Part, Fraction], Collection[Part]]:
    """Return a plan, or that of a draft, its limits, the totals that are known, and the parts that a draft chooses."""
    from pipeline.accounting.allocation_problem import Bound  # noqa: PLC0415
    from pipeline.diagnostics.plan_trials import sized_cells  # noqa: PLC0415
    from pipeline.diagnostics.synthetic_microdata import Origin  # noqa: PLC0415
    from pipeline.plan.drafts import bounds_of  # noqa: PLC0415
    from pipeline.plan.plan_schema import PlanSpec  # noqa: PLC0415
    from pipeline.plan.total_policy import limits_of  # noqa: PLC0415
    from pipeline.planning.study.equal_publication import typical_total  # noqa: PLC0415

    text = filled(read_text(path), path, variables)
    if text.data.get("calibrate") is not None:
        made = allocate(path, set=variables, records=records, seed=seed, **options)
        draft = PlanSpec.model_validate(text.data).calibrate
        assert draft is not None
        chosen = {(each["query"], each.get("part")): each["for"] for each in made.to_json()["found"]}
        known = {part: exact(wish["total"]) for part, wish in chosen.items() if "total" in wish}
        return made.plan._model, bounds_of(made.plan._model, draft), known, chosen.keys()
    model = load_plan(path, set=variables)._model
    bounds = [Bound(limit) for limit in limits_of(model)]
    like, states, runner = economy_of(options)
    if records is None and like is None:
        return model, bounds, {}, ()
    origin = Origin(records=records, like=like, states=states, seed=seed)
    cells = zip(model.queries, sized_cells(origin, runner.started, model), strict=True)
    typical = {
        (query.name, part.name): exact(f"{typical_total(sized, number):.3g}")
        for query, sized in cells
        for number, part in enumerate(query.parts)
    }
    return model, bounds, typical, ()


def _job(plans: Sequence[Plan], origin: "Origin", draws: int, runner: Runner, engine: "Engine") -> "TrialJob":
    from pipeline.diagnostics.plan_trials import TrialJob  # noqa: PLC0415
    from pipeline.release.installation import site  # noqa: PLC0415

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
