import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cells import (
    BY_STATE,
    COARSE,
    COUNTIES,
    FINEST,
    LISTED,
    NAICS,
    NATION,
    ONE_LISTED,
    Cells,
    as_dict,
    same,
    spec,
)
from udfs.records.codes import NOWHERE
from udfs.records.contract import MeasureColumn, Rule
from udfs.records.decoding import KEPT, LEFT_OUT, BaseCells, CodeColumn, SumSpec
from udfs.records.statistics import Count
from udfs.records.sums import CELL, Frame, RecordCounts, add_frames, counts_of, sum_batches

RECORDS = Count().addend

LARGEST = 2**63 - 1
ADDENDS = (RECORDS, "employment", "payroll")
BASES = (FINEST, COARSE, NATION, BY_STATE, LISTED, ONE_LISTED)
MALFORMED = (None, "", "3111", "3111111", "001111", "31111x", " 311111", "311111 ", "３１１１１１", "0100", "31-33")
OUTSIDE = {"naics": ("999999", "311113"), "county": ("00000", "72001", "99999")}

Kernel = Callable[[list[pa.RecordBatch], SumSpec], Frame]


@dataclass(frozen=True)
class Record:
    naics: str | None
    county: str | None
    emp: int | None
    pay: Decimal | None

    @property
    def faults(self) -> set[tuple[str, Rule]]:
        """The broken rules of a record, told anew: six or five digits, no null, whole quarters, no negative emp."""
        found = set()
        for column, code, digits in (("naics", self.naics, 6), ("county", self.county, 5)):
            plain = code is not None and len(code) == digits and not set(code) - set("0123456789")
            if not plain or (column == "naics" and code is not None and code[:2] == "00"):
                found.add((column, Rule.CODE))
        for column, value in (("emp", self.emp), ("pay", self.pay)):
            if value is None:
                found.add((column, Rule.EMPTY))
        if self.emp is not None and self.emp < 0:
            found.add(("emp", Rule.NEGATIVE))
        if self.pay is not None and self.pay % Decimal("0.25"):
            found.add(("pay", Rule.STEP))
        return found


def brute(records: Sequence[Record], bases: Sequence[Cells]) -> dict[int, tuple[int, ...]]:
    """Return the sums of the good records of the domain, cell by cell in Python's integers."""
    sums: dict[int, list[int]] = {}
    for record in records:
        if record.faults or record.naics not in NAICS or record.county not in COUNTIES:
            continue
        first = 0
        for cells in bases:
            pair = (str(record.naics), str(record.county))
            if cells.listed is None or pair in cells.listed:
                values = {RECORDS: 1, "employment": record.emp, "payroll": int((record.pay or Decimal()) * 4)}
                row = sums.setdefault(first + cells.names.index(cells.of(*pair)), [0] * len(ADDENDS))
                for i, addend in enumerate(ADDENDS):
                    row[i] += int(values[addend] or 0) if addend in cells.addends else 0
            first += len(cells.names)
    return {cell: tuple(row) for cell, row in sorted(sums.items()) if any(row)}


quarters = st.integers(-(10**6), 10**6).map(lambda n: Decimal(n) / 4)
GOOD = st.builds(Record, st.sampled_from(NAICS), st.sampled_from(COUNTIES), st.integers(0, 10**6), quarters)
ANY = st.builds(
    Record,
    naics=st.sampled_from([*NAICS, *OUTSIDE["naics"]]) | st.sampled_from(MALFORMED),
    county=st.sampled_from([*COUNTIES, *OUTSIDE["county"]]) | st.sampled_from(MALFORMED),
    emp=st.integers(0, 2**50) | st.integers(-3, 0) | st.none(),
    pay=quarters | st.decimals(-9, 9, places=3) | st.none(),
)
OUT = st.builds(
    lambda record, naics, county: replace(record, **{name: code for name, code in (naics, county) if code}),
    GOOD,
    st.sampled_from([("naics", code) for code in ("", *OUTSIDE["naics"])]),
    st.sampled_from([("county", code) for code in ("", *OUTSIDE["county"])]),
)
RECORDS_OF = st.lists(GOOD) | st.lists(GOOD | OUT) | st.lists(GOOD | OUT | ANY)


