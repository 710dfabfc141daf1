"""Sums over lattice noise as sums over some hundred distances, bounded from above (docs/tight.md, section 3).

Any function T of the distance k = 0, 1, 2, … that is convex and falling between neighbouring nodes k_0 = 0 < k_1 < … is
there at most its chord, and summed over all k < k_N that makes

    Σ_k T(k)  ≤  Σ_i c_i·T(k_i),        c_i = (k_{i+1} − k_{i−1})/2,  c_0 = 1,  c_N = (k_N − k_{N−1} − 1)/2.

Beyond k_N, T is the noise's probability times something that falls: the mass of the tail times its first value.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from udfs.losses.stable_policy import Bends, bends_of
from udfs.noise.heavy_weights import CauchyWeights, GeneralizedGaussianWeights, PolylogWeights, StableWeights
from udfs.noise.piecewise import LAST, PiecewiseWeights
from udfs.noise.weights import LogWeights
from udfs.numbers.arrays import Floats, Int64s, Mask
from udfs.numbers.exact import context

Falling = GeneralizedGaussianWeights | PolylogWeights  # families whose w is convex, with `fall` and `bend`

FARTHEST = 2.0**64
DENSITY = 16  # nodes: all distances up to it, then steps of k/DENSITY
TAIL = 2.0**-20  # mass that may be left to the last node
SUMMED = 1 << 12  # terms of the normaliser that are added one by one
BITS = 96
CONCAVE_FROM = 2 - 2.0**-30  # a hair below 2, so that last bits do not decide of log-ratios that are 2 exactly
CONCAVITY = math.exp(-3)  # −Ψ_ε″ ≤ ε·e^{−L}·(L − 2) ≤ ε·e^{−3} for L > 2, and Ψ_ε is convex up to 2
SMALLEST = 2.0**-1000  # masses are raised to it: nothing underflows
UP = 1 + 2.0**-26  # far above the rounding of the bends, and of the tail's mass and the normaliser as doubles


def _grid() -> Floats:
    nodes = [0.0]
    while nodes[-1] < FARTHEST:
        nodes.append(min(FARTHEST, nodes[-1] + max(1.0, nodes[-1] // DENSITY)))
    return np.array(nodes)


GRID = _grid()


@dataclass(frozen=True, eq=False)
class Nodes:
    """Distances k_i and upper bounds of probabilities c_i·p(k_i) in their place, the tail's with the last.

    `chord` is (k_{i+1} − k_i)²/8, what of a bend a block rises above its chord, and `allowance` what Ψ_ε/ε may, of a
    log-ratio that is linear there and falls at most twice as far as w: both 0 where nothing lies between.
    """

    weights: Falling
    k: Floats
    mass: Floats
    chord: Floats
    allowance: Floats

    def ratios(self, steps: Floats) -> tuple[Floats, Floats, Floats]:
        """Return masses m, log-ratios ℓ ≥ 0 and a rest Γ that bound, for each shift, every sum below: a row each.

            Σ_{x < steps/2} p(x)·Ψ_ε(L(x))  ≤  Σ_i m_i·Ψ_ε(ℓ_i) + ε·Γ,        Ψ_ε(L) = (e^{εL} − 1)(1 − e^{−(1 + ε)L}),

        L(x) = ln p(x) − ln p(x − steps). Points x ≤ 0 come first, then those between 0 and steps/2. All three grow
        with `steps`.
        """
        bends = self.chord * self.weights.bend(self.k, steps[:, None]) * UP
        last = last_inside(self.k, steps)
        k = self.k[: last.max() + 1]
        outer = self.weights.fall(self.k, steps[:, None])
        inner = self.weights.fall(k, np.maximum(steps[:, None] - 2 * k, 0.0))
        everywhere = np.full_like(last, len(self.k) - 1)
        parts = self._part(outer, bends, everywhere), self._part(inner, bends[..., : len(k)], last, first=1)
        mass, ratios = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
        return mass, ratios, parts[0][2] + parts[1][2]

    def _part(self, ratios: Floats, bends: Floats, last: Int64s, first: int = 0) -> tuple[Floats, Floats, Floats]:
        """Return m, ℓ and Γ of the nodes from number `first`, which has nothing between it and the next, to `last`."""
        # in a block L ≤ ℓ, the chord of L + bend, and Ψ(ℓ) ≤ chord of Ψ + ε·allowance where ℓ exceeds 2
        size = ratios.shape[1]
        rises = np.where(ratios + bends > CONCAVE_FROM, self.allowance[:size], 0.0)
        mass = np.where(np.arange(size) <= last[:, None], self.mass[:size], 0.0)[:, first:]
        raised = np.where(mass > 0, (ratios + larger_of_both_sides(bends))[:, first:], 0.0)
        return mass, raised, np.einsum("ij,ij->i", mass, larger_of_both_sides(rises)[:, first:])


def last_inside(k: Floats, steps: Floats) -> Int64s:
    """Return, for each shift, the number of the first node from steps/2 on, where Ψ is 0; or of the last node."""
    last: Int64s = np.minimum(1 + np.searchsorted(2 * k[1:], steps), len(k) - 1)
    return last


def larger_of_both_sides(blocks: Floats) -> Floats:
    """Return the larger of each node's two blocks, of nodes in the last dimension."""
    larger = blocks.copy()
    np.maximum(blocks[..., 1:], blocks[..., :-1], out=larger[..., 1:])
    return larger


