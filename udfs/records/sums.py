"""Record batches → exact integer sums by base cell: one kernel for every engine.

Result: for each base (a numbering of cells) and each addend (the count of records, or a measure in steps) the exact sum
over the records of the domain; a sum, also of a part of the data, that leaves 63 bits is reported, never wrapped.
Records are added by integer cell number. Beside the sums the records are counted (`RecordCounts`).

Sums travel as frames: a column of cells and one int64 column an addend, sorted, without cells that are zero throughout.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csc_array

from udfs.noise.lattice import LARGEST
from udfs.records.contract import Fault, Int64s, Mask, Rule, distinct, ranked
from udfs.records.decoding import KEPT, LEFT_OUT, OVERFLOW, Decoder, Records, SumSpec

CELL = "(cell)"
LIMB = 32  # digits of the low limb, for sums whose plain 64-bit form might overflow
LOW = (1 << LIMB) - 1


@dataclass(frozen=True, repr=False)
class RecordCounts:
    """How many records one scan read, each once: those that lie in a cell of the domain, and those left out.

    Left out are bad records that were dropped, and valid ones whose codes lie outside the domain. A record that a
    query's `where` alone leaves out is kept. Where `duplicates` is `reject` or `combine`, a record is all rows of one
    id (of one owner, where the unit is an owner and bad records are dropped); each row without an id, and each line of
    a CSV file that is no record, is one of its own.

    What taking away changes, for each rule about duplicates, since whether a record is kept depends on it alone:

    - one record, with all its rows: one of the two counts, by exactly 1;
    - an owner with n rows: the counts by k and l ≥ 0 with k + l ≤ n, and = n where row ids are trusted;
    - one row of a record that keeps others: at most one from one count to the other (it is no longer the same record).

    The counts are confidential, and have no repr.
    """

    kept: int = 0
    left_out: int = 0

    @property
    def none(self) -> bool:
        """Whether there was no record at all, good or bad."""
        return self.kept == self.left_out == 0

    def __add__(self, other: "RecordCounts") -> "RecordCounts":
        return RecordCounts(self.kept + other.kept, self.left_out + other.left_out)


UNCOUNTED = RecordCounts()  # before a scan


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


def to_frame(sums: ExactSums, broken: Iterable[int], records: RecordCounts = UNCOUNTED) -> pd.DataFrame:
    """Return the sums as a frame, after the counts of records and the cells of broken rules, of wide sums among them.

    Never raises for what the data hold: an engine would log the arguments of a task that fails.
    """
    totals = sums.totals()
    needed = {addend: total for addend, total in totals.items() if total is not None}
    counts = {LEFT_OUT: records.left_out, KEPT: records.kept}
    rules = {*broken, *(OVERFLOW - i for i, total in enumerate(totals.values()) if total is None)}
    told = sorted({*rules, *(cell for cell, count in counts.items() if count)})
    cells = np.flatnonzero(np.logical_or.reduce([total != 0 for total in needed.values()]))
    columns = {addend: np.zeros(len(told) + len(cells), dtype=np.int64) for addend in totals}
    for addend, total in needed.items():
        columns[addend][len(told) :] = total[cells]
    next(iter(columns.values()))[: len(told)] = [counts.get(cell, 0) for cell in told]
    return pd.DataFrame({CELL: np.concatenate((np.array(told, dtype=np.int64), cells))} | columns)


def counts_of(cells: Int64s, counts: Int64s) -> RecordCounts:
    """Return the counts of records that stand in a frame's, or frames', cells and first column of sums."""
    return RecordCounts(int(counts[cells == KEPT].sum()), int(counts[cells == LEFT_OUT].sum()))


def broken_of(cells: Int64s) -> list[int]:
    """Return the cells that stand for broken rules among those of a frame, or of frames."""
    return sorted({*cells[(cells < 0) & (cells > KEPT)].tolist()})


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
    counts = UNCOUNTED
    decoder = Decoder(spec)
    for batch in batches:
        records = decoder.records(batch)
        broken |= records.broken
        kept = _add(records, spec, sums)
        counts += RecordCounts(kept, len(batch) - kept)
    return to_frame(sums, broken, counts)


def add_frames(frames: pd.DataFrame, size: int) -> pd.DataFrame:
    """Return the frame of sums of several frames, given one below the other, over `size` cells."""
    cells = frames[CELL].to_numpy()
    inside = cells >= 0
    sums = ExactSums(size, [name for name in frames.columns if name != CELL])
    for addend in frames.columns.drop(CELL):
        sums.add(addend, cells[inside], frames[addend].to_numpy()[inside])
    return to_frame(sums, broken_of(cells), counts_of(cells, frames.iloc[:, 1].to_numpy()))


def _add(records: Records, spec: SumSpec, sums: ExactSums) -> int:
    """Add the good records of the domain, which are the same by each base, to `sums`; return how many they are."""
    count = 0
    for base, offset in zip(spec.bases, spec.offsets, strict=False):
        cells, kept = records.cells(base)
        cells = cells + offset if kept is None else cells[kept] + offset
        for addend in base.addends:
            values = records.values[addend]
            sums.add(addend, cells, values if kept is None else values[kept])
        count = len(cells)
    return count


# Rows with row ids → records: the rows of one id are one record, or none (docs/architecture.md, rule 6).
#
# Result: which rows are one record, what their measures add up to (exactly), and which records break the contract. It
# depends on the rows of each id alone, on neither their order nor other ids, so that a record that is added up or left
# out changes nothing of any other: the record, with all its rows, is what is protected. Where the unit is an owner and
# bad records are dropped, ids are compared within each owner: what is left out of a firm depends on that firm alone.


Duplicates = Literal["reject", "combine"]


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Rows: ids as text, codes and owners as coded text (no text twice in a dictionary), measures in steps.

    `good`: which break no rule by themselves. `values` are within 63 bits also where a row is not good.
    """

    ids: pa.Array
    naics: pa.DictionaryArray
    county: pa.DictionaryArray
    owner: pa.DictionaryArray | None
    values: Mapping[str, Int64s]
    good: Mask


