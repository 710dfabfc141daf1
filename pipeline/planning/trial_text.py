"""What trials and rankings of kinds of noise say, for people.

A trial has at most 60 lines of 80 columns, whatever the number of tables and plans.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isfinite, sqrt
from typing import Any, Final

from pipeline.accounting.allocation_problem import Bound
from pipeline.accounting.calibrate import scale_of
from pipeline.base.plain import SHOWN, WIDTH, aligned, cut, figure, mechanism_text, reference_text, wrapped
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import policy_of
from pipeline.planning.study.kinds_within_limits import Asked, Candidate, Ranked, together
from udfs.numbers.exact import as_json, bound_text, up_float

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


# Kinds of noise that were ranked within a plan's limits: as JSON, for people, and as lines of a plan.

MOST_SHOWN = 3  # kinds of a table, for people
LEAST_GAIN = 0.001  # share of an error that is worth another line in a plan


def ranked_json(
    plan: Plan,
    bounds: Sequence[Bound],
    asked: Asked,
    tables: Sequence[Ranked],
    drafted: Collection[tuple[str, str | None]],
) -> dict[str, Any]:
    """Return the tables as JSON; `drafted`: tables and parts whose scale a draft's own calibrate chooses."""
    policy = policy_of(plan)
    return {
        "plan": plan.release,
        "minimise": asked.minimise,
        "coverage": as_json(asked.coverage),
        "limits": [
            {"at": bound.limit.at.to_json(), "rho": as_json(bound.limit.rho), "times": bound.times}
            | {"spent": up_float(bound.spent(policy))}
            for bound in bounds
        ],
        "together": together(plan, bounds, tables),
        "tables": [_table_json(asked, each, (each.of.name, each.of.part) in drafted) for each in tables],
    }


def file_of(table: Ranked) -> str:
    """Return the name of the file of a table's designed noise."""
    return f"{table.of.name}{'' if table.of.part is None else f'-{table.of.part}'}.json"


def _table_json(asked: Asked, table: Ranked, drafted: bool) -> dict[str, Any]:
    total = asked.total(table.of)
    return {
        "table": table.of.name,
        "part": table.of.part,
        "total": None if total is None else as_json(total),
        "equal_at": table.binding,
        "now": _candidate_json(table, table.now, drafted),
        "kinds": [_candidate_json(table, each, drafted) for each in table.best],
        "left_out": [{"kind": kind, "why": why} for kind, why in table.left_out.items()],
        "gain": table.gain,
    }


def _candidate_json(table: Ranked, candidate: Candidate, drafted: bool) -> dict[str, Any]:
    described = candidate.mechanism.describe()
    losses = [{"limit": k, "rho": up_float(loss)} for k, loss in zip(table.counted, candidate.losses, strict=True)]
    stated: dict[str, Any] = {
        "family": candidate.family,
        "error": candidate.error if isfinite(candidate.error) else None,
        "losses": losses,
    }
    if "weights" in described:
        described["weights"] = file_of(table)
    elif drafted:
        described = {k: v for k, v in described.items() if k != scale_of(type(candidate.mechanism))}
        described["calibrate"] = "plan"
    made = candidate.design
    if made is not None:
        limits = " ".join(f"--limit {as_json(x)}:{as_json(rho)}" for x, rho in made.wish.limits)
        of = (
            f"--step {as_json(made.wish.step)} --minimise {made.wish.minimise} --coverage {as_json(made.wish.coverage)}"
        )
        stated |= {"lower_bound": made.lower_bound, "make": f"prdp study design {limits} {of} --out {file_of(table)}"}
    key = "mechanism" if table.of.part is None else table.of.part
    line = f"{key}: {{{', '.join(f'{name}: {value}' for name, value in described.items())}}}"
    return {"mechanism": described, **stated, "line": line}


def ranked_text(facts: Mapping[str, Any]) -> str:
    """Return the result of `ranked_json` for people: the best kinds of each table, and a line to paste."""
    least = facts["minimise"].replace("_", " ")
    lines = [f"plan {facts['plan']}: least {least} of each table within the limits, all others staying as they are"]
    for k, limit in enumerate(facts["limits"], 1):
        times = f" for {limit['times']} years" if limit["times"] > 1 else ""
        spent = f"rho {bound_text(limit['spent'])} of {limit['rho']}{times}"
        lines += wrapped(f"    limit {k}, at {reference_text(limit['at'])}: {spent}")
    for table in facts["tables"]:
        lines += ["", *_table_lines(table, least)]
    if any(table["kinds"] for table in facts["tables"]):
        kept = "keep all limits" if facts["together"] else "do NOT keep all limits: paste them one by one"
        lines += ["", f"All lines together {kept} (prdp explain says how they stand)."]
    return "\n".join(lines)


def _table_lines(table: Mapping[str, Any], least: str) -> list[str]:
    now, name = table["now"], table["table"] + (f" ({table['part']})" if table["part"] else "")
    stands = " at a total of " + figure(table["total"]) if table["total"] is not None else ""
    lines = wrapped(f"{name}: {mechanism_text(now['mechanism'])}, {_error(now, least)}{stands}")
    rows = []
    for each in table["kinds"][:MOST_SHOWN]:
        rows.append([each["family"], _error(each, least), _beside(each["error"], now["error"], least)])
    lines += aligned(rows) if rows else ["    no other noise keeps the limits"]
    if table["gain"] is not None and table["gain"] < LEAST_GAIN:
        return [*lines, f"    no kind has less than it has now (losses equal at limit {table['equal_at'] + 1})"]
    if rows:
        best = table["kinds"][0]
        lines += [f"    losses equal at limit {table['equal_at'] + 1}; to paste:", f"      {best['line']}"]
        lines += [f"      made by: {best['make']}"] if "make" in best else []
    return lines


def _error(candidate: Mapping[str, Any], least: str) -> str:
    error = candidate["error"]
    if error is None:
        return f"no {least}"
    return f"standard error {sqrt(error):.4g}" if least == "variance" else f"{least} {error:.4g}"


def _beside(error: float, now: float | None, least: str) -> str:
    if now is None:
        return ""
    share = error / now - 1
    if abs(share) < LEAST_GAIN:
        return "as much as now"
    if share > 1:
        return f"{1 + share:.3g} times the {least}"
    return f"{abs(100 * share):.2g} % {'less' if share < 0 else 'more'} {least}"