@lru_cache(maxsize=64)
def nodes_of(weights: Falling) -> Nodes:
    """Return the nodes of a family: they reach as far as all but a millionth of the mass, at most to 2⁶⁴."""
    length = np.diff(GRID)
    density = np.exp(weights.fast(GRID))
    parts = np.append(length, 0.0) * density
    beyond = np.cumsum(parts[::-1])[::-1]
    end = min(len(GRID) - 1, int(np.count_nonzero(beyond > TAIL * beyond[0])))
    k, length = GRID[: end + 1], length[:end]
    counts = (np.append(length, -1.0) + np.append(1.0, length)) / 2
    ctx = context(BITS)
    tail = float(weights.tail(int(k[-1]), ctx)[1]) * UP + SMALLEST
    mass = counts * np.maximum(density[: end + 1], SMALLEST)
    mass[-1] += tail
    falls = 2 * weights.fall(k[:-1], length)
    between = length > 1
    return Nodes(
        weights=weights,
        k=k,
        mass=mass / normaliser(weights),
        chord=np.append(np.where(between, length * length / 8, 0.0), 0.0),
        allowance=np.append(np.where(between, falls * falls * (CONCAVITY / 8), 0.0), 0.0),
    )


@lru_cache(maxsize=256)
def normaliser_bounds(weights: LogWeights) -> tuple[float, float]:
    """Return bounds of Σ exp(w(|k|)) over all integers k, but for the rounding of exp(w)."""
    near = math.fsum(np.exp(weights.fast(np.arange(1.0, SUMMED))))
    low, high = (1 + 2 * (near + float(end)) for end in weights.tail(SUMMED, context(BITS)))
    return low / UP, high * UP


def normaliser(weights: LogWeights) -> float:
    """Return the lower one."""
    return normaliser_bounds(weights)[0]


# Sums over symmetric stable noise as sums over some hundred distances, from above (docs/tight.md, section 9).
#
# The weights fall but are not convex, and log-ratios rise before they fall. So between two distances both are bounded
# by chords raised by their bends, from certified bounds of derivatives (udfs.losses.stable_policy):
#
#     ln p ≤ chord + h²/8·B₂,        L ≤ chord + h²/8·min(2·B₂, u·B₃),        h = n/s, u = shift/s,
#
# n being the steps between. The exponential of the one chord lies below the chord of its ends, Ψ_ε of the other below
# that of its ends but for an allowance, and what is summed is the product of two straight lines, exactly.

