"""The steps of a trial: synthetic microdata, a release on a ledger of its own, draws, losses, one document.

Guarantee: a trial opens no ledger but one in a temporary folder, reads no microdata of a plan, and its keys are made
for it and thrown away; nothing it does is charged, and nothing it draws can be published by `prdp release`.
"""

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.accounting.accountant import SHARE
from pipeline.base.errors import PlanError, arg
from pipeline.base.log import Log
from pipeline.diagnostics import accuracy
from pipeline.diagnostics.record_losses import NO_LOSSES, TOTAL, Counts, Key, LossSpec, upper_ends
from pipeline.diagnostics.records import ByOwner, FirmSummary, FirmTask, RecordSummary, RecordTask
from pipeline.diagnostics.synthetic_microdata import Economy, Microdata, Origin
from pipeline.engines.protocol import Engine, Totals, grouped
from pipeline.engines.totals import Layout, contract_checked, layout_of
from pipeline.engines.writers import Block
from pipeline.ledger.store import create_ledger
from pipeline.microdata import source
from pipeline.microdata.source import Chunk
from pipeline.plan.drafts import reconciled_errors
from pipeline.plan.model import Plan, Query
from pipeline.plan.structure import MOST_CELLS, size_of
from pipeline.plan.total_policy import policy_of
from pipeline.planning.study.equal_publication import SizedCells, SizedTask, publication
from pipeline.planning.verdict import beside_reconciled, derived_error, finite, named_part, standings
from pipeline.release.input_records import records_of
from pipeline.release.request import Job
from pipeline.release.steps import run as release
from pipeline.storage.local import LocalPath
from pipeline.storage.staging import scratch
from udfs.noise.keystream import SecretKey
from udfs.numbers.arrays import Int64s, in_units
from udfs.numbers.exact import as_json

NOTICE = (
    "A trial on synthetic microdata, or on microdata that somebody declared to be public: no figure here is about real "
    "establishments, and nothing was charged to any ledger."
)
MOST_DRAWS = 1000
USABLE = 0.3


@dataclass(frozen=True, kw_only=True)
class TrialJob:
    """One trial of plans beside each other on the same microdata; with no `draws` errors are not drawn.

    `rehearsed`: a whole release of each plan is made too, to say what it needs. `usable`: the share of a cell's total
    up to which its standard error makes it usable.
    """

    plans: Sequence[Plan]
    origin: Origin
    draws: int
    engine: Engine
    rehearsed: bool = True
    usable: float = USABLE
    site_share: Fraction = SHARE
    most_cells: int = MOST_CELLS
    new_key: Callable[[], SecretKey] = SecretKey.fresh
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        if not 0 <= self.draws <= MOST_DRAWS:
            raise PlanError(f"{arg('draws')}: a whole number from 0 to {MOST_DRAWS:,} is needed")


@dataclass(frozen=True, eq=False)
class Tried:
    """What a trial came to: its document, and of each plan and each of its tables the cells by their true total."""

    document: dict[str, Any]
    cells: Sequence[Sequence[SizedCells]]


def try_plans(job: TrialJob) -> Tried:
    """Try the plans.

    Raises:
        PlanError: A plan has keys or measures that the economy has not, or microdata declared public lack a column.
        MicrodataError: Microdata declared public break the contract.
    """
    keys = tuple(job.new_key() for _ in range(job.draws))
    with tempfile.TemporaryDirectory(prefix="prdp-try-") as folder:
        economy = Economy(job.origin, Path(folder))
        trials = (_Trial(job, plan, keys, Path(folder) / f"plan-{i}") for i, plan in enumerate(job.plans))
        tried = [trial.on(economy.for_plan(trial.plan)) for trial in trials]
    document = {
        "notice": NOTICE,
        "microdata": job.origin.to_json() | {"label": job.origin.label},
        "draws": job.draws,
        "plans": [result for result, _ in tried],
    }
    return Tried(document, [cells for _, cells in tried])


