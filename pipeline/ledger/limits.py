"""What is spent and left by the limits that there are: of every dataset and family, at each limit's own reference."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from pipeline.accounting.accountant import tightest, total
from pipeline.accounting.references import Limit
from pipeline.ledger.admission import binding
from pipeline.ledger.datasets import Budget, members, with_joined
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.summary import counted
from udfs.numbers.exact import as_json, up_float


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

    def to_json(self) -> dict[str, Any]:
        """The limit as JSON; spent is rounded up, left down."""
        return {
            "at": self.limit.at.label,
            "whose": self.limit.label,
            "rho": as_json(self.limit.rho),
            "spent": up_float(self.total),
            "left": -up_float(-self.left),
            "releases": [{"release": state.release, "rho": up_float(loss)} for state, loss in self.spent],
        }


@dataclass(frozen=True)
class Account:
    """A dataset, registered or not, or a family of datasets: its limits, the lowest at each reference."""

    name: str
    kind: str
    budget: Budget | None
    limits: tuple[UnderLimit, ...]

    def to_json(self) -> dict[str, Any]:
        """The account as `prdp ledger show --json` has it."""
        limits = [each.to_json() for each in self.limits]
        return {"dataset": self.name, "state": "spending", "kind": self.kind, "limits": limits}


def accounts(budgets: Mapping[str, Budget], states: Sequence[ReleaseState]) -> list[Account]:
    """Return the account of every family and dataset that is registered or has a charged release, families first."""
    counting = [state for state in states if state.counts]
    releases = [(state, counted(state)) for state in counting]
    families = [budget.name for budget in budgets.values() if budget.kind == "family"]
    kin = with_joined(budgets, counting)
    found = []
    for name in dict.fromkeys([*families, *budgets, *(state.dataset for state in counting)]):
        budget = budgets.get(name)
        of_family = budget is not None and budget.kind == "family"
        among = members(kin, name) if of_family else [name]
        mine = [(state, release) for state, release in releases if state.dataset in among]
        limits = budget.stated if budget and of_family else binding(budget, [state for state, _ in mine])
        anywhere = ((limit, limit.at.anywhere()) for limit in tightest(limits))
        under = (UnderLimit(limit, tuple((s, release.loss_at(at)) for s, release in mine)) for limit, at in anywhere)
        found.append(Account(name, "family" if of_family else "dataset", budget, tuple(under)))
    return found
