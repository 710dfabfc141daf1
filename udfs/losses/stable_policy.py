"""The policy function of symmetric α-stable noise, 1 < α < 2: P(u) = max_x ln[p(x − u)/p(x)], u = Δ/γ, from above.

Result: `Envelope` is a function V ≥ P that never falls, with V(0) = 0, a straight line between its nodes; V is within
10⁻³ of P relatively (tests: 2·10⁻⁴). With L = −ln(p/p(0)), which rises from 0, and y = x − u,

    P(u) = sup_{y ≥ 0} D(y),    D(y) = L(y + u) − L(y).

Certificate at a node u. [0, Y] is cut into intervals; on one of width h the function is no more than its chord and

    D(y) ≤ max(D at both ends) + h²/8·sup|D″|,    |D″| ≤ min(2·B₂, u·B₃),    B_j = sup |L^{(j)}| to the right,

as D″(y) = L″(y + u) − L″(y); L is taken with its error, at y + u rounded up. Intervals that cannot hold the maximum are
left, the others cut finer. From Y on, where p = C·x^{−1−α}·(1 + e), |e| ≤ s,
D(y) ≤ (1 + α)·ln(1 + u/Y) + ln((1 + s)/(1 − s)), and D(y) ≤ κ·ln(1 + u/Y) with κ = sup x·L′(x).

Between nodes: P is a supremum of functions of u whose second derivative is at least −B₂, so it lies below its chord
plus h²/8·B₂. Left of the first node u₀: P(u) ≤ u·sup L′, and sup L′ ≤ P(u₀)/u₀ + u₀²·B₃/24 (D at a midpoint). Right
of the last, U: P(u) ≤ P(U) + (1 + α)·ln(u/U) + ln((1 + s)/(1 − s)), s of U, since L(y + u) − L(y + U) is no more.
The rest of the proof: docs/mathematics.md, section 11.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from udfs.noise.stable_density import DEGREE, LEFT_OVER, START, Curve, curve, derivative_bound
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import log1p_above

NODES = ((-10, -3, 16), (-3, 0, 64), (0, 5, 128), (5, 20, 48))  # of each octave from 2^first to 2^last, so many
PIECES = 8  # of a panel: derivatives are bounded on each
COARSE, FINE = 4, 16  # intervals of a piece, and cuts of one that may hold the maximum
OF_MOVING = 2.0**-40  # relative error of a polynomial that is written about another point
ROUNDING = 1 + 2.0**-45  # of the few operations that follow logarithms
SMALLEST = 2.0**-1022  # a bound that underflows would be none


@dataclass(frozen=True, eq=False)
class Envelope:
    """V at its nodes; the last node starts the logarithm."""

    alpha: Fraction
    nodes: Floats
    values: Floats

    def at(self, u: Fraction) -> Fraction:
        """Return V(u), u ≥ 0, exactly between nodes, and beyond the last from above."""
        i = bisect_right(self.nodes, u)
        if i == len(self.nodes):
            return Fraction(self.values[-1]) + (1 + self.alpha) * log1p_above(u / Fraction(self.nodes[-1]) - 1)
        (left, right), (low, high) = (map(Fraction, pair[i - 1 : i + 1]) for pair in (self.nodes, self.values))
        return low + (high - low) * (u - left) / (right - left)

    def __call__(self, u: Floats) -> Floats:
        """Return V for an array of u ≥ 0, to some last bits."""
        result = np.interp(u, self.nodes, self.values)
        far = u > self.nodes[-1]
        if far.any():
            result[far] += (1 + float(self.alpha)) * np.log(u[far] / self.nodes[-1])
        return result


@lru_cache(maxsize=16)
def envelope(alpha: Fraction) -> Envelope:
    """Return V for an exponent: built in a fifth of a second, kept for the process."""
    shape = _curve_shape(alpha)
    u = np.concatenate([2.0 ** np.arange(a, b)[:, None] * (1 + np.arange(n) / n) for a, b, n in NODES], axis=None)
    u = np.append(u, 2.0 ** NODES[-1][1])
    at_node = shape.loss(u)
    between = np.diff(u) ** 2 / 8 * shape.bound(2, u[:-1])
    values = at_node + np.maximum(np.append(between, 0.0), np.append(0.0, between))
    steepest = at_node[0] / u[0] + u[0] ** 2 / 24 * shape.derivatives[2][0]
    values[0] = max(values[0], u[0] * max(steepest, shape.derivatives[1][0] * u[0] / 2))
    values[-1] += shape.of_share(float(u[-1]))
    values = np.maximum.accumulate(values * ROUNDING)
    return Envelope(alpha, np.append(0.0, u), np.append(0.0, values))


class CurveShape:
    """L of a curve, and bounds of its derivatives: of panel i and all that is to the right of it."""

    def __init__(self, of: Curve) -> None:
        self.curve = of
        pieces = of.edges[:-1, None] + np.diff(of.edges)[:, None] * np.arange(PIECES) / PIECES
        self.edges = np.concatenate([[0.0], pieces.ravel(), of.edges[-1:]])
        ratios = np.array([near_ratios(of), *(r for i in range(len(of.edges) - 1) for r in _panel_ratios(of, i))])
        self.far = _far_ratios(of)
        beyond = self.far / of.far_from ** np.arange(1, 4)
        first, second, third = np.append(ratios, [beyond], axis=0).T
        # L″ = (p′/p)² − p″/p,   L‴ = 3p′p″/p² − p‴/p − 2(p′/p)³
        bounds = first, first**2 + second, third + 3 * first * second + 2 * first**3
        self.derivatives = tuple(np.maximum.accumulate(b[::-1])[::-1] * ROUNDING for b in bounds)

    @property
    def far_from(self) -> float:
        """Where the power law begins."""
        return self.curve.far_from

    def bound(self, order: int, x: Floats) -> Floats:
        """Return a bound of |L′|, |L″| or |L‴| (order 1, 2 or 3) from x on."""
        one, two, three = self.far
        beyond = (one, one**2 + two, three + 3 * one * two + 2 * one**3)[order - 1] * ROUNDING
        near = self.derivatives[order - 1][np.searchsorted(self.edges, x, side="right") - 1]
        far = beyond / np.maximum(x, self.curve.far_from) ** order
        result: Floats = np.where(x < self.curve.far_from, near, far)
        return result

    def of_share(self, x: float) -> float:
        """Return ln((1 + s)/(1 − s)), s the share of what is no power law from x on."""
        return 2 * math.atanh(self.curve.share(x))

    def fall(self, y: Floats) -> tuple[Floats, Floats]:
        """Return bounds of L."""
        result = -self.curve.log_ratio(y.ravel()).reshape(y.shape)
        error = self.curve.error + 2.0**-50  # of the products
        return result * (1 - error), result * (1 + error)

    def loss(self, u: Floats) -> Floats:
        """Return upper bounds of P at the nodes `u`, by the certificate above."""
        start = (self.edges[:-1, None] + np.diff(self.edges)[:, None] * np.arange(COARSE) / COARSE).ravel()
        width = np.repeat(np.diff(self.edges) / COARSE, COARSE)
        bend = [np.repeat(b[:-1], COARSE) for b in self.derivatives[1:]]
        ends = np.append(start, self.edges[-1])
        low, high = self._rise(ends[None, :], u[:, None])
        least = low.max(axis=1)
        curved = np.minimum(2 * bend[0], u[:, None] * bend[1])
        most = np.maximum(high[:, :-1], high[:, 1:]) + width**2 / 8 * curved
        row, block = np.nonzero(most >= least[:, None])
        points = start[block][:, None] + width[block][:, None] * np.arange(FINE + 1) / FINE
        _, high = self._rise(points, u[row][:, None])
        most = high.max(axis=1) + (width[block] / FINE) ** 2 / 8 * curved[row, block]
        result = least.copy()
        np.maximum.at(result, row, most)
        most_of_all: Floats = np.maximum(result, self.beyond(self.far_from, u / self.far_from))
        return most_of_all

    def beyond(self, y: float, growth: Floats) -> Floats:
        """Return a bound of L(x + u) − L(x) for all x ≥ y ≥ far_from and u ≤ growth·x."""
        grown = np.log1p(growth)
        tail: Floats = np.minimum(self.far[0] * grown, (1 + self.curve.alpha) * grown + self.of_share(y)) * ROUNDING
        return tail

    def _rise(self, y: Floats, u: Floats) -> tuple[Floats, Floats]:
        """Return bounds of D(y); the upper one at a sum that is rounded up, as L rises."""
        (low, high), ahead = self.fall(y), y + u
        return self.fall(np.nextafter(ahead, 0))[0] - high, self.fall(np.nextafter(ahead, np.inf))[1] - low


class CauchyShape:
    """The same of α = 1: L = ln(1 + x²)."""

    far_from = 1.0
    turns = ((1.0,), (math.sqrt(3),), (math.sqrt(2) - 1, math.sqrt(2) + 1))  # where derivatives turn, but for 0

    def bound(self, order: int, x: Floats) -> Floats:
        """Return the largest |L′|, |L″| or |L‴| from x on: that at x, or at a place where it turns."""
        result = _of_cauchy(order, x)
        for turn in self.turns[order - 1]:
            result = np.where(x <= turn, np.maximum(result, _of_cauchy(order, np.array(turn))), result)
        return result * ROUNDING

    def beyond(self, y: float, growth: Floats) -> Floats:
        """Return 2·ln(1 + growth), a bound of L(x + u) − L(x) for all x and u ≤ growth·x."""
        return 2 * np.log1p(growth) * ROUNDING


def _of_cauchy(order: int, x: Floats) -> Floats:
    """Return |L′| = 2x/(1 + x²), |L″| = 2|1 − x²|/(1 + x²)² or |L‴| = 4x|x² − 3|/(1 + x²)³."""
    square, y = x * x, 1 + x * x  # y to a power would overflow before the quotient is small
    of_square = np.abs(square - (1, 1, 3)[order - 1]) / y + (ROUNDING - 1) / y
    factors = (2 * x, 2 * of_square, 4 * x / y * of_square)
    result: Floats = factors[order - 1] / y + SMALLEST
    return result


Shape = CauchyShape | CurveShape


def shape_of(alpha: Fraction) -> Shape:
    """Return bounds of L and its derivatives for an exponent."""
    return CauchyShape() if alpha == 1 else _curve_shape(alpha)


@lru_cache(maxsize=16)
def _curve_shape(alpha: Fraction) -> CurveShape:
    return CurveShape(curve(alpha))


def near_ratios(of: Curve) -> list[float]:
    """Return bounds of |p^{(j)}|/p, j = 1, 2, 3, on [0, START]: anywhere's derivatives over the least p."""
    least = math.exp(float(of.log_ratio(np.array([START]))[0]))
    return [derivative_bound(of.alpha, j, 0.0) / least * ROUNDING for j in (1, 2, 3)]


