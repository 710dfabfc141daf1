"""What a run asks of a ledger before it reads a record, and whether the ledger would let it."""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

import numpy as np

from pipeline.build import code_digest
from pipeline.engines.protocol import Engine, Totals
from pipeline.errors import MicrodataError, PrdpError, StateError
from pipeline.ledger.fold import PUBLIC, ReleaseState
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger
from pipeline.log import Log
from pipeline.microdata.frames import Frame
from pipeline.plan.model import Plan
from pipeline.plan.policy import limits_of, policy_of
from pipeline.preparation.duplicates import records_of
from pipeline.preparation.frames import sealed
from pipeline.preparation.pinned import Microdata, Pinned, pinned, require_there, source_of
from pipeline.preparation.prepared import is_prepared
from pipeline.release.attempts import (
    attempt_of,
    destroy,
    destroy_strays,
    finish,
    live_staging,
    recorded,
    require_published,
)
from pipeline.release.publish import require_publishable
from pipeline.report.accuracy import warnings
from pipeline.report.page import report_page
from pipeline.report.policy_document import policy_document
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.staging import AttemptContents, Staging, prepare_root
from pipeline.tables.files import ranges, sweep, write_csv
from pipeline.tables.totals import contract_told
from udfs.noise.keystream import CellBits, SecretKey


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be released, where from and where to, and in which ledger."""

    plan: Plan
    microdata: Microdata
    out: Location
    ledger: Ledger
    staging: Location | None = None  # None: beside the ledger
    hold: bool = False
    registered_only: bool = False  # the dataset must be registered in the ledger

    @property
    def staging_root(self) -> Location:
        """Where this run stages what it draws."""
        return self.staging or LocalPath(self.ledger.staging_root)


def reservation_of(request: Request) -> Reservation:
    """Return what the release reserves."""
    plan = request.plan
    return Reservation(
        release=plan.release,
        supersedes=plan.supersedes,
        dataset=plan.dataset.name,
        dataset_facts=plan.dataset.facts(),
        digest=plan.digest,
        plan=plan.resolved(),
        policy=policy_of(plan),
        limits=limits_of(plan),
        out=str(request.out),
        code=code_digest(),
        staging=recorded(request.ledger, request.staging_root),
        source=source_of(request.microdata),
        hold=request.hold,
    )


def require_free_place(request: Request) -> None:
    """Return if the release can be published at its output place; raises StateError as `require_publishable`."""
    state = request.ledger.state(request.plan.release)
    chosen = state.attempt if state and state.status in PUBLIC else None
    require_publishable(request.out, request.plan.release, request.staging_root, chosen)


def check(request: Request) -> ReleaseState | None:
    """Return the state of a release that is reserved already, None where it would be now; reserves nothing.

    Raises BudgetRefused, PlanError and StateError where a run would before it reads a record. It promises nothing:
    another release may be reserved first.
    """
    require_free_place(request)
    return request.ledger.check(reservation_of(request), request.registered_only)


# The steps of a release, whatever the engine: reserve, sum, draw, stage, publish, settle.
#
# Each step leaves a state from which the next run goes on by itself (docs/architecture.md, rules 4 and 9):
#     reserved   nothing was drawn: sum and draw.
#     drawn      a complete staged attempt is published, never redrawn; an incomplete one is destroyed, which is
#                recorded, and drawn again with a fresh key.
#     held       a complete staged attempt waits for an officer: nothing is published before one approves.
#     published  the chosen attempt is copied to its place and its manifest written.
#     settled    nothing is left to do.


@dataclass(frozen=True, kw_only=True)
class Job(Request):
    """One run of a release: what it asks of the ledger, and with what it is made."""

    engine: Engine
    csv: bool = False
    new_key: Callable[[], SecretKey] = SecretKey.fresh
    log: Log = field(default_factory=Log)


@dataclass(frozen=True)
class Outcome:
    """What a run came to: `tables` by query, each with its folder (held: where it is staged) and number of rows."""

    release: str
    attempt: str
    state: str
    out: Location
    tables: Mapping[str, Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """The outcome as `prdp release --json` prints it."""
        return {
            "release": self.release,
            "attempt": self.attempt,
            "state": self.state,
            "out": str(self.out),
            "tables": dict(self.tables),
        }


def run(job: Job) -> Outcome:
    """Release the plan's tables, or go on where an earlier run stopped; return what is published or held.

    Guarantee: however often it runs and wherever it is killed, at most one draw of the release is ever published, and
    every draw is recorded before a key exists. Raises BudgetRefused, MicrodataError, StateError, and PrdpError for
    what has no narrower class; none of them carries a value of the microdata.
    """
    job.log.about(release=job.plan.release)
    with job.ledger.lock(job.plan.release):
        with job.log.stage("check"):
            _check(job)
        with _sealed(job) as ready:
            return _go_on(ready)


def _go_on(job: Job) -> Outcome:
    """Take the release from its state to its end; the release's lock is held."""
    with job.log.stage("reserve"):
        state = _reserve(job)
    if state.status in ("reserved", "drawn"):
        facts = _staged_before(job, state) or _draw(job)
        state = _hold_or_publish(job, facts)
    if state.status == "held" and not state.approved:
        return _outcome(job, state, live_staging(job.ledger, state).path)
    attempt = attempt_of(state)
    job.log.about(attempt=attempt)
    with job.log.stage("settle"):
        state = finish(job.ledger, state, job.out)
        require_published(job.out / state.release, state.release, attempt)
    return _outcome(job, state, job.out / state.release / attempt)


