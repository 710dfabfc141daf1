"""What a programme is worth at smaller and larger limits, and the smallest ones that its wishes need; no microdata.

Result: for each factor of FACTORS all limits of a draft are so many times as large, and its tables have the scales,
kinds and measured tables with which most cells are usable; wishes are then left aside. Beside it what records of
several sizes lose. `needed` is the factor with which the wishes are just met. Local optima: a better programme may
exist.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from math import exp, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.accounting.allocation_problem import Unknown, Unmet
from pipeline.accounting.references import Reference, ReferenceRecord
from pipeline.accounting.targets import CalibrationError
from pipeline.base.canonical import FrozenMap
from pipeline.base.errors import BudgetRefused, PlanError
from pipeline.base.plain import aligned, reference_text
from pipeline.base.plots import write_picture
from pipeline.plan.drafts import allocation_of
from pipeline.plan.load import NOTHING, draft_of
from pipeline.plan.model import Plan
from pipeline.plan.plan_schema import PlanSpec
from pipeline.plan.plan_text import PlanText
from pipeline.plan.total_policy import located
from pipeline.planning.allocated import error_once_reconciled, reconciled_variances, scaled
from pipeline.planning.allocation import settled
from pipeline.planning.programme_search import OF_PROGRAMMES, is_programme, smallest_limits
from udfs.numbers.exact import as_json, bound_text, up_float

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DECADES = 12  # of records' sizes, at most
FACTORS = (Fraction(1, 10), Fraction(3, 10), Fraction(1), Fraction(3))


def frontier(
    text: PlanText, path: Path, variables: Mapping[str, str] = NOTHING, sizes_of: str | None = None
) -> dict[str, Any]:
    """Return the share of usable cells of each table at each factor of the limits, as JSON.

    Raises PlanError where the draft minimises something else, BudgetRefused where some limit leaves nothing.
    """
    draft, spec = draft_of(text, path, variables)
    if spec.calibrate is None:
        raise PlanError(f"{path}: calibrate: missing key; only a draft has a frontier")
    allocation = allocation_of(draft, spec)
    problem = allocation.problem
    if not is_programme(problem):
        raise PlanError(f"{path}: calibrate: frontiers {OF_PROGRAMMES}")
    sizes, needed = _sizes(allocation.references), None
    try:
        points = [_point(*draft_of(scaled(text, factor), path, variables), sizes, factor) for factor in FACTORS]
        if any(each.usable_share is not None for each in problem.unknowns):
            needed = smallest_limits(problem)
    except CalibrationError as error:
        raise PlanError(f"{path}: calibrate: {error}") from None
    except Unmet as unmet:
        raise BudgetRefused(str(unmet)) from None
    return {
        "within": float(spec.calibrate.within or Fraction(3, 10)),
        "limits": [
            {"at": reference.to_json(), "rho": as_json(bound.limit.rho)}
            for reference, bound in zip(allocation.references, problem.bounds, strict=True)
        ],
        "frontier": points,
        "needed": None if needed is None or not isfinite(needed) else exp(needed),
        "wished": needed is not None,
        "sizes_of": sizes_of,
    }


def _sizes(references: Sequence[Reference]) -> list[Reference]:
    """Return the limits' references, and a tenth, ten times, … the first up to their largest; small ones first."""
    first = references[0].records[0].values
    most = max(each.largest(name) for each in references for name in first)
    sizes = {each.label: each for each in references}
    for k in range(-1, DECADES):
        values = FrozenMap.of({name: value * Fraction(10) ** k for name, value in first.items()})
        if max(values.values()) <= most and all(value.denominator == 1 for value in values.values()):
            of_size = Reference((ReferenceRecord(values),))
            sizes.setdefault(of_size.label, of_size)
    return sorted(sizes.values(), key=lambda each: each.records[0].sizes())


