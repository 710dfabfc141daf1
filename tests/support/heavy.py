"""Exact probabilities of heavy-tailed lattice noise: generalized Gaussian and exponential polylogarithmic
(docs/mathematics.md, section 3).

Sums are taken term by term up to some n, and from there on by Euler–Maclaurin, f(x) = x^j·exp(w(x)),

    Σ_{k ≥ n} f(k) = ∫_n^∞ f + f(n)/2 − Σ_{m ≥ 1} B_{2m}/(2m)·c_{2m−1},    f(n + u) = Σ c_r·u^r.

n is moved out until the first correction that is left out is nothing beside the sum; for completely monotone weights it
bounds the error.
"""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.lattice import CTX, LatticeNoise, real

CORRECTIONS = 12  # the last one is left out, and measures the error
ERROR = CTX.mpf(10) ** -30
NEAREST = 128
Doubles = NDArray[np.float64]
Series = list[Any]


class HeavyNoise(LatticeNoise):
    """What sums and doubles need to know of a family with convex w."""

    @abstractmethod
    def log_weights(self, k: Doubles) -> Doubles:
        """w at distances k ≥ 0, in doubles: off by at most a few last bits of 1 + |w|."""

    @abstractmethod
    def series(self, n: int) -> Series:
        """w(n + u) as a power series in u, 2·CORRECTIONS terms."""

    @abstractmethod
    def integral(self, n: int, order: int) -> Any:
        """∫_n^∞ x^order·exp(w(x)) dx."""

    def weight_from(self, k: int) -> Any:
        """To 28 digits."""
        return sum_from(self, k, 0)

    def moment(self, order: int) -> Any:
        return 2 * sum_from(self, 1, order) / self.normaliser


@cache
def sum_from(noise: HeavyNoise, n: int, order: int, first: int = NEAREST) -> Any:
    """Σ k^order·exp(w(k)) over k ≥ n ≥ 1; terms up to `first` are added one by one in any case."""
    total, start, end, further = CTX.mpf(0), n, max(n, first), 2 * NEAREST
    while True:
        total += CTX.fsum(noise.weight(k) * k**order for k in range(start, end))
        rest = noise.integral(end, order)
        if rest == CTX.inf:
            return rest
        corrections = _corrections(noise.series(end), end, order)
        if abs(corrections[-1]) <= ERROR * (total + rest):
            return total + rest + sum(corrections[:-1])
        start, end, further = end, end + further, 2 * further


def _corrections(log_weight: Series, n: int, order: int) -> Series:
    f = exponential(log_weight)
    for _ in range(order):  # times n + u
        f = [n * c + before for c, before in zip(f, [0, *f], strict=False)]
    return [f[0] / 2, *(-CTX.bernoulli(2 * m) / (2 * m) * f[2 * m - 1] for m in range(1, CORRECTIONS + 1))]


def exponential(h: Series) -> Series:
    """e^h:  r·g_r = Σ i·h_i·g_{r−i}."""
    g = [CTX.exp(h[0])]
    for r in range(1, len(h)):
        g.append(CTX.fsum(i * h[i] * g[r - i] for i in range(1, r + 1)) / r)
    return g


def to_the_power(h: Series, p: Any) -> Series:
    """h^p, h_0 > 0:  r·h_0·g_r = Σ (i·p − r + i)·h_i·g_{r−i}."""
    g = [h[0] ** p]
    for r in range(1, len(h)):
        g.append(CTX.fsum((i * p - r + i) * h[i] * g[r - i] for i in range(1, r + 1)) / (r * h[0]))
    return g


@dataclass(frozen=True)
class GeneralizedGaussian(HeavyNoise):
    """w(k) = −(k/s)^p, 0 < p ≤ 1."""

    p: Fraction
    scale: Fraction

    def log_weight(self, k: int) -> Any:
        return -(real(abs(k) / self.scale) ** real(self.p)) if k else CTX.mpf(0)

    def log_weights(self, k: Doubles) -> Doubles:
        return -((k / float(self.scale)) ** float(self.p))

    def series(self, n: int) -> Series:
        x = [real(n / self.scale), 1 / real(self.scale), *[CTX.mpf(0)] * (2 * CORRECTIONS - 2)]
        return [-c for c in to_the_power(x, real(self.p))]

    def integral(self, n: int, order: int) -> Any:
        """s^{j+1}/p·Γ((j + 1)/p, (n/s)^p)."""
        s, p = real(self.scale), real(self.p)
        return s ** (order + 1) / p * CTX.gammainc((order + 1) / p, -self.log_weight(n))


@dataclass(frozen=True)
class Polylog(HeavyNoise):
    """w(k) = −d·(ln(k/s + a)^p − ln(a)^p)."""

    p: Fraction
    d: Fraction
    a: Fraction
    scale: Fraction

    @property
    def lift(self) -> Any:
        return real(self.d) * CTX.log(real(self.a)) ** real(self.p)

    def log_weight(self, k: int) -> Any:
        return self.lift - real(self.d) * CTX.log(real(abs(k) / self.scale + self.a)) ** real(self.p)

    def log_weights(self, k: Doubles) -> Doubles:
        return float(self.lift) - float(self.d) * np.log(k / float(self.scale) + float(self.a)) ** float(self.p)

    def series(self, n: int) -> Series:
        # ln(x/s + a) = ln y + ln(1 + u/(s·y)),  y = n/s + a
        y = real(n / self.scale + self.a)
        step = 1 / (real(self.scale) * y)
        t = [CTX.log(y), *(-((-step) ** r) / r for r in range(1, 2 * CORRECTIONS))]
        power = to_the_power(t, real(self.p))
        return [self.lift - real(self.d) * power[0], *(-real(self.d) * c for c in power[1:])]

    def integral(self, n: int, order: int) -> Any:
        """s^{j+1}·e^{d·ln(a)^p}·Σ_i C(j, i)·(−a)^{j−i}·I_{i+1},  I_i = ∫_T^∞ e^{it − d·t^p} dt, T = ln(n/s + a)."""
        start = CTX.log(real(n / self.scale + self.a))
        if self.p == 1 and self.d <= order + 1:
            return CTX.inf
        parts = (
            CTX.binomial(order, i) * (-real(self.a)) ** (order - i) * self._i(i + 1, start) for i in range(order + 1)
        )
        return real(self.scale) ** (order + 1) * CTX.exp(self.lift) * CTX.fsum(parts)

    def _i(self, j: int, start: Any) -> Any:
        d, p = real(self.d), real(self.p)
        if self.p == 1:
            return CTX.exp((j - d) * start) / (d - j)
        if self.p == 2:  # e^{jt − d·t²} = e^{j²/(4d)}·e^{−d(t − j/(2d))²}
            return CTX.exp(j * j / (4 * d)) * CTX.sqrt(CTX.pi / d) / 2 * CTX.erfc(CTX.sqrt(d) * (start - j / (2 * d)))
        # Σ_k j^k/k!·(1/p)·d^{−(k+1)/p}·Γ((k + 1)/p, d·T^p)
        total, k, factor = CTX.mpf(0), 0, CTX.mpf(1)
        while True:
            term = factor / p * d ** (-(k + 1) / p) * CTX.gammainc((k + 1) / p, d * start**p)
            total += term
            if k > j * start and term < CTX.ldexp(total, -120):
                return total
            k += 1
            factor *= CTX.mpf(j) / k