@contextmanager
def _sealed(job: Job) -> Iterator[Job]:
    """Yield the job for a block, with a DataFrame sealed in staging where its records may still be summed."""
    state = job.ledger.state(job.plan.release)
    unfinished = state is None or state.refunded or state.status in ("reserved", "drawn")
    if unfinished:
        destroy_strays(job.ledger, job.plan.release, state, job.staging_root)
    if not unfinished or not isinstance(job.microdata, Frame):
        yield job
        return
    with ExitStack() as stack:
        with job.log.stage("seal", "sealing the DataFrame in private staging"):
            frame = sealed(job.microdata, job.plan, job.engine, job.ledger, job.staging_root)
            records = stack.enter_context(frame)
        yield replace(job, microdata=records)


def _check(job: Job) -> None:
    """Return if the release can be made, from these microdata and at this place; nothing is charged before."""
    require_free_place(job)
    state = job.ledger.state(job.plan.release)
    for warning in (text for query in job.plan.queries for text in warnings(query)):
        job.log.warning(warning)
    if state is None or state.refunded:
        is_prepared(job.microdata, job.plan)  # wrong microdata are told before anything is charged
        require_there(job.microdata, job.engine)
        prepare_root(job.staging_root)


def _hold_or_publish(job: Job, facts: AttemptContents) -> ReleaseState:
    state = _state(job)
    attempt = attempt_of(state)
    job.log.about(attempt=attempt)
    if job.hold or state.hold:
        with job.log.stage("hold", "holding for approval"):
            return job.ledger.hold(state.release, attempt, facts.digest)
    with job.log.stage("publish", "publishing"):
        return job.ledger.publish(state.release, attempt, facts.digest)


def _reserve(job: Job) -> ReleaseState:
    """Reserve the release; a reservation by another build of prdp, whose policies may differ, is made anew."""
    state = job.ledger.reserve(reservation_of(job), job.registered_only)
    if state.status == "reserved" and state.draws == 0 and state.reservation["code"] != code_digest():
        job.ledger.abort(state.release)
        again = replace(reservation_of(job), hold=job.hold or state.hold)
        state = job.ledger.reserve(again, job.registered_only)
    return state


def _staged_before(job: Job, state: ReleaseState) -> AttemptContents | None:
    """Return the complete attempt that an earlier run staged; destroy, and record, an incomplete one."""
    if state.status != "drawn" or state.attempt is None:
        return None
    staging = live_staging(job.ledger, state)
    facts = staging.read_complete()
    if facts is None:
        destroy(job.ledger, staging, "found incomplete")
    return facts


