"""Continuous exponential polylogarithmic noise: closed forms for p = 1 and p = 2, quadrature for every other p."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from scipy import special

from udfs.continuous.base import Floats, Noise, require_scales
from udfs.continuous.laplace import minus_log_doubled
from udfs.continuous.panels import Panels, fall
from udfs.continuous.solve import solve_distance
from udfs.highprec import context

CONSTANT_BITS = 400  # at p = 2 the moments are differences: they lose at most some hundred bits
MOST_P = 20.0
MOST_D = 1e12
FARTHEST_MODE = 50.0  # of ln(|z|/σ + a): beyond, hardly any noise is smaller than 10²⁰ σ


@final
@dataclass(frozen=True, kw_only=True)
class ExponentialPolylog(Noise):
    """Density ∝ e^{−d·ln(|z|/σ + a)^p}, σ > 0, d > 0, 1 ≤ p ≤ 20, a ≥ e^{p−1}, and d > 1 where p = 1 (MATH 4).

    With L = ln a, v = ln(|z|/(σa) + 1), fall(v) = d((L + v)^p − L^p) and R(v) = ∫_0^∞ e^{s − fall(v + s) + fall(v)} ds:

        density = e^{−fall(v)}/(2σa·R(0)),        P(Z > z) = ½·e^{v − fall(v)}·R(v)/R(0)

    p = 1: R = 1/(d−1). p = 2: R(v) = ½√(π/d)·erfcx(√d·(L + v − 1/(2d))); erfcx(x) = e^{x²}·erfc(x) replaces the
    1 − κ of paper 1, section 5, and neither underflows nor cancels. Other p: panels of Gauss–Legendre nodes in v.
    Raises ValueError also where d is so small beside p that nearly all noise would be larger than 10²⁰·σ.
    """

    p: float
    d: float
    a: float
    sigma: float

    def __post_init__(self) -> None:
        require_scales(self)
        if not 1 <= self.p <= MOST_P:
            raise ValueError(f"p: must be between 1 and {MOST_P:g}")
        if not self.d <= MOST_D:
            raise ValueError(f"d: must be at most {MOST_D:g}")
        least = math.exp(self.p - 1) * (1 - 2.0**-50)  # a = e^{p−1} may have been rounded down
        if not self.a >= least or (self.p > 1 and not self.a > 1):
            raise ValueError("a: must be at least exp(p − 1)")
        if self.p == 1 and not self.d > 1:
            raise ValueError("d: must be above 1 where p = 1")
        if self.p > 1 and not -math.log(self.p * self.d) <= (self.p - 1) * math.log(FARTHEST_MODE):
            raise ValueError("d: too small for this p, nearly all noise would be larger than 10²⁰·sigma")

    def variance(self) -> float:
        """Return σ²(I_3 − 2a·I_2 + a²·I_1)/I_1; p = 1: 2σ²a²/((d−2)(d−3)), infinite for d ≤ 3."""
        return self.moment(2)

    def mean_absolute_error(self) -> float:
        """Return σ(I_2 − a·I_1)/I_1; p = 1: σa/(d−2), infinite for d ≤ 2."""
        return self.moment(1)

    def moment(self, order: int) -> float:
        """Return E|Z|^n, n = `order` ≥ 1; p = 1: (σa)^n·n!/((d−2)(d−3)…(d−1−n)), infinite for d ≤ n + 1."""
        return float(self._moment(order))

    def _moment(self, order: int) -> Any:
        # (σa)^order·∫ (e^v − 1)^order e^{v − fall(v)} dv / R(0)
        ctx = context(CONSTANT_BITS)
        scale = (ctx.mpf(self.sigma) * ctx.mpf(self.a)) ** order
        if self.p == 1:
            d = ctx.mpf(self.d)
            if d <= order + 1:
                return math.inf
            return scale * math.factorial(order) / ctx.fprod(d - 1 - i for i in range(1, order + 1))
        if self.p == 2:
            integrals = [self._squared(j) for j in range(1, order + 2)]
            signed = [math.comb(order, j) * (-1) ** (order - j) * i for j, i in enumerate(integrals)]
            return scale * ctx.fsum(signed) / integrals[0]
        return scale * self._panels.moment(order) / ctx.mpf(self._rest_at_zero)

    def _squared(self, j: int) -> Any:
        # I_j·a^{−j}·e^{dL²} for p = 2: e^{x²}·erfc(x)·½√(π/d) at x = √d(L − j/(2d))
        ctx = context(CONSTANT_BITS)
        d = ctx.mpf(self.d)
        x = ctx.sqrt(d) * (ctx.log(ctx.mpf(self.a)) - j / (2 * d))
        return ctx.exp(x * x) * ctx.erfc(x) * ctx.sqrt(ctx.pi / d) / 2

    @cached_property
    def _panels(self) -> Panels:
        return Panels(p=self.p, d=self.d, start=math.log(self.a))

    @cached_property
    def _rest_at_zero(self) -> float:
        return float(self._rest(np.zeros(1))[0])

    def _rest(self, v: Floats) -> Floats:
        if self.p == 2:
            x = math.sqrt(self.d) * (math.log(self.a) + v - 0.5 / self.d)
            rest: Floats = math.sqrt(math.pi / self.d) / 2 * special.erfcx(x)
            return rest
        return self._panels.rest(v)

    def _stretched(self, distance: Floats) -> Floats:
        ratio = distance / self.sigma / self.a
        beyond = np.log(distance) - math.log(self.sigma * self.a)  # where the quotient is no double
        return np.where(np.isinf(ratio), beyond, np.log1p(ratio))

    def _fall(self, v: Floats) -> Floats:
        return self.d * v if self.p == 1 else fall(self.p, self.d, math.log(self.a), v)

    def _log_density(self, distance: Floats) -> Floats:
        rest = 1 / (self.d - 1) if self.p == 1 else self._rest_at_zero
        return -self._fall(self._stretched(distance)) - math.log(2 * self.sigma * self.a * rest)

    def _tail(self, distance: Floats) -> Floats:
        if self.p == 1:
            return np.exp((1 - self.d) * self._stretched(distance)) / 2
        return np.exp(self._log_tail(distance))

    def _log_tail(self, distance: Floats) -> Floats:
        v = self._stretched(distance)
        rest = self._rest(v) / (2 * self._rest_at_zero)
        return np.where(rest > 0, v - self._fall(v) + np.log(rest), -np.inf)

    def _log_centre(self, distance: Floats) -> Floats:
        return np.log(self._panels.centre(self._stretched(distance)) / (2 * self._rest_at_zero))

    def _distance(self, tail: Floats) -> Floats:
        if self.p == 1:
            return self.sigma * self.a * np.expm1(minus_log_doubled(tail) / (self.d - 1))
        far = tail <= 0.25
        distance = np.empty_like(tail)
        distance[far] = solve_distance(self._log_tail, self._log_density, np.log(tail[far]))
        centre = np.log(0.5 - tail[~far])  # ½ − tail is exact from ¼ on
        distance[~far] = solve_distance(self._log_centre, self._log_density, centre)
        return distance
