"""Transformation mechanisms: noise on f(q + a), a concave f of the total, then an unbiased estimator (MATH 3, 8)."""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.bounds import log1p_above
from udfs.highprec import context, fraction, real
from udfs.keystream import Bits
from udfs.lattice import LARGEST, add_noise, draw_noise
from udfs.mechanisms.base import FLOAT_SLACK, Mechanism, Released, above
from udfs.reproducible import exp
from udfs.rounding import floor_log2, lattice_step, round_decided
from udfs.weights import GaussianWeights, LogWeights

CONSTANT_BITS = 160
LARGEST_DOUBLE = float(np.finfo(np.float64).max)


@final
@dataclass(frozen=True, kw_only=True)
class Log(Mechanism):
    """ṽ = ln(q + a) + discrete Gaussian noise on a fine lattice of step λ; mean-unbiased value e^{ṽ − σ²/2} − a.

    PRzCDP with P(Δ) = (ln(1 + Δ/a) + λ)²/(2σ²) for Δ > 0 and P(0) = 0, for contributions ≥ 0. Proof: for q' = q + Δ
    the transformed totals differ by at most ln((q + Δ + a)/(q + a)) ≤ ln(1 + Δ/a); correctly decided rounding moves
    them apart by at most one more step; and the discrete Gaussian shifted by a lattice distance x has Rényi
    divergence at most α·x²/(2σ²). Sources: paper 1, theorem 4.4 with its table 2; MATH sections 3 and 8.
    """

    a: Fraction = above(0, "offset added to a total before the logarithm, in the measure's unit")
    sigma: Fraction = above(0, "noise scale of the logarithm: about the relative standard error of large totals")

    kind: ClassVar[str] = "log"
    additive: ClassVar[bool] = False
    needs_nonnegative: ClassVar[bool] = True
    formula: ClassVar[str] = "(ln(1 + Δ/a) + λ)²/(2σ²) for Δ > 0, 0 for Δ = 0"
    pure_formula: ClassVar[str | None] = None

    @property
    def lattice_step(self) -> Fraction:
        """λ, a power of two near σ·2⁻³⁰ and at least 2¹⁰ evaluation errors of ln at the largest total."""
        return lattice_step(self.sigma, self._error())

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return an upper bound of (ln(1 + Δ/a) + λ)²/(2σ²), and 0 at no influence."""
        if not influence:
            return Fraction(0)
        return (log1p_above(influence / self.a) + self.lattice_step) ** 2 / (2 * self.sigma**2)

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return 0 at no influence, else None: Gaussian noise has no pure loss."""
        return None if influence else Fraction(0)

    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (ln(1 + Δ/a) + λ)²/(2σ²), rounded up, and 0 at no influence."""
        distance = np.log1p(influence / float(self.a)) + float(self.lattice_step)
        return np.where(influence > 0, (distance / float(self.sigma)) ** 2 / 2 * (1 + FLOAT_SLACK), 0.0)

    def pure_loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return 0 at no influence, else infinity."""
        return np.where(influence > 0, np.inf, 0.0)

    def variance(self, total: float) -> float:
        """Return (e^{σ²} − 1)(q + a)²; infinite beyond the doubles."""
        try:
            return math.expm1(self.sigma**2) * (total + float(self.a)) ** 2
        except OverflowError:
            return math.inf

    def weights(self) -> LogWeights:
        """Return −k²/(2s²), s = σ/λ."""
        return GaussianWeights(scale=self.sigma / self.lattice_step)

    def release(self, totals: NDArray[np.int64], bits: Bits, interval: Fraction) -> Released:
        """Return mean-unbiased values; intervals from the noise's quantile, widened by the rounding step, cut at 0.

        value = e^{ṽ − σ²/2} − a,   [lower, upper] = e^{ṽ ∓ (c + 1)λ} − a with P(|k| > c) ≤ 1 − interval,
        standard_error² = (e^{σ²} − 1)·e^{2ṽ − 2σ²}, the unbiased estimate of the variance.
        """
        noisy = add_noise(self._transformed(totals), *draw_noise(self.table, bits, len(totals)))
        v = noisy.astype(np.float64) * float(self.lattice_step)
        width, half_variance, log_error = _constants(self, interval)
        a = float(self.a)
        return Released(
            value=_held(exp(v - half_variance) - a),
            lower=np.maximum(_held(exp(v - width) - a), 0.0),
            upper=np.maximum(_held(exp(v + width) - a), 0.0),
            standard_error=_held(exp(v + log_error)),
        )

    def _transformed(self, totals: NDArray[np.int64]) -> NDArray[np.int64]:
        # ⌊ln(q + a)/λ + ½⌋, exactly
        per_step = 1 / float(self.lattice_step)
        v = np.log(totals.astype(np.float64) * float(self.step) + float(self.a)) * per_step
        return round_decided(totals, v, float(self._error()) * per_step, self._transformed_exactly)

    def _transformed_exactly(self, total: int) -> int:
        shifted = total * self.step + self.a
        if shifted == 1:
            return 0  # ln 1 = 0; of any other rational number the logarithm is irrational: never halfway
        for bits in (2**n for n in count(7)):
            ctx = context(bits)
            middle = fraction(ctx.log(real(ctx, shifted))) / self.lattice_step + Fraction(1, 2)
            error = (1 + abs(middle) + 1 / self.lattice_step) / 2 ** (bits - 16)
            if math.floor(middle - error) == math.floor(middle + error):
                return math.floor(middle)
        raise AssertionError("unreachable")

    def _error(self) -> Fraction:
        # q + a has relative error ≤ 2⁻⁵⁰ (conversions, product, sum), the logarithm itself ≤ 8 last bits;
        # |ln x| ≤ (|⌊log₂ x⌋| + 1)·0.7
        ends = (self.a, LARGEST * self.step + self.a)
        return Fraction(1, 2**50) + max(abs(floor_log2(end)) + 1 for end in ends) * Fraction(7, 10) / 2**49


@lru_cache(maxsize=256)
def _constants(mechanism: Log, interval: Fraction) -> tuple[float, float, float]:
    """Return the interval's half-width in ṽ, σ²/2, and ½·ln(e^{σ²} − 1) − σ², as doubles."""
    ctx = context(CONSTANT_BITS)
    variance = real(ctx, mechanism.sigma**2)
    width = (mechanism.weights().quantile(1 - interval) + 1) * mechanism.lattice_step
    log_error = ctx.log(ctx.expm1(variance)) / 2 - variance
    return float(width), float(variance / 2), float(log_error)


def _held(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(values, -LARGEST_DOUBLE, LARGEST_DOUBLE)
