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

KIND = "groupwise_direct"
WARNING = (
    "groupwise_direct (noise in proportion to the count itself) bounds no loss: rho is infinite; at a count of 1 "
    "against 2 the divergence is infinite from order 4/3 on, at 0 against 1 at every order"
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
