"""What a dataset's or family's releases cost a reference: by year, in all, and what its limits leave."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, NamedTuple

from pipeline.accounting.accountant import Charged, Counted, tightest, total
from pipeline.accounting.convert import DELTA, interpretation
from pipeline.accounting.interpretation import interpretation_text
from pipeline.accounting.references import Limit, Names, Reference, UnknownName, typed_reference
from pipeline.base.errors import PlanError, StateError, arg
from pipeline.ledger.admission import binding, of_plans
from pipeline.ledger.datasets import Budget, members, with_joined
from pipeline.ledger.entries import unknown
from pipeline.ledger.fold import ReleaseState
from pipeline.ledger.reservation import charged, tests_of
from pipeline.ledger.store import Ledger
from pipeline.ledger.summaries import Brief
from pipeline.plan.model import owner_of
from udfs.numbers.exact import as_json, bound_text, down_text, up_float

DIGITS = 17  # by which every double is told from the next


class Lost(NamedTuple):
    """A line of what a reference lost: in a year, or in all; or what the reference of a limit did, and has left."""

    kind: str
    name: str
    family: str | None
    year: int | None  # None: in all
    at: str
    releases: int
    spent: Fraction
    limit: Fraction | None = None
    left: Fraction | None = None

    @property
    def period(self) -> str:
        """The year, or "all"."""
        return str(self.year or "all")

    @property
    def values(self) -> tuple[Any, ...]:
        """The line for programs, its losses as doubles; spent is rounded up, left down."""
        limit, left = self.limit and as_json(self.limit), None if self.left is None else -up_float(-self.left)
        return *self[:3], self.period, self.at, self.releases, up_float(self.spent), limit, left

    def losses(self, digits: int = 6) -> tuple[str, str, str]:
        """Return spent, limit and left for people, or in DIGITS for files; spent is rounded up, left down."""
        limit = "" if self.limit is None else str(as_json(self.limit))
        return bound_text(self.spent, digits), limit, "" if self.left is None else down_text(self.left, digits)


class Charge(NamedTuple):
    """What a release charged in a year: itself, with tests that it pays for, or a test that stands alone."""

    year: int
    dataset: str
    release: str
    loss: Fraction


@dataclass(frozen=True)
class Spending:
    """What releases of a dataset, or of a family's datasets, cost the reference `at`; all losses are upper bounds.

    What `limit` leaves at its own reference is left to every smaller record. `promised` alone says what all releases
    lose together: later limits may have been chosen by what earlier ones showed (docs/mathematics.md, section 5).
    """

    dataset: str
    at: Reference
    spent: tuple[tuple[ReleaseState, Fraction], ...]  # every release that is charged, in order, and its loss
    limit: Limit | None  # the one that leaves least
    left: Fraction | None  # what later releases can cost at most; None: no limit binds
    promised: Limit | None  # the lowest that was fixed before the first release that it counts
    # by query, the share by which a mechanism's stated loss may be too high
    excess: tuple[dict[str, float | None], ...]
    least: tuple[Fraction, ...]  # what several records lose at least in some placement; 0: not known
    pure: tuple[Fraction | None, ...]
    tests: tuple[Fraction, ...]  # what of each loss the tests of records left out cost
    charges: tuple[Charge, ...]  # what was charged, in order
    limits: tuple[tuple[Limit, Fraction], ...]  # its own, without its family's, that cover `at`; what each leaves
    assumed: Mapping[str, Fraction]  # values in `at` that were not asked for, of measures that a limit names
    kind: str = "dataset"
    family: "Spending | None" = None

    @property
    def total(self) -> Fraction:
        """The accumulated loss."""
        return total(loss for _, loss in self.spent)

    @property
    def of_tests(self) -> Fraction:
        """What tests alone lost."""
        return total(self.tests)

    @property
    def epsilon(self) -> Fraction | None:
        """The accumulated pure loss; None where a release has none."""
        known = [loss for loss in self.pure if loss is not None]
        return total(known) if len(known) == len(self.pure) else None

    @property
    def means(self) -> dict[str, Any] | None:
        """What the promised limit implies, as (ε, δ) and the power of the best test; None where no limit is one."""
        if self.promised is None:
            return None
        return {"limit": _limit_json(self.promised)} | interpretation(None, up_float(self.promised.rho), None, DELTA)

    @property
    def means_text(self) -> str:
        """What the promised limit means, for people; "" without one."""
        means = self.means
        return "" if means is None else f"{interpretation_text(means)} at {means['size']:g}"

    @property
    def years(self) -> dict[int, tuple[int, Fraction]]:
        """By year, this one among them, how many releases were charged and what they lose.

        A release counts in the UTC year in which it was reserved, whenever it was drawn or published.
        """
        years = sorted({datetime.now(UTC).year, *(charge.year for charge in self.charges)})
        return {year: _sum(charge for charge in self.charges if charge.year == year) for year in years}

    @property
    def lost(self) -> list[Lost]:
        """What it has lost by year and in all, and what the reference of each limit has lost and has left."""
        of = self.kind, self.dataset, None if self.family is None else self.family.dataset
        years = [Lost(*of, year, self.at.label, *figures) for year, figures in self.years.items()]
        number, spent = _sum(self.charges)
        of_limits = (
            Lost(*of, None, limit.label, number, limit.rho - left, limit.rho, left) for limit, left in self.limits
        )
        return [*years, Lost(*of, None, self.at.label, number, spent), *of_limits]

    @property
    def by_member(self) -> "list[Spending]":
        """Of a family what each of its datasets has lost at the family's reference."""
        names = dict.fromkeys(charge.dataset for charge in self.charges if self.kind == "family")
        mine = {name: tuple(charge for charge in self.charges if charge.dataset == name) for name in names}
        own: dict[str, Any] = {"kind": "dataset", "family": self, "limits": ()}
        return [replace(self, dataset=name, charges=charges, **own) for name, charges in mine.items()]

    def to_json(self) -> dict[str, Any]:
        """The spending as JSON; spent is rounded up, left down."""
        above = self.family
        return {
            "dataset": self.dataset,
            "at": self.at.to_json(),
            "assumed": {name: as_json(value) for name, value in self.assumed.items()},
            "spent": up_float(self.total),
            "epsilon": _up(self.epsilon),
            "left_out_tests": up_float(self.of_tests),
            "years": self._years,
            "releases": [
                {"release": state.release, "state": state.status, "charges": state.charges, "rho": up_float(loss)}
                | {"epsilon": _up(pure), "left_out_tests": up_float(tests), "excess": shares}
                | ({"rho_found": -up_float(-least)} if least else {})
                for (state, loss), shares, least, pure, tests in zip(
                    self.spent, self.excess, self.least, self.pure, self.tests, strict=True
                )
            ],
            **self._left,
            "means": self.means,
            "family": above
            and {"family": above.dataset, "spent": up_float(above.total), "years": above._years, **above._left},
        }

    @property
    def _years(self) -> list[dict[str, Any]]:
        years = self.years.items()
        return [{"year": year, "releases": number, "spent": up_float(loss)} for year, (number, loss) in years]

    @property
    def _left(self) -> dict[str, Any]:
        return {
            "limit": self.limit and _limit_json(self.limit),
            "left": None if self.left is None else -up_float(-self.left),
            "limits": [
                _limit_json(limit) | {"spent": up_float(limit.rho - left), "left": -up_float(-left)}
                for limit, left in self.limits
            ],
        }


