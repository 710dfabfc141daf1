"""The δ at which discrete Gaussian noise hides a shift, for a given ε: exactly, but for digits that are counted.

For Z and Z + n of scale s the privacy loss is L(x) = (n² − 2nx)/(2s²), which falls in x. With c the largest whole
number for which L(c) > ε, that is c < n/2 − εs²/n,

    δ(ε) = P(Z ≤ c) − e^ε·P(Z ≤ c − n),

the analytic Gaussian condition (Balle and Wang 2018, theorem 8) with sums in place of integrals.
"""

from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any

from udfs.noise.weights import GaussianWeights
from udfs.numbers.exact import context, fraction, real

BITS = 400
SUMMED = 64  # scales up to which sums are added term by term
ORDERS = 12  # corrections of the Euler–Maclaurin formula for wider noise
FAR = 80  # scales beyond which a tail is nothing: e^{−3200}
NOTHING = Fraction(1, 10**1300)


@lru_cache(maxsize=1024)
def delta_above(weights: GaussianWeights, steps: int, epsilon: Fraction) -> Fraction:
    """Return an upper bound of δ(ε) at a shift of `steps` ≥ 0, ε ≥ 0, above it by less than one part in 10²⁰ of 1.

    It is the same on every machine. Of a δ that is above 10⁻³⁰⁰ it is right to many more digits than a double has.
    """
    if not steps:
        return Fraction(0)
    scale, ctx = weights.scale, context(BITS)
    last = ceil(Fraction(steps, 2) - epsilon * scale**2 / steps) - 1
    whole = _whole(ctx, scale)
    most, least = _up_to(ctx, scale, last, whole)[1], _up_to(ctx, scale, last - steps, whole)[0]
    error = 1 + ctx.ldexp(1, 64 - BITS)
    spent = most * error - ctx.exp(real(ctx, epsilon)) * least / error
    return max(fraction(spent), NOTHING)


def _whole(ctx: Any, scale: Fraction) -> tuple[Any, Any]:
    """Return bounds of Σ e^{−j²/(2s²)} over all j: of wide noise Poisson's s√(2π)·(1 + 2·Σ e^{−2π²s²m²})."""
    if scale > SUMMED:
        middle = real(ctx, scale) * ctx.sqrt(2 * ctx.pi)
        return middle * (1 - ctx.ldexp(1, 8 - BITS)), middle * (1 + ctx.ldexp(1, 8 - BITS))
    low, high = _summed(ctx, scale, 1)
    return 1 + 2 * low, 1 + 2 * high


def _up_to(ctx: Any, scale: Fraction, last: int, whole: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return bounds of P(Z ≤ last)."""
    low, high = _tail(ctx, scale, -last if last < 0 else last + 1)
    if last < 0:
        return low / whole[1], high / whole[0]
    return 1 - high / whole[0], 1 - low / whole[1]


def _tail(ctx: Any, scale: Fraction, k: int) -> tuple[Any, Any]:
    """Return bounds of Σ e^{−j²/(2s²)} over j ≥ k ≥ 1."""
    if k > FAR * scale + 1:
        # the terms fall at least as fast as a geometric series of ratio e^{−k/s²}, which starts below e^{−k²/(2s²)}
        first = ctx.exp(real(ctx, -(Fraction(k) ** 2) / (2 * scale**2)))
        return ctx.mpf(0), first / -ctx.expm1(real(ctx, -k / scale**2))
    return _summed(ctx, scale, k) if scale <= SUMMED else _expanded(ctx, scale, k)


def _summed(ctx: Any, scale: Fraction, k: int) -> tuple[Any, Any]:
    """Add terms until they are nothing: each is the last times a ratio that falls by the same factor."""
    square = real(ctx, 1 / scale**2)
    term, ratio, factor = ctx.exp(-square * k * k / 2), ctx.exp(-square * (k + ctx.mpf(1) / 2)), ctx.exp(-square)
    total, least = ctx.mpf(0), ctx.ldexp(term, -BITS)
    while term > least:
        total += term
        term, ratio = term * ratio, ratio * factor
    error = ctx.ldexp(total, 40 - BITS)  # a few thousand roundings, and the terms that are left
    return total - error, total + error + term / (1 - ratio)


def _expanded(ctx: Any, scale: Fraction, k: int) -> tuple[Any, Any]:
    """Return ∫_k^∞ f + f(k)/2 − Σ B_{2m}/(2m)!·f^{(2m−1)}(k) and bounds of the rest, f = e^{−x²/(2s²)}.

    f^{(n)}(x) = (−1)ⁿ·He_n(x/s)·f(x)/sⁿ; the rest is at most 2ζ(2M)/(2π)^{2M}·∫_k^∞ |f^{(2M)}| (Euler and Maclaurin),
    and |He_{2M}(u)| at most the polynomial with the same coefficients, all positive.
    """
    s = real(ctx, scale)
    u = k / s
    density = ctx.exp(-u * u / 2)
    total = s * ctx.sqrt(ctx.pi / 2) * ctx.erfc(u / ctx.sqrt(2)) + density / 2
    before, now = ctx.mpf(1), u  # He_0, He_1
    for m in range(1, ORDERS + 1):
        total += ctx.bernoulli(2 * m) / ctx.factorial(2 * m) * now * density / s ** (2 * m - 1)
        for n in (2 * m - 1, 2 * m):
            before, now = now, u * now - n * before
    order, rest = 2 * ORDERS, ctx.mpf(0)
    integral = ctx.sqrt(ctx.pi / 2) * ctx.erfc(u / ctx.sqrt(2))  # ∫_u^∞ t^power·e^{−t²/2} dt, by parts
    for power in range(0, order + 1, 2):
        m = ORDERS - power // 2
        rest += ctx.factorial(order) / (ctx.ldexp(1, m) * ctx.factorial(m) * ctx.factorial(power)) * integral
        integral = u ** (power + 1) * density + (power + 1) * integral
    rest *= 2 * ctx.zeta(order) / (2 * ctx.pi) ** order / s ** (order - 1)
    rest += ctx.ldexp(total, 64 - BITS)
    return total - rest, total + rest
