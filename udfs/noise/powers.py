"""Estimators of powers from a noisy root, and their variances, under any symmetric noise that has moments
(docs/mathematics.md, section 4).

For ṽ = v + Z with E Z^{2j} = m_{2j} (odd moments are 0, m_0 = 1),

    E ṽ^n = Σ_j C(n, 2j)·m_{2j}·v^{n−2j},        E g_n(ṽ) = v^n  for  g_n(x) = Σ_j C(n, 2j)·b_{2j}·x^{n−2j},

where Σ_j b_{2j}·t^{2j}/(2j)! = 1/Σ_j m_{2j}·t^{2j}/(2j)!: the Appell polynomials of the noise. For Gaussian noise,
m_{2j} = (2j)!/(2^j·j!)·σ^{2j}, they are those of Hermite, σ^n·He_n(ṽ/σ) (paper 1, table 2); for Laplace noise,
m_{2j} = (2j)!·σ^{2j}, they are ṽ^n − σ²n(n − 1)·ṽ^{n−2}.
"""

import math
import sys
from collections.abc import Sequence
from functools import lru_cache
from math import comb
from typing import Any

import numpy as np

from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context

Polynomial = dict[int, Any]  # power → coefficient
LARGEST_DOUBLE = sys.float_info.max
MOMENT_BITS = 160
UNCUT = 40.0  # noise scales from which on no noise reaches below 0, as far as doubles tell


def unit_moments(noise: str, most: int) -> list[int]:
    """Return E Z^{2j}, j = 0 … `most`, of gaussian or laplace noise of scale 1."""
    return [math.factorial(2 * j) // (1 if noise == "laplace" else 2**j * math.factorial(j)) for j in range(most + 1)]


def unbiased_power(n: int, moments: Sequence[Any]) -> Polynomial:
    """Return g_n by power; `moments`: m_0, m_2, m_4, … up to m_n at least, of any numeric type."""
    inverse: list[Any] = [moments[0]]
    for j in range(1, n // 2 + 1):
        inverse.append(-sum(comb(2 * j, 2 * i) * moments[i] * inverse[j - i] for i in range(1, j + 1)))
    return {n - 2 * j: comb(n, 2 * j) * inverse[j] for j in range(n // 2 + 1)}


def expectation(polynomial: Polynomial, moments: Sequence[Any]) -> Polynomial:
    """Return E of a polynomial in ṽ, as a polynomial in v; moments up to the polynomial's degree are needed."""
    result: Polynomial = {}
    for n, c in polynomial.items():
        for j in range(n // 2 + 1):
            result[n - 2 * j] = result.get(n - 2 * j, 0) + c * comb(n, 2 * j) * moments[j]
    return result


def square(polynomial: Polynomial) -> Polynomial:
    """Return the square of a polynomial."""
    result: Polynomial = {}
    for n, c in polynomial.items():
        for m, d in polynomial.items():
            result[n + m] = result.get(n + m, 0) + c * d
    return result


def variance_of_power(k: int, moments: Sequence[Any], *, unbiased: bool = True) -> tuple[Any, ...]:
    """Return the coefficients of v^{2i}, i < k, in the variance of g_k(ṽ), or of ṽ^k itself; moments up to m_{2k}.

    With noise of scale σ, and moments of scale 1, the i-th is to be multiplied by σ^{2(k−i)}.
    """
    g = unbiased_power(k, moments) if unbiased else {k: 1}
    variance = expectation(square(g), moments)
    if not unbiased:  # else E g = v^k, whose square is left out with the power 2k
        for n, c in square(expectation(g, moments)).items():
            variance[n] = variance.get(n, 0) - c
    return tuple(variance.get(2 * i, 0) for i in range(k))


@lru_cache(maxsize=64)
def unit_variance_of_power(k: int, noise: str, *, unbiased: bool) -> tuple[int, ...]:
    """Return `variance_of_power` under gaussian or laplace noise of scale 1: integers."""
    return variance_of_power(k, unit_moments(noise, k), unbiased=unbiased)


def power(v: Floats, n: int) -> Floats:
    """Return v^n, n ≥ 0, by products: the same bits on every processor."""
    result = np.ones_like(v)
    for _ in range(n):
        result = result * v
    return result


def unbiased_estimate(v: Floats, n: int, sigma: float, noise: str) -> Floats:
    """Return g_n at noisy roots `v`, of gaussian or laplace noise: the same bits on every processor."""
    variance = sigma * sigma
    if noise == "laplace":
        return power(v, n) if n < 2 else power(v, n - 2) * (v * v - variance * (n * (n - 1)))
    # H_{i+1} = ṽ·H_i − iσ²·H_{i−1},  H_0 = 1
    before, hermite = np.zeros_like(v), np.ones_like(v)
    for i in range(n):
        before, hermite = hermite, v * hermite - (i * variance) * before
    return hermite


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
    uncut = ctx.fsum(math.perm(n, 2 * j) * z ** (n - 2 * j) for j in range(n // 2 + 1))
    return uncut - (-1) ** n * ctx.factorial(n) * ctx.exp(-z) / 2
