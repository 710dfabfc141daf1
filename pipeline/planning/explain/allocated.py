"""The scales that a plan or a draft asks for, what they give, and the plan that states them; no microdata are read."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.accounting.accountant import Charged, check
from pipeline.accounting.allocation import allocate, relaxed
from pipeline.accounting.allocation_problem import Problem, Unknown, Unmet
from pipeline.accounting.calibrate import offset_of, scale_of
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.targets import CalibrationError, unusable
from pipeline.base.errors import BudgetRefused, PlanError, PrdpError, StateError, arg
from pipeline.base.plain import aligned, reference_text
from pipeline.plan.drafts import Allocation, Place, allocation_of
from pipeline.plan.load import NOTHING, draft_of, load_plan, plan_of
from pipeline.plan.model import OTHERS, Plan
from pipeline.plan.plan_schema import UNUSABLE, WISHES
from pipeline.plan.plan_text import Entry, PlanText, edited, parsed, read_text, text_of, written
from pipeline.plan.structure import warnings
from pipeline.plan.total_policy import policy_of
from pipeline.planning.explain.verdict import named_part
from udfs.mechanisms.base import Mechanism
from udfs.numbers.exact import as_json, bound_text, up_float

Json = Mapping[str, Any]
NEAR_EXACT = 0.1  # of a scale's logarithm: with so much less noise values would be exact but for half a step
CHOSEN = "prdp calibrate chose the scales of this plan, for what its draft said:"
WISHED = (*WISHES, "share", "quantile", "total")  # what is told of a wish
ALL_BUT_EXACT = (
    "query {}: its values are published all but exactly, as the limits allow or the accuracy wanted asks for; state "
    "a limit at smaller records there"
)
UNITS = (
    "weights are equal, and errors of different units are added up ({}): the largest numbers get all the accuracy; "
    "let the draft minimise: relative_error, or give weights"
)
MOST_WISHES = 5  # wishes of which a refusal says what could be had


def allocated_plan(
    text: PlanText, path: Path, out: Path | None, variables: Mapping[str, str] = NOTHING, sizes_of: str | None = None
) -> tuple[dict[str, Any], PlanText]:
    """Return the scales of a draft with what they give, as JSON, and the plan that states them; write it to `out`.

    Guarantee: the plan keeps every limit by its own total policy, exactly; what was written is read again and is the
    same plan. `text`: the draft's, `path`: its file, which need not be there; `variables`: the values of
    its variables, which stay in what is written; `sizes_of`: the microdata of which totals and sizes that the file
    leaves open are.

    Raises BudgetRefused where the limits cannot be kept with what is wanted, with what could be had; PlanError on a
    wrong draft and where noise cannot be so accurate; StateError where `out` exists.
    """
    draft, spec = draft_of(text, path, variables)
    if spec.calibrate is None:
        raise PlanError(f"{path}: calibrate: missing key; it says what the scales of the tables are chosen for")
    if out is not None and out.exists():
        raise StateError(f"{arg('out', out)}: it exists already: give a new file")
    allocation = allocation_of(draft, spec)
    problem = allocation.problem
    try:
        numbers = allocate(problem)
    except CalibrationError as error:
        raise PlanError(f"{path}: calibrate: {error}") from None
    except Unmet as unmet:
        raise BudgetRefused(*_refusal(problem, unmet)) from None
    data = _stated(text.data, problem, numbers, allocation)
    plan = plan_of(text_of(data, path), path, variables)
    policy = policy_of(plan)
    for bound in problem.bounds:
        earlier = [Charged("the other years", policy, bound.times - 1)] if bound.times > 1 else []
        check([bound.limit], earlier, Charged(plan.release, policy, 1))
    scales, solved = _chosen(plan, policy, allocation), solve_targets(plan, data)
    entries = [*map(_entry, allocation.places.values(), scales), *(_solved_entry(plan, each) for each in solved)]
    chosen = CHOSEN if sizes_of is None else f"{CHOSEN[:-1]}, with totals and sizes of {sizes_of}:"
    annotated = _annotated(text, data, entries, chosen)
    result = {
        "plan_digest": plan.digest,
        "found": scales,
        "solved": solved,
        "limits": [
            {"at": reference.to_json(), "rho": as_json(bound.limit.rho), "times": bound.times}
            | {"spent": up_float(bound.spent(policy))}
            for reference, bound in zip(allocation.references, problem.bounds, strict=True)
        ],
        "warnings": [
            *(line for query in plan.queries for line in warnings(query)),
            *_units(plan, allocation, spec.calibrate.minimise),
            *(ALL_BUT_EXACT.format(each.label) for v, each in enumerate(problem.unknowns) if _held(each, numbers[v])),
        ],
        "sizes_of": sizes_of,
        "comments_kept": annotated is not None,
        "out": None if out is None else str(out),
    }
    final = annotated or parsed(
        "".join(f"# {line}\n" for line in (chosen, *map(_header, scales))) + written(data), path
    )
    if out is not None:
        write_plan(final.source, out, plan, variables)
    return result, final


def allocated_text(result: Mapping[str, Any]) -> str:
    """Return the result for people."""
    rows = [["query", "scale", "chosen for", "error", "rho at the limits"]]
    for each in result["found"]:
        rows.append([_name(each), _scale(each), _for(each["for"]), _error(each), _losses(each)])
    lines = aligned(rows)
    lines += [solution_text(each) for each in result["solved"]]
    for limit in result["limits"]:
        times = f" for {limit['times']} years" if limit["times"] > 1 else ""
        lines.append(f"at {reference_text(limit['at'])}: rho {bound_text(limit['spent'])} of {limit['rho']}{times}")
    if result["sizes_of"] is not None:
        lines.append(f"totals and sizes that the draft leaves open: {result['sizes_of']}")
    lines += [f"warning: {text}" for text in result["warnings"]]
    lines.append(f"plan     {result['plan_digest']}")
    if result["out"] is not None:
        kept = "" if result["comments_kept"] else " (rewritten: the draft's own comments could not be kept)"
        lines.append(f"written  {result['out']}{kept}")
    return "\n".join(lines)


def _units(plan: Plan, allocation: Allocation, minimised: str) -> Iterator[str]:
    """Yield a warning where equal weights compare errors of several statistics in their own units."""
    weighted = [each for each in allocation.problem.unknowns if each.weight is not None]
    places = {allocation.places[i].query for each in weighted for i in each.members}
    units = sorted({plan.queries[query].statistic.label for query in places})
    if (
        minimised not in ("relative_error", UNUSABLE)
        and len(units) > 1
        and len({each.weight for each in weighted}) == 1
    ):
        yield UNITS.format(", ".join(units))


def _held(unknown: Unknown, n: int) -> bool:
    return unknown.nearly_exact(unknown.family.number_at(unknown.family.log_noise(n) - NEAR_EXACT))


def _stated(data: Mapping[str, Any], problem: Problem, numbers: Mapping[int, int], allocation: Allocation) -> Any:
    """Return the draft's data with scales in place of each `calibrate: plan`, and without its key calibrate."""
    stated = {key: value for key, value in deepcopy(dict(data)).items() if key != "calibrate"}
    policy = problem.at(numbers)
    for i, place in allocation.places.items():
        name = next(each.members[i].name for each in problem.unknowns if i in each.members)
        scale = {name: as_json(getattr(policy.queries[i].mechanism, name))}
        _replace_target(*_holder(stated["queries"][place.query], place.part), scale)
    return stated


