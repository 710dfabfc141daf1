"""Continuous generalized Gaussian noise, by the incomplete gamma function."""

from dataclasses import dataclass
from functools import cached_property
from typing import final

from scipy import special

from udfs.continuous.base import Floats, Noise, require_scales
from udfs.highprec import context

CONSTANT_BITS = 160
LEAST_P, MOST_P = 0.02, 10.0


@final
@dataclass(frozen=True, kw_only=True)
class GeneralizedGaussian(Noise):
    """Density p/(2σΓ(1/p))·e^{−(|z|/σ)^p}, P(Z > z) = ½·Γ(1/p, (z/σ)^p)/Γ(1/p) (paper 1, section 5; MATH 4).

    0.02 ≤ p ≤ 10, where SciPy's incomplete gamma functions and their inverses keep the accuracy; the mechanism has
    p ≤ 1. p = 1 is Laplace noise of scale σ, p = 2 Gaussian noise of scale σ/√2.
    """

    p: float
    sigma: float

    def __post_init__(self) -> None:
        require_scales(self)
        if not LEAST_P <= self.p <= MOST_P:
            raise ValueError(f"p: must be between {LEAST_P:g} and {MOST_P:g}")

    def variance(self) -> float:
        """Return σ²·Γ(3/p)/Γ(1/p)."""
        return self.moment(2)

    def mean_absolute_error(self) -> float:
        """Return σ·Γ(2/p)/Γ(1/p)."""
        return self.moment(1)

    def moment(self, order: int) -> float:
        """Return E|Z|^order = σ^order·Γ((order + 1)/p)/Γ(1/p)."""
        ctx = context(CONSTANT_BITS)
        p = ctx.mpf(self.p)
        return float(ctx.mpf(self.sigma) ** order * ctx.gamma((order + 1) / p) / ctx.gamma(1 / p))

    @cached_property
    def _log_peak(self) -> float:
        ctx = context(CONSTANT_BITS)
        return -float(ctx.log(2 * ctx.mpf(self.sigma) * ctx.gamma(1 + 1 / ctx.mpf(self.p))))

    def _log_density(self, distance: Floats) -> Floats:
        return self._log_peak - (distance / self.sigma) ** self.p

    def _tail(self, distance: Floats) -> Floats:
        tail: Floats = special.gammaincc(1 / self.p, (distance / self.sigma) ** self.p) / 2
        return tail

    def _distance(self, tail: Floats) -> Floats:
        distance: Floats = self.sigma * special.gammainccinv(1 / self.p, 2.0 * tail) ** (1 / self.p)
        return distance
