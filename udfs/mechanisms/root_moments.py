"""Estimators of powers from a noisy root, and their variances: polynomials, with noise of scale σ (MATH section 3).

For ṽ = v + Z with E Z^{2j} = m_j·σ^{2j}, m_j = (2j)!/(2^j·j!) of Gaussian and (2j)! of Laplace noise,

    E ṽ^n = Σ_j C(n, 2j)·m_j·σ^{2j}·v^{n−2j},

and the polynomial with expectation v^n is σ^n·He_n(ṽ/σ), or ṽ^n − σ²n(n − 1)·ṽ^{n−2}.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfs.highprec import context

Floats = NDArray[np.float64]
LARGEST_DOUBLE = float(np.finfo(np.float64).max)
MOMENT_BITS = 160
UNCUT = 40.0  # noise scales from which on no noise reaches below 0, as far as doubles tell


def power(v: Floats, n: int) -> Floats:
    """Return v^n, n ≥ 0, by products: the same bits on every processor."""
    result = np.ones_like(v)
    for _ in range(n):
        result = result * v
    return result


def unbiased(v: Floats, n: int, sigma: float, noise: str) -> Floats:
    """Return the polynomial in ṽ whose expectation is v^n."""
    square = sigma * sigma
    if noise == "laplace":
        return power(v, n) if n < 2 else power(v, n - 2) * (v * v - square * (n * (n - 1)))
    # H_{i+1} = ṽ·H_i − iσ²·H_{i−1},  H_0 = 1
    before, hermite = np.zeros_like(v), np.ones_like(v)
    for i in range(n):
        before, hermite = hermite, v * hermite - (i * square) * before
    return hermite


def evaluated(terms: Sequence[float], v: float) -> float:
    """Return Σ terms[i]·v^{2i}, infinite beyond the doubles."""
    total = 0.0
    for term in reversed(terms):
        total = total * v * v + term
    return total if math.isfinite(total) else math.inf


@lru_cache(maxsize=256)
def variance_polynomial(k: int, noise: str, estimator: str, sigma: Fraction) -> tuple[float, ...]:
    """Return the coefficients of v^{2i}, i < k, in the variance of the estimator of v^k (beyond doubles: infinite)."""
    return tuple(_float(c * sigma ** (2 * (k - i))) for i, c in enumerate(_unit_variance(k, noise, estimator)))


def clipped_variance(v: float, k: int, sigma: float, noise: str) -> float | None:
    """Return the variance of max(ṽ, 0)^k at v ≥ 0, or None where the cut is too far off to be felt.

    I_n = E[ṽ^n; ṽ > 0].  Gaussian: I_n = v·I_{n−1} + (n − 1)σ²·I_{n−2}, I_0 = Φ(v/σ), I_1 = v·Φ + σ·φ;
    Laplace: I_n = E ṽ^n − (−1)^n·n!·σ^n·e^{−v/σ}/2.
    """
    if v > UNCUT * sigma:
        return None
    ctx = context(MOMENT_BITS)  # of high powers the moments leave the doubles, and their difference need not
    z = ctx.mpf(v) / sigma
    if noise == "laplace":
        once, twice = (_cut_laplace_moment(z, n, ctx) for n in (k, 2 * k))
    else:
        moments = [ctx.ncdf(z), z * ctx.ncdf(z) + ctx.npdf(z)]
        for n in range(2, 2 * k + 1):
            moments.append(z * moments[-1] + (n - 1) * moments[-2])
        once, twice = moments[k], moments[2 * k]
    variance = (twice - once**2) * ctx.mpf(sigma) ** (2 * k)
    return float(variance) if variance <= LARGEST_DOUBLE else math.inf


def _cut_laplace_moment(z: Any, n: int, ctx: Any) -> Any:
    whole = ctx.fsum(math.perm(n, 2 * j) * z ** (n - 2 * j) for j in range(n // 2 + 1))
    return whole - (-1) ** n * ctx.factorial(n) * ctx.exp(-z) / 2


@lru_cache(maxsize=64)
def _unit_variance(k: int, noise: str, estimator: str) -> tuple[int, ...]:
    """Return the integer coefficients of v^{2i}, i < k, for σ = 1: Var G = E G² − (E G)² of the estimator G."""
    g = _estimator(k, noise) if estimator == "mean" else {k: 1}
    square: dict[int, int] = {}
    for n, c in g.items():
        for m, d in g.items():
            square[n + m] = square.get(n + m, 0) + c * d
    mean = _expectation(g, noise)
    variance = _expectation(square, noise)
    for n, c in mean.items():
        for m, d in mean.items():
            variance[n + m] = variance.get(n + m, 0) - c * d
    return tuple(variance.get(2 * i, 0) for i in range(k))


def _estimator(n: int, noise: str) -> dict[int, int]:
    """The unbiased polynomial of v^n for σ = 1, by power."""
    if noise == "laplace":
        return {n: 1} if n < 2 else {n: 1, n - 2: -n * (n - 1)}
    return {n - 2 * j: (-1) ** j * math.comb(n, 2 * j) * _moment(j, noise) for j in range(n // 2 + 1)}


def _expectation(polynomial: dict[int, int], noise: str) -> dict[int, int]:
    found: dict[int, int] = {}
    for n, c in polynomial.items():
        for j in range(n // 2 + 1):
            found[n - 2 * j] = found.get(n - 2 * j, 0) + c * math.comb(n, 2 * j) * _moment(j, noise)
    return found


def _moment(j: int, noise: str) -> int:
    return math.factorial(2 * j) // (1 if noise == "laplace" else 2**j * math.factorial(j))


def _float(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
