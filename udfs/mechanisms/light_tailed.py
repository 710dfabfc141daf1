"""Additive mechanisms with light tails: Gaussian and Laplace noise, and the baseline that splits large records
(docs/mathematics.md, section 3).
"""

from dataclasses import dataclass
from fractions import Fraction
from math import inf, isqrt
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from udfs.losses.curve import laplace_zcdp
from udfs.mechanisms.additive import FLOAT_SLACK, LATTICE, LATTICES, POLICY, AdditiveMechanism
from udfs.mechanisms.base import Losses
from udfs.mechanisms.parameters import above, choice
from udfs.noise.weights import GaussianWeights, LaplaceWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.bounds import laplace_zcdp_above
from udfs.numbers.exact import exact

if TYPE_CHECKING:
    from udfs.noise import continuous

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

    @property
    def continuous(self) -> "continuous.Gaussian":
        from udfs.noise import continuous  # noqa: PLC0415 — SciPy, which `prdp explain` does without

        return continuous.Gaussian(sigma=float(self.scale))


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

    @property
    def continuous(self) -> "continuous.Laplace":
        from udfs.noise import continuous  # noqa: PLC0415 — SciPy, which `prdp explain` does without

        return continuous.Laplace(scale=float(self.scale))
