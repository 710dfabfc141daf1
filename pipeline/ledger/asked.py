"""What the ledger answers to a wanted reservation: it stands already, it may be made, or it is refused."""

from sqlalchemy import Connection

from pipeline.accounting.accountant import BudgetLimit, Charged
from pipeline.errors import StateError
from pipeline.ledger.alike import require_like_records, rules_of, silent_kin
from pipeline.ledger.budget import charged_states, require_fits
from pipeline.ledger.datasets import budgets_of, require_agreement, require_same_facts
from pipeline.ledger.fold import ENDED, ReleaseState
from pipeline.ledger.reservation import Reservation, require_same, require_superseded
from pipeline.ledger.rows import state_of


def standing(connection: Connection, wanted: Reservation, registered_only: bool) -> ReleaseState | None:
    """Return the present state where `wanted` was reserved already, None where it was not, or was given back.

    Raises StateError where the name is taken by something else or has ended, where the dataset's record disagrees, and
    where it is not registered but `registered_only`.
    """
    state = state_of(connection, wanted.release)
    if state is None or state.refunded or state.status in ("reserved", "drawn"):
        require_agreement(budgets_of(connection), wanted, registered_only)
    if state is None or state.refunded:
        return None
    if state.status in ENDED:
        raise StateError(f"release {wanted.release}: was {ENDED[state.status]}: choose another name")
    require_same(state, wanted)
    return state


def require_reservable(connection: Connection, wanted: Reservation) -> list[BudgetLimit]:
    """Return the limits under which `wanted`, which does not stand, may be reserved.

    Raises BudgetRefused where one would be exceeded, StateError where it disagrees with the dataset's releases.
    """
    others = charged_states(connection, [wanted.dataset])
    require_superseded(wanted, others)
    if others:  # the first that counts fixes the dataset's facts
        require_same_facts(wanted.dataset, others[0].reservation["dataset_facts"], wanted.dataset_facts)
    budgets = budgets_of(connection)
    silent = silent_kin(budgets, wanted.dataset)
    told = [*others, *(charged_states(connection, silent) if silent else [])]
    rules = rules_of(wanted.dataset_facts, wanted.plan)
    require_like_records(wanted.dataset, rules, budgets, told, "the plan")
    return require_fits(connection, wanted.dataset, Charged(wanted.release, wanted.policy, 1), wanted.limits)
