"""The abstract class of mechanisms: what a record loses, how far off values are, totals in and released values out;
and how a mechanism's parameters are declared and checked.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

from numpy.typing import NDArray

from udfs.losses.atoms import Pair
from udfs.losses.curve import TightCurve
from udfs.noise.keystream import Bits
from udfs.noise.weights import LogWeights
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.exact import as_json, exact, up_text

SMALLEST = Fraction(1, 10**50)  # parameters and steps lie between it and its inverse: doubles hold all they imply


class ParameterError(ValueError):
    """A mechanism's parameter breaks its rule; carries both, so that a plan's error can name the key."""

    def __init__(self, parameter: str, rule: str) -> None:
        super().__init__(f"{parameter}: must be {rule}")
        self.parameter = parameter
        self.rule = rule


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What a plan may say about one parameter of a mechanism."""

    name: str
    kind: Literal["number", "choice", "table"]
    rule: str
    doc: str
    default: object | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    exclusive: bool = False
    maximum: float | None = None
    integral: bool = False
    read: Callable[[object], Any] | None = None  # of a table: what the mechanism holds of it; raises ValueError

    def allows(self, number: Fraction) -> bool:
        """Return whether a number keeps the rule."""
        return (
            (self.minimum is None or number > self.minimum or (number == self.minimum and not self.exclusive))
            and (self.maximum is None or number <= self.maximum)
            and (number.denominator == 1 or not self.integral)
        )

    def checked(self, value: object) -> Any:
        """Return the value as an exact number, the word, or the table; ParameterError where it breaks the rule."""
        if self.read is not None:
            try:
                return self.read(value)
            except ValueError as error:
                raise ParameterError(self.name, str(error)) from None
        if self.kind == "choice":
            if value not in self.choices:
                raise ParameterError(self.name, self.rule)
            return str(value)
        try:
            number = exact(value)  # type: ignore[arg-type]  # it checks the type itself
        except (TypeError, ValueError):
            raise ParameterError(self.name, self.rule if self.integral else f"a number {self.rule}") from None
        if number and not SMALLEST <= abs(number) <= 1 / SMALLEST:
            raise ParameterError(self.name, "between 1e-50 and 1e50")
        if not self.allows(number):
            raise ParameterError(self.name, self.rule)
        return number


def above(minimum: int, doc: str, *, at_most: int | None = None) -> Any:
    """Declare a number that must lie above `minimum`."""
    return _number(f"above {minimum}", at_most, minimum=minimum, exclusive=True, doc=doc)


def at_least(minimum: int, doc: str, *, at_most: int | None = None, integral: bool = False) -> Any:
    """Declare a number that may be `minimum` or more, or a whole one."""
    rule = f"a whole number of at least {minimum}" if integral else f"at least {minimum}"
    return _number(rule, at_most, minimum=minimum, integral=integral, doc=doc)


def _number(rule: str, at_most: int | None, **facts: Any) -> Any:
    limit = "" if at_most is None else f" and at most {at_most}"
    return field(metadata={"kind": "number", "rule": rule + limit, "maximum": at_most} | facts)


def choice(*choices: str, doc: str) -> Any:
    """Declare one of the given words; the first is the default."""
    rule = choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    return field(default=choices[0], metadata={"kind": "choice", "rule": rule, "choices": choices, "doc": doc})


def table(doc: str, read: Callable[[object], Any]) -> Any:
    """Declare a table of numbers; `read` returns what the mechanism holds of it, and raises ValueError."""
    return field(metadata={"kind": "table", "rule": "a table", "doc": doc, "read": read})


def declared(mechanism: type) -> Mapping[str, Parameter]:
    """Return the parameters that a mechanism's class declares, by name."""
    result = {}
    for declaration in fields(mechanism):
        if declaration.metadata:
            default = declaration.default if declaration.metadata["kind"] == "choice" else None
            result[declaration.name] = Parameter(name=declaration.name, default=default, **declaration.metadata)
    return MappingProxyType(result)


EXCESS_DIGITS = 3
ZERO, ONE = Fraction(0), Fraction(1)
Losses = tuple[Fraction, Fraction | None]  # rho and epsilon


