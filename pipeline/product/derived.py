"""Ratios, shares and change of totals of picked cells: what they are of, and intervals that hold as often as they say.

Totals come from published tables as they are or reconciled (published_totals.py, estimated_totals.py);
docs/mathematics.md, section 15.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isnan, sqrt
from typing import Any, Protocol

import numpy as np

from pipeline.errors import PlanError
from pipeline.plan.domain import Domain
from pipeline.plan.keys import Where
from pipeline.plan.structure import Structure
from pipeline.product.published_totals import CellTotals, Total
from udfs.estimates.laws import half_step
from udfs.estimates.multipliers import Law, combined, multiplier
from udfs.estimates.ratios import Statistics, Totals, difference, ratio, ratio_of_intervals, relative_change
from udfs.numbers.arrays import Floats

NOT_APART = "no interval: the denominator is not told from 0"


class Source(Protocol):
    """Where totals come from."""

    @property
    def structure(self) -> Structure:
        """The dataset, its domain and measures."""

    @property
    def releases(self) -> list[dict[str, Any]]:
        """What it was made of."""

    def total(self, of: str, where: Where, coverage: float) -> Total:
        """Return an estimate whose `lower` and `upper` hold the total with the coverage."""

    def covariance(self, of: str, where: Where, other: str, other_where: Where) -> float:
        """Return the covariance of the errors of two totals."""

    def table(self, name: str, coverage: float) -> CellTotals:
        """Return a table's cells with intervals of at least the coverage."""

    def whole(self, name: str) -> tuple[Totals, Floats]:
        """Return the sum of a table's cells, and of each cell the covariance of its error with that of the sum."""


@dataclass(frozen=True, eq=False)
class Derived:
    """A statistic of totals: NaN stands for a standard error or an interval that cannot be stated; `notes` say why."""

    statistic: str
    value: float
    standard_error: float
    lower: float
    upper: float
    interval: float
    totals: Mapping[str, Total]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, null for what cannot be stated."""
        names = ("value", "standard_error", "lower", "upper")
        figures = {name: None if isnan(getattr(self, name)) else getattr(self, name) for name in names}
        totals = {name: total.to_json() for name, total in self.totals.items()}
        facts = {"statistic": self.statistic} | figures | {"interval": self.interval, "totals": totals}
        return facts | {"notes": list(self.notes)}


def total_of(total: Total, interval: float) -> Derived:
    """Return a total itself, whose interval has that coverage."""
    error = np.nan if total.standard_error is None else total.standard_error
    return Derived(f"total of {total.of}", total.value, error, total.lower, total.upper, interval, {"total": total})


def ratio_of(source: Source, numerator: str, denominator: str, where: Where, interval: float) -> Derived:
    """Return the ratio of two totals of the same cells, such as payroll per employee."""
    if numerator == denominator:
        raise PlanError(f"--ratio {numerator}/{denominator}: the ratio of a total to itself is 1")
    sides = (numerator, where), (denominator, where)
    return _quotient(f"{numerator} per {denominator}", source, sides, interval)


def share_of(source: Source, of: str, where: Where, inside: Where, interval: float) -> Derived:
    """Return the share that picked cells have of the total of those that meet `inside` alone."""
    shared = where.keys() & inside.keys()
    if any(not set(where[level]) <= set(inside[level]) for level in shared):
        raise PlanError("--share: the picked cells are not among those of the total")
    if dict(where) == dict(inside):
        raise PlanError("--share: the picked cells are all of the total; --where picks a part of it")
    sides = (of, dict(inside) | dict(where)), (of, inside)
    return _quotient(f"share of {of}", source, sides, interval)


def change_of(after: Source, before: Source, of: str, where: Where, interval: float) -> tuple[Derived, Derived]:
    """Return the change of a total between two sources, and the relative change (0.02: two per cent more).

    PlanError where the two share an attempt, or total different things.
    """
    require_apart(after, before, of)
    notes = comparability(after.structure.domain, before.structure.domain, where)
    new, old = (side.total(of, where, interval) for side in (after, before))
    totals = {"after": new, "before": old}
    if new.variance + old.variance < inf:
        one, two, k = _as_totals(new), _as_totals(old), _multiplier(interval, new, old)
        found = difference(one, two, k), relative_change(one, two, k)
    else:
        a, b = (_as_statistics(side.total(of, where, sqrt(interval))) for side in (after, before))
        apart = Statistics(a.value - b.value, a.standard_error, a.lower - b.upper, a.upper - b.lower)
        found = apart, ratio_of_intervals(a, b).less(1)
    words = f"change of {of}", f"relative change of {of}"
    first, second = (_derived(word, one, interval, totals, notes) for word, one in zip(words, found, strict=True))
    return first, second


def comparability(one: Domain, other: Domain, where: Where, by: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Say which keys have other codes in the picked cells, or at the levels of a table, than before, and how many."""
    notes = []
    for dimension in one.dimensions:
        before = other.keys.get(dimension.key)
        if before is None:
            notes.append(f"{dimension.key}: the releases before have no such key")
            continue
        level = next((level for level in by if level in dimension.levels), None)
        codes, codes_before = (
            {each.codes[i] for i in np.flatnonzero(each.mask(where))} if level is None else set(each.level_codes(level))
            for each in (dimension, before)
        )
        new, gone = codes - codes_before, codes_before - codes
        if new or gone:
            counts = f"of {len(codes | codes_before):,}, {len(new):,} new and {len(gone):,} gone"
            notes.append(f"{dimension.key}: its codes at the level {level or dimension.level} differ: {counts}")
    return tuple(notes)


