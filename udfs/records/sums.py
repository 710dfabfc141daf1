"""Record batches → exact integer sums by base cell: one function of Arrow batches, `sum_batches`, for every engine.

Dask's tasks run it chunk by chunk, Spark's `mapInArrow` chunk by chunk or partition by partition of a table.

Result: for each base (a numbering of cells) and each addend (the count of records, or a measure in steps) the exact sum
over the records of the domain, in 128 bits: nothing wraps, and nothing is held in a range before all is added up.
Records are added by integer cell number. Beside the sums the records are counted (`RecordCounts`).

Sums travel as frames: by name, an array of cells and one of int64 an addend, sorted, without cells that are zero
throughout. Where a sum of an addend leaves 64 bits, a column HIGH + addend has the higher words of its sums.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
import pyarrow as pa

from udfs.numbers.arrays import LARGEST, Int64s, Mask, Wide
from udfs.records.contract import Fault, MeasureColumn, Rule, distinct, ranked
from udfs.records.decoding import KEPT, LEFT_OUT, OUTSIDE, OwnerColumn, Records, RowCodes, SumSpec, decoder_of

Frame = dict[str, Int64s]  # CELL first, then addends, then higher words
CELL = "(cell)"
HIGH = "2⁶⁴·"  # no addend's name begins with it


@dataclass(frozen=True, repr=False)
class RecordCounts:
    """How many records one scan read, each once: those that lie in a cell of the domain, and those left out.

    Left out are bad records that were dropped, and valid ones of which a code is in no list (or, where cells are
    listed, that lie in none): some query leaves them out. A record that a query's `where` alone leaves out is kept,
    and one without a code where the plan allows that. Where `duplicates` is `reject` or `combine`, a record is all rows
    of one id (of one owner, where the unit is an owner and bad records are dropped); each row without an id, and each
    line of a CSV file that is no record, is one of its own.

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
    """Sums of int64 addends by cell that never wrap: plain while a bound proves it safe, else in 128 bits."""

    def __init__(self, size: int, addends: Iterable[str]) -> None:
        self._plain = {addend: np.zeros(size, dtype=np.int64) for addend in addends}
        self._room = dict.fromkeys(self._plain, LARGEST)
        self._wide: dict[str, Wide] = {}

    def add(self, addend: str, cells: Int64s, values: Int64s) -> None:
        """Add `values` to the sums of `cells`."""
        if not len(values):
            return
        most = len(values) * max(int(values.max()), -int(values.min()))
        if most <= self._room[addend]:
            self._room[addend] -= most
            _scatter(self._plain[addend], cells, values)
            return
        self._add_wide(addend, cells, Wide(values))

    def add_columns(self, cells: Int64s, columns: Mapping[str, Int64s]) -> None:
        """Add columns of sums, each addend's lower and higher words as in a frame, to the sums of `cells`."""
        for addend in self._plain:
            if (high := columns.get(HIGH + addend)) is None:
                self.add(addend, cells, columns[addend])
            else:
                self._add_wide(addend, cells, Wide(columns[addend], high))

    def _add_wide(self, addend: str, cells: Int64s, values: Wide) -> None:
        def scattered(limbs: Int64s) -> Int64s:
            sums = np.zeros_like(self._plain[addend])
            _scatter(sums, cells, limbs)
            return sums

        added = values.summed(scattered)
        self._wide[addend] = self._wide[addend] + added if addend in self._wide else added

    def totals(self) -> dict[str, Wide]:
        """Return each addend's sums of all cells."""
        plain = {addend: Wide(sums) for addend, sums in self._plain.items()}
        return plain | {addend: plain[addend] + wide for addend, wide in self._wide.items()}


def to_frame(sums: ExactSums, broken: Iterable[int], records: RecordCounts = UNCOUNTED) -> Frame:
    """Return the sums as a frame, after the counts of records and the cells of broken rules."""
    totals = sums.totals()
    counts = {LEFT_OUT: records.left_out, KEPT: records.kept}
    marked = np.array(sorted({*broken, *(cell for cell, count in counts.items() if count)}), dtype=np.int64)
    cells = np.flatnonzero(np.logical_or.reduce([total.nonzero for total in totals.values()]))
    words = {addend: total.low for addend, total in totals.items()}
    words |= {HIGH + addend: total.high for addend, total in totals.items() if total.high is not None}
    columns = {name: np.concatenate((np.zeros_like(marked), word[cells])) for name, word in words.items()}
    next(iter(columns.values()))[: len(marked)] = [counts.get(cell, 0) for cell in marked.tolist()]
    return {CELL: np.concatenate((marked, cells))} | columns


