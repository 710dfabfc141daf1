"""Rows with row ids → records: the rows of one id are one record, or none (DESIGN rule 6).

Result: which rows are one record, what their measures add up to (exactly), and which records break the contract. It
depends on the rows of each id alone, on neither their order nor other ids, so that a record that is added up or left
out changes nothing of any other: the record, with all its rows, is what is protected. Where the unit is an owner and
bad records are dropped, ids are compared within each owner: what is left out of a firm depends on that firm alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udfs.contract import Fault, Mask, Rule
from udfs.names import Int64s, distinct, ranked
from udfs.scan import SumSpec
from udfs.sums import LIMB, LOW, beyond

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
    whole = ~_any(of_row, ~rows.good, count)
    several = np.bincount(of_row, minlength=count) > 1
    if not several.any():
        return Combined(first, values, whole, [])
    faults: list[Fault] = []
    if duplicates == "reject":
        faults.append((str(spec.record), Rule.TWICE, several))
    else:
        faults += _differing(rows, spec, of_row, first)
        for measure in spec.measures:
            values[measure.name], off = _added(rows.values[measure.name], of_row, count)
            faults.append((measure.column, Rule.BEYOND, off))
    broken = [fault for fault in faults if fault[2].any()]
    good = whole & ~np.logical_or.reduce([mask for _, _, mask in broken]) if broken else whole
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
    found, numbers = np.unique(of_row, return_inverse=True)
    return numbers.astype(np.int64), len(found)


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
    found = np.zeros(count, dtype=np.bool_)
    found[of_row[rows]] = True
    return found


def _added(steps: NDArray[np.int64], of_row: Int64s, count: int) -> tuple[Int64s, Mask]:
    """Return the sum of each record's values, 0 where it lies beyond 63 bits, and where it does."""
    high, low = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.add.at(high, of_row, steps >> LIMB)
    np.add.at(low, of_row, steps & LOW)  # below 2³² each: for 2³¹ rows no sum wraps
    high, low = high + (low >> LIMB), low & LOW
    off = beyond(high, low)
    return np.where(off, 0, (high << LIMB) + low), off
