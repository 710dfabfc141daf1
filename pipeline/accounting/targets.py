"""Targets of calibration, in place of a noise scale: an accuracy at a total, or a loss at an influence.

Every target grows or falls with the noise. `reached` decides, and `gap`, the logarithm of how far off a mechanism is,
leads a search: below 0 where there is too little noise.
"""

from dataclasses import dataclass, fields
from fractions import Fraction
from math import inf, log, sqrt
from typing import Any, ClassVar

from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.parameters import SMALLEST
from udfs.noise.weights import beyond
from udfs.numbers.exact import exact, up_text


class CalibrationError(ValueError):
    """The target cannot be met; the message states the best that can be."""


@dataclass(frozen=True, kw_only=True)
class _Target:
    """Numbers, each exact and above 0, but for a total, which may be 0. The first is the value that is wanted."""

    what: ClassVar[str]
    widest: ClassVar[bool] = False  # whether the most noise is wanted that does not yet reach it
    extremes: ClassVar[tuple[str, str]] = ("least", "largest")  # its values with the least noise and with the most
    may_be_narrow: ClassVar[bool] = False  # whether noise beside which rounding shows meets it too

    def __post_init__(self) -> None:
        for field in fields(self):
            number = exact(getattr(self, field.name))
            least = field.name == "total"
            if not (number > 0 or (least and number == 0)):
                raise CalibrationError(f"{field.name}: must be {'at least' if least else 'above'} 0")
            if number and not SMALLEST <= number <= 1 / SMALLEST:
                raise CalibrationError(f"{field.name}: must be between 1e-50 and 1e50")
            object.__setattr__(self, field.name, number)

    @property
    def wanted(self) -> float:
        """The value that is wanted."""
        return float(getattr(self, fields(self)[0].name))

    def value(self, mechanism: Mechanism) -> Any:
        """Return the value that `mechanism` has."""
        raise NotImplementedError

    def gap(self, mechanism: Mechanism) -> float:
        """Return ln(value / wanted)."""
        return _log_ratio(self.value(mechanism), self.wanted)

    def reached(self, mechanism: Mechanism) -> bool:
        """Return whether the value is at least the wanted one."""
        return bool(self.value(mechanism) >= self.wanted)


@dataclass(frozen=True, kw_only=True)
class StandardErrorTarget(_Target):
    """A standard error of the released value at a true total, both in the measure's unit."""

    standard_error: Fraction
    total: Fraction = Fraction(0)
    what: ClassVar[str] = "standard error"

    def value(self, mechanism: Mechanism) -> float:
        """Return the standard error that `mechanism` has."""
        return sqrt(mechanism.variance(float(self.total)))


@dataclass(frozen=True, kw_only=True)
class AbsoluteErrorTarget(_Target):
    """A mean absolute error of the released value at a true total, both in the measure's unit."""

    mean_absolute_error: Fraction
    total: Fraction = Fraction(0)
    what: ClassVar[str] = "mean absolute error"

    def value(self, mechanism: Mechanism) -> float:
        """Return the mean absolute error that `mechanism` has."""
        return mechanism.mean_absolute_error(float(self.total))


@dataclass(frozen=True, kw_only=True)
class IntervalTarget(_Target):
    """A width, from end to end, of the interval of `coverage` that is released for a true total were the noise 0.

    Intervals of lattice noise end on whole steps. So the noise is the most whose interval is not wider than wanted.
    """

    interval: Fraction
    coverage: Fraction
    total: Fraction = Fraction(0)
    what: ClassVar[str] = "width of the interval"
    widest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.coverage < 1:
            raise CalibrationError("coverage: must be below 1")

    def value(self, mechanism: Mechanism) -> float:
        """Return the width that `mechanism` has."""
        total = 0.0 if mechanism.additive else float(self.total)  # a large one would swallow the width
        lower, upper = mechanism.interval_around(total, self.coverage)
        return upper - lower

    def gap(self, mechanism: Mechanism) -> float:
        """Return ln(width / wanted); of additive noise, which has whole widths, what grows without steps.

        With c the half-width wanted, ln(ln(1 − coverage) / ln P(|Z| > c)): ln(σ/c) and a constant for Laplace noise.
        """
        if not mechanism.additive:
            return super().gap(mechanism)
        outside = beyond(mechanism.form.noise.weights, int(self.interval / 2 // mechanism.step))
        if outside in (0.0, 1.0):
            return inf if outside else -inf
        return log(log(1 - self.coverage) / log(outside))

    def reached(self, mechanism: Mechanism) -> bool:
        """Return whether the interval is wider than wanted."""
        return self.value(mechanism) > self.wanted


@dataclass(frozen=True, kw_only=True)
class LossTarget(_Target):
    """A PRzCDP loss that a record of `influence`, in the measure's unit, may have at most."""

    loss: Fraction
    influence: Fraction
    what: ClassVar[str] = "loss"
    extremes: ClassVar[tuple[str, str]] = ("largest", "least")
    may_be_narrow: ClassVar[bool] = True

    def value(self, mechanism: Mechanism) -> Fraction:
        """Return the certified loss that `mechanism` has."""
        return mechanism.loss_at(self.influence)

    def gap(self, mechanism: Mechanism) -> float:
        """Return ln(wanted / loss)."""
        return -_log_ratio(self.value(mechanism), self.loss)

    def reached(self, mechanism: Mechanism) -> bool:
        """Return whether the loss is at most the wanted one, exactly."""
        return self.value(mechanism) <= self.loss


Target = StandardErrorTarget | AbsoluteErrorTarget | IntervalTarget | LossTarget


def shown(value: Any) -> str:
    """Return a value of a target for people."""
    return up_text(value) if isinstance(value, Fraction) else f"{value:.6g}"


def _log_ratio(value: float | Fraction, wanted: float | Fraction) -> float:
    if value in (0, inf):
        return -inf if value == 0 else inf
    return log(value / wanted)
