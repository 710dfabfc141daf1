"""A trial for people: at most 60 lines of 80 columns, whatever the number of tables and plans."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pipeline.base.plain import SHOWN, WIDTH, aligned, cut, reference_text, wrapped
from udfs.numbers.exact import bound_text

LINES: Final = 60
MOST_DERIVED = 6  # tables that are named
MOST_SIZES = 6  # classes of totals in the opening
ALL = "all above 0"
FEWEST = 2  # classes of a table that are worth a line
DRAWN: Final = ("true total", "cells", "bias", "±", "error", "median", "90 %", "≤10 %", "cover", "< 0")
EXPECTED: Final = ("true total", "cells", "standard error")
OF_DRAWN: Final = (
    "bias: mean error, ± as draws are few; error: mean absolute error; median, 90 %, ≤10 %: of the relative error; "
    "cover: share of intervals that hold the total; < 0: negative values."
)

Json = Mapping[str, Any]


def trial_text(document: Json) -> str:
    """Return the trial for people."""
    plans = document["plans"]
    names = [str(i) if len(plans) > 1 else "" for i in range(1, len(plans) + 1)]
    records = plans[0]["records"]
    made = "" if records["made"] in (None, records["in_domain"]) else f" of {records['made']:,}"
    scope = f"{records['in_domain']:,}{made} in the plan's domain, {document['draws']} draws"
    head = [*wrapped(f"Trial on {document['microdata']['label']}, {scope}. Nothing was charged."), ""]
    head += [*_seen(names, plans), ""]
    for name, plan in zip(names, plans, strict=True):
        head += _limits(name, plan)
    tail = ["", *_losses(names, plans), *_needs(names, plans)]
    tail += wrapped(OF_DRAWN) if document["draws"] else []
    return "\n".join([*head, *_tables(names, plans, document["draws"], LINES - len(head) - len(tail)), *tail])


def _seen(names: Sequence[str], plans: Sequence[Json]) -> Iterator[str]:
    """Yield what the public will see: the share of usable cells, by size of their total."""
    yield from wrapped(
        "What the public will see: cells that can be used, with a standard error of at most "
        f"{_percent(plans[0]['usable']['within'])} of their total, as released and reconciled (≈)"
    )
    by_size = [
        {row["total"]: row for row in (*plan["usable"]["sizes"], plan["usable"] | {"total": ALL})} for plan in plans
    ]
    labels = [row["total"] for row in plans[0]["usable"]["sizes"]]
    heads = (f"{head} {name}".rstrip() for name in names for head in ("cells", "released", "reconciled"))
    rows = [["true total", *heads]]
    for label in [*_spread(labels, MOST_SIZES), ALL]:
        rows.append([label])
        for sizes in by_size:
            row = sizes.get(label, {"cells": 0, "released": None, "reconciled": None})
            rows[-1] += [_count(row["cells"]), *(_percent(row[way]) for way in ("released", "reconciled"))]
    yield from (line[:WIDTH] for line in aligned(rows, numbers=True, indent=2, gap=1))


def _limits(name: str, plan: Json) -> list[str]:
    title = f"plan {name}, {plan['file']}" if name else f"plan {plan['release']}"
    lines = [f"{title}: {len(plan['tables'])} tables, {sum(t['cells'] for t in plan['tables']):,} cells"]
    for limit in plan["limits"][:4]:
        verdict = "kept" if limit["within"] else "BROKEN"
        lines += wrapped(
            f"  limit {limit['limit']} {verdict}: rho {bound_text(limit['rho'])} at {reference_text(limit['at'])}"
        )[:2]
    if len(plan["limits"]) > 4:
        broken = sum(not limit["within"] for limit in plan["limits"])
        lines.append(f"  {len(plan['limits'])} limits in all, {broken} broken")
    mean = " → ".join(_percent(plan["usable"][f"mean_{way}"]) for way in ("released", "reconciled"))
    lines.append(f"  usable cells of tables on average, released → reconciled: {mean}")
    for table in plan["derived"][:MOST_DERIVED]:
        lines.append(f"  {table['name'][:30]}: derived, {_worth(table)}"[:WIDTH])
    return lines


def _worth(table: Json) -> str:
    """Return a table's standard error and share of usable cells, released → reconciled; of parts the noisiest."""
    noisiest = max(table["errors"], key=lambda each: each["standard_error"] or 0)
    names = ("standard_error", "reconciled")
    error = " → ".join(_number(noisiest[name]) for name in names)
    usable = " → ".join(_percent(table["usable"][way]) for way in ("released", "reconciled"))
    return f"± {error}, usable {usable}"


