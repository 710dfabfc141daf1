"""Exact probabilities of lattice noise, in high precision and from the mathematics alone: nothing of udfs is used.

A family says its log-weights, their power series and integrals; sums and all else follow. Sums are taken term by term
up to some n, and from there on by Euler–Maclaurin, f(x) = x^j·exp(w(x)),

    Σ_{k ≥ n} f(k) = ∫_n^∞ f + f(n)/2 − Σ_{m ≥ 1} B_{2m}/(2m)·c_{2m−1},    f(n + u) = Σ c_r·u^r.

n is moved out until the first correction that is left out is nothing beside the sum; for completely monotone weights it
bounds the error. Here: discrete Laplace and Gaussian noise. Heavy tails are in tests.support.heavy, divergences in
tests.support.divergence.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from itertools import count
from typing import Any

from mpmath import MPContext

CTX: Any = MPContext()
CTX.prec = 400  # digits for two further parts of the acceptance bits, and room
TINY = CTX.ldexp(1, -180)  # sums stop where terms are this small beside the sum; the rest is bounded
WIDE = 500  # Gaussian noise of a larger scale is summed by Euler–Maclaurin
CORRECTIONS = 12  # the last one is left out, and measures the error
ERROR = CTX.mpf(10) ** -30
NEAREST = 128
Series = list[Any]


def real(number: Fraction | int) -> Any:
    return CTX.mpf(number.numerator) / number.denominator


class LatticeNoise(ABC):
    """P(Z = k) ∝ exp(w(|k|)) on the integers, w(0) = 0, w falling; `scale` in steps. Frozen dataclasses."""

    scale: Fraction

    @abstractmethod
    def log_weight(self, k: int) -> Any:
        """w(|k|)."""

    def series(self, n: int) -> Series:
        """w(n + u) as a power series in u, 2·CORRECTIONS terms."""
        raise NotImplementedError

    def integral(self, n: int, order: int) -> Any:
        """∫_n^∞ x^order·exp(w(x)) dx."""
        raise NotImplementedError

    def total(self, k: int, order: int) -> Any:
        """Σ j^order·exp(w(j)) over j ≥ k ≥ 1, to 28 digits at least."""
        return euler_maclaurin(self, k, order)

    def weight_from(self, k: int) -> Any:
        return self.total(k, 0)

    def moment(self, order: int) -> Any:
        """E |Z|^order; infinite where there is none."""
        return 2 * self.total(1, order) / self.normaliser

    def weight(self, k: int) -> Any:
        return CTX.exp(self.log_weight(k))

    def beside(self, shift: int) -> Iterable[int]:
        """Where the loss of a shift may be largest, but near 0 and near the shift: nowhere, if w is convex."""
        return ()

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


@dataclass(frozen=True)
class Noise(LatticeNoise):
    """w(k) = −(k/s)^power/power: power 1 is the discrete Laplace, 2 the Gaussian."""

    power: int
    scale: Fraction

    def log_weight(self, k: int) -> Any:
        return real(-(Fraction(abs(k), 1) ** self.power) / (self.power * self.scale**self.power))

    def series(self, n: int) -> Series:
        s, none = real(self.scale), [CTX.mpf(0)] * (2 * CORRECTIONS)
        whole = [-n / s, -1 / s] if self.power == 1 else [-((n / s) ** 2) / 2, -n / s**2, -1 / (2 * s**2)]
        return (whole + none)[: 2 * CORRECTIONS]

    def integral(self, n: int, order: int) -> Any:
        """s^{j+1}·m^{(j+1)/m − 1}·Γ((j + 1)/m, (n/s)^m/m), m the power."""
        s, m = real(self.scale), self.power
        share = CTX.mpf(order + 1) / m
        return s ** (order + 1) * m ** (share - 1) * CTX.gammainc(share, -self.log_weight(n))

    def total(self, k: int, order: int) -> Any:
        """To 50 digits where the scale is not wide."""
        if self.power == 1 and not order:
            return self.weight(k) / -CTX.expm1(self.log_weight(1))  # a geometric series
        if self.scale > WIDE:
            return super().total(k, order)
        low, high = outward(self.weight(j) * j**order for j in count(k))
        return (low + high) / 2


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
def euler_maclaurin(noise: LatticeNoise, n: int, order: int, first: int = NEAREST) -> Any:
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
