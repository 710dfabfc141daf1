"""The symmetric α-stable density at any precision, 1 < α < 2: two series, each with a proven remainder.

p is the density whose characteristic function is e^{−|t|^α}. With f = p/p(0), p(0) = Γ(1/α)/(πα), and x > 0:

near:  f(x) = Σ_{n ≥ 0} (−1)^n·a_n·x^{2n},    a_n = Γ((2n + 1)/α)/(Γ(1/α)·(2n)!),
far:   f(x) = (α/Γ(1/α))·[Σ_{0 < k < n} C_k·x^{−αk−1} + R_n],    C_k = (−1)^{k+1}·Γ(αk + 1)/k!·sin(kαπ/2),
       |R_n| ≤ Γ(αn + 1)/n!·(x·sin θ)^{−αn−1},    θ = π/(2α).

The near series converges everywhere; its terms' ratios fall with n, so what follows a term that is smaller than the one
before it is at most that term. Its digits cancel: it is summed in integers with as many digits more. The far series
diverges, and is used where its smallest bound is small enough. Proofs: docs/mathematics.md, section 11.
Source of both series: Bergström 1952 (paper 4, eq. 25, prints the second without 1/k!).
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from udfs.numbers.exact import context, real

GUARD = 24  # digits beyond those asked for: far more than all roundings here add up to
COARSE = 512  # coefficients of the near series are kept at precisions that are multiples of it
MOST_TERMS = 1 << 17
LEAST = Fraction(1, 2)  # nearer points are summed with its scaled terms


def log_ratio(alpha: Fraction, x: Fraction, ctx: Any) -> Any:
    """Return ln(p(x)/p(0)), x ≥ 0, right to some last bits of `ctx`, relatively, also next to 0."""
    if not x:
        return ctx.mpf(0)
    bits = ctx.prec + GUARD
    far = _far(alpha, x, bits, power=1)
    inner = context(64 * math.ceil(bits / 64))
    return +ctx.convert(inner.log1p(-_drop(alpha, x, bits)) if far is None else inner.log(inner.convert(far)))


def tail_integral(alpha: Fraction, x: Fraction, ctx: Any) -> Any:
    """Return ∫_x^∞ p/p(0), x ≥ 0, right to some last bits of `ctx`, relatively."""
    bits = ctx.prec + GUARD
    far = _far(alpha, x, bits, power=0)
    return +ctx.convert(_beyond(alpha, x, bits) if far is None else far)


# -- the near series -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Near:
    """b_n = a_n·X^{2n} for x ≤ X = `end` as integers with `digits` binary digits behind the point, n from 0 on."""

    end: Fraction
    digits: int
    finer: int  # digits of (x/X)²: an error there is multiplied by the largest b_n
    terms: tuple[int, ...]
    integrated: tuple[int, ...]  # b_n/(2n + 1)

    def square(self, x: Fraction) -> int:
        """Return (x/X)² ≤ 1 as an integer with `finer` digits."""
        s = (x / self.end) ** 2
        return (s.numerator << self.finer) // s.denominator

    def alternating(self, terms: tuple[int, ...], s: int) -> int:
        """Return Σ (−1)^n·b_n·s^n: each step errs by less than three units, s ≤ 1, so all by 3 for a term."""
        total = 0
        for b in reversed(terms):
            total = b - (total * s >> self.finer)
        return total


@lru_cache(maxsize=256)
def _near(alpha: Fraction, end: Fraction, bits: int) -> _Near:
    """Return the terms that give f(x), x ≤ `end`, within 2^−bits of f(end)."""
    digits = bits + 24 + _fall(alpha, end)
    last, largest = _extent(alpha, end, digits)
    precision = COARSE * math.ceil((digits + largest + 24) / COARSE)
    a, ctx = near_coefficients(alpha, precision, last), context(precision)
    square, power, terms = real(ctx, end**2), ctx.ldexp(1, digits), []
    for n in range(last):
        terms.append(int(a[n] * power))
        power *= square
    largest = sum(terms).bit_length() - digits
    if not (digits + largest + last.bit_length() + 4 <= precision and terms[-1] <= 1):
        raise ArithmeticError("the extent of a stable density's series was misjudged")
    return _Near(end, digits, digits + largest, tuple(terms), tuple(b // (2 * n + 1) for n, b in enumerate(terms)))


def _extent(alpha: Fraction, end: Fraction, digits: int) -> tuple[int, int]:
    """Return how many b_n there are until they fall below 2^−digits, and log₂ of the largest, both roughly."""
    a, log_end = float(alpha), math.log(end)

    def size(n: int) -> float:
        log = math.lgamma((2 * n + 1) / a) - math.lgamma(2 * n + 1) - math.lgamma(1 / a) + 2 * n * log_end
        return log / math.log(2)

    peak = int(math.exp((a * log_end - math.log(a)) / (a - 1)) / 2)
    if peak > MOST_TERMS:
        raise ArithmeticError(f"a stable density of exponent {a} has too long a series")
    high = 2 * peak + 16
    while size(high) > -digits - 2:
        high *= 2
    low = peak
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size(middle) > -digits - 2 else (low, middle)
    return high + 1, math.ceil(max(0.0, size(peak), size(peak + 1))) + 8


def _end(alpha: Fraction, x: Fraction) -> Fraction:
    """Return an X ≥ x on a grid so fine that the largest of X's terms is not far above that of x's."""
    if x <= LEAST:
        return LEAST
    octave = (x.numerator // x.denominator).bit_length() - 1
    step = Fraction(2) ** (octave - math.ceil(math.log2(alpha / (alpha - 1))))
    return -(-x // step) * step


def _fall(alpha: Fraction, x: Fraction) -> int:
    """Return about log₂(p(0)/p(x)), or more: what it is by the first term of the far series."""
    a = float(alpha)
    log = math.lgamma(1 / a) - math.log(a) - log_first(alpha) + (1 + a) * max(math.log(x), 0)
    return max(4, math.ceil(log / math.log(2)) + 8)


def log_first(alpha: Fraction) -> float:
    """Return ln C_1; sin(απ/2) = sin((2 − α)π/2) does not cancel."""
    return math.lgamma(1 + float(alpha)) + math.log(math.sin(float(2 - alpha) * math.pi / 2))


@lru_cache(maxsize=64)
def _known(alpha: Fraction, bits: int, far: bool) -> list[Any]:
    """Return the list of a series' coefficients, as far as any thread has asked for them; it grows under the lock."""
    return []


