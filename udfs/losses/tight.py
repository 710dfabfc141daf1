"""The PRzCDP loss of additive noise itself, ρ(Δ) = sup over α > 1 of D_α(Z ‖ Z + Δ)/α, from above (docs/tight.md).

The paper's tanh(P/2)·P is the worst of all mechanisms with pure loss P; this is that of the lattice noise Z that is
sampled. Shifts are in lattice steps, so ρ depends on how fine the lattice is.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from fractions import Fraction
from functools import lru_cache

import numpy as np

from udfs.losses.nodes import UP, Falling, PiecewiseMoments, Stable, nodes_of, pure_exactly, stable_nodes
from udfs.losses.stable_policy import envelope
from udfs.noise.heavy_weights import CauchyWeights, GeneralizedGaussianWeights, PolylogWeights, StableWeights
from udfs.noise.piecewise import PiecewiseWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.arrays import Floats, Int64s, Mask
from udfs.numbers.exact import laplace_zcdp_above, up_float

Summed = GeneralizedGaussianWeights | PolylogWeights | CauchyWeights | StableWeights | PiecewiseWeights
MOST_STEPS = 2**64
AT_ONCE = 320  # shifts
IN_CACHE, POWERS_IN_CACHE = 24, 16  # sums, and series, whose terms stay in the processor's cache
REACH, TERMS = 8.0, 44  # of the series in ε·L: how far, and how many terms
BEYOND = 1.05  # 1 + r + r² + …, r = REACH²/(TERMS·(TERMS − 1)), is less
WIDEST = 2**1000  # scales beyond are no doubles
EXACT = 2**53
DIGITS = Context(prec=7, rounding=ROUND_CEILING)  # of a stated loss
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
    return tight_losses(weights, [steps])[0]


def tight_losses(weights: Summed, steps: Sequence[int]) -> list[float]:
    """Return `tight_loss` at shifts of 1 to 2⁶⁴ steps: many at once take a fraction of the time."""
    pure = _pure_above(weights, steps)
    losses = np.tanh(pure / 2) * pure * WIDER
    known = np.flatnonzero(is_summable(weights, pure)).tolist()
    for part in (known[i : i + AT_ONCE] for i in range(0, len(known), AT_ONCE)):
        moments = _moments(weights, [steps[i] for i in part], pure[part])
        losses[part] = np.minimum(losses[part], supremum(_on_grid(moments), pure[part]) * UP)
    # last bits depend on the processor
    return [float(DIGITS.create_decimal_from_float(loss)) for loss in losses.tolist()]


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


def is_summable(weights: Summed, pure: Floats | float) -> Mask:
    """Return whether sums in doubles bound the losses, of these pure losses."""
    known = weights.fast_error <= LARGEST_ERROR and weights.scale <= WIDEST
    return known & (np.asarray(pure) >= LEAST_PURE) & (np.asarray(pure) <= MOST_PURE)


def best_order(weights: Summed, steps: int, pure: float) -> float:
    """Return the ε = α − 1 at which the upper bound of D_α/α is about largest: where to look for a lower one."""
    orders = excess_order(np.arange(1, SOUGHT))
    orders = orders[: 1 + int(np.count_nonzero(orders * pure < LARGEST_EXPONENT))]
    return float(orders[np.argmax(_log_moment(weights, steps, pure)(orders) / (orders * (1 + orders)))])


def pure_above(weights: LogWeights, steps: int) -> float:
    """Return an upper bound of the pure loss: of w(0) − w(steps), where w is convex."""
    return float(_pure_above(weights, [steps])[0])


def _pure_above(weights: LogWeights, steps: Sequence[int]) -> Floats:
    if isinstance(weights, PiecewiseWeights):
        return np.array([up_float(pure_exactly(weights, n)) for n in steps])
    distances = np.array([_distance(n) for n in steps])
    if isinstance(weights, CauchyWeights):
        scale = float(weights.scale)
        return np.array([2 * math.asinh(d / scale / 2) for d in distances.tolist()]) * WIDER
    if isinstance(weights, StableWeights):
        return envelope(weights.alpha)(distances / float(weights.scale)) * WIDER
    return -weights.fast(distances) * (1 + 2 * weights.fast_error)


def _distance(steps: int) -> float:
    return float(steps) if steps < EXACT else up_float(Fraction(steps))


@dataclass(frozen=True, eq=False)
class LogMoments:
    """ψ̄ of some shifts, a row each: upper bounds of ε·D_{1+ε} = ln(1 + Σ p·Ψ_ε(L)), none above ε·`pure`."""

    mass: Floats
    ratios: Floats
    spared: Floats
    rest: Floats
    pure: Floats
    largest: Floats

    @classmethod
    def of(cls, weights: Falling | Stable, steps: Sequence[int], pure: Floats) -> "LogMoments":
        """Return those of shifts, of these pure losses."""
        nodes = stable_nodes(weights) if isinstance(weights, Stable) else nodes_of(weights)
        mass, ratios, rest = nodes.ratios(np.array([_distance(n) for n in steps]))
        largest = np.maximum(pure, ratios.max(axis=1)) if isinstance(weights, Stable) else pure
        return cls(mass * UP, ratios, -np.expm1(-ratios), rest * UP, pure, largest)

    def series(self) -> Floats:
        """Return ψ̄ at the places 0, 1, … of the grid of orders with ε·L ≤ REACH, L the largest log-ratio, in one pass.

            Σ m·Ψ_ε(ℓ) = Σ_{n ≥ 1} M_n·(ε·L)^n/n!,    M_n = Σ m·(ℓ/L)^n·(1 + (−1)^n·e^{−ℓ}),

        where all terms are ≥ 0. M_{n+2} ≤ M_n, so the last two, raised by BEYOND, stand for all that follow them.
        """
        top = float(self.ratios.max())
        orders = excess_order(np.arange(1 + int(FINENESS * math.asinh(math.sqrt(REACH / top)))))
        t = self.ratios / top
        fourths = (square := t * t) * square
        first = np.stack([self.mass * (2 - self.spared), self.mass * self.spared * t], axis=1)  # of M_0 and M_1
        columns = np.concatenate([first, first * square[:, None]], axis=1).swapaxes(1, 2)
        moments, powers = np.empty((len(t), TERMS // 4, 4)), np.ones((POWERS_IN_CACHE, TERMS // 4, t.shape[1]))
        for some in (slice(i, i + len(powers)) for i in range(0, len(t), len(powers))):
            power = powers[: len(fourths[some])]
            for n in range(1, TERMS // 4):
                np.multiply(power[:, n - 1], fourths[some], out=power[:, n])
            np.matmul(power, columns[some], out=moments[some])
        terms: Floats = np.multiply.accumulate(orders * top / np.arange(1.0, TERMS)[:, None])
        terms[-2:] *= BEYOND
        sums = moments.reshape(len(t), -1)[:, 1:] @ terms + np.multiply.outer(self.rest, orders)
        return np.minimum(np.log1p(sums), np.multiply.outer(self.pure, orders))

    def psi(self, rows: Int64s, excess: Floats) -> Floats:
        """Return ψ̄ of each of these rows at its ε > 0."""
        result: Floats = excess * self.pure[rows]
        summed = np.flatnonzero(excess * self.largest[rows] <= LARGEST_EXPONENT)
        for some in np.array_split(summed, 1 + len(summed) // IN_CACHE):
            # (e^{εL} − 1)(1 − e^{−(1+ε)L}) = E·(E + 1 − e^{−L})/(1 + E), E = e^{εL} − 1
            row, order = rows[some], excess[some]
            grown = np.expm1(order[:, None] * self.ratios[row])
            terms = grown + self.spared[row]
            terms /= 1 + grown
            terms *= grown
            sums = np.einsum("ij,ij->i", terms, self.mass[row]) + order * self.rest[row]
            result[some] = np.minimum(np.log1p(sums), result[some])
        return result


def _moments(weights: Summed, steps: Sequence[int], pure: Floats) -> LogMoments | PiecewiseMoments:
    if isinstance(weights, PiecewiseWeights):
        return PiecewiseMoments.of(weights, steps, pure)
    return LogMoments.of(weights, steps, pure)


def _on_grid(moments: LogMoments | PiecewiseMoments) -> Callable[[Int64s, Int64s], Floats]:
    """Return ψ̄ of rows at places on the grid of orders, from the series as far as it reaches."""
    series = moments.series() if isinstance(moments, LogMoments) else np.zeros((len(moments.pure), 0))

    def psi(rows: Int64s, places: Int64s) -> Floats:
        near, far = (np.flatnonzero(part) for part in (places < series.shape[1], places >= series.shape[1]))
        values = np.empty(len(places))
        values[near] = series[rows[near], places[near]]
        values[far] = moments.psi(rows[far], excess_order(places[far]))
        return values

    return psi


def _log_moment(weights: Summed, steps: int, pure: float) -> Callable[[Floats], Floats]:
    moments = _moments(weights, [steps], np.array([pure]))

    def psi(excess: Floats) -> Floats:
        return moments.psi(np.zeros(excess.size, dtype=np.int64), excess.ravel()).reshape(excess.shape)

    return psi


# The supremum of ψ(ε)/(ε(1 + ε)) over all orders α = 1 + ε > 1, from above (docs/tight.md, section 4).
#
# ψ(ε) = ε·D_{1+ε} is convex and 0 at 0. So between two orders it is below the chord of upper bounds there, and
# everywhere D_α/α ≤ P/α. Orders α = cosh²(j/FINENESS), j = 0, 1, 2, …, leave the same relative gap below their chords
# wherever ψ is a parabola ρ·ε(1 + ε): 1/FINENESS². Of all these intervals the largest bound is found by looking at
# long ones first.

FINENESS = 48
STRIDE = 16  # fine intervals in one that is looked at first
CHUNK = 4 * STRIDE
SOUGHT = 384  # places among which the best order is sought
ALMOST = 1 - 2.0**-10  # intervals with a bound so near the best quotient are looked at
LARGEST_ORDER = 1e60


def excess_order(j: Int64s) -> Floats:
    """Return ε = α − 1 = sinh²(j/FINENESS)."""
    root: Floats = np.sinh(j / FINENESS)
    return root * root


def supremum(psi: Callable[[Int64s, Int64s], Floats], pure: Floats) -> Floats:
    """Return max over fine intervals of the bound of D_α/α there, in each row, `pure` being the max divergences.

    `psi` gives upper bounds of ψ at an array of rows and of places > 0 on the grid of orders, none above ε·`pure`.
    """
    best = np.zeros(len(pure))
    rows, lefts, values_left, values_right = _long_intervals(psi, pure, best)
    stride = STRIDE
    while True:
        bounds = interval_bounds(lefts, lefts + stride, values_left, values_right, pure[rows])
        if stride == 1:
            np.maximum.at(best, rows, bounds)
            return best
        kept = ~(bounds < best[rows] * ALMOST)
        rows, lefts, values_left, values_right = rows[kept], lefts[kept], values_left[kept], values_right[kept]
        stride //= 2
        middles = lefts + stride
        order = excess_order(middles)
        values = psi(rows, middles)
        np.maximum.at(best, rows, values / (order * (1 + order)))
        rows, lefts = np.concatenate([rows, rows]), np.concatenate([lefts, middles])
        values_left, values_right = np.concatenate([values_left, values]), np.concatenate([values, values_right])


def _long_intervals(
    psi: Callable[[Int64s, Int64s], Floats], pure: Floats, best: Floats
) -> tuple[Int64s, Int64s, Floats, Floats]:
    """Return rows, left ends and values at both ends of long intervals, up to where P/α decides; raise `best` D_α/α."""
    active, before, end = np.arange(len(pure)), np.zeros(len(pure)), 0
    parts: list[tuple[Int64s, Int64s, Floats, Floats]] = []
    while len(active):
        ends = np.arange(end + STRIDE, end + CHUNK + 1, STRIDE)
        order = excess_order(ends)
        rows = np.repeat(active, len(ends))
        values = psi(rows, np.tile(ends, len(active))).reshape(len(active), -1)
        best[active] = np.maximum(best[active], np.max(values / (order * (1 + order)), axis=1))
        left = np.column_stack([before[active], values[:, :-1]])
        parts.append((rows, np.tile(ends - STRIDE, len(active)), left.ravel(), values.ravel()))
        before[active] = values[:, -1]
        end += CHUNK
        active = active[~(pure[active] <= best[active] * (1 + order[-1]))]
        if len(active) and not order[-1] < LARGEST_ORDER:
            raise ArithmeticError("no order bounds the supremum")
    rows, lefts, lows, highs = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, lefts, lows, highs


def interval_bounds(lefts: Int64s, rights: Int64s, values_left: Floats, values_right: Floats, pure: Floats) -> Floats:
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
