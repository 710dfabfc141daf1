"""Laplace noise: pure per-record privacy that grows like the influence (docs/mathematics.md, section 3)."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, final

from udfs.losses.curve import laplace_zcdp
from udfs.mechanisms.additive import Additive
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.noise import FLOAT_SLACK, LATTICE, LATTICES, POLICY, Noise
from udfs.mechanisms.parameters import above, choice
from udfs.noise.weights import LaplaceWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.bounds import laplace_zcdp_above

if TYPE_CHECKING:
    from udfs.noise import continuous


@final
@dataclass(frozen=True, kw_only=True)
class LaplaceNoise(Noise):
    """Discrete Laplace noise of scale σ: PRDP with P = Δ/σ, PRzCDP with tanh(P/2)·P.

    With the tight policy PRzCDP with P − (s/sinh s)·(1 − e^{−P}), s = λ/σ, which no smaller one is (docs/tight.md).
    """

    tabled: ClassVar[bool] = False

    @property
    def weights(self) -> LaplaceWeights:
        """−k/s, s the scale in steps of the lattice."""
        return LaplaceWeights(scale=self.steps)

    def loss_at(self, shift: Fraction) -> Fraction:
        """Return the policy's loss, rounded up; the tight one is never above the paper's."""
        paper = self._paper_at(shift)
        if self.policy == "paper":
            return paper
        return min(paper, laplace_zcdp_above(shift / self.scale, 1 / self.steps))

    def loss(self, shift: Floats) -> Floats:
        """Return the policy's loss, rounded up."""
        if self.policy == "paper":
            return super().loss(shift)
        return laplace_zcdp(shift / float(self.scale), 1 / self.steps) * (1 + FLOAT_SLACK)

    def pure_loss_at(self, shift: Fraction) -> Fraction:
        """Return Δ/σ, exactly."""
        return shift / self.scale

    def pure_loss(self, shift: Floats) -> Floats:
        """Return Δ/σ, rounded up."""
        return shift / float(self.scale) * (1 + FLOAT_SLACK)

    @property
    def continuous(self) -> "continuous.Laplace":
        """Laplace noise on the reals."""
        from udfs.noise import continuous  # noqa: PLC0415 — SciPy, which `prdp explain` does without

        return continuous.Laplace(scale=float(self.scale))


@final
@dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    """Discrete Laplace noise of scale `sigma`: PRDP with P(Δ) = Δ/σ, PRzCDP with tanh(P/2)·P.

    Source: paper 1, theorem on additive mechanisms with w(z) = −z/σ (generalized Gaussian, p = 1), and its lemma
    that P-PRDP implies tanh(P/2)·P-PRzCDP. Influences are multiples of the step: the microdata contract sees to it.
    The tight policy: `LaplaceNoise`.
    """

    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("tight", "paper", doc=POLICY)
    lattice: str = choice(*LATTICES, doc=LATTICE)

    kind: ClassVar[str] = "laplace"
    pure_formula: ClassVar[str | None] = "Δ/σ"

    @cached_property
    def form(self) -> Additive:
        """Added Laplace noise."""
        noise = LaplaceNoise(scale=self.sigma, step=self.step, lattice=self.lattice, policy=self.policy)
        return Additive(noise=noise)

    @property
    def formula(self) -> str:
        """The policy function."""
        if self.policy == "tight":
            return "P − (s/sinh s)·(1 − e^(−P)) with the pure loss P = Δ/σ and s = λ/σ"
        return super().formula
