"""Exact probabilities of lattice noise, in high precision and from the mathematics alone: nothing of udfs is used.

A family says its log-weights, its tail sums and its moments; all else follows. Here: discrete Laplace and Gaussian
noise. Heavy tails are in tests.support.heavy, divergences in tests.support.divergence.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
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


class LatticeNoise(ABC):
    """P(Z = k) ∝ exp(w(|k|)) on the integers, w(0) = 0, w falling; `scale` in steps. Frozen dataclasses."""

    scale: Fraction

    @abstractmethod
    def log_weight(self, k: int) -> Any:
        """w(|k|)."""

    @abstractmethod
    def weight_from(self, k: int) -> Any:
        """Σ exp(w(j)) over j ≥ k ≥ 1, to 20 digits at least."""

    @abstractmethod
    def moment(self, order: int) -> Any:
        """E |Z|^order; infinite where there is none."""

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

    def weight_from(self, k: int) -> Any:
        """To 50 digits (20 for wide Gaussian noise)."""
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
        """By direct summation."""
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
