"""The supremum of ψ(ε)/(ε(1 + ε)) over all orders α = 1 + ε > 1, from above (docs/tight.md, section 4).

ψ(ε) = ε·D_{1+ε} is convex and 0 at 0. So between two orders it is below the chord of upper bounds there, and everywhere
D_α/α ≤ P/α. Orders α = cosh²(j/FINENESS), j = 0, 1, 2, …, leave the same relative gap below their chords wherever ψ
is a parabola ρ·ε(1 + ε): 1/FINENESS². Of all these intervals the largest bound is found by looking at long ones first.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FINENESS = 48
STRIDE = 4  # fine intervals in one that is looked at first
CHUNK = 24 * STRIDE
ALMOST = 1 - 2.0**-10  # intervals with a bound so near the best quotient are looked at
LARGEST_ORDER = 1e60


def excess_order(j: Ints) -> Floats:
    """Return ε = α − 1 = sinh²(j/FINENESS)."""
    root: Floats = np.sinh(j / FINENESS)
    return root * root


def supremum(psi: Callable[[Floats], Floats], pure: float) -> float:
    """Return max over fine intervals of the bound of D_α/α there, `pure` being the max divergence.

    `psi` gives upper bounds of ψ at an array of ε > 0, none above ε·`pure`.
    """
    lefts, values_left, values_right, best = _long_intervals(psi, pure)
    stride = STRIDE
    while True:
        bounds = interval_bounds(lefts, lefts + stride, values_left, values_right, pure)
        if stride == 1:
            return max(best, float(bounds.max()))
        kept = ~(bounds < best * ALMOST)
        lefts, values_left, values_right = lefts[kept], values_left[kept], values_right[kept]
        stride //= 2
        middles = lefts + stride
        order = excess_order(middles)
        values = psi(order)
        best = max(best, float(np.max(values / (order * (1 + order)))))
        lefts = np.concatenate([lefts, middles])
        values_left, values_right = np.concatenate([values_left, values]), np.concatenate([values, values_right])


def _long_intervals(psi: Callable[[Floats], Floats], pure: float) -> tuple[Ints, Floats, Floats, float]:
    """Return the left ends and the values at both ends of long intervals, up to where P/α decides, and max D_α/α."""
    best, end, parts = 0.0, 0, []
    while True:
        ends = np.arange(end + STRIDE, end + CHUNK + 1, STRIDE)
        order = excess_order(ends)
        parts.append(psi(order))
        best = max(best, float(np.max(parts[-1] / (order * (1 + order)))))
        end += CHUNK
        if pure <= best * (1 + order[-1]):
            values = np.concatenate(parts)
            return np.arange(0, end, STRIDE), np.concatenate([[0.0], values[:-1]]), values, best
        if not order[-1] < LARGEST_ORDER:
            raise ArithmeticError("no order bounds the supremum")


def interval_bounds(lefts: Ints, rights: Ints, values_left: Floats, values_right: Floats, pure: float) -> Floats:
    """Return upper bounds of D_α/α on intervals of orders: of the chord, and of P/α.

    (u + v·ε)/(ε(1 + ε)) with u ≤ 0 is largest at ε = (−u + √(u² − u·v))/v, before it rises and after it falls.
    """
    first, last = excess_order(lefts), excess_order(rights)
    slope = (values_right - values_left) / (last - first)
    intercept = np.maximum(slope * first - values_left, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.clip((intercept + np.sqrt(intercept * (intercept + slope))) / slope, first, last)
        chord = (values_left + slope * (top - first)) / (top * (1 + top))
    chord = np.where(lefts > 0, chord, slope)  # from the origin: D_α at the right end, reached as α → 1
    return np.minimum(chord, pure / (1 + first))
