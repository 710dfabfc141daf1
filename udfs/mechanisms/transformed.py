"""What transformation mechanisms share: noise on f(q + a), a concave f of the total, then an estimator
(docs/mathematics.md, sections 4 and 6).

Guarantee. ṽ = ⌊f(q + a)/λ + ½⌋·λ + Z, with Z on the lattice of step λ. For q' = q + Δ, every contribution being ≥ 0,
the transformed totals differ by at most f(Δ + a) − f(a), as f is concave; correctly decided rounding moves them apart
by at most one step more. So with D = f(Δ + a) − f(a) + λ for Δ > 0, and 0 for Δ = 0,

    Gaussian noise of scale σ:   PRzCDP with P(Δ) = D²/(2σ²), no pure loss;
    Laplace noise of scale σ:    PRDP with P = D/σ, and PRzCDP with P − (s/sinh s)·(1 − e^{−P}), s = λ/σ.

All that is released is computed from ṽ alone. Sources: paper 1, theorem 4.4 with its table 2 (whose proof stands once
the smaller total is put first); arXiv 2502.13314 for Laplace noise; docs/mathematics.md, sections 4, 6 and 9.
"""

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from udfs.losses.curve import laplace_zcdp
from udfs.mechanisms.base import FLOAT_SLACK, Released, choice
from udfs.noise.keystream import Bits
from udfs.noise.lattice import REACH, LatticeTable, add_noise, draw_noise
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.bounds import laplace_zcdp_above
from udfs.numbers.floating import in_units

Floats = NDArray[np.float64]
NOTHING = Fraction(0)
LARGEST_DOUBLE = float(np.finfo(np.float64).max)
ENDS = 2.0**-50  # relative error of a double ṽ, of the powers or the exponential of it, and of the offset taken off
POINTS = 1 << 14  # on each side, of the sum for the mean absolute error
NOISE_DOC = "gaussian: per-record zCDP; laplace: pure per-record DP, better for giants, worse for small records"
ESTIMATOR_DOC = "mean: unbiased, sums over cells are too; median: as often too high as too low, inside its interval"


def noise_choice() -> Any:
    """Declare the parameter `noise`."""
    return choice("gaussian", "laplace", doc=NOISE_DOC)


def estimator_choice() -> Any:
    """Declare the parameter `estimator`."""
    return choice("mean", "median", doc=ESTIMATOR_DOC)


