"""Exact probabilities of lattice noise, by direct summation in high precision: nothing of udfs.lattice or udfs.weights.

Noise here is P(Z = k) ∝ exp(−(|k|/s)^power/power) on the integers: power 1 is the discrete Laplace, 2 the Gaussian.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import count
from typing import Any

from mpmath import MPContext

CTX: Any = MPContext()
CTX.prec = 400  # digits for two further parts of the acceptance bits, and room
TINY = CTX.ldexp(1, -180)  # sums stop where terms are this small beside the sum; the rest is bounded
WIDE = (
    500  # Gaussian noise of a larger scale is summed by Euler–Maclaurin, whose error is then far below 10⁻²⁰ of the sum
)


def real(number: Fraction | int) -> Any:
    return CTX.mpf(number.numerator) / number.denominator


@dataclass(frozen=True)
class Noise:
    power: int
    scale: Fraction

    def log_weight(self, k: int) -> Any:
        return real(-(Fraction(abs(k), 1) ** self.power) / (self.power * self.scale**self.power))

    def weight(self, k: int) -> Any:
        return CTX.exp(self.log_weight(k))

    @cached_property
    def normaliser(self) -> Any:
        return 1 + 2 * self.weight_from(1)

    def probability(self, k: int) -> Any:
        return self.weight(k) / self.normaliser

    def from_on(self, k: int) -> Any:
        """P(Z ≥ k), for any integer k."""
        if k > 0:
            return self.weight_from(k) / self.normaliser
        return 1 - self.weight_from(1 - k) / self.normaliser

    def beyond(self, c: int) -> Any:
        """P(|Z| > c), c ≥ 0."""
        return 2 * self.from_on(c + 1)

    def weight_from(self, k: int) -> Any:
        """Σ exp(w(j)) over j ≥ k ≥ 1, to 50 digits (20 for wide Gaussian noise)."""
        if self.power == 1:
            return self.weight(k) / -CTX.expm1(self.log_weight(1))  # a geometric series
        if self.scale > WIDE:
            return self._euler_maclaurin(k)
        low, high = outward(self.weight(j) for j in count(k))
        return (low + high) / 2

    def _euler_maclaurin(self, n: int) -> Any:
        # Σ_{j≥n} f(j) = ∫ f + f(n)/2 − f′(n)/12 + f‴(n)/720 − f⁗′(n)/30240 + …, f⁽ⁿ⁾ = −Heₙ(x)·f/sⁿ for odd n, x = k/s
        s, x, f = real(self.scale), real(n / self.scale), self.weight(n)
        integral = s * CTX.sqrt(CTX.pi / 2) * CTX.erfc(x / CTX.sqrt(2))
        hermite = {1: x, 3: x**3 - 3 * x, 5: x**5 - 10 * x**3 + 15 * x}
        corrections = hermite[1] / (12 * s) - hermite[3] / (720 * s**3) + hermite[5] / (30240 * s**5)
        return integral + f * (CTX.mpf(1) / 2 + corrections)

    def moment(self, order: int) -> Any:
        """E Z^order for an even order, by direct summation."""
        low, high = outward(self.weight(j) * j**order for j in count(1))
        return (low + high) / self.normaliser


def outward(terms: Iterator[Any]) -> tuple[Any, Any]:
    """Bounds of a sum of positive terms that fall at least geometrically in the end (log-concave terms do)."""
    total, before = CTX.mpf(0), CTX.mpf(0)
    for term in terms:
        total += term
        if term < before and term < TINY * total:
            return total, total + term * term / (before - term)  # Σ rⁱ = r/(1 − r), r = term/before
        before = term
    raise AssertionError("unreachable")


@cache
def renyi(noise: Noise, shift: int, order: Fraction) -> Any:
    """An upper bound, tight to 40 digits, of the Rényi divergence of Z from Z + shift: over all integers, of `order`.

    D_α = ln(Σ_k p(k)^α·p(k − shift)^{1−α})/(α − 1). The terms rise to one peak and fall from it: log-concave.
    """
    a = real(order)

    def term(k: int) -> Any:
        return CTX.exp(a * noise.log_weight(k) + (1 - a) * noise.log_weight(k - shift))

    peak = 0 if noise.power == 1 else round(-(order - 1) * shift)
    sides = outward(term(k) for k in count(peak)), outward(term(k) for k in count(peak - 1, -1))
    return CTX.log(sum(high for _, high in sides) / noise.normaliser) / (a - 1)


def renyi_wide(noise: Noise, shift: int, order: Fraction) -> Any:
    """The same for Gaussian noise of any scale, however wide, by Poisson summation.

    Completing the square leaves α·n²/(2s²) + ln(θ(c)/θ(0))/(α − 1), c = (α − 1)n, where
    θ(c) = Σ_k e^{−(k+c)²/(2s²)} ∝ 1 + 2·Σ_{m≥1} e^{−2π²s²m²}·cos(2πmc).
    """
    assert noise.power == 2
    s, a = real(noise.scale), real(order)

    def theta(c: Fraction) -> Any:
        total = CTX.mpf(1)
        for m in count(1):
            size = CTX.exp(-2 * (CTX.pi * s * m) ** 2)
            if size < CTX.eps:
                return total
            total += 2 * size * CTX.cospi(2 * m * real(c % 1))
        raise AssertionError("unreachable")

    ratio = CTX.log(theta((order - 1) * shift) / theta(Fraction(0))) / (a - 1)
    return real(order * shift**2 / (2 * noise.scale**2)) + ratio


def max_divergence(noise: Noise, shift: int, reach: int) -> Fraction:
    """max ln p(k)/p(k − shift) over |k| ≤ reach, exactly."""

    def w(k: int) -> Fraction:
        return -(Fraction(abs(k), 1) ** noise.power) / (noise.power * noise.scale**noise.power)

    return max(w(k) - w(k - shift) for k in range(-reach, reach + 1))


def clamped(noise: Noise, at: int, low: int, high: int) -> dict[int, Any]:
    """The distribution of at + Z clamped to [low, high]."""
    inside = {k: noise.probability(k - at) for k in range(low + 1, high)}
    return inside | {low: noise.from_on(at - low), high: noise.from_on(high - at)}


def renyi_of(p: Mapping[int, Any], q: Mapping[int, Any], order: Fraction) -> Any:
    """The Rényi divergence of one finite distribution from another: infinite where q misses an outcome of p."""
    if any(mass and not q.get(k) for k, mass in p.items()):
        return CTX.inf
    a = real(order)
    return CTX.log(CTX.fsum(mass**a * q[k] ** (1 - a) for k, mass in p.items() if mass)) / (a - 1)


def max_divergence_of(p: Mapping[int, Any], q: Mapping[int, Any]) -> Any:
    """The max divergence of one finite distribution from another."""
    if any(mass and not q.get(k) for k, mass in p.items()):
        return CTX.inf
    return max(CTX.log(mass / q[k]) for k, mass in p.items() if mass)
