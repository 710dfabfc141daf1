"""Record batches → exact integer sums by base cell: one kernel for every engine.

Result: for each base (a numbering of cells) and each addend (the count of records, or a measure in steps) the exact sum
over the records of the domain; a sum, also of a part of the data, that leaves 63 bits is reported, never wrapped.
Records are added by integer cell number.

Sums travel as frames: a column of cells and one int64 column an addend, sorted, without cells that are zero throughout.
"""

from collections.abc import Iterable

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from scipy.sparse import csc_array

from udfs.contract import Mask
from udfs.lattice import LARGEST
from udfs.records import Decoder, Records
from udfs.scan import OVERFLOW, SumSpec

CELL = "(cell)"
LIMB = 32  # digits of the low limb, for sums whose plain 64-bit form might overflow
LOW = (1 << LIMB) - 1


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


def _add(records: Records, spec: SumSpec, sums: ExactSums) -> None:
    """Add the good records of the domain to `sums`."""
    for base, offset in zip(spec.bases, spec.offsets, strict=False):
        cells, kept = records.cells(base)
        cells = cells + offset if kept is None else cells[kept] + offset
        for addend in base.addends:
            values = records.values[addend]
            sums.add(addend, cells, values if kept is None else values[kept])
