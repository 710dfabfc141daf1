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
from numpy.typing import NDArray

from udfs.noise.piecewise import LAST, PiecewiseWeights
from udfs.numbers.arrays import Floats

LARGEST_EXPONENT = 600.0  # e to it, times any count, is a double with room to spare
ROUNDING = 2.0**-46  # of one operation, with room for all that follow each other in a term
OF_LOGS = 2.0**-49  # of the farther of two log-weights: far above the rounding of both in doubles
MOST_AT_ONCE = 1 << 20  # numbers in an array


@lru_cache(maxsize=1 << 14)
def pure_exactly(weights: PiecewiseWeights, steps: int) -> Fraction:
    """Return max over x of |ln p(x) − ln p(x − steps)|, exactly: a function that is straight between knots has its
    largest value at one. It is 0 at 0 and never falls.
    """
    knots = set(weights.steps) | {steps - k for k in weights.steps} | {k - steps for k in weights.steps}
    # by symmetry x ≤ steps/2, where ln p(x) is the larger one: x = −k, or 0 ≤ x ≤ steps/2
    points = {-k for k in knots if k >= 0} | {k for k in knots if 0 <= 2 * k <= steps} | {steps // 2}
    return max(weights.at(abs(x)) - weights.at(abs(x - steps)) for x in points)


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


def log_moment(weights: PiecewiseWeights, steps: int, pure: float) -> Callable[[Floats], Floats]:
    """Return ψ̄: upper bounds of ε·D_{1+ε}(Z ‖ Z + steps) at arrays of ε > 0, none above ε·`pure`.

    Beyond 2⁵² steps, where points are no doubles, ε·`pure` itself.
    """
    if steps > LAST:
        return lambda excess: excess * pure
    p, q, count = _pieces(weights, steps)
    normaliser = weights.moments.log_normaliser
    with np.errstate(invalid="ignore"):
        whole = np.where(np.isfinite(count), count - 1, 0.0)  # steps from a piece's first point to its last
    sizes = [8.0 + np.abs(line.log) + np.abs(line.slope) * whole for line in (p, q)]
    fall, slope_of_fall = p.log - q.log, p.slope - q.slope

    def psi(excess: Floats) -> Floats:
        small = np.minimum(excess, LARGEST_EXPONENT / pure)
        # of p·e^{ε(ln p − ln q)} on each piece: the slope, and the logarithm at the end where it is larger
        slope = p.slope + np.multiply.outer(small, slope_of_fall)
        log = p.log - normaliser + np.multiply.outer(small, fall) + np.maximum(slope, 0.0) * whole
        sums = np.exp(log) * _geometric(-np.abs(slope), count)
        errors = sizes[0] + np.multiply.outer(small, sizes[0] + sizes[1])
        values = np.log((sums * (1 + errors * ROUNDING)).sum(axis=-1)) + ROUNDING
        return np.where(excess <= small, np.minimum(values, excess * pure), excess * pure)

    return psi


@dataclass(frozen=True)
class PiecewiseMoments:
    """ψ̄ of some shifts, a row each."""

    of_shift: tuple[Callable[[Floats], Floats], ...]

    @classmethod
    def of(cls, weights: PiecewiseWeights, steps: Sequence[int], pure: Floats) -> "PiecewiseMoments":
        """Return those of shifts, of these pure losses."""
        return cls(tuple(log_moment(weights, n, p) for n, p in zip(steps, pure.tolist(), strict=True)))

    def psi(self, rows: NDArray[np.int64], excess: Floats) -> Floats:
        """Return ψ̄ of each of these rows at its ε > 0."""
        result = np.empty_like(excess)
        for row in np.unique(rows):
            here = rows == row
            result[here] = self.of_shift[row](excess[here])
        return result


def moment_below(weights: PiecewiseWeights, steps: int, pure: float, excess: float) -> float:
    """Return a lower bound of ψ at one ε: ψ̄ less twice all that it was raised by; 0 where ψ̄ is no sum."""
    if steps > LAST or excess * pure > LARGEST_EXPONENT:
        return 0.0
    above = float(log_moment(weights, steps, pure)(np.array([excess]))[0])
    farthest = float(-weights.at(weights.steps[-1] + steps))
    return max(0.0, above - 2 * (1 + 2 * excess) * (8 + 2 * farthest) * ROUNDING - 2 * ROUNDING)


def _geometric(slope: Floats, count: Floats) -> Floats:
    """Return Σ_{j<n} e^{slope·j}, slope ≤ 0: (1 − e^{n·slope})/(1 − e^{slope})."""
    with np.errstate(divide="ignore", invalid="ignore"):
        flat = np.abs(slope) * count < ROUNDING  # then every term is 1, but for what ROUNDING covers
        result: Floats = np.where(flat, count, np.expm1(slope * count) / np.expm1(slope))
    return result


@dataclass(frozen=True, eq=False)
class _Line:
    """w(|x − shift|) on pieces: the value at the first point, and the change a step."""

    log: Floats
    slope: Floats


def _pieces(weights: PiecewiseWeights, steps: int) -> tuple[_Line, _Line, Floats]:
    """Return ln p + ln S and ln q + ln S on pieces of the integers where both are straight, and the pieces' lengths.

    The first and the last piece are endless; the first runs leftwards, so that it too begins at a point.
    """
    knots = np.array(weights.steps, dtype=np.int64)
    cuts = np.unique(np.concatenate([knots, -knots, knots + steps, steps - knots]))
    starts = np.append(cuts[0] - 1, cuts)
    rightwards = np.append(False, np.ones(len(cuts), dtype=np.bool_))
    count = np.concatenate([[np.inf], np.diff(cuts).astype(np.float64), [np.inf]])

    def line(x: NDArray[np.int64]) -> _Line:
        outward = (x >= 0) == rightwards  # the distance grows along the piece; else it falls from |x| to |x| − 1
        distance = np.abs(x)
        slope = weights.slope(np.where(outward, distance, distance - 1).astype(np.float64))
        return _Line(weights.fast(distance.astype(np.float64)), np.where(outward, slope, -slope))

    return line(starts), line(starts - steps), count
