"""Divergences between lattice noise and the same noise moved by whole steps, over every integer; and of finite ones.

For noise p and a shift n:  D_α = ln(Σ_k p(k)^α·p(k − n)^{1−α})/(α − 1). A shift may be negative: the other direction.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import cache, lru_cache
from itertools import count
from typing import Any

import numpy as np

from tests.support.heavy import Doubles, HeavyNoise
from tests.support.lattice import CTX, LatticeNoise, Noise, outward, real
from tests.support.piecewise import Piecewise

SUMMED = 1 << 16  # heavy tails: places summed on both sides of 0, and twenty shifts more
UNIT = 2.0**-48  # errors of doubles, with room
NARROW = 2  # Gaussian noise of up to this scale is summed term by term


def renyi(noise: LatticeNoise, shift: int, order: Fraction) -> Any:
    """The Rényi divergence of Z from Z + shift: an upper bound, tight to 40 digits where tails are light."""
    if isinstance(noise, Noise):
        if noise.power == 1:
            return renyi_laplace(noise, shift, order)
        wide = noise.scale > NARROW or abs(shift) > 1000 * noise.scale
        return renyi_poisson(noise, shift, order) if wide else renyi_summed(noise, shift, order)
    # Noise that is symmetric about 0: the other direction is the same sum, backwards.
    if isinstance(noise, Piecewise):
        return renyi_piecewise(noise, abs(shift), order)
    assert isinstance(noise, HeavyNoise)
    return CTX.mpf(renyi_heavy(noise, abs(shift), order)[1])


@cache
def renyi_summed(noise: Noise, shift: int, order: Fraction) -> Any:
    """Term by term. The terms rise to one peak and fall from it: log-concave."""
    a = real(order)

    def term(k: int) -> Any:
        return CTX.exp(a * noise.log_weight(k) + (1 - a) * noise.log_weight(k - shift))

    peak = 0 if noise.power == 1 else round(-(order - 1) * shift)
    sides = outward(term(k) for k in count(peak)), outward(term(k) for k in count(peak - 1, -1))
    return CTX.log(sum(high for _, high in sides) / noise.normaliser) / (a - 1)


@cache
def renyi_piecewise(noise: Piecewise, shift: int, order: Fraction) -> Any:
    """Term by term up to where both are geometric sequences of the same ratio, and these in closed form."""
    a, reach = real(order), noise.last + abs(shift)

    def term(k: int) -> Any:
        return CTX.exp(a * noise.log_weight(k) + (1 - a) * noise.log_weight(k - shift))

    ends = (term(reach) + term(-reach)) / -CTX.expm1(real(noise.slope))
    return CTX.log((CTX.fsum(map(term, range(1 - reach, reach))) + ends) / noise.normaliser) / (a - 1)


def renyi_poisson(noise: Noise, shift: int, order: Fraction) -> Any:
    """Of Gaussian noise of any scale, however wide, by Poisson summation.

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


def renyi_laplace(noise: Noise, shift: int, order: Fraction) -> Any:
    """Of Laplace noise, by geometric series over k ≤ 0, 0 < k < n and k ≥ n = |shift|; q = e^{−1/s}.

    (1 + q)/(1 − q)·Σ = e^{(α−1)n/s}/(1 − q) + e^{(α−1)n/s}·(r − r^n)/(1 − r) + e^{−αn/s}/(1 − q),  r = q^{2α−1}
    """
    assert noise.power == 1
    n, a, lost = abs(shift), real(order), -CTX.expm1(noise.log_weight(1))
    pure, rate = real(n / noise.scale), (2 * a - 1) / real(noise.scale)
    between = CTX.exp(-rate) * CTX.expm1(-(n - 1) * rate) / CTX.expm1(-rate) if n else -1
    ends = (CTX.exp((a - 1) * pure) + CTX.exp(-a * pure)) / lost
    return CTX.log((ends + CTX.exp((a - 1) * pure) * between) * lost / (2 - lost)) / (a - 1)


@lru_cache(maxsize=4)  # arrays of megabytes
def _heavy_terms(noise: HeavyNoise, shift: int) -> tuple[Doubles, Doubles, Doubles]:
    """For |k| ≤ K = SUMMED + 20·|shift|: ln p(k), L(k) = w(k) − w(k − shift), and the error bound of both."""
    reach = SUMMED + 20 * abs(shift)
    k = np.arange(-reach, reach + 1, dtype=np.float64)
    here, there = noise.log_weights(np.abs(k)), noise.log_weights(np.abs(k - shift))
    return here - float(CTX.log(noise.normaliser)), here - there, UNIT * (2 + np.abs(here) + np.abs(there))


@cache
def renyi_heavy(noise: HeavyNoise, shift: int, order: Fraction) -> tuple[float, float]:
    """Bounds of the divergence of heavy-tailed noise: sums in doubles with their errors, the ends bounded.

    Σ_k p(k)·(e^{(α−1)L(k)} − 1) = e^{(α−1)D} − 1. Beyond K, w being convex, L(−k) = −w(k + n) + w(k) lies in [0, x],
    x = w(K) − w(K + n), L(k) in [−y, −L(−k)], y = w(K − n) − w(K), and e^u − 1 + e^{−u} − 1 = 2·cosh u − 2; so
    the two ends add at most P(Z > K)·(2·cosh((α − 1)x) − 2), and take away at most P(Z > K)·(1 − e^{−(α−1)y}).
    """
    a, n = float(order - 1), abs(shift)
    log_p, rise, error = _heavy_terms(noise, shift)
    edge = (len(rise) - 1) // 2
    end = float(noise.from_on(edge + 1)) * (1 + UNIT)
    nearer, w, farther = (noise.log_weight(k) for k in (edge - n, edge, edge + n))
    x, y = (a * float(fall) * (1 + UNIT) for fall in (w - farther, nearer - w))
    if a * float(np.max(rise)) < 1:
        sums = []
        for sign in (-1, 1):
            terms = np.exp(log_p) * np.expm1(a * (rise + sign * error))
            sums.append(float(np.sum(terms) + sign * np.sum(np.abs(terms) * 2 * (error + UNIT))))
        low, high = sums[0] + end * np.expm1(-y), sums[1] + end * (2 * np.cosh(x) - 2)
        return float(np.log1p(low) / a), float(np.log1p(high) / a)
    logs = [log_p + a * rise + sign * (1 + a) * error for sign in (-1, 1)]
    top = [float(np.max(part)) for part in logs]
    low, high = (t + float(np.log(np.sum(np.exp(part - t)))) for t, part in zip(top, logs, strict=True))
    high = float(np.logaddexp(high, np.log(2 * end) + x)) if end else high
    return (low - UNIT) / a, (high + UNIT) / a


@cache
def max_divergence(noise: LatticeNoise, shift: int) -> Any:
    """max ln p(k)/p(k − shift) over the k near 0 and near the shift, where it can lie, and others."""
    n = abs(shift)
    near = range(-20, 21)
    between = range(0, n, max(1, n // 200))
    far = (10**j for j in range(1, 19))
    places = {sign * k for sign in (1, -1) for k in (*near, *between, *(n + k for k in near), *noise.beside(n), *far)}
    return max(noise.log_weight(k) - noise.log_weight(k - shift) for k in places)


def clamped(noise: LatticeNoise, at: int, low: int, high: int) -> dict[int, Any]:
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
