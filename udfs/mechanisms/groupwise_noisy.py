"""Counts with relative error by noise on noise: a noisy count times a noisy factor (paper 5, algorithm 1)."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.keystream import Bits, SecondNoise
from udfs.lattice import LARGEST, LatticeTable, add_noise, build_table, draw_noise
from udfs.mechanisms.additive import Gaussian, no_pure_loss, no_pure_loss_at, own_step, spread
from udfs.mechanisms.base import Mechanism, Released, above, require_scale
from udfs.reproducible import in_units
from udfs.weights import GaussianWeights, LogWeights

Floats = NDArray[np.float64]
FACTOR_STEP = Fraction(1, 2**30)  # lattice of the proportional noise W, which has variance 1
FACTOR = GaussianWeights(scale=1 / FACTOR_STEP)
ENDS = 2.0**-48  # relative error of a released value in doubles, far above
POINTS = 1 << 13  # on each side, of the sum for the mean absolute error
SPREAD = 9  # noise scales, beyond which it has less than one part in 10¹⁸


@final
@dataclass(frozen=True, kw_only=True)
class GroupwiseNoisy(Mechanism):
    """Y = X·(1 + r·W): X a count plus discrete Gaussian noise of scale σ, W Gaussian of variance 1, drawn apart.

    PRzCDP with P(Δ) = Δ²/(2σ²), no pure loss, the same for groups of all sizes: X has this loss, and Y is computed from
    X and bits that owe nothing to the microdata. E Y = x, Var Y = r²x² + σ²(1 + r²), σ² that of the lattice. All
    columns are functions of Y, which tells less than X. Source: paper 5, algorithm 1; MATH section 7.
    """

    r: Fraction = above(0, "relative standard error that large counts have", at_most=1)
    sigma: Fraction = above(0, "noise scale of the count, before the proportional noise")

    kind: ClassVar[str] = "groupwise_noisy"
    additive: ClassVar[bool] = False
    needs_nonnegative: ClassVar[bool] = True
    counts_only: ClassVar[bool] = True
    formula: ClassVar[str] = "Δ²/(2σ²)"
    pure_formula: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale("sigma", self.sigma / self.step)

    lattice_step = property(own_step)
    pure_loss_at = no_pure_loss_at
    pure_loss = no_pure_loss

    @cached_property
    def first(self) -> Gaussian:
        """The mechanism whose output X is."""
        return Gaussian(sigma=self.sigma, step=self.step)

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return Δ²/(2σ²), exactly."""
        return self.first.loss_at(influence)

    def loss(self, influence: Floats) -> Floats:
        """Return Δ²/(2σ²), rounded up."""
        return self.first.loss(influence)

    def weights(self) -> LogWeights:
        """Return the log-weights of the noise of X, which is what protects."""
        return self.first.weights()

    @cached_property
    def factors(self) -> LatticeTable:
        """The table of W: built with the other, on the driver, and pickled with the mechanism."""
        return build_table(FACTOR)

    def release(self, totals: NDArray[np.int64], bits: Bits, interval: Fraction) -> Released:
        """Return Y, the root of the unbiased estimate r²Y²/(1 + r²) + σ² of its variance, and intervals of Y alone."""
        size = len(totals)
        noisy = add_noise(totals, *draw_noise(self.table, bits, size))
        distance, negative = draw_noise(self.factors, SecondNoise(bits), size)
        w = np.where(negative, -1.0, 1.0) * distance.astype(np.float64) * float(FACTOR_STEP)
        value = in_units(noisy, self.step) * (1 + float(self.r) * w)
        lower, upper = self._ends(value, interval)
        share = float(self.r**2 / (1 + self.r**2))
        error = np.sqrt(share * value * value + self.noise_variance)
        return Released(value, lower, upper, error)

    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        """Return the interval of Y = total."""
        lower, upper = self._ends(np.array([total]), interval)
        return float(lower[0]), float(upper[0])

    def _ends(self, value: Floats, interval: Fraction) -> tuple[Floats, Floats]:
        """Return ends that hold x with probability ≥ `interval`; without a known end, those of the range of totals.

        With β = 1 − interval let |Z| ≤ c and |W| ≤ w, each but for β/2. Then X lies between Y/(1 + rw) and Y/(1 − rw),
        where rw < 1, and x within c of it.
        """
        each = (1 + interval) / 2
        c = float(spread(self, each)[0] * self.step)
        rw = float(self.r * FACTOR_STEP * _factor_quantile(1 - each))
        near, far = 1 + rw + ENDS, 1 - rw - ENDS
        top = np.full(value.shape, float(LARGEST * self.step))
        if not far > 0:
            return np.zeros_like(value), top
        low = np.minimum(value / near, value / far) - c
        high = np.maximum(value / near, value / far) + c
        slack = (np.abs(value) / far + c) * ENDS
        return np.clip(low - slack, 0.0, top), np.clip(high + slack, 0.0, top)

    @cached_property
    def noise_variance(self) -> float:
        """The variance of X, whatever the count."""
        return self.first.variance(0.0)

    def variance(self, total: float) -> float:
        """Return r²x² + σ²(1 + r²)."""
        return float(self.r) ** 2 * (total**2 + self.noise_variance) + self.noise_variance

    def mean_absolute_error(self, total: float) -> float:
        """Return E|Y − x| within one part in 10⁵, as a sum over the noise Z of X.

        E|N(μ, s²)| = s√(2/π)·e^{−μ²/(2s²)} + |μ|·erf(|μ|/(s√2)) with μ = Z, s = r|x + Z|.
        """
        scale = float(self.sigma / self.step)
        most = max(1, math.ceil(SPREAD * scale))
        k = np.arange(-most, most + 1.0) if most <= POINTS else np.linspace(-most, most, 2 * POINTS + 1)
        z, mass = k * float(self.step), np.exp(-((k / scale) ** 2) / 2)
        found = [_folded(abs(mu), float(self.r) * abs(total + mu)) for mu in z.tolist()]
        return float(np.sum(np.array(found) * mass) / np.sum(mass))


@lru_cache(maxsize=64)
def _factor_quantile(beta: Fraction) -> int:
    return FACTOR.quantile(beta)


def _folded(mu: float, s: float) -> float:
    """Return E|N(μ, s²)|, μ ≥ 0."""
    if not s > 0:
        return mu
    t = mu / s / math.sqrt(2)
    return s * math.sqrt(2 / math.pi) * math.exp(-(t**2) if t < 30 else -math.inf) + mu * math.erf(t)