def counts_of(cells: Int64s, counts: Int64s) -> RecordCounts:
    """Return the counts of records that stand in a frame's, or frames', cells and first column of sums."""
    return RecordCounts(int(counts[cells == KEPT].sum()), int(counts[cells == LEFT_OUT].sum()))


def broken_of(cells: Int64s) -> list[int]:
    """Return the cells that stand for broken rules among those of a frame, or of frames."""
    return sorted({*cells[(cells < 0) & (cells > KEPT)].tolist()})


def _scatter(sums: Int64s, cells: Int64s, values: Int64s) -> None:
    if cells.view(np.uint64).max() >= len(sums):  # what is below 0 is far above
        raise IndexError("a cell number lies outside the numbering")
    np.add.at(sums, cells, values)


def empty_frame(addends: Iterable[str]) -> Frame:
    """Return a frame of no sums."""
    return {name: np.zeros(0, dtype=np.int64) for name in (CELL, *addends)}


def sum_batches(batches: Iterable[pa.RecordBatch], spec: SumSpec) -> Frame:
    """Return the frame of sums over `batches`; memory is that of a batch and of the domain's cells.

    Raises ValueError where owners' records had to be brought together first (`by_owner`).
    """
    if spec.needs_owners:
        raise ValueError("sums by what follows from all records of an owner, before they were brought together")
    sums = ExactSums(spec.offsets[-1], spec.addends)
    broken: set[int] = set()
    counts = UNCOUNTED
    decoder = decoder_of(spec)
    for batch in batches:
        records = decoder.records(batch)
        broken |= records.broken
        kept = _add(records, spec, sums)
        counts += RecordCounts(kept, len(batch) - kept)
    return to_frame(sums, broken, counts)


def add_frames(frames: Sequence[Frame], size: int) -> Frame:
    """Return the frame of sums of one frame or several, each sorted, over `size` cells."""
    addends = [name for name in frames[0] if name != CELL and not name.startswith(HIGH)]
    sums, marked = ExactSums(size, addends), []
    for frame in frames:
        first = int(np.searchsorted(frame[CELL], 0))  # of its cells: counts and broken rules come before
        marked.append({name: words[:first] for name, words in frame.items()})
        sums.add_columns(frame[CELL][first:], {name: words[first:] for name, words in frame.items()})
    cells, counts = (np.concatenate([each[name] for each in marked]) for name in (CELL, addends[0]))
    return to_frame(sums, broken_of(cells), counts_of(cells, counts))


def _add(records: Records, spec: SumSpec, sums: ExactSums) -> int:
    """Add the good records to the `sums` of all bases in which they have a cell; return how many are kept."""
    for base, offset in zip(spec.bases, spec.offsets, strict=False):
        cells, kept = records.cells(base)
        cells = cells + offset if kept is None else cells[kept] + offset
        for addend in base.addends:
            values = records.values[addend]
            sums.add(addend, cells, values if kept is None else values[kept])
    counted = records.kept(spec)
    return records.size if counted is None else int(np.count_nonzero(counted))


# Rows with row ids → records: the rows of one id are one record, or none (docs/architecture.md, rule 6).
#
# The result depends on the rows of each id alone, on neither their order nor other ids, so that a record that is added
# up or left out changes nothing of any other: the record, with all its rows, is what is protected. Where the unit is an
# owner and bad records are dropped, ids are compared within each owner: what is left out of a firm depends on it alone.

