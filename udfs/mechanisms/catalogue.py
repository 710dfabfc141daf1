"""The closed set of mechanisms: kind → class. A plan can name nothing else.

Its groupwise kinds stand here too: counts with relative error (paper 5), by noise on noise, and by the logarithm, where
large groups lose less.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, final

import numpy as np

from udfs.mechanisms import additive_kinds, transformed_kinds
from udfs.mechanisms.additive_kinds import Gaussian
from udfs.mechanisms.base import ONE, Mechanism, ParameterError, Released, above
from udfs.mechanisms.transformed import equally_likely
from udfs.mechanisms.transformed_kinds import LogMechanism
from udfs.noise.keystream import Bits, SecondNoise
from udfs.noise.lattice import add_noise
from udfs.numbers.arrays import LARGEST, Floats, Int64s, in_units

FACTOR_STEP = Fraction(1, 2**30)  # lattice of the proportional noise W, which has variance 1
ENDS = 2.0**-48  # relative error of a released value in doubles, far above
POINTS = 1 << 13  # on each side, of the sum for the mean absolute error
QUANTILES = 1 << 10  # of the second noise, for quantiles of errors
SPREAD = 9  # noise scales, beyond which it has less than one part in 10¹⁸


def share_revealed(shift: int, scale: Fraction, total: int, factor: Fraction = 1 / FACTOR_STEP) -> float:
    """Return 1 − β: of the loss Δ²/(2σ²) of X, Y = X·(1 + r·W) has this share or more, at the counts x and x + Δ.

        β = n·(1/(2G) + n/(x − 2Δ − 18σ)),    n = 5Δ + 36σ + 1

    Δ, σ and x are in steps of X; G = `factor` is the scale of W in steps of its own lattice. W lies on a lattice, so
    that X times it tells X: but for a share β of the values of Y only one of the n whole numbers about the two counts
    can be X, whatever r. 0 where β ≥ 1.

    Proof. Y = X·(v + u·j)/v, u/v = r/G in lowest terms, j the whole number W. Let I be the n whole numbers up to
    2Δ + 18σ below x or above x + Δ. Call (k, j), k in I, open if no other k' in I divides k(v + uj): no other pair with
    its count in I has its Y. With g = gcd(k, k') ≤ n and d = k'/g ≥ (x − 2Δ − 18σ)/n, k' divides k(v + uj) only if d
    divides v + uj: for at most one residue of j modulo d, of probability ≤ P(j = 0) + 1/d < 1/(2G) + 1/d. So for each k
    all pairs but β are open. Let p and q be the laws of X at x and x + Δ, ℓ = ln(p/q), and h(Y) = ℓ(k) on open pairs
    with −tσ ≤ k − x ≤ Δ + tσ, t = 9 + Δ/σ, else 0. By Donsker and Varadhan, and as ln E ≤ E − 1,

        D_1(Y_x ‖ Y_{x+Δ}) ≥ E_x h − E_{x+Δ}(e^h − 1) ≥ (1 − β)·Σ_k (p·ℓ − p + q) − (what counts outside I add).

    The terms are ≥ 0, and over all k their sum is Δ²/(2σ²), of which those left out are at most 5t²·e^{−t²/2} < 2⁻⁴⁹
    (ψ − 1 + e^{−ψ} ≤ ψ²/2); the last part, at most 4e^{−2t²}·e^{δ²/2 + δt}, δ = Δ/σ, is less still. And D_α ≥ D_1.
    """
    n, least = 5 * shift + math.ceil(36 * scale) + 1, total - 2 * shift - math.ceil(18 * scale)
    hidden = n * (1 / (2 * factor) + Fraction(n, least)) if least > 0 else ONE
    return max(0.0, float(1 - hidden) - ENDS)


def _folded(mu: float, s: float) -> float:
    """Return E|N(μ, s²)|, μ ≥ 0."""
    if not s > 0:
        return mu
    t = mu / s / math.sqrt(2)
    return s * math.sqrt(2 / math.pi) * math.exp(-(t**2) if t < 30 else -math.inf) + mu * math.erf(t)


@final
@dataclass(frozen=True, kw_only=True)
class GroupwiseNoisy(Mechanism):
    """Y = X·(1 + r·W): X a count plus discrete Gaussian noise of scale σ, W Gaussian of variance 1, drawn apart.

    PRzCDP with P(Δ) = Δ²/(2σ²), no pure loss, the same for groups of all sizes: X has this loss, and Y is computed from
    X and bits that owe nothing to the microdata. There is no smaller bound: at large counts Y reveals X
    (`share_revealed`). E Y = x, Var Y = r²x² + σ²(1 + r²), σ² that of the lattice. All columns are functions of Y.
    Source: paper 5, algorithm 1; docs/noise.md.
    """

    r: Fraction = above(0, "relative standard error that large counts have", at_most=1)
    sigma: Fraction = above(0, "noise scale of the count, before the proportional noise")

    kind: ClassVar[str] = "groupwise_noisy"
    needs_nonnegative: ClassVar[bool] = True
    counts_only: ClassVar[bool] = True
    formula: ClassVar[str] = "Δ²/(2σ²)"

    @cached_property
    def lattice_noise(self) -> Gaussian:
        return Gaussian(sigma=self.sigma, step=self.step)

    @cached_property
    def factor(self) -> Gaussian:
        """W on a lattice of its own."""
        return Gaussian(sigma=ONE, step=FACTOR_STEP)

    def release(self, totals: Int64s, bits: Bits, interval: Fraction) -> Released:
        """Return Y, the root of the unbiased estimate r²Y²/(1 + r²) + σ² of its variance, and intervals of Y alone."""
        size = len(totals)
        noisy = add_noise(totals, *self.lattice_noise.draw(bits, size))
        distance, negative = self.factor.draw(SecondNoise(bits), size)
        w = np.where(negative, -1.0, 1.0) * distance.astype(np.float64) * float(FACTOR_STEP)
        value = in_units(noisy, self.lattice_noise.step) * (1 + float(self.r) * w)
        lower, upper = self._ends(value, interval)
        share = float(self.r**2 / (1 + self.r**2))
        return Released(value, lower, upper, np.sqrt(share * value * value + self.lattice_noise.noise_variance))

    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        lower, upper = self._ends(np.array([total]), interval)
        return float(lower[0]), float(upper[0])

    def _ends(self, value: Floats, interval: Fraction) -> tuple[Floats, Floats]:
        """Return ends that hold x with probability ≥ `interval`; without a known end, those of the range of totals.

        With β = 1 − interval let |Z| ≤ c and |W| ≤ w, each but for β/2. Then X lies between Y/(1 + rw) and Y/(1 − rw),
        where rw < 1, and x within c of it.
        """
        coverage, step = (1 + interval) / 2, self.lattice_noise.step
        c = float(self.lattice_noise.half_width(coverage) * step)
        rw = float(self.r * FACTOR_STEP * self.factor.half_width(coverage))
        near, far = 1 + rw + ENDS, 1 - rw - ENDS
        top = np.full(value.shape, float(LARGEST * step))
        if not far > 0:
            return np.zeros_like(value), top
        low = np.minimum(value / near, value / far) - c
        high = np.maximum(value / near, value / far) + c
        slack = (np.abs(value) / far + c) * ENDS
        return np.clip(low - slack, 0.0, top), np.clip(high + slack, 0.0, top)

    def least_loss_at(self, influence: Fraction) -> float:
        """Return that of X, but for the share that W may hide at counts of 2⁶² steps: next to nothing."""
        steps = math.floor(influence / self.lattice_noise.step)
        noise = self.lattice_noise
        return noise.least_loss_at(influence) * share_revealed(steps, noise.steps, LARGEST // 2)

    def variance(self, total: float) -> float:
        return float(self.r) ** 2 * (total**2 + self.lattice_noise.noise_variance) + self.lattice_noise.noise_variance

    def mean_absolute_error(self, total: float) -> float:
        """Return E|Y − x| within one part in 10⁵, as a sum over the noise Z of X.

        E|N(μ, s²)| = s√(2/π)·e^{−μ²/(2s²)} + |μ|·erf(|μ|/(s√2)) with μ = Z, s = r|x + Z|.
        """
        z, mass = self._first_noise(POINTS)
        errors = [_folded(abs(mu), float(self.r) * abs(total + mu)) for mu in z.tolist()]
        return float(np.sum(np.array(errors) * mass) / np.sum(mass))

    def error_quantile(self, total: float, level: Fraction) -> float:
        """Return the quantile of |Z + r(x + Z)W|, from equally likely values of W at each of Z, the noise of X."""
        errors, mass = self._errors(total)
        order = np.argsort(errors.ravel())
        reached = np.cumsum(np.repeat(mass / QUANTILES, QUANTILES)[order])
        return float(errors.ravel()[order][min(int(np.searchsorted(reached, float(level))), len(order) - 1)])

    def error_share(self, total: float, most: float) -> float:
        errors, mass = self._errors(total)
        return float((errors <= most).mean(axis=1) @ mass)

    def _errors(self, total: float) -> tuple[Floats, Floats]:
        z, mass = self._first_noise(QUANTILES // 4)
        w = equally_likely("gaussian", QUANTILES)
        return np.abs(z[:, None] + float(self.r) * (total + z[:, None]) * w), mass / mass.sum()

    def _first_noise(self, points: int) -> tuple[Floats, Floats]:
        scale = float(self.lattice_noise.steps)
        most = max(1, math.ceil(SPREAD * scale))
        k = np.arange(-most, most + 1.0) if most <= points else np.linspace(-most, most, 2 * points + 1)
        return k * float(self.lattice_noise.step), np.exp(-((k / scale) ** 2) / 2)


@final
@dataclass(frozen=True, kw_only=True)
class GroupwiseLog(LogMechanism):
    """ṽ = ln(x + a) + Gaussian noise on a fine lattice of step λ, x a count; the value is e^{ṽ − σ²/2} − a, unbiased.

    PRzCDP with P(Δ) = (ln(1 + Δ/a) + λ)²/(2σ²). And group-wise zCDP with ξ = 0: for a cell of true count x, every α > 1
    and both directions, a neighbour with one record more or fewer has D_α ≤ α·v(x), `group_loss_at`:

        v(x) = (ln(1 + 1/(x − 1 + a)) + λ)²/(2σ²) for x ≥ 1,    v(0) = v(1) = P(1),    never rising in x.

    v(x) of an actual cell is as confidential as its count. E|value − x| = 2(2Φ(σ/2) − 1)·(x + a).
    Proof: ln(x + a) and ln(x ± 1 + a) differ by at most ln(1 + 1/(x − 1 + a)), rounded centres by at most λ more; the
    rest is the loss of integer Gaussian noise. Source: paper 5 asks; docs/noise.md answers.
    """

    a: Fraction = above(0, "offset added to a count before the logarithm: larger spares small groups")
    sigma: Fraction = above(0, "noise scale of the logarithm: about the relative standard error of large counts")

    kind: ClassVar[str] = "groupwise_log"
    counts_only: ClassVar[bool] = True

    def group_loss_at(self, total: Fraction, influence: Fraction = ONE) -> Fraction:
        """Return an upper bound of v(total): the zCDP loss of `influence` more or fewer in a cell of this true total.

        v = (ln(1 + Δ/(max(x − Δ, 0) + a)) + λ)²/(2σ²) for Δ > 0, else 0. ValueError unless total and influence are ≥ 0.
        It discloses the total: report it at public totals, or inside the enclave alone.
        """
        if not (total >= 0 and influence >= 0):
            raise ValueError("a group's loss needs a total and an influence of at least 0")
        return self.lattice_noise.loss_at(self.shift_at(influence, max(total - influence, Fraction(0))))


# Noise in proportion to the count itself, N(x, r²x²) (paper 5, algorithm 2), bounds no loss: no mechanism
# (docs/mathematics.md, section 9; docs/noise.md).
DIRECT = "groupwise_direct"
WARNING = (
    "groupwise_direct (noise in proportion to the count itself) bounds no loss: rho is infinite; at a count of 1 "
    "against 2 the divergence is infinite from order 4/3 on, at 0 against 1 at every order"
)

CATALOGUE: Mapping[str, type[Mechanism]] = MappingProxyType(
    {
        mechanism.kind: mechanism
        for mechanism in (
            additive_kinds.Gaussian,
            additive_kinds.Laplace,
            additive_kinds.GeneralizedGaussian,
            additive_kinds.ExponentialPolylog,
            additive_kinds.SymmetricStable,
            additive_kinds.Designed,
            transformed_kinds.Root,
            transformed_kinds.Log,
            additive_kinds.UnitSplitting,
            GroupwiseLog,
            GroupwiseNoisy,
        )
    }
)


def build(spec: Mapping[str, Any], step: Fraction) -> Mechanism:
    """Return the mechanism that `spec` (kind and parameters, as `describe` gives them) names, on `step`.

    Raises ParameterError on an unknown kind or parameter, a missing one, or a value that breaks its rule.
    """
    if not isinstance(spec.get("kind"), str) or spec["kind"] not in CATALOGUE:
        raise ParameterError("kind", "one of " + ", ".join(CATALOGUE))
    mechanism = CATALOGUE[spec["kind"]]
    values = {name: value for name, value in spec.items() if name != "kind"}
    declared = mechanism.parameters()
    for name in values:
        if name not in declared:
            raise ParameterError(name, f"absent: {mechanism.kind} has no such parameter")
    for name, parameter in declared.items():
        if parameter.default is None and name not in values:
            number = "a number " if parameter.kind == "number" and not parameter.integral else ""
            raise ParameterError(name, f"given: {number}{parameter.rule}")
    return mechanism(step=step, **values)
