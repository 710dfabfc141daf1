"""Calibration of a mechanism, of all families, of Gaussian scales, or of each target of a plan; reads no microdata."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.accounting import targets
from pipeline.accounting.calibrate import KIND, LEAST, Least, Number, best_alpha, offset_of, scale_of, solve
from pipeline.accounting.convert import GaussianScales
from pipeline.accounting.targets import CalibrationError, Target, WrongNumber
from pipeline.base.errors import PlanError, PrdpError, StateError, arg, hint, in_a_line
from pipeline.base.plain import aligned, figure, mechanism_text
from pipeline.plan.load import NOTHING, load_plan
from pipeline.plan.messages import NEVER_RELEASED
from pipeline.plan.model import OTHERS, Plan
from pipeline.plan.plan_text import read_text, unshared, written
from pipeline.plan.structure import TOTALS, errors_at, infinite_error, warnings
from pipeline.planning.explain_text import error_lines
from pipeline.planning.explanation import COUNTS, SIZES, groups_json
from pipeline.planning.study.comparison import Comparison, Objective, compare
from pipeline.planning.verdict import named_part
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.numbers.exact import as_json, bound_text, exact, up_float

if TYPE_CHECKING:
    pass


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
        raise PlanError(f"{arg('kind', in_a_line(kind))}: {why}")
    known = CATALOGUE[kind].parameters()
    for name in fixed:
        if name not in known:
            unknown = f"{arg('set')} {in_a_line(name)}"
            raise PlanError(f"{unknown}: {kind} has no such parameter{hint(name, known, 'parameter')}")
    try:
        yield
    except ParameterError as error:
        option = arg(error.parameter) if error.parameter in ("kind", "step") else f"{arg('set')} {error.parameter}"
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
    stated = (0.0,) if mechanism.additive else tuple(sorted({*map(float, shown), *totals}))
    result = {
        "mechanism": mechanism.describe(),
        "step": as_json(mechanism.step),
        "formula": mechanism.formula,
        "losses": losses,
        "accuracy": [errors_at(mechanism, total, interval) for total in stated],
        "warnings": [warning] if (warning := infinite_error(mechanism)) else [],
    } | groups_json(mechanism)
    if target is None or "delta" not in target.numbers:
        return result
    numbers = {"epsilon": float(target["epsilon"]), "influence": float(target["influence"])}
    bound = {"bound": "closed" if target.quantity == "closed" else "exact"}
    return result | {"delta": numbers | bound | {"delta": up_float(target.value(mechanism))}}


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
        rows = [[f"{e['alpha']}", f"{e['gamma']}", figure(e["value"], none="infinite")] for e in best["tried"]]
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
        ["classical", f"{scales.classical:.7g}", f"{ratio:.3g} of the closed form; {proved}, {enough}"],
    ]
    return "\n".join(aligned(rows))


OnTry = Callable[[int], None]


@dataclass(frozen=True)
class Asked:
    """The options of `prdp.calibrate` by name, None where left out.

    Every method raises PlanError, which names the option, where the call is wrong or cannot be met.
    """

    options: Mapping[str, Any]

    def number(self, name: str) -> Fraction:
        """Return a number as the decimal that was written, exactly."""
        value = self.options[name]
        try:
            return value if isinstance(value, Fraction) else exact(str(value))
        except ValueError:
            raise PlanError(f"{arg(name)}: must be a number") from None

    def broken(self, name: str, rule: str) -> PlanError:
        """Return the error for a number that breaks its rule; an influence is what `at` gives."""
        return PlanError(f"{arg('at' if name == 'influence' else name)}: must be {rule}")

    def target(self) -> Target:
        """Return the accuracy or loss that is wanted."""
        chosen = [name for name in targets.TARGETS if self._has(name)]
        if len(chosen) != 1:
            raise PlanError("give exactly one of " + ", ".join(map(arg, targets.TARGETS)))
        name = chosen[0]
        argument, other = ("at", "total") if name in targets.AT_A_RECORD else ("total", "at")
        if self._has(other) and not (other == "at" and self.options["best_alpha"] == "loss"):
            wrong, with_it = arg(other), arg(name)
            raise PlanError(f"{wrong}: cannot be combined with {with_it}; give {arg(argument)}")
        for option, beside in targets.BESIDE:
            if self._has(option) and not self._has(beside):
                raise PlanError(f"{arg(option)}: needs {arg(beside)} beside it")
        if self._has("group_loss"):
            self.require("group", "give the number of records of the group that may lose so much")
        if name in targets.AT_A_RECORD:
            self.require("at", "give the influence of the record that may lose so much")
        if self.options["bound"] not in (None, *targets.BOUNDS):
            raise self.broken("bound", f"one of {', '.join(targets.BOUNDS)}")
        options = (name, "total", "delta", "group_loss", "group", "coverage", "at")
        numbers: dict[str, Any] = {option: self.number(option) for option in options if self._has(option)}
        try:
            return Target.of(name, bound=self.options["bound"], influence=numbers.pop("at", None), **numbers)
        except WrongNumber as error:
            raise self.broken(error.field, error.rule) from None
        except CalibrationError as error:
            raise PlanError(str(error)) from None

    def one(self, on_try: OnTry) -> dict[str, Any]:
        """Return the mechanism of `kind` that meets the target, as JSON; `on_try`(n) before the n-th α, if asked."""
        target, kind = self.target(), self.options["kind"]
        if kind in CATALOGUE and not CATALOGUE[kind].additive and not self._has("at"):
            self.require("total", "the error of this kind grows with the true total")
        fixed = {name: _exact_or_text(value) for name, value in (self.options["parameters"] or {}).items()}
        step, coverage = self.number("step"), self.number("coverage")
        if self._has("best_alpha"):
            influence = self.number("at") if self._has("at") else None
            least = Least(what=self.options["best_alpha"], coverage=coverage, influence=influence)
            return best_alpha_json({"kind": kind, **fixed}, step, target, least, on_try)
        totals = (float(self.number("total")),) if self._has("total") else ()
        return mechanism_json(calibrated(kind, fixed, step, target), totals, coverage, target)

    def comparison(self, on_try: OnTry) -> Comparison:
        """Return all families at the accuracy; `on_try`(n) before the n-th shape."""
        if self._has("best_alpha"):
            raise PlanError(f"{arg('best_alpha')}: needs {arg('kind')} beside it")
        target = self.target()
        if target.at_record:
            name = "loss" if self._has("loss") else "epsilon"
            other = f"give {arg('standard_error')}, for instance, and {arg('total')}"
            raise PlanError(f"{arg(name)}: a comparison is at equal accuracy; {other}")
        limit = self.number("limit") if self._has("limit") else None
        try:
            objective = Objective(self.options["objective"], limit)
        except ValueError as error:  # which begins with the option's name
            raise PlanError(f"{error}") from None
        self.require("total", "the true total of a typical cell, at which all are equally accurate")
        if self.options["count"] and self._has("sizes"):
            raise PlanError(f"{arg('sizes')}: cannot be combined with {arg('count')}")
        sizes = (
            targets.ONE_EACH
            if self.options["count"]
            else targets.read_sizes(Path(self.options["sizes"] or targets.BUILT_IN))
        )
        compared = compare(target, sizes, objective, self.number("step"), on_try)
        if not compared.candidates:
            raise PlanError(f"{arg('compare')}: no family can have this accuracy; ask for another")
        return compared

    def require(self, name: str, what: str) -> None:
        """Return if an option is there."""
        if not self._has(name):
            raise PlanError(f"{arg(name)}: missing; {what}")

    def _has(self, name: str) -> bool:
        return self.options[name] is not None


def _exact_or_text(value: Any) -> Fraction | str:
    try:
        return value if isinstance(value, Fraction) else exact(str(value))
    except ValueError:
        return str(value)


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
    require_beside(out, plan.path)
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


def require_beside(out: Path, path: Path) -> None:
    """Raise PlanError unless a file to be written lies in the folder of the plan at `path`."""
    if out.resolve().parent != path.resolve().parent:
        raise PlanError(f"{arg('out', out)}: must lie in the plan's own folder, to which the plan's paths are relative")


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {_values(v) if isinstance(v, dict) else v}" for k, v in values.items())
