"""Admission of a reservation: it stands already, it may be made, or it is refused.

It may be made where it agrees with its dataset's record and releases, and where its policy fits every limit that binds:
the plan's own, the dataset's, and its family's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pipeline.accounting.accountant import Charged, Counted, LimitExceeded, check, first_exceeded, named, tightest
from pipeline.accounting.left_out import without_left_out_test
from pipeline.accounting.references import Limit
from pipeline.canonical import canonical_json
from pipeline.errors import StateError
from pipeline.ledger.copies import require_no_copies
from pipeline.ledger.datasets import (
    Budget,
    fixed_by,
    members,
    require_like_records,
    require_same_facts,
    rules_of,
    same_microdata,
    silent_kin,
    with_wanted,
)
from pipeline.ledger.entries import closed_by, require_open
from pipeline.ledger.fold import ENDED, PUBLIC, ReleaseState, state_of
from pipeline.ledger.refusals import require_refusals_left
from pipeline.ledger.reservation import Reservation, limits_of, tests_of
from pipeline.ledger.summaries import Summaries
from pipeline.ledger.summary import counted
from pipeline.ledger.synthetic import require_one_kind
from udfs.numbers.exact import as_json, up_text


def require_fits(
    kept: Summaries,
    dataset: str,
    requested: Charged,
    own: Sequence[Limit],
    budgets: Mapping[str, Budget] | None = None,
) -> list[Limit]:
    """Return the limits of the dataset under which `requested` fits, instead of its own earlier charge if any.

    `own` are the limits of the plan, which bind on top of the dataset's and the family's; `budgets`: None for those of
    the ledger's releases. Raises BudgetRefused where one would be exceeded.
    """
    budgets = kept.kin if budgets is None else budgets
    budget = budgets.get(dataset)
    others = [state for state in kept.charged([dataset]) if state.release != requested.release]
    stated = list(tightest([*own, *binding(budget, others)]))
    check(stated, _counted(kept, [dataset], stated, requested.release), requested)
    if budget is not None and budget.family is not None:
        family = budgets[budget.family].stated
        check(family, _counted(kept, members(budgets, budget.family), family, requested.release), requested)
        return [*stated, *family]
    return stated


def _counted(
    kept: Summaries, datasets: Sequence[str], limits: Sequence[Limit], but: str | None = None
) -> list[Counted]:
    """Return all that counts against a budget of the datasets but one release, evaluated under the limits at once."""
    states = kept.charged(datasets, [limit.at for limit in limits])
    return [counted(state) for state in states if state.release != but]


def binding(budget: Budget | None, releases: Iterable[ReleaseState]) -> list[Limit]:
    """Return the limits that bind a dataset's next release, whatever its plan says: the dataset's own, if registered.

    Those of plans that were reserved before it was registered bind as well, for they were promised; an officer's
    `raise` lifts them. Their cells are those of the release that stated the limit; another's are taken at the worst.
    """
    if budget is not None and budget.raised is not None:
        return budget.stated
    return [*(budget.stated if budget else []), *of_plans(budget, releases)]


def of_plans(budget: Budget | None, releases: Iterable[ReleaseState]) -> list[Limit]:
    """Return the limits of the releases' plans that bind later ones: those from before the dataset was registered."""
    before = [state for state in releases if state.charges > 0 and (budget is None or state.since < budget.since)]
    first = {id(state.reservation): state for state in reversed(before)}  # releases in brief share what they say
    return [
        replace(limit.anywhere(), label=f"{limit.label} (a limit of release {state.release})")
        for state in before
        if first[id(state.reservation)] is state
        for limit in limits_of(state)
    ]


def require_covers(kept: Summaries, budgets: Mapping[str, Budget], wanted: Budget) -> None:
    """Raise BudgetRefused where more is spent already than a limit of `wanted`, or of the family that it joins."""
    mine = [wanted.name] if wanted.facts is not None else members(budgets, wanted.name)
    _require_covered(kept, wanted.stated, mine)
    if wanted.family is not None:
        kin = {*members(budgets, wanted.family), wanted.name}
        _require_covered(kept, budgets[wanted.family].stated, sorted(kin))


def _require_covered(kept: Summaries, limits: Sequence[Limit], datasets: Sequence[str]) -> None:
    exceeded = first_exceeded(limits, _counted(kept, datasets, limits), None)
    if exceeded is not None:
        raise LimitExceeded(
            f"the budget at {exceeded.limit.label}: rho {up_text(exceeded.spent)} is spent already by "
            f"{named(exceeded.by)}, more than the limit {as_json(exceeded.limit.rho)}: state a limit that covers it",
            exceeded,
        )


