"""The symmetric α-stable mechanism: additive noise with power tails, whose loss grows like ln Δ
(docs/mathematics.md, section 11).
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from udfs.losses.stable import envelope
from udfs.mechanisms.additive import Additive
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.noise import FLOAT_SLACK, POLICY, Noise
from udfs.mechanisms.parameters import ParameterError, above, at_least, choice
from udfs.noise.stable import CauchyWeights, StableWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.bounds import asinh_above

LEAST, MOST = Fraction("1.01"), Fraction("1.999")  # between 1 and 2 series and tables stay of a size to compute


@final
@dataclass(frozen=True, kw_only=True)
class StableNoise(Noise):
    """Noise of weights p(z/γ)/p(0), p of characteristic function e^{−|t|^α}: PRDP with sup ln[p(x − Δ/γ)/p(x)]."""

    alpha: Fraction

    @property
    def weights(self) -> CauchyWeights | StableWeights:
        """ln(p(k/s)/p(0)), s the scale in steps."""
        return CauchyWeights(scale=self.steps) if self.alpha == 1 else StableWeights(alpha=self.alpha, scale=self.steps)

    def pure_loss_at(self, shift: Fraction) -> Fraction:
        """Return a certified upper bound; it never falls with the shift."""
        if self.alpha == 1:
            return 2 * asinh_above(shift / (2 * self.scale))
        return envelope(self.alpha).at(shift / self.scale)

    def pure_loss(self, shift: Floats) -> Floats:
        """Return the same, rounded up."""
        u = shift / float(self.scale)
        pure = 2 * np.arcsinh(u / 2) if self.alpha == 1 else envelope(self.alpha)(u)
        return pure * (1 + FLOAT_SLACK)


@final
@dataclass(frozen=True, kw_only=True)
class SymmetricStable(Mechanism):
    """Noise of weights p(z/γ)/p(0) on the lattice, p of characteristic function e^{−|t|^α}: PRDP with P.

    P(Δ) = sup_x ln[p(x − Δ/γ)/p(x)] over all real x, so that the loss on any lattice is at most P: for α = 1 (Cauchy)
    2·arsinh(Δ/(2γ)); for 1.01 ≤ α ≤ 1.999 no closed form is known and a certified bound is stated, at most one part in
    1000 above P (udfs.losses.stable). PRzCDP with tanh(P/2)·P, or with the tight policy the loss of this very noise,
    certified from above (docs/tight.md, section 9). The variance is infinite, for α = 1 the mean absolute error too.
    Continuous noise of this family is closed under sums: n cells added have scale γ·n^(1/α); on a lattice nearly.
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

    @cached_property
    def form(self) -> Additive:
        """Added stable noise."""
        return Additive(noise=StableNoise(alpha=self.alpha, scale=self.gamma, step=self.step, policy=self.policy))

    @property
    def pure_formula(self) -> str:
        """In closed form for α = 1, else as the supremum of which a certified bound is stated."""
        return "2·arsinh(Δ/(2γ))" if self.alpha == 1 else "sup ln(p(x − Δ/γ)/p(x)), p the stable density of exponent α"
