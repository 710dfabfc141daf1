"""What a run asks of a ledger before it reads a record, and whether the ledger would let it."""

from dataclasses import dataclass

from pipeline.accounting.reference import limits_of, policy_of
from pipeline.attempts import recorded
from pipeline.build import code_digest
from pipeline.ledger.fold import PUBLIC, ReleaseState
from pipeline.ledger.reservation import Reservation
from pipeline.ledger.store import Ledger
from pipeline.microdata.pinned import Table, source_of
from pipeline.plan.model import Plan
from pipeline.publish import check_output_place
from pipeline.storage import Place


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be released, where from and where to, and in which ledger."""

    plan: Plan
    microdata: Place | Table
    out: Place
    ledger: Ledger
    staging: Place | None = None  # None: beside the ledger
    hold: bool = False
    registered_only: bool = False  # the dataset must be registered in the ledger

    @property
    def staging_root(self) -> Place:
        """Where this run stages what it draws."""
        return self.staging or self.ledger.staging_root


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
    """Return if the release can be published at its output place; raises StateError as `check_output_place`."""
    state = request.ledger.state(request.plan.release)
    chosen = state.attempt if state and state.status in PUBLIC else None
    check_output_place(request.out, request.plan.release, request.staging_root, chosen)


def check(request: Request) -> ReleaseState | None:
    """Return the state of a release that is reserved already, None where it would be now; reserves nothing.

    Raises BudgetRefused, PlanError and StateError where a run would before it reads a record. It promises nothing:
    another release may be reserved first.
    """
    require_free_place(request)
    return request.ledger.check(reservation_of(request), request.registered_only)