def _panel_ratios(of: Curve, i: int) -> list[list[float]]:
    """Return them on each of PIECES pieces of a panel: of its polynomial about the piece's middle, over the least p."""
    start, end, m = float(of.edges[i]), float(of.edges[i + 1]), DEGREE + 1
    half = (end - start) / 2 / PIECES
    result = []
    for piece in range(PIECES):
        about = (2 * piece + 1) / PIECES - 1
        sizes = np.abs(_moved(of.panels[::-1, i], about)) + OF_MOVING * _moved(np.abs(of.panels[::-1, i]), abs(about))
        least = math.exp(float(of.log_ratio(np.array([start + 2 * half * (piece + 1)]))[0]))
        ratios = []
        for j in (1, 2, 3):
            remainder = derivative_bound(of.alpha, m, start) * (end - start) ** (m - j) / math.factorial(m - j)
            falling = np.array([math.perm(n, j) for n in range(m)])
            ratios.append((float(sizes @ falling) / half**j + remainder) / least * ROUNDING)
        result.append(ratios)
    return result


def _moved(b: Floats, about: float) -> Floats:
    """Return the coefficients of Σ b_n·(about + t/PIECES)^n in t, from the lowest power up."""
    m = len(b)
    moved = [sum(b[n] * math.comb(n, k) * about ** (n - k) for n in range(k, m)) / PIECES**k for k in range(m)]
    return np.array(moved)