def batch(records: Sequence[Record], form: int = 0) -> pa.RecordBatch:
    """Return the records as a batch, its codes in one of several forms."""
    columns = {
        name: pa.array([getattr(record, name) for record in records], kind)
        for name, kind in (("naics", pa.string()), ("county", pa.string()), ("emp", pa.int64()))
    }
    for name in ("naics", "county"):
        if form == 1:
            columns[name] = columns[name].cast(pa.large_string())
        if form == 2:
            columns[name] = columns[name].dictionary_encode()
        if form == 3:  # a null and codes that no record has stand in the dictionary
            dictionary = ["unused", *dict.fromkeys(columns[name].to_pylist()), "000"]
            places = [dictionary.index(code) for code in columns[name].to_pylist()]
            columns[name] = pa.DictionaryArray.from_arrays(pa.array(places, pa.int8()), pa.array(dictionary))
    columns["pay"] = pa.array([record.pay for record in records], pa.decimal128(38, 3))
    return pa.RecordBatch.from_pydict(columns)


@st.composite
def cut(draw: st.DrawFn, records: Sequence[Record]) -> list[pa.RecordBatch]:
    """Return the records cut anywhere into batches, some of them empty or slices of longer ones."""
    at = sorted(draw(st.lists(st.integers(0, len(records)), max_size=5)))
    found = []
    for start, stop in pairwise([0, *at, len(records)]):
        form = draw(st.integers(0, 3))
        whole = batch(records[max(0, start - 2) :], form)
        found.append(
            whole.slice(min(2, start), stop - start) if draw(st.booleans()) else batch(records[start:stop], form)
        )
    return found


def check(kernel: Kernel, batches: list[pa.RecordBatch], records: Sequence[Record], bases: Sequence[Cells]) -> None:
    frame = kernel(batches, spec(bases, "drop"))
    assert as_dict(frame) == brute(records, bases)
    kept = [
        record
        for record in records
        if not record.faults
        and record.naics in NAICS
        and record.county in COUNTIES
        and (bases[-1].listed is None or (record.naics, record.county) in bases[-1].listed)
    ]
    counts = counts_of(frame[CELL], frame[RECORDS])
    assert counts == RecordCounts(len(kept), len(records) - len(kept))


def miscounting(batches: list[pa.RecordBatch], given: SumSpec) -> Frame:
    """The broken twin: records outside the domain count as kept."""
    frame = sum_batches(batches, given)
    cells = frame[CELL]
    counts = np.where(cells == LEFT_OUT, 0, frame[RECORDS])
    return frame | {RECORDS: np.where(cells == KEPT, sum(map(len, batches)), counts)}


@given(st.data(), RECORDS_OF, st.lists(st.sampled_from(BASES), min_size=1, max_size=4))
def test_dropping_leaves_out_exactly_the_bad_records(
    data: st.DataObject, records: list[Record], bases: list[Cells]
) -> None:
    check(sum_batches, data.draw(cut(records)), records, bases)


@given(st.data(), RECORDS_OF, st.lists(st.sampled_from(BASES), min_size=1, max_size=3))
def test_refusing_tells_every_broken_rule_however_data_are_cut(
    data: st.DataObject, records: list[Record], bases: list[Cells]
) -> None:
    given = spec(bases, "refuse")
    whole = sum_batches([batch(records)], given)
    broken = {given.broken_cell(*fault) for record in records for fault in record.faults}
    assert {cell for cell in as_dict(whole) if cell < 0} == broken
    assert {cell: row for cell, row in as_dict(whole).items() if cell >= 0} == brute(records, bases)
    batches = data.draw(cut(records))
    assert same(sum_batches(batches, given), whole)
    parts = [sum_batches([part], given) for part in batches]
    assert same(add_frames(parts, given.offsets[-1]), whole)


@pytest.mark.parametrize("cells", BASES)
@pytest.mark.parametrize("form", range(4))
def test_every_pair_of_codes(cells: Cells, form: int) -> None:
    every = [
        [*good, *outside, *MALFORMED] for good, outside in ((NAICS, OUTSIDE["naics"]), (COUNTIES, OUTSIDE["county"]))
    ]
    rows = [Record(naics, county, 1 + i % 7, Decimal(i)) for i, (naics, county) in enumerate(product(*every))]
    check(sum_batches, [batch(rows, form)], rows, [cells])
    well_formed = [row for row in rows if not row.faults]
    check(sum_batches, [batch(well_formed, form)], well_formed, [cells, FINEST])


