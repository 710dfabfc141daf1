"""The steps of a diagnostics run: record it, read the microdata, write the results to a folder of their own.

diagnostics.json holds all of them as data: the same microdata and plan give the same bytes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.canonical import code_digest
from pipeline.base.errors import MicrodataError, StateError, arg
from pipeline.base.log import Log
from pipeline.diagnostics import record_losses as family
from pipeline.diagnostics.accuracy import BY_TOTAL, AccuracyTask, Added, accuracy_json, published_tables, task_for
from pipeline.diagnostics.diagnostics_page import diagnostics_page
from pipeline.diagnostics.record_losses import NO_LOSSES, Counts, Key, LossSpec, size_labels
from pipeline.diagnostics.records import ByOwner, FirmSummary, FirmTask, PerRecord, RecordSummary, RecordTask
from pipeline.engines.protocol import Engine, counted_as, grouped
from pipeline.engines.totals import Layout, contract_checked, layout_of, require_unbroken
from pipeline.ledger.entries import Diagnosed
from pipeline.ledger.store import Ledger
from pipeline.microdata import source
from pipeline.microdata.lakehouse import Place
from pipeline.microdata.read import require_schema
from pipeline.microdata.source import Chunk, Source
from pipeline.plan.model import Plan, default_out
from pipeline.publication.manifest import verify_release
from pipeline.release.attempts import private_folder, release_folders, require_apart
from pipeline.release.input_records import RECORD, records_of
from pipeline.release.pinned import prepared_for
from pipeline.storage.local import LocalPath
from pipeline.storage.staging import MANIFEST, Staging, scratch

NOTICE = (
    "Confidential: true counts, losses and errors of the microdata. A plan that is tuned on them is outside the "
    "guarantee."
)

Distributions = Mapping[Key, Counts]


def document(
    plan: Plan,
    spec: LossSpec,
    records: RecordSummary,
    firms: FirmSummary | None,
    accuracy: tuple[str | None, Sequence[tuple[AccuracyTask, Sequence[Mapping[str, Added]]]]],
) -> dict[str, Any]:
    """Return the document; `accuracy`: the attempt compared with the truth, and of each query task and results."""
    attempt, results = accuracy
    of_queries = [accuracy_json(task, files) for task, files in results]
    groups = ({name: rows for name, rows in each.items() if name != BY_TOTAL} for each in of_queries)
    inside = records.counts.get((family.TOTAL, 0))
    return {
        "notice": NOTICE,
        "release": plan.release,
        "dataset": plan.dataset.name,
        "plan_digest": plan.digest,
        "unit": plan.dataset.unit,
        "size_measure": spec.size.name if spec.size else None,
        **plan.unit_names.resolved(),
        "records": {
            "read": records.records,
            "dropped": records.dropped,
            "outside_domain": records.outside,
            "in_domain": int(inside.counts.sum()) if inside else 0,
        },
        "losses": _losses(spec, records.counts) | {"by_sector": _family(records.counts, family.SECTOR, spec.sectors)},
        "firms": None if firms is None else {"count": firms.firms} | _losses(spec, firms.counts),
        "accuracy": {
            "compared_with": attempt,
            "queries": {q.name: each[BY_TOTAL] for q, each in zip(plan.queries, of_queries, strict=True)},
            "groups": {q.name: each for q, each in zip(plan.queries, groups, strict=True)},
        },
    }


def _losses(spec: LossSpec, counts: Distributions) -> dict[str, Any]:
    """Return losses in all, by query and by size, and where a policy is tight the paper's bound of the same noise."""
    paper = {
        "total": _json(counts, family.PAPER_TOTAL),
        "by_query": {spec.queries[i].name: _json(counts, family.PAPER_QUERY, i) for i in spec.paper_queries},
        "by_size": _family(counts, family.PAPER_SIZE, size_labels()),
    }
    return {
        "total": _json(counts, family.TOTAL),
        "by_query": {query.name: _json(counts, family.QUERY, i) for i, query in enumerate(spec.queries)},
        "by_size": _family(counts, family.SIZE, size_labels()),
        "by_paper": paper if spec.paper_queries else None,
    }


def _json(counts: Distributions, kind: str, number: int = 0) -> dict[str, Any]:
    return counts[kind, number].to_json() if (kind, number) in counts else dict(NO_LOSSES)


def _family(counts: Distributions, kind: str, names: Sequence[str]) -> dict[str, Any]:
    return {name: _json(counts, kind, i) for i, name in enumerate(names) if (kind, i) in counts}


DOCUMENT, PAGE = "diagnostics.json", "report.html"
SCRATCH = ".scratch"