def _tables(names: Sequence[str], plans: Sequence[Json], draws: int, room: int) -> list[str]:
    """Return as many tables as there is room for, each with as many classes."""
    of_name: dict[str, dict[str, Json]] = {}
    for plan, name in zip(plans, names, strict=True):
        for table in plan["tables"]:
            of_name.setdefault(table["name"], {})[name] = table
    header = DRAWN if draws else EXPECTED
    room -= 2  # the header, and a line for what is left out
    each = max(room // len(of_name) - 1, FEWEST * len(plans))
    shown = list(of_name.items())[: max(1, room // (each + 1))]
    rows: list[Sequence[str]] = [(header[0], "#", *header[1:]) if len(plans) > 1 else header]
    titles: dict[int, str] = {}
    for table_name, of_plans in shown:
        first = next(iter(of_plans.values()))
        title, worth = f"{table_name}: {first['statistic']} by {' × '.join(first['by'])}", _worth(first)
        titles[len(rows)] = f"{cut(title, WIDTH - len(worth) - 2)}  {worth}" if len(plans) == 1 else cut(title, WIDTH)
        labels = [row["total"] for row in first["classes"] if row["total"] != "all"]
        for label in _spread(labels, max(1, each // len(plans))):
            for name, table in of_plans.items():
                row = next((r for r in table["classes"] if r["total"] == label), None)
                if row is not None:
                    figures = _drawn(row) if draws else [_number(row["expected_standard_error"])]
                    number = [name] if len(plans) > 1 else []
                    rows.append([row["total"], *number, _count(row["cells"]), *figures])
    lines = []
    for i, line in enumerate(aligned(rows, numbers=True, indent=0, gap=1)):
        lines += [titles[i], line[:WIDTH]] if i in titles else [line[:WIDTH]]
    left = len(of_name) - len(shown)
    return [*lines, *([f"… and {left} more tables: see --json or --page"] if left else [])]


def _spread(labels: Sequence[str], most: int) -> list[str]:
    """Return at most so many of the labels, evenly spread, the first and the last among them."""
    if len(labels) <= most:
        return list(labels)
    if most == 1:
        return [labels[-1]]
    return [labels[round(i * (len(labels) - 1) / (most - 1))] for i in range(most)]


def _drawn(row: Json) -> list[str]:
    within = row["within"]
    return [
        *(_number(row[name], 2) for name in ("bias", "bias_mc")),
        _number(row["mean_absolute_error"]),
        *(_percent(row[f"{name}_relative_error"]) for name in ("median", "ninety")),
        _percent(within["0.1"] if within else None),
        *(_percent(row[name]) for name in ("coverage", "negative")),
    ]


def _losses(names: Sequence[str], plans: Sequence[Json]) -> Iterator[str]:
    limits = list(dict.fromkeys(above["rho"] for plan in plans for above in plan["losses"]["records"]["above"]))[:2]
    header = ["losses (rho)", *(f"{float(q) * 100:g} %" for q in SHOWN), "largest", *(f"> {rho}" for rho in limits)]
    rows: list[Sequence[str]] = [header]
    for name, plan in zip(names, plans, strict=True):
        for unit, losses in plan["losses"].items():
            if losses is None or not losses["count"]:
                continue
            above = {each["rho"]: each["share"] for each in losses["above"]}
            quantiles = [losses["quantiles"][q] for q in SHOWN] + [losses["largest"]]
            texts = ("–" if each is None else bound_text(each, 3) for each in quantiles)
            shares = [_percent(above.get(rho)) for rho in limits]
            rows.append([f"{unit}, plan {name}" if name else unit, *texts, *shares])
    yield from (line[:WIDTH] for line in aligned(rows, numbers=True, indent=0, gap=1))


def _needs(names: Sequence[str], plans: Sequence[Json]) -> Iterator[str]:
    for name, plan in zip(names, plans, strict=True):
        needs = plan["needs"]
        if needs is not None:
            scan, size = needs["scan_seconds"], needs["published_bytes"] / 1e6
            whose = f"plan {name}: " if name else ""
            yield from wrapped(
                f"{whose}a release took {needs['seconds']:.3g} s here, {scan:.2g} s of them to "
                f"read these records, and {size:,.3g} MB on disk"
            )


def _count(cells: int) -> str:
    return f"{cells:,}" if cells < 10_000_000 else f"{cells / 1e6:.3g}M"


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.{digits}g}"


def _percent(share: float | None) -> str:
    """Return a share in per cent, one of 10 or more as a factor."""
    if share is None:
        return "–"
    if share >= 10:
        return f"{share:.0f}×" if share < 10_000 else f"{share:.0e}×"
    return f"{100 * share:.2g}%" if share < 0.0995 else f"{100 * share:.0f}%"