def _far_ratios(of: Curve) -> Floats:
    """Return bounds of x^j·|p^{(j)}|/p from far_from on, of the far series term by term."""
    a, x = of.alpha, of.far_from
    k = np.arange(1, len(of.far) + 2)
    sizes = np.append(1.0, np.abs(of.far[::-1])) * x ** (-a * (k - 1.0))
    result = []
    for j in (1, 2, 3):
        # the j-th derivative of x^{−αk−1}
        factors = np.prod([a * k + i for i in range(1, j + 1)], axis=0)
        result.append((float(sizes @ factors) + far_left_over(of, j)) / (1 - of.share(x)) * ROUNDING)
    return np.array(result)


def far_left_over(of: Curve, j: int) -> float:
    """Return a bound of x^j·|R^{(j)}| over the first term of the far series, R what it leaves.

    It grows by the same factor as a term, and by 1/sin(θ)^j ≤ 2√2.
    """
    return LEFT_OVER * 3 * math.prod(of.alpha * (len(of.far) + 2) + i for i in range(1, j + 1))


# How steep and bent M = ln p is at most, p the symmetric α-stable density: near the truth (docs/tight.md, section 9).
#
# Each panel of the curve is cut into PIECES. About the middle m of one, of half-width h, the curve's polynomial gives p
# and its derivatives there, and over the least p bounds c_j of |p^{(j)}|/p in all of it:
#
#     |M‴| ≤ |M‴(m)| + h·(c₄ + 4c₁c₃ + 3c₂² + 12c₁²c₂ + 6c₁⁴),    |M″| ≤ |M″(m)| + h·sup|M‴|,    |M′| likewise,
#
# where what cancels in M′, M″ and M‴ is lost over the width h alone. From far_from on p = C·x^{−1−α}·(1 + e), with e
# and its derivatives term by term.