@dataclass(frozen=True)
class Released:
    """Released values of one query's cells, equally long arrays in cell order.

    Of an additive mechanism `value`, `lower` and `upper` are int64 counts of lattice steps, else float64 in the
    measure's unit; `standard_error` is float64 in the measure's unit.
    """

    value: NDArray[Any]
    lower: NDArray[Any]
    upper: NDArray[Any]
    standard_error: Floats


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """A mechanism M for totals over disjoint cells, with its policy P.

    Guarantee: for two sets of microdata that differ in one record of influence Δ, and every order α > 1, the Rényi
    divergence of M's outputs, in both directions, is at most α·P(Δ), P(Δ) = `loss_at(Δ)` (PRzCDP); the max divergence
    is at most `pure_loss_at(Δ)` where that is not None (PRDP). Influences are in the measure's unit, totals are whole
    numbers of `step`, at most 2⁶³ − 1 in magnitude. Every public cell is released, with independent bits. A mechanism
    that is `counts_only` is for counts of records, not for sums of a measure.

    A kind is a final subclass of AdditiveMechanism or TransformedMechanism (GroupwiseNoisy draws two noises). It
    declares its parameters as exact numbers (udfs.numbers.exact) and states its formulas; what is protected is drawn as
    `lattice_noise`, an additive mechanism. Construction raises ParameterError.
    """

    step: Fraction = Fraction(1)

    kind: ClassVar[str]
    scale_parameter: ClassVar[str] = "sigma"
    additive: ClassVar[bool] = False
    needs_nonnegative: ClassVar[bool] = False
    counts_only: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", exact(self.step))
        if not SMALLEST <= self.step <= 1 / SMALLEST:
            raise ParameterError("step", "between 1e-50 and 1e50")
        for parameter in self.parameters().values():
            object.__setattr__(self, parameter.name, parameter.checked(getattr(self, parameter.name)))
        _ = self.lattice_noise  # raises where it is too wide

    def __getstate__(self) -> dict[str, Any]:
        return vars(self).copy()  # it is pickled while another thread may compute what it keeps

    @classmethod
    def parameters(cls) -> Mapping[str, Parameter]:
        """Return the parameters a plan may give, by name."""
        return declared(cls)

    def describe(self) -> dict[str, object]:
        """Return kind and parameters, as JSON values."""
        values = {name: getattr(self, name) for name in self.parameters()}
        return {"kind": self.kind} | {name: _as_json(value) for name, value in values.items()}

    @property
    @abstractmethod
    def lattice_noise(self) -> "Mechanism":
        """The additive mechanism, with steps of λ, whose noise hides what a record moves."""

    @property
    def log_weights(self) -> LogWeights:
        """The log-weights of this noise, of a scale in lattice steps."""
        return self.lattice_noise.log_weights

    @property
    @abstractmethod
    def formula(self) -> str:
        """The policy function in the parameters, the influence Δ and the lattice step λ."""

    @property
    def pure_formula(self) -> str | None:
        """The pure loss likewise, or None where there is none."""
        return None

    def shift_at(self, influence: Fraction, above: Fraction = ZERO) -> Fraction:
        """Return how far a record can move the noise's centre, from above; 0 at no influence.

        The totals concerned are at least `above` ≥ 0.
        """
        return influence

    def shift(self, influence: Floats) -> Floats:
        """Return `shift_at` for whole arrays, within 2⁻⁴⁵ relatively."""
        return influence

    def shift_by_factor(self, factor: Fraction) -> Fraction | None:
        """Return how far a value multiplied by up to `factor` > 1 can move it; None where there is no bound."""
        return None

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return P(influence), the PRzCDP loss: exact where it is rational, else an upper bound; P(0) = 0."""
        return self.lattice_noise.loss_at(self.shift_at(influence))

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return the PRDP loss as `loss_at` does, or None where the mechanism has none; it never falls."""
        return self.lattice_noise.pure_loss_at(self.shift_at(influence))

    def loss(self, influence: Floats) -> Floats:
        """Return upper bounds of P for whole arrays of influences ≥ 0, within one part in 10¹¹."""
        return self.lattice_noise.loss(self.shift(influence))

    def pure_loss(self, influence: Floats) -> Floats:
        """Return the PRDP loss for whole arrays as `loss` does; infinite where there is none and influence > 0."""
        return self.lattice_noise.pure_loss(self.shift(influence))

    def renyi_at(self, influence: Fraction, orders: Floats) -> Floats:
        """Return upper bounds of D_α at the orders α > 1, in both directions, for a record of this influence."""
        return self.lattice_noise.renyi_at(self.shift_at(influence), orders)

    def pair_at(self, influence: Fraction) -> Pair | None:
        """Return two laws of which every test between the outputs with and without such a record is one too.

        In both directions, and of all records of at most this influence (udfs.losses.atoms); None where none are known.
        """
        return self.lattice_noise.pair_at(self.shift_at(influence))

    @abstractmethod
    def least_loss_at(self, influence: Fraction) -> float:
        """Return a lower bound of the PRzCDP loss of what is drawn; 0 where none is known."""

    def excess_at(self, influence: Fraction) -> float | None:
        """Return by what share of it the stated loss may lie above the true one, at most; None where it is not known.

        0.01 is one per cent. The true loss is that of the noise as it is drawn, on its lattice, before estimators and
        rounding, which can only lower it; a certified lower bound stands in its place (docs/tight.md, section 10).
        """
        stated = self.loss_at(influence)
        if not stated:
            return 0.0
        least = self.least_loss_at(influence)
        return float(up_text(stated / Fraction(least) - 1, EXCESS_DIGITS)) if least > 0 else None

    def change_losses_at(self, low: Fraction, high: Fraction) -> Losses:
        """Return rho and epsilon of a record's value that is `low` or `high` ≥ `low` ≥ 0, all else being equal.

        The totals are those of a record of the difference, present or absent. Transformations lose less than that:
        other contributions being ≥ 0, their totals are at least `low` (docs/mathematics.md, section 10).
        """
        return self._losses_of(self.shift_at(high - low, low))

    def factor_losses_at(self, factor: Fraction) -> Losses | None:
        """Return the same for any value and any other within a `factor` ≥ 1 of it; None where there is no bound."""
        shift = self.shift_by_factor(factor) if factor > 1 else ZERO
        return None if shift is None else self._losses_of(shift)

    def _losses_of(self, shift: Fraction) -> Losses:
        return self.lattice_noise.loss_at(shift), self.lattice_noise.pure_loss_at(shift)

    def change_pair_at(self, low: Fraction, high: Fraction) -> Pair | None:
        """Return `pair_at` for a record's value that is `low` or `high` ≥ `low` ≥ 0, all else being equal."""
        return self.lattice_noise.pair_at(self.shift_at(high - low, low))

    def factor_pair_at(self, factor: Fraction) -> Pair | None:
        """Return the same for any value and any other within a `factor` ≥ 1 of it; None also without a bound."""
        shift = self.shift_by_factor(factor) if factor > 1 else ZERO
        return None if shift is None else self.lattice_noise.pair_at(shift)

    def group_loss_at(self, total: Fraction, influence: Fraction = ONE) -> Fraction | None:
        """Return the zCDP loss in a cell of a true total, where larger cells lose less; None where they do not.

        It discloses the total: report it at public totals, or inside the enclave alone.
        """
        return None

    @abstractmethod
    def variance(self, total: float) -> float:
        """Return the variance of the released value at a true total, in squared units; infinite where there is none.

        It is that of the noise before values saturate at the ends of their type.
        """

    @abstractmethod
    def mean_absolute_error(self, total: float) -> float:
        """Return E|released value − total| at a true total ≥ 0, in the measure's unit; infinite where there is none."""

    @abstractmethod
    def error_quantile(self, total: float, level: Fraction) -> float:
        """Return the quantile of |released value − total| at a true total ≥ 0, in the measure's unit: ½ is its median.

        Of noise on whole steps it is one of these, the smallest that is exceeded with probability 1 − `level` at most.
        Of transformed totals it is within one part in 1000, for levels from 0.01 to 0.99.
        """

    @abstractmethod
    def error_share(self, total: float, most: float) -> float:
        """Return P(|released value − total| ≤ most), both in the measure's unit: as exact as `error_quantile`."""

    @abstractmethod
    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        """Return the interval that is released for a true total when the noise happens to be 0."""

    @abstractmethod
    def release(self, totals: Int64s, bits: Bits, interval: Fraction) -> Released:
        """Return released values of `totals` (in steps), with intervals of coverage at least `interval`."""

    @property
    def continuous(self) -> Any:
        """The law that released values approach on finer lattices; None where it has no closed forms."""
        return None

    @property
    def estimator(self) -> str | None:
        """What of the estimates of a total is the total, `mean` or `median`; None where values are noisy totals."""
        return None

    @property
    def lattice_step(self) -> Fraction:
        """The step of the lattice on which the noise is drawn (λ)."""
        return self.lattice_noise.lattice_step

    @property
    def too_narrow(self) -> bool:
        """Whether rounding, which variances and standard errors leave out, shows beside the noise."""
        return False

    @property
    def saturation(self) -> float:
        """The probability that noise leaves 63 bits of lattice steps, where values are held."""
        return self.log_weights.moments.beyond

    @property
    def tight(self) -> bool:
        """Whether the policy states the loss of this very noise, not of all mechanisms with its pure loss."""
        return getattr(self, "policy", None) == "tight"

    def by_paper(self) -> Self:
        """Return the same noise under the paper's policy."""
        return replace(self, policy="paper") if self.tight else self  # type: ignore[call-arg]

    @property
    def tabled(self) -> bool:
        """Whether the loss is a curve that is computed, not a formula."""
        return False

    @property
    def loss_curve(self) -> TightCurve | None:
        """The curve of a policy that is no formula: computed on first use, on the driver, and pickled along."""
        return None

    def with_curve(self, stored: TightCurve) -> Self:
        """Return this mechanism with the losses of a stored curve; raises TypeError unless its policy is a curve."""
        if not self.tabled:
            raise TypeError(f"{self.kind}: its policy is a formula and takes no curve")
        same = copy.copy(self)
        vars(same)["loss_curve"] = stored
        return same


def _as_json(value: Any) -> object:
    if isinstance(value, Fraction):
        return as_json(value)
    return value if isinstance(value, str) else value.to_json()
