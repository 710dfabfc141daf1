"""Plans: loaded from YAML or a mapping, explained without microdata, checked, and released."""

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from pipeline.base.errors import Interrupted, PlanError, arg
from pipeline.plan.load import NOTHING, draft_of, filled, plan_of
from pipeline.plan.model import Plan as Model
from pipeline.plan.plan_schema import DomainSpec, ListSpec
from pipeline.plan.plan_text import PlanText, public_file, read_text, text_of
from prdp.declared import Arg, Change, Data, LocationLike, Number, Reference, Value, documented, location, number_of
from prdp.runs import DataLike, Economy, OnLedger, Run, Runner, economy_of, microdata_of, out_of

if TYPE_CHECKING:
    import pandas as pd

    from prdp.explanation import Explanation
    from prdp.releases import Release

DATA = "the microdata: a location, or in Python a pandas, Arrow, Dask or Spark DataFrame"
STAGING = "where draws lie until they are published"
LINEAGE = "append OpenLineage events to a file, or send them to a URL"
METRICS = "write metrics for Prometheus to a folder, or to a push gateway; confidential"
AT = "a reference, such as employment=10,payroll=500; several records are separated by ';'"
DELTAS = "δ at which --detail states (ε, δ)"
ALL = "the references of the budget"
CHANGE = "loss from distinguishing two values of a record, such as employment=10:12"
FACTOR = "loss from distinguishing two values within a factor C, such as 1.1"
YEARS = "what such a release in each of N years costs a record that stays the same, and one that grows"
GROWTHS = "with --years: a growing record's growth a year, at most"
REPORT = "new file to write, of mode 0600; with --json JSON"
IN_CHECKS = "one in checks/ beside the ledger's staging"


