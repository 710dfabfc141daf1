"""Ratios, shares and change of published totals: of picked cells, or cell by cell."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Unpack

from pipeline.base.errors import PlanError, arg
from pipeline.plan.keys import Where
from pipeline.plan.load import load_plan
from pipeline.publication.product.derived import (
    Derived,
    Source,
    change_by_cell,
    change_of,
    ratio_by_cell,
    ratio_of,
    share_by_cell,
    share_of,
    total_of,
    write_table,
)
from pipeline.publication.reconcile.published_totals import Published
from prdp.declared import Arg, LocationLike, NewFolder, ReleaseFolders, documented, locations
from prdp.reconciled import Weights, cells_of, reconcile

CELLS = 'the cells, such as "naics2=31-33, state in 06,48"'
Releases = Sequence[LocationLike] | LocationLike


class Statistic(Weights, total=False):
    """A statistic of totals; for one of every cell of a table, tables stand where measures do."""

    total: Annotated[str, Arg("the total itself, or with --since its change", "MEASURE")]
    ratio: Annotated[str, Arg("one total over another, such as payroll/employment", "MEASURE/MEASURE")]
    share: Annotated[str, Arg("the share that --where has of --inside, or of all cells", "MEASURE")]
    since: Annotated[Releases, Arg("releases of before, to compare --total with", "OUT/RELEASE", several=True)]
    published: Annotated[bool, Arg("take totals as published, without reconciling them")]


@documented
def derive(
    releases: ReleaseFolders,
    *,
    where: Annotated[str | Where, Arg(CELLS, "CELLS", default="all")] = "",
    inside: Annotated[str | Where, Arg("the cells of the total of --share", "CELLS", default="all")] = "",
    mean: Annotated[bool, Arg("the best mean of all published tables of stable noise")] = False,
    **statistic: Unpack[Statistic],
) -> tuple[Derived, ...]:
    """Return a statistic of picked cells with standard error and interval; with `since` change and relative change.

    The interval holds the true statistic at least as often as it says; where none can be stated it is NaN and `notes`
    say why (docs/reconcile.md). It costs no record anything. Noise without a variance needs `published`.

    Raises:
        PlanError: Not just one of total, ratio and share; or the tables do not tell the cells, or their errors.
        StateError: A release's file is missing, changed or too many.
    """
    total, ratio, share, since, published, options = _split(statistic)
    kind = _one(total, ratio, share)
    if since is not None and kind != "total":
        raise PlanError(f"{arg('since')}: it goes with {arg('total')}")
    if inside and kind != "share":
        raise PlanError(f"{arg('inside')}: it goes with {arg('share')}")
    source, interval = _source(releases, published, options), _interval(options)
    cells = cells_of(where)
    if mean:
        if total is None or since is not None or not isinstance(source, Published):
            raise PlanError(
                f"{arg('mean')}: it goes with {arg('total')} and {arg('published')}, and without {arg('since')}"
            )
        return (total_of(source.mean(total, cells, interval), interval),)
    if total is not None and since is not None:
        return change_of(source, _source(since, published, options), total, cells, interval)
    if total is not None:
        return (total_of(source.total(total, cells, interval), interval),)
    if share is not None:
        return (share_of(source, share, cells, cells_of(inside), interval),)
    return (ratio_of(source, *_sides(ratio or ""), cells, interval),)


@documented
def derive_table(
    releases: ReleaseFolders,
    out: NewFolder,
    *,
    csv: Annotated[bool, Arg("write the table of --out as CSV too")] = False,
    **statistic: Unpack[Statistic],
) -> dict[str, Any]:
    """Write a statistic of every cell of a table, with standard errors and intervals; return what derived.json holds.

    Raises:
        PlanError: As for `derive`, or two tables have different cells.
        StateError: A release's file is missing, changed or too many, or `out` is neither absent nor empty.
    """
    total, ratio, share, since, published, options = _split(statistic)
    if (_one(total, ratio, share) == "total") != (since is not None):
        raise PlanError(f"{arg('since')}: with {arg('out')} it goes with {arg('total')}, and {arg('total')} with it")
    source, interval = _source(releases, published, options), _interval(options)
    if total is not None and since is not None:
        made = change_by_cell(source, _source(since, published, options), total, interval)
    elif share is not None:
        made = share_by_cell(source, share, interval)
    else:
        made = ratio_by_cell(source, *_sides(ratio or ""), interval)
    facts: dict[str, Any] = write_table(made, source.releases, Path(out), interval, csv)
    return facts


def _split(statistic: Statistic) -> tuple[Any, Any, Any, Any, bool, dict[str, Any]]:
    options: dict[str, Any] = {**statistic}
    total, ratio, share, since = (options.pop(name, None) for name in ("total", "ratio", "share", "since"))
    return total, ratio, share, since, options.pop("published", False), options


def _one(total: str | None, ratio: str | None, share: str | None) -> str:
    chosen = [name for name, of in (("total", total), ("ratio", ratio), ("share", share)) if of is not None]
    if len(chosen) != 1:
        raise PlanError("one of total, ratio and share is needed")
    return chosen[0]


def _sides(ratio: str) -> tuple[str, str]:
    numerator, sign, denominator = (part.strip() for part in ratio.partition("/"))
    if not (numerator and sign and denominator):
        raise PlanError(f"{arg('ratio', ratio)}: write one over the other, such as payroll/employment")
    return numerator, denominator


def _interval(options: dict[str, Any]) -> float:
    interval = float(options.get("interval", 0.95))
    if not 0 < interval < 1:
        raise PlanError(f"{arg('interval')} {interval:g}: a number above 0 and below 1 is needed")
    return interval


def _source(releases: Releases, published: bool, options: dict[str, Any]) -> Source:
    if not published:
        return reconcile(releases, **options).source
    unused = sorted(name for name, value in options.items() if value and name not in {"interval", "plans"})
    if unused:
        raise PlanError(f"{arg('published')}: {arg(unused[0])} says how tables are weighted, and none is")
    plans = [load_plan(Path(path)) for path in options.get("plans", ())]
    return Published(locations(releases, "release"), plans)