FINE_PIECES = 32  # of a panel
ORDERS = np.arange(1, 5)


class StableBends:
    """Bounds of |M′|, |M″| and |M‴| from x on, and of how far M falls where it is nearly a power law."""

    def __init__(self, shape: CurveShape) -> None:
        self.shape, of = shape, shape.curve
        inner = of.edges[:-1, None] + np.diff(of.edges)[:, None] * np.arange(FINE_PIECES) / FINE_PIECES
        self.edges = np.concatenate([[0.0], inner.ravel(), of.edges[-1:]])
        one, two, three = near_ratios(of)
        near = np.array([one, one**2 + two, three + 3 * one * two + 2 * one**3])
        self.far = _far_bends(shape)
        far = self.far / of.far_from ** np.arange(1, 4)
        bounds = np.column_stack([near, _of_panels(shape), far])
        self.bounds = np.maximum.accumulate(bounds[:, ::-1], axis=1)[:, ::-1] * ROUNDING

    @property
    def far_from(self) -> float:
        """Where the power law begins."""
        return self.shape.far_from

    def bound(self, order: int, x: Floats) -> Floats:
        """Return a bound of |M′|, |M″| or |M‴| (order 1, 2 or 3) from x on."""
        near = self.bounds[order - 1][np.searchsorted(self.edges, x, side="right") - 1]
        far = self.far[order - 1] * ROUNDING / np.maximum(x, self.far_from) ** order
        result: Floats = np.where(x < self.far_from, near, far)
        return result

    def beyond(self, y: float, growth: Floats) -> Floats:
        """Return a bound of M(x) − M(x + u) for all x ≥ y ≥ far_from and u ≤ growth·x."""
        return self.shape.beyond(y, growth)


Bends = CauchyShape | StableBends


@lru_cache(maxsize=16)
def bends_of(alpha: Fraction) -> Bends:
    """Return the bounds of an exponent."""
    shape = shape_of(alpha)
    return shape if isinstance(shape, CauchyShape) else StableBends(shape)