def _point(draft: Plan, spec: PlanSpec, sizes: Sequence[Reference], factor: Fraction) -> dict[str, Any]:
    allocation = allocation_of(draft, spec)
    problem = allocation.problem
    result = settled(problem)
    policy = result.problem.at(result.numbers)
    variances = reconciled_variances(result.problem, policy)
    weighted = {each.label: each for each in (*result.problem.unknowns, *result.derived) if each.weight is not None}
    chosen = [weighted[each.label] for each in problem.unknowns if each.label in weighted]
    tables = {each.label: 1 - _missing(each, variances, policy) for each in chosen}
    weights = [float(each.weight or 0) for each in chosen]
    mean = sum(share * weight for share, weight in zip(tables.values(), weights, strict=True)) / sum(weights)
    places = {unknown.label: allocation.places[next(iter(unknown.members))].query for unknown in problem.unknowns}
    of = {label: draft.queries[places[label]].statistic.label for label in tables}
    return {
        "factor": as_json(factor),
        "usable": mean,
        "derived": sorted(each.label for each in result.derived),
        "tables": tables,
        "losses": [
            {"at": each.to_json(), "rho": up_float(policy.loss_at(located(draft, each, below=True)))} for each in sizes
        ],
        "statistics": {name: _mean([tables[label] for label in of if of[label] == name]) for name in of.values()},
    }


def _missing(unknown: Unknown, variances: Mapping[int, float], policy: Any) -> float:
    own = {i: variances.get(i, policy.queries[i].mechanism.variance(0.0)) for i in unknown.members}
    return _mean([error_once_reconciled(unknown, variance) for variance in own.values()])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def frontier_text(result: Mapping[str, Any]) -> str:
    """Return the frontier for people: a row a table, a column a factor, in percent of its cells."""
    points = result["frontier"]
    rows = [["usable cells in %", *(f"x{point['factor']}" for point in points)]]
    rows += [[f"all, by weight ({result['within']:g})", *(f"{100 * point['usable']:.1f}" for point in points)]]
    rows += [[name, *(f"{100 * point['tables'][name]:.1f}" for point in points)] for name in points[0]["tables"]]
    rows += [["tables not measured", *(str(len(point["derived"])) for point in points)]]
    rows += [["rho that a record loses, at most", *("" for _ in points)]]
    for k, size in enumerate(points[0]["losses"]):
        rows += [[reference_text(size["at"]), *(bound_text(point["losses"][k]["rho"], 3) for point in points)]]
    return "\n".join([*aligned(rows), *_limits(result)])


def _limits(result: Mapping[str, Any]) -> Iterator[str]:
    for limit in result["limits"]:
        rhos = ", ".join(f"{limit['rho'] * float(point['factor']):.6g}" for point in result["frontier"])
        yield f"limits at {reference_text(limit['at'])}: rho {rhos}"
    if result["needed"] is not None:
        rhos = "; ".join(f"{result['needed'] * limit['rho']:.4g}" for limit in result["limits"])
        yield f"what is wished needs limits x{result['needed']:.3g}: rho {rhos}"
    elif result["wished"]:
        yield "what is wished cannot be had: its cells' totals are too small for noise of half a step"
    if result["sizes_of"] is not None:
        yield f"totals and sizes that the draft leaves open: {result['sizes_of']}"
    yield "local optima: better programmes may exist"


def plot(result: Mapping[str, Any], target: Path) -> None:
    """Draw the mean share of usable cells of each statistic's tables by the factor of the limits, as SVG or PNG."""
    points = result["frontier"]

    def draw(panels: Sequence["Axes"]) -> None:
        (axes,) = panels
        factors = [float(point["factor"]) for point in points]
        for name in points[0]["statistics"]:
            shares = [100 * point["statistics"][name] for point in points]
            axes.semilogx(factors, shares, marker="o", label=name)
        axes.set_xticks(factors, [f"{factor:g}" for factor in factors])
        axes.minorticks_off()
        axes.set(xlabel="limits, times those of the draft", ylabel="usable cells, % (mean of tables)", ylim=(0, 100))

    write_picture(target, "What a programme is worth at other limits", draw, panels=1, size=(6.5, 4.5))