Stable = CauchyWeights | StableWeights
BEND = 2.0**-12  # of ln p and of its slope between two nodes, in the middle; it grows with the distance
MOST = 2.0**-7  # where little mass is left


@dataclass(frozen=True, eq=False)
class StableNodes:
    """Distances k_i with log-weights w; upper bounds of what Ψ at both ends of each block counts; what bends there.

    `near` and `far` are for the two ends of the block from k_i to k_{i+1}; `tail` is the mass from the last distance
    on. `second` and `third` are h²/8 times bounds of |(ln p)″| and |(ln p)‴|; `allowance` is what Ψ_ε/ε may exceed its
    chord by.
    """

    weights: Stable
    bends: Bends
    k: Floats
    w: Floats
    near: Floats
    far: Floats
    tail: float
    second: Floats
    third: Floats
    allowance: Floats

    def ratios(self, steps: Floats) -> tuple[Floats, Floats, Floats]:
        """Return masses m, log-ratios ℓ ≥ 0 and a rest Γ as `Nodes.ratios` does; all grow with `steps`."""
        u = steps[:, None] / float(self.weights.scale)
        bends = np.minimum(2 * self.second, u * self.third) * UP
        last = last_inside(self.k, steps)
        k, everywhere = self.k[: last.max() + 1], np.full_like(last, len(self.k) - 1)
        outer, inner = np.repeat(steps[:, None], len(self.k), axis=1), np.maximum(steps[:, None] - 2 * k, 0.0)
        parts = self._part(outer, bends, everywhere), self._part(inner, bends[:, : len(k) - 1], last, first=1)
        mass, ratios = (np.concatenate([part[i] for part in parts], axis=1) for i in (0, 1))
        return mass, ratios, parts[0][2] + parts[1][2]

    def _part(self, moved: Floats, bends: Floats, last: Int64s, first: int = 0) -> tuple[Floats, Floats, Floats]:
        """Return m, ℓ and Γ of the nodes from number `first` to `last`, from which the totals lie `moved` farther."""
        size = moved.shape[1]
        fall, error = falls(self.weights, self.k[:size], self.w[:size], moved)
        ratios = fall + error
        tail = last == len(self.k) - 1
        if tail.any():  # from there on a bound of L that falls
            growth = moved[tail, -1] / self.k[-1]
            ratios[tail, -1] = self.bends.beyond(float(self.k[-1]) / float(self.weights.scale), growth) * UP
        blocks, mass = np.arange(size - 1) < last[:, None], np.zeros_like(ratios)
        raised = np.zeros_like(ratios)
        raised[:, :-1] = bends * blocks
        ratios += larger_of_both_sides(raised)
        near, far = self.near[: size - 1] * blocks, self.far[: size - 1] * blocks
        mass[:, :-1] += near
        mass[:, 1:] += far
        mass[tail, -1] += self.tail
        concave = np.maximum(ratios[:, :-1], ratios[:, 1:]) > CONCAVE_FROM
        rest = np.einsum("ij,ij->i", self.allowance[: size - 1] * concave, near + far)
        return mass[:, first:], np.where(mass > 0, ratios, 0.0)[:, first:], rest


def falls(weights: Stable, k: Floats, w: Floats, moved: Floats) -> tuple[Floats, Floats]:
    """Return w(k) − w(k + moved), `w` being w(k), and how far off it may be: last bits of w, or for α = 1 of it."""
    if isinstance(weights, CauchyWeights):
        x, u = k / float(weights.scale), moved / float(weights.scale)
        fall = np.log1p(u * ((2 * x + u) / (1 + x * x)))
        return fall, fall * (UP - 1)
    ahead = weights.fast((k + moved).ravel()).reshape(moved.shape)
    fall = np.where(moved > 0, np.maximum(w - ahead, 0.0), 0.0)
    return fall, np.where(moved > 0, -3 * weights.fast_error * ahead, 0.0)


