"""Heavy-tailed noise on a transformed total: for comparison in studies, not for releases.

Guarantee. ṽ = ⌊f(q + a)/λ + ½⌋·λ + Z with f concave and increasing, contributions ≥ 0, and Z of density or lattice mass
∝ e^{w(|z|)}, w non-increasing and convex on [0, ∞). With D = f(Δ + a) − f(a) + λ for Δ > 0:

    PRDP with P(Δ) = w(0) − w(D),        PRzCDP with tanh(P/2)·P.

Proof. Let q' = q + Δ. As f is concave, f(q' + a) − f(q + a) ≤ f(Δ + a) − f(a) for every q ≥ 0, with equality at q = 0,
and rounding adds at most λ: ṽ moves by s ≤ D. The additive theorem (paper 1, theorem 5.3; docs/mathematics.md,
section 3) bounds the max divergence of Z + s from Z in both directions by w(0) − w(s), which grows with s. What is
computed from ṽ costs nothing. Without rounding P is tight: q = 0 and Z = 0 attain it.

The value of a root is the mean-unbiased polynomial of udfs.noise.powers. A logarithm has none: E e^Z is infinite
for every noise with a heavier tail than Laplace's, so that its value e^ṽ − a, which is median-unbiased, has no mean.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import final

from pipeline.planning.study.study_model import PAPER
from udfs.mechanisms.additive import AdditiveMechanism
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.mechanisms.heavy_tailed import ExponentialPolylog, GeneralizedGaussian
from udfs.mechanisms.transformed import TransformedMechanism
from udfs.noise.continuous import ContinuousNoise
from udfs.noise.powers import variance_of_power
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context

Heavy = GeneralizedGaussian | ExponentialPolylog
HEAVY = (GeneralizedGaussian.kind, ExponentialPolylog.kind)
BITS = 200  # of the moments: variances are sums in which they cancel


@final
@dataclass(frozen=True, kw_only=True)
class TransformedNoise:
    """A `root` (k ≥ 2) or `log` for the curve, and a mechanism of HEAVY, on the curve's lattice, for the noise.

    The curve's own scale fixes the lattice step λ, near σ·2⁻³⁰ where it is the noise's, and nothing else.
    """

    curve: TransformedMechanism
    noise: Heavy

    def __post_init__(self) -> None:
        if self.noise.step != self.curve.lattice_step:
            raise ValueError("noise: it must lie on the curve's lattice")

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return an upper bound of the PRzCDP loss; 0 at no influence."""
        return self.noise.loss_at(self.curve.shift_at(influence))

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return an upper bound of the PRDP loss w(0) − w(D); 0 at no influence."""
        return self.noise.pure_loss_at(self.curve.shift_at(influence))

    def loss(self, influence: Floats) -> Floats:
        """Return the PRzCDP loss of whole arrays, rounded up."""
        return self.noise.loss(self.curve.shift(influence))

    def variance(self, total: float) -> float:
        """Return the variance of the value at a true total; infinite for a logarithm.

        For a root Σ_i c_i·σ^{2(k−i)}·(q + a)^{2i/k}, of continuous noise, which the lattice's is to about 2⁻³⁰.
        """
        v: float = self.curve.transform(total)
        return sum(c * v ** (2 * i) for i, c in enumerate(self._variance_terms))

    def describe(self) -> dict[str, object]:
        """Return curve and noise as JSON values."""
        curve = {name: value for name, value in self.curve.describe().items() if name in ("kind", "k", "a")}
        return curve | {"noise": self.noise.describe()}

    @cached_property
    def _variance_terms(self) -> tuple[float, ...]:
        k, sigma = self.curve.power, float(self.noise.sigma)
        if k is None:
            return (math.inf,)
        return tuple(c * sigma ** (2 * (k - i)) for i, c in enumerate(unit_variance_terms(k, self.noise)))


def unit_variance_terms(k: int, noise: Heavy) -> tuple[float, ...]:
    """Return c_i ≥ 0, i < k, with Var g_k(ṽ) = Σ_i c_i·σ^{2(k−i)}·v^{2i}; infinite where a moment is."""
    ctx, unit = context(BITS), unit_noise(noise)
    moments = [1.0, *(unit.moment(2 * j) for j in range(1, k + 1))]
    if math.isinf(moments[-1]):
        return (math.inf,) * k
    return tuple(float(c) for c in variance_of_power(k, [ctx.mpf(moment) for moment in moments]))


def transformed_noise(curve: dict[str, object], noise: dict[str, object], sigma: Fraction) -> TransformedNoise:
    """Return the mechanism of `curve` (kind root or log, k, a) and `noise` (kind and shape) at the noise scale.

    It states the paper's bound. Raises ParameterError where a parameter breaks its rule.
    """
    shape = build({**curve, "sigma": sigma}, Fraction(1))
    assert isinstance(shape, TransformedMechanism)
    heavy = build({**noise, "sigma": sigma, "policy": PAPER}, shape.lattice_step)
    assert isinstance(heavy, Heavy)
    return TransformedNoise(curve=shape, noise=heavy)


def unit_noise(noise: Mechanism) -> ContinuousNoise:
    """Return the continuous noise of the same shape and scale 1."""
    assert isinstance(noise, AdditiveMechanism)
    unit: ContinuousNoise | None = replace(noise, sigma=Fraction(1), step=noise.step / noise.scale).continuous  # type: ignore[call-arg]
    assert unit is not None
    return unit
