"""What one scan of the microdata does: which columns, which cells, which sums; it names no file and no engine.

The codes of a column, or the classes of a measure, become numbers of public codes: each distinct code is translated
once, not for each record. Cells of all bases share one numbering (`SumSpec.offsets`). A negative cell stands for a rule
of the contract that some record broke (`SumSpec.broken_rule`): so a scan reports all of them, the same ones however the
data are cut.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.numbers.arrays import Int64s, Mask
from udfs.records import contract
from udfs.records.codes import is_code, is_text_code, roll_up
from udfs.records.contract import Fault, MeasureColumn, Rule
from udfs.records.statistics import Count, Statistic, Sum

MOST_KNOWN = 1 << 18  # codes of a column whose numbers are kept
OUTSIDE, MALFORMED, ABSENT = -1, -2, -3  # what is in no list, what is no code, and where a record may have none


@dataclass(frozen=True)
class CodeColumn:
    """A column of codes, and the numbers of the public ones."""

    column: str
    record_level: str | None  # the built-in level of a record's well-formed codes; None: those of the list's form
    level: str  # of the public codes, where it is a built-in one
    index: Mapping[str, int]  # the number of each listed code
    other: int = OUTSIDE  # the number of all well-formed codes that are not in `index`, where the domain declares one
    digits: int | None = None  # of well-formed codes, where there is no built-in level; None: they are any text
    optional: bool = False  # whether a record may have no code

    def index_of(self, code: str | None) -> int:
        """Return the code's number, `other` or OUTSIDE; MALFORMED for no code, ABSENT where there may be none."""
        if code is None or (self.optional and not code):
            return ABSENT if self.optional else MALFORMED
        if self.level == (self.record_level or self.level) and code in self.index:
            return self.index[code]  # the domain's codes are well formed
        if not self.is_well_formed(code):
            return MALFORMED
        return self.index.get(code if self.record_level is None else roll_up(code, self.level), self.other)

    def is_well_formed(self, code: str) -> bool:
        """Return whether a record may have the code."""
        if self.record_level is not None:
            return is_code(code, self.record_level)
        if self.digits is not None:
            return len(code) == self.digits and code.isascii() and code.isdigit()
        return is_text_code(code)


@dataclass(frozen=True, eq=False)
class OwnerColumn:
    """A key whose code follows from all good records of an owner: the class of their total of a measure ≥ 0, or, where
    `of_code` is there, the number for which this total is largest, of equal ones the smallest number.

    `key`, `of_code`: by which key records have numbers, and these by its codes, last OUTSIDE. `column`: where the codes
    stand once owners' records were brought together; None before, where no record has one.
    """

    measure: str
    lowest: tuple[int, ...] = ()
    key: int = 0
    of_code: Int64s | None = None
    column: str | None = None

    @property
    def size(self) -> int:
        """The number of codes."""
        return len(self.lowest) if self.of_code is None else int(self.of_code.max()) + 1


@dataclass(frozen=True)
class ClassColumn:
    """Classes of a measure ≥ 0 as a key; `lowest`: the lowest value of each class in steps, rising from 0."""

    measure: str
    lowest: tuple[int, ...]


class Translator:
    """Translates codes, each distinct one once, for all threads of a process; malformed ones are not kept."""

    def __init__(self, key: CodeColumn) -> None:
        self.key = key
        self._known: dict[bytes | None, int] = {}
        self._last: tuple[pa.Array, Int64s] | None = None

    def indices(self, codes: pa.Array) -> Int64s:
        """Return the number of each code of a dictionary, and last that of null.

        What is not UTF-8 is malformed, as any other text is. Batches of one row group share a dictionary.
        """
        last = self._last
        if last is not None and last[0].equals(codes):
            return last[1]
        known = self._known
        kind = pa.large_binary() if pa.types.is_large_string(codes.type) else pa.binary()
        texts: list[bytes | None] = [*codes.cast(kind).to_pylist(), None]
        numbers = np.array([known[code] if code in known else self._new(code) for code in texts], dtype=np.int64)
        self._last = codes, numbers
        return numbers

    def _new(self, code: bytes | None) -> int:
        index = self.key.index_of(None if code is None else code.decode(errors="replace"))
        if index != MALFORMED and len(self._known) < MOST_KNOWN:
            self._known[code] = index
        return index