Duplicates = Literal["reject", "combine"]


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Rows: ids as text, codes (by column) and owners as coded text (no text twice in a dictionary), measures in steps.

    `good`: which break no rule by themselves. `values` are within 63 bits also where a row is not good.
    """

    ids: pa.Array
    codes: Mapping[str, pa.DictionaryArray]
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
    columns = dict(rows.codes)
    if spec.owner is not None and rows.owner is not None:
        columns[spec.owner] = rows.owner
    faults: list[Fault] = []
    for column, values in columns.items():
        codes = np.asarray(values.indices.fill_null(-1))
        faults.append((column, Rule.DIFFERS, _any(of_row, codes != codes[first[of_row]], len(first))))
    return faults


def _any(of_row: Int64s, rows: Mask, count: int) -> Mask:
    marked = np.zeros(count, dtype=np.bool_)
    marked[of_row[rows]] = True
    return marked


def _added(steps: Int64s, of_row: Int64s, count: int) -> tuple[Int64s, Mask]:
    sums = _sums(steps, of_row, count)
    return np.where(sums.beyond, 0, sums.low), sums.beyond


def _sums(steps: Int64s, of_row: Int64s, count: int) -> Wide:
    def added(limbs: Int64s) -> Int64s:
        sums = np.zeros(count, dtype=np.int64)
        np.add.at(sums, of_row, limbs)
        return sums

    return Wide(steps).summed(added)


# All records of some owners → what follows from them together: the codes of owners, and in which cells an owner counts.
#
# Good records count alone, also those outside the domain: so what an owner adds anywhere depends on its own records.

OF_OWNER = "(of owner {})"  # the column of a key's codes; no measure has such a name


def owners_known(spec: SumSpec) -> SumSpec:
    """Return the scan `spec` of records that have the columns of `by_owner`."""
    marks = (MeasureColumn(each.addend, each.addend, Fraction(1), nonnegative=True) for each in spec.owner_counts)
    keys = tuple(
        replace(key, column=OF_OWNER.format(number)) if isinstance(key, OwnerColumn) else key
        for number, key in enumerate(spec.keys)
    )
    return replace(spec, keys=keys, measures=(*spec.measures, *marks), owner_counts=())


def by_owner(records: Records, owners: pa.Array, spec: SumSpec) -> dict[str, Int64s]:
    """Return columns of all records of some owners: codes of the keys that follow from these, and addends of counts.

    `owners`: their names. An owner's code of a key is one for all its records, OUTSIDE where it has none. Of its good
    records in one cell of a count one has the addend 1, all others 0: each owner counts once in every cell it is in.
    """
    names, of_row = distinct(owners)
    good = np.ones(records.size, dtype=np.bool_) if records.good is None else records.good
    columns: dict[str, Int64s] = {}
    keys = list(records.keys)
    for number, key in enumerate(spec.keys):
        if isinstance(key, OwnerColumn):
            codes = _codes_of_owners(records, key, np.where(good, of_row, len(names)), len(names))[of_row]
            columns[OF_OWNER.format(number)] = codes
            keys[number] = RowCodes.of_owners(codes, key.size)
    coded = replace(records, keys=tuple(keys))
    for count in spec.owner_counts:
        cells, inside = coded.cells(count.cells)
        of_base = coded.cells(spec.bases[count.base])[1]
        met = np.logical_and.reduce([good, *(mask for mask in (inside, of_base) if mask is not None)])
        columns[count.addend] = _first_of_each(of_row, cells, met)
    return columns


def _codes_of_owners(records: Records, key: OwnerColumn, of_row: Int64s, owners: int) -> Int64s:
    """Return each owner's code from its records, of which those of owner number `owners` count for none."""
    steps = records.values[key.measure]
    if key.of_code is None:
        totals = _sums(steps, of_row, owners + 1).held()[:owners]
        return np.searchsorted(np.array(key.lowest[1:], dtype=np.int64), totals, side="right").astype(np.int64)
    numbers = records.keys[key.key].numbers(key.of_code)
    mine = np.flatnonzero((of_row < owners) & (numbers >= 0))
    pairs, which = np.unique(np.stack([of_row[mine], numbers[mine]]), axis=1, return_inverse=True)
    totals = _sums(steps[mine], which.ravel(), pairs.shape[1]).held()
    order = np.lexsort((pairs[1], -totals, pairs[0]))  # of an owner the largest total first, of equal ones the lowest
    of_owner, first = np.unique(pairs[0][order], return_index=True)
    codes = np.full(owners, OUTSIDE, dtype=np.int64)
    codes[of_owner] = pairs[1][order][first]
    return codes


def _first_of_each(owners: Int64s, cells: Int64s, met: Mask) -> Int64s:
    """Return 1 for one record `met` of each owner and cell that have one, 0 for all others."""
    marks = np.zeros(len(met), dtype=np.int64)
    rows = np.flatnonzero(met)
    order = rows[np.lexsort((cells[rows], owners[rows]))]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (np.diff(owners[order]) != 0) | (np.diff(cells[order]) != 0)
    marks[order[new]] = 1
    return marks