def alpha_of(weights: Stable) -> Fraction:
    """Return the exponent of the noise."""
    return Fraction(1) if isinstance(weights, CauchyWeights) else weights.alpha


@lru_cache(maxsize=64)
def stable_nodes(weights: Stable) -> StableNodes:
    """Return the nodes: so near each other that ln p bends by BEND between two, and more where little mass is left."""
    scale, bends = float(weights.scale), bends_of(alpha_of(weights))
    k, density = [0.0, 1.0], 1.0
    while k[-1] < FARTHEST and not (k[-1] >= bends.far_from * scale and k[-1] / scale * density <= TAIL):
        x = k[-1] / scale
        bend = min(BEND * (1 + x), MOST)
        width = np.sqrt(8 * bend / max(bends.bound(order, np.array([x]))[0] for order in (2, 3)))
        k.append(min(FARTHEST, k[-1] + max(1.0, np.floor(width * scale))))
        density = float(np.exp(weights.fast(np.array([k[-1]]))[0]))
    return _nodes(weights, bends, np.array(k))


def _nodes(weights: Stable, bends: Bends, k: Floats) -> StableNodes:
    n = np.diff(k)
    between = n > 1
    x, chord = k[:-1] / float(weights.scale), np.where(between, (n / float(weights.scale)) ** 2 / 8, 0.0) * UP
    first, second, third = (bends.bound(order, x) for order in (1, 2, 3))
    w = weights.fast(k)
    density = np.maximum(np.exp(w), SMALLEST) / normaliser(weights)
    raised = np.exp(chord * second) * UP
    left, right = density[:-1] * raised, density[1:] * raised
    # sums of (1 − t)², t(1 − t) and t² over t = 0, 1/n, …, (n − 1)/n
    squares, products, ahead = (n + 1) * (2 * n + 1) / (6 * n), (n * n - 1) / (6 * n), (n - 1) * (2 * n - 1) / (6 * n)
    tail = float(weights.tail(int(k[-1]), context(BITS))[1]) * UP + SMALLEST
    return StableNodes(
        weights=weights,
        bends=bends,
        k=k,
        w=w,
        near=left * squares + right * products,
        far=left * products + right * ahead,
        tail=tail / normaliser(weights),
        second=chord * second,
        third=chord * third,
        allowance=32 * chord * first**2 * (CONCAVITY / 8),
    )


# What is lost of noise whose log-weights are straight between knots: its divergences as sums of geometric sequences.
#
# With p(x) = e^{w(|x|)}/S and q(x) = p(x − Δ), cut the integers at the knots of both. On every piece ln p and ln q are
# straight, so that each term below is a geometric sequence of positive numbers, whose sum is known in closed form:
#
#     e^{ε·D_{1+ε}} = Σ_x p(x)^{1+ε}·q(x)^{−ε}.
#
# Nothing is cut off and nothing cancels: each piece is raised by what the rounding of doubles may take from it, and so
# is the whole (docs/design.md, section 3).

LARGEST_EXPONENT = 2.0**14  # of ε·P: beyond, all but ε·P itself is far from the supremum
COARSEST = 2.0**-10  # of a sum, relatively: what its rounding may be
ROUNDING = 2.0**-46  # of one operation, with room for all that follow each other in a term
OF_LOGS = 2.0**-49  # of the farther of two log-weights: far above the rounding of both in doubles
MOST_AT_ONCE, IN_CACHE = 1 << 20, 1 << 13  # numbers in an array: in memory, and in the processor's cache