def standing(kept: Summaries, wanted: Reservation, registered_only: bool) -> ReleaseState | None:
    """Return the present state where `wanted` was reserved already, None where it was not, or was refunded.

    Raises StateError where the name is taken by something else or has ended, where the dataset's record disagrees, and
    where it is not registered but `registered_only`, and where the ledger is closed.
    """
    require_open(closed_by(kept.connection))
    state = state_of(kept.connection, wanted.release)
    if state is None or state.refunded or state.status in ("reserved", "drawn"):
        budgets = kept.budgets
        _require_agreement(budgets, wanted, registered_only)
        kin = with_wanted(budgets, kept.kin, wanted)
        require_no_copies(kept, wanted.dataset, wanted.fingerprints, kin)
        released = kept.charged([wanted.dataset])
        require_one_kind(wanted.dataset, wanted.synthetic, budgets.get(wanted.dataset), released)
    if state is None or state.refunded:
        return None
    if state.status in ENDED:
        raise StateError(f"release {wanted.release}: was {ENDED[state.status]}: choose another name")
    _require_same(state, wanted)
    if state.status in ("reserved", "drawn") and state.attempt is None:  # its microdata will be read
        require_refusals_left(kept, wanted.dataset, kept.budgets.get(wanted.dataset))
    return state


def require_reservable(kept: Summaries, wanted: Reservation) -> list[Limit]:
    """Return the limits under which `wanted`, which does not stand, may be reserved.

    Raises BudgetRefused where one would be exceeded, StateError where it disagrees with the dataset's releases.
    """
    others = kept.charged([wanted.dataset])
    _require_superseded(wanted, others)
    charging = [state for state in others if state.charges > 0]
    for state in [*charging[:1], *(state for state in others if state.charges == 0)]:  # the first fixes all facts
        facts = state.reservation["dataset_facts"]
        require_same_facts(wanted.dataset, fixed_by(state, facts), fixed_by(state, wanted.dataset_facts))
    budgets = kept.budgets
    require_refusals_left(kept, wanted.dataset, budgets.get(wanted.dataset))
    kin = with_wanted(budgets, kept.kin, wanted)
    silent = silent_kin(kin, wanted.dataset)
    releases = [*others, *(kept.charged(silent) if silent else [])]
    rules = rules_of(wanted.dataset_facts, wanted.plan)
    require_like_records(wanted.dataset, rules, kin, releases, "the plan")
    tests = tests_of(state_of(kept.connection, wanted.release))
    requested = Charged(wanted.release, wanted.policy, 1, (), tests)
    return require_fits(kept, wanted.dataset, requested, wanted.limits, kin)


def _require_agreement(budgets: Mapping[str, Budget], wanted: Reservation, registered_only: bool) -> None:
    """Raise StateError where a plan disagrees with its dataset's record, or uses what belongs to another one's."""
    budget = budgets.get(wanted.dataset)
    if budget is None:
        owner = next((b for b in budgets.values() if same_microdata(b.source, wanted.source)), None)
        if owner is not None:
            raise StateError(
                f"dataset {wanted.dataset}: its microdata {wanted.source} are those of the registered dataset "
                f"{owner.name}, {owner.source}: name that one"
            )
        if registered_only:
            raise StateError(
                f"dataset {wanted.dataset}: is not registered, which this site requires: "
                "have an officer run prdp ledger init"
            )
        return
    if budget.facts is None:
        raise StateError(f"dataset {wanted.dataset}: is the name of a family of datasets: name a dataset")
    require_same_facts(budget.name, budget.facts, wanted.dataset_facts)
    if wanted.source != budget.source:
        raise StateError(
            f"dataset {wanted.dataset}: its source is {budget.source} in the ledger, but {wanted.source} here: "
            "use that, or name another dataset"
        )


def _require_same(state: ReleaseState, wanted: Reservation) -> None:
    """Raise StateError where `wanted` is not what was reserved under its name, naming what differs."""
    for name, here in (("digest", wanted.digest), ("out", wanted.out)):
        there = state.reservation[name]
        if there != here:
            what = {"digest": "another plan (digest)", "out": "another output location"}[name]
            raise StateError(
                f"release {state.release}: is {state.status} with {what}: {there}, not {here}: "
                "go back to that, or choose another release name"
            )
    unfinished = state.status in ("reserved", "drawn")
    reserved_from = state.reservation.get("source")  # older entries name none
    if unfinished and reserved_from is not None and reserved_from != wanted.source:
        raise StateError(
            f"release {state.release}: is {state.status} for the microdata {reserved_from}, not {wanted.source}: "
            "go back to those, or abort and reserve anew"
        )
    # The noise must be drawn under the policy that was charged, so a new version may not finish what is undrawn.
    policy = wanted.policy if state.test is not None else without_left_out_test(wanted.policy)
    if unfinished and canonical_json(state.reservation["policy"]) != canonical_json(policy.to_json()):
        raise StateError(
            f"release {state.release}: this version of prdp charges the plan another policy than was reserved: "
            "finish with the version that reserved, or abort and choose another release name"
        )


def _require_superseded(wanted: Reservation, others: Sequence[ReleaseState]) -> None:
    """Raise StateError where what `wanted` supersedes is none of the dataset's `others` that were published."""
    published = {state.release for state in others if state.status in (*PUBLIC, "withdrawn")}
    if wanted.supersedes is not None and wanted.supersedes not in published:
        raise StateError(
            f"release {wanted.release}: supersedes {wanted.supersedes}, which is no published release "
            f"of dataset {wanted.dataset}: correct the name"
        )
