"""Calibration without a plan: one mechanism, all families, Gaussian scales; no microdata are read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.accounting import targets
from pipeline.accounting.calibrate import KIND, LEAST, Least, Number, best_alpha, solve
from pipeline.accounting.convert import GaussianScales, classical_scale, closed_scale
from pipeline.accounting.targets import CalibrationError, Target, WrongNumber
from pipeline.base.errors import PlanError, arg, hint, in_a_line
from pipeline.base.plain import aligned, figure, mechanism_text
from pipeline.base.plots import REFERENCE, line_style, write_picture
from pipeline.plan.messages import NEVER_RELEASED
from pipeline.plan.structure import TOTALS, errors_at, infinite_error
from pipeline.planning.explain.explain_text import error_lines
from pipeline.planning.explain.explanation import COUNTS, SIZES, groups_json
from pipeline.planning.study.comparison import Comparison, Objective, compare
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import as_json, bound_text, exact, up_float

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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


DELTAS = (0.99, 0.1, 1e-2, 1e-5, 1e-9)
LONGEST = 12.0  # ε up to which the classical scale is tried
POINTS = 200
Margin = Callable[[float, float, float], float]


def sufficient_margin(epsilon: float, delta: float, scale: float) -> float:
    """Return 1 − P(|N| > εσ − 1/(2σ))/δ: below 0 where the condition of its proof fails (the paper's (7))."""
    from scipy.special import ndtr  # noqa: PLC0415 — for the figures alone

    return float(1 - 2 * ndtr(-(epsilon * scale - 0.5 / scale)) / delta)


def exact_margin(epsilon: float, delta: float, scale: float) -> float:
    """Return 1 − δ(ε)/δ, δ(ε) = Φ(1/(2σ) − εσ) − e^ε·Φ(−1/(2σ) − εσ): below 0 where (ε, δ) itself fails (its (11))."""
    from scipy.special import log_ndtr  # noqa: PLC0415

    first, second = 0.5 / scale - epsilon * scale, -0.5 / scale - epsilon * scale
    return float(1 - (np.exp(log_ndtr(first)) - np.exp(epsilon + log_ndtr(second))) / delta)


def ratio(epsilon: float, delta: float) -> float:
    """Return the classical scale over the closed one."""
    return classical_scale(epsilon, delta) / closed_scale(epsilon, delta)


def ratio_bounds(delta: Floats) -> tuple[Floats, Floats]:
    """Return the ratio's limits as ε → 0 and ε → 1: √(ln(1.25/δ)/z) and 2·√(ln(1.25/δ))/(√(z + 1) + √z), δ ≤ ½."""
    surprise, classical = -np.log(4 * delta * (1 - delta)), np.log(1.25 / delta)
    return np.sqrt(classical / surprise), 2 * np.sqrt(classical) / (np.sqrt(surprise + 1) + np.sqrt(surprise))


def plot_scales(target: Path) -> None:
    """Write paper 3's figures 1 and 2 to `target`, an SVG or PNG file; PlanError for another kind or no such place."""

    def draw(panels: Sequence["Axes"]) -> None:
        longer, shorter = np.linspace(0.05, LONGEST, POINTS), np.linspace(0.005, 1, POINTS)
        for axes, margin in zip(panels[:2], (sufficient_margin, exact_margin), strict=True):
            for i, delta in enumerate(DELTAS):
                drawn = [margin(epsilon, delta, classical_scale(epsilon, delta)) for epsilon in longer.tolist()]
                axes.plot(longer, drawn, **line_style(i))
            axes.axhline(0.0, **REFERENCE)
            axes.set(xlabel="ε", ylim=(-1, 1.02))
        for i, delta in enumerate(DELTAS):
            shown = shorter if delta <= 0.5 else shorter[:0]  # its limits are for δ ≤ ½
            ratios = [ratio(epsilon, delta) for epsilon in shown.tolist()]
            panels[2].plot(shown, ratios, label=f"δ = {delta:g}", **line_style(i))
        panels[2].set(xlabel="ε")
        deltas = np.geomspace(1e-12, 0.1, POINTS)
        for bound, name, dash in zip(ratio_bounds(deltas), ("ε → 0", "ε → 1"), ("-", "--"), strict=True):
            panels[3].semilogx(deltas, bound, label=name, **line_style(len(DELTAS), dash))
        panels[3].set(xlabel="δ")
        for axes, title in zip(panels, TITLES, strict=True):
            axes.set_title(title, fontsize=9)

    write_picture(target, "The classical scale of Gaussian noise for (ε, δ)", draw, panels=4, size=(16, 4.6))


TITLES = (
    "1 (a) 1 − P(|N| > εσ − 1/(2σ))/δ: the condition of its proof",
    "1 (b) 1 − δ(ε)/δ: (ε, δ) itself",
    "2 (a) over the closed scale",
    "2 (b) its limits",
)
