"""The one abstract class of mechanisms, and how their parameters are declared and checked."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from udfs.losses.curve import TightCurve, of_pure, of_zcdp, tight_curve
from udfs.noise.keystream import Bits
from udfs.noise.lattice import LatticeTable, build_table
from udfs.noise.weights import LogWeights
from udfs.numbers.exact import as_json, exact, up_float

FLOAT_SLACK = 2.0**-40  # losses of whole arrays are computed in doubles and raised by this: far above their error


SMALLEST = Fraction(1, 10**50)  # parameters and steps lie between it and its inverse: doubles hold all they imply


class ParameterError(ValueError):
    """A mechanism's parameter breaks its rule; carries both, so that a plan's error can name the place."""

    def __init__(self, parameter: str, rule: str) -> None:
        super().__init__(f"{parameter}: must be {rule}")
        self.parameter = parameter
        self.rule = rule


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What a plan may say about one parameter of a mechanism."""

    name: str
    kind: Literal["number", "choice"]
    rule: str
    doc: str
    default: object | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    exclusive: bool = False
    maximum: float | None = None
    whole: bool = False

    def allows(self, number: Fraction) -> bool:
        """Return whether a number keeps the rule."""
        return (
            (self.minimum is None or number > self.minimum or (number == self.minimum and not self.exclusive))
            and (self.maximum is None or number <= self.maximum)
            and (number.denominator == 1 or not self.whole)
        )


def above(minimum: int, doc: str, *, at_most: int | None = None) -> Any:
    """Declare a number that must lie above `minimum`."""
    return _number(f"above {minimum}", at_most, minimum=minimum, exclusive=True, doc=doc)


def at_least(minimum: int, doc: str, *, at_most: int | None = None, whole: bool = False) -> Any:
    """Declare a number that may be `minimum` or more, or a whole one."""
    rule = f"a whole number of at least {minimum}" if whole else f"at least {minimum}"
    return _number(rule, at_most, minimum=minimum, whole=whole, doc=doc)


def _number(rule: str, at_most: int | None, **facts: Any) -> Any:
    limit = "" if at_most is None else f" and at most {at_most}"
    return field(metadata={"kind": "number", "rule": rule + limit, "maximum": at_most} | facts)


def choice(*choices: str, doc: str) -> Any:
    """Declare one of the given words; the first is the default."""
    rule = choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    return field(default=choices[0], metadata={"kind": "choice", "rule": rule, "choices": choices, "doc": doc})