def require_apart(after: Source, before: Source, of: str) -> None:
    """Return if two sources share no attempt and have one unit of a measure; raises PlanError."""
    attempts = {each["attempt"] for each in after.releases} & {each["attempt"] for each in before.releases}
    if attempts:
        raise PlanError(f"--since: attempt {min(attempts)} is on both sides: its noise is no independent noise")
    one, two = (source.structure.measures.get(of) for source in (after, before))
    if one is not None and two is not None and (one["type"], one["step"]) != (two["type"], two["step"]):
        raise PlanError(f"--since: {of} has another type or step there: a change of units is no change of totals")


def _quotient(
    words: str, source: Source, sides: tuple[tuple[str, Where], tuple[str, Where]], interval: float
) -> Derived:
    above, below = (source.total(of, where, interval) for of, where in sides)
    totals = {"numerator": above, "denominator": below}
    if above.variance + below.variance < inf:
        covariance = source.covariance(*sides[0], *sides[1])
        rest = (
            below
            if not covariance
            else replace(below, variance=max(below.variance + above.variance - 2 * covariance, 0))
        )
        found = ratio(_as_totals(above), _as_totals(below), _multiplier(interval, above, rest), covariance)
    else:
        # intervals of one table's cells depend on each other: each may miss with half of what may miss
        coverage = (1 + interval) / 2 if above.tables == below.tables else sqrt(interval)
        one, two = (_as_statistics(source.total(of, where, coverage)) for of, where in sides)
        found = ratio_of_intervals(one, two)
    return _derived(words, found, interval, totals, ())


def _multiplier(interval: float, *totals: Total) -> float:
    law = combined(total.law for total in totals)
    return multiplier(1 - interval, law) + half_step(*(total.half_step for total in totals))


def _as_totals(total: Total) -> Totals:
    return Totals(np.array(total.value), np.array(total.variance))


def _as_statistics(total: Total) -> Statistics:
    value, lower, upper = (np.array(x) for x in (total.value, total.lower, total.upper))
    return Statistics(value, np.array(np.nan), lower, upper)


def _derived(
    words: str, found: Statistics, interval: float, totals: Mapping[str, Total], notes: tuple[str, ...]
) -> Derived:
    if len({total.keys for total in totals.values()}) > 1:
        told = (f"{name}: {', '.join(total.keys) or 'no key'}" for name, total in totals.items())
        notes = (*notes, f"they are of records with a listed code in other keys: {'; '.join(told)}")
    value, error, lower, upper = (float(x) for x in (found.value, found.standard_error, found.lower, found.upper))
    if isnan(lower):
        notes = (*notes, NOT_APART)
    elif any(total.law is Law.ANY and total.variance < inf for total in totals.values()):
        notes = (*notes, "noise that grows with the total: errors are those at the expected totals")
    return Derived(words, value, error, lower, upper, interval, totals, notes)
