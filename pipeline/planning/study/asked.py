"""What a call of calibration asks for, from Python or the command line: checked by the names of its options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from pipeline.accounting.best_alpha import Least
from pipeline.accounting.targets import (
    AT_A_RECORD,
    BESIDE,
    BOUNDS,
    BUILT_IN,
    ONE_EACH,
    TARGETS,
    CalibrationError,
    Target,
    WrongNumber,
    read_sizes,
)
from pipeline.base.errors import PlanError
from pipeline.planning.explain.calibrated import best_alpha_json, calibrated, mechanism_json
from pipeline.planning.study.comparison import Comparison, Objective, compare
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.numbers.exact import exact

OnTry = Callable[[int], None]


@dataclass(frozen=True)
class Asked:
    """The options of `prdp.calibrate` by name, None where not given; `named` writes a name as its user does.

    Every method raises PlanError, which names the option, where the call is wrong or cannot be met.
    """

    given: Mapping[str, Any]
    named: Callable[[str], str]

    def number(self, name: str) -> Fraction:
        """Return a number as the decimal that was written, exactly."""
        value = self.given[name]
        try:
            return value if isinstance(value, Fraction) else exact(str(value))
        except ValueError:
            raise PlanError(f"{self.named(name)}: must be a number") from None

    def broken(self, name: str, rule: str) -> PlanError:
        """Return the error for a number that breaks its rule; an influence is what `at` gives."""
        return PlanError(f"{self.named('at' if name == 'influence' else name)}: must be {rule}")

    def target(self) -> Target:
        """Return the accuracy or loss that is wanted."""
        chosen = [name for name in TARGETS if self._has(name)]
        if len(chosen) != 1:
            raise PlanError("give exactly one of " + ", ".join(map(self.named, TARGETS)))
        name = chosen[0]
        argument, other = ("at", "total") if name in AT_A_RECORD else ("total", "at")
        if self._has(other) and not (other == "at" and self.given["best_alpha"] == "loss"):
            wrong, with_it = self.named(other), self.named(name)
            raise PlanError(f"{wrong}: means nothing with {with_it}; give {self.named(argument)}")
        for option, beside in BESIDE:
            if self._has(option) and not self._has(beside):
                raise PlanError(f"{self.named(option)}: means nothing without {self.named(beside)}; leave it out")
        if self._has("group_loss"):
            self.require("group", "give the number of records of the group that may lose so much")
        if name in AT_A_RECORD:
            self.require("at", "give the influence of the record that may lose so much")
        if self.given["bound"] not in (None, *BOUNDS):
            raise self.broken("bound", f"one of {', '.join(BOUNDS)}")
        options = (name, "total", "delta", "group_loss", "group", "coverage", "at")
        numbers: dict[str, Any] = {option: self.number(option) for option in options if self._has(option)}
        try:
            return Target.of(name, bound=self.given["bound"], influence=numbers.pop("at", None), **numbers)
        except WrongNumber as error:
            raise self.broken(error.field, error.rule) from None
        except CalibrationError as error:
            raise PlanError(str(error)) from None

    def one(self, on_try: OnTry) -> dict[str, Any]:
        """Return the mechanism of `kind` that meets the target, as JSON; `on_try`(n) before the n-th α, if asked."""
        target, kind = self.target(), self.given["kind"]
        if kind in CATALOGUE and not CATALOGUE[kind].additive and not self._has("at"):
            self.require("total", "the error of this kind grows with the true total")
        fixed = {name: _exact_or_text(value) for name, value in (self.given["parameters"] or {}).items()}
        step, coverage = self.number("step"), self.number("coverage")
        if self._has("best_alpha"):
            influence = self.number("at") if self._has("at") else None
            least = Least(what=self.given["best_alpha"], coverage=coverage, influence=influence)
            return best_alpha_json({"kind": kind, **fixed}, step, target, least, on_try)
        totals = (float(self.number("total")),) if self._has("total") else ()
        return mechanism_json(calibrated(kind, fixed, step, target), totals, coverage, target)

    def comparison(self, on_try: OnTry) -> Comparison:
        """Return all families at the accuracy; `on_try`(n) before the n-th shape."""
        if self._has("best_alpha"):
            raise PlanError(f"{self.named('best_alpha')}: means nothing without {self.named('kind')}; leave it out")
        target = self.target()
        if target.at_record:
            name = "loss" if self._has("loss") else "epsilon"
            other = f"give {self.named('standard_error')}, for instance, and {self.named('total')}"
            raise PlanError(f"{self.named(name)}: a comparison is at equal accuracy; {other}")
        limit = self.number("limit") if self._has("limit") else None
        try:
            objective = Objective(self.given["objective"], limit)
        except ValueError as error:  # which begins with the option's name
            raise PlanError(f"{self.named('')}{error}") from None
        self.require("total", "the true total of a typical cell, at which all are equally accurate")
        if self.given["count"] and self._has("sizes"):
            raise PlanError(f"{self.named('sizes')}: means nothing with {self.named('count')}; leave it out")
        sizes = ONE_EACH if self.given["count"] else read_sizes(Path(self.given["sizes"] or BUILT_IN))
        compared = compare(target, sizes, objective, self.number("step"), on_try)
        if not compared.candidates:
            raise PlanError(f"{self.named('compare')}: no family can have this accuracy; ask for another")
        return compared

    def require(self, name: str, what: str) -> None:
        """Return if an option is given."""
        if not self._has(name):
            raise PlanError(f"{self.named(name)}: missing; {what}")

    def _has(self, name: str) -> bool:
        return self.given[name] is not None


def _exact_or_text(value: Any) -> Fraction | str:
    try:
        return value if isinstance(value, Fraction) else exact(str(value))
    except ValueError:
        return str(value)
