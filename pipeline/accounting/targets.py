"""Targets of calibration, in place of a noise scale: an accuracy at a total, or a loss, ε or (ε, δ) at an influence.

Every target grows or falls with the noise. `reached` decides, and `gap`, the logarithm of how far off a mechanism is,
leads a search: below 0 where there is too little noise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from math import ceil, inf, log, sqrt
from typing import Any, ClassVar

from pipeline.accounting.gaussian import closed_scale, exact_scale
from udfs.losses.distribution import delta_of
from udfs.losses.gaussian import delta_above
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.gaussian import GaussianNoise
from udfs.mechanisms.parameters import SMALLEST
from udfs.noise.weights import beyond
from udfs.numbers.exact import exact, up_float, up_text

LARGEST_EPSILON = 1000
DIGITS = 7  # of a computed δ, rounded up: its last bits depend on the processor


class CalibrationError(ValueError):
    """The target cannot be met; the message states the best that can be."""


class WrongNumber(CalibrationError):
    """A number of a target breaks its rule; carries both, so that a message can name the option."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: must be {rule}")
        self.field = field
        self.rule = rule


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
                raise WrongNumber(field.name, f"{'at least' if least else 'above'} 0")
            if number and not SMALLEST <= number <= 1 / SMALLEST:
                raise WrongNumber(field.name, "between 1e-50 and 1e50")
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
            raise WrongNumber("coverage", "below 1")

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
class RelativeErrorTarget(_Target):
    """A mean absolute error below `relative_error` times the true total, at this total and at all larger ones.

    Errors relative to the total fall as it grows, of every kind. So the noise is the most with which it is below.
    """

    relative_error: Fraction
    total: Fraction = Fraction(1)
    what: ClassVar[str] = "relative error"
    widest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.total > 0:
            raise WrongNumber("total", "above 0: an error relative to nothing has no bound")

    def value(self, mechanism: Mechanism) -> float:
        """Return the mean absolute error of `mechanism` over the total."""
        return mechanism.mean_absolute_error(float(self.total)) / float(self.total)


@dataclass(frozen=True, kw_only=True)
class QuantileTarget(RelativeErrorTarget):
    """An absolute error that with the probability `quantile` is at most `relative_error` times the true total.

    0.5 is the median relative error. At all larger totals too.
    """

    quantile: Fraction
    what: ClassVar[str] = "quantile of the relative error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.quantile < 1:
            raise WrongNumber("quantile", "below 1")

    def value(self, mechanism: Mechanism) -> float:
        """Return this quantile of |error| of `mechanism` over the total."""
        return mechanism.error_quantile(float(self.total), self.quantile) / float(self.total)

    def reached(self, mechanism: Mechanism) -> bool:
        """Return whether the quantile, of additive noise a whole number of steps, is above the wanted one."""
        return self.value(mechanism) > self.wanted


@dataclass(frozen=True, kw_only=True)
class ShareTarget(_Target):
    """At least a `share` of all cells whose |error| is at most `within` times their true total.

    `sizes`: pairs of a total above 0 and how many cells have it, or more. Its value is the share of the others.
    """

    share: Fraction
    within: Fraction
    sizes: tuple[tuple[float, float], ...]
    what: ClassVar[str] = "share of cells with larger errors"
    widest: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise WrongNumber("share", "above 0 and below 1")
        if not self.within > 0:
            raise WrongNumber("within", "above 0")

    @property
    def total(self) -> Fraction:
        """No total of its own."""
        return Fraction(0)

    @property
    def wanted(self) -> float:
        """The share of cells whose errors may be larger."""
        return float(1 - self.share)

    def value(self, mechanism: Mechanism) -> float:
        """Return the share of cells whose errors are larger."""
        shares = [count * mechanism.error_share(size, float(self.within) * size) for size, count in self.sizes]
        return max(0.0, 1 - sum(shares) / sum(count for _, count in self.sizes))

    def reached(self, mechanism: Mechanism) -> bool:
        """Return whether more cells have larger errors than may have."""
        return self.value(mechanism) > self.wanted