def try_kinds(job: TrialJob, equal: str, kinds: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Try the one plan of `job` and the same with every kind of noise, as `publication` says."""

    def tried(plans: Sequence[Plan]) -> dict[str, Any]:
        return try_plans(replace(job, plans=plans, rehearsed=False)).document

    return publication(job.plans[0], equal, kinds, try_plans(replace(job, draws=0)).cells[0], tried)


@dataclass(frozen=True, eq=False, repr=False)
class _Trial:
    job: TrialJob
    plan: Plan
    keys: tuple[SecretKey, ...]
    folder: Path

    def on(self, microdata: Microdata) -> tuple[dict[str, Any], list[SizedCells]]:
        """Return what the document says of the plan, and its cells by their true total."""
        job, plan = self.job, self.plan
        self.folder.mkdir()
        needs = self._needs(microdata) if self.keys and job.rehearsed else None
        self._tell("totals")
        with _scanned(plan, microdata, job.engine, self.folder) as scan:
            records, layout, totals = scan.records, scan.layout, scan.totals
            cells = _sized(plan, totals)
            tables = [self._table(i, totals) for i in range(len(plan.queries))]
            derived = self._derived(microdata) if plan.derived else []
            self._tell("losses")
            task = RecordTask(LossSpec.of(plan, layout), None)
            of_records = RecordSummary.merged(job.engine.each(task, list(enumerate(records)), "reading"))
        result = {
            "release": plan.release,
            "file": plan.path.name,
            "dataset": plan.dataset.name,
            "unit": plan.dataset.unit,
            "plan_digest": plan.digest,
            "records": {"made": microdata.made, "in_domain": of_records.records - of_records.outside},
            "limits": [each.to_json() for each in standings(plan, policy_of(plan))],
            "tables": tables,
            "derived": derived,
            "usable": {"within": job.usable} | _usable_in_all([*tables, *derived]),
            "losses": {
                "records": _losses_json(of_records.counts, plan),
                "firms": self._of_firms(microdata.owner, scan.chunks),
            },
            "needs": needs,
        }
        return result, cells

    def _table(self, number: int, totals: Totals) -> dict[str, Any]:
        query = self.plan.queries[number]
        task = accuracy.task_for(query, self.plan.domain, None)
        classes = accuracy.accuracy_json(task, totals.over(number, task))[accuracy.BY_TOTAL]
        variance = all(isfinite(mechanism.variance(0.0)) for mechanism in query.mechanisms)
        if self.keys:
            self._tell(f"drawing {query.name}")
            drawn = accuracy.Drawn.merged(
                totals.over(number, accuracy.DrawTask(self.keys, query.parts[0].mechanism.step))
            )
            errors = {row["total"]: row["expected_standard_error"] for row in classes}
            classes = accuracy.drawn_json(drawn, len(self.keys), errors, variance=variance)
        return {
            "name": query.name,
            "statistic": query.statistic.label,
            "by": list(query.by),
            "cells": self.plan.domain.query_cells(query.by, query.where).size,
            "mechanism": query.described(),
            "has_variance": variance,
            "errors": beside_reconciled(self.plan, query, _errors(query)),
            "usable": self._usable(number, totals, query),
            "classes": classes,
        }

    def _usable(self, number: int, totals: Totals, query: Query, *, derived: bool = False) -> dict[str, Any]:
        """Return how many cells have a total other than 0, and of which share of them the errors are small enough."""
        known = reconciled_errors(self.plan).get(query.name) or (None,) * len(query.parts)
        released = [_constant(inf) if derived else accuracy.VarianceCurve.of(part.mechanism) for part in query.parts]
        reconciled = [own if of is None else _constant(of**2) for own, of in zip(released, known, strict=True)]
        task = UsableTask((tuple(released), tuple(reconciled)), query.parts[0].mechanism.step, self.job.usable)
        counts = np.sum(totals.over(number, task), axis=0)
        labels = accuracy.class_labels()
        sizes = [{"total": labels[i]} | _shares(counts[:, i]) for i in np.flatnonzero(counts[0]).tolist()]
        return _shares(counts.sum(axis=1)) | {"sizes": sizes}

    def _derived(self, microdata: Microdata) -> list[dict[str, Any]]:
        """Return what the document says of derived tables, whose totals are summed as those of measured ones."""
        plan, folder = self.plan, self.folder / "derived"
        folder.mkdir()
        like = {query.statistic: query for query in plan.queries}
        queries = [
            replace(
                of, name=each.name, by=each.by, where=each.where, split=None, parts=(replace(of.parts[0], name=None),)
            )
            for each in plan.derived
            for of in [like[each.statistic]]
        ]
        measured = replace(plan, queries=tuple(queries), derived=())
        with _scanned(measured, microdata, self.job.engine, folder) as scan:
            return [
                {
                    "name": query.name,
                    "statistic": query.statistic.label,
                    "by": list(query.by),
                    "cells": plan.domain.query_cells(query.by, query.where).size,
                    "errors": [{"standard_error": None, "reconciled": derived_error(plan, query.name)}],
                    "usable": self._usable(i, scan.totals, query, derived=True),
                }
                for i, query in enumerate(queries)
            ]

    def _of_firms(self, owner: str | None, chunks: Sequence[Chunk]) -> dict[str, Any] | None:
        """Return the losses of firms, whatever the plan's unit; None where the microdata name none."""
        if owner is None:
            return None
        plan = replace(self.plan, dataset=replace(self.plan.dataset, unit=owner))
        layout = layout_of(plan)
        spec = LossSpec.of(plan, replace(layout, spec=replace(layout.spec, record=None)))
        with scratch(LocalPath(self.folder / "scratch"), plan.release, "trial") as between:
            firms = grouped(self.job.engine.each, ByOwner(spec), chunks, FirmTask(spec, None), between)
        return _losses_json(FirmSummary.merged(list(firms)).counts, plan)

    def _needs(self, microdata: Microdata) -> dict[str, Any]:
        """Release the plan as `prdp release` does, on a ledger of its own and without limits; return what it needed."""
        self._tell("a release on a ledger of its own")
        job, stages, out = self.job, _Stages(), self.folder / "out"
        alone = replace(self.plan.dataset, family=None)  # no family is registered in that ledger
        release(
            Job(
                plan=replace(self.plan, dataset=alone, budget=(), supersedes=None),
                microdata=LocalPath(microdata.path),
                out=LocalPath(out),
                ledger=create_ledger(str(self.folder / "ledger" / "ledger.sqlite")),
                engine=job.engine,
                site_share=job.site_share,
                most_cells=job.most_cells,
                new_key=job.new_key,
                new_test_key=job.new_key,
                log=Log(stages),
            )
        )
        seconds = stages.seconds
        return {
            "seconds": round(sum(seconds.values()), 3),
            "scan_seconds": round(seconds.get("scan", 0.0), 3),
            "noise_seconds": round(seconds.get("tables", 0.0) + seconds.get("stage", 0.0), 3),
            "published_bytes": sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
            "memory_gibibytes": round(size_of(self.plan).gibibytes, 3),
        }

    def _tell(self, what: str) -> None:
        self.job.log.progress(f"{self.plan.release}: {what}")


@dataclass(frozen=True, eq=False, repr=False)
class UsableTask:
    """Counts the cells of a block with a total other than 0, and those whose standard error is at most `share` of it.

    `curves`: ways in which errors count, each with the variances of every part. Counts are by class of the total.
    """

    curves: tuple[tuple[accuracy.VarianceCurve, ...], ...]
    step: Fraction
    share: float

    def __call__(self, block: Block) -> Int64s:
        """Return the counts: a row of all such cells, then one of the usable cells in each way."""
        totals = np.abs(in_units(block.totals, self.step))
        rows = [totals > 0]
        for curves in self.curves:
            usable = np.zeros(len(totals), dtype=bool)
            for part, curve in enumerate(curves):
                mine = rows[0] & (True if block.part_of is None else block.part_of == part)
                usable[mine] = np.sqrt(curve.at(totals[mine])) <= self.share * totals[mine]
            rows.append(usable)
        classes, number = accuracy.classes_of(totals), len(accuracy.class_labels())
        return np.array([np.bincount(classes[row], minlength=number) for row in rows], dtype=np.int64)


WAYS = ("released", "reconciled")


def _shares(counts: Sequence[int]) -> dict[str, Any]:
    cells, *usable = map(int, counts)
    return {"cells": cells} | {way: n / cells if cells else None for way, n in zip(WAYS, usable, strict=True)}


def _constant(variance: float) -> accuracy.VarianceCurve:
    return accuracy.VarianceCurve(np.zeros(1), np.array([variance]))


def _errors(query: Query) -> list[dict[str, Any]]:
    """Return the standard error of each part, null where it grows with the total or is infinite."""
    return [
        named_part(part)
        | {"standard_error": finite(part.mechanism.variance(0.0) ** 0.5 if part.mechanism.additive else None)}
        for part in query.parts
    ]


def _usable_in_all(tables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the shares of usable cells of all tables together, by size too, and the means of the tables' shares."""
    known = [table["usable"] for table in tables if table["usable"]["cells"]]
    means = {f"mean_{way}": sum(each[way] for each in known) / len(known) if known else None for way in WAYS}
    sizes = [row for each in known for row in each["sizes"]]
    labels = [label for label in accuracy.class_labels() if any(row["total"] == label for row in sizes)]
    by_size = [{"total": label} | _added([row for row in sizes if row["total"] == label]) for label in labels]
    return _added(known) | means | {"sizes": by_size}


def _added(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts = ([row["cells"], *(row[way] * row["cells"] for way in WAYS)] for row in rows)
    return _shares([round(sum(column)) for column in zip([0, 0, 0], *counts, strict=True)])


@dataclass(frozen=True, eq=False)
class _Scan:
    """Microdata in pieces, as they are and as records of a plan, and the totals of the plan's tables."""

    chunks: Sequence[Chunk]
    records: Sequence[Any]
    layout: Layout
    totals: Totals


@contextmanager
def _scanned(plan: Plan, microdata: Microdata, engine: Engine, folder: Path) -> Iterator[_Scan]:
    chunks = list(source.chunks(source.find(LocalPath(microdata.path))))
    root = LocalPath(folder / "scratch")
    with (
        contract_checked(plan),
        records_of(chunks, plan, engine, LocalPath(folder / "records"), prepared=False) as (records, layout),
        scratch(root, plan.release, "trial") as between,
    ):
        assert isinstance(records, Sequence)
        yield _Scan(chunks, records, layout, engine.totals(records, layout, between))


def _sized(plan: Plan, totals: Totals) -> list[SizedCells]:
    return [SizedCells.of(totals.over(i, SizedTask(query))) for i, query in enumerate(plan.queries)]


def sized_cells(origin: Origin, started: Callable[[], AbstractContextManager[Engine]], plan: Plan) -> list[SizedCells]:
    """Return the cells of each of a plan's tables by their true total, of synthetic or declared public microdata.

    One scan a statistic: the totals of all tables at once take twice the memory.
    """
    cells: dict[str, SizedCells] = {}
    with tempfile.TemporaryDirectory(prefix="prdp-sizes-") as name, started() as engine:
        folder = Path(name)
        microdata = Economy(origin, folder).for_plan(plan)
        for statistic in dict.fromkeys(query.statistic for query in plan.queries):
            some = replace(plan, queries=tuple(query for query in plan.queries if query.statistic == statistic))
            with _scanned(some, microdata, engine, folder) as scan:
                cells |= zip((query.name for query in some.queries), _sized(some, scan.totals), strict=True)
    return [cells[query.name] for query in plan.queries]


def _losses_json(counts: Mapping[Key, Counts], plan: Plan) -> dict[str, Any]:
    """Return the distribution of total losses (rho), and the share of losses above each limit, at most."""
    total = counts.get((TOTAL, 0))
    if total is None:
        return dict(NO_LOSSES) | {"above": []}
    ends = np.minimum(upper_ends(total.bins), total.largest)
    shares = [float(total.counts[ends > float(limit.rho)].sum() / total.counts.sum()) for limit in plan.budget]
    above = [{"rho": as_json(limit.rho), "share": share} for limit, share in zip(plan.budget, shares, strict=True)]
    return total.to_json() | {"above": above}


class _Stages(logging.Handler):
    """Keeps how many seconds each stage of a release took."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Add up what a stage took that ended."""
        facts = vars(record)["facts"]
        if facts["event"] == "ended":
            self.seconds[facts["stage"]] = self.seconds.get(facts["stage"], 0.0) + facts["seconds"]
