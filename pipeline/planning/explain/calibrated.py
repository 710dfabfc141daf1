"""The results of `prdp calibrate`: the scales that a plan asks for, and a single mechanism; no microdata are read."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

from pipeline.accounting.best_alpha import KIND, LEAST, Least, best_alpha
from pipeline.accounting.calibrate import Number, offset_of, scale_of, solve
from pipeline.accounting.convert import GaussianScales
from pipeline.accounting.targets import CalibrationError, Target
from pipeline.base.columns import aligned, mechanism_text
from pipeline.base.errors import PlanError, PrdpError, StateError, in_a_line
from pipeline.base.names import hint
from pipeline.plan.load import NOTHING, load_plan
from pipeline.plan.messages import NEVER_RELEASED
from pipeline.plan.model import OTHERS, Plan, Query
from pipeline.plan.plan_text import read_text, written
from pipeline.plan.structure import TOTALS, errors_at, infinite_error, warnings
from pipeline.planning.explain.explain_text import error_lines
from pipeline.planning.explain.policies import COUNTS, SIZES
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.mechanisms.parameters import ParameterError
from udfs.numbers.exact import as_json, bound_text, up_float


def resolved_plan(path: Path, out: Path | None, given: Mapping[str, str] = NOTHING) -> dict[str, Any]:
    """Return the solution of each `calibrate` of the plan `path`; write to `out` the plan with these scales.

    That plan has the same digest: what a ledger has reserved under the one is released under the other, whatever the
    solver of a later version would return. Its variables, whose values are `given`, stay in what is written. Raises
    PlanError on a wrong plan and on an `out` in another folder, StateError where `out` exists.
    """
    plan = load_plan(path, given)
    data = read_text(path).data
    solutions = solve_targets(plan, data)
    if out is not None:
        write_plan(written(data), out, plan, given)
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
    name = f"{solution['query']} ({solution['part']})" if "part" in solution else solution["query"]
    return f"{name}: {_values(scales_of(solution))}   for {_values(solution['calibrate'])}"


def scales_of(solution: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a solution of `solve_targets` sets."""
    return {key: value for key, value in solution.items() if key not in ("query", "part", "calibrate")}


def calibrated(kind: str, fixed: Mapping[str, Number], step: Fraction, target: Target) -> Mechanism:
    """Return the mechanism that meets `target`; raises PlanError where there is none, with the best that can be had."""
    with _refusals(kind, fixed):
        return solve(kind, fixed, step, target)


def best_alpha_json(
    described: Mapping[str, Number], step: Fraction, target: Target, least: Least, on_try: Callable[[int], None]
) -> dict[str, Any]:
    """Return, as `mechanism_json`, stable noise with the α that is best, and what the others that were tried have.

    `described`: the kind, and parameters that are fixed. Raises PlanError as `calibrated`, and for another kind.
    """
    kind, fixed = str(described["kind"]), {name: value for name, value in described.items() if name != "kind"}
    with _refusals(kind, fixed):
        if kind != KIND:
            raise CalibrationError(f"best alpha: {KIND} alone has one")
        best = best_alpha(fixed, step, target, least, on_try)
    tried = [
        {"alpha": noise["alpha"], "gamma": noise["gamma"], "value": value if isfinite(value) else None}
        for noise, value in ((mechanism.describe(), value) for mechanism, value in best.tried)
    ]
    return mechanism_json(best.mechanism, (), least.coverage, target) | {
        "best_alpha": {"least": least.what, "tried": tried}
    }


@contextmanager
def _refusals(kind: str, fixed: Mapping[str, Number]) -> Iterator[None]:
    if kind not in CATALOGUE:
        why = NEVER_RELEASED.get(kind, f"unknown kind{hint(kind, CATALOGUE, 'kind')}")
        raise PlanError(f"--kind {in_a_line(kind)}: {why}")
    known = CATALOGUE[kind].parameters()
    for name in fixed:
        if name not in known:
            raise PlanError(f"--set {in_a_line(name)}: {kind} has no such parameter{hint(name, known, 'parameter')}")
    try:
        yield
    except ParameterError as error:
        option = f"--{error.parameter}" if error.parameter in ("kind", "step") else f"--set {error.parameter}"
        raise PlanError(f"{option}: must be {error.rule}") from None
    except CalibrationError as error:
        raise PlanError(f"{kind}: {error}") from None


def mechanism_json(
    mechanism: Mechanism, totals: tuple[float, ...], interval: Fraction, target: Target | None = None
) -> dict[str, Any]:
    """Return, as JSON, a mechanism, what records of growing influence lose, and its errors at some true totals.

    For (ε, δ) also the δ that the noise has on its lattice, from above.
    """
    losses = []
    for size in (1,) if mechanism.counts_only else SIZES:  # on a count every record has influence 1
        rho, pure = mechanism.loss_at(Fraction(size)), mechanism.pure_loss_at(Fraction(size))
        losses.append({"influence": size, "rho": up_float(rho), "epsilon": None if pure is None else up_float(pure)})
    shown = COUNTS if mechanism.counts_only else TOTALS
    at = (0.0,) if mechanism.additive else tuple(sorted({*map(float, shown), *totals}))
    return (
        {
            "mechanism": mechanism.describe(),
            "step": as_json(mechanism.step),
            "formula": mechanism.formula,
            "losses": losses,
            "accuracy": [errors_at(mechanism, total, interval) for total in at],
            "warnings": [warning] if (warning := infinite_error(mechanism)) else [],
        }
        | groups_json(mechanism)
        | (_delta(mechanism, target) if target is not None and "delta" in target.numbers else {})
    )


