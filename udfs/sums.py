"""Record batches → exact integer sums by base cell: one kernel for every engine.

Result: for each base (a numbering of cells) and each addend (the count of records, or a measure in steps) the exact sum
over the records of the domain; a sum, also of a part of the data, that leaves 63 bits is reported, never wrapped. Codes
are translated once for each distinct code, not for each record; records are then added by integer cell number.

Sums travel as frames: a column of cells and one int64 column an addend, sorted, without cells that are zero throughout.
Cells of all bases share one numbering (`SumSpec.offsets`). A negative cell stands for a rule of the contract that
some record broke (`SumSpec.broken_rule`): so a scan reports all of them, the same ones however the data are cut.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csc_array

from udfs.codes import is_code, roll_up
from udfs.contract import RULE_TEXT, Fault, Mask, MeasureColumn, Rule, name_faults, text_codes, whole_steps
from udfs.lattice import LARGEST

OUTSIDE, MALFORMED = -1, -2  # translations of codes that the domain does not hold, and of what is no code
RECORDS = "(records)"  # the addend that counts; no measure can have this name
CELL = "(cell)"
OVERFLOW = -(1 << 40)  # the cell that says the first addend has a sum beyond 63 bits; below it, the next ones
NOWHERE = -(1 << 62)  # two of them, or one and any key, stay below zero
LIMB = 32  # digits of the low limb, for sums whose plain 64-bit form might overflow
LOW = (1 << LIMB) - 1


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


class ExactSums:
    """Sums of int64 addends by cell that never wrap: plain while a bound proves it safe, else in two limbs."""

    def __init__(self, size: int, addends: Iterable[str]) -> None:
        self._plain = {addend: np.zeros(size, dtype=np.int64) for addend in addends}
        self._room = dict.fromkeys(self._plain, LARGEST)
        self._limbs: dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def add(self, addend: str, cells: NDArray[np.int64], values: NDArray[np.int64]) -> None:
        """Add `values`, of magnitude at most LARGEST, to the sums of `cells`."""
        if not len(values):
            return
        most = len(values) * max(int(values.max()), -int(values.min()))
        if most <= self._room[addend]:
            self._room[addend] -= most
            _scatter(self._plain[addend], cells, values)
            return
        if addend not in self._limbs:
            self._limbs[addend] = (np.zeros_like(self._plain[addend]), np.zeros_like(self._plain[addend]))
        high, low = self._limbs[addend]
        _scatter(high, cells, values >> LIMB)
        _scatter(low, cells, values & LOW)
        _carry(high, low)

    def totals(self) -> dict[str, NDArray[np.int64] | None]:
        """Return each addend's sums of all cells; None where one of them leaves 63 bits."""
        return {addend: self._total(addend) for addend in self._plain}

    def _total(self, addend: str) -> NDArray[np.int64] | None:
        plain = self._plain[addend]
        if addend not in self._limbs:
            return plain
        high, low = self._limbs[addend]
        high, low = high + (plain >> LIMB), low + (plain & LOW)
        _carry(high, low)
        return None if beyond(high, low).any() else (high << LIMB) + low


def to_frame(sums: ExactSums, broken: Iterable[int]) -> pd.DataFrame:
    """Return the sums as a frame, after the cells of broken rules, sums beyond 63 bits among them.

    Never raises for what the data hold: an engine would log the arguments of a task that fails.
    """
    totals = sums.totals()
    whole = {addend: total for addend, total in totals.items() if total is not None}
    rules = {*broken, *(OVERFLOW - i for i, total in enumerate(totals.values()) if total is None)}
    cells = np.flatnonzero(np.logical_or.reduce([total != 0 for total in whole.values()]))
    columns = {addend: np.zeros(len(rules) + len(cells), dtype=np.int64) for addend in totals}
    for addend, total in whole.items():
        columns[addend][len(rules) :] = total[cells]
    return pd.DataFrame({CELL: np.concatenate((np.array(sorted(rules), dtype=np.int64), cells))} | columns)


def _scatter(sums: NDArray[np.int64], cells: NDArray[np.int64], values: NDArray[np.int64]) -> None:
    """Add values to sums[cells]; long batches as a one-column sparse matrix times (1), a C++ loop without a lock."""
    if len(values) * 8 < len(sums):
        np.add.at(sums, cells, values)
        return
    if cells.min() < 0 or cells.max() >= len(sums):
        raise IndexError("a cell number lies outside the numbering")
    column = csc_array((values, cells, np.array([0, len(values)])), shape=(len(sums), 1), copy=False)
    sums += column @ np.ones(1, dtype=np.int64)


