"""Integrals of e^{v − fall(v)} by Gauss–Legendre panels, fall(v) = d·((L + v)^p − L^p), for any p > 1."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, final

import numpy as np
from scipy import special

from udfs.noise.continuous import ContinuousNoise, minus_log_doubled, require_scales
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context

_ROOTS, _MASSES = np.polynomial.legendre.leggauss(20)
NODES, WEIGHTS = (_ROOTS + 1) / 2, _MASSES / 2  # on [0, 1]
DEEPEST = 820.0  # e^{−745} is the smallest double
MOMENT_DEPTH = 60.0
MOMENT_BITS = 320  # d·t^p may have 180 bits before the point
BEYOND = 2000.0


def fall(p: float, d: float, start: Floats | float, v: Floats | float) -> Any:
    """Return d·((start + v)^p − start^p) for v ≥ 0, within a few last bits: no difference of near numbers."""
    if p == 2:
        return d * v * (2 * start + v)
    near = d * start**p * np.expm1(p * np.log1p(v / start))
    return np.where(v < start, near, d * ((start + v) ** p - start**p))


@dataclass(frozen=True, kw_only=True)
class Panels:
    """The law of v = ln(|z|/(σa) + 1) ≥ 0, density ∝ e^{v − fall(v)}: log-concave, with L = ln a > 0 and p > 1.

    [0, ∞) is cut into panels inside which the exponent changes by a few units and v by a fraction of its distance
    L + v from the branch point of t^p, so that 20 nodes are exact to the last bits of a double. All terms are positive.
    """

    p: float
    d: float
    start: float  # L

    def rest(self, v: Floats) -> Floats:
        """Return R(v) = ∫_0^∞ e^{s − (fall(v + s) − fall(v))} ds; 0 beyond the last panel, where e^{v − fall} is 0."""
        edges, rests, _ = self._table
        inside = v < edges[-1]
        i = np.searchsorted(edges, np.where(inside, v, 0.0), side="right")
        width = np.where(inside, edges[i] - v, 0.0)
        total = self._panel(v, width) + self._drop(v, width) * rests[i]
        return np.where(inside, total, 0.0)

    def centre(self, v: Floats) -> Floats:
        """Return ∫_0^v e^{s − fall(s)} ds, for v up to the last panel."""
        edges, _, centres = self._table
        v = np.minimum(v, edges[-1])
        i = np.searchsorted(edges, v, side="right") - 1
        return centres[i] + self._drop(np.zeros(1), edges[i]) * self._panel(edges[i], v - edges[i])

    def moment(self, order: int) -> Any:
        """Return ∫_0^∞ (e^v − 1)^order·e^{v − fall(v)} dv as a number of arbitrary exponent; infinite above e^2000."""
        ctx = context(MOMENT_BITS)
        if self._largest(order + 1) > BEYOND:
            return ctx.inf
        p, d, start = ctx.mpf(self.p), ctx.mpf(self.d), ctx.mpf(self.start)
        edges = list(self._edges(order + 1, MOMENT_DEPTH))
        total = ctx.mpf(0)
        for left, right in pairwise(edges):
            for node, weight in zip(NODES, WEIGHTS, strict=True):
                v = ctx.mpf(left) + (ctx.mpf(right) - left) * node
                log = v - d * ((start + v) ** p - start**p)
                total += (ctx.mpf(right) - left) * weight * ctx.expm1(v) ** order * ctx.exp(log)
        return total

    def _largest(self, growth: int) -> float:
        # the largest value of growth·v − fall(v) where it rises at first; its slope is 0 where p·d·t^{p−1} = growth
        log_mode = math.log(growth / (self.p * self.d)) / (self.p - 1)
        if log_mode > 100:
            return math.inf
        v = max(math.exp(log_mode) - self.start, 0.0)
        return growth * v - float(fall(self.p, self.d, self.start, v))

    def _panel(self, v: Floats, width: Floats) -> Floats:
        # ∫_0^width e^{s − (fall(v + s) − fall(v))} ds
        total = np.zeros_like(width)
        for node, weight in zip(NODES, WEIGHTS, strict=True):
            total += weight * self._drop(v, width * node)
        return total * width

    def _drop(self, v: Floats, s: Floats) -> Floats:
        return np.asarray(np.exp(s - fall(self.p, self.d, self.start + v, s)))

    @cached_property
    def _table(self) -> tuple[Floats, Floats, Floats]:
        # edges; R at the edges, from the last one (where the exponential e^{−slope·s} is enough) backwards; centres
        edges = np.array(list(self._edges(1, DEEPEST)))
        widths = np.diff(edges)
        inner, drops = self._panel(edges[:-1], widths), self._drop(edges[:-1], widths)
        rests = np.empty_like(edges)
        rests[-1] = 1 / (self.p * self.d * (self.start + edges[-1]) ** (self.p - 1) - 1)
        for i in range(widths.size - 1, -1, -1):
            rests[i] = inner[i] + drops[i] * rests[i + 1]
        centres = np.concatenate([[0.0], np.cumsum(inner * self._drop(np.zeros(1), edges[:-1]))])
        return edges, rests, centres

    def _edges(self, growth: int, depth: float) -> Iterator[float]:
        """Yield panel edges of e^{growth·v − fall(v)} until it has fallen by e^{−depth} from its largest value."""
        v, largest = 0.0, 0.0
        while True:
            yield v
            t = self.start + v
            height = growth * v - float(fall(self.p, self.d, self.start, v))
            largest = max(largest, height)
            slope = growth - self.p * self.d * t ** (self.p - 1)
            if slope < 0 and height < largest - depth:
                return
            bend = self.p * (self.p - 1) * self.d * t ** (self.p - 2)
            v += min(t / max(4.0, self.p), 4 / max(abs(slope), 1e-300), (8 / bend) ** 0.5)


# Distances from masses: Newton's method held in a bracket, for noise that is log-concave in its log-distance.

Logs = Callable[[Floats], Floats]
LEAST, MOST = -744.0, 709.78  # ln of the smallest and of the largest double
ROUNDS = 200
DEEP = -1e4
CLOSE = 1e-9  # the error left after a Newton step of this size is about its square


def solve_distance(log_mass: Logs, log_density: Logs, goal: Floats) -> Floats:
    """Return the z > 0 with log_mass(z) = goal; 0 and infinity where it lies beyond the doubles.

    log_mass is the logarithm of P(Z > z) or of P(Z in [0, z]), log_density that of the density. In s = ln z all are
    concave when the density of s is log-concave, as it is for every family here, so that Newton's steps

        s ← s + (goal − log_mass)·mass/(±z·density)

    approach the root from one side. Steps that leave the bracket are replaced by its middle. Error of z: that of
    log_mass(z) times mass/(z·density).
    """
    ends = np.exp(np.array([LEAST, MOST]))
    at_least, at_most = log_mass(ends)
    sign = 1.0 if at_most > at_least else -1.0
    z = np.where(goal * sign >= at_most * sign, np.inf, np.where(goal * sign <= at_least * sign, 0.0, np.nan))
    open_ = np.flatnonzero(np.isnan(z))
    low, high = np.full(open_.size, LEAST), np.full(open_.size, MOST)
    s = (low + high) / 2
    for _ in range(ROUNDS):
        if not open_.size:
            return z
        point = np.exp(s)
        mass = log_mass(point)
        gap = (goal[open_] - mass) * sign  # > 0: the root is farther out
        low, high = np.where(gap > 0, s, low), np.where(gap > 0, high, s)
        # two large logarithms have no difference: there the middle of the bracket is next
        step = np.where(mass > DEEP, gap * np.exp(mass - s - log_density(point)), np.nan)
        done = np.abs(step) <= CLOSE
        z[open_[done]] = point[done] * np.exp(step[done])  # the product keeps digits that s = 700 + step has not
        inside = (s + step >= low) & (s + step <= high)
        s = np.where(inside, s + step, (low + high) / 2)[~done]
        open_, low, high = open_[~done], low[~done], high[~done]
    raise ArithmeticError("no distance was found for a probability: the mass is not monotone there")


# Continuous exponential polylogarithmic noise: closed forms for p = 1 and p = 2, quadrature for every other p.

CONSTANT_BITS = 400  # at p = 2 the moments are differences: they lose at most some hundred bits
MOST_P = 20.0
MOST_D = 1e12
FARTHEST_MODE = 50.0  # of ln(|z|/σ + a): beyond, hardly any noise is smaller than 10²⁰ σ


@final
@dataclass(frozen=True, kw_only=True)
class ExponentialPolylog(ContinuousNoise):
    """Density ∝ e^{−d·ln(|z|/σ + a)^p}, σ > 0, d > 0, 1 ≤ p ≤ 20, a ≥ e^{p−1}, and d > 1 where p = 1
    (docs/mathematics.md, section 3).

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

    def moment(self, order: int) -> float:
        """Return E|Z|^n; p = 1: (σa)^n·n!/((d−2)(d−3)…(d−1−n)), infinite for d ≤ n + 1; p = 2: by I_1 … I_{n+1}."""
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
