"""Additive mechanisms with heavy tails, whose losses grow like a root or a logarithm of the influence
(docs/mathematics.md, section 3; the tight policy: docs/tight.md).
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np

from udfs.mechanisms.additive import Additive
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.noise import FLOAT_SLACK, LATTICE, LATTICES, POLICY, Noise
from udfs.mechanisms.parameters import ParameterError, above, at_least, choice
from udfs.noise.heavy import GeneralizedGaussianWeights, PolylogWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.bounds import exp_above, log_power_rise_above, power_above
from udfs.numbers.exact import up_text

if TYPE_CHECKING:
    from udfs.noise import continuous, continuous_polylog

BOUNDS = Fraction(1, 10**27)  # what bounds of ln(…)^p may lie above it, relatively


@final
@dataclass(frozen=True, kw_only=True)
class GeneralizedGaussianNoise(Noise):
    """Noise with weights e^{−(|z|/σ)^p}, 0 < p ≤ 1: PRDP with (Δ/σ)^p."""

    p: Fraction

    @property
    def weights(self) -> GeneralizedGaussianWeights:
        """−(k/s)^p, s the scale in steps of the lattice."""
        return GeneralizedGaussianWeights(p=self.p, scale=self.steps)

    def pure_loss_at(self, shift: Fraction) -> Fraction:
        """Return an upper bound of (Δ/σ)^p, exact for p = 1."""
        return power_above(shift / self.scale, self.p)

    def pure_loss(self, shift: Floats) -> Floats:
        """Return (Δ/σ)^p, rounded up."""
        return np.power(shift / float(self.scale), float(self.p)) * (1 + FLOAT_SLACK)

    @property
    def continuous(self) -> "continuous.GeneralizedGaussian":
        """The same on the reals; raises ValueError where doubles do not reach (p below 0.02)."""
        from udfs.noise import continuous  # noqa: PLC0415 — SciPy, which `prdp explain` does without

        return continuous.GeneralizedGaussian(p=float(self.p), sigma=float(self.scale))


@final
@dataclass(frozen=True, kw_only=True)
class GeneralizedGaussian(Mechanism):
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

    @cached_property
    def form(self) -> Additive:
        """Added generalized Gaussian noise."""
        return Additive(
            noise=GeneralizedGaussianNoise(
                p=self.p, scale=self.sigma, step=self.step, lattice=self.lattice, policy=self.policy
            )
        )


@final
@dataclass(frozen=True, kw_only=True)
class PolylogNoise(Noise):
    """Noise with weights e^{−d·ln(|z|/σ + a)^p}: PRDP with d·[ln(Δ/σ + a)^p − ln(a)^p]."""

    p: Fraction
    d: Fraction
    a: Fraction

    @property
    def weights(self) -> PolylogWeights:
        """−d·(ln(k/s + a)^p − ln(a)^p), s the scale in steps of the lattice."""
        return PolylogWeights(p=self.p, d=self.d, a=self.a, scale=self.steps)

    def pure_loss_at(self, shift: Fraction) -> Fraction:
        """Return an upper bound of d·[ln(Δ/σ + a)^p − ln(a)^p]."""
        return self.d * log_power_rise_above(shift / (self.scale * self.a), self.a, self.p)

    def pure_loss(self, shift: Floats) -> Floats:
        """Return d·[ln(Δ/σ + a)^p − ln(a)^p], rounded up."""
        in_units = PolylogWeights(p=self.p, d=self.d, a=self.a, scale=self.scale)
        return -in_units.fast(shift) * (1 + FLOAT_SLACK)

    @property
    def continuous(self) -> "continuous_polylog.ExponentialPolylog":
        """The same on the reals; raises ValueError where doubles do not reach, or where a is below e^(p − 1)."""
        from udfs.noise import continuous_polylog  # noqa: PLC0415 — SciPy, which `prdp explain` does without

        return continuous_polylog.ExponentialPolylog(
            p=float(self.p), d=float(self.d), a=float(self.a), sigma=float(self.scale)
        )


@final
@dataclass(frozen=True, kw_only=True)
class ExponentialPolylog(Mechanism):
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
            if self.a == 1 or late or 2 * self._fall(1) * (1 - BOUNDS) < self._fall(2):
                rule = f"at least e^(p−1), here {up_text(least, 16)}: the policy needs convex weights"
                raise ParameterError("a", rule)
        self._require_range("d", "larger")

    def _fall(self, steps: int) -> Fraction:
        return log_power_rise_above(steps * self.lattice_step / (self.sigma * self.a), self.a, self.p)

    @cached_property
    def form(self) -> Additive:
        """Added exponential polylogarithmic noise."""
        return Additive(
            noise=PolylogNoise(
                p=self.p,
                d=self.d,
                a=self.a,
                scale=self.sigma,
                step=self.step,
                lattice=self.lattice,
                policy=self.policy,
            )
        )
