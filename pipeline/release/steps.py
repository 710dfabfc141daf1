"""A release from its reservation to its manifest: reserve → sum → draw → stage → publish → settle.

`run` is the only way in. What it promises where a run is killed stands in its docstring.
"""

import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import Any

from pipeline.accounting.accountant import LeftOutTest
from pipeline.base.canonical import code_digest
from pipeline.base.errors import MicrodataError, PlanError, PrdpError, StateError, file_errors
from pipeline.base.log import Log
from pipeline.engines.protocol import Engine, Totals
from pipeline.engines.totals import contract_checked, layout_of
from pipeline.engines.writers import FORMATS, PARQUET, ranges, rehearse_queries, sweep
from pipeline.ledger.entries import FINGERPRINTS
from pipeline.ledger.fold import PUBLIC, ReleaseState, Tested
from pipeline.ledger.microdata_rules import same_files
from pipeline.microdata.frames import Frame
from pipeline.plan.structure import warnings
from pipeline.plan.total_policy import classes_decide, left_out_test_of
from pipeline.publication.description import Description
from pipeline.publication.policy_document import of_owners
from pipeline.publication.signing import SigningKey
from pipeline.publication.site.site_files import FRONT, stage_public, staged_page
from pipeline.release import attempts, request
from pipeline.release.input_records import records_of, sealed
from pipeline.release.pinned import (
    Pinned,
    SealedRecords,
    pinned,
    prepared_for,
    require_own_files,
    require_readable,
    source_of,
)
from pipeline.release.request import Outcome, Request
from pipeline.storage.location import Location
from pipeline.storage.staging import AttemptContents, Staging, prepare_root
from udfs.noise.keystream import SecretKey


@dataclass(frozen=True, kw_only=True)
class Job(Request):
    """One run of a release: the request, and with what it is made; `formats`: beside Parquet; `signing`: signs it."""

    engine: Engine
    formats: Collection[str] = ()
    signing: SigningKey | None = None
    new_key: Callable[[], SecretKey] = SecretKey.fresh
    new_test_key: Callable[[], SecretKey] = SecretKey.fresh
    log: Log = field(default_factory=Log)


def run(job: Job) -> Outcome:
    """Release the plan's tables, or go on where an earlier run stopped; return what is published or held.

    Guarantee: however often it runs and wherever it is killed, at most one draw of the release is ever published, and
    every draw is recorded before a key exists.

    Each step is recorded in the ledger before the next one begins, under a lock that dies with the process. So a run
    that is killed leaves one of these states, and the next run goes on from it (docs/architecture.md, rules 4 and 9):

        reserved   Nothing was drawn: sum, test for records left out, record the draw, make a key, stage the tables.
        refused    The records were refused: a failed test is told again without reading the same microdata, and
                   mended ones are reserved and read anew.
        drawn      A complete staged attempt is published, never drawn again. An incomplete one is destroyed, which is
                   recorded, and drawn again with a fresh key.
        held       A complete staged attempt waits for an officer: nothing is published before one approves.
        published  The chosen attempt is copied to the output, then its manifest is created.
        settled    Nothing is left to do.

    Each class of errors says what was refused (pipeline/base/errors.py). None carries a value of the microdata.
    """
    job.log.about(release=job.plan.release)
    with job.ledger.lock(job.plan.release):
        with job.log.stage("check"):
            _check(job)
        with _sealed(job) as ready:
            return _advance(ready)


def _advance(job: Job) -> Outcome:
    """Take the release from its state to its end; the release's lock is held."""
    with job.log.stage("reserve"):
        _require_no_refusal(job)
        state = _reserve(job)
    before, drew = state.status, False
    if before in request.TO_DRAW:
        _warn_of_a_mark(job, state)
        try:
            attempts.mark(job.ledger, job.staging_root)
        except StateError:  # another ledger was first
            _refund(job)
            raise
        contents = _staged_before(job, state)
        drew = contents is None
        state = _hold_or_publish(job, contents or _draw(job))
    else:
        with suppress(StateError, OSError):  # another user's staging, or a store that is gone, stops nothing by now
            _sweep(job, state)  # of what a run that stood still wrote after its draw was destroyed
    if state.status == "held" and not state.approved:
        return _outcome(job, state, attempts.live_staging(job.ledger, state).path, before, drew)
    attempt = attempts.attempt_of(state)
    job.log.about(attempt=attempt)
    with job.log.stage("settle"):
        state = attempts.finish(job.ledger, state, job.out, job.signing)
        attempts.require_published(job.out / state.release, state.release, attempt)
    return _outcome(job, state, job.out / state.release / attempt, before, drew)


