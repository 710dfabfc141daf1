"""Whether a plan keeps its limits: totals against them, each table's share of the loss, and the errors to expect."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from math import ceil, floor, inf, isfinite, log10, sqrt
from typing import Any

from pipeline.accounting.calibrate import SCALES, scale_of
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.references import OWN_REMEDY, Limit, Reference
from pipeline.base.errors import BudgetRefused, in_a_line
from pipeline.plan.drafts import reconciled_errors
from pipeline.plan.model import Part, Plan, Query
from pipeline.plan.total_policy import limits_of, located, policy_of, require_measures
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.numbers.exact import as_json, bound_text, up_float

CELLS = (10, 1_000, 100_000)  # true totals of a small, a middle and a large cell, in the measure's unit
MEDIAN = Fraction(1, 2)


@dataclass(frozen=True, eq=False)
class Standing:
    """What all units lose at most that are no larger than a reference, against the plan's limit there.

    `limit` None: the plan has none at this reference. `tables`: the loss in each table, in its worst part; together
    they are at least `rho`, and more where a record cannot be in all tables.
    """

    at: Reference
    rho: Fraction
    limit: Fraction | None
    tables: Mapping[str, Fraction]

    @property
    def within(self) -> bool | None:
        """Whether the limit holds; None without one."""
        return None if self.limit is None else self.rho <= self.limit

    @property
    def used(self) -> float | None:
        """The share of the limit that is lost, rounded up: above 1 it is broken; None without a limit above 0."""
        return up_float(self.rho / self.limit) if self.limit else None

    @property
    def shares(self) -> dict[str, float]:
        """Each table's loss as a share of the total, largest first."""
        ordered = sorted(self.tables.items(), key=lambda each: -each[1])
        return {name: float(loss / self.rho) if self.rho else 0.0 for name, loss in ordered}

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON, losses rounded up."""
        limit = None if self.limit is None else as_json(self.limit)
        stated = {"at": self.at.to_json(), "rho": up_float(self.rho), "limit": limit}
        return stated | {"within": self.within, "used": self.used, "shares": self.shares}


def standings(plan: Plan, policy: PolicySum, references: Sequence[Reference] = ()) -> list[Standing]:
    """Return how the plan's limits stand, as a ledger without other releases checks them, then the `references`."""
    require_measures(policy, references)
    limits = [(limit.at, bound.at, limit.rho) for limit, bound in zip(plan.budget, limits_of(plan), strict=True)]
    limited = {stated.unordered for stated, _, _ in limits}
    others = [(each, located(plan, each, below=True), None) for each in references if each.unordered not in limited]
    policy.foresee([there for _, there, _ in (*limits, *others)])

    def tables(located_at: Reference) -> dict[str, Fraction]:
        return {query.name: policy.query_loss_at(located_at, query.name) for query in plan.queries}

    return [Standing(stated, policy.loss_at(there), rho, tables(there)) for stated, there, rho in (*limits, *others)]


def named_part(part: Part) -> dict[str, str]:
    """Return, as JSON, the name of a part; nothing of a query without parts."""
    return {} if part.name is None else {"part": part.name}


def with_mechanisms(query: Query, change: Callable[[Mechanism], Mechanism]) -> Query:
    """Return a query with the mechanism of each part changed."""
    return replace(query, parts=tuple(replace(part, mechanism=change(part.mechanism)) for part in query.parts))


def cell_errors(mechanism: Mechanism, total: float) -> dict[str, float | None]:
    """Return as JSON the median of |error| / total, and the standard error, of a released value at a true total > 0.

    null: infinite. Of the noise as it is drawn, whatever the microdata.
    """
    relative, standard = float(mechanism.error_quantile(total, MEDIAN)) / total, sqrt(mechanism.variance(total))
    return {
        "total": total,
        "median_relative_error": relative if isfinite(relative) else None,
        "standard_error": standard if isfinite(standard) else None,
    }


def table_errors(query: Query, totals: Sequence[float] = CELLS) -> list[dict[str, Any]]:
    """Return `cell_errors` of each part of a table at each of the totals."""
    return [named_part(part) | cell_errors(part.mechanism, total) for part in query.parts for total in totals]


