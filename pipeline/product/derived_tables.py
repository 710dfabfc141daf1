"""Ratios, shares and change cell by cell: one more table, made of published or reconciled ones."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.errors import PlanError
from pipeline.plan.cells import QueryCells
from pipeline.product.derived import Source, comparability, require_apart
from pipeline.product.files import PIECE, written
from pipeline.product.published_totals import CellTotals
from pipeline.storage.new_folder import filled, require_no_release
from udfs.estimates.laws import half_step
from udfs.estimates.multipliers import combined, multiplier
from udfs.estimates.ratios import Statistics, Totals, difference, ratio, ratio_of_intervals, relative_change
from udfs.numbers.arrays import Floats

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
        raise PlanError(f"--ratio {numerator}/{denominator}: the two tables have different cells")
    if above.facts.statistic == below.facts.statistic:
        raise PlanError(f"--ratio {numerator}/{denominator}: both tables are of {above.facts.statistic.label}")
    found = _ratio(above, below, interval)
    return DerivedTable(f"{numerator}_per_{denominator}", "ratio", above.cells, {"": found}, ())


def share_by_cell(source: Source, table: str, interval: float) -> DerivedTable:
    """Return the share that each cell of a table has of the sum of all its cells."""
    of = source.table(table, (1 + interval) / 2)
    if not of.finite:
        raise PlanError(f"--share {table}: its noise has no variance: pick cells by --where")
    whole, covariance = source.whole(table)
    rest = replace(of, totals=Totals(of.totals.value, whole.variance + of.totals.variance - 2 * covariance))
    found = ratio(of.totals, whole, _multiplier(interval, of, rest), covariance)
    return DerivedTable(f"{table}_share", "share", of.cells, {"": found}, ())


def change_by_cell(after: Source, before: Source, table: str, interval: float) -> DerivedTable:
    """Return the change of each cell since the other releases; cells whose codes are new there have none."""
    new, old = after.table(table, sqrt(interval)), before.table(table, sqrt(interval))
    if (new.facts.by, dict(new.facts.where)) != (old.facts.by, dict(old.facts.where)):
        raise PlanError(f"--since: the table {table} has other levels or another filter there")
    require_apart(after, before, new.facts.statistic.measure or "")
    at = _places(new.cells, old.cells)
    old = _at(old, at)
    if new.finite and old.finite:
        k = _multiplier(interval, new, old)
        found = {"change_": difference(new.totals, old.totals, k), "": relative_change(new.totals, old.totals, k)}
    else:
        a, b = new.stated(), old.stated()
        found = {"change_": Statistics(a.value - b.value, a.standard_error, a.lower - b.upper, a.upper - b.lower)}
        found[""] = ratio_of_intervals(a, b).less(1)
    domains = after.structure.domain, before.structure.domain
    notes = comparability(*domains, new.facts.where, new.facts.by)
    return DerivedTable(f"{table}_change", "relative change, and change", new.cells, found, notes)


def write_table(derived: DerivedTable, releases: list[dict[str, Any]], out: Path, interval: float, csv: bool) -> Any:
    """Write tables/<name>.parquet (and CSV) and derived.json, last, to a new or empty folder; return the latter."""
    require_no_release(out)
    with filled(out) as home:
        path = home / "tables" / f"{derived.name}.parquet"
        with written(path, *([path.with_suffix(".csv")] if csv else [])) as made:
            for start in range(0, max(derived.cells.size, 1), PIECE):
                stop = min(start + PIECE, derived.cells.size)
                made.write(_rows(derived, start, stop))
        facts = {
            "table": derived.name,
            "statistic": derived.statistic,
            "interval": interval,
            "releases": releases,
            "notes": list(derived.notes),
            "rows": derived.cells.size,
            "files": [file.facts(home) for file in made.files],
        }
        text = json.dumps(facts, ensure_ascii=False, indent=2, allow_nan=False) + "\n"
        (home / MANIFEST).write_text(text, encoding="utf-8")
    return facts


def _rows(derived: DerivedTable, start: int, stop: int) -> pa.Table:
    columns = {
        level: pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(codes, pa.string())).cast(pa.string())
        for level, (codes, indices) in derived.cells.keys(start, stop).items()
    }
    for prefix, of in sorted(derived.figures.items()):
        for name in ("value", "lower", "upper", "standard_error"):
            column = getattr(of, name)[start:stop]
            named = (prefix + name).replace("change_value", "change")
            columns[named] = pa.array(column, mask=np.isnan(column))
    return pa.table(columns)


def _ratio(above: CellTotals, below: CellTotals, interval: float) -> Statistics:
    if above.finite and below.finite:
        return ratio(above.totals, below.totals, _multiplier(interval, above, below))
    return ratio_of_intervals(above.stated(), below.stated())


def _multiplier(interval: float, *totals: CellTotals) -> float:
    return multiplier(1 - interval, combined(each.law for each in totals)) + half_step(*(t.half_step for t in totals))


def _places(new: QueryCells, old: QueryCells) -> Any:
    """Return the number in `old` of each cell of `new`, by its codes; −1 of those that it does not have."""
    positions = []
    for (level, (codes, indices)), axis in zip(new.keys(0, new.size).items(), old.axes, strict=False):
        at = {axis.codes[code]: position for position, code in enumerate(axis.kept.tolist())}
        assert axis.level == level
        positions.append(np.array([at.get(code, -1) for code in codes], dtype=np.int64)[indices])
    positions += [np.zeros(new.size, dtype=np.int64)] * (len(old.axes) - len(positions))
    return old.numbers(positions)


def _at(table: CellTotals, at: Any) -> CellTotals:
    def taken(values: Floats) -> Floats:
        if not values.size:
            return np.full(len(at), np.nan)
        return np.where(at >= 0, values[np.maximum(at, 0)], np.nan)

    largest = float(table.totals.variance.max(initial=0.0))  # of a NaN value: whatever it is, NaN comes out
    variance = np.nan_to_num(taken(table.totals.variance), nan=largest, posinf=np.inf)
    totals = Totals(taken(table.totals.value), variance)
    ends = taken(table.ends[0]), taken(table.ends[1])
    return replace(table, totals=totals, ends=ends)
