"""Additive mechanisms with heavy tails, whose losses grow like a root or a logarithm of the influence
(docs/mathematics.md, section 3).
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.mechanisms.additive import (
    LATTICE,
    LATTICES,
    POLICY,
    formula_by_policy,
    interval_of_width,
    lattice_mean_absolute_error,
    lattice_variance,
    loss_by_policy,
    loss_by_policy_at,
    own_fineness,
    own_step,
    release_additive,
    renyi_by_policy,
    states_tight,
)
from udfs.mechanisms.base import (
    FLOAT_SLACK,
    Mechanism,
    ParameterError,
    above,
    at_least,
    choice,
    require_range,
    require_scale,
)
from udfs.noise.heavy import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.weights import LogWeights
from udfs.numbers.bounds import exp_above, log_power_rise_above, power_above
from udfs.numbers.exact import up_text

BOUNDS = Fraction(1, 10**27)  # what bounds of ln(…)^p may lie above it, relatively


@final
@dataclass(frozen=True, kw_only=True)
class GeneralizedGaussian(Mechanism):
    """Noise with weights e^{−(|z|/σ)^p} on the lattice: PRDP with P(Δ) = (Δ/σ)^p, PRzCDP with tanh(P/2)·P.

    Proof: x ↦ x^p is concave for p ≤ 1, so | |z/σ|^p − |(z − Δ)/σ|^p | ≤ (Δ/σ)^p for every lattice point z.
    Sources: paper 1, theorem 5.3 and corollary 5.6 (which needs p > 0), and its lemma from PRDP to PRzCDP; the tight
    policy: docs/tight.md.
    """

    p: Fraction = above(0, "exponent of the distance in the log-density: the loss grows like Δ^p", at_most=1)
    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("tight", "paper", doc=POLICY)
    lattice: str = choice(*LATTICES, doc=LATTICE)

    kind: ClassVar[str] = "generalized_gaussian"
    additive: ClassVar[bool] = True
    needs_nonnegative: ClassVar[bool] = False
    pure_formula: ClassVar[str | None] = "(Δ/σ)^p"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale("sigma", self.sigma / self.lattice_step)
        require_range(self, "sigma", "smaller")

    fineness = property(own_fineness)
    lattice_step = property(own_step)
    variance = lattice_variance
    mean_absolute_error = lattice_mean_absolute_error
    interval_around = interval_of_width
    release = release_additive
    loss_at = loss_by_policy_at
    loss = loss_by_policy
    renyi_at = renyi_by_policy
    tabled = property(states_tight)
    formula = property(formula_by_policy)

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return an upper bound of (Δ/σ)^p, exact for p = 1."""
        return power_above(influence / self.sigma, self.p)

    def pure_loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (Δ/σ)^p, rounded up."""
        return np.power(influence / float(self.sigma), float(self.p)) * (1 + FLOAT_SLACK)

    def weights(self) -> LogWeights:
        """Return −(k/s)^p, s = σ in steps of the lattice."""
        return GeneralizedGaussianWeights(p=self.p, scale=self.sigma / self.lattice_step)


@final
@dataclass(frozen=True, kw_only=True)
class ExponentialPolylog(Mechanism):
    """Noise with weights e^{−d·ln(|z|/σ + a)^p} on the lattice: PRDP with P(Δ) = d·[ln(Δ/σ + a)^p − ln(a)^p].

    PRzCDP with tanh(P/2)·P. Proof: w(z) = −d·ln(z/σ + a)^p falls and is convex on the lattice, so that
    |w(|z|) − w(|z − Δ|)| ≤ w(0) − w(Δ) = P(Δ) for every lattice point z. w is convex where z/σ + a ≥ e^{p−1}; for an
    `a` a little below it, as a decimal of e is, w need only be convex in its first step, which is checked: beyond it
    the function is. Sources: paper 1, theorem 5.3, corollary 5.7 and the lemma from PRDP to PRzCDP;
    docs/mathematics.md, section 3; the
    tight policy: docs/tight.md.
    """

    p: Fraction = at_least(1, "power of the logarithm in the log-density: the loss grows like ln(Δ)^p", at_most=100)
    d: Fraction = above(0, "factor of the logarithm's power: the higher, the lighter the tails")
    a: Fraction = at_least(1, "offset inside the logarithm, in noise scales")
    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("tight", "paper", doc=POLICY)
    lattice: str = choice(*LATTICES, doc=LATTICE)

    kind: ClassVar[str] = "exponential_polylog"
    additive: ClassVar[bool] = True
    needs_nonnegative: ClassVar[bool] = False
    pure_formula: ClassVar[str | None] = "d·(ln(Δ/σ + a)^p − ln(a)^p)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.p == 1 and not self.d > 1:
            raise ParameterError("d", "above 1 where p is 1: the noise has no distribution otherwise")
        self._require_convexity()
        require_scale("sigma", self.sigma / self.lattice_step)
        require_range(self, "d", "larger")

    def _require_convexity(self) -> None:
        least = exp_above(self.p - 1)
        if self.p == 1 or self.a >= least:
            return
        # concave up to z₀ = σ(e^{p−1} − a) at most: inside the first step, w must still be convex at its end
        late = self.sigma * (least - self.a) > self.lattice_step
        if self.a == 1 or late or 2 * self._fall(1) * (1 - BOUNDS) < self._fall(2):
            raise ParameterError("a", f"at least e^(p−1), here {up_text(least, 16)}: the policy needs convex weights")

    def _fall(self, steps: int) -> Fraction:
        return log_power_rise_above(steps * self.lattice_step / (self.sigma * self.a), self.a, self.p)

    fineness = property(own_fineness)
    lattice_step = property(own_step)
    variance = lattice_variance
    mean_absolute_error = lattice_mean_absolute_error
    interval_around = interval_of_width
    release = release_additive
    loss_at = loss_by_policy_at
    loss = loss_by_policy
    renyi_at = renyi_by_policy
    tabled = property(states_tight)
    formula = property(formula_by_policy)

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return an upper bound of d·[ln(Δ/σ + a)^p − ln(a)^p]."""
        return self.d * log_power_rise_above(influence / (self.sigma * self.a), self.a, self.p)

    def pure_loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return d·[ln(Δ/σ + a)^p − ln(a)^p], rounded up."""
        return -self._of_unit.fast(influence) * (1 + FLOAT_SLACK)

    @property
    def _of_unit(self) -> PolylogWeights:
        return PolylogWeights(p=self.p, d=self.d, a=self.a, scale=self.sigma)

    def weights(self) -> LogWeights:
        """Return −d·(ln(k/s + a)^p − ln(a)^p), s = σ in steps of the lattice."""
        return PolylogWeights(p=self.p, d=self.d, a=self.a, scale=self.sigma / self.lattice_step)