def _holder(query: dict[str, Any], part: str | None) -> tuple[dict[str, Any], str]:
    if part is None:
        return query, "mechanism"
    if part == OTHERS and OTHERS in query["mechanism"]:
        return query["mechanism"], OTHERS
    return query["mechanism"]["parts"], part


def _replace_target(holder: dict[str, Any], key: str, scales: Json) -> None:
    parameters = ((scales if name == "calibrate" else {name: value}) for name, value in holder[key].items())
    holder[key] = {name: value for each in parameters for name, value in each.items()}


def _path(place: Place) -> tuple[str | int, ...]:
    steps = () if place.part is None else (OTHERS,) if place.part == OTHERS else ("parts", place.part)
    return ("queries", place.query, "mechanism", *steps, "calibrate")


def _chosen(plan: Plan, policy: PolicySum, allocation: Allocation) -> list[Json]:
    """Return of each scale its place, what it was chosen for, what it gives, and its query's loss at each limit."""
    problem, names = allocation.problem, [query.name for query in plan.queries]
    losses = [
        [{"at": reference.to_json(), "rho": up_float(policy.query_loss_at(bound.limit.at, name))} for name in names]
        for reference, bound in zip(allocation.references, problem.bounds, strict=True)
    ]
    variances = {
        i: variance
        for lattice in problem.lattices
        for i, variance in zip(lattice.members, lattice.reconciled(problem.variances(lattice, policy)), strict=True)
    }
    chosen: list[Json] = []
    for unknown in problem.unknowns:
        for i, family in unknown.members.items():
            place, mechanism = allocation.places[i], policy.queries[i].mechanism
            chosen.append(
                {"query": names[place.query]}
                | ({} if place.part is None else {"part": place.part})
                | {family.name: as_json(getattr(mechanism, family.name)), "scale": family.name}
                | {"for": _wish_json(unknown, mechanism), "error": float(unknown.error.value(mechanism))}
                | ({"reconciled": _reconciled(unknown, variances[i])} if i in variances else {})
                | {"losses": [of_queries[place.query] for of_queries in losses]}
            )
    return chosen