def _of_panels(shape: CurveShape) -> Floats:
    """Return bounds of |M′|, |M″| and |M‴| in every piece, a column each."""
    of, m = shape.curve, DEGREE + 1
    width = np.diff(of.edges)
    half = (width / 2 / FINE_PIECES)[:, None]
    b = of.panels[::-1].T
    at_middle, error = _moved_all(b, signed=True), OF_MOVING * _moved_all(np.abs(b), signed=False)
    sizes = np.abs(at_middle) + error
    ends = of.edges[:-1, None] + width[:, None] * np.arange(1, FINE_PIECES + 1) / FINE_PIECES
    least = np.exp(of.log_ratio(ends.ravel())).reshape(ends.shape)
    remainder = np.array([[derivative_bound(of.alpha, m, float(edge)) for edge in of.edges[:-1]]]).T
    c, r, e = [], [], []
    low = at_middle[..., 0] - error[..., 0] - remainder * width[:, None] ** m / math.factorial(m)
    for j in ORDERS:
        left = remainder * width[:, None] ** (m - j) / math.factorial(m - j)
        falling = np.array([math.perm(n, j) for n in range(m)])
        c.append(((sizes @ falling) / half**j + left) / least * ROUNDING)
        scale = math.factorial(j) / half**j
        r.append(at_middle[..., j] * scale / at_middle[..., 0])
        e.append((error[..., j] * scale + left + np.abs(r[-1]) * (at_middle[..., 0] - low)) / low * ROUNDING)
    (r1, r2, r3, _), (e1, e2, e3, _), (c1, c2, c3, c4) = r, e, c
    fourth = c4 + 4 * c1 * c3 + 3 * c2**2 + 12 * c1**2 * c2 + 6 * c1**4
    a1, a2 = np.abs(r1) + e1, np.abs(r2) + e2  # above what is meant
    third = np.abs(r3 - 3 * r1 * r2 + 2 * r1**3) + e3 + 3 * (a1 * e2 + a2 * e1) + 6 * a1**2 * e1 + half * fourth
    second = np.abs(r2 - r1**2) + e2 + 2 * a1 * e1 + half * third
    first = a1 + half * second
    return np.array([first.ravel(), second.ravel(), third.ravel()])


def _moved_all(b: Floats, signed: bool) -> Floats:
    """Return, of each panel and piece, the coefficients of Σ b_n·(middle + t/FINE_PIECES)^n in t, lowest first."""
    n, m = np.arange(b.shape[1]), b.shape[1]
    about = (2 * np.arange(FINE_PIECES) + 1) / FINE_PIECES - 1
    about = about if signed else np.abs(about)
    binomial = np.array([[math.comb(i, k) for i in range(m)] for k in range(m)], dtype=np.float64)
    powers = about[:, None, None] ** np.maximum(n[None, None, :] - n[None, :, None], 0)
    moves = binomial * powers / float(FINE_PIECES) ** n[None, :, None]
    result: Floats = np.einsum("pkn,in->ipk", moves, b)
    return result


def _far_bends(shape: CurveShape) -> Floats:
    """Return bounds of x·|M′|, x²·|M″| and x³·|M‴| from far_from on."""
    of = shape.curve
    a, x = of.alpha, of.far_from
    k = np.arange(2, len(of.far) + 2)
    sizes = np.abs(of.far[::-1]) * x ** (-a * (k - 1.0))
    # e^{(j)} term by term; the remainder of p over x^{−1−α} by the product rule, whose parts are 6 times it at most
    e = [
        float(sizes @ np.prod([a * (k - 1) + i for i in range(j)], axis=0)) + 6 * 2**j * far_left_over(of, j)
        for j in (1, 2, 3)
    ]
    e1, e2, e3 = (part / (1 - of.share(x)) for part in e)
    return np.array([1 + a + e1, 1 + a + e2 + e1**2, 2 * (1 + a) + e3 + 3 * e1 * e2 + 2 * e1**3])
