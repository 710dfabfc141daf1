"""Rényi divergences of all orders that a loss implies, from above: curves α ↦ D_α at one influence."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SLACK = 1 + 2.0**-40  # far above the error of a few functions in doubles
LARGEST = 300.0  # e to it is a double with room to spare


def of_zcdp(rho: float, orders: Floats) -> Floats:
    """Return α·ρ at the orders α > 1, what a PRzCDP loss ρ means."""
    with np.errstate(over="ignore"):
        curve: Floats = orders * rho * SLACK
    return curve


def of_pure(pure: float, orders: Floats) -> Floats:
    """Return the divergences of randomised response with odds e^P: no mechanism of pure loss P has larger ones.

        (α − 1)·D_α = ln[cosh((α − ½)P)/cosh(P/2)] = ln[1 + 2·sinh(αP/2)·sinh((α − 1)P/2)/cosh(P/2)]

    At most P. Any two distributions with max divergence ≤ P in both directions are a post-processing of that pair
    (Kairouz, Oh, Viswanath 2015); the formula is Bun and Steinke 2016, proposition 3.3.
    """
    half = np.minimum(orders * (pure / 2), LARGEST)  # where it is cut, P itself is the bound
    less = np.minimum((orders - 1) * (pure / 2), LARGEST)
    moment = np.log1p(2 * np.sinh(half) * np.sinh(less) / np.cosh(min(pure / 2, LARGEST)))
    curve = np.where(orders * (pure / 2) < LARGEST, moment / (orders - 1) * SLACK, pure)
    return np.minimum(curve, pure)