def _check(job: Job) -> None:
    """Return if the release can be made, from these microdata and to this output; nothing is charged before."""
    request.require_places(job)
    state = job.ledger.state(job.plan.release)
    for warning in (text for query in job.plan.queries for text in warnings(query)):
        job.log.warning(warning)
    if state is None or state.refunded:
        require_own_files(job.ledger, job.plan.dataset.name, job.microdata)
        prepared_for(job.microdata, job.plan)  # wrong microdata are refused before anything is charged
        require_readable(job.microdata, job.engine, layout_of(job.plan).spec, job.plan.dataset.record)
        prepare_root(job.staging_root)
        attempts.require_markable(job.staging_root)


@contextmanager
def _sealed(job: Job) -> Iterator[Job]:
    """Yield the job for a block, with a DataFrame sealed in staging where its records may still be summed."""
    state = job.ledger.state(job.plan.release)
    unfinished = state is None or state.refunded or state.status in request.TO_DRAW
    if not unfinished or not isinstance(job.microdata, Frame):
        yield job
        return
    if state is not None:
        attempts.destroy_leftovers(job.ledger, state, job.staging_root)  # also where this frame is refused
    with ExitStack() as stack:
        with job.log.stage("seal", "sealing the DataFrame in private staging"):
            frame = sealed(job.microdata, job.plan, job.engine, job.ledger, job.staging_root)
            records = stack.enter_context(frame)
        yield replace(job, microdata=records)


def _reserve(job: Job) -> ReleaseState:
    """Reserve the release; anew where another build of prdp reserved it, whose policies may differ, or other files."""
    wanted = request.reservation_of(job)
    state = job.ledger.reserve(wanted, job.registered_only)
    same = same_files(state.reservation.get(FINGERPRINTS), wanted.fingerprints)
    if state.status == "reserved" and state.draws == 0 and (_by_another_build(state) or not same):
        job.ledger.abort(state.release)
        state = job.ledger.reserve(replace(wanted, hold=job.hold or state.hold), job.registered_only)
    return state


def _warn_of_a_mark(job: Job, state: ReleaseState) -> None:
    """Log a warning where the dataset's first release is of microdata that carry the mark of synthetic ones."""
    if not state.reservation.get("synthetic"):
        return
    others = (other for other in job.ledger.states() if other.release != state.release)
    if not any(other.dataset == state.dataset and other.counts for other in others):
        job.log.warning(
            f"dataset {state.dataset}: its microdata carry the mark of prdp generate; where they are not synthetic, a "
            "copied schema carried it along: write the files without it"
        )


def _by_another_build(state: ReleaseState) -> bool:
    return state.reservation["code"] != code_digest() or state.test is None  # older ones reserved no test


def _staged_before(job: Job, state: ReleaseState) -> AttemptContents | None:
    """Return the complete attempt that an earlier run staged; destroy, and record, an incomplete one."""
    _sweep(job, state)  # only now: a run that the ledger refuses removes nothing
    if state.status != "drawn" or state.attempt is None:
        return None
    staging = attempts.live_staging(job.ledger, state)
    contents = staging.read_complete()
    if contents is None:
        attempts.destroy(job.ledger, staging, "found incomplete")
    return contents


def _sweep(job: Job, state: ReleaseState) -> None:
    sealed_in = job.microdata.folder if isinstance(job.microdata, SealedRecords) else None
    attempts.destroy_leftovers(job.ledger, state, job.staging_root, keep=sealed_in)