def _draw(job: Job) -> AttemptContents:
    """Sum the microdata, record a draw, and only then make a key and stage the noisy tables."""
    if _state(job).reservation["code"] != code_digest():
        raise StateError(
            f"release {job.plan.release}: was drawn by another build of prdp, whose policies may differ: finish with "
            "that build, or abort and choose another release name"
        )
    with job.log.stage("tables", "building the noise tables"):
        _rehearse(job.plan)
    found = pinned(job.microdata, job.engine)
    prepare_root(job.staging_root)
    scratch = Staging(job.staging_root, job.plan.release, f"totals-{uuid.uuid4().hex}")
    try:
        with job.log.stage("scan", "reading the microdata"):
            totals = _totals_or_refund(job, found, scratch)
        found.require_unchanged()
        return _stage_attempt(job, found, totals)
    finally:
        scratch.destroy()


def _stage_attempt(job: Job, found: Pinned, totals: Totals) -> AttemptContents:
    with job.log.stage("draw"):
        attempt = job.ledger.draw(job.plan.release, found.digest, recorded(job.ledger, job.staging_root))
    job.log.about(attempt=attempt)
    staging = Staging(job.staging_root, job.plan.release, attempt)
    try:
        staging.create()
        tables = _stage(job, staging, totals)
        with job.log.stage("complete"):
            found.require_unchanged()
            return staging.complete({"engine": _engine(job.engine), "tables": tables}, _names(job, tables))
    except Exception as error:
        destroy(job.ledger, staging, "failed while it was staged")
        if isinstance(error, OSError):
            told = error.strerror or type(error).__name__
            raise StateError(f"the staging folder {staging.root} cannot be written: {told}: run again") from None
        raise


def _rehearse(plan: Plan) -> None:
    """Build every mechanism's table here, and release one cell that is thrown away.

    Tables are then shipped as integers, the same for all workers; and what a mechanism cannot compute is met before a
    draw is recorded.
    """
    nothing = np.zeros(1, dtype=np.int64)
    for query in plan.queries:
        bits = CellBits(key=SecretKey.fresh(), query=0, cells=np.zeros(1, dtype=np.uint64))
        for mechanism in query.mechanisms:
            mechanism.release(nothing, bits, plan.interval)


def _totals_or_refund(job: Job, found: Pinned, scratch: Staging) -> Totals:
    try:
        proved = is_prepared(job.microdata, job.plan)
        with (
            contract_told(job.plan),
            records_of(found.input, job.plan, job.engine, job.staging_root, proved) as records,
        ):
            return job.engine.totals(*records, scratch)
    except MicrodataError:
        # Nothing was drawn, and mending may take another plan under the same name: give the charge back.
        if _state(job).draws == 0:
            job.ledger.abort(job.plan.release)
        raise


def _stage(job: Job, staging: Staging, totals: Totals) -> list[dict[str, Any]]:
    key = job.new_key()
    tables = []
    for number, query in enumerate(job.plan.queries):
        with job.log.stage("stage", f"drawing {query.name}"):
            folder = staging.table_folder(query.name)
            totals.stage(number, folder, key)
            rows = job.plan.domain.query_cells(query.by, query.where).size
            sweep(folder, {name for name, _, _ in ranges(rows)})
            if job.csv:
                write_csv(folder, staging.path / "tables" / f"{query.name}.csv")
        tables.append({"query": query.name, "rows": rows})
    staging.write_text("policy.json", policy_document(job.plan))
    staging.write_text("report.html", report_page(job.plan, staging.path))
    return tables


def _names(job: Job, tables: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return every file of a whole attempt, by its path in it."""
    parts = {f"tables/{table['query']}/{name}" for table in tables for name, _, _ in ranges(table["rows"])}
    text = {f"tables/{table['query']}.csv" for table in tables} if job.csv else set()
    return {"policy.json", "report.html"} | parts | text


def _outcome(job: Job, state: ReleaseState, folder: Location) -> Outcome:
    tables = {
        query.name: {
            "path": str(folder / "tables" / query.name),
            "rows": job.plan.domain.query_cells(query.by, query.where).size,
        }
        for query in job.plan.queries
    }
    return Outcome(state.release, attempt_of(state), state.status, job.out, tables)


def _state(job: Job) -> ReleaseState:
    state = job.ledger.state(job.plan.release)
    if state is None:
        raise PrdpError(f"release {job.plan.release}: vanished from the ledger")
    return state


def _engine(engine: Engine) -> dict[str, Any]:
    return {"name": engine.name, "versions": {"prdp": version("prdp")} | dict(engine.versions())}
