"""Unit splitting: the baseline that pretends a large record to be several small ones (paper 1, section 2.5)."""

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.mechanisms.additive import (
    POLICY,
    interval_of_width,
    lattice_mean_absolute_error,
    lattice_variance,
    no_pure_loss,
    no_pure_loss_at,
    own_step,
    release_additive,
)
from udfs.mechanisms.base import FLOAT_SLACK, Mechanism, above, choice, require_scale
from udfs.noise.weights import GaussianWeights, LogWeights
from udfs.numbers.exact import exact

DIGITS = 10**80  # of the noise scale beyond the point of its square's size


@final
@dataclass(frozen=True, kw_only=True)
class UnitSplitting(Mechanism):
    """Every record is split into A = ⌈Δ/T⌉ pieces of at most T; discrete Gaussian noise gives each piece rho-zCDP.

    PRzCDP with P(Δ) = ρ·⌈Δ/T⌉², no pure loss. Proof: the noise has σ ≥ T/√(2ρ), and the sum is the same with and
    without splitting, so a record costs Δ²/(2σ²) ≤ ρ·(Δ/T)² ≤ ρ·⌈Δ/T⌉². Source: paper 1, section 2.5;
    docs/mathematics.md, section 3.
    """

    threshold: Fraction = above(0, "largest piece T of a record, in the measure's unit")
    rho: Fraction = above(0, "zCDP loss of one piece")
    policy: str = choice("paper", doc=POLICY)

    kind: ClassVar[str] = "unit_splitting"
    additive: ClassVar[bool] = True
    needs_nonnegative: ClassVar[bool] = False
    formula: ClassVar[str] = "ρ·⌈Δ/T⌉²"
    pure_formula: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale("threshold", self.sigma / self.step)

    @property
    def sigma(self) -> Fraction:
        """The noise scale T/√(2ρ), rounded up: what the policy promises can only be more than kept."""
        # σ = √(T²/(2ρ)) = √(n/m) ≤ (isqrt(n·m·D²) + 1)/(m·D)
        square = self.threshold**2 / (2 * self.rho)
        n, m = square.numerator, square.denominator
        return Fraction(isqrt(n * m * DIGITS**2) + 1, m * DIGITS)

    lattice_step = property(own_step)
    variance = lattice_variance
    mean_absolute_error = lattice_mean_absolute_error
    interval_around = interval_of_width
    release = release_additive
    pure_loss_at = no_pure_loss_at
    pure_loss = no_pure_loss

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return ρ·⌈Δ/T⌉², exactly."""
        return self.rho * self._pieces(influence) ** 2

    def change_losses_at(self, low: Fraction, high: Fraction) -> tuple[Fraction, Fraction | None]:
        """Return d²/(2σ²) of the difference d: what is drawn is Gaussian noise, whatever the pieces."""
        return (high - low) ** 2 / (2 * self.sigma**2), no_pure_loss_at(self, high - low)

    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ρ·⌈Δ/T⌉², rounded up; an influence means its shortest decimal where it is near a multiple of T."""
        pieces = influence / float(self.threshold)
        doubtful = np.abs(pieces - np.rint(pieces)) <= pieces * FLOAT_SLACK
        distinct, place = np.unique(influence[doubtful], return_inverse=True)
        pieces[doubtful] = np.array([float(self._pieces(exact(float(x)))) for x in distinct])[place]
        return float(self.rho) * np.ceil(pieces) ** 2 * (1 + FLOAT_SLACK)

    def _pieces(self, influence: Fraction) -> int:
        return -(-influence // self.threshold)

    def weights(self) -> LogWeights:
        """Return −k²/(2s²), s = σ/step."""
        return GaussianWeights(scale=self.sigma / self.step)