@dataclass(frozen=True, eq=False)
class Plan:
    """A resolved plan: frozen before any record is read; equal digests mean equal plans."""

    _model: Model
    _data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The name of the release, unique in a ledger."""
        return self._model.release

    @property
    def digest(self) -> str:
        """The digest over all that shapes the release, "sha256:…"; where the plan's files lie is no part of it."""
        return self._model.digest

    @property
    def queries(self) -> tuple[str, ...]:
        """The names of the queries, in the plan's order."""
        return tuple(query.name for query in self._model.queries)

    @property
    def derived(self) -> tuple[str, ...]:
        """The names of the tables that are published without being measured: `reconcile` makes them, at no loss."""
        return tuple(table.name for table in self._model.derived)

    @property
    def source(self) -> dict[str, Any]:
        """The plan as written, with its variables' values, as plain data; paths are relative to the plan's folder."""
        return copy.deepcopy(dict(self._data))

    @property
    def code_lists(self) -> dict[str, Path]:
        """The CSV files of the plan's public codes by key (header code,name); empty where the plan lists cells."""
        lists = DomainSpec.model_validate(self._data["domain"]).codes
        folder = self._model.path.parent
        return {key: public_file(folder, codes.list) for key, codes in lists.items() if isinstance(codes, ListSpec)}

    def to_json(self) -> dict[str, Any]:
        """Return all that shapes the release: no locations, the domain by its digest."""
        return self._model.resolved()

    @documented
    def explain(
        self,
        at: Annotated[
            Reference | list[Reference] | None, Arg(AT, "REFERENCE", many=True, option=True, default=ALL)
        ] = None,
        *,
        change: Annotated[Change | list[Change] | None, Arg(CHANGE, "VALUES", many=True)] = None,
        factor: Annotated[Value | list[Value] | None, Arg(FACTOR, "C", many=True)] = None,
        delta: Annotated[float | None, Arg(DELTAS, "D", "probability", default="1e-9")] = None,
        years: Annotated[int | None, Arg(YEARS, "N", "at_least_one")] = None,
        growth: Annotated[Value | None, Arg(GROWTHS, "SHARE", default="0.05")] = None,
    ) -> "Explanation":
        """Return what the plan promises; no microdata are read.

        In Python a reference may also be a mapping such as {"employment": 10, "payroll": 500} in units of the measures,
        with codes by level where wanted ({"naics3": "722", …}); a tuple of them is a firm, or a group. A change may be
        a mapping such as {"employment": (10, 12)}.

        Returns:
            Upper bounds of the losses, and the errors of the released values.

        Raises:
            PlanError: Where a reference names an unknown measure or level, or a code outside the domain.
        """
        from prdp.explanation import explanation  # noqa: PLC0415 — a release does without

        return explanation(self._model, at, change=change, factor=factor, delta=delta, years=years, growth=growth)

    @documented
    def release(
        self,
        data: Annotated[DataLike, Arg(DATA, "URI", option=True, default="dataset.path of the plan")] = None,
        *,
        out: Annotated[LocationLike | None, Arg("where to publish", "URI", default="releases/ beside the plan")] = None,
        staging: Annotated[LocationLike | None, Arg(STAGING, "URI", default="beside the ledger")] = None,
        hold: Annotated[bool, Arg("publish nothing before an officer approves (prdp ledger approve)")] = False,
        csv: Annotated[bool, Arg("write every table as CSV too")] = False,
        lineage: Annotated[str | Path | None, Arg(LINEAGE, "PLACE")] = None,
        metrics: Annotated[str | Path | None, Arg(METRICS, "PLACE")] = None,
        traces: Annotated[str | None, Arg("send a trace to a collector of OpenTelemetry; confidential", "URL")] = None,
        **options: Unpack[Run],
    ) -> "Release":
        """Release the plan's tables, or go on where an earlier run stopped; return what is published or held.

        Guarantee: however often this runs and wherever it is killed, at most one draw of the release is ever
        published, and the ledger is charged before a key exists. A DataFrame is sealed in private staging first and
        destroyed afterwards. What cannot be sent of metrics and traces ends nothing.

        Raises:
            BudgetRefused: The loss would exceed a limit; nothing was drawn.
            MicrodataError: Records break the contract; the message holds no value.
            PlanError: The call is wrong, or a DataFrame has columns of a type that does not fit.
            StateError: Another run is at work, or the ledger's state forbids it.
        """
        from pipeline.operations.lineage import recorded_lineage  # noqa: PLC0415
        from pipeline.operations.telemetry import watched  # noqa: PLC0415
        from pipeline.release.installation import site  # noqa: PLC0415
        from pipeline.release.request import Job, left_behind  # noqa: PLC0415
        from pipeline.release.steps import run  # noqa: PLC0415
        from prdp.releases import Release  # noqa: PLC0415

        model, runner = self._model, Runner(**options)

        with watched(runner.log, model.path, metrics, traces) as watch, runner.started(data) as started:
            runner.log.about(release=model.release)
            opened = runner.lasting(started)
            watch.ledger = opened._store
            job = Job(
                plan=model,
                microdata=microdata_of(model, data, runner, opened, released=True),
                out=out_of(model, out, runner),
                staging=None if staging is None else location(staging, arg("staging")),
                engine=started,
                ledger=opened._store,
                formats=("csv",) if csv else (),
                signing=site().signing(),
                hold=hold,
                registered_only=opened._registered_only,
                site_share=site().max_left_out,
                most_cells=site().max_cells,
                log=runner.log,
            )
            try:
                with recorded_lineage(model, job.ledger, lineage or site().lineage, runner.log):
                    return Release(run(job))
            except KeyboardInterrupt:
                raise Interrupted(left_behind(model.release, job.ledger.state(model.release))) from None

    @documented
    def check(
        self,
        data: Annotated[LocationLike | None, Arg("as --data of prdp release", "URI", option=True)] = None,
        *,
        out: Annotated[LocationLike | None, Arg("as --out of prdp release", "URI")] = None,
        staging: Annotated[LocationLike | None, Arg("as --staging of prdp release", "URI")] = None,
        **options: Unpack[OnLedger],
    ) -> dict[str, Any]:
        """Return whether a release would be reserved, as `prdp ledger afford --json`.

        Reads no record, reserves nothing.

        Returns:
            release, dataset, plan_digest and state: None where it would be reserved now, else its present state.

        Raises:
            BudgetRefused: Where a limit would be exceeded.
            StateError: Where the ledger's state forbids it.
        """
        from pipeline.release.installation import site  # noqa: PLC0415
        from pipeline.release.request import Request  # noqa: PLC0415
        from pipeline.release.request import check as run  # noqa: PLC0415

        model, runner = self._model, Runner(**options)

        site().signing()  # raises where a release could not be signed
        opened = runner.opened()
        state = run(
            Request(
                plan=model,
                microdata=microdata_of(model, data, runner, opened, released=True),
                out=out_of(model, out, runner),
                ledger=opened._store,
                staging=None if staging is None else location(staging, arg("staging")),
                registered_only=opened._registered_only,
                site_share=site().max_left_out,
                most_cells=site().max_cells,
            )
        )
        status = None if state is None else state.status
        return {"release": model.release, "dataset": model.dataset.name, "plan_digest": model.digest, "state": status}

    @documented
    def check_microdata(
        self,
        data: Data = None,
        *,
        report: Annotated[LocationLike | None, Arg(REPORT, "FILE", default=IN_CHECKS)] = None,
        as_json: bool = False,
        **options: Unpack[Run],
    ) -> dict[str, Any]:
        """Look at the microdata before a release, as `prdp check`; what is found is confidential.

        Nothing is summed, drawn or charged. The ledger records the check before any record is read, and names it in
        the dataset's next reservation. The report is for people, or `as_json`.

        Returns:
            release, dataset, plan_digest, report (where it lies), and found: whether it tells of something.

        Raises:
            PlanError: Where there are no microdata at that place.
            StateError: Where the report's place is taken, or releases are published or staged there.
            MicrodataError: Where the files changed during the run, or cannot be read.
        """
        from pipeline.diagnostics.check_microdata import CheckJob  # noqa: PLC0415
        from pipeline.diagnostics.check_microdata import check as run  # noqa: PLC0415
        from pipeline.microdata.lakehouse import Place  # noqa: PLC0415
        from pipeline.release.installation import site  # noqa: PLC0415
        from pipeline.storage.paths import locate  # noqa: PLC0415

        model, runner = self._model, Runner(**options)

        file = None if report is None else locate(os.fspath(report), what=arg("report")).as_path()
        if report is not None and file is None:
            raise PlanError(f"{arg('report')} {report}: a report is a file of mode 0600; name one of this machine")
        with runner.started() as started:
            opened = runner.lasting(started)
            microdata = microdata_of(model, data, runner, opened, released=False)
            if not isinstance(microdata, Place):
                name = arg("data")
                raise PlanError(f"a check reads files: give a copy of the table or DataFrame with {name}")
            outcome = run(
                CheckJob(
                    plan=model,
                    microdata=microdata,
                    ledger=opened._store,
                    engine=started,
                    report=file,
                    as_json=as_json,
                    site_share=site().max_left_out,
                    log=runner.log,
                )
            )
        made = {"release": model.release, "dataset": model.dataset.name, "plan_digest": model.digest}
        return made | {"report": str(outcome.report), "confidential": True, "found": outcome.mistaken}

    def _repr_html_(self) -> str:
        return self.explain()._repr_html_()

    def __repr__(self) -> str:
        return f"<prdp.Plan {self.name}: {', '.join(self.queries)}; {self.digest}>"


