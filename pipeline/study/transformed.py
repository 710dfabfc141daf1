"""Heavy-tailed noise on a transformed total: for comparison in studies, not for releases.

Guarantee. ṽ = ⌊f(q + a)/λ + ½⌋·λ + Z with f concave and increasing, contributions ≥ 0, and Z of density or lattice mass
∝ e^{w(|z|)}, w non-increasing and convex on [0, ∞). With D = f(Δ + a) − f(a) + λ for Δ > 0:

    PRDP with P(Δ) = w(0) − w(D),        PRzCDP with tanh(P/2)·P.

Proof. Let q' = q + Δ. As f is concave, f(q' + a) − f(q + a) ≤ f(Δ + a) − f(a) for every q ≥ 0, with equality at q = 0,
and rounding adds at most λ: ṽ moves by s ≤ D. The additive theorem (paper 1, theorem 5.3; docs/mathematics.md,
section 3) bounds the
max divergence of Z + s from Z in both directions by w(0) − w(s), which grows with s. What is computed from ṽ costs
nothing. Without rounding P is tight: q = 0 and Z = 0 attain it.

The value of a root is the mean-unbiased polynomial of udfs.noise.continuous_transformed. A logarithm has none: E e^Z
is infinite
for every noise with a heavier tail than Laplace's, so that its value e^ṽ − a, which is median-unbiased, has no mean.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import NDArray

from pipeline.study.model import PAPER
from udfs.mechanisms.catalogue import build
from udfs.mechanisms.heavy_tailed import ExponentialPolylog, GeneralizedGaussian
from udfs.mechanisms.log import Log
from udfs.mechanisms.root import Root
from udfs.noise import continuous, continuous_polylog
from udfs.noise.continuous_transformed import variance_of_power
from udfs.numbers.exact import context

Floats = NDArray[np.float64]
HeavyTailed = GeneralizedGaussian | ExponentialPolylog
HEAVY = (GeneralizedGaussian.kind, ExponentialPolylog.kind)
BITS = 200  # of the moments: variances are sums in which they cancel


@final
@dataclass(frozen=True, kw_only=True)
class TransformedNoise:
    """A curve f with offset a, `root` (k ≥ 2) or `log`, and heavy-tailed noise on the curve's own fine lattice.

    The curve's scale fixes the lattice step λ, near σ·2⁻³⁰ where it is the noise's, and nothing else.
    """

    curve: Root | Log
    noise: HeavyTailed

    def __post_init__(self) -> None:
        if self.noise.step != self.curve.lattice_step:
            raise ValueError("noise: it must lie on the curve's lattice")

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return an upper bound of the PRzCDP loss; 0 at no influence."""
        return self.noise.loss_at(self.curve.rise_at(influence)) if influence else Fraction(0)

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return an upper bound of the PRDP loss w(0) − w(D); 0 at no influence."""
        return self.noise.pure_loss_at(self.curve.rise_at(influence)) if influence else Fraction(0)

    def loss(self, influence: Floats) -> Floats:
        """Return the PRzCDP loss of whole arrays, rounded up."""
        return np.where(influence > 0, self.noise.loss(self.curve.rise(influence)), 0.0)

    def variance(self, total: float) -> float:
        """Return the variance of the value at a true total; infinite for a logarithm.

        For a root Σ_i c_i·σ^{2(k−i)}·(q + a)^{2i/k}, of continuous noise, which the lattice's is to about 2⁻³⁰.
        """
        if isinstance(self.curve, Log):
            return math.inf
        return sum(c * self.curve.curve(total) ** (2 * i) for i, c in enumerate(self._variance_terms))

    def describe(self) -> dict[str, object]:
        """Return curve and noise as JSON values."""
        named = self.curve.describe()
        shape = {"k": named["k"]} if isinstance(self.curve, Root) else {}
        return {"kind": self.curve.kind} | shape | {"a": named["a"], "noise": self.noise.describe()}

    @cached_property
    def _variance_terms(self) -> tuple[float, ...]:
        assert isinstance(self.curve, Root)
        k, sigma = self.curve.degree, float(self.noise.sigma)
        return tuple(c * sigma ** (2 * (k - i)) for i, c in enumerate(unit_variance_terms(k, self.noise)))


def unit_variance_terms(k: int, noise: HeavyTailed) -> tuple[float, ...]:
    """Return c_i ≥ 0, i < k, with Var g_k(ṽ) = Σ_i c_i·σ^{2(k−i)}·v^{2i}; infinite where a moment is."""
    ctx, unit = context(BITS), unit_noise(noise)
    moments = [1.0, *(unit.moment(2 * j) for j in range(1, k + 1))]
    if math.isinf(moments[-1]):
        return (math.inf,) * k
    return tuple(float(c) for c in variance_of_power(k, [ctx.mpf(moment) for moment in moments]))


def transformed_noise(curve: dict[str, object], noise: dict[str, object], sigma: Fraction) -> TransformedNoise:
    """Return the mechanism of `curve` (kind root or log, k, a) and `noise` (kind and shape) at the noise scale.

    It states the paper's bound.

    Raises ParameterError where a parameter breaks its rule.
    """
    shape = build({**curve, "sigma": sigma}, Fraction(1))
    heavy = build({**noise, "sigma": sigma, "policy": PAPER}, shape.lattice_step)
    assert isinstance(shape, Root | Log)
    assert isinstance(heavy, HeavyTailed)
    return TransformedNoise(curve=shape, noise=heavy)


def unit_noise(noise: HeavyTailed) -> continuous.GeneralizedGaussian | continuous_polylog.ExponentialPolylog:
    """Return the continuous noise of the same shape and scale 1."""
    if isinstance(noise, GeneralizedGaussian):
        return continuous.GeneralizedGaussian(p=float(noise.p), sigma=1.0)
    return continuous_polylog.ExponentialPolylog(p=float(noise.p), d=float(noise.d), a=float(noise.a), sigma=1.0)
