"""Admission of a reservation: it stands already, it may be made, or it is refused.

It may be made where it agrees with its dataset's record and releases, and where its policy fits every limit that binds:
the plan's own, the dataset's, and its family's.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from pipeline.accounting import accountant
from pipeline.accounting.accountant import (
    Charged,
    Counted,
    LimitExceeded,
    check,
    total,
    with_left_out_test,
    without_left_out_test,
)
from pipeline.accounting.references import Limit
from pipeline.base.canonical import canonical_json
from pipeline.base.errors import StateError
from pipeline.ledger import datasets
from pipeline.ledger.datasets import Budget, require_like_records
from pipeline.ledger.entries import closed_by, require_open
from pipeline.ledger.fold import ENDED, PUBLIC, ReleaseState, ended, state_of
from pipeline.ledger.microdata_rules import require_no_copies, require_one_kind, require_refusals_left
from pipeline.ledger.reservation import Reservation, limits_of, tests_of
from pipeline.ledger.summaries import Summaries, counted
from udfs.numbers.exact import as_json, bound_text, up_float


def require_fits(
    kept: Summaries, dataset: str, requested: Charged, own: Sequence[Limit], budgets: Mapping[str, Budget] | None = None
) -> list[Limit]:
    """Return the limits of the dataset under which `requested` fits, instead of its own earlier charge if any.

    `own` are the limits of the plan, which bind on top. Raises BudgetRefused where one would be exceeded.
    """
    budgets = kept.kin if budgets is None else budgets
    budget = budgets.get(dataset)
    others = [state for state in kept.charged([dataset]) if state.release != requested.release]
    stated = list(accountant.tightest([*binding(budget, others), *own]))  # of equal ones the plan's own is not named
    check(stated, _counted(kept, [dataset], stated, requested.release), requested)
    if budget is not None and budget.family is not None:
        family = budgets[budget.family].stated
        check(family, _counted(kept, datasets.members(budgets, budget.family), family, requested.release), requested)
        return [*stated, *family]
    return stated


def _counted(kept: Summaries, names: Sequence[str], limits: Sequence[Limit], but: str | None = None) -> list[Counted]:
    states = kept.charged(names, [limit.at for limit in limits])
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
        replace(
            limit.anywhere(),
            label=f"{limit.label} (a limit of release {state.release})",
            raised_by=datasets.raising(state.dataset)
            if budget
            else f"{datasets.registering(state.dataset)}, then prdp ledger raise",
        )
        for state in before
        if first[id(state.reservation)] is state
        for limit in limits_of(state)
    ]


def require_covers(kept: Summaries, budgets: Mapping[str, Budget], wanted: Budget) -> None:
    """Raise BudgetRefused where more is spent already than a limit of `wanted`, or of the family that it joins."""
    mine = [wanted.name] if wanted.facts is not None else datasets.members(budgets, wanted.name)
    _require_covered(kept, wanted.stated, mine, wanted.name)
    if wanted.family is not None:
        kin = {*datasets.members(budgets, wanted.family), wanted.name}
        _require_covered(kept, budgets[wanted.family].stated, sorted(kin), wanted.name)


def _require_covered(kept: Summaries, limits: Sequence[Limit], names: Sequence[str], wanted: str) -> None:
    exceeded = accountant.first_exceeded(limits, _counted(kept, names, limits), None)
    if exceeded is not None:
        own = exceeded.limit.raised_by == datasets.raising(wanted)
        mended = "state a limit that covers it" if own else f"have it raised first: {exceeded.limit.raised_by}"
        raise LimitExceeded(
            f"the budget at {exceeded.limit.label}: rho {bound_text(exceeded.spent)} is spent already by "
            f"{accountant.named(exceeded.by)}, more than the limit {as_json(exceeded.limit.rho)}: {mended}",
            exceeded,
        )


def standing(kept: Summaries, wanted: Reservation, registered_only: bool) -> ReleaseState | None:
    """Return the present state where `wanted` was reserved already, None where it was not, or was refunded.

    Raises StateError where the name is taken or has ended, the dataset's record disagrees, or the ledger is closed.
    """
    require_open(closed_by(kept.connection))
    state = state_of(kept.connection, wanted.release)
    if state is None or state.refunded or state.status in ("reserved", "drawn"):
        budgets = kept.budgets
        mend = datasets.mending(budgets.get(wanted.dataset), kept.states([wanted.dataset]))
        budget = budgets.get(wanted.dataset)
        if budget is not None and budget.facts is not None:
            datasets.require_same_facts(budget.name, budget.facts, wanted.dataset_facts, "the plan", mend)
        require_source(budgets, wanted.dataset, [wanted.source], registered_only, mend)
        kin = datasets.with_wanted(budgets, kept.kin, wanted, mend)
        require_no_copies(kept, wanted.dataset, wanted.fingerprints, kin)
        released = kept.charged([wanted.dataset])
        require_one_kind(wanted.dataset, wanted.synthetic, budget, released, mend)
    if state is None or state.refunded:
        return None
    if state.status in ENDED:
        raise StateError(ended(state))
    _require_same(state, wanted)
    if state.awaits_scan:
        require_refusals_left(kept, wanted, datasets.with_wanted(kept.budgets, kept.kin, wanted))
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
        datasets.require_same_facts(
            wanted.dataset, datasets.fixed_by(state, facts), datasets.fixed_by(state, wanted.dataset_facts), "the plan"
        )
    budgets = kept.budgets
    kin = datasets.with_wanted(budgets, kept.kin, wanted)
    require_refusals_left(kept, wanted, kin)
    silent = datasets.silent_kin(kin, wanted.dataset)
    releases = [*others, *(kept.charged(silent) if silent else [])]
    rules = datasets.rules_of(wanted.dataset_facts, wanted.plan)
    require_like_records(wanted.dataset, rules, kin, releases, "the plan")
    tests = tests_of(state_of(kept.connection, wanted.release))
    requested = Charged(wanted.release, wanted.policy, 1, (), tests)
    return require_fits(kept, wanted.dataset, requested, wanted.limits, kin)


def require_source(
    budgets: Mapping[str, Budget], dataset: str, names: Sequence[str | None], registered_only: bool, mend: str = ""
) -> None:
    """Raise StateError unless a dataset's microdata may lie at a place of these names, by its record alone.

    Messages have the first name: they say nothing of what lies there, for that was not looked at.
    """
    budget = budgets.get(dataset)
    if budget is None:
        owner = datasets.registered_at(budgets, names)
        if owner is not None:
            raise StateError(
                f"dataset {dataset}: its microdata {names[0]} are those of the registered dataset "
                f"{owner.name}, {owner.source}: name that one"
            )
        if registered_only:
            raise StateError(
                f"dataset {dataset}: is not registered, which this site requires: have an officer register it: "
                f"{datasets.registering(dataset)}"
            )
    elif budget.facts is None:
        raise StateError(f"dataset {dataset}: is the name of a family of datasets: name a dataset")
    elif budget.source not in names:
        raise StateError(
            f"dataset {dataset}: its source is {budget.source} in the ledger, but {names[0]} here: use that{mend}"
        )


def _require_same(state: ReleaseState, wanted: Reservation) -> None:
    for name, here, what in (
        ("digest", wanted.digest, "another plan (digest)"),
        ("out", wanted.out, "another output location"),
    ):
        there = state.reservation[name]
        if there != here:
            raise StateError(
                f"release {state.release}: is {state.status} with {what}: {there}, not {here}: go back to that"
                + (f", or give its charge back: prdp ledger abort {state.release}" if state.draws == 0 else "")
            )
    unfinished = state.status in ("reserved", "drawn")
    reserved_from = state.reservation.get("source")  # older entries name none
    if unfinished and reserved_from is not None and reserved_from != wanted.source:
        raise StateError(
            f"release {state.release}: is {state.status} for the microdata {reserved_from}, not {wanted.source}: "
            "go back to those, or abort and reserve anew"
        )
    # The noise must be drawn under the policy that was charged, so a new version may not finish what is undrawn.
    # Its test of records left out is the reserved one, of other noise or none in older versions.
    policy = without_left_out_test(wanted.policy)
    if state.test is not None:
        policy = with_left_out_test(policy, state.test)
    if unfinished and canonical_json(state.reservation["policy"]) != canonical_json(policy.to_json()):
        raise StateError(
            f"release {state.release}: this version of prdp charges the plan another policy than was reserved: "
            f"finish with the version that reserved it, or end it: prdp ledger abort {state.release}"
        )


def _require_superseded(wanted: Reservation, others: Sequence[ReleaseState]) -> None:
    published = {state.release for state in others if state.status in (*PUBLIC, "withdrawn")}
    if wanted.supersedes is not None and wanted.supersedes not in published:
        raise StateError(
            f"release {wanted.release}: supersedes {wanted.supersedes}, which is no published release "
            f"of dataset {wanted.dataset}: correct the name"
        )


# What is spent and left by the limits that there are: of every dataset and family, at each limit's own reference.


@dataclass(frozen=True)
class UnderLimit:
    """A limit, and what each charged release costs its reference, at the worst cells; losses are upper bounds."""

    limit: Limit
    spent: tuple[tuple[ReleaseState, Fraction], ...]

    @property
    def total(self) -> Fraction:
        """The accumulated loss."""
        return total(loss for _, loss in self.spent)

    @property
    def left(self) -> Fraction:
        """What later releases can cost the reference at most."""
        return self.limit.rho - self.total

    def to_json(self, *, by_release: bool = True) -> dict[str, Any]:
        """The limit as JSON; spent is rounded up, left down."""
        releases = [{"release": state.release, "rho": up_float(loss)} for state, loss in self.spent]
        return {
            "at": self.limit.at.label,
            "whose": self.limit.label,
            "rho": as_json(self.limit.rho),
            "spent": up_float(self.total),
            "left": -up_float(-self.left),
        } | ({"releases": releases} if by_release else {})


@dataclass(frozen=True)
class Account:
    """A dataset, registered or not, or a family of datasets: its limits, the lowest at each reference.

    `family`: that of a dataset, whose limits bind it too, over the losses of all members.
    """

    name: str
    kind: str
    budget: Budget | None
    limits: tuple[UnderLimit, ...]
    family: "Account | None" = None

    def to_json(self) -> dict[str, Any]:
        """The account as `prdp ledger show --json` has it."""
        limits = [limit.to_json() for limit in self.limits]
        above = self.family
        family = above and {"family": above.name, "limits": [limit.to_json(by_release=False) for limit in above.limits]}
        return {"dataset": self.name, "state": "spending", "kind": self.kind, "limits": limits, "family": family}


def accounts(budgets: Mapping[str, Budget], states: Sequence[ReleaseState]) -> list[Account]:
    """Return the account of every family and dataset that is registered or has a charged release, families first."""
    counting = [state for state in states if state.counts]
    releases = [(state, counted(state)) for state in counting]
    families = [budget.name for budget in budgets.values() if budget.kind == "family"]
    kin = datasets.with_joined(budgets, counting)
    known: dict[str, Account] = {}
    for name in dict.fromkeys([*families, *budgets, *(state.dataset for state in counting)]):
        budget = budgets.get(name)
        of_family = budget is not None and budget.kind == "family"
        among = datasets.members(kin, name) if of_family else [name]
        mine = [(state, release) for state, release in releases if state.dataset in among]
        limits = budget.stated if budget and of_family else binding(budget, [state for state, _ in mine])
        anywhere = ((limit, limit.at.anywhere()) for limit in accountant.tightest(limits))
        under = (
            UnderLimit(limit, tuple((s, release.loss_at(reference)) for s, release in mine))
            for limit, reference in anywhere
        )
        family = None if of_family or name not in kin else known.get(kin[name].family or "")
        known[name] = Account(name, "family" if of_family else "dataset", budget, tuple(under), family)
    return list(known.values())
