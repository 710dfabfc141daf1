"""The one abstract class of mechanisms, and the form that each of them has: how totals become released values."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from udfs.losses.atoms import Pair
from udfs.losses.curve import TightCurve, of_pure, of_zcdp
from udfs.mechanisms.noise import Noise
from udfs.mechanisms.parameters import SMALLEST, Parameter, ParameterError, declared
from udfs.noise.keystream import Bits
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.exact import as_json, exact, up_float, up_text

WIDEST = 2**55
MOST_BEYOND = 1 - 1e-9
EXCESS_DIGITS = 3
TIGHT = "sup D_α(Z ‖ Z + Δ)/α over α > 1, Z being the noise on its lattice (docs/tight.md); at most "
ZERO, ONE = Fraction(0), Fraction(1)
Losses = tuple[Fraction, Fraction | None]  # rho and epsilon


def _as_json(value: Any) -> object:
    if isinstance(value, Fraction):
        return as_json(value)
    return value if isinstance(value, str) else value.to_json()


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
class Form(ABC):
    """How totals become released values: what a record of some influence moves, the noise on it, and what follows.

    Only what the noise protects depends on the microdata; all else is computed from it. Subclasses are final.
    """

    noise: Noise

    def shift_at(self, influence: Fraction, above: Fraction = ZERO) -> Fraction:
        """Return how far a record can move the noise's centre, from above; 0 at no influence.

        The totals concerned are at least `above` ≥ 0.
        """
        return influence

    def least_shift_at(self, influence: Fraction) -> Fraction | None:
        """Return how far a record of this influence moves the noise's centre at some totals; None where it may not."""
        return None

    def least_loss_at(self, influence: Fraction) -> float:
        """Return a lower bound of the PRzCDP loss of what is drawn; 0 where none is known."""
        shift = self.least_shift_at(influence)
        return 0.0 if shift is None else self.noise.least_loss_at(shift)

    def shift(self, influence: Floats) -> Floats:
        """Return `shift_at` for whole arrays, within 2⁻⁴⁵ relatively."""
        return influence

    def shift_by_factor(self, factor: Fraction) -> Fraction | None:
        """Return how far a value multiplied by up to `factor` > 1 can move it; None where there is no bound."""
        return None

    def renyi_at(self, influence: Fraction, orders: Floats) -> Floats:
        """Return upper bounds of D_α that the losses do not imply; infinite where none are known."""
        return np.full(np.shape(orders), np.inf)

    @property
    def too_narrow(self) -> bool:
        """Whether rounding, which variances and standard errors leave out, shows beside the noise."""
        return False

    @property
    def estimator(self) -> str | None:
        """What of the estimates of a total is the total, `mean` or `median`; None where values are noisy totals."""
        return None

    @abstractmethod
    def variance(self, total: float) -> float:
        """Return the variance of the released value at a true total, in squared units; infinite where there is none."""

    @abstractmethod
    def mean_absolute_error(self, total: float) -> float:
        """Return E|released value − total| at a true total ≥ 0; infinite where there is none."""

    @abstractmethod
    def error_quantile(self, total: float, level: Fraction) -> float:
        """Return what |released value − total| exceeds with probability 1 − `level` at most, at a true total ≥ 0."""

    @abstractmethod
    def error_share(self, total: float, most: float) -> float:
        """Return P(|released value − total| ≤ most) at a true total ≥ 0."""

    @abstractmethod
    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        """Return the interval that is released for a true total when the noise happens to be 0."""

    @abstractmethod
    def release(self, totals: Int64s, bits: Bits, interval: Fraction) -> Released:
        """Return released values of `totals` (in steps), with intervals of coverage at least `interval`."""

    def continuous(self) -> Any:
        """Return the law that released values approach on finer lattices; None where it has no closed forms."""
        return None


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """A mechanism M for totals over disjoint cells, with its policy P.

    Guarantee: for two sets of microdata that differ in one record of influence Δ, and every order α > 1, the Rényi
    divergence of M's outputs, in both directions, is at most α·P(Δ), P(Δ) = `loss_at(Δ)` (PRzCDP); the max divergence
    is at most `pure_loss_at(Δ)` where that is not None (PRDP). Influences are in the measure's unit, totals are whole
    numbers of `step`, at most 2⁶³ − 1 in magnitude. Every public cell is released, with independent bits. A mechanism
    that is `counts_only` is for counts of records, not for sums of a measure.

    A subclass is final. It declares its parameters as exact numbers (udfs.numbers.exact), states its formulas, and
    says of which noise and which form it is made (`form`, a cached property, so that what is computed for the noise is
    kept and pickled with the mechanism). All else is here. Construction raises ParameterError.
    """

    step: Fraction = Fraction(1)

    kind: ClassVar[str]
    scale_parameter: ClassVar[str] = "sigma"
    additive: ClassVar[bool] = True
    needs_nonnegative: ClassVar[bool] = False
    counts_only: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", exact(self.step))
        if not SMALLEST <= self.step <= 1 / SMALLEST:
            raise ParameterError("step", "between 1e-50 and 1e50")
        for parameter in self.parameters().values():
            object.__setattr__(self, parameter.name, parameter.checked(getattr(self, parameter.name)))
        if self.form.noise.steps > WIDEST:  # else hardly any released value would lie in the range of 63 bits
            raise ParameterError(self.scale_parameter, "at most 2⁵⁵ steps of the measure")

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
    def form(self) -> Form:
        """How the mechanism is made."""

    @property
    def formula(self) -> str:
        """The policy function in the parameters, the influence Δ and the lattice step λ."""
        tight = TIGHT if self.form.noise.tabled else ""
        return f"{tight}tanh(P/2)·P with the pure loss P = {self.pure_formula}"

    @property
    def pure_formula(self) -> str | None:
        """The pure loss likewise, or None where there is none."""
        return None

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return P(influence), the PRzCDP loss: exact where it is rational, else an upper bound; P(0) = 0."""
        return self.form.noise.loss_at(self.form.shift_at(influence))

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return the PRDP loss as `loss_at` does, or None where the mechanism has none."""
        return self.form.noise.pure_loss_at(self.form.shift_at(influence))

    def loss(self, influence: Floats) -> Floats:
        """Return upper bounds of P for whole arrays of influences ≥ 0, within one part in 10¹¹."""
        return self.form.noise.loss(self.form.shift(influence))

    def pure_loss(self, influence: Floats) -> Floats:
        """Return the PRDP loss for whole arrays as `loss` does; infinite where there is none and influence > 0."""
        return self.form.noise.pure_loss(self.form.shift(influence))

    def renyi_at(self, influence: Fraction, orders: Floats) -> Floats:
        """Return upper bounds of D_α at the orders α > 1, in both directions, for a record of this influence."""
        curve = np.minimum(of_zcdp(up_float(self.loss_at(influence)), orders), self.form.renyi_at(influence, orders))
        pure = self.pure_loss_at(influence)
        return curve if pure is None else np.minimum(curve, of_pure(up_float(pure), orders))

    def pair_at(self, influence: Fraction) -> Pair | None:
        """Return two laws of which every test between the outputs with and without such a record is one too.

        In both directions, and of all records of at most this influence (udfs.losses.atoms); None where none are known.
        """
        return self.form.noise.pair_at(self.form.shift_at(influence))

    def excess_at(self, influence: Fraction) -> float | None:
        """Return by what share of it the stated loss may lie above the true one, at most; None where it is not known.

        0.01 is one per cent. The true loss is that of the noise as it is drawn, on its lattice, before estimators and
        rounding, which can only lower it; a certified lower bound stands in its place (docs/tight.md, section 10).
        """
        stated = self.loss_at(influence)
        if not stated:
            return 0.0
        least = self.form.least_loss_at(influence)
        return float(up_text(stated / Fraction(least) - 1, EXCESS_DIGITS)) if least > 0 else None

    def change_losses_at(self, low: Fraction, high: Fraction) -> Losses:
        """Return rho and epsilon of a record's value that is `low` or `high` ≥ `low` ≥ 0, all else being equal.

        The totals are those of a record of the difference, present or absent. Transformations lose less than that:
        other contributions being ≥ 0, their totals are at least `low` (docs/mathematics.md, section 10).
        """
        shift = self.form.shift_at(high - low, low)
        return self.form.noise.loss_at(shift), self.form.noise.pure_loss_at(shift)

    def factor_losses_at(self, factor: Fraction) -> Losses | None:
        """Return the same for any value and any other within a `factor` ≥ 1 of it; None where there is no bound."""
        shift = self.form.shift_by_factor(factor) if factor > 1 else ZERO
        return None if shift is None else (self.form.noise.loss_at(shift), self.form.noise.pure_loss_at(shift))

    def change_pair_at(self, low: Fraction, high: Fraction) -> Pair | None:
        """Return `pair_at` for a record's value that is `low` or `high` ≥ `low` ≥ 0, all else being equal."""
        return self.form.noise.pair_at(self.form.shift_at(high - low, low))

    def factor_pair_at(self, factor: Fraction) -> Pair | None:
        """Return the same for any value and any other within a `factor` ≥ 1 of it; None also without a bound."""
        shift = self.form.shift_by_factor(factor) if factor > 1 else ZERO
        return None if shift is None else self.form.noise.pair_at(shift)

    def group_loss_at(self, total: Fraction, influence: Fraction = ONE) -> Fraction | None:
        """Return the zCDP loss in a cell of a true total, where larger cells lose less; None where they do not.

        It discloses the total: report it at public totals, or inside the enclave alone.
        """
        return None

    def variance(self, total: float) -> float:
        """Return the variance of the released value at a true total, in squared units; infinite where there is none.

        It is that of the noise before values saturate at the ends of their type.
        """
        return self.form.variance(total)

    def mean_absolute_error(self, total: float) -> float:
        """Return E|released value − total| at a true total ≥ 0, in the measure's unit; infinite where there is none."""
        return self.form.mean_absolute_error(total)

    def error_quantile(self, total: float, level: Fraction) -> float:
        """Return the quantile of |released value − total| at a true total ≥ 0, in the measure's unit: ½ is its median.

        Of noise on whole steps it is one of these, the smallest that is exceeded with probability 1 − `level` at most.
        Of transformed totals it is within one part in 1000, for levels from 0.01 to 0.99.
        """
        return self.form.error_quantile(total, level)

    def error_share(self, total: float, most: float) -> float:
        """Return P(|released value − total| ≤ most), both in the measure's unit: as exact as `error_quantile`."""
        return self.form.error_share(total, most)

    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        """Return the interval that is released for a true total when the noise happens to be 0."""
        return self.form.interval_around(total, interval)

    def release(self, totals: Int64s, bits: Bits, interval: Fraction) -> Released:
        """Return released values of `totals` (in steps), with intervals of coverage at least `interval`."""
        return self.form.release(totals, bits, interval)

    @property
    def lattice_step(self) -> Fraction:
        """The step of the lattice on which the noise is drawn (λ)."""
        return self.form.noise.lattice_step

    @property
    def too_narrow(self) -> bool:
        """Whether rounding, which variances and standard errors leave out, shows beside the noise."""
        return self.form.too_narrow

    @property
    def saturation(self) -> float:
        """The probability that noise leaves 63 bits of lattice steps, where values are held."""
        return self.form.noise.weights.moments.beyond

    @property
    def tight(self) -> bool:
        """Whether the policy states the loss of this very noise, not of all mechanisms with its pure loss."""
        return getattr(self, "policy", None) == "tight"

    def by_paper(self) -> Self:
        """Return the same noise under the paper's policy."""
        return replace(self, policy="paper") if self.tight else self  # type: ignore[call-arg]

    @property
    def loss_curve(self) -> TightCurve | None:
        """The curve of a policy that is no formula: computed on first use, on the driver, and pickled along."""
        return self.form.noise.loss_curve

    def with_curve(self, curve: TightCurve) -> Self:
        """Return this mechanism with the losses of a stored curve; raises TypeError unless its policy is a curve."""
        if not self.form.noise.tabled:
            raise TypeError(f"{self.kind}: its policy is a formula and takes no curve")
        held = copy.copy(self)
        object.__setattr__(held, "form", replace(self.form, noise=replace(self.form.noise, stored=curve)))
        return held

    def _require_range(self, parameter: str, advice: str) -> None:
        """Refuse tails so heavy that nearly no released value would lie in the range of 63 bits."""
        if not self.saturation < MOST_BEYOND:
            raise ParameterError(parameter, f"{advice}: with these tails nearly every value would lie beyond 63 bits")