def _reconciled(unknown: Unknown, variance: float) -> float:
    """Return the error of estimates of a variance: the share of unusable cells, or the standard error."""
    error = unknown.error
    return unusable(error, np.sqrt([variance])) if error.quantity == UNUSABLE else sqrt(variance)


def _wish_json(unknown: Unknown, mechanism: Mechanism) -> dict[str, Any]:
    """Return a wish as a plan writes it, with the measure of the errors of a weight."""
    numbers = {name: as_json(value) for name, value in unknown.error.numbers.items() if name in WISHED}
    if mechanism.additive and not unknown.error.total:
        numbers.pop("total", None)
    if unknown.weight is None:
        return numbers
    measure = next(iter(numbers))
    return {"weight": as_json(unknown.weight), "error": measure} | {k: v for k, v in numbers.items() if k != measure}


def _for(wish: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in wish.items() if name != "error")


def _name(each: Json) -> str:
    return f"{each['query']} ({each['part']})" if "part" in each else str(each["query"])


def _scale(each: Json) -> str:
    return f"{each['scale']} {each[each['scale']]}"


def _error(each: Json) -> str:
    wish = each["for"]
    if "within" in wish:
        share = f"{'usable cells' if 'weight' in wish else 'share of cells'} {1 - each['error']:.4g}"
        return share + (f", reconciled {1 - each['reconciled']:.4g}" if "reconciled" in each else "")
    what = "quantile of the relative error" if "quantile" in wish else wish.get("error", next(iter(wish)))
    beside = f", reconciled {each['reconciled']:.4g}" if "reconciled" in each else ""
    return f"{what.replace('_', ' ')} {each['error']:.4g}{beside}"


def _losses(each: Json) -> str:
    return ", ".join(bound_text(loss["rho"], 3) for loss in each["losses"])


def _comment(each: Json) -> str:
    spent = f"; rho {_losses(each)} at the limits" if each["losses"] else ""
    return f"for {_for(each['for'])}: {_error(each)}{spent}"


def _entry(place: Place, each: Json) -> Entry:
    return Entry(_path(place), f"{each['scale']}: {each[each['scale']]}", _comment(each))


def _solved_entry(plan: Plan, solution: Mapping[str, Any]) -> Entry:
    query = next(q for q, each in enumerate(plan.queries) if each.name == solution["query"])
    scales = ", ".join(f"{name}: {value}" for name, value in scales_of(solution).items())
    return Entry(_path(Place(query, solution.get("part"))), scales, solution_text(solution).split("   ")[-1])


