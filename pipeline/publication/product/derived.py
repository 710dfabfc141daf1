"""Ratios, shares and change of totals of picked cells: what they are of, and intervals that hold as often as they say.

Totals come from published tables as they are or reconciled (published_totals.py, estimated_totals.py);
docs/mathematics.md, section 15.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isnan, sqrt
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from pipeline.base.errors import PlanError, arg
from pipeline.engines.writers import Written, key_pieces
from pipeline.plan.domain import Domain
from pipeline.plan.domain.cells import QueryCells
from pipeline.plan.domain.keys import Where
from pipeline.plan.structure import Structure
from pipeline.publication.manifest import write_manifest
from pipeline.publication.published_totals import CellTotals, Total
from pipeline.storage.paths import filled
from udfs.estimates import intervals
from udfs.estimates.intervals import Law, Statistics, Totals, ratio
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

    def table_sum(self, name: str) -> tuple[Totals, Floats]:
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
        raise PlanError(f"{arg('ratio')} {numerator}/{denominator}: the ratio of a total to itself is 1")
    sides = (numerator, where), (denominator, where)
    return _quotient(f"{numerator} per {denominator}", source, sides, interval)


def share_of(source: Source, of: str, where: Where, inside: Where, interval: float) -> Derived:
    """Return the share that picked cells have of the total of those that meet `inside` alone."""
    shared = where.keys() & inside.keys()
    if any(not set(where[level]) <= set(inside[level]) for level in shared):
        raise PlanError(f"{arg('share')}: the picked cells are not among those of the total")
    if dict(where) == dict(inside):
        raise PlanError(f"{arg('share')}: the picked cells are all of the total; {arg('where')} picks a part of it")
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
        changes = intervals.difference(one, two, k), intervals.relative_change(one, two, k)
    else:
        a, b = (_as_statistics(side.total(of, where, sqrt(interval))) for side in (after, before))
        apart = Statistics(a.value - b.value, a.standard_error, a.lower - b.upper, a.upper - b.lower)
        changes = apart, intervals.ratio_of_intervals(a, b).less(1)
    words = f"change of {of}", f"relative change of {of}"
    first, second = (_derived(word, one, interval, totals, notes) for word, one in zip(words, changes, strict=True))
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
        raise PlanError(f"{arg('since')}: attempt {min(attempts)} is on both sides: its noise is no independent noise")
    one, two = (source.structure.measures.get(of) for source in (after, before))
    if one is not None and two is not None and (one["type"], one["step"]) != (two["type"], two["step"]):
        raise PlanError(
            f"{arg('since')}: {of} has another type or step there: a change of units is no change of totals"
        )


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
        quotient = ratio(_as_totals(above), _as_totals(below), _multiplier(interval, above, rest), covariance)
    else:
        # intervals of one table's cells depend on each other: each may miss with half of what may miss
        coverage = (1 + interval) / 2 if above.tables == below.tables else sqrt(interval)
        one, two = (_as_statistics(source.total(of, where, coverage)) for of, where in sides)
        quotient = intervals.ratio_of_intervals(one, two)
    return _derived(words, quotient, interval, totals, ())


def _multiplier(interval: float, *totals: Total | CellTotals) -> float:
    law = intervals.combined(total.law for total in totals)
    return intervals.multiplier(1 - interval, law) + intervals.half_step(*(total.half_step for total in totals))


def _as_totals(total: Total) -> Totals:
    return Totals(np.array(total.value), np.array(total.variance))


def _as_statistics(total: Total) -> Statistics:
    value, lower, upper = (np.array(x) for x in (total.value, total.lower, total.upper))
    return Statistics(value, np.array(np.nan), lower, upper)


def _derived(
    words: str, figures: Statistics, interval: float, totals: Mapping[str, Total], notes: tuple[str, ...]
) -> Derived:
    if len({total.keys for total in totals.values()}) > 1:
        of_keys = (f"{name}: {', '.join(total.keys) or 'no key'}" for name, total in totals.items())
        notes = (*notes, f"they are of records with a listed code in other keys: {'; '.join(of_keys)}")
    value, error, lower, upper = (
        float(x) for x in (figures.value, figures.standard_error, figures.lower, figures.upper)
    )
    if isnan(lower):
        notes = (*notes, NOT_APART)
    elif any(total.law is Law.ANY and total.variance < inf for total in totals.values()):
        notes = (*notes, "noise that grows with the total: errors are those at the expected totals")
    return Derived(words, value, error, lower, upper, interval, totals, notes)


# Ratios, shares and change cell by cell: one more table, made of published or reconciled ones.

MANIFEST = "derived.json"


@dataclass(frozen=True, eq=False)
class DerivedTable:
    """A table of a statistic by cell; `notes` say what limits it."""

    name: str
    statistic: str
    cells: QueryCells
    figures: Mapping[str, Statistics]
    notes: tuple[str, ...]


def ratio_by_cell(source: Source, numerator: str, denominator: str, interval: float) -> DerivedTable:
    """Return the ratio of two tables of the same cells and different measures."""
    above = source.table(numerator, sqrt(interval))
    below = source.table(denominator, sqrt(interval))
    if (above.facts.by, dict(above.facts.where)) != (below.facts.by, dict(below.facts.where)):
        raise PlanError(f"{arg('ratio')} {numerator}/{denominator}: the two tables have different cells")
    if above.facts.statistic == below.facts.statistic:
        raise PlanError(f"{arg('ratio')} {numerator}/{denominator}: both tables are of {above.facts.statistic.label}")
    figures = {"": _ratio(above, below, interval)}
    return DerivedTable(f"{numerator}_per_{denominator}", "ratio", above.cells, figures, ())


def share_by_cell(source: Source, table: str, interval: float) -> DerivedTable:
    """Return the share that each cell of a table has of the sum of all its cells."""
    of = source.table(table, (1 + interval) / 2)
    if not of.facts.statistic.adds_up:
        raise PlanError(f"{arg('share', table)}: owners count once in each cell, so that its cells do not add up")
    if not of.finite:
        raise PlanError(f"{arg('share', table)}: its noise has no variance: pick cells by {arg('where')}")
    together, covariance = source.table_sum(table)
    rest = replace(of, totals=Totals(of.totals.value, together.variance + of.totals.variance - 2 * covariance))
    figures = {"": ratio(of.totals, together, _multiplier(interval, of, rest), covariance)}
    return DerivedTable(f"{table}_share", "share", of.cells, figures, ())


def change_by_cell(after: Source, before: Source, table: str, interval: float) -> DerivedTable:
    """Return the change of each cell since the other releases; cells whose codes are new there have none."""
    new, old = after.table(table, sqrt(interval)), before.table(table, sqrt(interval))
    if (new.facts.by, dict(new.facts.where)) != (old.facts.by, dict(old.facts.where)):
        raise PlanError(f"{arg('since')}: the table {table} has other levels or another filter there")
    require_apart(after, before, new.facts.statistic.measure or "")
    old = _picked(old, _numbers_of(new.cells, old.cells))
    if new.finite and old.finite:
        k = _multiplier(interval, new, old)
        changes = {
            "change_": intervals.difference(new.totals, old.totals, k),
            "": intervals.relative_change(new.totals, old.totals, k),
        }
    else:
        a, b = new.stated(), old.stated()
        changes = {"change_": Statistics(a.value - b.value, a.standard_error, a.lower - b.upper, a.upper - b.lower)}
        changes[""] = intervals.ratio_of_intervals(a, b).less(1)
    domains = after.structure.domain, before.structure.domain
    notes = comparability(*domains, new.facts.where, new.facts.by)
    return DerivedTable(f"{table}_change", "relative change, and change", new.cells, changes, notes)


def write_table(derived: DerivedTable, releases: list[dict[str, Any]], out: Path, interval: float, csv: bool) -> Any:
    """Write tables/<name>.parquet (and CSV) and derived.json, last, to a new or empty folder; return the latter."""
    with filled(out) as home:
        path = home / "tables" / f"{derived.name}.parquet"
        with Written(path, *([path.with_suffix(".csv")] if csv else [])) as made:
            for piece, keys in key_pieces(derived.cells):
                made.write(pa.table(keys | _figures(derived, piece)))
        facts = {
            "table": derived.name,
            "statistic": derived.statistic,
            "interval": interval,
            "releases": releases,
            "notes": list(derived.notes),
            "rows": derived.cells.size,
            "files": [file.facts(home) for file in made.files],
        }
        write_manifest(home, MANIFEST, facts)
    return facts


def _figures(derived: DerivedTable, piece: slice) -> dict[str, pa.Array]:
    columns = {}
    for prefix, of in sorted(derived.figures.items()):
        for name in ("value", "lower", "upper", "standard_error"):
            column = getattr(of, name)[piece]
            named = (prefix + name).replace("change_value", "change")
            columns[named] = pa.array(column, mask=np.isnan(column))
    return columns


def _ratio(above: CellTotals, below: CellTotals, interval: float) -> Statistics:
    if above.finite and below.finite:
        return ratio(above.totals, below.totals, _multiplier(interval, above, below))
    return intervals.ratio_of_intervals(above.stated(), below.stated())


def _numbers_of(new: QueryCells, old: QueryCells) -> Any:
    """Return the number in `old` of each cell of `new`, by its codes; −1 of those that it does not have."""
    positions = []
    for (level, (codes, indices)), axis in zip(new.keys(0, new.size).items(), old.axes, strict=False):
        position_of = {axis.codes[code]: position for position, code in enumerate(axis.kept.tolist())}
        assert axis.level == level
        positions.append(np.array([position_of.get(code, -1) for code in codes], dtype=np.int64)[indices])
    positions += [np.zeros(new.size, dtype=np.int64)] * (len(old.axes) - len(positions))
    return old.numbers(positions)


def _picked(table: CellTotals, numbers: Any) -> CellTotals:
    def taken(values: Floats) -> Floats:
        if not values.size:
            return np.full(len(numbers), np.nan)
        return np.where(numbers >= 0, values[np.maximum(numbers, 0)], np.nan)

    largest = float(table.totals.variance.max(initial=0.0))  # of a NaN value: whatever it is, NaN comes out
    variance = np.nan_to_num(taken(table.totals.variance), nan=largest, posinf=np.inf)
    totals = Totals(taken(table.totals.value), variance)
    ends = taken(table.ends[0]), taken(table.ends[1])
    return replace(table, totals=totals, ends=ends)
