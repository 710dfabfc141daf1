"""What one scan of the microdata does: which columns, which cells, which sums; it names no file and no engine.

Cells of all bases share one numbering (`SumSpec.offsets`). A negative cell stands for a rule of the contract that some
record broke (`SumSpec.broken_rule`): so a scan reports all of them, the same ones however the data are cut.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from udfs.codes import is_code, roll_up
from udfs.contract import RULE_TEXT, Mask, MeasureColumn, Rule

OUTSIDE, MALFORMED = -1, -2  # translations of codes that the domain does not hold, and of what is no code
RECORDS = "(records)"  # the addend that counts; no measure can have this name
OVERFLOW = -(1 << 40)  # the cell that says the first addend has a sum beyond 63 bits; below it, the next ones
NOWHERE = -(1 << 62)  # two of them, or one and any key, stay below zero


@dataclass(frozen=True)
class CodeColumn:
    """A key column: its well-formed codes have `record_level`; `index` numbers the domain's codes at `level`.

    `other` is the place of all well-formed codes that are not in `index`, where the domain declares one.
    """

    column: str
    record_level: str
    level: str
    index: Mapping[str, int]
    other: int = OUTSIDE

    def place(self, code: str | None) -> int:
        """Return the code's place in the domain's list, `other` or MALFORMED."""
        if code is None:
            return MALFORMED
        if self.level == self.record_level and code in self.index:
            return self.index[code]  # the domain's codes are well formed
        if not is_code(code, self.record_level):
            return MALFORMED
        return self.index.get(roll_up(code, self.level), self.other)


@dataclass(frozen=True, eq=False)
class BaseCells:
    """A numbering of cells: code places (i, j) have the key naics[i] + county[j].

    The key is the cell's number, or, where `listed` is given (sorted keys), its place in that list. `addends` are
    those that some query needs by these cells.
    """

    size: int
    naics: NDArray[np.int64]
    county: NDArray[np.int64]
    addends: tuple[str, ...]
    listed: NDArray[np.int64] | None = None

    def cells(self, key: NDArray[np.int64]) -> tuple[NDArray[np.int64], Mask | None]:
        """Return the cell number of each key, and which keys have one (None: all); others get a number in range."""
        inside = None if not len(key) or key.min() >= 0 else key >= 0
        if self.listed is None:
            return key, inside
        place = np.minimum(np.searchsorted(self.listed, key), self.size - 1)
        return place, self.listed[place] == key


@dataclass(frozen=True, eq=False)
class SumSpec:
    """All that one scan of the microdata has to do."""

    naics: CodeColumn
    county: CodeColumn
    measures: tuple[MeasureColumn, ...]
    bases: tuple[BaseCells, ...]
    bad_records: Literal["refuse", "drop"]
    owner: str | None = None  # the column that must name each record's owner, where units are firms
    record: str | None = None  # the column that must name each record, where row ids are compared
    also: tuple[str, ...] = ()  # columns that are read beside those, and not looked at

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        named = [self.naics.column, self.county.column, *(m.column for m in self.measures)]
        named += [column for column in (self.owner, self.record) if column is not None]
        return list(dict.fromkeys([*named, *self.also]))

    @property
    def addends(self) -> tuple[str, ...]:
        """The names of what is summed: the count of records, then the measures."""
        return (RECORDS, *(measure.name for measure in self.measures))

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first cell number of each base, and last the number of cells in all."""
        return tuple(accumulate((base.size for base in self.bases), initial=0))

    def broken_cell(self, column: str, rule: Rule) -> int:
        """Return the negative cell that stands for a broken rule."""
        return -1 - (self.columns.index(column) * len(Rule) + rule)

    def broken_rule(self, cell: int) -> tuple[str, str]:
        """Return the column and the words of the rule that a negative cell stands for."""
        if cell <= OVERFLOW:
            return self.addends[OVERFLOW - cell], "has a sum beyond 63 bits"
        column, rule = divmod(-1 - cell, len(Rule))
        return self.columns[column], RULE_TEXT[Rule(rule)]
