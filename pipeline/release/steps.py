"""A release from its reservation to its manifest: reserve → sum → draw → stage → publish → settle.

`run` is the only way in. What it promises where a run is killed stands in its docstring.
"""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from pipeline.base.errors import MicrodataError, PlanError, StateError, file_errors
from pipeline.engines.protocol import Totals
from pipeline.engines.totals import contract_checked, layout_of
from pipeline.engines.writers import rehearse_query
from pipeline.ledger.fold import ReleaseState
from pipeline.microdata.frames import Frame
from pipeline.publication.description import Description
from pipeline.release import attempts, request
from pipeline.release.input_records import records_of, sealed
from pipeline.release.pinned import Pinned, SealedRecords, pinned, prepared_for, require_own_files, require_readable
from pipeline.release.publish import stage
from pipeline.release.request import Job, Outcome
from pipeline.storage.staging import AttemptContents, Staging, prepare_root


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
        request.require_no_refusal(job)
        state = request.reserve(job)
    before, drew = state.status, False
    if before in request.TO_DRAW:
        request.warn_of_a_mark(job, state)
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
        return request.outcome(job, state, attempts.live_staging(job.ledger, state).path, before, drew)
    attempt = attempts.attempt_of(state)
    job.log.about(attempt=attempt)
    with job.log.stage("settle"):
        state = attempts.finish(job.ledger, state, job.out, job.signing)
        attempts.require_published(job.out / state.release, state.release, attempt)
    return request.outcome(job, state, job.out / state.release / attempt, before, drew)


def _check(job: Job) -> None:
    """Return if the release can be made, from these microdata and to this output; nothing is charged before."""
    request.require_places(job)
    state = job.ledger.state(job.plan.release)
    request.warn(job)
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


def _draw(job: Job) -> AttemptContents:
    """Sum the microdata, test for records left out, record a draw, and only then make a key and stage the tables."""
    if request.by_another_build(request.state_of(job)):
        raise StateError(
            f"release {job.plan.release}: was drawn by another build of prdp, whose policies may differ: finish with "
            f"that build, or end it, which keeps its charge: prdp ledger abort {job.plan.release}"
        )
    with _refunded(job, counted=False):
        microdata = pinned(job.microdata, job.engine)
    prepare_root(job.staging_root)
    scratch = Staging(job.staging_root, job.plan.release, f"totals-{uuid.uuid4().hex}")
    about, beside = Description(job.plan, request.left_out_test(job)), ThreadPoolExecutor(1)
    tables = [beside.submit(rehearse_query, query, job.plan.interval) for query in job.plan.queries]
    of_test = beside.submit(getattr, about.test.mechanism, "table")
    described = beside.submit(getattr, about, "facts")  # all of these take long, and follow from the plan alone
    try:
        with job.log.stage("scan", "reading the microdata"), _refunded(job, counted=True):
            if not job.engine.pickles_late:
                _ = [each.result() for each in tables]
            totals = _sum(job, microdata, scratch)
        microdata.require_unchanged()
        _require_records(job, totals)
        with job.log.stage("tables", "building the noise tables"):
            for each in tables:
                each.result()
        with job.log.stage("test"):
            of_test.result()
            request.require_few_left_out(job, about.test, microdata, totals)
        with job.log.stage("draw"):
            described.result()
            root = attempts.name_of_root(job.ledger, job.staging_root)
            attempt = job.ledger.draw(job.plan.release, microdata.digest, root)
        job.log.about(attempt=attempt)
        return _stage_or_destroy(job, microdata, totals, Staging(job.staging_root, job.plan.release, attempt), about)
    finally:
        scratch.destroy()
        beside.shutdown(cancel_futures=True)


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
    if request.state_of(job).draws == 0:  # mending may take another plan under the same name
        job.ledger.abort(job.plan.release)


def _stage_or_destroy(
    job: Job, microdata: Pinned, totals: Totals, staging: Staging, about: Description
) -> AttemptContents:
    """Return the contents of the complete staged attempt; destroy, and record, an attempt that fails before that."""
    try:
        staging.create()
        require_live = partial(job.ledger.require_live, staging.release, staging.attempt)
        key = job.new_key()
        stated, files = stage(about, totals, staging, job.formats, key=key, live=require_live, log=job.log)
        engine = {"name": job.engine.name, "versions": {"prdp": version("prdp")} | dict(job.engine.versions())}
        with job.log.stage("complete"):
            microdata.require_unchanged()
            require_live()
            return staging.complete({"engine": engine} | stated, files)
    except Exception:
        attempts.destroy(job.ledger, staging, "failed while it was staged")
        with file_errors(f"the staging folder {staging.root} cannot be written: ", ": run again"):
            raise


def _hold_or_publish(job: Job, contents: AttemptContents) -> ReleaseState:
    """Record that the staged attempt waits for an officer, or that it is the one to publish."""
    state = request.state_of(job)
    attempt = attempts.attempt_of(state)
    job.log.about(attempt=attempt)
    if job.hold or state.hold:
        with job.log.stage("hold", "holding for approval"):
            return job.ledger.hold(state.release, attempt, contents.digest)
    with job.log.stage("publish", "publishing"):
        return job.ledger.publish(state.release, attempt, contents.digest)
