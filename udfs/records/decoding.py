"""What one scan of the microdata does: which columns, which cells, which sums; it names no file and no engine.

Cells of all bases share one numbering (`SumSpec.offsets`). A negative cell stands for a rule of the contract that some
record broke (`SumSpec.broken_rule`): so a scan reports all of them, the same ones however the data are cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.numbers.arrays import Mask
from udfs.records.codes import is_code, roll_up
from udfs.records.contract import (
    LINE,
    NO_RECORDS,
    RULE_TEXT,
    Fault,
    MeasureColumn,
    Rule,
    name_faults,
    text_codes,
    whole_steps,
)
from udfs.records.statistics import Count, Statistic, Sum

OUTSIDE, MALFORMED = -1, -2  # translations of codes that the domain does not hold, and of what is no code
KEPT, LEFT_OUT = -(1 << 50), -(1 << 50) - 1  # the cells of the counts of records
NOWHERE = -(1 << 62)  # two of them, or one and any key, stay below zero


@dataclass(frozen=True)
class CodeColumn:
    """A key column: its well-formed codes have `record_level`; `index` numbers the domain's codes at `level`.

    `other` is the index of all well-formed codes that are not in `index`, where the domain declares one.
    """

    column: str
    record_level: str
    level: str
    index: Mapping[str, int]
    other: int = OUTSIDE

    def index_of(self, code: str | None) -> int:
        """Return the code's index in the domain's list, `other` or MALFORMED."""
        if code is None:
            return MALFORMED
        if self.level == self.record_level and code in self.index:
            return self.index[code]  # the domain's codes are well formed
        if not is_code(code, self.record_level):
            return MALFORMED
        return self.index.get(roll_up(code, self.level), self.other)


@dataclass(frozen=True, eq=False)
class BaseCells:
    """A numbering of cells: code indices (i, j) have the key naics[i] + county[j].

    The key is the cell's number, or, where `listed` is given (sorted keys), its index in that list. `addends` are
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
        index = np.minimum(np.searchsorted(self.listed, key), self.size - 1)
        return index, self.listed[index] == key


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
    further_statistics: tuple[Statistic, ...] = ()  # beside the count and the measures' sums

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        named = [self.naics.column, self.county.column, *(m.column for m in self.measures)]
        named += [column for column in (self.owner, self.record) if column is not None]
        return list(dict.fromkeys([*named, *self.also]))

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """What is totalled: the count of records, the measures' sums, further statistics."""
        return (Count(), *(Sum(measure.name) for measure in self.measures), *self.further_statistics)

    @property
    def addends(self) -> tuple[str, ...]:
        """The names of what is summed, one for each statistic."""
        return tuple(statistic.addend for statistic in self.statistics)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The first cell number of each base, and last the number of cells in all."""
        return tuple(accumulate((base.size for base in self.bases), initial=0))

    def broken_cell(self, column: str, rule: Rule) -> int:
        """Return the negative cell that stands for a broken rule."""
        number = 0 if rule == Rule.LINE else self.columns.index(column)
        return -1 - (number * len(Rule) + rule)

    def broken_rule(self, cell: int) -> tuple[str, str]:
        """Return the column and the words of the rule that a negative cell stands for."""
        column, rule = divmod(-1 - cell, len(Rule))
        return LINE if rule == Rule.LINE else self.columns[column], RULE_TEXT[Rule(rule)]


# Record batches → records as the kernels see them: indices of codes, values in steps, what breaks the contract.
#
# Codes are translated once for each distinct code, not for each record.


class _Translator:
    """Translates codes, each distinct one once; malformed ones, of which there is no end, are not kept."""

    def __init__(self, key: CodeColumn) -> None:
        self.key = key
        self._known: dict[bytes | None, int] = {}

    def indices(self, codes: Iterable[bytes | None]) -> NDArray[np.int64]:
        """Return the index of each code, in UTF-8: what is not UTF-8 is malformed, as any other text is."""
        known = self._known
        return np.array([known[code] if code in known else self._new(code) for code in codes], dtype=np.int64)

    def _new(self, code: bytes | None) -> int:
        index = self.key.index_of(None if code is None else code.decode(errors="replace"))
        if index != MALFORMED:
            self._known[code] = index
        return index


def _as_bytes(codes: pa.Array) -> pa.Array:
    return codes.cast(pa.large_binary() if pa.types.is_large_string(codes.type) else pa.binary())


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """A batch of records as the kernels see them: indices of codes, values in steps, and what breaks the contract.

    `values`: of each addend, 0 where bad. `good`: which records break no rule (None: all). `broken`: the cells that
    stand for the broken rules, where the spec refuses bad records. `faults`: which records break which rule.
    """

    naics: "RowCodes"
    county: "RowCodes"
    values: Mapping[str, NDArray[np.int64]]
    good: Mask | None
    broken: frozenset[int]
    faults: Sequence[Fault]

    def cells(self, base: BaseCells) -> tuple[NDArray[np.int64], Mask | None]:
        """Return each record's cell of a base, and which records count there (None: all); others get one in range."""
        cells, inside = base.cells(self.naics.keys(base.naics) + self.county.keys(base.county))
        return cells, inside if self.good is None else self.good if inside is None else self.good & inside


