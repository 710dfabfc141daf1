"""Noise in proportion to the count itself, N(x, r²x²): analysed here, and no mechanism (paper 5, algorithm 2).

It keeps no bound α·ρ at all orders α > 1, so its PRzCDP loss is infinite and no plan can name it. For neighbouring
counts x and x + 1, with t = 1 + 1/x, k = t² − 1, v = 1/(2r²x²) and u = α − 1:

    D_α(x + 1 ‖ x) = −ln t − ln(1 − ku)/(2u) + αv/(1 − ku)    for α < (x + 1)²/(2x + 1), else infinite;
    D_α(x ‖ x + 1) = ln t − ln(1 + ku/t²)/(2u) + αv/(1 + αk),   never more than the other direction.

(Rényi divergence of Gaussians: ln(s₂/s₁) + ln(s₂²/s_α²)/(2u) + α(μ₁ − μ₂)²/(2s_α²), s_α² = αs₂² + (1 − α)s₁² > 0.)
D_α(x + 1 ‖ x)/α rises with α: a bound up to an order A is that at A. A count of 0 has no noise, and both directions
between 0 and 1 are infinite at every order. The paper claims D_α ≤ αv + 2·ln t for all α > 1, and its own formula has
2·ln t where ln t stands. docs/mathematics.md, section 9; docs/groupwise.md.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.mechanisms.additive import Gaussian, no_pure_loss, no_pure_loss_at, own_step, spread
from udfs.mechanisms.base import Mechanism, Released, above, require_scale
from udfs.mechanisms.log import Log
from udfs.mechanisms.transformed import (
    interval_of_transformed,
    release_transformed,
    transformed_loss,
    transformed_loss_at,
    transformed_pure_loss,
    transformed_pure_loss_at,
    transformed_too_narrow,
    transformed_weights,
)
from udfs.noise.keystream import Bits, SecondNoise
from udfs.noise.lattice import LARGEST, LatticeTable, add_noise, build_table, draw_noise
from udfs.noise.weights import GaussianWeights, LogWeights
from udfs.numbers.bounds import log1p_above
from udfs.numbers.exact import context, real
from udfs.numbers.floating import in_units

KIND = "groupwise_direct"
WARNING = (
    "groupwise_direct (noise in proportion to the count itself) bounds no loss at all orders: rho is infinite; at a "
    "count of 1 against 2 the divergence is infinite from order 4/3 on, at 0 against 1 at every order"
)
HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class GroupwiseDirect:
    """N(x, r²x²) on counts x, 0 < r ≤ 1: what its divergences are, and up to which order something bounds them."""

    r: Fraction

    def __post_init__(self) -> None:
        if not 0 < self.r <= 1:
            raise ValueError("r: must be above 0 and at most 1")

    def divergence(self, order: float, first: int, second: int) -> float:
        """Return D_α(first ‖ second), α = `order` > 1, of counts ≥ 0 that differ by one; infinite where it is."""
        if not (order > 1 and min(first, second) >= 0 and abs(first - second) == 1):
            raise ValueError("a divergence needs an order above 1 and counts of at least 0 that differ by one")
        x, u = min(first, second), order - 1
        if x == 0:
            return math.inf
        k, log_t, v = _k(x), math.log1p(1 / x), self._v(x)
        if first < second:
            return log_t - math.log1p(k * u / (1 + k)) / (2 * u) + order * v / (1 + order * k)
        if order >= infinite_from(x):
            return math.inf
        return -log_t - math.log1p(-k * u) / (2 * u) + order * v / (1 - k * u)

    def loss_up_to(self, order: float, x: int) -> float:
        """Return the smallest ρ with D_α ≤ α·ρ for all 1 < α ≤ `order`, both directions between x and x + 1."""
        return self.divergence(order, x + 1, x) / order

    def claim_holds_to(self, x: int) -> float:
        """Return the largest order up to which paper 5's claim holds in both directions between x ≥ 1 and x + 1.

        D_α(x + 1 ‖ x) − αv − 2·ln t rises with α and is below 0 at 1, so there is one such order; it is rounded down.
        """
        _require(x)
        low, high = 1.0, float(infinite_from(x))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if middle > 1 and self.divergence(middle, x + 1, x) <= middle * self._v(x) + 2 * math.log1p(1 / x):
                low = middle
            else:
                high = middle
        return low

    def _v(self, x: int) -> float:
        return float(1 / (2 * (self.r * x) ** 2))


def infinite_from(x: int) -> Fraction:
    """Return the order from which D_α(x + 1 ‖ x) is infinite, x ≥ 1: (x + 1)²/(2x + 1), whatever r."""
    _require(x)
    return Fraction((x + 1) ** 2, 2 * x + 1)


def _k(x: int) -> float:
    return (2 * x + 1) / x**2


def _require(x: int) -> None:
    if not x >= 1:
        raise ValueError("x: must be at least 1: a count of 0 has no noise")


# Counts with relative error by noise on noise: a noisy count times a noisy factor (paper 5, algorithm 1).


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
    columns are functions of Y, which tells less than X. Source: paper 5, algorithm 1; docs/groupwise.md.
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


# Counts with relative error by the logarithm: groups of many records lose less (the open problem of paper 5).


ONE = Fraction(1)
SIGMA_BITS = 200
SIGMA_DIGITS = 9  # of a sigma found for a target: few enough to be written in a plan
SIGMA_SLACK = 1 - Fraction(1, 10**6)  # far above what the rounding of ṽ adds to the error


@final
@dataclass(frozen=True, kw_only=True)
class GroupwiseLog(Mechanism):
    """ṽ = ln(x + a) + Gaussian noise on a fine lattice of step λ, x a count; the value is e^{ṽ − σ²/2} − a, unbiased.

    PRzCDP with P(Δ) = (ln(1 + Δ/a) + λ)²/(2σ²). And group-wise zCDP with ξ = 0: for a cell of true count x, every α > 1
    and both directions, a neighbour with one record more or fewer has D_α ≤ α·v(x), `group_loss_at`:

        v(x) = (ln(1 + 1/(x − 1 + a)) + λ)²/(2σ²) for x ≥ 1,    v(0) = v(1) = P(1),    never rising in x.

    v(x) of an actual cell is as confidential as its count. E|value − x| = 2(2Φ(σ/2) − 1)·(x + a).
    Proof: ln(x + a) and ln(x ± 1 + a) differ by at most ln(1 + 1/(x − 1 + a)), rounded centres by at most λ more; the
    rest is the loss of integer Gaussian noise. Source: paper 5 asks; docs/groupwise.md answers.
    """

    a: Fraction = above(0, "offset added to a count before the logarithm: larger spares small groups")
    sigma: Fraction = above(0, "noise scale of the logarithm: about the relative standard error of large counts")

    kind: ClassVar[str] = "groupwise_log"
    additive: ClassVar[bool] = False
    needs_nonnegative: ClassVar[bool] = True
    counts_only: ClassVar[bool] = True
    noise: ClassVar[str] = "gaussian"
    formula: ClassVar[str] = "D²/(2σ²), D = ln(1 + Δ/a) + λ for Δ > 0, D = 0 for Δ = 0"
    pure_formula: ClassVar[str | None] = None

    weights = transformed_weights
    loss_at = transformed_loss_at
    pure_loss_at = transformed_pure_loss_at
    loss = transformed_loss
    pure_loss = transformed_pure_loss
    release = release_transformed
    interval_around = interval_of_transformed
    too_narrow = property(transformed_too_narrow)

    @cached_property
    def log(self) -> Log:
        """The log mechanism that this one is, with Gaussian noise and the mean-unbiased estimator."""
        return Log(a=self.a, sigma=self.sigma, step=self.step, noise="gaussian", estimator="mean")

    def group_loss_at(self, total: Fraction, influence: Fraction = ONE) -> Fraction:
        """Return an upper bound of v(total): the zCDP loss of `influence` more or fewer in a cell of this true total.

        v = (ln(1 + Δ/(max(x − Δ, 0) + a)) + λ)²/(2σ²) for Δ > 0, else 0. ValueError unless total and influence are ≥ 0.
        It tells the total: report it inside the enclave alone.
        """
        if not (total >= 0 and influence >= 0):
            raise ValueError("a group's loss needs a total and an influence of at least 0")
        if not influence:
            return Fraction(0)
        rise = log1p_above(influence / (max(total - influence, Fraction(0)) + self.a)) + self.lattice_step
        return (rise / self.sigma) ** 2 / 2

    @property
    def lattice_step(self) -> Fraction:
        """λ, as of the log mechanism."""
        return self.log.lattice_step

    @property
    def rounding(self) -> Fraction:
        """λ."""
        return self.lattice_step

    def rise_at(self, influence: Fraction) -> Fraction:
        """Return an upper bound of ln(1 + Δ/a) + λ."""
        return self.log.rise_at(influence)

    def rise(self, influence: Floats) -> Floats:
        """Return ln(1 + Δ/a) + λ."""
        return self.log.rise(influence)

    def transformed(self, totals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ⌊ln(x + a)/λ + ½⌋, exactly."""
        return self.log.transformed(totals)

    def curve(self, total: float) -> float:
        """Return ln(total + a)."""
        return self.log.curve(total)

    def estimate(self, v: Floats) -> Floats:
        """Return e^{v − σ²/2} − a."""
        return self.log.estimate(v)

    def inverse(self, v: Floats) -> Floats:
        """Return e^v − a."""
        return self.log.inverse(v)

    def error_estimate(self, v: Floats) -> Floats:
        """Return the root of the unbiased estimate of the variance."""
        return self.log.error_estimate(v)

    def variance(self, total: float) -> float:
        """Return (e^{σ²} − 1)·(x + a)²."""
        return self.log.variance(total)

    def mean_absolute_error(self, total: float) -> float:
        """Return 2(2Φ(σ/2) − 1)·(x + a)."""
        return self.log.mean_absolute_error(total)


def sigma_for_relative_error(r: Fraction, a: Fraction) -> Fraction:
    """Return a σ, near the largest, with which E|value − x| < r·x for every count x ≥ 1.

    E|value − x| = 2(2Φ(σ/2) − 1)·(x + a), and (x + a)/x is largest at x = 1:  σ < 2Φ⁻¹(½ + r/(4(1 + a))).
    A decimal of at most 9 digits. Raises ValueError unless 0 < r ≤ 1 and a > 0.
    """
    if not (0 < r <= 1 and a > 0):
        raise ValueError("a target needs a relative error above 0 and at most 1, and an offset a above 0")
    ctx = context(SIGMA_BITS)
    # 2Φ⁻¹(½ + u) = 2√2·erfinv(2u)
    bound = 2 * ctx.sqrt(2) * ctx.erfinv(real(ctx, r / (2 * (1 + a)))) * real(ctx, SIGMA_SLACK)
    places = SIGMA_DIGITS - 1 - int(ctx.floor(ctx.log10(bound)))
    return Fraction(int(ctx.floor(bound * real(ctx, Fraction(10) ** places)))) / Fraction(10) ** places
