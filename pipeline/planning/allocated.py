"""The scales that a plan or a draft asks for, what they give, and the plan that states them; no microdata are read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import takewhile
from math import exp, isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.accounting.accountant import Charged, check
from pipeline.accounting.allocation_problem import Problem, Unknown, Unmet
from pipeline.accounting.policy import PolicySum
from pipeline.accounting.targets import CalibrationError, unusable
from pipeline.base.errors import BudgetRefused, PlanError, StateError, arg
from pipeline.base.plain import aligned, reference_text
from pipeline.plan.drafts import Allocation, Place, allocation_of, bounds_of
from pipeline.plan.load import NOTHING, draft_of, plan_of
from pipeline.plan.model import OTHERS, Plan
from pipeline.plan.plan_schema import UNUSABLE, WISHES
from pipeline.plan.plan_text import Entry, PlanText, edited, parsed, text_of, unshared, written
from pipeline.plan.structure import warnings
from pipeline.plan.total_policy import policy_of
from pipeline.planning import calibrated
from pipeline.planning.allocation import relaxed, settled
from pipeline.planning.programme_search import Unreached, nearest_alone, smallest_limits
from udfs.mechanisms.base import Mechanism
from udfs.numbers.exact import as_json, bound_text, exact, up_float

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


def scaled(text: PlanText, times: Fraction) -> PlanText:
    """Return a draft without mistakes with all its limits so many times as large, and no share of cells wished."""
    data = unshared(text.data)
    for limit in (*data["calibrate"].get("limits", ()), *data.get("budget", ())):
        limit["rho"] = as_json(exact(limit["rho"]) * times)
    for wish in data["calibrate"].get("queries", {}).values():
        wish.pop("usable", None)
    return replace(text, data=data)


def allocated_plan(
    text: PlanText, path: Path, out: Path | None, variables: Mapping[str, str] = NOTHING, sizes_of: str | None = None
) -> tuple[dict[str, Any], PlanText]:
    """Return the scales of a draft with what they give, as JSON, and the plan that states them; write it to `out`.

    Guarantee: the plan keeps every limit by its own total policy, exactly; what was written is read again and is the
    same plan. `text`: the draft's, `path`: its file, which need not be there; `variables`: the values of its variables,
    which stay in what is written; `sizes_of`: the microdata of which totals and sizes that the file leaves open are.

    Raises BudgetRefused where the limits cannot be kept with what is wanted, with what could be had; PlanError on a
    wrong draft and where noise cannot be so accurate; StateError where `out` exists.
    """
    draft, spec = draft_of(text, path, variables)
    if spec.calibrate is None:
        raise PlanError(f"{path}: calibrate: missing key; it says what the scales of the tables are chosen for")
    if out is not None:
        calibrated.require_beside(out, path)  # before the search, which may take minutes
    if out is not None and out.exists():
        raise StateError(f"{arg('out', out)}: it exists already: give a new file")
    allocation = allocation_of(draft, spec)
    problem = allocation.problem
    try:
        everywhere, chosen = allocation.places, settled(problem)
    except Unreached as error:
        raise BudgetRefused(f"refused by the draft's limits: {error}", *_nearest(problem)) from None
    except CalibrationError as error:
        raise PlanError(f"{path}: calibrate: {error}") from None
    except Unmet as unmet:
        raise BudgetRefused(*_refusal(problem, unmet)) from None
    problem, numbers = chosen.problem, chosen.numbers
    measured = {i for each in problem.unknowns for i in each.members}
    places = {i: place for i, place in allocation.places.items() if i in measured}
    allocation = replace(allocation, problem=problem, places=places)
    derived = sorted({everywhere[i].query for each in chosen.derived for i in each.members})
    data = _stated(text.data, problem, numbers, allocation, derived)
    plan = plan_of(text_of(data, path), path, variables)
    policy = policy_of(plan)
    bounds = bounds_of(plan, spec.calibrate)
    for bound in bounds:
        earlier = [Charged("the other years", policy, bound.times - 1)] if bound.times > 1 else []
        check([bound.limit], earlier, Charged(plan.release, policy, 1))
    scales, solved = _chosen(draft, problem.at(numbers), allocation), calibrated.solve_targets(plan, data)
    entries = [*map(_entry, allocation.places.values(), scales), *(_solved_entry(plan, each) for each in solved)]
    why = CHOSEN if sizes_of is None else f"{CHOSEN[:-1]}, with totals and sizes of {sizes_of}:"
    annotated = _annotated(text, data, entries, why)
    unmeasured = _derived(problem, problem.at(numbers), chosen.derived)
    result = {
        "plan_digest": plan.digest,
        "found": scales,
        "solved": solved,
        "limits": [
            {"at": reference.to_json(), "rho": as_json(bound.limit.rho), "times": bound.times}
            | {"spent": up_float(bound.spent(policy))}
            | ({"buys": chosen.buys[b]} if b in chosen.buys else {})
            for b, (reference, bound) in enumerate(zip(allocation.references, bounds, strict=True))
        ],
        "derived": unmeasured,
        "warnings": [
            *(line for query in plan.queries for line in warnings(query)),
            *_units(draft, allocation, spec.calibrate.minimise),
            *(ALL_BUT_EXACT.format(each.label) for v, each in enumerate(problem.unknowns) if _held(each, numbers[v])),
        ],
        "sizes_of": sizes_of,
        "comments_kept": annotated is not None,
        "out": None if out is None else str(out),
    }
    comments = takewhile(lambda line: line.startswith("#"), text.source.splitlines() if text.in_file else ())
    opening = "".join(f"# {line}\n" for line in (*(each.removeprefix("#").strip() for each in comments), why))
    final = annotated or parsed(opening + written(data, _notes(data, scales, unmeasured)), path)
    if out is not None:
        calibrated.write_plan(final.source, out, plan, variables)
    return result, final


def allocated_text(result: Mapping[str, Any]) -> str:
    """Return the result for people."""
    rows = [["query", "scale", "chosen for", "error", "rho at the limits"]]
    for each in result["found"]:
        rows.append([calibrated.table_name(each), _scale(each), _for(each["for"]), _error(each), _losses(each)])
    lines = aligned(rows)
    lines += [calibrated.solution_text(each) for each in result["solved"]]
    rows = [["derived", "chosen for", "error"]]
    rows += [[each["query"], _for(each["for"]), _error(each)] for each in result["derived"]]
    lines += aligned(rows) if result["derived"] else []
    lines += _usable([*result["found"], *result["derived"]])
    for limit in result["limits"]:
        times = f" for {limit['times']} years" if limit["times"] > 1 else ""
        spent = f"rho {bound_text(limit['spent'])} of {limit['rho']}{times}"
        if "buys" in limit:
            spent += f"; a tenth more of it would make about {1000 * limit['buys']:.2g} more of 100 cells usable"
        lines.append(f"at {reference_text(limit['at'])}: {spent}")
    if result["sizes_of"] is not None:
        lines.append(f"totals and sizes that the draft leaves open: {result['sizes_of']}")
    lines += [f"warning: {text}" for text in result["warnings"]]
    lines.append(f"plan     {result['plan_digest']}")
    if result["out"] is not None:
        kept = "" if result["comments_kept"] else " (rewritten: the draft's own comments could not be kept)"
        lines += calibrated.written_text(result["out"], kept)
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


def _derived(problem: Problem, policy: PolicySum, unknowns: Sequence[Unknown]) -> list[Json]:
    """Return of each table that is not measured what it was to be, and the error of its estimates."""
    variances = reconciled_variances(problem, policy)
    return [
        {"query": unknown.label, "for": _wish_json(unknown, None)}
        | {"reconciled": error_once_reconciled(unknown, max(variances[i] for i in unknown.members))}
        for unknown in unknowns
    ]


def _stated(
    data: Mapping[str, Any],
    problem: Problem,
    numbers: Mapping[int, int],
    allocation: Allocation,
    derived: Sequence[int],
) -> Any:
    """Return the draft's data with mechanisms in place of each `calibrate: plan`, and without its key calibrate.

    `derived`: the numbers of queries that are not measured.
    """
    stated = {key: value for key, value in unshared(data).items() if key != "calibrate"}
    policy = problem.at(numbers)
    for i, place in allocation.places.items():
        unknown = next(each for each in problem.unknowns if i in each.members)
        family, name = unknown.members[i], unknown.members[i].name
        scale = {name: as_json(getattr(policy.queries[i].mechanism, name))}
        holder, key = calibrated.holder_of(stated["queries"][place.query], place.part)
        if unknown.choices:
            stated_as = {k: as_json(v) if isinstance(v, Fraction) else v for k, v in family.fixed.items()}
            holder[key] = {"kind": family.kind, **stated_as, "calibrate": holder[key]["calibrate"]}
        calibrated.replace_target(holder, key, scale)
    left = [query for q, query in enumerate(stated["queries"]) if q not in derived]
    unmeasured = [{k: v for k, v in stated["queries"][q].items() if k != "mechanism"} for q in derived]
    more = {"derived": [*stated.get("derived", ()), *unmeasured]} if derived else {}
    return stated | {"queries": left} | more


def _path(place: Place) -> tuple[str | int, ...]:
    steps = () if place.part is None else (OTHERS,) if place.part == OTHERS else ("parts", place.part)
    return ("queries", place.query, "mechanism", *steps, "calibrate")


def _chosen(plan: Plan, policy: PolicySum, allocation: Allocation) -> list[Json]:
    """Return of each scale its place, what it was chosen for, what it gives, and its query's loss at each limit."""
    problem, names = allocation.problem, [query.name for query in plan.queries]
    losses = [
        {
            q: {"at": reference.to_json(), "rho": up_float(policy.query_loss_at(bound.limit.at, names[q]))}
            for q in {place.query for place in allocation.places.values()}
        }
        for reference, bound in zip(allocation.references, problem.bounds, strict=True)
    ]
    variances = reconciled_variances(problem, policy)
    chosen: list[Json] = []
    for unknown in problem.unknowns:
        for i, family in unknown.members.items():
            place, mechanism = allocation.places[i], policy.queries[i].mechanism
            chosen.append(
                {"query": names[place.query]}
                | ({} if place.part is None else {"part": place.part})
                | {family.name: as_json(getattr(mechanism, family.name)), "scale": family.name}
                | {"for": _wish_json(unknown, mechanism), "error": float(unknown.error.value(mechanism))}
                | ({"reconciled": error_once_reconciled(unknown, variances[i])} if i in variances else {})
                | {"losses": [of_queries[place.query] for of_queries in losses]}
            )
    return chosen


