"""Today's practice, for comparison: multiplicative noise on each establishment before it is tabulated (docs/study.md).

No guarantee: nothing here is a mechanism, and no release uses it. A firm has a secret direction, and each factor a
magnitude near but never at 0; with 1 < A < B ≤ 2 the factor δ has the density

    (B − δ)/(B − A)² on [A, B],        (B + δ − 2)/(B − A)² on [2 − B, 2 − A].

So |δ − 1| = A − 1 + (B − A)·T, T with density 2(1 − t) on [0, 1]: E T = 1/3, E T² = 1/6. Its mean is 1. A cell that is
known to have one establishment tells its value to within a few per cent. Source: Evans, Zayatz, Slanta 1998.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]
LOW, HIGH = 0.02, 0.05  # relative changes from which a cell is flagged H, and J
FLAGS = ("G", "H", "J")


@dataclass(frozen=True, kw_only=True)
class FactorNoise:
    """Factors between A and B away from 1; ValueError unless 1 < A < B ≤ 2.

    A firm's establishments share one factor, or with `own_magnitudes` its direction alone.
    """

    a: float
    b: float
    own_magnitudes: bool = False

    def __post_init__(self) -> None:
        if not 1 < self.a < self.b <= 2:
            raise ValueError("factors need 1 < a < b ≤ 2")

    @property
    def magnitude(self) -> float:
        """E|δ − 1| = A − 1 + (B − A)/3."""
        return self.a - 1 + (self.b - self.a) / 3

    @property
    def magnitude_variance(self) -> float:
        """Var|δ − 1| = (B − A)²/18."""
        return (self.b - self.a) ** 2 / 18

    @property
    def variance(self) -> float:
        """Var δ = (A − 1)² + 2(A − 1)(B − A)/3 + (B − A)²/6, which is E|δ − 1|²."""
        return self.magnitude**2 + self.magnitude_variance

    def draw(self, random: np.random.Generator, firm: Codes) -> Floats:
        """Return a factor for each establishment, whose firms are numbered from 0."""
        firms = int(firm.max(initial=-1)) + 1
        direction = random.choice((-1.0, 1.0), firms)[firm]
        drawn = random.random(len(firm)) if self.own_magnitudes else random.random(firms)[firm]
        # P(T > t) = (1 − t)²
        t = 1 - np.sqrt(drawn)
        factors: Floats = 1 + direction * (self.a - 1 + (self.b - self.a) * t)
        return factors

    def cell_variance(self, values: Floats, firm: Codes, cell: Codes, cells: int) -> Floats:
        """Return the variance of each cell's published total, of `cells` cells numbered from 0.

        With firm totals X in the cell and establishments x: Var δ·ΣX², or with own magnitudes in one direction

            (E|δ − 1|)²·ΣX² + Var|δ − 1|·Σx².
        """
        pairs, pair = np.unique(np.column_stack([cell, firm]), axis=0, return_inverse=True)
        totals = _sums(values, pair.ravel(), len(pairs))
        squares = _sums(totals**2, pairs[:, 0], cells)
        if not self.own_magnitudes:
            return np.multiply(squares, self.variance)
        return np.add(self.magnitude**2 * squares, self.magnitude_variance * _sums(values**2, cell, cells))


def totals_with_factors(values: Floats, factors: Floats, cell: Codes, cells: int) -> Floats:
    """Return each cell's total of values times factors."""
    return _sums(values * factors, cell, cells)


def flags(published: Floats, truth: Floats) -> NDArray[np.str_]:
    """Return for each cell G, H or J: its total was changed by under 2 %, by 2 to 5 %, or by 5 % or more.

    A cell whose total is 0 was not changed: G. Cells flagged J are published in some years, suppressed in others.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        change = np.where(published == truth, 0.0, np.abs(published - truth) / np.abs(truth))
    return np.array(FLAGS)[np.searchsorted((LOW, HIGH), change, side="right")]


def _sums(values: Floats, code: Codes, codes: int) -> Floats:
    return np.bincount(code, weights=values, minlength=codes).astype(np.float64)


# What a study asks: which mechanisms stand beside each other, at which equal accuracy, on which microdata.


PAPER = "paper"
EqualBy = Literal["variance", "quartiles"]


@dataclass(frozen=True)
class Equal:
    """The variance that all mechanisms of a panel have at a true total, in the measure's unit squared."""

    variance: Fraction
    total: Fraction


@dataclass(frozen=True)
class Entry:
    """A mechanism without its noise scale, which equality decides, under one or several policies.

    `mechanism`: kind and parameters, as plans have them; a transformation's `noise` may be a mapping that names a
    heavy-tailed kind and its shape. `equal`: by variance, or, where there is none, by the quartiles of the noise.
    """

    label: str
    mechanism: Mapping[str, Any]
    policies: tuple[str, ...] = (PAPER,)
    equal: EqualBy = "variance"


@dataclass(frozen=True)
class Panel:
    """Entries that are shown together, all equal in one sense; `errors`: also the errors of published totals."""

    name: str
    title: str
    equal: Equal
    entries: tuple[Entry, ...]
    errors: bool


@dataclass(frozen=True)
class Data:
    """Synthetic microdata: which kind, how many records, which seed."""

    synthetic: str
    records: int
    seed: int


@dataclass(frozen=True)
class Study:
    """A whole study; `sizes`: influences at which losses are told; `limits`: losses for which shares of records are.

    The table is the sum of `measure` by the levels `by`. `today`: the multiplicative noise it is compared with.
    """

    name: str
    title: str
    data: Data
    measure: str
    by: tuple[str, ...]
    sizes: tuple[int, ...]
    limits: tuple[Fraction, ...]
    panels: tuple[Panel, ...]
    today: FactorNoise | None