def lost(spent: Iterable[Spending]) -> list[Lost]:
    """Return the lines of all spendings, and after them those of their families, each once."""
    asked = [one for each in spent for one in each.by_member or [each]]
    families = [each.family for each in asked if each.family is not None]
    return list(dict.fromkeys(line for each in (*asked, *families) for line in each.lost))


def _sum(charges: Iterable[Charge]) -> tuple[int, Fraction]:
    mine = list(charges)
    return len({charge.release for charge in mine}), total(charge.loss for charge in mine)


def spendings(ledger: Ledger, text: str, dataset: str | None = None) -> list[Spending]:
    """Return the spending of every dataset, or of one dataset or family, at the reference that `text` names.

    A measure that it does not name, and a limit does, has the value of the smallest limit that covers it. Raises
    StateError where the dataset, or a measure of it, is unknown, PlanError where the reference names too few.
    """
    with ledger.summaries() as summaries:
        return spendings_of(summaries.budgets, summaries.states(), text, dataset)


def spendings_of(
    budgets: Mapping[str, Budget], of_all: Sequence[ReleaseState], text: str, dataset: str | None = None
) -> list[Spending]:
    """Return the same of the states of all releases: what those in brief share is evaluated once."""
    states = [state for state in of_all if state.counts]
    known = dict.fromkeys([*(b.name for b in budgets.values() if b.kind == "dataset"), *(s.dataset for s in states)])
    refunded = {state.dataset for state in of_all} - known.keys()
    if dataset in refunded or (dataset is None and refunded and not known):
        named = ", ".join(sorted(refunded)) if dataset is None else dataset
        raise StateError(
            f"{arg('at', text)}: nothing is spent: all releases of {named} were refunded, and no limit is registered"
        )
    if dataset is not None and dataset not in {**budgets, **known}:
        raise unknown("dataset", dataset, [*known, *refunded])
    if not known:
        raise StateError(f"{arg('at', text)}: the ledger holds no dataset")
    books = _Books(budgets, with_joined(budgets, states), states)
    asked = [dataset] if dataset else list(known)
    measures = sorted({measure for name in asked for measure in books.measures(name)})
    return [_spending(books, name, _typed(books, name, text, measures)) for name in asked]