class Transformation(Protocol):
    """What the functions here ask of a mechanism; v is a transformed total, in units of f."""

    @property
    def sigma(self) -> Fraction:
        """The noise scale."""

    @property
    def noise(self) -> str:
        """Gaussian or laplace."""

    @property
    def lattice_step(self) -> Fraction:
        """λ."""

    @property
    def rounding(self) -> Fraction:
        """What rounding to the lattice may add to the distance of two totals: λ, or 0 where nothing is rounded."""

    @property
    def table(self) -> LatticeTable:
        """The sampler's table."""

    def weights(self) -> LogWeights:
        """The noise's log-weights."""

    def rise_at(self, influence: Fraction, above: Fraction = NOTHING) -> Fraction:
        """Return an upper bound of D for an influence > 0, of totals of at least `above` ≥ 0."""

    def rise(self, influence: Floats) -> Floats:
        """Return D for influences ≥ 0, within 2⁻⁴⁵ relatively; what it returns at 0 is not used."""

    def transformed(self, totals: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ⌊f(q + a)/λ + ½⌋, exactly."""

    def curve(self, total: float) -> float:
        """Return f(total + a)."""

    def estimate(self, v: Floats) -> Floats:
        """Return the released values."""

    def inverse(self, v: Floats) -> Floats:
        """Return h(v) − a, h the non-decreasing extension of f's inverse."""

    def error_estimate(self, v: Floats) -> Floats:
        """Return the standard errors that are released."""


def transformed_weights(mechanism: Transformation) -> LogWeights:
    """Return the log-weights of the noise on the lattice, of scale σ/λ steps."""
    scale = mechanism.sigma / mechanism.lattice_step
    return LaplaceWeights(scale=scale) if mechanism.noise == "laplace" else GaussianWeights(scale=scale)


def transformed_formula(mechanism: Transformation) -> str:
    """Return the policy's formula in terms of D."""
    if mechanism.noise == "laplace":
        return "P − (s/sinh s)·(1 − e^(−P)) with the pure loss P = D/σ and s = λ/σ"
    return "D²/(2σ²)"


def transformed_loss_at(mechanism: Transformation, influence: Fraction) -> Fraction:
    """Return an upper bound of the PRzCDP loss, and 0 at no influence."""
    return loss_of_rise(mechanism, mechanism.rise_at(influence)) if influence else Fraction(0)


def loss_of_rise(mechanism: Transformation, rise: Fraction) -> Fraction:
    """Return an upper bound of the PRzCDP loss where transformed totals are `rise` apart, once rounded."""
    ratio = rise / mechanism.sigma
    if mechanism.noise == "laplace":
        return laplace_zcdp_above(ratio, mechanism.lattice_step / mechanism.sigma)
    return ratio**2 / 2


def transformed_pure_loss_at(mechanism: Transformation, influence: Fraction) -> Fraction | None:
    """Return an upper bound of D/σ for Laplace noise, None for Gaussian noise, and 0 at no influence."""
    return pure_loss_of_rise(mechanism, mechanism.rise_at(influence)) if influence else Fraction(0)


def pure_loss_of_rise(mechanism: Transformation, rise: Fraction) -> Fraction | None:
    """Return the PRDP loss likewise; None for Gaussian noise."""
    return rise / mechanism.sigma if mechanism.noise == "laplace" else None


def transformed_change_losses_at(
    mechanism: Transformation, low: Fraction, high: Fraction
) -> tuple[Fraction, Fraction | None]:
    """Return the losses of a value that is `low` or `high`, with D = f(high + a) − f(low + a) + λ, and 0 for the same.

    Other contributions being ≥ 0, the smaller total is at least `low`; f is concave.
    """
    if low == high:
        return Fraction(0), Fraction(0)
    rise = mechanism.rise_at(high - low, low)
    return loss_of_rise(mechanism, rise), pure_loss_of_rise(mechanism, rise)


def transformed_loss(mechanism: Transformation, influence: Floats) -> Floats:
    """Return the PRzCDP loss of whole arrays, rounded up, and 0 at no influence."""
    ratio = mechanism.rise(influence) / float(mechanism.sigma)
    if mechanism.noise == "laplace":
        loss = laplace_zcdp(ratio, mechanism.lattice_step / mechanism.sigma)
    else:
        loss = ratio**2 / 2
    return np.where(influence > 0, loss * (1 + FLOAT_SLACK), 0.0)


def transformed_pure_loss(mechanism: Transformation, influence: Floats) -> Floats:
    """Return the PRDP loss of whole arrays, rounded up; infinite for Gaussian noise, 0 at no influence."""
    if mechanism.noise == "laplace":
        pure = mechanism.rise(influence) / float(mechanism.sigma) * (1 + FLOAT_SLACK)
    else:
        pure = np.full(influence.shape, np.inf)
    return np.where(influence > 0, pure, 0.0)


def release_transformed(
    mechanism: Transformation, totals: NDArray[np.int64], bits: Bits, interval: Fraction
) -> Released:
    """Return estimates from ṽ; intervals from the noise's quantile, widened by the rounding step, cut at 0.

    [lower, upper] = h(ṽ ∓ (c + 1)λ) − a with P(|k| > c) ≤ 1 − interval, k the noise in steps; c·λ without rounding.
    The ends are counted in steps; where f is rounded they are moved out by what doubles make of them, too.
    """
    noisy = add_noise(mechanism.transformed(totals), *draw_noise(mechanism.table, bits, len(totals)))
    width = np.full(len(totals), half_width(mechanism.weights(), bool(mechanism.rounding), interval), dtype=np.uint64)
    down, up = (add_noise(noisy, width, np.full(len(totals), minus)) for minus in (True, False))
    v, low, high = (in_units(steps, mechanism.lattice_step) for steps in (noisy, down, up))
    slack = ENDS if mechanism.rounding else 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        return Released(
            value=_held(mechanism.estimate(v)),
            lower=np.maximum(_held(mechanism.inverse(low - slack * np.abs(low))), 0.0),
            upper=np.maximum(_held(mechanism.inverse(high + slack * np.abs(high))), 0.0),
            standard_error=mechanism.error_estimate(v),
        )


def transformed_too_narrow(mechanism: Transformation) -> bool:
    """Return whether σ is below 2⁹ lattice steps, or 2⁻⁴⁰ of f(a): the steps and doubles of ṽ then show beside it."""
    narrow = mechanism.sigma < mechanism.lattice_step * 2**9
    return bool(mechanism.rounding) and (narrow or float(mechanism.sigma) < abs(mechanism.curve(0.0)) * 2.0**-40)


def interval_of_transformed(mechanism: Transformation, total: float, interval: Fraction) -> tuple[float, float]:
    """Return the interval of ṽ = f(q + a)."""
    v = mechanism.curve(total)
    width = float(half_width(mechanism.weights(), bool(mechanism.rounding), interval) * mechanism.lattice_step)
    width += (abs(v) + width) * ENDS if mechanism.rounding else 0.0
    ends = np.array([v - width, v + width])
    with np.errstate(over="ignore", invalid="ignore"):
        lower, upper = np.maximum(_held(mechanism.inverse(ends)), 0.0).tolist()
    return lower, upper


@lru_cache(maxsize=256)
def half_width(weights: LogWeights, rounded: bool, interval: Fraction) -> int:
    """Return the interval's half-width in lattice steps: c, and one more where f is rounded."""
    return min(weights.quantile(1 - interval) + rounded, REACH)


def absolute_error_of_transformed(mechanism: Transformation, total: float, spread: float) -> float:
    """Return E|estimate − q| within one part in 10⁵, as a sum over the noise up to `spread` scales on both sides."""
    sigma = float(mechanism.sigma)
    z = np.linspace(-spread, spread, 2 * POINTS + 1)
    mass = np.exp(-np.abs(z) if mechanism.noise == "laplace" else -(z**2) / 2)
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.abs(mechanism.estimate(mechanism.curve(total) + z * sigma) - total)
        found = float(np.sum(error * mass) / np.sum(mass))
    return found if math.isfinite(found) else math.inf


def _held(values: Floats) -> Floats:
    # infinities meet where a power leaves the doubles
    return np.clip(np.nan_to_num(values, nan=LARGEST_DOUBLE), -LARGEST_DOUBLE, LARGEST_DOUBLE)
