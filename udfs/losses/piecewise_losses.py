"""What is lost of noise whose log-weights are straight between knots: its divergences as sums of geometric sequences.

With p(x) = e^{w(|x|)}/S and q(x) = p(x − Δ), cut the integers at the knots of both. On every piece ln p and ln q are
straight, so that each term below is a geometric sequence of positive numbers, whose sum is known in closed form:

    e^{ε·D_{1+ε}} = Σ_x p(x)^{1+ε}·q(x)^{−ε}.

Nothing is cut off and nothing cancels: each piece is raised by what the rounding of doubles may take from it, and so
is the whole (docs/design.md, section 3).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from udfs.noise.piecewise import LAST, PiecewiseWeights
from udfs.numbers.arrays import Floats, Int64s, Mask

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
