"""Laplace noise: pure per-record privacy that grows like the influence (MATH section 4)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.bounds import laplace_zcdp_above
from udfs.mechanisms.additive import (
    LATTICE,
    LATTICES,
    POLICY,
    interval_of_width,
    lattice_mean_absolute_error,
    lattice_variance,
    loss_of_pure,
    loss_of_pure_at,
    own_fineness,
    own_step,
    release_additive,
)
from udfs.mechanisms.base import FLOAT_SLACK, Mechanism, above, choice, require_scale
from udfs.mechanisms.tight import renyi_by_policy
from udfs.tight.laplace import laplace_zcdp
from udfs.weights import LaplaceWeights, LogWeights


@final
@dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    """Discrete Laplace noise of scale `sigma`: PRDP with P(Δ) = Δ/σ, PRzCDP with tanh(P/2)·P.

    Source: paper 1, theorem on additive mechanisms with w(z) = −z/σ (generalized Gaussian, p = 1), and its lemma
    that P-PRDP implies tanh(P/2)·P-PRzCDP. Influences are multiples of the step: the microdata contract sees to it.
    With the tight policy PRzCDP with P − (s/sinh s)·(1 − e^{−P}), s = λ/σ, which no smaller one is (docs/tight.md).
    """

    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("tight", "paper", doc=POLICY)
    lattice: str = choice(*LATTICES, doc=LATTICE)

    kind: ClassVar[str] = "laplace"
    additive: ClassVar[bool] = True
    needs_nonnegative: ClassVar[bool] = False
    pure_formula: ClassVar[str | None] = "Δ/σ"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale("sigma", self.sigma / self.lattice_step)

    fineness = property(own_fineness)
    lattice_step = property(own_step)
    variance = lattice_variance
    mean_absolute_error = lattice_mean_absolute_error
    interval_around = interval_of_width
    release = release_additive
    renyi_at = renyi_by_policy

    @property
    def formula(self) -> str:
        """The policy function."""
        if self.policy == "tight":
            return "P − (s/sinh s)·(1 − e^(−P)) with the pure loss P = Δ/σ and s = λ/σ"
        return "tanh(P/2)·P with the pure loss P = Δ/σ"

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return the policy's loss, rounded up; the tight one is never above the paper's."""
        paper = loss_of_pure_at(self, influence)
        if self.policy == "paper":
            return paper
        return min(paper, laplace_zcdp_above(influence / self.sigma, self.lattice_step / self.sigma))

    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the policy's loss, rounded up."""
        if self.policy == "paper":
            return loss_of_pure(self, influence)
        return laplace_zcdp(influence / float(self.sigma), self.lattice_step / self.sigma) * (1 + FLOAT_SLACK)

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return Δ/σ, exactly."""
        return influence / self.sigma

    def pure_loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Δ/σ, rounded up."""
        return influence / float(self.sigma) * (1 + FLOAT_SLACK)

    def weights(self) -> LogWeights:
        """Return −k/s, s = σ in steps of the lattice."""
        return LaplaceWeights(scale=self.sigma / self.lattice_step)
