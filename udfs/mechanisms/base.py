"""The one abstract class of mechanisms, and how their parameters are declared and checked."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from udfs.exact import as_json, exact
from udfs.keystream import Bits
from udfs.lattice import LatticeTable, build_table
from udfs.weights import LogWeights

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


def above(minimum: int, doc: str) -> Any:
    """Declare a number that must lie above `minimum`."""
    return field(
        metadata={"kind": "number", "rule": f"above {minimum}", "minimum": minimum, "exclusive": True, "doc": doc}
    )


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
    numbers of `step`, at most 2⁶³ − 1 in magnitude. Every public cell is released, with independent bits.

    Subclasses are final, hold exact numbers (udfs.exact) and raise ParameterError on construction.
    """

    step: Fraction = Fraction(1)

    kind: ClassVar[str]
    additive: ClassVar[bool]
    needs_nonnegative: ClassVar[bool]
    formula: ClassVar[str]  # the policy function in the parameters, the influence Δ and the lattice step λ
    pure_formula: ClassVar[str | None]  # likewise of the pure loss

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
    def lattice_step(self) -> Fraction:
        """The step of the lattice on which the noise is drawn (λ)."""

    @abstractmethod
    def loss_at(self, influence: Fraction) -> Fraction:
        """Return P(influence), the PRzCDP loss: exact where it is rational, else an upper bound; P(0) = 0."""

    @abstractmethod
    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return the PRDP loss as `loss_at` does, or None where the mechanism has none."""

    @abstractmethod
    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return upper bounds of P for whole arrays of influences ≥ 0, within one part in 10¹¹."""

    @abstractmethod
    def pure_loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the PRDP loss for whole arrays as `loss` does; infinite where there is none and influence > 0."""

    @abstractmethod
    def variance(self, total: float) -> float:
        """Return the variance of the released value at a true total, in squared units of the measure."""

    @abstractmethod
    def weights(self) -> LogWeights:
        """Return the log-weights of the noise on its lattice."""

    @cached_property
    def table(self) -> LatticeTable:
        """The sampler's table: built on first use, on the driver, and pickled with the mechanism."""
        return build_table(self.weights())

    @abstractmethod
    def release(self, totals: NDArray[np.int64], bits: Bits, interval: Fraction) -> Released:
        """Return released values of `totals` (in steps), with intervals of coverage at least `interval`."""


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
        raise ParameterError(parameter.name, f"a number {parameter.rule}") from None
    if number and not SMALLEST <= abs(number) <= 1 / SMALLEST:
        raise ParameterError(parameter.name, "between 1e-50 and 1e50")
    least = parameter.minimum
    if least is not None and not (number > exact(least) or (number == exact(least) and not parameter.exclusive)):
        raise ParameterError(parameter.name, parameter.rule)
    return number