def test_broken_rules_in_words() -> None:
    bad = Record("3111", None, -1, Decimal("0.1"))
    given = spec()
    frame = sum_batches([batch([bad, Record("311111", "01001", None, None)])], given)
    told = sorted(given.broken_rule(cell) for cell in frame[CELL] if KEPT < cell < 0)
    assert [column for column, _ in told] == ["county", "emp", "emp", "naics", "pay", "pay"]
    assert [words.split(":")[0].split(",")[0] for _, words in told] == [
        "holds a code that is empty or malformed",
        "is below zero",
        "is empty (null)",
        "holds a code that is empty or malformed",
        "is empty (null)",
        "is not a whole number of its steps (often decimals where the step is 1)",
    ]


def test_rules_of_columns_that_serve_twice() -> None:
    """Two measures of one column, with different steps: each cell stands for one column and rule."""
    both = tuple(MeasureColumn(name, "emp", Fraction(step), True) for name, step in (("a", 1), ("b", 2)))
    base = replace(FINEST.base, addends=("a", "b"))
    given = spec((base,), measures=both)
    assert given.columns == ["naics", "county", "emp"]
    frame = sum_batches([batch([Record("311111", "01001", 4, None), Record("311111", "01001", 5, None)])], given)
    assert [given.broken_rule(cell)[0] for cell in frame[CELL] if KEPT < cell < 0] == ["emp"]
    assert as_dict(frame)[0] == (0, 4, 2)


def test_a_domain_coarser_than_the_codes() -> None:
    county = CodeColumn("county", "county", "state", {"01": 0, "36": 1})
    naics = CodeColumn("naics", "naics6", "naics2", {"31-33": 0, "54": 1})
    base = BaseCells(4, {0: np.array([0, 2, NOWHERE]), 1: np.array([0, 1, NOWHERE])}, ADDENDS)
    given = spec((base,), keys=(naics, county))
    rows = [("321111", "01999"), ("339999", "36061"), ("541110", "36001"), ("441110", "01001"), ("331111", "02020")]
    frame = sum_batches([batch([Record(*row, 1, Decimal(1)) for row in rows])], given)
    assert as_dict(frame) == {0: (1, 1, 4), 1: (1, 1, 4), 3: (1, 1, 4)}


def test_dictionary_deltas() -> None:
    good = [Record(naics, county, 7, Decimal(1)) for naics in NAICS for county in COUNTIES]
    dictionary: list[str | None] = []
    sink = io.BytesIO()
    schema = batch(good, 2).schema
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as stream:
        for part in (good[:4], good[4:9], good[9:]):
            dictionary += [code for code in dict.fromkeys(r.naics for r in part) if code not in dictionary]
            coded = batch(part, 2)
            places = pa.array([dictionary.index(record.naics) for record in part], pa.int32())
            grown = pa.DictionaryArray.from_arrays(places, pa.array(dictionary))
            stream.write_batch(coded.set_column(0, "naics", grown))
        stats = stream.stats
    assert stats.num_dictionary_deltas == 2
    check(sum_batches, list(pa.ipc.open_stream(sink.getvalue())), good, BASES)


def off_by_one(batches: list[pa.RecordBatch], given: SumSpec) -> Frame:
    """The broken twin: one county's cells are those of its neighbour."""
    moved = [replace(b, parts=b.parts | {1: np.where(b.parts[1] == 3, 2, b.parts[1])}) for b in given.bases]
    return sum_batches(batches, replace(given, bases=tuple(moved)))


def wrapping(batches: list[pa.RecordBatch], given: SumSpec) -> Frame:
    """The broken twin: sums in 32 bits."""
    frame = sum_batches(batches, given)
    return frame | {"employment": frame["employment"].astype(np.int32).astype(np.int64)}


def forgetful(batches: list[pa.RecordBatch], given: SumSpec) -> Frame:
    """The broken twin: the first record of a batch with bad records is left out with them."""
    return sum_batches([part.slice(1) if part.column("emp").null_count else part for part in batches], given)


@pytest.mark.parametrize("twin", [off_by_one, wrapping, forgetful, miscounting])
def test_the_check_catches_broken_twins(twin: Kernel) -> None:
    rows = [Record("311111", "36061", 2**31, Decimal(1)), Record("311111", "01001", None, Decimal(1))]
    check(sum_batches, [batch(rows)], rows, [FINEST])
    with pytest.raises(AssertionError):
        check(twin, [batch(rows)], rows, [FINEST])