def beside_reconciled(plan: Plan, query: Query, errors: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table's errors with `reconciled` beside each: the standard error that the lattice expects.

    null: infinite, or not known; where no other table tells, the released one's.
    """
    known, names = reconciled_errors(plan).get(query.name), [part.name for part in query.parts]
    return [
        {
            **each,
            "reconciled": each["standard_error"] if known is None else finite(known[names.index(each.get("part"))]),
        }
        for each in errors
    ]


def derived_error(plan: Plan, name: str) -> float | None:
    """Return the standard error to expect of a derived table; None where the lattice has none."""
    return finite(reconciled_errors(plan)[name][0])


def finite(number: float | None) -> float | None:
    """Return a number as JSON has it: null stands for an infinite one."""
    return number if number is not None and isfinite(number) else None


@dataclass(frozen=True, eq=False)
class Verdict:
    """Whether a plan keeps its limits by this release alone, and what would mend it where it does not."""

    plan: Plan
    standings: Sequence[Standing]
    remedies: "Sequence[Remedy]" = ()

    @property
    def within(self) -> bool | None:
        """Whether all limits hold; None where the plan has none."""
        kept = [each.within for each in self.standings if each.within is not None]
        return all(kept) if kept else None

    @cached_property
    def errors(self) -> list[tuple[str, list[dict[str, Any]]]]:
        """The errors to expect in small, middle and large cells by table, released and reconciled.

        A derived table has an infinite error as it is released: it is not.
        """
        measured = [
            (query.name, beside_reconciled(self.plan, query, table_errors(query))) for query in self.plan.queries
        ]
        none: dict[str, Any] = {"median_relative_error": None, "standard_error": None}
        return measured + [
            (
                each.name,
                [{"total": total} | none | {"reconciled": derived_error(self.plan, each.name)} for total in CELLS],
            )
            for each in self.plan.derived
        ]

    @property
    def broken(self) -> list[Standing]:
        """The limits that are broken, the worst first."""
        broken = [each for each in self.standings if each.within is False]
        return sorted(broken, key=lambda each: -(each.used or inf))

    def require_within(self) -> None:
        """Raise BudgetRefused where a limit is broken, naming the worst."""
        if self.broken:
            worst, *others = self.broken
            limit = f"rho {bound_text(worst.rho)}, limit {as_json(Fraction(worst.limit or 0))}"
            more = f", and {len(others)} more" if others else ""
            raise BudgetRefused(
                f"release {self.plan.release}: breaks its plan's budget at {in_a_line(worst.at.label)}: {limit}{more}; "
                f"{OWN_REMEDY}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as JSON."""
        return {
            "within_limits": self.within,
            "references": [each.to_json() for each in self.standings],
            "remedies": [each.to_json() for each in self.remedies],
            "tables": [{"name": name, "errors": errors} for name, errors in self.errors],
        }


def verdict(plan: Plan, references: Sequence[Reference] = ()) -> Verdict:
    """Return the verdict on a plan, at its limits and at the `references`; no microdata are read.

    Raises PlanError where a reference does not name every measure that a query sums.
    """
    policy = policy_of(plan)
    if not references and not plan.budget and not policy.measures:
        references = [Reference.of({}, listed=plan.dataset.owner is not None)]
    stand = standings(plan, policy, references)
    judged = Verdict(plan, stand)
    return replace(judged, remedies=remedies(plan, policy, list(judged.broken[0].shares))) if judged.broken else judged


# What would bring a plan back within its limits: a larger noise scale of one table, or of all tables alike. A proposal
# is computed by the plan's own total loss and verified by it once more, in the plan as it would then be.

DIGITS = 3  # of a proposed scale
A_DECADE = 9 * 10 ** (DIGITS - 1)  # decimals of so many digits from 1 to 10
LARGEST = 9 * A_DECADE  # the largest factor, 10⁹
MOST_TRIED = 8  # tables, of a limit at several records: there a total takes long, and is no sum


@dataclass(frozen=True)
class Remedy:
    """The noise scales of a table times `factor` keep all limits.

    `table` None: those of all tables. `parameter`, `before` and `after`: of one table with one mechanism, whose scale
    is rounded to three digits towards more noise; else None. `totals`: rho at each limit then.
    """

    table: str | None
    factor: Fraction
    parameter: str | None
    before: Fraction | None
    after: Fraction | None
    totals: tuple[Fraction, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        before, after = (None if value is None else as_json(value) for value in (self.before, self.after))
        stated = {"table": self.table, "factor": as_json(self.factor), "parameter": self.parameter}
        return stated | {"from": before, "to": after, "totals": [up_float(total) for total in self.totals]}


def remedies(plan: Plan, policy: PolicySum, tables: Sequence[str]) -> list[Remedy]:
    """Return the scale of one of the `tables`, tried in this order, then one factor for all, that keep all limits.

    Either may be missing, where no such noise does.
    """
    bounds = limits_of(plan)
    broken = [limit for limit in bounds if policy.loss_at(limit.at) > limit.rho]
    tried = (_remedy(plan, policy, broken, [table]) for table in _hopeful(policy, broken, tables))
    one = next((remedy for remedy in tried if remedy is not None), None)
    everything = _remedy(plan, policy, broken, list(tables)) if len(tables) > 1 else None
    return [each for each in (one, everything) if each is not None]


def _hopeful(policy: PolicySum, broken: Sequence[Limit], tables: Sequence[str]) -> Iterable[str]:
    """Return the tables without whose loss each limit may hold: a record's total is at most that much lower."""
    if any(limit.at.listed for limit in broken):
        return tables[:MOST_TRIED]
    above = [(limit.at, policy.loss_at(limit.at) - limit.rho) for limit in broken]
    return [table for table in tables if all(policy.query_loss_at(one, table) >= excess for one, excess in above)]


def _remedy(plan: Plan, policy: PolicySum, broken: Sequence[Limit], tables: Sequence[str]) -> Remedy | None:
    changed = frozenset(tables)
    whose = [query for query in plan.queries if query.name in changed]
    only = whose[0].mechanisms[0] if len(whose) == len(whose[0].parts) == 1 else None
    wider = partial(with_scale_times, rounded=only is not None)

    def held(factor: Fraction) -> bool:
        queries = (
            replace(query, mechanism=wider(query.mechanism, factor)) if query.name in changed else query
            for query in policy.queries
        )
        mended = replace(policy, queries=tuple(queries))
        return all(mended.loss_at(limit.at) <= limit.rho for limit in broken)

    factor = _least(held)
    if factor is None:
        return None
    queries = (
        with_mechanisms(query, partial(wider, factor=factor)) if query.name in changed else query
        for query in plan.queries
    )
    mended = replace(plan, queries=tuple(queries))
    of_mended, limits = policy_of(mended), limits_of(mended)
    totals = tuple(of_mended.loss_at(limit.at) for limit in limits)
    if any(total > limit.rho for total, limit in zip(totals, limits, strict=True)):
        return None
    parameter = None if only is None else scale_of(type(only))
    if only is None or parameter is None:
        return Remedy(tables[0] if len(tables) == 1 else None, factor, None, None, None, totals)
    after = with_scale_times(only, factor, rounded=True)
    return Remedy(tables[0], factor, parameter, getattr(only, parameter), getattr(after, parameter), totals)


def with_scale_times(mechanism: Mechanism, factor: Fraction, *, rounded: bool) -> Mechanism:
    """Return a mechanism of `factor` times the noise scale: as it is, or rounded to three digits towards more noise.

    A scale by which noise falls is divided, and rounded in any case. One without a scale is returned as it is. Raises
    ParameterError where the kind has no so wide noise.
    """
    name = scale_of(type(mechanism))
    if name is None or factor == 1:
        return mechanism
    scale = getattr(mechanism, name)
    if SCALES[name] < 0:
        return replace(mechanism, **{name: _rounded(scale / factor, floor)})
    return replace(mechanism, **{name: _rounded(scale * factor, ceil) if rounded else scale * factor})


def _rounded(number: Fraction, to_whole: Callable[[Fraction], int]) -> Fraction:
    unit = Fraction(10) ** (floor(log10(number)) - DIGITS + 1)
    return Fraction(to_whole(number / unit)) * unit


def _least(held: Callable[[Fraction], bool]) -> Fraction | None:
    """Return the least factor of three digits that `held` accepts, which 1 is not; None where there is none."""

    def enough(n: int) -> bool | None:
        try:
            return held(_decimal(n))
        except ParameterError:
            return None  # so much noise is none of its kind

    low, high = 0, A_DECADE // 4
    while (reached := enough(high)) is False:
        if high >= LARGEST:
            return None
        low, high = high, min(LARGEST, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        at_middle = enough(middle)
        low, high, reached = (middle, high, reached) if at_middle is False else (low, middle, at_middle)
    return _decimal(high) if reached else None


def _decimal(n: int) -> Fraction:
    decade, units = divmod(n, A_DECADE)
    return Fraction(10**decade) * (1 + Fraction(units, A_DECADE // 9))