@dataclass(frozen=True, eq=False)
class Allocation:
    """The scales that were chosen for a draft, and the plan that states them; no microdata were read."""

    plan: Plan
    _result: Mapping[str, Any]

    @property
    def tables(self) -> "pd.DataFrame":
        """The scales: columns query, part (of a query with parts), scale (its name), value, error.

        The error is of the kind and at the total that the draft names, in the measure's unit, or a share.
        """
        import pandas as pd  # noqa: PLC0415

        rows = [(f["query"], f.get("part"), f["scale"], f[f["scale"]], f["error"]) for f in self._result["found"]]
        return pd.DataFrame(rows, columns=["query", "part", "scale", "value", "error"])

    def to_json(self) -> dict[str, Any]:
        """Return what `prdp calibrate DRAFT --json` prints."""
        return copy.deepcopy(dict(self._result))


@documented
def allocate(
    draft: "str | Path | Mapping[str, Any]",
    *,
    out: Annotated[str | Path | None, Arg("write the plan here, in its own folder", "FILE")] = None,
    folder: "str | Path | None" = None,
    set: Mapping[str, str] = NOTHING,
    records: Annotated[int | None, Arg("of so many synthetic establishments", "N", "at_least_one")] = None,
    seed: Annotated[int, Arg("seed of what is drawn", "S", "count", default="0")] = 0,
    times: Number | None = None,
    **options: Unpack[Economy],
) -> Allocation:
    """Choose the scales of a draft, a plan with a key `calibrate` of its own, as `prdp calibrate DRAFT`.

    Guarantee: the plan keeps every limit that the draft names by its own total policy, exactly. Of `records` or `like`
    are the totals and sizes that the draft leaves open: the median of a table's cells above 0, and all of these. With
    `times` all limits are so many times as large, also in the plan, and no share of cells is wished. `folder` and
    `set` are those of `load_plan`.

    Raises:
        BudgetRefused: The limits cannot be kept with the accuracies wanted; the message says what could be had.
        PlanError: The draft is wrong, or noise cannot be so accurate.
    """
    from pipeline.planning.allocated import allocated_plan, scaled  # noqa: PLC0415

    factor = None if times is None else number_of("times", times)
    with sized(draft, folder, set, records, seed, options) as (text, path, made):
        meant = text
        if factor is not None and draft_of(text, path, set)[1].calibrate is not None:
            meant = scaled(text, factor)
        result, final = allocated_plan(meant, path, None if out is None else Path(out), set, made)
    return Allocation(_plan(final, path, set), result)