def _require_no_refusal(job: Job) -> None:
    """Raise MicrodataError where these microdata failed the plan's test before: it is never drawn twice."""
    state = job.ledger.state(job.plan.release)
    if state is not None and state.attempt is None and not all(tested.passed for tested in state.tests):
        tested = state.tested(job.plan.digest, _test_of(job), pinned(job.microdata, job.engine).digest)
        if tested is not None and not tested.passed:
            raise _too_many_left_out(job, tested)


def _test_of(job: Job) -> LeftOutTest:
    state = job.ledger.state(job.plan.release)
    reserved = None if state is None or state.refunded else state.test
    return reserved or left_out_test_of(job.plan, job.site_share)


def _draw(job: Job) -> AttemptContents:
    """Sum the microdata, test for records left out, record a draw, and only then make a key and stage the tables."""
    if _by_another_build(_state(job)):
        raise StateError(
            f"release {job.plan.release}: was drawn by another build of prdp, whose policies may differ: finish with "
            f"that build, or end it, which keeps its charge: prdp ledger abort {job.plan.release}"
        )
    with job.log.stage("tables", "building the noise tables"):
        rehearse_queries(job.plan)
    with _refunded(job, counted=False):
        microdata = pinned(job.microdata, job.engine)
    prepare_root(job.staging_root)
    scratch = Staging(job.staging_root, job.plan.release, f"totals-{uuid.uuid4().hex}")
    try:
        with job.log.stage("scan", "reading the microdata"), _refunded(job, counted=True):
            totals = _sum(job, microdata, scratch)
        microdata.require_unchanged()
        _require_records(job, totals)
        with job.log.stage("test"):
            _test(job, microdata, totals)
        with job.log.stage("draw"):
            root = attempts.name_of_root(job.ledger, job.staging_root)
            attempt = job.ledger.draw(job.plan.release, microdata.digest, root)
        job.log.about(attempt=attempt)
        return _stage_or_destroy(job, microdata, totals, Staging(job.staging_root, job.plan.release, attempt))
    finally:
        scratch.destroy()


def _sum(job: Job, microdata: Pinned, scratch: Staging) -> Totals:
    prepared = prepared_for(job.microdata, job.plan)
    before = (prepared.before,) if prepared else ()
    with (
        contract_checked(job.plan),
        records_of(microdata.input, job.plan, job.engine, job.staging_root, prepared is not None) as records,
    ):
        return job.engine.totals(*records, scratch, *before)


@contextmanager
def _refunded(job: Job, *, counted: bool) -> Iterator[None]:
    """Refund the charge where microdata cannot be read in a block, or break the contract; never after a draw.

    `counted`: what their records say against them is counted among the dataset's refusals, what their format does not.
    """
    try:
        yield
    except (MicrodataError, PlanError) as error:
        if counted and isinstance(error, MicrodataError):
            job.ledger.refuse(job.plan.release)
        else:
            _refund(job)
        raise


def _require_records(job: Job, totals: Totals) -> None:
    if totals.records.none:  # good or bad: that there are any is public
        _refund(job)
        raise PlanError(f"dataset {job.plan.dataset.name}: the microdata hold no record: check the path and the files")


def _refund(job: Job) -> None:
    if _state(job).draws == 0:  # mending may take another plan under the same name
        job.ledger.abort(job.plan.release)


def _test(job: Job, microdata: Pinned, totals: Totals) -> None:
    """Test once for records left out, and record what was drawn before anybody sees it.

    A test of the same plan and input stands: killed after it was recorded, a run goes on from what it said. Where the
    input has changed since, another test is drawn, and charged.
    """
    state, test = _state(job), _test_of(job)
    tested = state.tested(state.digest, test, microdata.digest)
    if tested is None:
        kept, left_out = test.draw(totals.records.kept, totals.records.left_out, job.new_test_key())
        tested = job.ledger.test(state.release, microdata.digest, kept, left_out).tests[-1]
    if not tested.passed:
        raise _too_many_left_out(job, tested)