def beyond(high: NDArray[np.int64], low: NDArray[np.int64]) -> Mask:
    """Return where high·2³² + low, for 0 ≤ low < 2³², exceeds 2⁶³ − 1 in magnitude."""
    end = 1 << (63 - LIMB)
    off: Mask = (high < -end) | (high >= end) | ((high == -end) & (low == 0))
    return off


def _carry(high: NDArray[np.int64], low: NDArray[np.int64]) -> None:
    high += low >> LIMB
    low &= LOW


def empty_frame(addends: Iterable[str]) -> pd.DataFrame:
    """Return a frame of no sums."""
    return pd.DataFrame({name: np.zeros(0, dtype=np.int64) for name in (CELL, *addends)})


def sum_batches(batches: Iterable[pa.RecordBatch], spec: SumSpec) -> pd.DataFrame:
    """Return the frame of sums over `batches`; memory is that of a batch and of the domain's cells."""
    sums = ExactSums(spec.offsets[-1], spec.addends)
    broken: set[int] = set()
    decoder = Decoder(spec)
    for batch in batches:
        records = decoder.records(batch)
        broken |= records.broken
        _add(records, spec, sums)
    return to_frame(sums, broken)


def add_frames(frames: pd.DataFrame, size: int) -> pd.DataFrame:
    """Return the frame of sums of several frames, given one below the other, over `size` cells."""
    cells = frames[CELL].to_numpy()
    inside = cells >= 0
    sums = ExactSums(size, [name for name in frames.columns if name != CELL])
    for addend in frames.columns.drop(CELL):
        sums.add(addend, cells[inside], frames[addend].to_numpy()[inside])
    return to_frame(sums, cells[~inside].tolist())


class _Translator:
    """Translates codes, each distinct one once; malformed ones, of which there is no end, are not kept."""

    def __init__(self, key: CodeColumn) -> None:
        self.key = key
        self._known: dict[bytes | None, int] = {}

    def places(self, codes: Iterable[bytes | None]) -> NDArray[np.int64]:
        """Return the place of each code, given as UTF-8: what is not UTF-8 is malformed, as any other text is."""
        known = self._known
        return np.array([known[code] if code in known else self._new(code) for code in codes], dtype=np.int64)

    def _new(self, code: bytes | None) -> int:
        place = self.key.place(None if code is None else code.decode(errors="replace"))
        if place != MALFORMED:
            self._known[code] = place
        return place


def _as_bytes(codes: pa.Array) -> pa.Array:
    return codes.cast(pa.large_binary() if pa.types.is_large_string(codes.type) else pa.binary())


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """A batch of records as the kernels see them: places of codes, values in steps, and what breaks the contract.

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
        values = {RECORDS: np.ones(len(batch), dtype=np.int64)}
        for measure in spec.measures:
            values[measure.name], found = whole_steps(batch.column(measure.column), measure)
            faults += found
        good = ~np.logical_or.reduce([rows for _, _, rows in faults]) if faults else None
        told = faults if spec.bad_records == "refuse" else []
        broken = frozenset(spec.broken_cell(column, rule) for column, rule, _ in told)
        return Records(naics, county, values, good, broken, faults)


def _add(records: Records, spec: SumSpec, sums: ExactSums) -> None:
    """Add the good records of the domain to `sums`."""
    for base, offset in zip(spec.bases, spec.offsets, strict=False):
        cells, kept = records.cells(base)
        cells = cells + offset if kept is None else cells[kept] + offset
        for addend in base.addends:
            values = records.values[addend]
            sums.add(addend, cells, values if kept is None else values[kept])


@dataclass(frozen=True, eq=False)
class RowCodes:
    """A key column of a batch: what each distinct code means, and which of them each record has."""

    places: NDArray[np.int64]
    rows: NDArray[np.integer[Any]]
    faults: list[Fault]

    @classmethod
    def of(cls, batch: pa.RecordBatch, translator: _Translator) -> "RowCodes":
        """Translate the key column of `batch`."""
        column = translator.key.column
        coded = text_codes(batch.column(column), column)
        places = np.append(translator.places(_as_bytes(coded.dictionary).to_pylist()), MALFORMED)  # the last: for nulls
        rows = coded.indices
        if rows.null_count:
            rows = rows.cast(pa.int64()).fill_null(len(places) - 1)
        rows = np.asarray(rows)
        faults: list[Fault] = []
        if coded.null_count or (places[:-1] == MALFORMED).any():
            malformed = places[rows] == MALFORMED  # a dictionary may hold codes that no record has
            faults = [(column, Rule.CODE, malformed)] if malformed.any() else []
        return cls(places, rows, faults)

    def keys(self, of_place: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return each record's part of its cell key; NOWHERE for codes outside the domain and malformed ones."""
        by_code: NDArray[np.int64] = np.where(self.places >= 0, of_place[np.maximum(self.places, 0)], NOWHERE)
        return np.take(by_code, self.rows)
