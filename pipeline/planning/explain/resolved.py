"""The plan whose mechanisms state their scales, in place of each target that it states; no microdata are read."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.accounting.calibrate import offset_of, scale_of
from pipeline.base.errors import PlanError, PrdpError, StateError, arg
from pipeline.plan.load import NOTHING, load_plan
from pipeline.plan.model import OTHERS, Plan
from pipeline.plan.plan_text import read_text, unshared, written
from pipeline.plan.structure import warnings
from pipeline.planning.explain.verdict import named_part
from udfs.numbers.exact import as_json

Json = Mapping[str, Any]


def holder_of(query: dict[str, Any], part: str | None) -> tuple[dict[str, Any], str]:
    """Return what of a query's data holds the mechanism of a part, and by which key."""
    if part is None:
        return query, "mechanism"
    if part == OTHERS and OTHERS in query["mechanism"]:
        return query["mechanism"], OTHERS
    return query["mechanism"]["parts"], part


def replace_target(holder: dict[str, Any], key: str, scales: Json) -> None:
    """Put scales in place of a mechanism's key calibrate."""
    parameters = ((scales if name == "calibrate" else {name: value}) for name, value in holder[key].items())
    holder[key] = {name: value for each in parameters for name, value in each.items()}


def table_name(each: Json) -> str:
    """Return a table's name, and the part in brackets."""
    return f"{each['query']} ({each['part']})" if "part" in each else str(each["query"])


def resolved_plan(path: Path, out: Path | None, variables: Mapping[str, str] = NOTHING) -> dict[str, Any]:
    """Return the solution of each `calibrate` of the plan `path`; write to `out` the plan with these scales.

    That plan has the same digest: what a ledger has reserved under the one is released under the other, whatever the
    solver of a later version would return. Its variables, whose values are `variables`, stay in what is written. Raises
    PlanError on a wrong plan and on an `out` in another folder, StateError where `out` exists.
    """
    plan = load_plan(path, variables)
    data = unshared(read_text(path).data)
    solutions = solve_targets(plan, data)
    if out is not None:
        write_plan(written(data), out, plan, variables)
    return {
        "plan_digest": plan.digest,
        "found": solutions,
        "warnings": [text for query in plan.queries for text in warnings(query)],
        "out": None if out is None else str(out),
    }


def resolved_text(resolved: Mapping[str, Any]) -> str:
    """Return the result of `resolved_plan` for people."""
    lines = [solution_text(each) for each in resolved["found"]]
    if not lines:
        lines = ["the plan asks for no calibration: it states every scale"]
    lines += [f"warning: {text}" for text in resolved["warnings"]]
    lines.append(f"plan     {resolved['plan_digest']}")
    return "\n".join(lines if resolved["out"] is None else [*lines, *written_text(resolved["out"])])


def written_text(out: str, kept: str = "") -> list[str]:
    """Return lines that say where a plan was written, and what tells whether other noise would have less error."""
    return [f"written  {out}{kept}", f"compare  other kinds of noise within its limits: prdp study kinds {out}"]


def solution_text(solution: Mapping[str, Any]) -> str:
    """Return a solution of `solve_targets` for people."""
    return f"{table_name(solution)}: {_values(scales_of(solution))}   for {_values(solution['calibrate'])}"


def scales_of(solution: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a solution of `solve_targets` sets."""
    return {key: value for key, value in solution.items() if key not in ("query", "part", "calibrate")}


def solve_targets(plan: Plan, data: Json) -> list[dict[str, Any]]:
    """Replace each target that a query of the plan's data states by its solution; return the solutions, as JSON."""
    solutions = []
    for query, stated in zip(plan.queries, data["queries"], strict=True):
        for part in query.parts:
            holder, key = holder_of(stated, part.name)
            spec, kind = holder[key], type(part.mechanism)
            if "calibrate" in spec:
                solved = [name for name in (offset_of(kind), scale_of(kind)) if name is not None and name not in spec]
                scales = {name: as_json(getattr(part.mechanism, name)) for name in solved}
                solutions.append({"query": query.name} | named_part(part) | {"calibrate": spec["calibrate"]} | scales)
                replace_target(holder, key, scales)
    return solutions


def write_plan(text: str, out: Path, plan: Plan, variables: Mapping[str, str]) -> None:
    """Write the text of `plan` into a new file of its folder, `out`, and read it again: it must be the same plan.

    Raises PlanError on an `out` in another folder, StateError where it exists.
    """
    if out.resolve().parent != plan.path.resolve().parent:
        raise PlanError(f"{arg('out', out)}: must lie in the plan's own folder, to which the plan's paths are relative")
    try:
        with out.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise StateError(f"{arg('out', out)}: it exists already: give a new file") from None
    except OSError as error:
        raise PlanError(f"{arg('out', out)}: it cannot be written ({error.strerror})") from None
    if load_plan(out, variables).digest != plan.digest:
        out.unlink()
        raise PrdpError(f"{arg('out', out)}: it would not be the same plan; write the scales by hand")


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {_values(v) if isinstance(v, dict) else v}" for k, v in values.items())