@dataclass(frozen=True, kw_only=True)
class RecordedJob:
    """A run over the microdata of a plan, which draws and charges nothing."""

    plan: Plan
    microdata: Place
    ledger: Ledger
    engine: Engine
    log: Log = field(default_factory=Log)

    @contextmanager
    def recorded(self, files: Source, **facts: Any) -> Iterator[None]:
        """Record the run, with `facts` of its kind, then yield; MicrodataError where the files changed meanwhile."""
        plan, pin = self.plan, source.pin(files)
        of_run = {"pin": pin, "code": code_digest(), "engine": self.engine.name} | facts
        self.ledger.diagnosed(Diagnosed(dataset=plan.dataset.name, release=plan.release, digest=plan.digest, **of_run))
        yield
        if source.pin(source.find(files.root)) != pin:
            raise MicrodataError(
                f"microdata {files.root}: its files changed during the run; retry once nothing writes to them"
            )


@dataclass(frozen=True, kw_only=True)
class DiagnosticsJob(RecordedJob):
    """One run of diagnostics; `published`: the folder of the release to compare with the truth (None: none)."""

    out: Path
    published: Path | None = None
    per_record: bool = False


@dataclass(frozen=True)
class Compared:
    """A published release of the plan, verified: its attempt, and each query's folder of files."""

    attempt: str
    tables: dict[str, Path]


def default_release(plan: Plan) -> Path | None:
    """Return the folder where `prdp release` publishes the plan by default; None where it has not."""
    folder = default_out(plan) / plan.release
    return folder if (folder / MANIFEST).exists() else None


def diagnose(job: DiagnosticsJob) -> Path:
    """Write diagnostics of the plan on the microdata to `job.out`, a new folder of mode 0700; return it.

    Nothing is drawn, and nothing is charged: what it writes is confidential. The ledger records the run before any
    record is read. Raises StateError where `out` is taken, or the release is not that of the plan.
    """
    plan = job.plan
    job.log.about(release=plan.release)
    compared = _compared(job)
    published = [job.published.parent] if job.published else []
    require_apart(job.out, [default_out(plan), *published, *release_folders(job.ledger)])
    files = source.find(job.microdata)
    require_schema(files, layout_of(plan).spec, plan.dataset.record)
    facts = {"per_record": job.per_record, "compared": compared.attempt if compared else None}
    with private_folder(job.out), job.recorded(files, **facts):
        root, proved = LocalPath(job.out / SCRATCH), prepared_for(job.microdata, plan) is not None
        chunks = list(source.chunks(files))
        # the records are those that a release sums
        with contract_checked(plan), records_of(chunks, plan, job.engine, root, proved) as (records, layout):
            assert isinstance(records, Sequence)
            _write(job, layout, records, compared)
        root.delete_if_empty()
    return job.out


def _compared(job: DiagnosticsJob) -> Compared | None:
    if job.published is None:
        return None
    verified = verify_release(LocalPath(job.published))
    if verified.plan_digest != job.plan.digest:
        raise StateError(
            f"{job.published}: it was released by another plan (digest {verified.plan_digest}, "
            f"here {job.plan.digest}): give the plan that it was made from, or another {arg('release')}"
        )
    names = [query.name for query in job.plan.queries]
    return Compared(verified.attempt, published_tables(job.published, verified.attempt, names))


def _write(job: DiagnosticsJob, layout: Layout, chunks: Sequence[Chunk], compared: Compared | None) -> None:
    spec, firms = LossSpec.of(job.plan, layout), None
    with job.log.stage("records", "losses of records"):
        records = _records(job, spec, layout, chunks)
    if job.plan.dataset.owner is not None:
        with job.log.stage("firms", f"losses of {job.plan.unit_names.owner[1]}"), _scratch(job) as between:
            task = FirmTask(spec, _private_subfolder(job.out / "firms") if job.per_record else None)
            firms = FirmSummary.merged(list(grouped(job.engine.each, ByOwner(spec), chunks, task, between)))
    with job.log.stage("accuracy", "accuracy against the truth"), _scratch(job) as between:
        totals = job.engine.totals(chunks, layout, between)
        published = compared.tables if compared else {}
        tasks = [task_for(t.query, job.plan.domain, published.get(t.name)) for t in layout.tables]
        accuracy = [(task, totals.over(t.number, task)) for t, task in zip(layout.tables, tasks, strict=True)]
    made = document(job.plan, spec, records, firms, (compared.attempt if compared else None, accuracy))
    LocalPath(job.out / PAGE).write_durably(diagnostics_page(made).encode())
    text = json.dumps(made, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    LocalPath(job.out / DOCUMENT).write_durably(text.encode())


def _records(job: DiagnosticsJob, spec: LossSpec, layout: Layout, chunks: Sequence[Chunk]) -> RecordSummary:
    files = None
    if job.per_record:
        name = RECORD if RECORD in spec.scan.also else job.plan.dataset.record
        files = PerRecord(_private_subfolder(job.out / "records"), name, spec.scan.owner)
        spec = spec.reading([name])
    reading = counted_as("reading", chunks)
    summary = RecordSummary.merged(job.engine.each(RecordTask(spec, files), list(enumerate(chunks)), reading))
    require_unbroken(layout, sorted(summary.broken))
    return summary


def _scratch(job: DiagnosticsJob) -> AbstractContextManager[Staging]:
    return scratch(LocalPath(job.out / SCRATCH), job.plan.release, "losses")


def _private_subfolder(folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    folder.chmod(0o700)
    return folder
