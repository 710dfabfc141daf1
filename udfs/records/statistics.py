"""Statistics: what a query totals over the records of each cell.

A new statistic is one class here and one entry of STATISTICS. Plans, the scan, losses, the ledger, tables and reports
reach it through the abstract class alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from udfs.numbers.arrays import Int64s

RECORDS, OWNERS = "records", "owners"  # what a plan writes beside `count`


@dataclass(frozen=True)
class Statistic(ABC):
    """A total over the records of a cell: each record adds one number to it, its *addend*.

    Guarantee: present or absent, a record moves the total of its cell by exactly `influence` of its values, in the
    statistic's unit, and no other total. Influences must not fall where a value grows in magnitude: a limit at a
    reference record binds every smaller record.

    `measure`: the name of the measure that addends are made of; None where they are made of none.
    """

    measure: str | None = None

    kind: ClassVar[str]  # the plan's key for it
    reads_measure: ClassVar[bool] = True
    counts: ClassVar[bool] = False  # whether every record has the influence 1
    can_be_negative: ClassVar[bool] = False  # whether addends can be below 0 where values of the measure are
    counted: ClassVar[str] = RECORDS  # what is counted, where no measure is read
    most: ClassVar[int | None] = None  # the largest influence of a unit on one cell, whatever its records there

    def __post_init__(self) -> None:
        if self.reads_measure != (self.measure is not None):
            raise ValueError(f"{self.kind}: must have {'a' if self.reads_measure else 'no'} measure")

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that a record's influence depends on."""
        return () if self.measure is None else (self.measure,)

    @property
    def label(self) -> str:
        """The statistic in words, such as "sum of employment"."""
        return f"{self.kind.replace('_', ' ')} of {self.measure or self.counted}"

    @property
    def adds_up(self) -> bool:
        """Whether the total of several cells is the sum of theirs: not where one unit counts once in each of them."""
        return self.most is None

    @property
    def addend(self) -> str:
        """The name of the column of addends and their sums; only that of a plain sum is a measure's name."""
        return f"({self.kind} of {self.measure or self.counted})"

    def to_json(self) -> dict[str, str]:
        """Return the statistic as a plan writes it."""
        return {self.kind: self.measure or self.counted}

    @property
    @abstractmethod
    def formula(self) -> str:
        """A record's influence in terms of its measure."""

    @abstractmethod
    def addend_at(self, values: Mapping[str, Fraction]) -> Fraction:
        """Return the addend of a record with these values by measure; KeyError names a measure that is missing."""

    def influence(self, values: Mapping[str, Fraction]) -> Fraction:
        """Return the influence of a record with these values by measure; KeyError names a measure that is missing."""
        return abs(self.addend_at(values))

    @abstractmethod
    def factor(self, factor: Fraction) -> Fraction:
        """Return the factor ≥ 1 within which addends lie where values lie within `factor` of each other."""

    @abstractmethod
    def step(self, of_measure: Fraction) -> Fraction:
        """Return the number whose multiples the addends are, where values are multiples of `of_measure`."""

    @abstractmethod
    def addends(self, values: Mapping[str, Int64s], records: int) -> Int64s:
        """Return the addends of a batch of so many records in whole steps, of magnitude at most 2⁶³ − 1.

        `values`: the records' values by measure, in the measures' steps.
        """


@dataclass(frozen=True)
class Count(Statistic):
    """The number of records."""

    kind = "count"
    reads_measure = False
    counts = True
    addend = "(records)"  # of sums in preparation and staging, also of earlier versions
    formula = "1"

    def addend_at(self, values: Mapping[str, Fraction]) -> Fraction:
        return Fraction(1)

    def factor(self, factor: Fraction) -> Fraction:
        return Fraction(1)

    def step(self, of_measure: Fraction) -> Fraction:
        return Fraction(1)

    def addends(self, values: Mapping[str, Int64s], records: int) -> Int64s:
        return np.ones(records, dtype=np.int64)


@dataclass(frozen=True)
class CountOwners(Count):
    """The number of owners with a record: each at most once in a cell, whatever its records there.

    The unit is the owner: with all its records it moves each cell that it has one in by exactly 1. What a record adds
    depends on its owner's others (`by_owner` in sums.py), so sums of cells count an owner once for each.
    """

    counted = OWNERS
    most = 1
    addend = "(owners)"
    formula = "1 in each cell in which the owner has a record"


@dataclass(frozen=True)
class Sum(Statistic):
    """The sum of a measure."""

    kind = "sum"
    can_be_negative = True

    @property
    def addend(self) -> str:
        return str(self.measure)

    @property
    def formula(self) -> str:
        return f"|{self.measure}|"

    def addend_at(self, values: Mapping[str, Fraction]) -> Fraction:
        return values[str(self.measure)]

    def factor(self, factor: Fraction) -> Fraction:
        return factor

    def step(self, of_measure: Fraction) -> Fraction:
        return of_measure

    def addends(self, values: Mapping[str, Int64s], records: int) -> Int64s:
        return values[str(self.measure)]


STATISTICS: Mapping[str, type[Statistic]] = MappingProxyType({statistic.kind: statistic for statistic in (Sum, Count)})


def statistic_of(data: Mapping[str, Any]) -> Statistic:
    """Return the statistic that `to_json` wrote."""
    (kind, value), *_ = data.items()
    statistic = CountOwners if (kind, value) == (Count.kind, OWNERS) else STATISTICS[kind]
    return statistic(value) if statistic.reads_measure else statistic()