@dataclass(frozen=True, eq=False, repr=False)
class Combined:
    """Records made of rows, in the order of their ids.

    `first`: a row of each, for its id, codes and owner. `values`: its measures. `good`: which are whole and break no
    rule. `faults`: which break the rules that several rows can break together.
    """

    first: Int64s
    values: Mapping[str, Int64s]
    good: Mask
    faults: Sequence[Fault]


def combined(rows: Rows, spec: SumSpec, duplicates: Duplicates) -> Combined:
    """Return the records of `rows`, which hold all rows of each id; rows without an id are a bad record each.

    A record is good where all its rows are and it breaks no rule: `reject` allows it one row, `combine` rows that agree
    in codes and owner and whose measures add up to 63 bits. Takes n·log(n) for n rows.
    """
    within = rows.owner if spec.bad_records == "drop" else None
    of_row, count = _numbered(rows.ids, within)
    first = np.empty(count, dtype=np.int64)
    first[of_row[::-1]] = np.arange(len(of_row))[::-1]
    values = {name: steps[first] for name, steps in rows.values.items()}
    all_good = ~_any(of_row, ~rows.good, count)
    several = np.bincount(of_row, minlength=count) > 1
    if not several.any():
        return Combined(first, values, all_good, [])
    faults: list[Fault] = []
    if duplicates == "reject":
        faults.append((str(spec.record), Rule.TWICE, several))
    else:
        faults += _differing(rows, spec, of_row, first)
        for measure in spec.measures:
            values[measure.name], off = _added(rows.values[measure.name], of_row, count)
            faults.append((measure.column, Rule.BEYOND, off))
    broken = [fault for fault in faults if fault[2].any()]
    good = all_good & ~np.logical_or.reduce([mask for _, _, mask in broken]) if broken else all_good
    return Combined(first, values, good, broken)


def _numbered(ids: pa.Array, within: pa.DictionaryArray | None) -> tuple[Int64s, int]:
    """Return the number of each row's record, in the order of ids, then of what they are compared within."""
    names, of_row = distinct(ids)
    if within is None and not ids.null_count:
        return of_row, len(names)
    if within is not None:
        texts, rank = ranked(within)
        of_row = of_row * (texts + 1) + rank
    nameless = np.flatnonzero(np.asarray(ids.is_null()))
    of_row[nameless] = of_row.max(initial=0) + 1 + np.arange(len(nameless))
    distinct_rows, numbers = np.unique(of_row, return_inverse=True)
    return numbers.astype(np.int64), len(distinct_rows)


def _differing(rows: Rows, spec: SumSpec, of_row: Int64s, first: Int64s) -> list[Fault]:
    """Return which records have rows that differ in codes or owner."""
    columns = {spec.naics.column: rows.naics, spec.county.column: rows.county}
    if spec.owner is not None and rows.owner is not None:
        columns[spec.owner] = rows.owner
    faults: list[Fault] = []
    for column, values in columns.items():
        codes = np.asarray(values.indices.fill_null(-1))
        faults.append((column, Rule.DIFFERS, _any(of_row, codes != codes[first[of_row]], len(first))))
    return faults


def _any(of_row: Int64s, rows: Mask, count: int) -> Mask:
    """Return which records have one of the given rows."""
    marked = np.zeros(count, dtype=np.bool_)
    marked[of_row[rows]] = True
    return marked


def _added(steps: NDArray[np.int64], of_row: Int64s, count: int) -> tuple[Int64s, Mask]:
    """Return the sum of each record's values, 0 where it lies beyond 63 bits, and where it does."""
    high, low = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.add.at(high, of_row, steps >> LIMB)
    np.add.at(low, of_row, steps & LOW)  # below 2³² each: for 2³¹ rows no sum wraps
    high, low = high + (low >> LIMB), low & LOW
    off = beyond(high, low)
    return np.where(off, 0, (high << LIMB) + low), off
