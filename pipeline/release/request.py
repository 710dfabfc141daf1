"""What is asked of a release before any record is read: the request, what it reserves, and where it may lie."""

from dataclasses import dataclass
from fractions import Fraction
from functools import partial

from pipeline.accounting.left_out import SHARE
from pipeline.build import code_digest
from pipeline.ledger.fold import PUBLIC, ReleaseState
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger
from pipeline.microdata.identity import Identity
from pipeline.plan.model import Plan
from pipeline.plan.placements import loss_found
from pipeline.plan.policy import left_out_test_of, limits_of, policy_of
from pipeline.plan.size import MOST_CELLS, require_size
from pipeline.preparation.pinned import Microdata, identity, source_of
from pipeline.preparation.same_files import require_own_files
from pipeline.release.attempts import name_of_root
from pipeline.release.mark import require_own
from pipeline.release.publish import require_publishable
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location

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
        found=partial(loss_found, plan, policy),
    )


def require_places(request: Request) -> None:
    """Return if the release can be staged and published where it is to be.

    Raises StateError as `require_publishable`, and where the staging location is another ledger's; PlanError where the
    release is too large.
    """
    require_size(request.plan, request.most_cells)
    state = request.ledger.state(request.plan.release)
    chosen = state.attempt if state and state.status in PUBLIC else None
    require_publishable(request.out, request.plan.release, request.staging_root, chosen)
    if state is None or state.refunded or state.status in TO_DRAW:
        require_own(request.ledger, request.staging_root)


def check(request: Request) -> ReleaseState | None:
    """Return the state of a release that is reserved already, None where it would be now; reserves nothing.

    Raises BudgetRefused, PlanError and StateError where a run would before it reads a record. It promises nothing:
    another release may be reserved first.
    """
    require_places(request)
    require_own_files(request.ledger, request.plan.dataset.name, request.microdata)
    return request.ledger.check(reservation_of(request), request.registered_only)
