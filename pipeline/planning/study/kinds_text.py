"""Kinds of noise that were ranked within a plan's limits: as JSON, for people, and as lines of a plan."""

from collections.abc import Collection, Mapping, Sequence
from math import isfinite, sqrt
from typing import Any

from pipeline.accounting.allocation_problem import Bound
from pipeline.accounting.calibrate import scale_of
from pipeline.base.plain import aligned, figure, mechanism_text, reference_text, wrapped
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import policy_of
from pipeline.planning.study.kinds_within_limits import Asked, Candidate, Ranked, together
from udfs.numbers.exact import as_json, bound_text, up_float

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
