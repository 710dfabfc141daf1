"""Unit splitting: the baseline that treats a large record as several small ones (paper 1, section 2.5)."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import isqrt
from typing import ClassVar, final

import numpy as np

from udfs.mechanisms.additive import Additive
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.gaussian import GaussianNoise
from udfs.mechanisms.noise import FLOAT_SLACK, POLICY
from udfs.mechanisms.parameters import above, choice
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import exact

DIGITS = 10**80  # of the noise scale beyond the point of its square's size


@final
@dataclass(frozen=True, kw_only=True)
class UnitSplitting(Mechanism):
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
    def sigma(self) -> Fraction:
        """The noise scale T/√(2ρ), rounded up: what the policy promises can only be more than kept."""
        # σ = √(T²/(2ρ)) = √(n/m) ≤ (isqrt(n·m·D²) + 1)/(m·D)
        square = self.threshold**2 / (2 * self.rho)
        n, m = square.numerator, square.denominator
        return Fraction(isqrt(n * m * DIGITS**2) + 1, m * DIGITS)

    @cached_property
    def form(self) -> Additive:
        """Added Gaussian noise."""
        return Additive(noise=GaussianNoise(scale=self.sigma, step=self.step))

    @property
    def formula(self) -> str:
        """The policy function."""
        return "Δ²/(2σ²), σ = T/√(2ρ) rounded up" if self.tight else "ρ·⌈Δ/T⌉²"

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return Δ²/(2σ²) or ρ·⌈Δ/T⌉², exactly."""
        if self.tight:
            return super().loss_at(influence)
        return self.rho * self._pieces(influence) ** 2

    def loss(self, influence: Floats) -> Floats:
        """Return the same, rounded up; an influence means its shortest decimal where it is near a multiple of T."""
        if self.tight:
            return super().loss(influence)
        pieces = influence / float(self.threshold)
        doubtful = np.abs(pieces - np.rint(pieces)) <= pieces * FLOAT_SLACK
        distinct, index = np.unique(influence[doubtful], return_inverse=True)
        pieces[doubtful] = np.array([float(self._pieces(exact(float(x)))) for x in distinct])[index]
        return float(self.rho) * np.ceil(pieces) ** 2 * (1 + FLOAT_SLACK)

    def _pieces(self, influence: Fraction) -> int:
        return -(-influence // self.threshold)