class Decoder:
    """Decodes the batches of one scan; each distinct code is translated once."""

    def __init__(self, spec: SumSpec) -> None:
        self._spec = spec
        self._naics, self._county = _Translator(spec.naics), _Translator(spec.county)

    def records(self, batch: pa.RecordBatch) -> Records:
        """Return the records of a batch; raises ContractBroken where a column is of a wrong type."""
        spec = self._spec
        naics, county = RowCodes.of(batch, self._naics), RowCodes.of(batch, self._county)
        faults = [*naics.faults, *county.faults]
        if spec.owner is not None:
            faults += name_faults(batch.column(spec.owner), spec.owner, Rule.OWNER)
        if spec.record is not None:
            faults += name_faults(batch.column(spec.record), spec.record, Rule.RECORD)
        values: dict[str, NDArray[np.int64]] = {}
        for measure in spec.measures:
            values[measure.name], broken_rows = whole_steps(batch.column(measure.column), measure)
            faults += broken_rows
        values = {each.addend: each.addends(values, len(batch)) for each in spec.statistics}
        if NO_RECORDS in (batch.schema.metadata or {}):
            faults = [(LINE, Rule.LINE, np.ones(len(batch), dtype=np.bool_))]
        good = ~np.logical_or.reduce([rows for _, _, rows in faults]) if faults else None
        reported = faults if spec.bad_records == "refuse" else []
        broken = frozenset(spec.broken_cell(column, rule) for column, rule, _ in reported)
        return Records(naics, county, values, good, broken, faults)


@dataclass(frozen=True, eq=False)
class RowCodes:
    """A key column of a batch: what each distinct code means, and which of them each record has."""

    indices: NDArray[np.int64]
    rows: NDArray[np.integer[Any]]
    faults: list[Fault]

    @classmethod
    def of(cls, batch: pa.RecordBatch, translator: _Translator) -> "RowCodes":
        """Translate the key column of `batch`."""
        column = translator.key.column
        coded = text_codes(batch.column(column), column)
        indices = np.append(
            translator.indices(_as_bytes(coded.dictionary).to_pylist()), MALFORMED
        )  # the last: for nulls
        rows = coded.indices
        if rows.null_count:
            rows = rows.cast(pa.int64()).fill_null(len(indices) - 1)
        rows = np.asarray(rows)
        faults: list[Fault] = []
        if coded.null_count or (indices[:-1] == MALFORMED).any():
            malformed = indices[rows] == MALFORMED  # a dictionary may hold codes that no record has
            faults = [(column, Rule.CODE, malformed)] if malformed.any() else []
        return cls(indices, rows, faults)

    def keys(self, of_index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each record's part of its cell key; NOWHERE for codes outside the domain and malformed ones."""
        by_code: NDArray[np.int64] = np.where(self.indices >= 0, of_index[np.maximum(self.indices, 0)], NOWHERE)
        return np.take(by_code, self.rows)
