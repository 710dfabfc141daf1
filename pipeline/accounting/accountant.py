"""The accountant: what releases of a dataset have spent at reference records, and whether one more fits.

A limit binds the records whose every measure is in magnitude at most the reference's, policies being monotone; one
above all references has no limit, only its accumulated policy. Where the unit is a firm, a reference is a list of
records, and binds the firms whose records can be matched one to one with records of the list, as large or larger.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from pipeline.accounting.groups import Firm, anywhere, firm_loss
from pipeline.accounting.policy import ORDERS, Floats, Place, PolicySum, Reference, added, record_curve
from pipeline.errors import BudgetRefused, PlanError
from udfs.losses.curve import of_zcdp
from udfs.numbers.exact import as_json, up_float, up_text

MOST_NAMED = 10  # releases in a refusal


@dataclass(frozen=True)
class BudgetLimit:
    """The loss that a record with the values `at` may accumulate; `places`: where in the domain (None: anywhere).

    For a firm `at` is its records, each with its own places.
    """

    at: Reference | Firm
    rho: Fraction
    label: str
    places: tuple[Place, ...] | None = None

    def without(self, measures: frozenset[str]) -> list[str]:
        """Return those of `measures` that the reference, or one of its records, does not name."""
        records = [row.at for row in self.at] if isinstance(self.at, tuple) else [self.at]
        return sorted(frozenset[str]().union(*(measures - record.keys() for record in records)))

    def anywhere(self) -> "BudgetLimit":
        """Return the limit at the worst place, as a release with other queries takes it."""
        return replace(self, places=None, at=anywhere(self.at) if isinstance(self.at, tuple) else self.at)

    def loss(self, policy: PolicySum) -> Fraction:
        """Return what the reference loses under `policy`, whose places are those of the limit."""
        return firm_loss(policy, self.at) if isinstance(self.at, tuple) else policy.loss_at(self.at, self.places)


@dataclass(frozen=True, eq=False)
class Certified:
    """Bounds at a reference as they were stated when a release was charged: ρ, and D_α at ORDERS where it is kept."""

    at: Reference | Firm
    rho: Fraction
    curve: Floats | None = None


@dataclass(frozen=True)
class Charged:
    """A release whose policy counts `times` times: once, or for every draw where draws may have been seen.

    `certified`: bounds that were stated when it was charged, by reference, at the worst place: none is ever lowered.
    """

    release: str
    policy: PolicySum
    times: int
    certified: tuple[Certified, ...] = ()

    def loss(self, limit: BudgetLimit) -> Fraction:
        """Return what the reference of `limit` has lost by this release, at its worst place."""
        wide = limit.anywhere()
        return self.times * self._bound(wide)

    def asked(self, limit: BudgetLimit) -> Fraction:
        """Return what the reference of `limit` would lose, in its own place, which is one of this release's."""
        return self.times * (self._bound(limit) if limit == limit.anywhere() else limit.loss(self.policy))

    def curve(self, at: Reference) -> Floats:
        """Return upper bounds of D_α at ORDERS that a record with the values `at` has lost, at its worst place.

        A bound once stated is not lowered: where ρ alone was stated for the reference, αρ is the least that counts.
        """
        stated = [known for known in self.certified if known.at == at]
        curves = [known.curve if known.curve is not None else of_zcdp(up_float(known.rho), ORDERS) for known in stated]
        return added([np.maximum.reduce([record_curve(self.policy, at), *curves])] * self.times)

    def _bound(self, wide: BudgetLimit) -> Fraction:
        return max([wide.loss(self.policy), *(known.rho for known in self.certified if known.at == wide.at)])


@dataclass(frozen=True)
class Exceeded:
    """A limit that does not fit: what is spent `before`, by which releases, and what was `asked` on top."""

    limit: BudgetLimit
    before: Fraction
    spent: tuple[tuple[str, Fraction], ...]
    asked: Fraction


def check(limits: Sequence[BudgetLimit], spent: Sequence[Charged], requested: Charged) -> None:
    """Return if `requested` fits every limit on top of `spent`; exact rational sums of upper bounds, no tolerance.

    Raises BudgetRefused naming the first failing reference, its limit, what is spent by which releases and what is
    requested; PlanError where a limit names too few measures to evaluate an earlier release.
    """
    found = first_exceeded(limits, spent, requested)
    if found is not None:
        raise BudgetRefused(
            f"refused by the budget at {found.limit.label}: requested rho {up_text(found.asked)}, spent "
            f"{up_text(found.before)} by {names(found.spent)}, limit {as_json(found.limit.rho)}; "
            "ask for less loss (more noise) or have the limit raised"
        )


def first_exceeded(
    limits: Sequence[BudgetLimit], spent: Sequence[Charged], requested: Charged | None
) -> Exceeded | None:
    """Return the first limit that `spent`, and `requested` on top, exceed; None where every limit holds."""
    for limit in limits:
        every = (*spent, requested) if requested else spent
        missing = limit.without(frozenset[str]().union(*(c.policy.measures for c in every)))
        if missing:
            raise PlanError(
                f"budget limit at {limit.label}: it does not name {', '.join(missing)}, "
                "which a release of the dataset uses, so it cannot be checked"
            )
        # An earlier release is taken at its worst place: its cells need not be this plan's.
        lost = tuple((c.release, c.loss(limit)) for c in spent)
        before = sum((loss for _, loss in lost), Fraction(0))
        asked = requested.asked(limit) if requested else Fraction(0)
        if before + asked > limit.rho:
            return Exceeded(limit, before, lost, asked)
    return None


def names(spent: Sequence[tuple[str, Fraction]]) -> str:
    """Return the releases with what each has spent, in words; of very many the largest."""
    if len(spent) > MOST_NAMED:
        largest = sorted(spent, key=lambda each: each[1], reverse=True)[:MOST_NAMED]
        return f"{names(largest)} and {len(spent) - MOST_NAMED} others"
    return ", ".join(f"{release} {up_text(loss)}" for release, loss in spent) or "no earlier release"


# Of several limits on one reference the lowest alone can be the one that is exceeded.


def tightest(limits: Iterable[BudgetLimit]) -> Sequence[BudgetLimit]:
    """Return the lowest limit on each reference and place, in the order in which references come first.

    All of `limits` hold where these do, whatever was spent. A dataset of n releases states n times its references;
    checking each of them against all n would take n² evaluations.
    """
    lowest: dict[Any, BudgetLimit] = {}
    for limit in limits:
        key = _reference(limit)
        if key not in lowest or limit.rho < lowest[key].rho:
            lowest[key] = limit
    return list(lowest.values())


def _reference(limit: BudgetLimit) -> Any:
    if isinstance(limit.at, tuple):
        return tuple((frozenset(row.at.items()), row.places, frozenset(row.cells.items())) for row in limit.at)
    return frozenset(limit.at.items()), limit.places