def _too_many_left_out(job: Job, tested: Tested) -> MicrodataError:
    return MicrodataError(
        f"release {job.plan.release}: too many records were left out, bad or outside the domain: about "
        f"{max(tested.left_out, 0):,} (noise {tested.test.sigma}), more than {float(tested.test.share):g} of all: "
        "run prdp check PLAN, and mend the files or the plan"
    )


def _stage_or_destroy(job: Job, microdata: Pinned, totals: Totals, staging: Staging) -> AttemptContents:
    """Return the contents of the complete staged attempt; destroy, and record, an attempt that fails before that."""
    try:
        staging.create()
        tables, files = _stage(job, totals, staging)
        engine = {"name": job.engine.name, "versions": {"prdp": version("prdp")} | dict(job.engine.versions())}
        with job.log.stage("complete"):
            microdata.require_unchanged()
            job.ledger.require_live(staging.release, staging.attempt)
            stated: dict[str, object] = {"classes": True} if classes_decide(job.plan) else {}
            stated |= {"owners": owners} if (owners := of_owners(job.plan)) else {}
            return staging.complete({"engine": engine, "tables": tables} | stated, files)
    except Exception:
        attempts.destroy(job.ledger, staging, "failed while it was staged")
        with file_errors(f"the staging folder {staging.root} cannot be written: ", ": run again"):
            raise


def _stage(job: Job, totals: Totals, staging: Staging) -> tuple[list[dict[str, Any]], set[str]]:
    """Write all files under a fresh key; return each table's query and number of rows, and the path of every file.

    Raises StateError before the next file where another run destroyed the draw while this one stood still.
    """
    with job.log.stage("stage", "describing the tables"):
        about = Description(job.plan, _test_of(job))
        notes = {query.name: about.notes(query.name) for query in job.plan.queries}
    key, require_live = job.new_key(), partial(job.ledger.require_live, staging.release, staging.attempt)
    tables: list[dict[str, Any]] = []
    files: set[str] = set()
    for number, query in enumerate(job.plan.queries):
        with job.log.stage("stage", f"drawing {query.name}"):
            require_live()
            folder = staging.table_folder(query.name)
            totals.stage(number, folder, key, notes[query.name])
            require_live()
            rows = job.plan.domain.query_cells(query.by, query.where).size
            sweep(folder, {name for name, _, _ in ranges(rows)})
            for name in job.formats:
                FORMATS[name].convert(staging.path / "tables", query.name)
        tables.append({"query": query.name, "rows": rows})
        files |= {
            f"tables/{file}" for name in (PARQUET.name, *job.formats) for file in FORMATS[name].files(query.name, rows)
        }
    with job.log.stage("stage", "making the public site"):
        return tables, files | stage_public(about, staging, (PARQUET.name, *job.formats), require_live)


def _hold_or_publish(job: Job, contents: AttemptContents) -> ReleaseState:
    """Record that the staged attempt waits for an officer, or that it is the one to publish."""
    state = _state(job)
    attempt = attempts.attempt_of(state)
    job.log.about(attempt=attempt)
    if job.hold or state.hold:
        with job.log.stage("hold", "holding for approval"):
            return job.ledger.hold(state.release, attempt, contents.digest)
    with job.log.stage("publish", "publishing"):
        return job.ledger.publish(state.release, attempt, contents.digest)


def _outcome(job: Job, state: ReleaseState, folder: Location, before: str, drew: bool) -> Outcome:
    request.require_formats(job.formats, job.plan, state, folder)
    return Outcome(
        release=state.release,
        attempt=attempts.attempt_of(state),
        state=state.status,
        out=job.out,
        tables={
            query: {"path": str(folder / "tables" / query), "rows": rows} for query, rows in request.sizes(job.plan)
        },
        page=staged_page(folder) if state.status == "held" else job.out / state.release / FRONT,
        already=before in (state.status, *PUBLIC),
        not_done=() if drew else request.not_done(before, state, source_of(job.microdata), job.engine.name, job.hold),
    )


def _state(job: Job) -> ReleaseState:
    state = job.ledger.state(job.plan.release)
    if state is None:
        raise PrdpError(f"release {job.plan.release}: vanished from the ledger")
    return state
