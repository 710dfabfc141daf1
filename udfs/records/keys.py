"""The public keys of records: how the codes of a column, or the classes of a measure, become numbers of public codes.

Codes are translated once for each distinct code, not for each record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.numbers.arrays import Int64s, Mask
from udfs.records.codes import is_code, is_text_code, roll_up
from udfs.records.contract import Fault, Rule, text_codes

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
        coded = text_codes(batch.column(column), column)
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
