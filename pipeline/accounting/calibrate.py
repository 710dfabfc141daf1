"""From what is asked of a mechanism to its noise scale.

Result. The scale is a decimal of at most 8 significant digits, rounded towards more noise, so that the mechanism is
never less private than the exact solution:

- loss: the smallest noise whose certified loss at the influence is at most that asked; one digit less would exceed it;
- standard error, mean absolute error: the smallest noise whose error is at least that asked, in the lattice noise that
  is drawn; it exceeds what was asked by what one step of the eighth digit changes, less than one part in 10⁵ unless it
  grows a hundred times as fast as the scale (as that of a few stray steps does);
- interval: the most noise whose interval is not wider than asked. Widths of lattice noise are whole steps.

Only public numbers enter: no microdata are read (MATH section 10).
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache
from math import inf

from pipeline.accounting.crossing import LOWEST, crossing, decimal, number_below
from pipeline.accounting.targets import CalibrationError, LossTarget, Target, shown
from udfs.exact import exact
from udfs.mechanisms.base import SMALLEST, Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, build

Given = Fraction | int | float | str
Fixed = tuple[tuple[str, Given], ...]
SCALES = {"sigma": 1, "gamma": 1, "rho": -1}  # what is solved for; -1: the noise falls as it grows
STARTS = (Fraction(1), Fraction(1, 4), Fraction(1, 1000))  # scales, one of which a family surely takes
OVERSHOOT = 1e-5  # relative, of an error that can be met


def scale_of(kind: type[Mechanism]) -> str | None:
    """Return the name of the parameter that calibration finds, or None where the kind has none."""
    return next((name for name in SCALES if name in kind.parameters()), None)


def solve(kind: str, fixed: Mapping[str, Given], step: Fraction, target: Target) -> Mechanism:
    """Return the mechanism of `kind` with the parameters `fixed`, on `step`, whose noise scale meets `target`.

    Raises CalibrationError where the target cannot be met, with the best that can be had; ParameterError on an unknown
    kind, or a fixed parameter that is unknown, missing or breaks its rule.
    """
    step = exact(step)
    if not SMALLEST <= step <= 1 / SMALLEST:
        raise ParameterError("step", "between 1e-50 and 1e50")
    if kind not in CATALOGUE:
        build({"kind": kind}, step)  # says so
    name = scale_of(CATALOGUE[kind])
    if name is None:
        raise CalibrationError(f"{kind} has no noise scale to be found")
    if name in fixed:
        raise CalibrationError(f"{name} is what calibration finds; leave it out")
    return _solved(kind, name, tuple(sorted(fixed.items())), step, target)


@lru_cache(maxsize=512)
def _solved(kind: str, name: str, fixed: Fixed, step: Fraction, target: Target) -> Mechanism:
    family = _Family(kind, name, fixed, step, may_be_narrow=isinstance(target, LossTarget))

    def gap(n: int) -> float:
        mechanism = family.at(n)
        return family.beyond(n) if mechanism is None else target.gap(mechanism)

    def reached(n: int) -> bool:
        mechanism = family.at(n)
        return family.beyond(n) > 0 if mechanism is None else target.reached(mechanism)

    least, largest = target.extremes
    first = crossing(gap, reached, family.start)
    if first is None:
        raise _cannot(target, least, family.at(LOWEST), "")
    above, below = family.at(first), family.at(first - 1)
    if above is None or target.gap(above) == inf:
        raise _cannot(target, largest, below, family.objection)
    if below is None and (target.widest or target.gap(above) > OVERSHOOT):
        raise _cannot(target, least, above, family.objection)
    return below if target.widest and below is not None else above


class _Family:
    """The mechanisms of one kind by the number of their scale; more noise as it grows."""

    def __init__(self, kind: str, name: str, fixed: Fixed, step: Fraction, *, may_be_narrow: bool) -> None:
        self.kind, self.name, self.fixed, self.step = kind, name, dict(fixed), step
        self.may_be_narrow = may_be_narrow
        self.objection = ""  # why the scale last tried is none
        self.known: dict[int, Mechanism | None] = {}
        self.start = self._start()

    def at(self, n: int) -> Mechanism | None:
        """Return the n-th mechanism; None where there is none, or where rounding shows beside its noise."""
        if n not in self.known:
            self.known[n] = self._try(n)
        return self.known[n]

    def beyond(self, n: int) -> float:
        """Return on which side of all mechanisms a number lies that has none: too much noise, +∞, or too little."""
        return inf if n > self.start else -inf

    def _start(self) -> int:
        unit = self.step if self.name != "rho" and CATALOGUE[self.kind].additive else Fraction(1)
        for scale in STARTS[:-1]:
            try:
                return self._number(scale * unit)
            except ParameterError:
                continue
        return self._number(STARTS[-1] * unit)

    def _number(self, scale: Fraction) -> int:
        n = SCALES[self.name] * number_below(scale)
        self._build(n)
        return n

    def _build(self, n: int) -> Mechanism:
        scale = decimal(SCALES[self.name] * n)
        return build({"kind": self.kind, **self.fixed, self.name: scale}, self.step)

    def _try(self, n: int) -> Mechanism | None:
        try:
            mechanism = self._build(n)
        except ParameterError as error:
            self.objection = str(error)
            return None
        if mechanism.too_narrow and not self.may_be_narrow:
            self.objection = "with less noise rounding would show beside it"
            return None
        return mechanism


def _cannot(target: Target, which: str, best: Mechanism | None, why: str) -> CalibrationError:
    reason = f" ({why})" if why else ""
    if best is None:
        return CalibrationError(f"a {target.what} of this size cannot be had with these parameters{reason}")
    value = target.value(best)
    if value == inf:
        return CalibrationError(f"the noise has no {target.what}; ask for an interval, a mean absolute error or a loss")
    return CalibrationError(f"cannot be had: the {which} {target.what} with these parameters is {shown(value)}{reason}")
