"""Gaussian noise: per-record zCDP that grows like the squared influence (docs/mathematics.md, section 3)."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from udfs.mechanisms.additive import Additive
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.noise import FLOAT_SLACK, Noise
from udfs.mechanisms.parameters import above, choice
from udfs.noise.weights import GaussianWeights
from udfs.numbers.arrays import Floats

if TYPE_CHECKING:
    from udfs.noise import continuous


@final
@dataclass(frozen=True, kw_only=True)
class GaussianNoise(Noise):
    """Discrete Gaussian noise of scale σ: PRzCDP with Δ²/(2σ²) on every lattice; no pure loss.

    Source: Canonne, Kamath, Steinke 2020, theorem 4.
    """

    @property
    def weights(self) -> GaussianWeights:
        """−k²/(2s²), s the scale in steps."""
        return GaussianWeights(scale=self.steps)

    def loss_at(self, shift: Fraction) -> Fraction:
        """Return Δ²/(2σ²), exactly."""
        return shift**2 / (2 * self.scale**2)

    def loss(self, shift: Floats) -> Floats:
        """Return Δ²/(2σ²), rounded up."""
        return (shift / float(self.scale)) ** 2 / 2 * (1 + FLOAT_SLACK)

    def pure_loss_at(self, shift: Fraction) -> Fraction | None:
        """Return 0 at no shift, else None."""
        return None if shift else Fraction(0)

    def pure_loss(self, shift: Floats) -> Floats:
        """Return 0 at no shift, else infinity."""
        return np.where(shift > 0, np.inf, 0.0)

    @property
    def continuous(self) -> "continuous.Gaussian":
        """N(0, σ²)."""
        from udfs.noise import continuous  # noqa: PLC0415 — SciPy, which `prdp explain` does without

        return continuous.Gaussian(sigma=float(self.scale))


@final
@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Discrete Gaussian noise of scale `sigma`: PRzCDP with P(Δ) = Δ²/(2σ²) on every lattice; no pure loss.

    Source: paper 1, section 5 (its Δ²/σ² lacks the 2).
    """

    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("paper", doc="which proven bound states the loss: the paper's is exact")

    kind: ClassVar[str] = "gaussian"
    formula: ClassVar[str] = "Δ²/(2σ²)"

    @cached_property
    def form(self) -> Additive:
        """Added Gaussian noise."""
        return Additive(noise=GaussianNoise(scale=self.sigma, step=self.step))
