"""Counts with relative error, beside the mechanisms: a scale in closed form, and noise that bounds no loss."""

import math
from dataclasses import dataclass
from fractions import Fraction

from udfs.numbers.exact import context, real

SIGMA_BITS = 200
SIGMA_DIGITS = 9  # of a sigma solved for: few enough to be written in a plan
SIGMA_SLACK = 1 - Fraction(1, 10**6)  # far above what the rounding of ṽ adds to the error
HALVINGS = 60


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
    digits = SIGMA_DIGITS - 1 - int(ctx.floor(ctx.log10(bound)))
    return Fraction(int(ctx.floor(bound * real(ctx, Fraction(10) ** digits)))) / Fraction(10) ** digits


# Noise in proportion to the count itself, N(x, r²x²): analysed here, and no mechanism (paper 5, algorithm 2).
#
# It keeps no bound α·ρ at all orders α > 1, so its PRzCDP loss is infinite and no plan can name it. For neighbouring
# counts x and x + 1, with t = 1 + 1/x, k = t² − 1, v = 1/(2r²x²) and u = α − 1:
#
#     D_α(x + 1 ‖ x) = −ln t − ln(1 − ku)/(2u) + αv/(1 − ku)    for α < (x + 1)²/(2x + 1), else infinite;
#     D_α(x ‖ x + 1) = ln t − ln(1 + ku/t²)/(2u) + αv/(1 + αk),   never more than the other direction.
#
# (Rényi divergence of Gaussians: ln(s₂/s₁) + ln(s₂²/s_α²)/(2u) + α(μ₁ − μ₂)²/(2s_α²), s_α² = αs₂² + (1 − α)s₁² > 0.)
# D_α(x + 1 ‖ x)/α rises with α: a bound up to an order A is that at A. A count of 0 has no noise, and both directions
# between 0 and 1 are infinite at every order. The paper claims D_α ≤ αv + 2·ln t for all α > 1, and its own formula has
# 2·ln t where ln t stands. docs/mathematics.md, section 9; docs/noise.md.


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
        k, log_t, v = (2 * x + 1) / x**2, math.log1p(1 / x), self._v(x)
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


def _require(x: int) -> None:
    if not x >= 1:
        raise ValueError("x: must be at least 1: a count of 0 has no noise")
