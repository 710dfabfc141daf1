"""What is asked of a release, what it reserves, where it may lie, its test of records left out, and what came of it."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.accounting.accountant import SHARE, LeftOutTest
from pipeline.base.canonical import code_digest
from pipeline.base.errors import MicrodataError, PrdpError, StateError, arg
from pipeline.base.log import Log
from pipeline.engines.protocol import Engine, Totals
from pipeline.engines.writers import FORMATS
from pipeline.ledger.entries import FINGERPRINTS
from pipeline.ledger.fold import PUBLIC, ReleaseState, Tested
from pipeline.ledger.microdata_rules import same_files
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger
from pipeline.microdata.source import Identity
from pipeline.plan.model import Plan
from pipeline.plan.plan_losses import loss_found
from pipeline.plan.structure import MOST_CELLS, require_size, warnings
from pipeline.plan.total_policy import left_out_test_of, limits_of, policy_of
from pipeline.publication.manifest import Manifest
from pipeline.publication.site.site_files import FRONT, staged_page
from pipeline.release.attempts import attempt_of, name_of_root, require_own
from pipeline.release.pinned import Microdata, Pinned, identity, pinned, require_own_files, source_of
from pipeline.release.publish import require_publishable
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location
from pipeline.storage.paths import PUBLIC_MARKS, locate, require_not_in
from udfs.noise.keystream import SecretKey

if TYPE_CHECKING:
    from pipeline.publication.signing import SigningKey

TO_DRAW = ("reserved", "drawn")  # statuses in which a run stages tables, or destroys what is staged incomplete


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
    site_share: Fraction = SHARE  # of records that may be left out, where the plan states none
    most_cells: int = MOST_CELLS  # that may be kept

    @property
    def staging_root(self) -> Location:
        """Where this run stages what it draws."""
        return self.staging or LocalPath(self.ledger.staging_root)


@dataclass(frozen=True, kw_only=True)
class Job(Request):
    """One run of a release: the request, and with what it is made; `formats`: beside Parquet; `signing`: signs it."""

    engine: Engine
    formats: Collection[str] = ()
    signing: "SigningKey | None" = None
    new_key: Callable[[], SecretKey] = SecretKey.fresh
    new_test_key: Callable[[], SecretKey] = SecretKey.fresh
    log: Log = field(default_factory=Log)


def reservation_of(request: Request) -> Reservation:
    """Return what the release reserves."""
    plan, state = request.plan, request.ledger.state(request.plan.release)
    policy = policy_of(plan)
    read = state is None or state.refunded or state.status in TO_DRAW  # or may be; else they may be gone
    files = identity(request.microdata) if read else Identity()
    return Reservation(
        release=plan.release,
        supersedes=plan.supersedes,
        dataset=plan.dataset.name,
        dataset_facts=plan.dataset.facts(),
        digest=plan.digest,
        plan=plan.resolved(),
        policy=policy,
        limits=limits_of(plan),
        out=str(request.out),
        code=code_digest(),
        staging=name_of_root(request.ledger, request.staging_root),
        source=source_of(request.microdata),
        fingerprints=files.fingerprints,
        synthetic=files.synthetic,
        hold=request.hold,
        test=left_out_test_of(plan, request.site_share),
        least_loss=partial(loss_found, plan, policy),
    )


def require_places(request: Request) -> None:
    """Return if the release can be staged and published where it is to be.

    Raises StateError as `require_publishable`, and where staging is another ledger's or lies in a public folder.
    """
    require_size(request.plan, request.most_cells)
    state = request.ledger.state(request.plan.release)
    chosen = state.attempt if state and state.status in PUBLIC else None
    require_publishable(request.out, request.plan.release, request.staging_root, chosen)
    if state is None or state.refunded or state.status in TO_DRAW:
        require_not_in(PUBLIC_MARKS, request.staging_root, arg("staging"))
        require_own(request.ledger, request.staging_root)


def check(request: Request) -> ReleaseState | None:
    """Return the state of a release that is reserved already, None where it would be now; reserves nothing.

    Raises BudgetRefused, PlanError and StateError where a run would before it reads a record. It promises nothing:
    another release may be reserved first.
    """
    require_places(request)
    require_own_files(request.ledger, request.plan.dataset.name, request.microdata)
    return request.ledger.check(reservation_of(request), request.registered_only)


def reserve(job: Job) -> ReleaseState:
    """Reserve the release; anew where another build of prdp reserved it, whose policies may differ, or other files."""
    wanted = reservation_of(job)
    state = job.ledger.reserve(wanted, job.registered_only)
    same = same_files(state.reservation.get(FINGERPRINTS), wanted.fingerprints)
    if state.status == "reserved" and state.draws == 0 and (by_another_build(state) or not same):
        job.ledger.abort(state.release)
        state = job.ledger.reserve(replace(wanted, hold=job.hold or state.hold), job.registered_only)
    return state


def by_another_build(state: ReleaseState) -> bool:
    """Whether the release is reserved by another build of prdp; older ones reserved no test."""
    return state.reservation["code"] != code_digest() or state.test is None


def warn(job: Job) -> None:
    """Log a warning for each mechanism whose stated errors are not those of the released values."""
    for warning in (text for query in job.plan.queries for text in warnings(query)):
        job.log.warning(warning)


def warn_of_a_mark(job: Job, state: ReleaseState) -> None:
    """Log a warning where the dataset's first release is of microdata that carry the mark of synthetic ones."""
    if state.reservation.get("synthetic") and set(job.ledger.counted(state.dataset)) <= {state.release}:
        job.log.warning(
            f"dataset {state.dataset}: its microdata carry the mark of prdp generate; where they are not synthetic, a "
            "copied schema carried it along: write the files without it"
        )