@dataclass(frozen=True, kw_only=True)
class GroupTarget(RelativeErrorTarget):
    """A relative error, and a loss v(`group`) ≤ `group_loss` of a record in a cell of `group` records.

    It is met by two parameters: the noise scale by the error, the offset a by the loss (docs/groupwise.md).
    """

    group_loss: Fraction
    group: Fraction

    @property
    def of_error(self) -> RelativeErrorTarget:
        """The relative error alone."""
        return RelativeErrorTarget(relative_error=self.relative_error, total=self.total)

    @property
    def rises(self) -> bool:
        """Whether v(group) grows with the offset: it falls in groups up to the total at which the error is met."""
        return self.group > self.total


@dataclass(frozen=True, kw_only=True)
class _Bound(_Target):
    """What a mechanism may have at most, decided exactly: the first field."""

    extremes: ClassVar[tuple[str, str]] = ("largest", "least")
    may_be_narrow: ClassVar[bool] = True

    def gap(self, mechanism: Mechanism) -> float:
        """Return ln(wanted / value)."""
        return -_log_ratio(self.value(mechanism), self._most)

    def reached(self, mechanism: Mechanism) -> bool:
        """Return whether the value is at most the wanted one, exactly."""
        return bool(self.value(mechanism) <= self._most)

    @property
    def _most(self) -> Fraction:
        most: Fraction = getattr(self, fields(self)[0].name)
        return most


@dataclass(frozen=True, kw_only=True)
class LossTarget(_Bound):
    """A PRzCDP loss that a record of `influence`, in the measure's unit, may have at most."""

    loss: Fraction
    influence: Fraction
    what: ClassVar[str] = "loss"

    def value(self, mechanism: Mechanism) -> Fraction:
        """Return the certified loss that `mechanism` has."""
        return mechanism.loss_at(self.influence)


@dataclass(frozen=True, kw_only=True)
class PureTarget(_Bound):
    """A pure loss ε that a record of `influence`, in the measure's unit, may have at most."""

    epsilon: Fraction
    influence: Fraction
    what: ClassVar[str] = "pure loss"

    def value(self, mechanism: Mechanism) -> Fraction:
        """Return the pure loss that `mechanism` has; raises CalibrationError where it has none."""
        pure = mechanism.pure_loss_at(self.influence)
        if pure is None:
            raise CalibrationError("this noise has no pure loss; name a delta beside epsilon")
        return pure


@dataclass(frozen=True, kw_only=True)
class ApproximateTarget(_Target):
    """(ε, δ) for a record of `influence`, in the measure's unit, by the noise on the lattice where it is drawn.

    Of Gaussian noise δ(ε) is exact (udfs.losses.gaussian), of other noise an upper bound close to it.
    """

    epsilon: Fraction
    delta: Fraction
    influence: Fraction
    what: ClassVar[str] = "delta"
    extremes: ClassVar[tuple[str, str]] = ("largest", "least")
    may_be_narrow: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.delta < 1:
            raise WrongNumber("delta", "below 1")
        if not self.epsilon <= LARGEST_EPSILON:
            raise WrongNumber("epsilon", f"at most {LARGEST_EPSILON}")

    def value(self, mechanism: Mechanism) -> Fraction:
        """Return the δ that `mechanism` has at ε, rounded up."""
        noise, shift = mechanism.form.noise, mechanism.form.shift_at(self.influence)
        if isinstance(noise, GaussianNoise):
            return delta_above(noise.weights, ceil(shift / noise.lattice_step), self.epsilon)
        pair = noise.pair_at(shift)
        if pair is None:
            return Fraction(1)
        return Fraction(up_text(Fraction(delta_of(pair, -up_float(-self.epsilon), float(self.delta))), DIGITS))

    def gap(self, mechanism: Mechanism) -> float:
        """Return, of Gaussian noise, ln(σ/σ₀), σ₀ being the scale of continuous noise; else ln(ln δ/ln(wanted δ))."""
        noise, shift = mechanism.form.noise, mechanism.form.shift_at(self.influence)
        if isinstance(noise, GaussianNoise):
            return log(noise.scale / shift / Fraction(self.of_one))
        value = self.value(mechanism)
        if not 0 < value < 1:
            return inf if value == 0 else -inf
        return log(log(value) / log(self.delta))

    def reached(self, mechanism: Mechanism) -> bool:
        """Return whether δ is at most the wanted one, by its bound."""
        return self.value(mechanism) <= self.delta

    @property
    def of_one(self) -> float:
        """The scale of continuous Gaussian noise for a shift of 1."""
        return exact_scale(float(self.epsilon), float(self.delta))


