"""Exact probabilities of symmetric α-stable lattice noise (MATH 5), from the mathematics alone, nothing of udfs.

Near 0 the power series is summed with as many digits as cancel, far out the asymptotic one up to its smallest term;
for α = 1 there are closed forms. Tail sums are Σ_{j ≥ n} (j/s)^{−αk−1} = s^{αk+1}·ζ(αk + 1, n), term by term.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from mpmath import MPContext

from tests.support.heavy import Doubles, HeavyNoise, Series
from tests.support.lattice import CTX, real

BITS = 290  # of log-weights
OF_SUMS = CTX.ldexp(1, -130)


@cache
def wide(bits: int) -> Any:
    """A context for the power series of a result of so many bits: three times as many cancel at most."""
    ctx = MPContext()
    ctx.prec = 4 * bits - 100
    return ctx


@cache
def near_term(alpha: Fraction, n: int, bits: int) -> Any:
    """(−1)^n·Γ((2n + 1)/α)/(2n)!."""
    ctx = wide(bits)
    z = ctx.mpf((2 * n + 1) * alpha.denominator) / alpha.numerator
    return (-1) ** n * ctx.gamma(z) / ctx.factorial(2 * n)


@cache
def far_term(alpha: Fraction, k: int) -> Any:
    """−(−1)^k·Γ(αk + 1)/k!·sin(kαπ/2)."""
    return -((-1) ** k) * CTX.gamma(real(alpha * k + 1)) / CTX.factorial(k) * CTX.sinpi(real((k * alpha / 2) % 2))


def far_terms(alpha: Fraction, x: Fraction, small: Any) -> int:
    """How many terms there are until one is `small` beside the first; 0 if none is before they grow again."""
    least, k = CTX.inf, 0
    q = CTX.log(real(x) * CTX.sin(CTX.pi / real(2 * alpha)))
    first = CTX.log(abs(far_term(alpha, 1))) - real(alpha) * CTX.log(real(x))
    while True:
        k += 1
        log = CTX.loggamma(real(alpha * k + 1)) - CTX.loggamma(k + 1) - real(alpha * k) * q
        if log < first + CTX.log(small):
            return k + 1
        if log > least:
            return 0
        least = log


@cache
def density(alpha: Fraction, x: Fraction, bits: int) -> Any:
    """π·α·p(x), p the density of scale 1, by the power series."""
    ctx = wide(bits)
    square = (ctx.mpf(x.numerator) / x.denominator) ** 2
    total, power, n = ctx.mpf(0), ctx.mpf(1), 0
    while True:
        term = near_term(alpha, n, bits) * power
        total += term
        if n > 4 and abs(term) < ctx.ldexp(1, -60 - bits):
            return CTX.convert(total)
        n, power = n + 1, power * square


@dataclass(frozen=True)
class Stable(HeavyNoise):
    """w(k) = ln(p(k/s)/p(0)), characteristic function e^{−|t|^α}."""

    alpha: Fraction
    scale: Fraction

    def log_weight(self, k: int) -> Any:
        return log_ratio(self.alpha, abs(k) / self.scale)

    def log_weights(self, k: Doubles) -> Doubles:
        """The far series in doubles, and nearer points one by one."""
        if self.alpha == 1:
            return -np.log1p((k / float(self.scale)) ** 2)
        edge = next(x for x in range(1, 200) if 0 < far_terms(self.alpha, Fraction(x), CTX.ldexp(1, -56)) < 30)
        found, x = np.empty(len(k)), k / float(self.scale)
        far = x >= edge
        v = x[far] ** -float(self.alpha)
        ratio = sum(float(far_term(self.alpha, i) / far_term(self.alpha, 1)) * v ** (i - 1) for i in range(2, 30))
        first = CTX.log(real(self.alpha) * far_term(self.alpha, 1) / CTX.gamma(1 / real(self.alpha)))
        found[far] = float(first) - (1 + float(self.alpha)) * np.log(x[far]) + np.log1p(ratio)
        found[~far] = [float(self.log_weight(int(j))) for j in k[~far]]
        return found

    def weight_from(self, k: int) -> Any:
        """To 35 digits."""
        return self._sum(k, 0)

    def moment(self, order: int) -> Any:
        return CTX.inf if order >= self.alpha else 2 * self._sum(1, order) / self.normaliser

    def beside(self, shift: int) -> Iterable[int]:
        """The loss of a shift is largest inside, not at its end."""
        return {abs(shift) + round(self.scale * i / 16) for i in range(160)}

    def series(self, n: int) -> Series:
        raise NotImplementedError("sums are taken by zeta functions")

    def integral(self, n: int, order: int) -> Any:
        raise NotImplementedError("sums are taken by zeta functions")

    def _sum(self, k: int, order: int) -> Any:
        if self.alpha == 1:  # s²/(j² + s²)
            s = real(self.scale)
            return s * CTX.im(CTX.digamma(k + 1j * s))
        edge = k
        while not (terms := far_terms(self.alpha, edge / self.scale, OF_SUMS) if edge > self.scale else 0):
            edge += 1 + int(self.scale / 4)
        near = CTX.fsum(j**order * self.weight(j) for j in range(k, edge))
        s, unit = real(self.scale), real(self.alpha) / CTX.gamma(1 / real(self.alpha))
        far = CTX.mpf(0)
        for i in range(1, terms):
            power = real(self.alpha * i + 1)
            far += far_term(self.alpha, i) * s**power * CTX.zeta(power - order, edge)
        return near + unit * far


@cache
def log_ratio(alpha: Fraction, x: Fraction, bits: int = BITS) -> Any:
    """ln(p(x)/p(0)), to so many bits; next to 0 as many after the point."""
    if alpha == 1:
        return -CTX.log1p(real(x) ** 2)
    at_zero = CTX.gamma(1 / real(alpha))
    terms = far_terms(alpha, x, CTX.ldexp(1, -bits)) if x > 1 else 0
    if not terms:
        return CTX.log(density(alpha, x, bits) / at_zero)
    total = CTX.fsum(far_term(alpha, k) * real(x) ** -real(alpha * k + 1) for k in range(1, terms))
    return CTX.log(real(alpha) * total / at_zero)
