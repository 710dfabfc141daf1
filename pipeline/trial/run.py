"""The steps of a trial: synthetic microdata, a release on a ledger of its own, draws, losses, one document.

Guarantee: a trial opens no ledger but one in a temporary folder, reads no microdata of a plan, and its keys are made
for it and thrown away; nothing it does is charged, and nothing it draws can be published by `prdp release`.
"""

import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.accounting.left_out import SHARE
from pipeline.diagnostics.accuracy import BY_TOTAL, accuracy_json, task_for
from pipeline.diagnostics.distributions import NO_LOSSES, TOTAL, Counts, Key, upper_ends
from pipeline.diagnostics.losses import LossSpec
from pipeline.diagnostics.records import ByOwner, FirmSummary, FirmTask, RecordSummary, RecordTask
from pipeline.engines.buckets import grouped
from pipeline.engines.protocol import Engine, Totals
from pipeline.errors import PlanError
from pipeline.ledger.store import create_ledger
from pipeline.log import Log
from pipeline.microdata import source
from pipeline.microdata.source import Chunk
from pipeline.plan.model import Plan
from pipeline.plan.policy import policy_of
from pipeline.plan.size import MOST_CELLS, size_of
from pipeline.preparation.duplicates import records_of
from pipeline.release.run import Job
from pipeline.release.run import run as release
from pipeline.report.verdict import standings
from pipeline.storage.local import LocalPath
from pipeline.storage.staging import Staging, scratch
from pipeline.tables.totals import contract_checked, layout_of
from pipeline.trial.cells import SizedCells, SizedTask
from pipeline.trial.drawn import Drawn, DrawTask, drawn_json
from pipeline.trial.microdata import Economy, Microdata, Origin
from udfs.noise.keystream import SecretKey
from udfs.numbers.exact import as_json

NOTICE = (
    "A trial on synthetic microdata, or on microdata that somebody declared to be public: no figure here is about real "
    "establishments, and nothing was charged to any ledger."
)
MOST_DRAWS = 1000


@dataclass(frozen=True, kw_only=True)
class TrialJob:
    """One trial of plans beside each other on the same microdata; with no `draws` errors are not drawn.

    `rehearsed`: a whole release of each plan is made too, to say what it needs.
    """

    plans: Sequence[Plan]
    origin: Origin
    draws: int
    engine: Engine
    rehearsed: bool = True
    site_share: Fraction = SHARE
    most_cells: int = MOST_CELLS
    new_key: Callable[[], SecretKey] = SecretKey.fresh
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        if not 0 <= self.draws <= MOST_DRAWS:
            raise PlanError(f"--draws: a whole number from 0 to {MOST_DRAWS:,} is needed")


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
        "plans": [found for found, _ in tried],
    }
    return Tried(document, [cells for _, cells in tried])


@dataclass(frozen=True, eq=False, repr=False)
class _Trial:
    """The trial of one plan, in a folder of its own."""

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
        chunks = list(source.chunks(source.find(LocalPath(microdata.path))))
        with ExitStack() as stack:
            stack.enter_context(contract_checked(plan))
            root = LocalPath(self.folder / "records")
            records, layout = stack.enter_context(records_of(chunks, plan, job.engine, root, prepared=False))
            assert isinstance(records, Sequence)
            totals = job.engine.totals(records, layout, stack.enter_context(self._scratch()))
            cells = [SizedCells.of(totals.over(i, SizedTask(query))) for i, query in enumerate(plan.queries)]
            tables = [self._table(i, totals) for i in range(len(plan.queries))]
            self._tell("losses")
            task = RecordTask(LossSpec.of(plan, layout), None)
            of_records = RecordSummary.merged(job.engine.each(task, list(enumerate(records)), "reading"))
        found = {
            "release": plan.release,
            "file": plan.path.name,
            "dataset": plan.dataset.name,
            "unit": plan.dataset.unit,
            "plan_digest": plan.digest,
            "records": {"made": microdata.made, "in_domain": of_records.records - of_records.outside},
            "limits": [each.to_json() for each in standings(plan, policy_of(plan))],
            "tables": tables,
            "losses": {
                "records": _losses_json(of_records.counts, plan),
                "firms": self._of_firms(microdata.owner, chunks),
            },
            "needs": needs,
        }
        return found, cells

    def _table(self, number: int, totals: Totals) -> dict[str, Any]:
        query = self.plan.queries[number]
        task = task_for(query, self.plan.domain, None)
        classes = accuracy_json(task, totals.over(number, task))[BY_TOTAL]
        variance = all(isfinite(mechanism.variance(0.0)) for mechanism in query.mechanisms)
        if self.keys:
            self._tell(f"drawing {query.name}")
            drawn = Drawn.merged(totals.over(number, DrawTask(self.keys, query.parts[0].mechanism.step)))
            errors = {row["total"]: row["expected_standard_error"] for row in classes}
            classes = drawn_json(drawn, len(self.keys), errors, variance=variance)
        return {
            "name": query.name,
            "statistic": query.statistic.label,
            "by": list(query.by),
            "cells": self.plan.domain.query_cells(query.by, query.where).size,
            "mechanism": query.described(),
            "has_variance": variance,
            "classes": classes,
        }

    def _of_firms(self, owner: str | None, chunks: Sequence[Chunk]) -> dict[str, Any] | None:
        """Return the losses of firms, whatever the plan's unit; None where the microdata name none."""
        if owner is None:
            return None
        plan = replace(self.plan, dataset=replace(self.plan.dataset, unit=owner))
        layout = layout_of(plan)
        spec = LossSpec.of(plan, replace(layout, spec=replace(layout.spec, record=None)))
        with self._scratch() as between:
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

    def _scratch(self) -> AbstractContextManager[Staging]:
        return scratch(LocalPath(self.folder / "scratch"), self.plan.release, "trial")

    def _tell(self, what: str) -> None:
        self.job.log.progress(f"{self.plan.release}: {what}")


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
