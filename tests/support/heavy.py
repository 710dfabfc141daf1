"""Exact probabilities of heavy-tailed lattice noise: generalized Gaussian and exponential polylogarithmic
(docs/mathematics.md, section 3)."""

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.lattice import CORRECTIONS, CTX, LatticeNoise, Series, real

Doubles = NDArray[np.float64]


class HeavyNoise(LatticeNoise):
    """What sums and doubles need to know of a family with convex w."""

    @abstractmethod
    def log_weights(self, k: Doubles) -> Doubles:
        """w at distances k ≥ 0, in doubles: off by at most a few last bits of 1 + |w|."""


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

    def log_weight(self, k: int | Fraction) -> Any:
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

    def log_weight(self, k: int | Fraction) -> Any:
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