@dataclass(frozen=True)
class _Books:
    budgets: Mapping[str, Budget]
    kin: Mapping[str, Budget]  # also the datasets that releases joined to a family
    states: Sequence[ReleaseState]  # that are charged
    families: dict[tuple[str, Reference], Spending] = field(default_factory=dict)  # that were added up already

    def datasets(self, name: str) -> set[str]:
        return set(members(self.kin, name)) if self.is_family(name) else {name}

    def is_family(self, name: str) -> bool:
        return name in self.budgets and self.budgets[name].kind == "family"

    def of(self, name: str) -> list[ReleaseState]:
        return [state for state in self.states if state.dataset in self.datasets(name)]

    def family(self, name: str) -> str | None:
        return self.kin[name].family if name in self.kin and not self.is_family(name) else None

    def facts(self, name: str) -> Mapping[str, Any]:
        known = self.kin[name].facts if name in self.kin else None
        return known or dict(self.of(name)[0].reservation["dataset_facts"])

    def measures(self, name: str) -> frozenset[str]:
        """Return the measures of a dataset and of all that are in one family with it."""
        over = self.family(name) or name
        limits = self.budgets[over].limits if over in self.budgets else ()
        facts = (self.facts(dataset)["measures"] for dataset in self.datasets(over))
        return frozenset[str]().union(*(limit.at.measures for limit in limits), *facts)


def _typed(books: _Books, dataset: str, text: str, measures: Sequence[str]) -> Reference:
    unit = books.budgets[dataset].unit if books.is_family(dataset) else str(books.facts(dataset)["unit"])
    listed = owner_of(unit) is not None
    try:
        reference = typed_reference(arg("at"), text, Names(measures), listed)
    except UnknownName as error:  # what a ledger holds is its state
        raise StateError(f"dataset {dataset}: {error}") from None
    if len(reference.records) > 1 and not listed:
        raise PlanError(f"{arg('at', text)}: the dataset's unit is the record: give one, without ;")
    return reference.of_measures(books.measures(dataset))


def _completed(
    at: Reference, limits: Sequence[Limit], releases: Sequence[Charged]
) -> tuple[Reference, Mapping[str, Fraction]]:
    """Return the reference with a value of each measure that a release or a limit names, and the values added.

    They are those of the smallest limit that covers it then; without one none is added.
    """
    needed = frozenset[str]().union(
        *(limit.at.measures for limit in limits), *(release.measures for release in releases)
    )
    missing, named = at.missing(needed), sorted(at.measures)
    fitting = []
    for limit in limits if missing else ():
        if not limit.at.missing(missing):
            values = {name: limit.at.largest(name) for name in missing}
            completed = at.with_values(values)
            if limit.at.covers(completed):
                fitting.append(([limit.at.largest(name) for name in named], limit.rho, completed, values))
    if not fitting:
        return at, {}
    _, _, completed, values = min(fitting, key=lambda fit: fit[:2])
    return completed, values


