"""Exact probabilities of symmetric α-stable lattice noise (docs/mathematics.md, section 11), from the mathematics
alone, nothing of udfs.

Near 0 the power series is summed with as many digits as cancel, far out the asymptotic one up to its smallest term;
for α = 1 there are closed forms. Tail sums are Σ_{j ≥ n} (j/s)^{−αk−1} = s^{αk+1}·ζ(αk + 1, n), term by term.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import inf, lgamma, log, pi, sin
from typing import Any

import numpy as np
from mpmath import MPContext

from tests.support.heavy import Doubles, HeavyNoise
from tests.support.lattice import CTX, real

BITS = 290  # of log-weights
OF_SUMS = 130


@cache
def near_ratio(alpha: Fraction, n: int, bits: int) -> int:
    """The ratio of terms n + 1 and n of the power series at x = 1, without its sign, in units of 2^−digits(bits)."""
    a, b = (near_gamma(alpha, i, bits) for i in (n, n + 1))
    return int(b.context.ldexp(b / a, digits(bits))) // ((2 * n + 1) * (2 * n + 2))


@cache
def context_of(places: int) -> Any:
    ctx = MPContext()
    ctx.prec = places
    return ctx


@cache
def near_gamma(alpha: Fraction, n: int, bits: int) -> Any:
    """Γ((2n + 1)/α)."""
    ctx = context_of(digits(bits))
    return ctx.gamma(ctx.mpf((2 * n + 1) * alpha.denominator) / alpha.numerator)


def digits(bits: int) -> int:
    """Binary digits of the power series of a result of so many bits: of these, three times as many cancel at most."""
    return 4 * bits - 100


@cache
def far_term(alpha: Fraction, k: int) -> Any:
    """−(−1)^k·Γ(αk + 1)/k!·sin(kαπ/2)."""
    return -((-1) ** k) * CTX.gamma(real(alpha * k + 1)) / CTX.factorial(k) * CTX.sinpi(real((k * alpha / 2) % 2))


def far_terms(alpha: Fraction, x: Fraction, bits: int) -> int:
    """How many terms there are until one is 2^−bits of the first; 0 if none is before they grow again."""
    a, k, least = float(alpha), 1, inf
    log_x = log(x.numerator) - log(x.denominator)
    fall = a * (log_x + log(sin(pi / (2 * a))))
    enough = float(CTX.log(abs(far_term(alpha, 1)))) - a * log_x - bits * log(2)
    while (size := lgamma(a * k + 1) - lgamma(k + 1) - k * fall) < least:
        if size < enough:
            return k + 1
        k, least = k + 1, size
    return 0


@cache
def density(alpha: Fraction, x: Fraction, bits: int) -> Any:
    """p(x)/p(0), p the density of scale 1, by the power series in integers."""
    places, n = digits(bits), 0
    square = (x.numerator**2 << places) // x.denominator**2
    term = total = 1 << places
    while n <= 4 or abs(term) >> (places - bits - 60):
        term = -(term * near_ratio(alpha, n, bits) * square >> 2 * places)
        total += term
        n += 1
    return CTX.ldexp(total, -places)


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
        edge = next(x for x in range(1, 200) if 0 < far_terms(self.alpha, Fraction(x), 56) < 30)
        found, x = np.empty(len(k)), k / float(self.scale)
        far = x >= edge
        v = x[far] ** -float(self.alpha)
        ratio = sum(float(far_term(self.alpha, i) / far_term(self.alpha, 1)) * v ** (i - 1) for i in range(2, 30))
        first = CTX.log(real(self.alpha) * far_term(self.alpha, 1) / CTX.gamma(1 / real(self.alpha)))
        found[far] = float(first) - (1 + float(self.alpha)) * np.log(x[far]) + np.log1p(ratio)
        found[~far] = [float(self.log_weight(int(j))) for j in k[~far]]
        return found

    def beside(self, shift: int) -> Iterable[int]:
        """The loss of a shift is largest inside, not at its end."""
        return {abs(shift) + round(self.scale * i / 16) for i in range(160)}

    def total(self, k: int, order: int) -> Any:
        """To 35 digits."""
        if order >= self.alpha:
            return CTX.inf
        if self.alpha == 1:  # s²/(j² + s²)
            s = real(self.scale)
            return s * CTX.im(CTX.digamma(k + 1j * s))
        edge = max(k, first_far(self.alpha, self.scale))
        return CTX.fsum(j**order * self.weight(j) for j in range(k, edge)) + far_sum(self, edge, order)


@cache
def first_far(alpha: Fraction, scale: Fraction) -> int:
    """A distance from which sums are taken by the far series."""
    k = int(scale) + 1
    while not far_terms(alpha, k / scale, OF_SUMS):
        k += 1 + int(scale / 4)
    return k


@cache
def far_sum(noise: Stable, edge: int, order: int) -> Any:
    """Σ j^order·p(j/s)/p(0) over j ≥ edge."""
    s, a, total = real(noise.scale), real(noise.alpha), CTX.mpf(0)
    for i in range(1, far_terms(noise.alpha, edge / noise.scale, OF_SUMS)):
        power = a * i + 1
        total += far_term(noise.alpha, i) * s**power * CTX.zeta(power - order, edge)
    return total * a / CTX.gamma(1 / a)


@cache
def log_ratio(alpha: Fraction, x: Fraction, bits: int = BITS) -> Any:
    """ln(p(x)/p(0)), to so many bits; next to 0 as many after the point."""
    if alpha == 1:
        return -CTX.log1p(real(x) ** 2)
    terms = far_terms(alpha, x, bits) if x > 1 else 0
    if not terms:
        return CTX.log(density(alpha, x, bits))
    total = CTX.fsum(far_term(alpha, k) * real(x) ** -real(alpha * k + 1) for k in range(1, terms))
    return CTX.log(real(alpha) * total / CTX.gamma(1 / real(alpha)))
