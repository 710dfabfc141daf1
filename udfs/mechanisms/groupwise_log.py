"""Counts with relative error by the logarithm: groups of many records lose less (the open problem of paper 5)."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.bounds import log1p_above
from udfs.highprec import context, real
from udfs.mechanisms.base import Mechanism, above
from udfs.mechanisms.log import Log
from udfs.mechanisms.transformation import (
    Floats,
    interval_of_transformed,
    release_transformed,
    transformed_loss,
    transformed_loss_at,
    transformed_pure_loss,
    transformed_pure_loss_at,
    transformed_too_narrow,
    transformed_weights,
)

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
    rest is the loss of integer Gaussian noise. Source: paper 5 asks; MATH section 7 answers.
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
