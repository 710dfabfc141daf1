"""The kinds of additive mechanisms (docs/mathematics.md, sections 3 and 11).

Light tails: Gaussian and Laplace noise, and the baseline that splits large records. Heavy tails, whose losses grow like
a root or a logarithm of the influence, and weights that are a table: docs/tight.md, docs/design.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isqrt
from typing import Any, ClassVar, final

import numpy as np

from udfs.losses.curve import laplace_zcdp
from udfs.losses.nodes import pure_exactly, pure_of
from udfs.losses.stable_policy import envelope
from udfs.mechanisms.additive import FLOAT_SLACK, LATTICE, LATTICES, POLICY, AdditiveMechanism
from udfs.mechanisms.base import Losses, ParameterError, above, at_least, choice, table
from udfs.noise.heavy_weights import CauchyWeights, GeneralizedGaussianWeights, PolylogWeights, StableWeights
from udfs.noise.piecewise import PiecewiseWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import (
    as_json,
    asinh_above,
    exact,
    exp_above,
    laplace_zcdp_above,
    log_power_rise_above,
    power_above,
    up_text,
)

DIGITS = 10**80  # of the noise scale beyond the point of its square's size


class GaussianNoise(AdditiveMechanism):
    """Discrete Gaussian noise of scale σ: PRzCDP with Δ²/(2σ²) on every lattice; no pure loss.

    Source: Canonne, Kamath, Steinke 2020, theorem 4.
    """

    tabled: ClassVar[bool] = False
    formula: str = "Δ²/(2σ²)"

    @property
    def log_weights(self) -> GaussianWeights:
        return GaussianWeights(scale=self.steps)

    def loss_at(self, influence: Fraction) -> Fraction:
        return influence**2 / (2 * self.scale**2)

    def loss(self, influence: Floats) -> Floats:
        return (influence / float(self.scale)) ** 2 / 2 * (1 + FLOAT_SLACK)

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        return None if influence else Fraction(0)

    def pure_loss(self, influence: Floats) -> Floats:
        return np.where(influence > 0, inf, 0.0)

    def renyi_of_noise(self, influence: Fraction, orders: Floats) -> Floats:
        return np.full(np.shape(orders), inf)


@final
@dataclass(frozen=True, kw_only=True)
class Gaussian(GaussianNoise):
    """Discrete Gaussian noise of scale `sigma`: PRzCDP with P(Δ) = Δ²/(2σ²) on every lattice; no pure loss.

    Source: paper 1, section 5 (its Δ²/σ² lacks the 2).
    """

    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("paper", doc="which proven bound states the loss: the paper's is exact")

    kind: ClassVar[str] = "gaussian"


@final
@dataclass(frozen=True, kw_only=True)
class UnitSplitting(GaussianNoise):
    """Every record is split into A = ⌈Δ/T⌉ pieces of at most T; discrete Gaussian noise gives each piece rho-zCDP.

    PRzCDP with P(Δ) = Δ²/(2σ²), or with the paper's policy ρ·⌈Δ/T⌉²; no pure loss. Proof: the noise has σ ≥ T/√(2ρ),
    and the sum is the same with and without splitting, so a record costs Δ²/(2σ²) ≤ ρ·(Δ/T)² ≤ ρ·⌈Δ/T⌉². A changed
    value costs d²/(2σ²) of the difference d, as of any Gaussian noise. Source: paper 1, section 2.5;
    docs/mathematics.md, section 3.
    """

    threshold: Fraction = above(0, "largest piece T of a record, in the measure's unit")
    rho: Fraction = above(0, "zCDP loss of one piece")
    policy: str = choice("tight", "paper", doc=POLICY)

    kind: ClassVar[str] = "unit_splitting"
    scale_parameter: ClassVar[str] = "threshold"

    @property
    def scale(self) -> Fraction:
        """T/√(2ρ), rounded up: what the policy promises can only be more than kept."""
        # σ = √(T²/(2ρ)) = √(n/m) ≤ (isqrt(n·m·D²) + 1)/(m·D)
        square = self.threshold**2 / (2 * self.rho)
        n, m = square.numerator, square.denominator
        return Fraction(isqrt(n * m * DIGITS**2) + 1, m * DIGITS)

    @property
    def formula(self) -> str:  # type: ignore[override]
        return "Δ²/(2σ²), σ = T/√(2ρ) rounded up" if self.tight else "ρ·⌈Δ/T⌉²"

    def loss_at(self, influence: Fraction) -> Fraction:
        return super().loss_at(influence) if self.tight else self.rho * self._pieces(influence) ** 2

    def loss(self, influence: Floats) -> Floats:
        # an influence means its shortest decimal where it is near a multiple of T
        if self.tight:
            return super().loss(influence)
        pieces = influence / float(self.threshold)
        doubtful = np.abs(pieces - np.rint(pieces)) <= pieces * FLOAT_SLACK
        distinct, index = np.unique(influence[doubtful], return_inverse=True)
        pieces[doubtful] = np.array([float(self._pieces(exact(float(x)))) for x in distinct])[index]
        return float(self.rho) * np.ceil(pieces) ** 2 * (1 + FLOAT_SLACK)

    def _losses_of(self, shift: Fraction) -> Losses:
        return super().loss_at(shift), self.pure_loss_at(shift)

    def _pieces(self, influence: Fraction) -> int:
        return -(-influence // self.threshold)


@final
@dataclass(frozen=True, kw_only=True)
class Laplace(AdditiveMechanism):
    """Discrete Laplace noise of scale `sigma`: PRDP with P(Δ) = Δ/σ, PRzCDP with tanh(P/2)·P.

    With the tight policy PRzCDP with P − (s/sinh s)·(1 − e^{−P}), s = λ/σ, which no smaller one is (docs/tight.md).
    Source: paper 1, theorem on additive mechanisms with w(z) = −z/σ (generalized Gaussian, p = 1), and its lemma
    that P-PRDP implies tanh(P/2)·P-PRzCDP. Influences are multiples of the step: the microdata contract sees to it.
    """

    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("tight", "paper", doc=POLICY)
    lattice: str = choice(*LATTICES, doc=LATTICE)

    kind: ClassVar[str] = "laplace"
    pure_formula: ClassVar[str | None] = "Δ/σ"
    tabled: ClassVar[bool] = False

    @property
    def log_weights(self) -> LaplaceWeights:
        return LaplaceWeights(scale=self.steps)

    @property
    def formula(self) -> str:
        if self.tight:
            return "P − (s/sinh s)·(1 − e^(−P)) with the pure loss P = Δ/σ and s = λ/σ"
        return super().formula

    def loss_at(self, influence: Fraction) -> Fraction:
        # the tight loss, rounded up, is never above the paper's
        paper = self._paper_at(influence)
        return min(paper, laplace_zcdp_above(influence / self.scale, 1 / self.steps)) if self.tight else paper

    def loss(self, influence: Floats) -> Floats:
        if not self.tight:
            return super().loss(influence)
        return laplace_zcdp(influence / float(self.scale), 1 / self.steps) * (1 + FLOAT_SLACK)

    def pure_loss_at(self, influence: Fraction) -> Fraction:
        return influence / self.scale

    def pure_loss(self, influence: Floats) -> Floats:
        return influence / float(self.scale) * (1 + FLOAT_SLACK)


CONVEX = Fraction(1, 10**27)  # what bounds of ln(…)^p may lie above it, relatively
LEAST, MOST = Fraction("1.01"), Fraction("1.999")  # between 1 and 2 series and tables stay of a size to compute
EXACT_STEPS = 2.0**46  # below it doubles of influences lie less than a quarter of a step off them


@final
@dataclass(frozen=True, kw_only=True)
class GeneralizedGaussian(AdditiveMechanism):
    """Noise with weights e^{−(|z|/σ)^p} on the lattice: PRDP with P(Δ) = (Δ/σ)^p, PRzCDP with tanh(P/2)·P.

    Proof: x ↦ x^p is concave for p ≤ 1, so | |z/σ|^p − |(z − Δ)/σ|^p | ≤ (Δ/σ)^p for every lattice point z.
    Sources: paper 1, theorem 5.3 and corollary 5.6 (which needs p > 0), and its lemma from PRDP to PRzCDP.
    """

    p: Fraction = above(0, "exponent of the distance in the log-density: the loss grows like Δ^p", at_most=1)
    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("tight", "paper", doc=POLICY)
    lattice: str = choice(*LATTICES, doc=LATTICE)

    kind: ClassVar[str] = "generalized_gaussian"
    pure_formula: ClassVar[str | None] = "(Δ/σ)^p"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_range("sigma", "smaller")

    @property
    def log_weights(self) -> GeneralizedGaussianWeights:
        return GeneralizedGaussianWeights(p=self.p, scale=self.steps)

    def pure_loss_at(self, influence: Fraction) -> Fraction:
        return power_above(influence / self.scale, self.p)

    def pure_loss(self, influence: Floats) -> Floats:
        return np.power(influence / float(self.scale), float(self.p)) * (1 + FLOAT_SLACK)


@final
@dataclass(frozen=True, kw_only=True)
class ExponentialPolylog(AdditiveMechanism):
    """Noise with weights e^{−d·ln(|z|/σ + a)^p} on the lattice: PRDP with P(Δ) = d·[ln(Δ/σ + a)^p − ln(a)^p].

    PRzCDP with tanh(P/2)·P. Proof: w(z) = −d·ln(z/σ + a)^p falls and is convex on the lattice, so that
    |w(|z|) − w(|z − Δ|)| ≤ w(0) − w(Δ) = P(Δ) for every lattice point z. w is convex where z/σ + a ≥ e^{p−1}; for an
    `a` a little below it, as a decimal of e is, w need only be convex in its first step, which is checked: beyond it
    the function is. Sources: paper 1, theorem 5.3, corollary 5.7 and the lemma from PRDP to PRzCDP.
    """

    p: Fraction = at_least(1, "power of the logarithm in the log-density: the loss grows like ln(Δ)^p", at_most=100)
    d: Fraction = above(0, "factor of the logarithm's power: the higher, the lighter the tails")
    a: Fraction = at_least(1, "offset inside the logarithm, in noise scales")
    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("tight", "paper", doc=POLICY)
    lattice: str = choice(*LATTICES, doc=LATTICE)

    kind: ClassVar[str] = "exponential_polylog"
    pure_formula: ClassVar[str | None] = "d·(ln(Δ/σ + a)^p − ln(a)^p)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p == 1 and not self.d > 1:
            raise ParameterError("d", "above 1 where p is 1: the noise has no distribution otherwise")
        least = exp_above(self.p - 1)
        if self.p > 1 and self.a < least:
            # concave up to z₀ = σ(e^{p−1} − a) at most: inside the first step, w must still be convex at its end
            late = self.sigma * (least - self.a) > self.lattice_step
            once, twice = (self._fall(steps * self.lattice_step) for steps in (1, 2))
            if self.a == 1 or late or 2 * once * (1 - CONVEX) < twice:
                rule = f"at least e^(p−1), here {up_text(least, 16)}: the policy needs convex weights"
                raise ParameterError("a", rule)
        self._require_range("d", "larger")

    @property
    def log_weights(self) -> PolylogWeights:
        return PolylogWeights(p=self.p, d=self.d, a=self.a, scale=self.steps)

    def _fall(self, distance: Fraction) -> Fraction:
        return log_power_rise_above(distance / (self.sigma * self.a), self.a, self.p)

    def pure_loss_at(self, influence: Fraction) -> Fraction:
        return self.d * self._fall(influence)

    def pure_loss(self, influence: Floats) -> Floats:
        in_units = PolylogWeights(p=self.p, d=self.d, a=self.a, scale=self.scale)
        return -in_units.fast(influence) * (1 + FLOAT_SLACK)


@final
@dataclass(frozen=True, kw_only=True)
class SymmetricStable(AdditiveMechanism):
    """Noise of weights p(z/γ)/p(0) on the lattice, p of characteristic function e^{−|t|^α}: PRDP with P.

    P(Δ) = sup_x ln[p(x − Δ/γ)/p(x)] over all real x, so that the loss on any lattice is at most P: for α = 1 (Cauchy)
    2·arsinh(Δ/(2γ)); for 1.01 ≤ α ≤ 1.999 no closed form is known and a certified bound is stated, at most one part in
    1000 above P (udfs.losses.stable_policy). PRzCDP with tanh(P/2)·P, or with the tight policy the loss of this very
    noise, certified from above (docs/tight.md, section 9). The variance is infinite, for α = 1 the mean absolute error
    too. Continuous noise of this family is closed under sums: n cells added have scale γ·n^(1/α); on a lattice nearly.
    Sources: paper 4, theorems 16 (P is finite) and 25 (α = 1, its eq. 73); paper 1's lemma from PRDP to PRzCDP.
    """

    alpha: Fraction = at_least(1, "exponent of the characteristic function: tails fall like |z|^(−1−α)", at_most=2)
    gamma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("tight", "paper", doc=POLICY)

    kind: ClassVar[str] = "symmetric_stable"
    scale_parameter: ClassVar[str] = "gamma"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.alpha == 1 or LEAST <= self.alpha <= MOST):
            raise ParameterError("alpha", f"1, or from {float(LEAST)} to {float(MOST)} (2 is the kind gaussian)")

    @property
    def log_weights(self) -> CauchyWeights | StableWeights:
        return CauchyWeights(scale=self.steps) if self.alpha == 1 else StableWeights(alpha=self.alpha, scale=self.steps)

    @property
    def pure_formula(self) -> str:
        return "2·arsinh(Δ/(2γ))" if self.alpha == 1 else "sup ln(p(x − Δ/γ)/p(x)), p the stable density of exponent α"

    def pure_loss_at(self, influence: Fraction) -> Fraction:
        if self.alpha == 1:
            return 2 * asinh_above(influence / (2 * self.scale))
        return envelope(self.alpha).at(influence / self.scale)

    def pure_loss(self, influence: Floats) -> Floats:
        u = influence / float(self.scale)
        pure = 2 * np.arcsinh(u / 2) if self.alpha == 1 else envelope(self.alpha)(u)
        return pure * (1 + FLOAT_SLACK)


@final
@dataclass(frozen=True)
class WeightTable:
    """Log-weights at knots of the lattice, in steps of the measure."""

    weights: PiecewiseWeights

    def to_json(self) -> dict[str, Any]:
        """Return the table as plans and policies hold it; `from_json` reads it back."""
        return {"steps": list(self.weights.steps), "log_weights": [as_json(log) for log in self.weights.logs]}

    @classmethod
    def from_json(cls, data: object) -> "WeightTable":
        """Return the table of JSON data; raises ValueError, which says what is wrong, on anything else."""
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping) or set(data) != {"steps", "log_weights"}:
            raise ValueError("a table of steps and log_weights, as prdp study design writes one")
        steps, logs = data["steps"], data["log_weights"]
        if not isinstance(steps, list | tuple) or not all(type(k) is int for k in steps):
            raise ValueError("a table whose steps are whole numbers")
        if not isinstance(logs, list | tuple) or any(isinstance(log, str) for log in logs):
            raise ValueError("a table whose log_weights are numbers")
        try:
            return cls(PiecewiseWeights(steps=tuple(steps), logs=tuple(map(exact, logs))))
        except TypeError:
            raise ValueError("a table whose log_weights are numbers") from None
        except ValueError as error:
            raise ValueError(f"a table of which {error}") from None


@final
@dataclass(frozen=True, kw_only=True)
class Designed(AdditiveMechanism):
    """Noise whose weights on the lattice are a table, such as `prdp study design` computes for limits.

    PRDP with P(Δ) = max over lattice points z of |w(|z|) − w(|z − Δ|)|, which a table decides exactly; PRzCDP with the
    tight loss of this very noise, certified from the table whoever made it (docs/design.md, section 3). Weights must
    not rise with the distance, so that losses grow with the influence.
    """

    weights: WeightTable = table(
        "log-weights at knots of the lattice: a file that prdp study design wrote, or its table", WeightTable.from_json
    )
    policy: str = choice("tight", "paper", doc=POLICY)

    kind: ClassVar[str] = "designed"
    scale_parameter: ClassVar[str] = "weights"
    pure_formula: ClassVar[str | None] = "max |w(z) − w(z − Δ)|, w the table's log-weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_range("weights", "a table with lighter tails")

    @property
    def scale(self) -> Fraction:
        return self.step

    @property
    def log_weights(self) -> PiecewiseWeights:
        return self.weights.weights

    def pure_loss_at(self, influence: Fraction) -> Fraction:
        # exactly; between two steps that of the next one
        return pure_exactly(self.log_weights, -(-influence // self.step))

    def pure_loss(self, influence: Floats) -> Floats:
        steps = influence / float(self.step)
        off = np.where(steps < EXACT_STEPS, 1 - 2.0**-48, 1 + 2.0**-50)  # not a step too few: it may be a cliff
        return pure_of(self.log_weights, np.ceil(steps * off)) * (1 + FLOAT_SLACK)