def _annotated(text: PlanText, data: Any, entries: Sequence[Entry], chosen: str) -> PlanText | None:
    if not text.in_file:
        return None
    try:
        source = edited(text.source, text.root, entries, "calibrate", chosen)
        changed = None if source is None else parsed(source, Path("the written plan"))
    except PlanError:
        return None
    return changed if changed is not None and changed.data == data else None


def _header(each: Json) -> str:
    return f"{each['query']}: {_scale(each)} {_comment(each)}"


def _refusal(problem: Problem, unmet: Unmet) -> Iterator[str]:
    """Yield lines: which limit is exceeded, by how much, and which accuracies could be had within all."""
    bound, limit = unmet.bound, as_json(unmet.bound.limit.rho)
    years = f" for {bound.times} years" if bound.times > 1 else ""
    if not problem.wished or problem.keeps(problem.without(problem.weighted, unmet.least)):
        yield f"refused by the budget at {bound.limit.whose}: no noise was found that costs at most rho {limit}{years}"
        return
    spent = bound_text(bound.spent(unmet.least))
    cost = f"the accuracies asked for cost rho {spent}{years}, limit {limit}"
    yield f"refused by the budget at {bound.limit.whose}: {cost}"
    alone = [(v, relaxed(problem, unmet.wished, [v])) for v in problem.wished]
    for v, numbers in [(v, numbers) for v, numbers in alone if numbers is not None][:MOST_WISHES]:
        yield f"it would hold with {_could(problem.unknowns[v], numbers[v])}, all others as asked"
    together = relaxed(problem, unmet.wished, problem.wished) if len(alone) > 1 else None
    if together is not None:
        yield "or with " + "; ".join(_could(problem.unknowns[v], together[v]) for v in problem.wished)
    yield "ask for less accuracy, or raise the limit in the plan's budget"


def _could(unknown: Unknown, n: int) -> str:
    had = f"{max(unknown.errors(n)):.4g}"
    return f"{unknown.label}: {unknown.error.what} {had} in place of {unknown.error.wanted:.6g}"


def resolved_plan(path: Path, out: Path | None, variables: Mapping[str, str] = NOTHING) -> dict[str, Any]:
    """Return the solution of each `calibrate` of the plan `path`; write to `out` the plan with these scales.

    That plan has the same digest: what a ledger has reserved under the one is released under the other, whatever the
    solver of a later version would return. Its variables, whose values are `variables`, stay in what is written. Raises
    PlanError on a wrong plan and on an `out` in another folder, StateError where `out` exists.
    """
    plan = load_plan(path, variables)
    data = read_text(path).data
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
    return "\n".join(lines if resolved["out"] is None else [*lines, f"written  {resolved['out']}"])


def solution_text(solution: Mapping[str, Any]) -> str:
    """Return a solution of `solve_targets` for people."""
    return f"{_name(solution)}: {_values(scales_of(solution))}   for {_values(solution['calibrate'])}"


def scales_of(solution: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a solution of `solve_targets` sets."""
    return {key: value for key, value in solution.items() if key not in ("query", "part", "calibrate")}


def solve_targets(plan: Plan, data: Json) -> list[dict[str, Any]]:
    """Replace each target that a query of the plan's data states by its solution; return the solutions, as JSON."""
    solutions = []
    for query, stated in zip(plan.queries, data["queries"], strict=True):
        for part in query.parts:
            holder, key = _holder(stated, part.name)
            spec, kind = holder[key], type(part.mechanism)
            if "calibrate" in spec:
                solved = [name for name in (offset_of(kind), scale_of(kind)) if name is not None and name not in spec]
                scales = {name: as_json(getattr(part.mechanism, name)) for name in solved}
                solutions.append({"query": query.name} | named_part(part) | {"calibrate": spec["calibrate"]} | scales)
                _replace_target(holder, key, scales)
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
