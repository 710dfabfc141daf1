"""Unbiased estimators of powers under any symmetric noise that has moments, and their variances.

For ṽ = v + Z with E Z^{2j} = m_{2j} (odd moments are 0, m_0 = 1),

    E ṽ^n = Σ_j C(n, 2j)·m_{2j}·v^{n−2j},        E g_n(ṽ) = v^n  for  g_n(x) = Σ_j C(n, 2j)·b_{2j}·x^{n−2j},

where Σ_j b_{2j}·t^{2j}/(2j)! = 1/Σ_j m_{2j}·t^{2j}/(2j)!: the Appell polynomials of the noise, for Gaussian noise those
of Hermite (paper 1, table 2). k = 4: x⁴ − 6·m_2·x² + 6·m_2² − m_4.
"""

from collections.abc import Sequence
from math import comb
from typing import Any

Polynomial = dict[int, Any]  # power → coefficient


def unbiased_power(n: int, moments: Sequence[Any]) -> Polynomial:
    """Return g_n by power; `moments`: m_0, m_2, m_4, … up to m_n at least, of any numeric type."""
    inverse: list[Any] = [moments[0]]
    for j in range(1, n // 2 + 1):
        inverse.append(-sum(comb(2 * j, 2 * i) * moments[i] * inverse[j - i] for i in range(1, j + 1)))
    return {n - 2 * j: comb(n, 2 * j) * inverse[j] for j in range(n // 2 + 1)}


def expectation(polynomial: Polynomial, moments: Sequence[Any]) -> Polynomial:
    """Return E of a polynomial in ṽ, as a polynomial in v; moments up to the polynomial's degree are needed."""
    found: Polynomial = {}
    for n, c in polynomial.items():
        for j in range(n // 2 + 1):
            found[n - 2 * j] = found.get(n - 2 * j, 0) + c * comb(n, 2 * j) * moments[j]
    return found


def variance_of_power(k: int, moments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the coefficients of v^{2i}, i < k, in the variance of g_k(ṽ): E g_k(ṽ)² − v^{2k}; moments up to m_{2k}.

    With noise of scale σ, and moments of scale 1, the i-th is to be multiplied by σ^{2(k−i)}.
    """
    g = unbiased_power(k, moments)
    square: Polynomial = {}
    for n, c in g.items():
        for m, d in g.items():
            square[n + m] = square.get(n + m, 0) + c * d
    mean_square = expectation(square, moments)  # its v^{2k} has the coefficient 1, which the subtraction removes
    return tuple(mean_square[2 * i] for i in range(k))
