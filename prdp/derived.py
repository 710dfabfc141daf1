"""Ratios, shares and change of published totals: of picked cells, or cell by cell."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import PlanError
from pipeline.plan.keys import Where
from pipeline.plan.load import load_plan
from pipeline.product.derived import Derived, Source, change_of, ratio_of, share_of, total_of
from pipeline.product.derived_tables import change_by_cell, ratio_by_cell, share_by_cell, write_table
from pipeline.product.published_totals import Published
from prdp.reconciled import cells_of, reconcile
from prdp.runs import LocationLike, location

Releases = Sequence[LocationLike] | LocationLike


def derive(
    releases: Releases,
    *,
    total: str | None = None,
    ratio: str | None = None,
    share: str | None = None,
    where: str | Where = "",
    inside: str | Where = "",
    since: Releases | None = None,
    published: bool = False,
    mean: bool = False,
    **options: Any,
) -> tuple[Derived, ...]:
    """Return a statistic of picked cells with standard error and interval; with `since` change and relative change.

    The interval holds the true statistic at least as often as it says; where none can be stated it is NaN and `notes`
    say why (docs/reconcile.md). It costs no record anything.

    Args:
        releases: The folders or URIs that hold release.json, of one dataset.
        total: A measure, or "records": its total.
        ratio: "payroll/employment": one total over another, of the same cells.
        share: A measure: the share that `where` has of `inside`.
        where: "naics2=31-33, state in 06,48", or codes by level: {"naics2": ["31-33"]}. Default: all cells.
        inside: Likewise, for `share`: the cells of the whole.
        since: Releases of before, with which `total` is compared.
        published: Whether totals are taken as published, each from the one table that tells it best, and not
            reconciled. Needed for noise without a variance.
        mean: Whether `total` is the best weighted mean of all published tables of stable noise of one alpha.
        options: interval (0.95), and those of `reconcile` that say how tables are weighted, for both sides.

    Raises:
        PlanError: Not just one of total, ratio and share; or the tables do not tell the cells, or their errors.
        StateError: A release's file is missing, changed or too many.
    """
    kind = _one(total, ratio, share)
    if since is not None and kind != "total":
        raise PlanError("--since: it goes with --total")
    if inside and kind != "share":
        raise PlanError("--inside: it goes with --share")
    source, interval = _source(releases, published, options), _interval(options)
    cells = cells_of(where)
    if mean:
        if total is None or since is not None or not isinstance(source, Published):
            raise PlanError("--mean: it goes with --total and --published, and without --since")
        return (total_of(source.mean(total, cells, interval), interval),)
    if total is not None and since is not None:
        return change_of(source, _source(since, published, options), total, cells, interval)
    if total is not None:
        return (total_of(source.total(total, cells, interval), interval),)
    if share is not None:
        return (share_of(source, share, cells, cells_of(inside), interval),)
    return (ratio_of(source, *_sides(ratio or ""), cells, interval),)


def derive_table(
    releases: Releases,
    out: str | Path,
    *,
    total: str | None = None,
    ratio: str | None = None,
    share: str | None = None,
    since: Releases | None = None,
    published: bool = False,
    csv: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Write a statistic of every cell of a table, with standard errors and intervals; return what derived.json holds.

    Args:
        releases: The folders or URIs that hold release.json, of one dataset.
        out: The folder to write, new or empty: tables/<name>.parquet and derived.json.
        total: A table, with `since`: the change of each cell.
        ratio: "payroll_state/employment_state": two tables of the same cells.
        share: A table: the share that each cell has of the sum of all.
        since: Releases of before.
        published: As for `derive`.
        csv: Whether to write the table as CSV too.
        options: As for `derive`.

    Raises:
        PlanError: As for `derive`, or two tables have different cells.
        StateError: A release's file is missing, changed or too many, or `out` is neither absent nor empty.
    """
    if (_one(total, ratio, share) == "total") != (since is not None):
        raise PlanError("--since: with --out it goes with --total, and --total with it")
    source, interval = _source(releases, published, options), _interval(options)
    if total is not None and since is not None:
        made = change_by_cell(source, _source(since, published, options), total, interval)
    elif share is not None:
        made = share_by_cell(source, share, interval)
    else:
        made = ratio_by_cell(source, *_sides(ratio or ""), interval)
    facts: dict[str, Any] = write_table(made, source.releases, Path(out), interval, csv)
    return facts


def _one(total: str | None, ratio: str | None, share: str | None) -> str:
    chosen = [name for name, of in (("total", total), ("ratio", ratio), ("share", share)) if of is not None]
    if len(chosen) != 1:
        raise PlanError("one of total, ratio and share is needed")
    return chosen[0]


def _sides(ratio: str) -> tuple[str, str]:
    numerator, sign, denominator = (part.strip() for part in ratio.partition("/"))
    if not (numerator and sign and denominator):
        raise PlanError(f"--ratio {ratio}: write one over the other, such as payroll/employment")
    return numerator, denominator


def _interval(options: dict[str, Any]) -> float:
    interval = float(options.get("interval", 0.95))
    if not 0 < interval < 1:
        raise PlanError(f"--interval {interval:g}: a number above 0 and below 1 is needed")
    return interval


def _source(releases: Releases, published: bool, options: dict[str, Any]) -> Source:
    if not published:
        return reconcile(releases, **options).source
    unused = sorted(name for name, value in options.items() if value and name not in {"interval", "plans"})
    if unused:
        raise PlanError(f"--published: --{unused[0].replace('_', '-')} says how tables are weighted, and none is")
    listed = [releases] if isinstance(releases, str | os.PathLike) else releases
    plans = [load_plan(Path(path)) for path in options.get("plans", ())]
    return Published([location(each, "release") for each in listed], plans)
