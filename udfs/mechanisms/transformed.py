"""The transformed form: noise on f(q + a), a concave f of the total, then an estimator
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
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any, Generic, TypeVar, final

import numpy as np

from udfs.mechanisms.base import ZERO, Form, Released
from udfs.mechanisms.gaussian import GaussianNoise
from udfs.mechanisms.laplace import LaplaceNoise
from udfs.mechanisms.noise import Noise
from udfs.mechanisms.parameters import choice
from udfs.noise.keystream import Bits
from udfs.noise.lattice import REACH, add_noise
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.floating import in_units
from udfs.numbers.wide import LARGEST

LARGEST_DOUBLE = float(np.finfo(np.float64).max)
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


@dataclass(frozen=True, kw_only=True)
class Curve(ABC):
    """A concave, increasing f of a total plus the offset a, on a fine lattice; and estimators of the total from ṽ.

    v is a transformed total, in units of f. `sigma` is the scale of the noise, `gaussian` or `laplace`: it decides the
    lattice, and the estimators depend on both. Totals are whole numbers of `step`. Subclasses are final.
    """

    a: Fraction
    sigma: Fraction
    step: Fraction
    noise: str
    estimator: str

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
    def lattice_step(self) -> Fraction:
        """λ."""

    @cached_property
    def named_noise(self) -> Noise:
        """The noise of scale sigma on the curve's lattice."""
        if self.noise == "laplace":
            return LaplaceNoise(scale=self.sigma, step=self.lattice_step, policy="tight")
        return GaussianNoise(scale=self.sigma, step=self.lattice_step)

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

    def rise_by_factor(self, factor: Fraction) -> Fraction | None:
        """Return D for a value multiplied by up to `factor` > 1, whatever it is; None where there is no bound."""
        return None

    @abstractmethod
    def on_lattice(self, totals: Int64s) -> Int64s:
        """Return ⌊f(q + a)/λ + ½⌋, exactly."""

    @abstractmethod
    def at(self, total: float) -> float:
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

    @abstractmethod
    def variance(self, total: float) -> float:
        """Return the variance of the released value at a true total."""

    @abstractmethod
    def mean_absolute_error(self, total: float) -> float:
        """Return E|released value − total| at a true total."""

    def continuous(self) -> Any:
        """Return the law of the released value of continuous noise; None where there are no closed forms."""
        return None

    def error_quantile(self, total: float, level: Fraction) -> float:
        """Return the quantile of |estimate − q|, from the estimates at equally likely values of the noise."""
        return float(np.quantile(self._errors(total), float(level), method="hazen"))

    def error_share(self, total: float, most: float) -> float:
        """Return P(|estimate − q| ≤ most) likewise."""
        return float(np.mean(self._errors(total) <= most))

    def _errors(self, total: float) -> Floats:
        noise = equally_likely(self.noise, QUANTILES) * float(self.sigma)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.abs(_held(self.estimate(self.at(total) + noise)) - total)

    def summed_absolute_error(self, total: float, reach: float) -> float:
        """Return E|estimate − q| within one part in 10⁵, as a sum over the noise up to `reach` scales on both sides."""
        z = np.linspace(-reach, reach, 2 * POINTS + 1)
        mass = np.exp(-np.abs(z) if self.noise == "laplace" else -(z**2) / 2)
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(self.estimate(self.at(total) + z * float(self.sigma)) - total)
            mean = float(np.sum(error * mass) / np.sum(mass))
        return mean if math.isfinite(mean) else math.inf


C = TypeVar("C", bound=Curve)