def groups_json(mechanism: Mechanism) -> dict[str, Any]:
    """Return, of a kind for counts, what one record loses in groups of COUNTS records, and the relative error there.

    Nothing of other kinds. These are public sizes: v of an actual group is as confidential as its count.
    """
    if not mechanism.counts_only:
        return {}
    of_all = mechanism.loss_at(Fraction(1))
    groups = []
    for count in COUNTS:
        loss = mechanism.group_loss_at(Fraction(count))
        relative = mechanism.mean_absolute_error(float(count)) / count
        groups.append({"count": count, "rho": up_float(of_all if loss is None else loss), "relative_error": relative})
    return {"groups": groups}


def _delta(mechanism: Mechanism, target: Target) -> dict[str, Any]:
    bound = "closed" if target.quantity == "closed" else "exact"
    at = {"epsilon": float(target["epsilon"]), "influence": float(target["influence"]), "bound": bound}
    return {"delta": at | {"delta": up_float(target.value(mechanism))}}


def mechanism_lines(mechanism: Mapping[str, Any], interval: Fraction) -> str:
    """Return the result of `mechanism_json` for people."""
    lines = [mechanism_text(mechanism["mechanism"]), f"    P(Δ) = {mechanism['formula']}"]
    if "groups" in mechanism:
        heads = ["in a group of", "one record loses (rho)", "mean error over the count"]
        groups = mechanism["groups"]
        rows = [[f"{g['count']:,}", bound_text(g["rho"]), f"{g['relative_error']:.6g}"] for g in groups]
        lines += aligned([heads, *rows])
    for loss in () if "groups" in mechanism else mechanism["losses"]:
        epsilon = "-" if loss["epsilon"] is None else bound_text(loss["epsilon"])
        lines.append(f"    influence {loss['influence']:<12,} rho {bound_text(loss['rho']):<12} epsilon {epsilon}")
    if "delta" in mechanism:
        spent = mechanism["delta"]
        stated = f"({bound_text(spent['epsilon'])}, {bound_text(spent['delta'])})"
        lines.append(f"    influence {spent['influence']:,g}: (ε, δ) = {stated} of the noise as it is drawn")
        if spent["bound"] == "closed":
            lines.append("    the closed form is proved for continuous noise; on this lattice (ε, δ) was checked")
    lines += error_lines(mechanism["accuracy"], interval)
    if "best_alpha" in mechanism:
        best = mechanism["best_alpha"]
        rows = [[f"{e['alpha']}", f"{e['gamma']}", _figure(e["value"])] for e in best["tried"]]
        lines += [f"alpha is that of the least {LEAST[best['least']]}; tried:"]
        lines += aligned([["alpha", "gamma", LEAST[best["least"]]], *rows])
    return "\n".join([*lines, *(f"warning: {text}" for text in mechanism["warnings"])])


def scales_text(scales: GaussianScales) -> str:
    """Return the scales of Gaussian noise for people, and where the classical one holds."""
    enough = "it is enough here" if scales.classical_is_enough else "it is NOT enough here"
    proved = "proved for ε < 1" if scales.epsilon < 1 else "not proved from ε = 1 on"
    ratio = scales.classical / scales.closed
    rows = [
        [f"({scales.epsilon:g}, {scales.delta:g}) at {scales.influence:g}", "sigma", ""],
        ["exact", f"{scales.exact:.7g}", "the least; on a lattice: --kind gaussian --epsilon … --delta …"],
        ["closed form", f"{scales.closed:.7g}", "enough for every ε > 0 and 0 < δ < 1"],
        [
            "classical",
            f"{scales.classical:.7g}",
            f"{ratio:.3g} of the closed form; {proved}, {enough}",
        ],
    ]
    return "\n".join(aligned(rows))


def solve_targets(plan: Plan, data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Replace each target that a query of the plan's data states by its solution; return the solutions, as JSON."""
    queries = zip(plan.queries, data["queries"], strict=True)
    return [solution for query, part in queries for solution in _solve(query, part)]


def _solve(query: Query, data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Replace every `calibrate` of a query's data by its solution, and yield the solutions."""
    for part in query.parts:
        holder, key = data, "mechanism"
        if part.name == OTHERS:
            holder, key = data["mechanism"], "others"
        elif part.name is not None:
            holder, key = data["mechanism"]["parts"], part.name
        spec: dict[str, Any] = holder[key]
        if "calibrate" not in spec:
            continue
        kind = type(part.mechanism)
        solved = [name for name in (offset_of(kind), scale_of(kind)) if name is not None and name not in spec]
        scales = {name: as_json(getattr(part.mechanism, name)) for name in solved}
        holder[key] = {}
        for name, value in spec.items():
            holder[key] |= scales if name == "calibrate" else {name: value}
        of_part = {} if part.name is None else {"part": part.name}
        yield {"query": query.name} | of_part | {"calibrate": spec["calibrate"]} | scales


def write_plan(text: str, out: Path, plan: Plan, given: Mapping[str, str]) -> None:
    """Write the text of `plan` into a new file of its folder, `out`, and read it again: it must be the same plan.

    Raises PlanError on an `out` in another folder, StateError where it exists.
    """
    if out.resolve().parent != plan.path.resolve().parent:
        raise PlanError(f"--out {out}: must lie in the plan's own folder, to which the plan's paths are relative")
    try:
        with out.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise StateError(f"--out {out}: it exists already: give a new file") from None
    except OSError as error:
        raise PlanError(f"--out {out}: it cannot be written ({error.strerror})") from None
    if load_plan(out, given).digest != plan.digest:
        out.unlink()
        raise PrdpError(f"--out {out}: it would not be the same plan; write the scales by hand")


def _figure(value: float | None) -> str:
    return "infinite" if value is None else f"{value:.6g}"


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {_values(v) if isinstance(v, dict) else v}" for k, v in values.items())
