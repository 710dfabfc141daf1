"""What a study compares: which mechanisms, at which equal accuracy, on which microdata, beside today's noise."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

PAPER = "paper"
LOW, HIGH = 0.02, 0.05  # relative changes from which a cell is flagged H, and J
FLAGS = ("G", "H", "J")
EqualBy = Literal["variance", "quartiles", "continuous"]


@dataclass(frozen=True, kw_only=True)
class FactorNoise:
    """Today's practice: multiplicative noise on each establishment before it is tabulated (docs/study.md).

    No guarantee: it is no mechanism, and no release uses it. A firm has a secret direction, and each factor a magnitude
    near but never at 0; with 1 < A < B ≤ 2 the factor δ has the density

        (B − δ)/(B − A)² on [A, B],        (B + δ − 2)/(B − A)² on [2 − B, 2 − A].

    So |δ − 1| = A − 1 + (B − A)·T, T with density 2(1 − t) on [0, 1]: E T = 1/3, E T² = 1/6. Its mean is 1. Whoever
    knows that a cell has one establishment learns its value to within a few per cent. Source: Evans, Zayatz, Slanta
    1998.

    A firm's establishments share one factor, or with `own_magnitudes` its direction alone. ValueError unless
    1 < A < B ≤ 2.
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

    def draw(self, random: np.random.Generator, firms: int) -> NDArray[np.float64]:
        """Return a factor of each firm, for all its establishments: P(T > t) = (1 − t)²."""
        distance = self.a - 1 + (self.b - self.a) * (1 - np.sqrt(random.random(firms)))
        return 1 + np.where(random.random(firms) < 0.5, -1.0, 1.0) * distance


@dataclass(frozen=True)
class Equal:
    """The variance that all mechanisms of a panel have at a true total, in the measure's unit squared."""

    variance: Fraction
    total: Fraction


@dataclass(frozen=True)
class Entry:
    """A mechanism without its noise scale, which equality decides, under one or several policies.

    `mechanism`: kind and parameters, as plans have them; a transformation's `noise` may be a mapping that names a
    heavy-tailed kind and its shape. `equal`: by variance, or, where there is none, by the quartiles of the noise;
    `continuous`: by the variance of the noise's density, which additive noise on whole numbers then has not.
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
    """A study of one table: the sum of `measure` by the levels `by`.

    `sizes`: influences at which losses are stated; `limits`: losses of which the share of records within is stated;
    `today`: the multiplicative noise that mechanisms are compared with.
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
