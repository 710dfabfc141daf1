"""A check of microdata before a release: recorded in the ledger, its report in a private file; confidential.

Nothing is summed, drawn or charged. What is found leaves nowhere but in the report, and as found or not.
"""

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from pipeline.accounting.left_out import SHARE
from pipeline.base.errors import PlanError, StateError, arg
from pipeline.diagnostics.check_report import Checked, report, text_of
from pipeline.diagnostics.check_scan import CodeJudge, Found, LookAt, OneId
from pipeline.diagnostics.recorded import RecordedJob
from pipeline.engines.protocol import grouped
from pipeline.engines.totals import contract_checked, layout_of
from pipeline.ledger.entries import CHECKED
from pipeline.microdata import source
from pipeline.microdata.read import mistakes, schema_of
from pipeline.microdata.source import Source
from pipeline.plan.model import Plan, default_out
from pipeline.plan.total_policy import left_out_test_of
from pipeline.release.confidential_outputs import release_folders, require_outside
from pipeline.release.duplicates import ByRecord, bucket_count
from pipeline.release.prepared import prepared_for
from pipeline.storage.local import LocalPath
from pipeline.storage.staging import prepare_root, scratch
from udfs.records.decoding import CodeColumn, SumSpec

NUMBER = re.compile(r"[^A-Za-z]*[0-9][^A-Za-z]*")  # or a code: what a record has, and a header has not
FOLDER = "checks"  # of reports, beside the ledger's staging


@dataclass(frozen=True, kw_only=True)
class CheckJob(RecordedJob):
    """One check; `report`: the file to write (None: a new one in a private folder beside the ledger's staging)."""

    report: Path | None = None
    as_json: bool = False
    site_share: Fraction = SHARE  # of records that may be left out, where the plan states none


@dataclass(frozen=True)
class Outcome:
    """Where the report of a check lies, and whether it found something; both for the enclave alone."""

    report: Path
    found: bool


def check(job: CheckJob) -> Outcome:
    """Look at the microdata of a plan; write what was found to a new private file (mode 0600).

    The ledger records the check before any record is read, and names it in the dataset's next reservation. Raises
    StateError where the report's place is taken, or releases are published or staged there.
    """
    plan = job.plan
    job.log.about(release=plan.release)
    path = _report_path(job)
    files = source.find(job.microdata)
    prepared = prepared_for(job.microdata, plan) is not None
    spec = layout_of(plan).spec
    keys = zip(spec.keys, plan.domain.dimensions, strict=True)
    judges = tuple(CodeJudge.of(key, each, plan.domain) for key, each in keys if isinstance(key, CodeColumn))
    with (
        job.recorded(files, event=CHECKED),
        job.log.stage("check", "looking at the microdata"),
        contract_checked(plan),
    ):
        checked = _look(job, files, spec, judges, prepared)
    made = report(plan, judges, checked, left_out_test_of(plan, job.site_share).share)
    text = json.dumps(made, ensure_ascii=False, indent=2, allow_nan=False) + "\n" if job.as_json else text_of(made)
    try:
        LocalPath(path).write_durably(text.encode())
    except OSError as error:
        raise StateError(f"{arg('report', path)}: it cannot be written ({error.strerror}): give another file") from None
    return Outcome(path, bool(made["findings"]))


def _report_path(job: CheckJob) -> Path:
    """Return the file of the report, whose folder is there, apart from all releases; StateError where it cannot be."""
    kind = "json" if job.as_json else "txt"
    folder = LocalPath(job.ledger.staging_root.parent / FOLDER)
    path = job.report or folder.path / f"{job.plan.release}-{uuid.uuid4().hex[:8]}.{kind}"
    require_outside(path, [default_out(job.plan), *release_folders(job.ledger)], arg("report"))
    if path.exists() or path.is_symlink():
        raise StateError(f"{arg('report', path)}: it exists already: give a new file")
    try:
        if job.report is None:
            folder.make_private()
        else:
            LocalPath(path.parent).make_folder()
    except OSError as error:
        raise StateError(
            f"{arg('report', path)}: its folder cannot be made ({error.strerror}): give another file"
        ) from None
    return path


def _look(job: CheckJob, files: Source, spec: SumSpec, judges: tuple[CodeJudge, ...], prepared: bool) -> Checked:
    dataset = job.plan.dataset
    wrong = [error for error in mistakes(files, spec, dataset.record) if error is not None]
    columns = _columns(files, [*spec.columns, dataset.record])
    if wrong:
        return Checked(spec, columns, wrong, None, ids=False)
    of_ids = replace(spec, record=dataset.record)  # also where they are trusted
    ids = not prepared and not any(mistakes(files, of_ids, dataset.record))
    scan = of_ids if ids else replace(spec, record=None)
    return Checked(scan, columns, [], _scan(job, files, scan, judges, ids), ids)


def _columns(files: Source, needed: Sequence[str]) -> Sequence[str] | None:
    """Return the columns of the first file that has some; None where there is none.

    Where no file has one that is needed, those of a first line in which no number stands: others may be records.
    """
    for wanted in (needed, ()):
        for file in files.files:
            try:
                names = schema_of(file, files, wanted).names
            except (PlanError, OSError):
                continue
            if wanted or not any(map(NUMBER.fullmatch, names)):
                return names
    return None


def _scan(job: CheckJob, files: Source, spec: SumSpec, judges: tuple[CodeJudge, ...], ids: bool) -> Found:
    chunks = list(source.chunks(files))
    dataset, root = job.plan.dataset, LocalPath(job.ledger.staging_root)
    by_record = ByRecord(spec, bucket_count(chunks)) if ids else None
    look = LookAt(spec, judges, _references(job.plan, spec), by_record)
    merge = OneId(spec, "combine" if dataset.duplicates == "combine" else "reject")
    prepare_root(root)
    with scratch(root, job.plan.release, "check") as between:
        return Found.merged(grouped(job.engine.each, look, chunks, merge, between))


def _references(plan: Plan, spec: SumSpec) -> tuple[dict[str, int], ...]:
    """Return the size of each record of the budget's references in steps of each measure, rounded down."""
    steps = {measure.name: measure.step for measure in spec.measures}
    return tuple(
        {name: abs(value) // steps[name] for name, value in record.values.items() if name in steps}
        for limit in plan.budget
        for record in limit.at.records
    )