_growing = threading.Lock()


def _coefficients(alpha: Fraction, bits: int, far: bool, size: int, of: Callable[[int], Any]) -> list[Any]:
    """Return the first coefficients, with `bits` digits, in this thread's context; the unknown ones by `of`."""
    with _growing:
        known = _known(alpha, bits, far)
        for n in range(len(known), size):
            known.append(of(n)._mpf_)
        first = known[:size]
    return [context(bits).make_mpf(number) for number in first]


def near_coefficients(alpha: Fraction, bits: int, size: int) -> list[Any]:
    """Return a_0, a_1, …, `size` of them, with `bits` digits."""
    ctx = context(bits)
    first = ctx.gamma(real(ctx, 1 / alpha))

    def of(n: int) -> Any:
        return ctx.gamma(real(ctx, (2 * n + 1) / alpha)) / ctx.factorial(2 * n) / first

    return _coefficients(alpha, bits, False, size, of)


def _drop(alpha: Fraction, x: Fraction, bits: int) -> Any:
    """Return 1 − f(x), right relatively, and so that f(x) is too."""
    near = _near(alpha, _end(alpha, x), bits)
    s = near.square(x)
    inner = context(64 * math.ceil((bits + near.digits) / 64))
    inside = near.alternating(near.terms[1:], s)  # Σ_{n ≥ 1} (−1)^{n−1}·b_n·s^{n−1}
    drop = inner.ldexp(inside, -near.digits) * real(inner, (x / near.end) ** 2)
    if not inner.ldexp(1 - drop, near.digits - bits) > 4 * len(near.terms):
        raise ArithmeticError("digits of a stable density cancelled")
    return drop


def _beyond(alpha: Fraction, x: Fraction, bits: int) -> Any:
    """Return 1/(2·p(0)) − ∫_0^x f,  ∫_0^x f = x·Σ (−1)^n·b_n·s^n/(2n + 1)."""
    near = _near(alpha, _end(alpha, x), bits)
    inner = context(64 * math.ceil((bits + near.digits) / 64))
    inside = inner.ldexp(near.alternating(near.integrated, near.square(x)), -near.digits)
    total = inner.pi * real(inner, alpha) / (2 * inner.gamma(real(inner, 1 / alpha)))
    return total - real(inner, x) * inside


# -- the far series --------------------------------------------------------------------------------------------------


def _far(alpha: Fraction, x: Fraction, bits: int, power: int) -> Any:
    """Return f(x) (power 1) or ∫_x^∞ f (power 0) within 2^−bits, relatively; None where no number of terms gives it."""
    n = far_terms(alpha, x, bits + 2)
    if n is None:
        return None
    ctx = context(64 * math.ceil((bits + 32) / 64))
    c = far_coefficients(alpha, ctx.prec, n)
    a = real(ctx, alpha)
    q = ctx.exp(-a * ctx.log(real(ctx, x)))
    total = ctx.mpf(0)
    for k in range(n - 1, 0, -1):
        total = (total + (c[k] if power else c[k] / (a * k))) * q
    first = (c[1] if power else c[1] / a) * q
    if not 2 * total > first:
        return None
    return total * a / ctx.gamma(1 / a) / (real(ctx, x) if power else 1)


def far_terms(alpha: Fraction, x: Fraction, bits: int) -> int | None:
    """Return the least n whose remainder is at most 2^−bits of the first term (and so is that of the integral)."""
    if not x > 1:
        return None
    a, log_x = float(alpha), math.log(x.numerator) - math.log(x.denominator)
    slope = log_x + log_sine(alpha)

    def bound(n: int) -> float:  # ln|R_n·x|
        return math.lgamma(a * n + 1) - math.lgamma(n + 1) - a * n * slope - log_sine(alpha)

    enough = log_first(alpha) - a * log_x - bits * math.log(2) - 1
    lowest = a * (slope - math.log(a)) / (a - 1)  # ln of the n from which the bounds rise again
    low, high = 1, math.ceil(math.exp(min(lowest, math.log(MOST_TERMS))))
    if high < 2 or not bound(high) <= enough:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= enough else (middle, high)
    return high


def log_sine(alpha: Fraction) -> float:
    """Return ln sin(π/(2α))."""
    return math.log(math.sin(math.pi / (2 * float(alpha))))


def far_coefficients(alpha: Fraction, bits: int, size: int) -> list[Any]:
    """Return C_0 = 0, C_1, …, `size` of them, with `bits` digits."""
    ctx = context(bits)

    def of(k: int) -> Any:
        turns = k * alpha / 2
        nearest = round(turns)  # sin(kαπ/2) = (−1)^nearest·sin(π·(turns − nearest)): no digits cancel
        sine = ctx.sinpi(real(ctx, turns - nearest)) * (-1) ** (nearest + k + 1)
        return ctx.gamma(real(ctx, alpha * k + 1)) / ctx.factorial(k) * sine

    return _coefficients(alpha, bits, True, size, of)
