"""What a study asks: which mechanisms stand beside each other, at which equal accuracy, on which microdata."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from pipeline.study.today import FactorNoise

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