# The test of records left out.


def require_no_refusal(job: Job) -> None:
    """Raise MicrodataError where these microdata failed the plan's test before: it is never drawn twice."""
    state = job.ledger.state(job.plan.release)
    if state is not None and state.attempt is None and not all(tested.passed for tested in state.tests):
        tested = state.tested(job.plan.digest, left_out_test(job), pinned(job.microdata, job.engine).digest)
        if tested is not None and not tested.passed:
            raise _too_many_left_out(job, tested)


def left_out_test(job: Job) -> LeftOutTest:
    """Return the test that is reserved, or that would be."""
    state = job.ledger.state(job.plan.release)
    reserved = None if state is None or state.refunded else state.test
    return reserved or left_out_test_of(job.plan, job.site_share)


def require_few_left_out(job: Job, test: LeftOutTest, microdata: Pinned, totals: Totals) -> None:
    """Test once for records left out, as reserved, and record what was drawn before anybody sees it.

    A test of the same plan and input stands: killed after it was recorded, a run goes on from what it said. Where the
    input has changed since, another test is drawn, and charged.
    """
    state = state_of(job)
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


def state_of(job: Job) -> ReleaseState:
    """Return the state of a release that is reserved."""
    state = job.ledger.state(job.plan.release)
    if state is None:
        raise PrdpError(f"release {job.plan.release}: vanished from the ledger")
    return state


# What a run came to: what was done, what was done before it, and what of the call is not.


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    release: str
    attempt: str
    state: str
    out: Location
    tables: Mapping[str, Mapping[str, Any]]  # by query, its folder (held: where it is staged) and number of rows
    page: Location  # the public site's, of a held release as it is staged; an earlier build may have made none
    already: bool  # published, or held, before this run, which read and drew nothing
    not_done: tuple[str, ...]  # what was asked, and not done because the release was drawn before this run

    def to_json(self) -> dict[str, Any]:
        """The outcome as `prdp release --json` prints it."""
        names = ("release", "attempt", "state", "out", "tables", "already", "not_done")
        data = {name: getattr(self, name) for name in names}
        return data | {"out": str(self.out), "tables": dict(self.tables), "not_done": list(self.not_done)}


def outcome(job: Job, state: ReleaseState, folder: Location, before: str, drew: bool) -> Outcome:
    """Return the end of a run that began in the status `before`; `drew`: it drew the tables itself."""
    require_formats(job.formats, job.plan, state, folder)
    return Outcome(
        release=state.release,
        attempt=attempt_of(state),
        state=state.status,
        out=job.out,
        tables={query: {"path": str(folder / "tables" / query), "rows": rows} for query, rows in sizes(job.plan)},
        page=staged_page(folder) if state.status == "held" else job.out / state.release / FRONT,
        already=before in (state.status, *PUBLIC),
        not_done=() if drew else not_done(before, state, source_of(job.microdata), job.engine.name, job.hold),
    )


def left_behind(release: str, state: ReleaseState | None) -> str:
    """Return what an interrupted run leaves in the ledger, and what to run next, in one line."""
    again = "run the same command again"
    if state is None or state.refunded:
        return f"interrupted: nothing is reserved for release {release}; {again}"
    left = {
        "reserved": f"nothing was drawn; {again}, or prdp ledger abort {release} to give its charge back",
        "drawn": f"{again}: a complete draw is published, an incomplete one destroyed and drawn anew",
        "settled": f"nothing is left to do; prdp verify {state.out}/{release}",
    }
    what = left.get(state.status, f"{again} to finish")
    return f"interrupted: release {release} is {state.status} in the ledger: {what}"


def not_done(before: str, state: ReleaseState, microdata: str, engine: str, hold: bool) -> tuple[str, ...]:
    """Return what a call asks for and a release that was drawn before it, and was in the state `before`, has otherwise.

    `microdata` is their name in the ledger. A format that is missing is refused: `require_formats`.
    """
    lines = []
    made = state.reservation["source"]
    if microdata != made:
        lines.append(f"the microdata {microdata} were not read: the release was made from {made}")
    elif before == "drawn":
        lines.append("the microdata were not read again: an earlier run drew and staged these tables, which stand")
    if state.status in PUBLIC:
        used = Manifest.read(locate(state.out) / state.release)["engine"]["name"]
        if engine != used:
            lines.append(f"the engine {engine} was not used: the release was made with {used}")
        if hold and not state.hold:
            lines.append("it was not held for approval: it was published before that was asked")
    return tuple(lines)


def require_formats(formats: Collection[str], plan: Plan, state: ReleaseState, folder: Location) -> None:
    """Return if `folder`, published or staged, has every table in `formats`; raises StateError that says what to do."""
    for name in formats:
        files = [folder / "tables" / file for query, rows in sizes(plan) for file in FORMATS[name].files(query, rows)]
        if not all(file.is_file() for file in files):
            held = state.status == "held"
            when = "when an officer has approved it, " if held else ""
            raise StateError(
                f"release {state.release}: is {'held' if held else 'published'}, but was drawn without {name}: {when}"
                f"run prdp export {locate(state.out) / state.release} --to {name}"
            )


def sizes(plan: Plan) -> Iterator[tuple[str, int]]:
    """Yield each query's name and number of public cells."""
    for query in plan.queries:
        yield query.name, plan.domain.query_cells(query.by, query.where).size
