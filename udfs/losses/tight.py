"""The PRzCDP loss of additive noise itself, ρ(Δ) = sup over α > 1 of D_α(Z ‖ Z + Δ)/α, from above (docs/tight.md).

The paper's tanh(P/2)·P is the worst of all mechanisms with pure loss P; this is that of the lattice noise Z that is
sampled. Shifts are in lattice steps, so ρ depends on how fine the lattice is.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from udfs.losses.nodes import UP, nodes_of
from udfs.losses.stable import envelope
from udfs.losses.stable_nodes import Stable, stable_nodes
from udfs.noise.heavy import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.stable import CauchyWeights, StableWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.arrays import Floats
from udfs.numbers.bounds import laplace_zcdp_above
from udfs.numbers.exact import up_float, up_text

Summed = GeneralizedGaussianWeights | PolylogWeights | CauchyWeights | StableWeights
MOST_STEPS = 2**64
WIDEST = 2**1000  # scales beyond are no doubles
EXACT = 2**53
DIGITS = 7  # of a stated loss, rounded up
LARGEST_EXPONENT = 700.0  # e to it is a double with room to spare
LEAST_PURE, MOST_PURE = 1e-100, 1e9  # squares of smaller ones leave the doubles; larger ones are the loss itself
LARGEST_ERROR = 2.0**-38  # of a family's log-weights, relatively, that UP covers
WIDER = 1 + 2.0**-40  # far above the rounding of tanh(P/2)·P


@lru_cache(maxsize=1 << 16)
def tight_loss(weights: LogWeights, steps: int) -> float:
    """Return an upper bound of ρ at a shift of `steps` ≥ 0 lattice steps, at most 2⁶⁴; tanh(P/2)·P, rounded, at most.

    Of the families of heavy tails it is within 1 % of ρ where ρ > 10⁻⁶; 0.13 % was the most in tests. It does not fall
    as `steps` rises. It is ρ, rounded up, of Laplace and Gaussian noise. Raises TypeError on another family.
    """
    if not 0 <= steps <= MOST_STEPS:
        raise ValueError("steps: must be from 0 to 2⁶⁴")
    if not steps:
        return 0.0
    if isinstance(weights, LaplaceWeights):
        return up_float(laplace_zcdp_above(steps / weights.scale, 1 / weights.scale))
    if isinstance(weights, GaussianWeights):
        return up_float(steps**2 / (2 * weights.scale**2))
    if not isinstance(weights, Summed):
        raise TypeError(f"{type(weights).__name__}: no tight loss is known of this family")
    pure = pure_above(weights, steps)
    paper = float(np.tanh(pure / 2)) * pure * WIDER
    if not is_summable(weights, pure):
        return _rounded(paper)
    return _rounded(min(paper, supremum(_log_moment(weights, steps, pure), pure) * UP))


def renyi_curve(weights: LogWeights, steps: int, orders: Floats) -> Floats:
    """Return upper bounds of D_α(Z ‖ Z + steps), the same in both directions, at the orders α > 1.

    Of Laplace, generalized Gaussian and exponential polylogarithmic noise; raises TypeError on another family.
    """
    if isinstance(weights, LaplaceWeights):
        weights = GeneralizedGaussianWeights(p=Fraction(1), scale=weights.scale)
    if not isinstance(weights, Summed):
        raise TypeError(f"{type(weights).__name__}: no Rényi divergences are computed of this family")
    excess = np.asarray(orders, dtype=np.float64) - 1
    if not np.all(excess > 0):
        raise ValueError("orders: must be above 1")
    if not 0 <= steps <= MOST_STEPS:
        raise ValueError("steps: must be from 0 to 2⁶⁴")
    if not steps:
        return np.zeros_like(excess)
    pure = pure_above(weights, steps)
    if not is_summable(weights, pure):
        return np.full_like(excess, pure)
    return np.minimum(_log_moment(weights, steps, pure)(excess) / excess * UP, pure)


def _rounded(loss: float) -> float:
    """Return `loss` in DIGITS digits, rounded up: its last bits depend on the processor."""
    return float(up_text(Fraction(loss), DIGITS))


def is_summable(weights: Summed, pure: float) -> bool:
    """Return whether sums in doubles bound the loss, of a pure loss `pure`."""
    return _error(weights) <= LARGEST_ERROR and weights.scale <= WIDEST and LEAST_PURE <= pure <= MOST_PURE


def best_order(weights: Summed, steps: int, pure: float) -> float:
    """Return the ε = α − 1 at which the upper bound of D_α/α is about largest: where to look for a lower one."""
    orders = excess_order(np.arange(1, CHUNK * 4))
    orders = orders[: 1 + int(np.count_nonzero(orders * pure < LARGEST_EXPONENT))]
    return float(orders[np.argmax(_log_moment(weights, steps, pure)(orders) / (orders * (1 + orders)))])


def pure_above(weights: LogWeights, steps: int) -> float:
    """Return an upper bound of the pure loss: of w(0) − w(steps), where w is convex."""
    if isinstance(weights, CauchyWeights):
        return 2 * math.asinh(_distance(steps) / float(weights.scale) / 2) * WIDER
    if isinstance(weights, StableWeights):
        return float(envelope(weights.alpha)(np.array([_distance(steps) / float(weights.scale)]))[0]) * WIDER
    return float(-weights.fast(np.array([_distance(steps)]))[0]) * (1 + 2 * _error(weights))


def _distance(steps: int) -> float:
    return float(steps) if steps < EXACT else up_float(Fraction(steps))


@lru_cache(maxsize=64)
def _error(weights: LogWeights) -> float:
    return weights.fast_error


def _log_moment(weights: Summed, steps: int, pure: float) -> Callable[[Floats], Floats]:
    """Return ψ̄: upper bounds of ε·D_{1+ε} = ln(1 + Σ p·Ψ_ε(L)) at arrays of ε > 0, none above ε·`pure`."""
    nodes = stable_nodes(weights) if isinstance(weights, Stable) else nodes_of(weights)
    mass, ratios, rest = nodes.ratios(_distance(steps))
    mass, rest = mass * UP, rest * UP
    largest = max(pure, float(ratios.max())) if isinstance(weights, Stable) else pure
    spared = -np.expm1(-ratios)

    def psi(excess: Floats) -> Floats:
        small = np.minimum(excess, LARGEST_EXPONENT / largest)
        # (e^{εL} − 1)(1 − e^{−(1+ε)L}) = E·(E + 1 − e^{−L})/(1 + E), E = e^{εL} − 1
        grown = np.expm1(np.multiply.outer(small, ratios))
        sums = (grown * ((grown + spared) / (1 + grown))) @ mass + small * rest
        return np.where(excess <= small, np.minimum(np.log1p(sums), excess * pure), excess * pure)

    return psi


# The supremum of ψ(ε)/(ε(1 + ε)) over all orders α = 1 + ε > 1, from above (docs/tight.md, section 4).
#
# ψ(ε) = ε·D_{1+ε} is convex and 0 at 0. So between two orders it is below the chord of upper bounds there, and
# everywhere D_α/α ≤ P/α. Orders α = cosh²(j/FINENESS), j = 0, 1, 2, …, leave the same relative gap below their chords
# wherever ψ is a parabola ρ·ε(1 + ε): 1/FINENESS². Of all these intervals the largest bound is found by looking at
# long ones first.


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