@contextmanager
def sized(
    draft: "str | Path | Mapping[str, Any]",
    folder: "str | Path | None",
    variables: Mapping[str, str],
    records: int | None,
    seed: int,
    options: Economy,
) -> Iterator[tuple[PlanText, Path, str | None]]:
    """Yield a draft's text with the totals and sizes that it leaves open, its path, and of what these are."""
    text, path = _text_and_path(draft, folder)
    like, states, runner = economy_of(options)
    if records is None and like is None:
        if seed or options:
            raise PlanError("states, seed and options of an engine: they go with records or like alone")
        yield text, path, None
        return
    if records is not None and like is not None:
        raise PlanError("records and like: give one of them")
    from pipeline.diagnostics.plan_trials import sized_cells  # noqa: PLC0415
    from pipeline.diagnostics.synthetic_microdata import Origin  # noqa: PLC0415
    from pipeline.planning.study.equal_publication import sized_draft  # noqa: PLC0415

    origin = Origin(records=records, like=like, states=states, seed=seed)
    made = origin.label if like is not None else f"{origin.records:,} {origin.label}"
    with sized_draft(text, path, variables, partial(sized_cells, origin, runner.started)) as complete:
        yield complete, path, made


def load_plan(
    source: "str | Path | Mapping[str, Any] | Plan",
    *,
    folder: str | Path | None = None,
    set: Mapping[str, str] = NOTHING,
) -> Plan:
    """Return the resolved plan of a YAML file, or of the same content as a mapping.

    Args:
        source: The file, or a mapping as YAML would give it.
        folder: The folder to which paths in a mapping are relative. Default: the working folder.
        set: The values of the plan's variables, such as {"year": "2026"}; the plan that is returned has none.

    Raises:
        PlanError: With a line for each mistake.

    Examples:
        The digest depends on what the plan means, not on how or where it is written:

        >>> import prdp
        >>> plan = prdp.load_plan(prdp.generate(100, "example"))
        >>> plan.digest == prdp.load_plan(plan.source, folder="example").digest
        True
    """
    if not isinstance(set, Mapping):
        raise PlanError('set: must be the values by name, such as {"year": "2026"}')
    if isinstance(source, Plan):
        if set:
            raise PlanError("set: a plan that was loaded has its values already: load it anew from its file")
        return source
    return _plan(*_text_and_path(source, folder), set)


def _plan(text: PlanText, path: Path, variables: Mapping[str, str]) -> Plan:
    resolved = filled(text, path, variables)
    return Plan(plan_of(resolved, path), resolved.data)


def _text_and_path(source: "str | Path | Mapping[str, Any]", folder: "str | Path | None") -> tuple[PlanText, Path]:
    if isinstance(source, Mapping):
        path = Path(folder or "").absolute() / "plan"
        return text_of(source, path), path
    path = Path(source)
    return read_text(path), path