@dataclass(frozen=True, eq=False)
class RowCodes:
    """A key of a batch: the numbers of distinct codes, and which of them each record has."""

    indices: Int64s
    rows: NDArray[np.integer[Any]]
    faults: list[Fault]

    @classmethod
    def of(cls, batch: pa.RecordBatch, translator: Translator) -> "RowCodes":
        """Translate the key column of `batch`."""
        column = translator.key.column
        coded = contract.text_codes(batch.column(column), column)
        indices = translator.indices(coded.dictionary)
        rows = coded.indices
        if rows.null_count:
            rows = rows.cast(pa.int64()).fill_null(len(indices) - 1)
        rows = np.asarray(rows)
        faults: list[Fault] = []
        if (coded.null_count and indices[-1] == MALFORMED) or (indices[:-1] == MALFORMED).any():
            malformed = indices[rows] == MALFORMED  # a dictionary may hold codes that no record has
            faults = [(column, Rule.CODE, malformed)] if malformed.any() else []
        return cls(indices, rows, faults)

    @classmethod
    def of_classes(cls, steps: Int64s, key: ClassColumn) -> "RowCodes":
        """Return the classes of values in steps; those below 0, which are bad records, are in the first."""
        rows = np.searchsorted(np.array(key.lowest[1:], dtype=np.int64), steps, side="right")
        return cls(np.arange(len(key.lowest), dtype=np.int64), rows, [])

    @classmethod
    def of_owners(cls, codes: Int64s, size: int) -> "RowCodes":
        """Return codes of records below `size`, some of them OUTSIDE."""
        return cls(np.append(np.arange(size, dtype=np.int64), OUTSIDE), np.where(codes < 0, size, codes), [])

    def numbers(self, of_code: Int64s) -> Int64s:
        """Return each record's number, given those of all codes and last that of codes in no list."""
        return np.take(np.where(self.indices >= 0, of_code[np.maximum(self.indices, 0)], of_code[-1]), self.rows)

    def listed(self) -> Mask | None:
        """Return which records have no code in no list (None: all), though they may have none."""
        outside = self.indices == OUTSIDE
        return ~outside[self.rows] if outside.any() else None

    def codes(self) -> NDArray[np.int32]:
        """Return the number of each record's code, below 0 for one in no list."""
        return np.take(self.indices, self.rows).astype(np.int32)


KEPT, LEFT_OUT = -(1 << 50), -(1 << 50) - 1  # the cells of the counts of records


@dataclass(frozen=True, eq=False)
class BaseCells:
    """A numbering of cells: the key of a cell is the sum of `parts`, by key the number of each of its codes.

    The last number of each key is that of a code in no list. The sum is the cell's number, or, where `listed` is given
    (sorted keys), its index in that list. `addends` are those that some query needs by these cells.
    """

    size: int
    parts: Mapping[int, Int64s]
    addends: tuple[str, ...]
    listed: Int64s | None = None

    def cells(self, key: Int64s) -> tuple[Int64s, Mask | None]:
        """Return the cell number of each key, and which keys have one (None: all); others get a number in range."""
        inside = None if not len(key) or key.min() >= 0 else key >= 0
        if self.listed is None:
            return key, inside
        index = np.minimum(np.searchsorted(self.listed, key), self.size - 1)
        return index, self.listed[index] == key


@dataclass(frozen=True, eq=False)
class OwnerCount:
    """A count of owners: the name of its addend, which is 1 in one record of each owner and cell, and the cells.

    `base`: the number of the base that it is summed by.
    """

    addend: str
    base: int
    cells: BaseCells