@dataclass(frozen=True, kw_only=True)
class ClosedTarget(ApproximateTarget):
    """(ε, δ) by paper 3's closed form for Gaussian noise: σ at least `closed_scale` for what a record moves.

    It is proved for continuous noise. On the lattice its condition is checked: the exact δ(ε) is at most δ too.
    """

    def value(self, mechanism: Mechanism) -> Fraction:
        """Return the δ that `mechanism` has at ε, rounded up; raises CalibrationError unless its noise is Gaussian."""
        if not isinstance(mechanism.form.noise, GaussianNoise):
            raise CalibrationError("the closed form is one of Gaussian noise; leave bound: closed out")
        return super().value(mechanism)

    def reached(self, mechanism: Mechanism) -> bool:
        """Return whether the scale is at least that of the closed form, and δ at most the wanted one."""
        least = Fraction(self.of_one) * mechanism.form.shift_at(self.influence)
        return mechanism.form.noise.scale >= least and super().reached(mechanism)

    @property
    def of_one(self) -> float:
        """The closed form for a shift of 1."""
        return closed_scale(float(self.epsilon), float(self.delta))


BOUNDS = ("exact", "closed")  # which condition decides of Gaussian noise


AtTotal = StandardErrorTarget | AbsoluteErrorTarget | IntervalTarget | RelativeErrorTarget
AtRecord = LossTarget | PureTarget | ApproximateTarget
Accuracy = AtTotal | ShareTarget
Target = Accuracy | AtRecord


def shown(value: Any) -> str:
    """Return a value of a target for people."""
    return up_text(value) if isinstance(value, Fraction) else f"{value:.6g}"


def _log_ratio(value: float | Fraction, wanted: float | Fraction) -> float:
    if value in (0, inf):
        return -inf if value == 0 else inf
    return log(value / wanted)


# Targets as they are asked for, by the name of what is wanted, and what goes with what.

OF_NAME: Mapping[str, type[_Target]] = {
    "standard_error": StandardErrorTarget,
    "mean_absolute_error": AbsoluteErrorTarget,
    "relative_error": RelativeErrorTarget,
    "interval": IntervalTarget,
    "loss": LossTarget,
    "epsilon": PureTarget,
}
AT_A_RECORD = ("loss", "epsilon")  # the others are at a total
BESIDE = (("delta", "epsilon"), ("bound", "delta"), ("group_loss", "relative_error"), ("group", "group_loss"))


def target_of(name: str, given: Mapping[str, Fraction | None], bound: str | None = None) -> Target:
    """Return the target of a name in OF_NAME, from the numbers `given` by the names of its fields; others are left out.

    Raises WrongNumber where a number breaks its rule.
    """
    kind = OF_NAME[name]
    if name == "epsilon" and given.get("delta") is not None:
        kind = ClosedTarget if bound == "closed" else ApproximateTarget
    elif name == "relative_error" and given.get("group_loss") is not None:
        kind = GroupTarget
    wanted: Any = {field.name: given[field.name] for field in fields(kind) if given.get(field.name) is not None}
    target: Target = kind(**wanted)  # type: ignore[assignment]
    return target