@dataclass(frozen=True)
class Released:
    """Released values of one query's cells, equally long arrays in cell order.

    Of an additive mechanism `value`, `lower` and `upper` are int64 counts of lattice steps, else float64 in the
    measure's unit; `standard_error` is float64 in the measure's unit.
    """

    value: NDArray[Any]
    lower: NDArray[Any]
    upper: NDArray[Any]
    standard_error: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """A mechanism M for totals over disjoint cells, with its policy P.

    Guarantee: for two sets of microdata that differ in one record of influence Δ, and every order α > 1, the Rényi
    divergence of M's outputs, in both directions, is at most α·P(Δ), P(Δ) = `loss_at(Δ)` (PRzCDP); the max divergence
    is at most `pure_loss_at(Δ)` where that is not None (PRDP). Influences are in the measure's unit, totals are whole
    numbers of `step`, at most 2⁶³ − 1 in magnitude. Every public cell is released, with independent bits. A mechanism
    that is `counts_only` is for counts of records, not for sums of a measure.

    Subclasses are final, hold exact numbers (udfs.numbers.exact) and raise ParameterError on construction.
    """

    step: Fraction = Fraction(1)

    kind: ClassVar[str]
    additive: ClassVar[bool]
    needs_nonnegative: ClassVar[bool]
    counts_only: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", exact(self.step))
        if not SMALLEST <= self.step <= 1 / SMALLEST:
            raise ParameterError("step", "between 1e-50 and 1e50")
        for parameter in self.parameters().values():
            object.__setattr__(self, parameter.name, _checked(parameter, getattr(self, parameter.name)))

    @classmethod
    def parameters(cls) -> Mapping[str, Parameter]:
        """Return the parameters a plan may give, by name."""
        declared = {f.name: Parameter(name=f.name, **_facts(f)) for f in fields(cls) if f.metadata}
        return MappingProxyType(declared)

    def describe(self) -> dict[str, object]:
        """Return kind and parameters, as JSON values."""
        values = {name: getattr(self, name) for name in self.parameters()}
        return {"kind": self.kind} | {n: as_json(v) if isinstance(v, Fraction) else v for n, v in values.items()}

    @property
    @abstractmethod
    def formula(self) -> str:
        """The policy function in the parameters, the influence Δ and the lattice step λ."""

    @property
    @abstractmethod
    def pure_formula(self) -> str | None:
        """The pure loss likewise, or None where there is none."""

    @property
    @abstractmethod
    def lattice_step(self) -> Fraction:
        """The step of the lattice on which the noise is drawn (λ)."""

    @abstractmethod
    def loss_at(self, influence: Fraction) -> Fraction:
        """Return P(influence), the PRzCDP loss: exact where it is rational, else an upper bound; P(0) = 0."""

    @abstractmethod
    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return the PRDP loss as `loss_at` does, or None where the mechanism has none."""

    def renyi_at(self, influence: Fraction, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return upper bounds of D_α at the orders α > 1, in both directions, for a record of this influence."""
        curve = of_zcdp(up_float(self.loss_at(influence)), orders)
        pure = self.pure_loss_at(influence)
        return curve if pure is None else np.minimum(curve, of_pure(up_float(pure), orders))

    def change_losses_at(self, low: Fraction, high: Fraction) -> tuple[Fraction, Fraction | None]:
        """Return rho and epsilon of a record's value that is `low` or `high` ≥ `low`, all else being equal.

        As `loss_at` and `pure_loss_at` of the difference: the totals are those of a record of that influence, present
        or absent. Transformations lose less: their totals are at least `low` (docs/mathematics.md, section 10).
        """
        return self.loss_at(high - low), self.pure_loss_at(high - low)

    def factor_losses_at(self, factor: Fraction) -> tuple[Fraction, Fraction | None] | None:
        """Return the same for any value and any other within a `factor` ≥ 1 of it; None where there is no bound."""
        return (Fraction(0), Fraction(0)) if factor == 1 else None

    @abstractmethod
    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return upper bounds of P for whole arrays of influences ≥ 0, within one part in 10¹¹."""

    @abstractmethod
    def pure_loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the PRDP loss for whole arrays as `loss` does; infinite where there is none and influence > 0."""

    @abstractmethod
    def variance(self, total: float) -> float:
        """Return the variance of the released value at a true total, in squared units; infinite where there is none.

        It is that of the noise before values saturate at the ends of their type.
        """

    @abstractmethod
    def mean_absolute_error(self, total: float) -> float:
        """Return E|released value − total| at a true total ≥ 0, in the measure's unit; infinite where there is none."""

    @abstractmethod
    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        """Return the interval that is released for a true total when the noise happens to be 0."""

    @abstractmethod
    def weights(self) -> LogWeights:
        """Return the log-weights of the noise on its lattice."""

    @property
    def fineness(self) -> int:
        """How many steps of the noise's lattice are one step of the measure, where additive noise is rounded."""
        return 1

    @property
    def too_narrow(self) -> bool:
        """Whether rounding, which variances and standard errors leave out, shows beside the noise."""
        return False

    @property
    def saturation(self) -> float:
        """The probability that noise leaves 63 bits of lattice steps, where values are held."""
        return self.weights().moments.beyond

    @cached_property
    def table(self) -> LatticeTable:
        """The sampler's table: built on first use, on the driver, and pickled with the mechanism."""
        return build_table(self.weights())

    @property
    def tabled(self) -> bool:
        """Whether the policy is a curve that is computed, not a formula."""
        return False

    @cached_property
    def loss_curve(self) -> TightCurve | None:
        """The curve of a tabled policy: computed on first use, on the driver, and pickled with the mechanism."""
        return tight_curve(self.weights(), self.fineness) if self.tabled else None

    def with_curve(self, curve: TightCurve) -> Self:
        """Return this mechanism with the losses of a stored curve; raises TypeError unless its policy is tabled."""
        if not self.tabled:
            raise TypeError(f"{self.kind}: its policy is a formula and takes no curve")
        held = copy.copy(self)
        held.__dict__["loss_curve"] = curve
        return held

    @abstractmethod
    def release(self, totals: NDArray[np.int64], bits: Bits, interval: Fraction) -> Released:
        """Return released values of `totals` (in steps), with intervals of coverage at least `interval`."""


WIDEST = 2**55
MOST_BEYOND = 1 - 1e-9


def require_scale(parameter: str, scale: Fraction) -> None:
    """Refuse noise of so many lattice steps that hardly any released value would lie in the range of 63 bits."""
    if scale > WIDEST:
        raise ParameterError(parameter, "at most 2⁵⁵ steps of the measure")


def require_range(mechanism: Mechanism, parameter: str, advice: str) -> None:
    """Refuse tails so heavy that nearly no released value would lie in the range of 63 bits."""
    if not mechanism.saturation < MOST_BEYOND:
        raise ParameterError(parameter, f"{advice}: with these tails nearly every value would lie beyond 63 bits")


def _facts(declared: Any) -> dict[str, Any]:
    default = {} if declared.metadata["kind"] == "number" else {"default": declared.default}
    return dict(declared.metadata) | default


def _checked(parameter: Parameter, value: object) -> Fraction | str:
    if parameter.kind == "choice":
        if value not in parameter.choices:
            raise ParameterError(parameter.name, parameter.rule)
        return str(value)
    try:
        number = exact(value)  # type: ignore[arg-type]  # it checks the type itself
    except (TypeError, ValueError):
        rule = parameter.rule if parameter.whole else f"a number {parameter.rule}"
        raise ParameterError(parameter.name, rule) from None
    if number and not SMALLEST <= abs(number) <= 1 / SMALLEST:
        raise ParameterError(parameter.name, "between 1e-50 and 1e50")
    if not parameter.allows(number):
        raise ParameterError(parameter.name, parameter.rule)
    return number