def reconciled_variances(problem: Problem, policy: PolicySum) -> dict[int, float]:
    """Return the variance of the estimates of each policy's cells, of those in lattices."""
    return {
        i: variance
        for lattice in problem.lattices
        for i, variance in zip(
            lattice.numbers, lattice.reconciled_members(problem.variances(lattice, policy)).tolist(), strict=True
        )
    }


def error_once_reconciled(unknown: Unknown, variance: float) -> float:
    """Return the error of estimates of a variance: the share of unusable cells, or the standard error."""
    error = unknown.error
    return unusable(error, np.sqrt([variance])) if error.quantity == UNUSABLE else sqrt(variance)


def _wish_json(unknown: Unknown, mechanism: Mechanism | None) -> dict[str, Any]:
    """Return a wish as a plan writes it, with the measure of the errors of a weight."""
    numbers = {name: as_json(value) for name, value in unknown.error.numbers.items() if name in WISHED}
    if (mechanism is None or mechanism.additive) and not unknown.error.total:
        numbers.pop("total", None)
    if unknown.weight is None:
        return numbers
    measure = next(iter(numbers))
    if unknown.usable_share is not None:
        numbers["usable"] = as_json(unknown.usable_share)
    beside = {k: v for k, v in numbers.items() if k != measure or measure == "within"}
    return {"weight": as_json(unknown.weight), "error": measure} | beside