@lru_cache(maxsize=1 << 14)
def pure_exactly(weights: PiecewiseWeights, steps: int) -> Fraction:
    """Return max over x of |ln p(x) − ln p(x − steps)|, exactly: a function that is straight between knots has its
    largest value at one. It is 0 at 0 and never falls.
    """
    knots = set(weights.steps) | {steps - k for k in weights.steps} | {k - steps for k in weights.steps}
    # by symmetry x ≤ steps/2, where ln p(x) is the larger one: x = −k, or 0 ≤ x ≤ steps/2
    points = {-k for k in knots if k >= 0} | {k for k in knots if 0 <= 2 * k <= steps} | {steps // 2}
    return max(weights.at(abs(x)) - weights.at(abs(x - steps)) for x in _likely(weights, list(points), steps))


def _likely(weights: PiecewiseWeights, points: list[int], steps: int) -> list[int]:
    """Return the points at which ln p(x) − ln p(x − steps) may be largest: those that doubles do not rule out."""
    if steps > LAST:
        return points
    x = np.array(points, dtype=np.float64)
    ahead = weights.fast(np.abs(x - steps))
    falls = weights.fast(np.abs(x)) - ahead
    near = falls >= np.max(falls) + 4 * OF_LOGS * np.min(ahead)
    return [points[i] for i in np.flatnonzero(near)]


def pure_of(weights: PiecewiseWeights, steps: Floats) -> Floats:
    """Return the same for an array of whole numbers of steps, in doubles, raised by what they lose of log-weights."""
    unique, where = np.unique(steps, return_inverse=True)
    knots = np.array(weights.steps, dtype=np.float64)
    result = np.empty_like(unique)
    size = max(1, MOST_AT_ONCE // (4 * len(knots)))
    for start in range(0, len(unique), size):
        shift = unique[start : start + size, None]
        near = np.minimum(knots, np.floor(shift / 2))
        far = np.minimum(np.maximum(shift - knots, 0.0), np.floor(shift / 2))
        before = np.maximum(knots - shift, 0.0)
        both = [(k, k + shift) for k in (np.broadcast_to(knots, before.shape), before)]
        both += [(k, shift - k) for k in (near, far)]
        falls = [weights.fast(k) - weights.fast(ahead) * (1 + OF_LOGS) for k, ahead in both]
        result[start : start + size] = np.where(shift[:, 0] > 0, np.max(falls, axis=(0, 2)), 0.0)
    return result[where].reshape(np.shape(steps))


@dataclass(frozen=True, eq=False)
class PiecewiseMoments:
    """ψ̄ of some shifts, a row each: upper bounds of ε·D_{1+ε}(Z ‖ Z + steps), none above ε·`pure`.

    A column is a piece, of `count` points; one without a point adds nothing. From its first to its last they are
    `span` steps, 0 where it is endless. `log` and `slope` are of p on it, at its first point, `fall` and `bend` those
    of ln p − ln q, and `sizes` those of the logarithms of p and of both, for what doubles lose.
    """

    count: Floats
    span: Floats
    log: Floats
    slope: Floats
    fall: Floats
    bend: Floats
    sizes: tuple[Floats, Floats]
    pure: Floats
    known: Mask

    @classmethod
    def of(cls, weights: PiecewiseWeights, steps: Sequence[int], pure: Floats) -> "PiecewiseMoments":
        """Return those of shifts, of these pure losses; beyond 2⁵² steps, where points are no doubles, ε·`pure`."""
        (p, slope_p), (q, slope_q), count = _pieces(weights, np.array([min(n, LAST) for n in steps], dtype=np.int64))
        span = np.where(np.isfinite(count), np.maximum(count - 1, 0.0), 0.0)
        of_p, of_q = (8.0 + np.abs(log) + np.abs(slope) * span for log, slope in ((p, slope_p), (q, slope_q)))
        log, known = p - weights.moments.log_normaliser, np.array([n <= LAST for n in steps])
        return cls(count, span, log, slope_p, p - q, slope_p - slope_q, (of_p, of_p + of_q), pure, known)

    def psi(self, rows: Int64s, excess: Floats) -> Floats:
        """Return ψ̄ of each of these rows at its ε > 0."""
        result: Floats = excess * self.pure[rows]
        summed = np.flatnonzero(self.known[rows] & (result <= LARGEST_EXPONENT))
        for some in np.array_split(summed, 1 + len(summed) * self.count.shape[1] // IN_CACHE):
            row, order = rows[some], excess[some, None]
            # of p·e^{ε(ln p − ln q)} on each piece: the slope, and the logarithm at the end where it is larger
            slope = self.slope[row] + order * self.bend[row]
            log = self.log[row] + order * self.fall[row] + np.maximum(slope, 0.0) * self.span[row]
            top = log.max(axis=-1)
            sums = np.exp(log - top[:, None]) * _geometric(-np.abs(slope), self.count[row])
            errors = (self.sizes[0][row] + order * self.sizes[1][row]) * ROUNDING
            values = top + np.log((sums * (1 + errors)).sum(axis=-1)) + (1 + np.abs(top)) * ROUNDING
            known = errors.max(axis=-1) < COARSEST
            result[some[known]] = np.minimum(values, result[some])[known]
        return result


def log_moment(weights: PiecewiseWeights, steps: int, pure: float) -> Callable[[Floats], Floats]:
    """Return ψ̄ of one shift: upper bounds of ε·D_{1+ε}(Z ‖ Z + steps) at arrays of ε > 0, none above ε·`pure`."""
    moments = PiecewiseMoments.of(weights, [steps], np.array([pure]))
    return lambda excess: moments.psi(np.zeros(len(excess), dtype=np.int64), excess)


def moment_below(weights: PiecewiseWeights, steps: int, pure: float, excess: float) -> float:
    """Return a lower bound of ψ at one ε: ψ̄ less twice all that it was raised by; 0 where ψ̄ is no sum."""
    if steps > LAST or excess * pure > LARGEST_EXPONENT:
        return 0.0
    above = float(log_moment(weights, steps, pure)(np.array([excess]))[0])
    farthest = float(-weights.at(weights.steps[-1] + steps))
    sizes = (1 + 2 * excess) * (8 + 2 * farthest)  # those of a sum's errors, and, with ln S, of its logarithm
    return max(0.0, above - 2 * (1 + 2 * sizes + weights.moments.log_normaliser) * ROUNDING)


def _geometric(slope: Floats, count: Floats) -> Floats:
    """Return Σ_{j<n} e^{slope·j}, slope ≤ 0: (1 − e^{n·slope})/(1 − e^{slope})."""
    with np.errstate(divide="ignore", invalid="ignore"):
        flat = np.abs(slope) * count < ROUNDING  # then every term is 1, but for what ROUNDING covers
        result: Floats = np.where(flat, count, np.expm1(slope * count) / np.expm1(slope))
    return result


Line = tuple[Floats, Floats]  # w(|x − shift|) on pieces: the value at the first point, and the change a step


def _pieces(weights: PiecewiseWeights, shifts: Int64s) -> tuple[Line, Line, Floats]:
    """Return ln p + ln S and ln q + ln S on pieces of the integers where both are straight, and the pieces' lengths.

    A row is a shift. The first and the last piece are endless; the first runs leftwards, so that it too begins at a
    point.
    """
    knots, moved = np.array(weights.steps, dtype=np.int64), shifts[:, None]
    of_p = np.concatenate([knots, -knots[1:]])
    of_q = of_p + moved
    cuts = np.sort(np.concatenate([np.broadcast_to(of_p, of_q.shape), of_q], axis=1), axis=1)
    starts = np.concatenate([cuts[:, :1] - 1, cuts], axis=1)
    rightwards = np.append(False, np.ones(cuts.shape[1], dtype=np.bool_))
    count = np.pad(np.diff(cuts).astype(np.float64), ((0, 0), (1, 1)), constant_values=np.inf)

    def line(x: Int64s) -> Line:
        outward = (x >= 0) == rightwards  # the distance grows along the piece; else it falls from |x| to |x| − 1
        distance = np.abs(x)
        slope = weights.slope(np.where(outward, distance, distance - 1).astype(np.float64))
        return weights.fast(distance.astype(np.float64)), np.where(outward, slope, -slope)

    return line(starts), line(starts - moved), count
