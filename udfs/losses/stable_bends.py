"""How steep and bent M = ln p is at most, p the symmetric α-stable density: near the truth (docs/tight.md, section 9).

Each panel of the curve is cut into PIECES. About the middle m of one, of half-width h, the curve's polynomial gives p
and its derivatives there, and over the least p bounds c_j of |p^{(j)}|/p in all of it:

    |M‴| ≤ |M‴(m)| + h·(c₄ + 4c₁c₃ + 3c₂² + 12c₁²c₂ + 6c₁⁴),    |M″| ≤ |M″(m)| + h·sup|M‴|,    |M′| likewise,

where what cancels in M′, M″ and M‴ is lost over the width h alone. From far_from on p = C·x^{−1−α}·(1 + e), with e and
its derivatives term by term.
"""

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from udfs.losses.stable import OF_MOVING, ROUNDING, CauchyShape, CurveShape, far_left_over, near_ratios, shape_of
from udfs.noise.stable_density import DEGREE, derivative_bound
from udfs.numbers.arrays import Floats

PIECES = 32  # of a panel
ORDERS = np.arange(1, 5)


class StableBends:
    """Bounds of |M′|, |M″| and |M‴| from x on, and of how far M falls where it is nearly a power law."""

    def __init__(self, shape: CurveShape) -> None:
        self.shape, of = shape, shape.curve
        inner = of.edges[:-1, None] + np.diff(of.edges)[:, None] * np.arange(PIECES) / PIECES
        self.edges = np.concatenate([[0.0], inner.ravel(), of.edges[-1:]])
        one, two, three = near_ratios(of)
        near = np.array([one, one**2 + two, three + 3 * one * two + 2 * one**3])
        self.far = _far(shape)
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
    half = (width / 2 / PIECES)[:, None]
    b = of.panels[::-1].T
    at_middle, error = _moved(b, signed=True), OF_MOVING * _moved(np.abs(b), signed=False)
    sizes = np.abs(at_middle) + error
    ends = of.edges[:-1, None] + width[:, None] * np.arange(1, PIECES + 1) / PIECES
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


def _moved(b: Floats, signed: bool) -> Floats:
    """Return, of each panel and piece, the coefficients of Σ b_n·(middle + t/PIECES)^n in t, from the lowest up."""
    n, m = np.arange(b.shape[1]), b.shape[1]
    about = (2 * np.arange(PIECES) + 1) / PIECES - 1
    about = about if signed else np.abs(about)
    binomial = np.array([[math.comb(i, k) for i in range(m)] for k in range(m)], dtype=np.float64)
    powers = about[:, None, None] ** np.maximum(n[None, None, :] - n[None, :, None], 0)
    moves = binomial * powers / float(PIECES) ** n[None, :, None]
    result: Floats = np.einsum("pkn,in->ipk", moves, b)
    return result


def _far(shape: CurveShape) -> Floats:
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