@dataclass(frozen=True, eq=False)
class SumSpec:
    """All that one scan of the microdata has to do."""

    keys: tuple[CodeColumn | ClassColumn | OwnerColumn, ...]
    measures: tuple[MeasureColumn, ...]
    bases: tuple[BaseCells, ...]
    bad_records: Literal["refuse", "drop"]
    owner: str | None = None  # the column that must name each record's owner, where units are firms
    record: str | None = None  # the column that must name each record, where row ids are compared
    also: tuple[str, ...] = ()  # columns that are read beside those, and not looked at
    further_statistics: tuple[Statistic, ...] = ()  # beside the count and the measures' sums
    owner_counts: tuple[OwnerCount, ...] = ()  # whose addends are still to be made

    @property
    def needs_owners(self) -> bool:
        """Whether the records of each owner must be brought together before anything is summed."""
        return bool(self.owner_counts) or any(isinstance(k, OwnerColumn) and k.column is None for k in self.keys)

    @property
    def code_columns(self) -> dict[str, CodeColumn]:
        """The columns that hold codes."""
        return {key.column: key for key in self.keys if isinstance(key, CodeColumn)}

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        named = [*self.code_columns, *(m.column for m in self.measures)]
        named += [column for column in (self.owner, self.record) if column is not None]
        named += [key.column for key in self.keys if isinstance(key, OwnerColumn) and key.column is not None]
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
        return contract.LINE if rule == Rule.LINE else self.columns[column], contract.RULE_TEXT[Rule(rule)]


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """A batch of records as the kernels see them: indices of codes, values in steps, and what breaks the contract."""

    keys: tuple[RowCodes, ...]
    values: Mapping[str, Int64s]  # of each addend, 0 where bad
    good: Mask | None  # which records break no rule; None: all
    broken: frozenset[int]  # the cells that stand for the broken rules, where the spec refuses bad records
    faults: Sequence[Fault]  # which records break which rule

    @property
    def size(self) -> int:
        """The number of records in the batch."""
        return len(self.keys[0].rows)

    def numbers(self, parts: Mapping[int, Int64s]) -> Int64s:
        """Return for each record the sum of its codes' numbers in `parts`, by key; at least one key."""
        first, *others = (self.keys[key].numbers(of_code) for key, of_code in parts.items())
        for other in others:
            first += other
        return first

    def cells(self, base: BaseCells) -> tuple[Int64s, Mask | None]:
        """Return each record's cell of a base, and which records count there (None: all); others get one in range."""
        cells, inside = base.cells(self.numbers(base.parts))
        return cells, inside if self.good is None else self.good if inside is None else self.good & inside

    def kept(self, spec: "SumSpec") -> Mask | None:
        """Return which records are no bad ones and have no code in no list (None: all); of listed cells, lie in one."""
        if spec.bases and spec.bases[-1].listed is not None:  # there is one base then
            return self.cells(spec.bases[-1])[1]
        masks = [mask for mask in (self.good, *(key.listed() for key in self.keys)) if mask is not None]
        return np.logical_and.reduce(masks) if masks else None


@lru_cache(maxsize=2)
def decoder_of(spec: SumSpec) -> "Decoder":
    """Return the one decoder of a spec in this process, for all chunks of a scan."""
    return Decoder(spec)


class Decoder:
    """Decodes batches; each distinct code is translated once, and threads may share it."""

    def __init__(self, spec: SumSpec) -> None:
        self._spec = spec
        self._translators = {key.column: Translator(key) for key in spec.code_columns.values()}

    def records(self, batch: pa.RecordBatch) -> Records:
        """Return the records of a batch; raises ContractBroken where a column is of a wrong type."""
        spec = self._spec
        coded = {column: RowCodes.of(batch, translator) for column, translator in self._translators.items()}
        faults = [fault for codes in coded.values() for fault in codes.faults]
        for column, rule in ((spec.owner, Rule.OWNER), (spec.record, Rule.RECORD)):
            if column is not None:
                faults += contract.name_faults(batch.column(column), column, rule)
        values: dict[str, Int64s] = {}
        for measure in spec.measures:
            values[measure.name], broken_rows = contract.whole_steps(batch.column(measure.column), measure)
            faults += broken_rows
        keys = tuple(
            coded[key.column] if isinstance(key, CodeColumn) else _follows(key, values[key.measure], batch)
            for key in spec.keys
        )
        values = {total.addend: total.addends(values, len(batch)) for total in spec.statistics}
        if contract.NO_RECORDS in (batch.schema.metadata or {}):
            faults = [(contract.LINE, Rule.LINE, np.ones(len(batch), dtype=np.bool_))]
        good = ~np.logical_or.reduce([rows for _, _, rows in faults]) if faults else None
        reported = faults if spec.bad_records == "refuse" else []
        broken = frozenset(spec.broken_cell(column, rule) for column, rule, _ in reported)
        return Records(keys, values, good, broken, faults)


def _follows(key: ClassColumn | OwnerColumn, steps: Int64s, batch: pa.RecordBatch) -> RowCodes:
    if isinstance(key, ClassColumn):
        return RowCodes.of_classes(steps, key)
    if key.column is None:
        return RowCodes(np.array([ABSENT]), np.zeros(len(batch), dtype=np.int64), [])
    return RowCodes.of_owners(batch.column(key.column).to_numpy(), key.size)