def _spending(books: _Books, name: str, asked: Reference) -> Spending:
    budget, mine = books.budgets.get(name), books.of(name)
    family = books.family(name)
    of_kin = [] if family is None else books.of(family)
    stated = budget.stated if budget is not None and books.is_family(name) else binding(budget, mine)
    limits = [(limit, mine) for limit in tightest(stated)]
    fixed = fixed_in_advance(budget, mine)
    if family is not None:
        limits += [(limit, of_kin) for limit in books.budgets[family].stated]
        fixed += fixed_in_advance(books.budgets[family], of_kin)
    costs = {  # releases in brief that were charged the same have the same object
        state.release: state.charged if isinstance(state, Brief) else charged(state, state.charges)
        for state in (*mine, *of_kin)
    }
    distinct = {id(cost): cost for cost in costs.values()}
    reference, assumed = _completed(asked, [limit for limit, _ in limits], list(distinct.values()))
    left = [
        (limit, limit.rho - _lost_at(limit.at.anywhere(), among, costs), among is mine)
        for limit, among in limits
        if limit.at.covers(reference)
    ]
    limit, least, _ = min(left, key=lambda bound: bound[1], default=(None, None, False))
    promised = min((bound for bound in fixed if bound.at.covers(reference)), key=lambda bound: bound.rho, default=None)
    figures: dict[int, _Figures] = {}
    for state in mine:
        cost = costs[state.release]
        figures[id(cost)] = figures.get(id(cost)) or _Figures.of(reference, cost)
    of_each = [figures[id(costs[state.release])] for state in mine]
    spent = tuple((state, each.loss) for state, each in zip(mine, of_each, strict=True))
    if family is not None and (family, reference) not in books.families:
        books.families[family, reference] = _spending(books, family, reference)
    return Spending(
        dataset=name,
        at=reference,
        spent=spent,
        limit=limit,
        left=least,
        promised=promised,
        excess=tuple(each.excess for each in of_each),
        least=tuple(each.least for each in of_each),
        pure=tuple(each.pure for each in of_each),
        tests=tuple(each.tests for each in of_each),
        charges=tuple(charge for pair in spent for charge in charges_of(*pair, reference)),
        limits=tuple((bound, rest) for bound, rest, own in left if own),
        assumed=assumed,
        kind="family" if books.is_family(name) else "dataset",
        family=None if family is None else books.families[family, reference],
    )


class _Figures(NamedTuple):
    """What one release cost a reference, as a Spending has it of each."""

    loss: Fraction
    excess: dict[str, float | None]
    least: Fraction
    pure: Fraction | None
    tests: Fraction

    @classmethod
    def of(cls, at: Reference, cost: Charged) -> "_Figures":
        loss = _loss(at, cost)  # first: it says what the reference must name
        excess = {query.name: cost.policy.excess_at(at, query.name) for query in cost.policy.queries}
        return cls(loss, excess, cost.attained_at(at), cost.pure_loss_at(at), cost.tests_loss_at(at))


def _lost_at(at: Reference, states: Sequence[ReleaseState], costs: Mapping[str, Charged]) -> Fraction:
    return total(_loss(at, state if isinstance(state, Brief) else costs[state.release]) for state in states)


def charges_of(state: ReleaseState, loss: Fraction, at: Reference) -> Iterator[Charge]:
    """Yield the parts of a release's loss, each with the year in which it was reserved: tests alone, and the rest."""
    alone = [test.loss_at(at.anywhere()) for test in tests_of(state)]
    for tested, cost in zip(state.tests_alone, alone, strict=True):
        yield Charge(int(tested.reserved_on[:4]), state.dataset, state.release, cost)
    if state.charges:
        yield Charge(int(state.reserved_on[:4]), state.dataset, state.release, loss - sum(alone, Fraction(0)))


def _limit_json(limit: Limit) -> dict[str, Any]:
    return {"at": limit.label, "rho": as_json(limit.rho)}


def _up(loss: Fraction | None) -> float | None:
    return None if loss is None else up_float(loss)


def fixed_in_advance(budget: Budget | None, states: Sequence[ReleaseState]) -> list[Limit]:
    """Return the limits that were stated before the first of the releases, and have bound all of them ever since.

    An officer's `raise` after a release states all limits anew, those of plans too.
    """
    seen = [number for state in states for number in (state.since, *(test.since for test in state.tests))]
    first = min(seen, default=None)
    if budget is not None and budget.raised is not None:
        return budget.stated if first is None or budget.raised < first else []
    registered = budget.stated if budget is not None and (first is None or budget.since < first) else []
    return [*registered, *of_plans(budget, [state for state in states if state.since == first])]


def _loss(at: Reference, release: Counted) -> Fraction:
    missing = at.missing(release.measures)
    if missing:
        raise PlanError(f"{arg('at', at.label)}: must also name {', '.join(missing)}, which {release.release} uses")
    return release.loss_at(at)
