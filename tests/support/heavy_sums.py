"""Sums over lattice noise of every family in high precision: direct terms, then closed integrals by Euler–Maclaurin.

Nothing here is taken from udfs. `Family.log_weight` is the formula of the papers at any real distance, at a precision
that no cancellation reaches; `Family.integral(n, j)` is ∫_n^∞ x^j·e^{w(x)} dx, where it can be closed: incomplete
gamma functions (generalized Gaussian), powers (polylog, p = 1), error functions (p = 2), quadrature for other p.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from math import comb
from typing import Any

from mpmath import MPContext

MP: Any = MPContext()
MP.prec = 210
NOTHING = MP.ldexp(1, -150)  # share of a sum at which its terms are left out
SMOOTH = 0.2  # change of the logarithm in a step that Euler–Maclaurin follows
ORDER = 16  # with (SMOOTH/2π)^16 = 10⁻²⁴ left over


def real(number: Fraction | int) -> Any:
    return MP.mpf(number.numerator) / number.denominator


@dataclass(frozen=True)
class Family:
    """One of "gaussian", "laplace", "generalized" (p) and "polylog" (p, d, a), of scale s."""

    name: str
    scale: Fraction
    p: Fraction = Fraction(1)
    d: Fraction = Fraction(1)
    a: Fraction = Fraction(1)

    def log_weight(self, x: Any) -> Any:
        z, p = MP.convert(x) / real(self.scale), real(self.p)
        if self.name == "gaussian":
            return -(z**2) / 2
        if self.name == "laplace":
            return -z
        if self.name == "generalized":
            return -(z**p)
        with MP.extraprec(300):  # digits that cancel
            a = real(self.a)
            found = -real(self.d) * (
                MP.log(MP.convert(x) / real(self.scale) + a) ** real(self.p) - MP.log(a) ** real(self.p)
            )
        return +found

    def weight(self, k: int) -> Any:
        return MP.exp(self.log_weight(k))

    def integral(self, n: int, j: int) -> Any:
        s = real(self.scale)
        if self.name == "polylog":
            return s ** (j + 1) * MP.exp(real(self.d) * MP.log(real(self.a)) ** real(self.p)) * self._in_logs(n, j)
        # ∫ x^j e^{−c(x/s)^p} dx = s^{j+1}/(p·c^{(j+1)/p})·Γ((j+1)/p, c·(n/s)^p)
        p, c = {"gaussian": (MP.mpf(2), MP.mpf(1) / 2), "laplace": (MP.mpf(1), MP.mpf(1))}.get(
            self.name, (real(self.p), MP.mpf(1))
        )
        order = (j + 1) / p
        return s ** (j + 1) / (p * c**order) * MP.gammainc(order, c * (n / s) ** p)

    def _in_logs(self, n: int, j: int) -> Any:
        """∫ (e^t − a)^j·e^{t − d·t^p} dt from t = ln(n/s + a) on."""
        p, d, a = real(self.p), real(self.d), real(self.a)
        start = MP.log(n / real(self.scale) + a)
        parts = MP.mpf(0)
        for i in range(j + 1):
            parts += comb(j, i) * (-a) ** (j - i) * self._exponential(i + 1, start, p, d)
        return parts

    def _exponential(self, i: int, start: Any, p: Any, d: Any) -> Any:
        """∫_start^∞ e^{i·t − d·t^p} dt."""
        if p == 1:
            return MP.exp((i - d) * start) / (d - i) if d > i else MP.inf
        if p == 2:
            with MP.extraprec(200):
                root = MP.sqrt(d)
                return MP.exp(i * i / (4 * d)) * MP.sqrt(MP.pi / d) / 2 * MP.erfc(root * (start - i / (2 * d)))
        peak = max(start, (i / (d * p)) ** (1 / (p - 1)))
        width = (
            1 / MP.sqrt(d * p * (p - 1) * peak ** (p - 2)) if peak > start else 1 / abs(i - d * p * start ** (p - 1))
        )
        ends = [start, *(x for x in (peak + u * width for u in (-40, -20, -10, -4, 0, 4, 10, 20, 40, 80)) if x > start)]
        top = i * peak - d * peak**p  # quadrature errs absolutely: the integrand is made 1 at its peak
        return MP.exp(top) * MP.quad(
            lambda t: MP.exp(i * t - d * t**p - top), [*ends, MP.inf if peak > start else peak + 160 * width]
        )


@cache
def sum_from(family: Family, n: int, j: int) -> Any:
    """Σ k^j·e^{w(k)} over k ≥ n ≥ 1: infinite where it is, else to 20 digits."""
    if family.name == "polylog" and family.p == 1:
        return _zeta(family, n, j)
    total, k = MP.mpf(0), n
    before = family.log_weight(k)
    while True:
        after = family.log_weight(k + 1)
        if before - after <= SMOOTH and k >= 30 * (j + 1):
            return total + _euler_maclaurin(family, k, j)
        term = k**j * MP.exp(before)
        total += term
        if k > n + 20 and term < NOTHING * total:
            return total
        before, k = after, k + 1


def _zeta(family: Family, n: int, j: int) -> Any:
    # e^{w(k)} = (sa)^d·(k + sa)^{−d},  k = (k + sa) − sa
    shift, d = real(family.scale * family.a), real(family.d)
    if family.d <= j + 1:
        return MP.inf
    with MP.extraprec(400):
        parts = sum(comb(j, i) * (-shift) ** (j - i) * MP.zeta(d - i, n + shift) for i in range(j + 1))
        return +(shift**d * parts)


def _euler_maclaurin(family: Family, n: int, j: int) -> Any:
    # Σ_{k≥n} f = ∫ + f(n)/2 − Σ_m B_{2m}/(2m)!·f^{(2m−1)}(n),  c_i = f^{(i)}(n)/i!
    taylor = MP.taylor(lambda x: x**j * MP.exp(family.log_weight(x)), n, ORDER - 1, chop=False)
    corrections = [MP.bernoulli(2 * m) / (2 * m) * taylor[2 * m - 1] for m in range(1, ORDER // 2 + 1)]
    total = family.integral(n, j) + taylor[0] / 2 - sum(corrections)
    assert abs(corrections[-1]) < MP.mpf(10) ** -20 * total
    return total


def normaliser(family: Family) -> Any:
    return 1 + 2 * sum_from(family, 1, 0)


def moment(family: Family, j: int) -> Any:
    """E|Z|^j."""
    return 2 * sum_from(family, 1, j) / normaliser(family)


def beyond(family: Family, c: int) -> Any:
    """P(|Z| > c)."""
    return 2 * sum_from(family, c + 1, 0) / normaliser(family)
