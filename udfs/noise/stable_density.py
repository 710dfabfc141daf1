"""ln(p(x)/p(0)) of the symmetric α-stable density in doubles, 1 < α < 2, with proven errors.

f = p/p(0) falls from 1. Three pieces, of x = distance/scale:

near, x < START:   ln(1 − x²·T(x²)), T the series of (1 − f)/x²;
panels:            ln of the polynomial of degree DEGREE that f meets at DEGREE + 1 points of its panel;
far, x ≥ far_from: ln C − (1 + α)·ln x + ln(1 + v·Q(v)), v = x^−α: TERMS terms of the far series.

On a panel of half-width δ that starts at a, polynomial and f differ by at most

    2·(δ/2)^m·2·M_m/m!,    m = DEGREE + 1,    |f^{(m)}| ≤ M_m = min(Γ((m + 1)/α), α·m!·(a·sin θ)^{−m−1})/Γ(1/α),

the remainder of interpolation at points that are Chebyshev's but for 10⁻⁶; panels are cut until it is below a part in
2^PRECISION of f. What doubles add is counted operation by operation. Proofs: docs/mathematics.md, section 11.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from udfs.noise.stable_series import far_coefficients, far_terms, log_ratio, near_coefficients
from udfs.numbers.arrays import Floats
from udfs.numbers.exact import context, real

ULP = 2.0**-53
OF_LIBRARY = 4 * ULP  # relative error of NumPy's logarithms and exponentials
OF_X = 3 * ULP  # relative error of x = k/s: of k, of 1/s, of their product
PRECISION = 57  # digits that cut series and interpolation leave
LEFT_OVER = 2.0**-PRECISION
BITS = 96  # of the values that are interpolated
FIXED = 200  # digits of the integers that make polynomials of them
START = 0.5
DEGREE = 16
TERMS = 16
SMALL = 0.25  # the far series is its first term but for this share


@dataclass(frozen=True, eq=False)
class Curve:
    """The three pieces. `error`: the largest relative error of `log_ratio` where x errs by OF_X relatively."""

    alpha: float
    near: Floats  # coefficients of T from the highest power down
    edges: Floats  # where panels start, and where the last ends
    panels: Floats  # a row a power, from the highest down; of the place in the panel, −1 to 1
    far: Floats  # coefficients of Q from the highest power down
    log_c: float
    error: float

    @property
    def far_from(self) -> float:
        """Where the far series takes over."""
        return float(self.edges[-1])

    def log_ratio(self, x: Floats) -> Floats:
        """Return ln f(x), x ≥ 0, an array of one dimension."""
        result = np.empty(len(x))
        near, far = x < START, x >= self.edges[-1]
        inside = ~(near | far)
        if near.any():
            y = x[near] ** 2
            result[near] = np.log1p(-y * horner(self.near, y))
        if inside.any():
            result[inside] = np.log(self._polynomials(x[inside]))
        if far.any():
            result[far] = self.log_ratio_far(np.log(x[far]))
        return result

    def _polynomials(self, x: Floats) -> Floats:
        panel = np.searchsorted(self.edges, x, side="right") - 1
        start, end = self.edges[panel], self.edges[panel + 1]
        index = (x - (end + start) / 2) / ((end - start) / 2)  # edges have few digits: only x − middle is rounded
        return horner(self.panels, index, panel)

    def log_ratio_far(self, log_x: Floats) -> Floats:
        """Return ln f(e^t) for t ≥ ln far_from; e^t may lie beyond the doubles."""
        v = np.exp(-self.alpha * log_x)
        result: Floats = self.log_c - (1 + self.alpha) * log_x + np.log1p(v * horner(self.far, v))
        return result

    def share(self, x: float) -> float:
        """Return a bound of |f(t)/(C·t^{−1−α}) − 1| for all t ≥ x ≥ far_from."""
        v = np.array([x**-self.alpha])
        return float((v * horner(np.abs(self.far), v))[0]) * (1 + 2.0**-40) + LEFT_OVER


def horner(coefficients: Floats, x: Floats, panel: NDArray[np.intp] | None = None) -> Floats:
    """Return the polynomial of coefficients from the highest power down: numbers, or rows to choose from."""
    total = np.full_like(x, coefficients[0]) if panel is None else coefficients[0][panel]
    for c in coefficients[1:]:
        total *= x
        total += c if panel is None else c[panel]
    return total


@lru_cache(maxsize=16)
def curve(alpha: Fraction) -> Curve:
    """Return the curve of an exponent: built in some hundredths of a second, kept for the process."""
    near, of_near = _near_piece(alpha)
    far_from, log_c, far, of_far = _far_piece(alpha)
    edges, panels, errors = [Fraction(START)], [], [of_near, of_far]
    while edges[-1] < far_from:
        end, coefficients, error = _widest(alpha, edges[-1], far_from)
        edges.append(end)
        panels.append(coefficients)
        errors.append(error)
    rows = np.ascontiguousarray(np.array(panels).T[::-1])
    return Curve(float(alpha), near, np.array([float(e) for e in edges]), rows, far, log_c, max(errors))


def _near_piece(alpha: Fraction) -> tuple[Floats, float]:
    """Return the coefficients of T, alternating a_n from n = 1 on, and the error."""
    y = START**2
    known = near_coefficients(alpha, 256, 64)
    terms = next(n for n in range(2, 64) if float(known[n]) * y ** (n - 1) < LEFT_OVER / 4 * float(known[1]))
    t = np.array([float(known[n]) * (-1) ** (n - 1) for n in range(1, terms)])
    powers = np.arange(len(t))
    sizes = np.abs(t) * y**powers
    inside = float(np.sum(t * y**powers))  # T falls: this is its least value
    of_t = LEFT_OVER + ULP * float(np.sum((2 * powers + 3) * sizes)) / inside
    # d = y·T(y) is concave in y, so an error of y is no larger in d; ln(1 − d) makes it 1/(1 − d) at most
    drop = y * inside
    return t[::-1].copy(), (2 * OF_X + 2 * ULP + of_t) / (1 - drop) * 1.01 + OF_LIBRARY


def _widest(alpha: Fraction, start: Fraction, limit: Fraction) -> tuple[Fraction, list[float], float]:
    """Return the end of the widest panel from `start` whose remainder is small, its polynomial, and the error."""
    width = Fraction(2) ** math.floor(math.log2(min(start, limit - start)))
    while True:
        least = math.exp(_value(alpha, start + width)[1])
        remainder = 4 * derivative_bound(float(alpha), DEGREE + 1, float(start)) * (float(width) / 4) ** (DEGREE + 1)
        if remainder / math.factorial(DEGREE + 1) <= LEFT_OVER / 2 * least:
            break
        width /= 2
    points = [_value(alpha, start + width * (1 + node) / 2)[0] for node in _nodes()]
    sums = (sum(c * v for c, v in zip(row, points, strict=True)) for row in _polynomials_of_nodes())
    b = [total / (1 << 2 * FIXED) for total in sums]  # correctly rounded
    of_place = OF_X * float(start + width) / float(width / 2) + 3 * ULP
    absolute = sum(abs(c) * ((2 * n + 3) * ULP + n * of_place) for n, c in enumerate(b))
    relative = (absolute / least + LEFT_OVER) * 1.01
    return start + width, b, relative / -_value(alpha, start)[1] + 2 * OF_LIBRARY


def _value(alpha: Fraction, x: Fraction) -> tuple[int, float]:
    ctx = context(BITS)
    log = log_ratio(alpha, x, ctx)
    return int(ctx.ldexp(ctx.exp(log), FIXED)), float(log)


def derivative_bound(alpha: float, m: int, x: float) -> float:
    """Return M_m: a bound of |f^{(m)}| from x ≥ 0 on."""
    anywhere = math.lgamma((m + 1) / alpha)
    log_reach = math.log(x * math.sin(math.pi / (2 * alpha))) if x > 0 else -math.inf
    beyond = math.log(alpha) + math.lgamma(m + 1) - (m + 1) * log_reach
    return math.exp(min(anywhere, beyond) - math.lgamma(1 / alpha)) * (1 + 2.0**-30)


def _far_piece(alpha: Fraction) -> tuple[Fraction, float, Floats, float]:
    """Return where the far series is good enough with TERMS terms, ln C, the coefficients of Q, and the error."""
    ctx, a = context(BITS), float(alpha)
    c = far_coefficients(alpha, BITS, TERMS + 1)
    far = np.array([float(c[k] / c[1]) for k in range(2, TERMS + 1)])
    k = np.arange(2, TERMS + 1)

    def sizes(x: Fraction) -> Floats:
        of_terms: Floats = np.abs(far) * float(x) ** (-a * (k - 1.0))
        return of_terms

    x = Fraction(1)
    while not ((far_terms(alpha, x, PRECISION) or TERMS + 2) <= TERMS + 1 and float(np.sum(sizes(x))) <= SMALL):
        x += Fraction(1, 4)
    log_c = float(ctx.log(c[1] * real(ctx, alpha) / ctx.gamma(real(ctx, 1 / alpha))))
    log_x = math.log(x)
    of_v = a * (OF_X + (OF_LIBRARY + 2 * ULP) * log_x) + OF_LIBRARY
    of_q = float(np.sum(sizes(x) * ((k - 1) * of_v + (2 * k + 2) * ULP)))
    constant = (1 + a) * OF_X + 3 * ULP * abs(log_c) + (of_q + LEFT_OVER) / (1 - SMALL) + OF_LIBRARY
    slope = (1 + a) * (OF_LIBRARY + 4 * ULP)  # of ln x
    least = (1 + a) * log_x - log_c - math.log1p(SMALL)
    # (constant + slope·ln x)/(…(1 + α)·ln x…) goes one way from here to infinity
    error = max((constant + slope * log_x) / least, slope / (1 + a)) * 1.01
    return x, log_c, far[::-1].copy(), error


@lru_cache(maxsize=1)
def _nodes() -> tuple[Fraction, ...]:
    """Return Chebyshev's points, to 20 digits: the product of the distances to them is below 2·2^−DEGREE."""
    angles = (math.pi * (2 * j + 1) / (2 * DEGREE + 2) for j in range(DEGREE + 1))
    return tuple(Fraction(round(math.cos(angle) * 2**20), 2**20) for angle in angles)


@lru_cache(maxsize=1)
def _polynomials_of_nodes() -> tuple[tuple[int, ...], ...]:
    """Return, for each power, its coefficients in the polynomials that are 1 at one node and 0 at the others."""
    columns = []
    for node in _nodes():
        polynomial, height = [Fraction(1)], Fraction(1)
        for other in _nodes():
            if other != node:
                shifted = [Fraction(0), *polynomial]
                polynomial = [s - other * c for s, c in zip(shifted, [*polynomial, Fraction(0)], strict=True)]
                height *= node - other
        columns.append([round(c / height * 2**FIXED) for c in polynomial])
    return tuple(zip(*columns, strict=True))
