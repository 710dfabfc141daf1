"""The transformed mechanisms: noise on f(q + a), a concave f of the total, then an estimator
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
from abc import abstractmethod
from fractions import Fraction
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from udfs.mechanisms.additive import AdditiveMechanism
from udfs.mechanisms.additive_kinds import Gaussian, Laplace
from udfs.mechanisms.base import ZERO, Mechanism, Released, choice
from udfs.noise.keystream import Bits
from udfs.noise.lattice import REACH, add_noise, interval_of
from udfs.noise.powers import LARGEST_DOUBLE
from udfs.numbers.arrays import LARGEST, Floats, Int64s, in_units

ENDS = 2.0**-50  # relative error of a double ṽ, of the powers or the exponential of it, and of the offset taken off
POINTS = 1 << 14  # on each side, of the sum for the mean absolute error
QUANTILES = 1 << 14  # of the noise, for quantiles of errors
NOISE_DOC = "gaussian: per-record zCDP; laplace: pure per-record DP, better for giants, worse for small records"
ESTIMATOR_DOC = "mean: unbiased, sums over cells are too; median: as often too high as too low, inside its interval"


def noise_choice() -> Any:
    """Declare the parameter `noise`."""
    return choice("gaussian", "laplace", doc=NOISE_DOC)


def estimator_choice() -> Any:
    """Declare the parameter `estimator`."""
    return choice("mean", "median", doc=ESTIMATOR_DOC)


class TransformedMechanism(Mechanism):
    """Noise on a concave, increasing f of a total plus the offset a, on a fine lattice; and estimators of the total.

    v is a transformed total, in units of f, and ṽ the noisy one. A kind declares its parameters a and sigma and, where
    there is a choice, noise and estimator: `sigma` is the scale of the noise, `gaussian` or `laplace`; it decides the
    lattice, and the estimators depend on both.
    """

    needs_nonnegative: ClassVar[bool] = True
    a: Fraction
    sigma: Fraction
    noise: str = "gaussian"
    estimator: str = "mean"

    @property
    @abstractmethod
    def rise_formula(self) -> str:
        """D in the parameters, the influence Δ and the lattice step λ."""

    @property
    @abstractmethod
    def power(self) -> int | None:
        """The k with f^{-1}(v) = v^k, which has unbiased estimators under any noise; None for a logarithm."""

    @property
    @abstractmethod
    def lattice_step(self) -> Fraction: ...

    @cached_property
    def lattice_noise(self) -> AdditiveMechanism:
        kind = Laplace if self.noise == "laplace" else Gaussian
        return kind(sigma=self.sigma, step=self.lattice_step)

    @property
    def rounding(self) -> Fraction:
        """What rounding to the lattice may add to the distance of two totals: λ, or 0 where nothing is rounded."""
        return self.lattice_step

    @abstractmethod
    def rise_at(self, influence: Fraction, above: Fraction = ZERO) -> Fraction:
        """Return an upper bound of D for an influence > 0, of totals of at least `above` ≥ 0."""

    @abstractmethod
    def rise(self, influence: Floats) -> Floats:
        """Return D for influences ≥ 0, within 2⁻⁴⁵ relatively; what it returns at 0 is not used."""

    @abstractmethod
    def on_lattice(self, totals: Int64s) -> Int64s:
        """Return ⌊f(q + a)/λ + ½⌋, exactly."""

    @abstractmethod
    def transform(self, total: float) -> float:
        """Return f(total + a)."""

    @abstractmethod
    def estimate(self, v: Floats) -> Floats:
        """Return the released values."""

    @abstractmethod
    def inverse(self, v: Floats) -> Floats:
        """Return h(v) − a, h the non-decreasing extension of f's inverse."""

    @abstractmethod
    def error_estimate(self, v: Floats) -> Floats:
        """Return the standard errors that are released."""

    @property
    def formula(self) -> str:
        if self.noise == "laplace":
            pure = "P − (s/sinh s)·(1 − e^(−P)) with the pure loss P = D/σ and s = λ/σ"
            return f"{pure}, {self.rise_formula}"
        return f"D²/(2σ²), {self.rise_formula}"

    @property
    def pure_formula(self) -> str | None:
        return f"D/σ, {self.rise_formula}" if self.noise == "laplace" else None

    def shift_at(self, influence: Fraction, above: Fraction = ZERO) -> Fraction:
        """Return an upper bound of f(Δ + above + a) − f(above + a) + λ; 0 at no influence."""
        return self.rise_at(influence, above) if influence else Fraction(0)

    def shift(self, influence: Floats) -> Floats:
        return np.where(influence > 0, self.rise(influence), 0.0)

    def least_loss_at(self, influence: Fraction) -> float:
        # the totals 0 and the influence lie so far apart on the lattice
        largest = min(math.floor(influence / self.step), LARGEST)
        nothing, alone = self.on_lattice(np.array([0, largest]))
        return self.lattice_noise.least_loss_at((int(alone) - int(nothing)) * self.lattice_step)

    @property
    def too_narrow(self) -> bool:
        """Whether σ is below 2⁹ lattice steps, or 2⁻⁴⁰ of f(a): the steps and doubles of ṽ then show beside it."""
        narrow = self.sigma < self.lattice_step * 2**9 or float(self.sigma) < abs(self.transform(0.0)) * 2.0**-40
        return bool(self.rounding) and narrow

    def error_quantile(self, total: float, level: Fraction) -> float:
        # from the estimates at equally likely values of the noise; of totals that are not transformed that of the noise
        if not self.rounding:
            return float(self.lattice_noise.half_width(level) * self.step)
        return float(np.quantile(self._errors(total), float(level), method="hazen"))

    def error_share(self, total: float, most: float) -> float:
        if not self.rounding:
            return self.lattice_noise.error_share(total, most)
        return float(np.mean(self._errors(total) <= most))

    def _errors(self, total: float) -> Floats:
        noise = equally_likely(self.noise, QUANTILES) * float(self.sigma)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.abs(_within_doubles(self.estimate(self.transform(total) + noise)) - total)

    def summed_absolute_error(self, total: float, reach: float) -> float:
        """Return E|estimate − q| within one part in 10⁵, as a sum over the noise up to `reach` scales on both sides."""
        z = np.linspace(-reach, reach, 2 * POINTS + 1)
        mass = np.exp(-np.abs(z) if self.noise == "laplace" else -(z**2) / 2)
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(self.estimate(self.transform(total) + z * float(self.sigma)) - total)
            mean = float(np.sum(error * mass) / np.sum(mass))
        return mean if math.isfinite(mean) else math.inf

    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        v = self.transform(total)
        width = float(self._half_width(interval) * self.lattice_step)
        width += (abs(v) + width) * ENDS if self.rounding else 0.0
        ends = np.array([v - width, v + width])
        with np.errstate(over="ignore", invalid="ignore"):
            lower, upper = np.maximum(_within_doubles(self.inverse(ends)), 0.0).tolist()
        return lower, upper

    def release(self, totals: Int64s, bits: Bits, interval: Fraction) -> Released:
        """Return estimates from ṽ; intervals from the noise's quantile, widened by the rounding step, cut at 0.

        [lower, upper] = h(ṽ ∓ (c + 1)λ) − a with P(|k| > c) ≤ 1 − interval, k the noise in steps; c·λ without rounding.
        The ends are counted in steps; where f is rounded they are moved out by what doubles make of them, too.
        """
        noisy = add_noise(self._points(totals), *self.lattice_noise.draw(bits, len(totals)))
        down, up = interval_of(noisy, self._half_width(interval))
        v, low, high = (in_units(steps, self.lattice_step) for steps in (noisy, down, up))
        slack = ENDS if self.rounding else 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            return Released(
                value=_within_doubles(self.estimate(v)),
                lower=np.maximum(_within_doubles(self.inverse(low - slack * np.abs(low))), 0.0),
                upper=np.maximum(_within_doubles(self.inverse(high + slack * np.abs(high))), 0.0),
                standard_error=self.error_estimate(v),
            )

    def _points(self, totals: Int64s) -> Int64s:
        # a large table is mostly empty: ⌊f(a)/λ + ½⌋ once for all its cells of total 0
        points = np.full(len(totals), self.on_lattice(np.zeros(1, dtype=np.int64)))
        filled = np.flatnonzero(totals)
        points[filled] = self.on_lattice(totals[filled])
        return points

    def _half_width(self, interval: Fraction) -> int:
        # in lattice steps: c, and one more where f is rounded
        return min(self.lattice_noise.half_width(interval) + bool(self.rounding), REACH)


@lru_cache(maxsize=8)
def equally_likely(noise: str, number: int) -> Floats:
    """Return the quantiles at (i + ½)/number of `gaussian` or `laplace` noise of scale 1, ascending."""
    levels = (np.arange(number) + 0.5) / number
    if noise == "laplace":
        return np.where(levels < 0.5, np.log(2 * levels), -np.log(2 * (1 - levels)))
    return np.array([NormalDist().inv_cdf(level) for level in levels.tolist()])


def _within_doubles(values: Floats) -> Floats:
    held = np.fmin(values, LARGEST_DOUBLE)  # also of NaN: infinities meet where a power leaves the doubles
    return np.maximum(held, -LARGEST_DOUBLE, out=held)