def _for(wish: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in wish.items() if name != "error")


def _usable(tables: Sequence[Json]) -> Iterator[str]:
    """Yield the share of usable cells of all tables that have one, by weight, as published and reconciled."""
    counted = [each for each in tables if each["for"].get("error") == "within"]
    weights = [each["for"]["weight"] for each in counted]
    if counted:
        published = np.average([1 - each.get("error", 1) for each in counted], weights=weights)
        reconciled = np.average([1 - each.get("reconciled", each.get("error")) for each in counted], weights=weights)
        yield f"usable cells, by weight: {100 * published:.1f} % as published, {100 * reconciled:.1f} % reconciled"


def _scale(each: Json) -> str:
    return f"{each['scale']} {each[each['scale']]}"


def _error(each: Json) -> str:
    wish = each["for"]
    if "within" in wish:
        if "error" not in each:
            return f"usable cells, reconciled {1 - each['reconciled']:.4g}"
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
    scales = ", ".join(f"{name}: {value}" for name, value in calibrated.scales_of(solution).items())
    return Entry(_path(Place(query, solution.get("part"))), scales, calibrated.solution_text(solution).split("   ")[-1])


def _annotated(text: PlanText, data: Any, entries: Sequence[Entry], chosen: str) -> PlanText | None:
    if not text.in_file or text.origins:
        return None
    try:
        source = edited(text.source, text.root, entries, "calibrate", chosen)
        changed = None if source is None else parsed(source, Path("the written plan"))
    except PlanError:
        return None
    return changed if changed is not None and changed.data == data else None


def _notes(data: Json, scales: Sequence[Json], derived: Sequence[Json]) -> dict[str, list[list[str]]]:
    """Return of each table what its scales, or it as a derived one, were chosen for."""
    notes: dict[str, list[str]] = {}
    for each in scales:
        notes.setdefault(each["query"], []).append(f"{calibrated.table_name(each)}: {_scale(each)} {_comment(each)}")
    for each in derived:
        notes.setdefault(each["query"], []).append(f"for {_for(each['for'])}: {_error(each)}")
    return {key: [notes.get(table["name"], []) for table in data[key]] for key in ("queries", "derived") if key in data}


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


def _nearest(problem: Problem) -> Iterator[str]:
    """Yield lines: what the wish that is farthest off could be alone, and which limits all wishes would take."""
    wishes = [each for each in problem.unknowns if each.usable_share is not None]
    if len(wishes) > 1 and (alone := nearest_alone(problem)):
        label, wanted, share = alone
        yield f"it would hold with {label}: {share:.4g} in place of {wanted:.4g}, all others as asked"
    factor = exp(smallest_limits(problem))
    if isfinite(factor):
        yield f"ask for less, or have all of it with every limit about {factor:.3g} times as large"
    else:
        yield "no limits are large enough: the cells' totals are too small for noise of half a step; ask for less"


def _could(unknown: Unknown, n: int) -> str:
    had = f"{max(unknown.errors(n)):.4g}"
    return f"{unknown.label}: {unknown.error.what} {had} in place of {unknown.error.wanted:.6g}"