@final
@dataclass(frozen=True, kw_only=True)
class Transformed(Form, Generic[C]):
    """Noise on a curve of the total. The noise's steps are the curve's."""

    curve: C

    @classmethod
    def of(cls, curve: C) -> "Transformed[C]":
        """Return the curve with the noise that it names."""
        return cls(curve=curve, noise=curve.named_noise)

    def __post_init__(self) -> None:
        if self.noise.step != self.curve.lattice_step:
            raise ValueError("noise: it must lie on the curve's lattice")

    @property
    def formula(self) -> str:
        """The policy, with D spelled out."""
        if self.curve.noise == "laplace":
            pure = "P − (s/sinh s)·(1 − e^(−P)) with the pure loss P = D/σ and s = λ/σ"
            return f"{pure}, {self.curve.rise_formula}"
        return f"D²/(2σ²), {self.curve.rise_formula}"

    @property
    def pure_formula(self) -> str | None:
        """The pure loss of Laplace noise."""
        return f"D/σ, {self.curve.rise_formula}" if self.curve.noise == "laplace" else None

    def shift_at(self, influence: Fraction, above: Fraction = ZERO) -> Fraction:
        """Return an upper bound of f(Δ + above + a) − f(above + a) + λ; 0 at no influence."""
        return self.curve.rise_at(influence, above) if influence else Fraction(0)

    def least_shift_at(self, influence: Fraction) -> Fraction:
        """Return how far apart the totals 0 and the influence lie on the lattice."""
        largest = min(math.floor(influence / self.curve.step), LARGEST)
        nothing, alone = self.curve.on_lattice(np.array([0, largest]))
        return (int(alone) - int(nothing)) * self.curve.lattice_step

    def shift(self, influence: Floats) -> Floats:
        """Return the same for whole arrays, of totals of at least 0."""
        return np.where(influence > 0, self.curve.rise(influence), 0.0)

    def renyi_at(self, influence: Fraction, orders: Floats) -> Floats:
        """Return those of Laplace noise; Gaussian noise has none below its losses."""
        return self.noise.renyi_at(self.shift_at(influence), orders)

    def shift_by_factor(self, factor: Fraction) -> Fraction | None:
        """Return the curve's bound."""
        return self.curve.rise_by_factor(factor)

    @property
    def too_narrow(self) -> bool:
        """Whether σ is below 2⁹ lattice steps, or 2⁻⁴⁰ of f(a): the steps and doubles of ṽ then show beside it."""
        curve = self.curve
        narrow = curve.sigma < curve.lattice_step * 2**9 or float(curve.sigma) < abs(curve.at(0.0)) * 2.0**-40
        return bool(curve.rounding) and narrow

    @property
    def estimator(self) -> str:
        """The curve's."""
        return self.curve.estimator

    def variance(self, total: float) -> float:
        """Return the variance of the curve's estimate."""
        return self.curve.variance(total)

    def mean_absolute_error(self, total: float) -> float:
        """Return that of the curve's estimate."""
        return self.curve.mean_absolute_error(total)

    def error_quantile(self, total: float, level: Fraction) -> float:
        """Return that of the curve's estimate; of totals that are not transformed that of the noise itself."""
        if not self.curve.rounding:
            return float(self.noise.half_width(level) * self.noise.step)
        return self.curve.error_quantile(total, level)

    def error_share(self, total: float, most: float) -> float:
        """Return that of the curve's estimate; of totals that are not transformed that of the noise itself."""
        return self.curve.error_share(total, most) if self.curve.rounding else self.noise.share_within(most)

    def continuous(self) -> Any:
        """Return the law of the curve's estimate."""
        return self.curve.continuous()

    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        """Return the interval of ṽ = f(q + a)."""
        v = self.curve.at(total)
        width = float(self._half_width(interval) * self.curve.lattice_step)
        width += (abs(v) + width) * ENDS if self.curve.rounding else 0.0
        ends = np.array([v - width, v + width])
        with np.errstate(over="ignore", invalid="ignore"):
            lower, upper = np.maximum(_held(self.curve.inverse(ends)), 0.0).tolist()
        return lower, upper

    def release(self, totals: Int64s, bits: Bits, interval: Fraction) -> Released:
        """Return estimates from ṽ; intervals from the noise's quantile, widened by the rounding step, cut at 0.

        [lower, upper] = h(ṽ ∓ (c + 1)λ) − a with P(|k| > c) ≤ 1 − interval, k the noise in steps; c·λ without rounding.
        The ends are counted in steps; where f is rounded they are moved out by what doubles make of them, too.
        """
        curve, size = self.curve, len(totals)
        noisy = add_noise(self._points(totals), *self.noise.draw(bits, size))
        width = np.full(size, self._half_width(interval), dtype=np.uint64)
        down, up = (add_noise(noisy, width, np.full(size, minus)) for minus in (True, False))
        v, low, high = (in_units(steps, curve.lattice_step) for steps in (noisy, down, up))
        slack = ENDS if curve.rounding else 0.0
        with np.errstate(over="ignore", invalid="ignore"):
            return Released(
                value=_held(curve.estimate(v)),
                lower=np.maximum(_held(curve.inverse(low - slack * np.abs(low))), 0.0),
                upper=np.maximum(_held(curve.inverse(high + slack * np.abs(high))), 0.0),
                standard_error=curve.error_estimate(v),
            )

    def _points(self, totals: Int64s) -> Int64s:
        # a large table is mostly empty: ⌊f(a)/λ + ½⌋ once for all its cells of total 0
        points = np.full(len(totals), self.curve.on_lattice(np.zeros(1, dtype=np.int64)))
        filled = np.flatnonzero(totals)
        points[filled] = self.curve.on_lattice(totals[filled])
        return points

    def _half_width(self, interval: Fraction) -> int:
        # in lattice steps: c, and one more where f is rounded
        return min(self.noise.half_width(interval) + bool(self.curve.rounding), REACH)


@lru_cache(maxsize=8)
def equally_likely(noise: str, number: int) -> Floats:
    """Return the quantiles at (i + ½)/number of `gaussian` or `laplace` noise of scale 1, ascending."""
    levels = (np.arange(number) + 0.5) / number
    if noise == "laplace":
        return np.where(levels < 0.5, np.log(2 * levels), -np.log(2 * (1 - levels)))
    return np.array([NormalDist().inv_cdf(level) for level in levels.tolist()])


def _held(values: Floats) -> Floats:
    # infinities meet where a power leaves the doubles
    return np.clip(np.nan_to_num(values, nan=LARGEST_DOUBLE), -LARGEST_DOUBLE, LARGEST_DOUBLE)
