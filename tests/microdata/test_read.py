"""Reading the microdata: Parquet and CSV, the same records from both, and no value in what goes wrong."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from pipeline.base.errors import MicrodataError, PlanError
from tests.support.cells import GOOD, HEADER, MEASURES, SUMS, csv, keys, parquet, spec, summed
from tests.support.leaks import found as leaked
from tests.support.leaks import told
from udfs.records.contract import ContractBroken, MeasureColumn

CANARY = "777123456789"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
@pytest.mark.parametrize("stored", [True, False])
def test_parquet_codes_of_every_text_type(tmp_path: Path, kind: pa.DataType, stored: bool) -> None:
    typed = {name: pa.array(GOOD[name], kind) for name in ("naics", "county")}
    assert summed(parquet(tmp_path / "a.parquet", GOOD | typed, store_schema=stored)) == SUMS
    coded = {name: pa.array(GOOD[name]).dictionary_encode() for name in ("naics", "county")}
    assert summed(parquet(tmp_path / "b.parquet", GOOD | coded, store_schema=stored, use_dictionary=False)) == SUMS


def test_codes_that_are_numbers_are_refused(tmp_path: Path) -> None:
    for kind in (pa.int64(), pa.int32(), pa.float64()):
        path = parquet(tmp_path / f"{kind}.parquet", GOOD | {"county": pa.array([1001, 2020], kind)})
        with pytest.raises(ContractBroken, match="county"):
            summed(path)


def test_csv_cells(tmp_path: Path) -> None:
    rows = (
        *("311111,01001,5,1.25", '"541110","02020","7","2.00"'),  # leading zeros stay, quotes go
        *("311111,01001,,1", '311111,01001,"",1', ",01001,5,1", '311111,"",5,1'),  # empty
        *("311111,1001,5,1", "311111.0,01001,5,1", "311111, 01001,5,1", "NA,01001,5,1", "311111,01001,NA,1"),
        *('311111,01001,"1,000",1', "311111,01001,5.5,1", "311111,01001,0x5,1", "311111,01001,-5,1"),
    )
    for name, text in (
        ("plain", HEADER + "\n".join(rows)),
        ("bom", "\ufeff" + HEADER + "\n".join(rows) + "\n"),
        ("dos", HEADER.replace("\n", "\r\n") + "\r\n".join(rows) + "\r\n\r\n"),
    ):
        assert summed(csv(tmp_path / f"{name}.csv", text), spec(bad="drop")) == SUMS
        broken = [spec().broken_rule(cell) for cell in summed(tmp_path / f"{name}.csv") if cell < 0]
        # a measure: empty; no digits; other signs than a number's; off its step; below 0
        assert Counter(column for column, _ in broken) == {"naics": 1, "county": 1, "emp": 5}


def test_csv_takes_the_named_columns_in_any_order(tmp_path: Path) -> None:
    text = 'name,pay,"naics",emp,county,year\n"A, B",1.25,311111,5,01001,2023\nC,2,541110,7,02020,x\n'
    assert summed(csv(tmp_path / "a.csv", text)) == SUMS


@pytest.mark.parametrize("column", ["naics", "emp"])
def test_a_missing_or_doubled_column_of_csv(tmp_path: Path, column: str) -> None:
    path = csv(tmp_path / "a.csv", HEADER.replace(column, "other") + f"311111,01001,5,{CANARY}\n")
    with pytest.raises(PlanError, match=f"no column {column}; "):
        summed(path)
    path = csv(tmp_path / "b.csv", HEADER.replace("pay", f"pay,{column}") + f"311111,01001,5,{CANARY},5\n")
    with pytest.raises(PlanError, match=f"column {column} stands twice"):
        summed(path)


def test_a_missing_or_doubled_column_of_parquet(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", {name: GOOD[name] for name in ("naics", "county", "pay")})
    with pytest.raises(PlanError, match="no column emp; "):
        summed(path)
    twice = pa.Table.from_arrays([pa.array(GOOD[name]) for name in (*GOOD, "emp")], names=[*GOOD, "emp"])
    pq.write_table(twice, tmp_path / "b.parquet")
    with pytest.raises(PlanError, match="column emp stands twice"):
        summed(tmp_path / "b.parquet")


def test_columns_with_dots_in_their_names(tmp_path: Path) -> None:
    named = spec(
        keys=keys("a.b", "a"),
        measures=(replace(MEASURES[0], column="e.f.g"), MeasureColumn("payroll", "a.b.c", Fraction("0.25"), False)),
    )
    columns = {"a": GOOD["county"], "a.b": GOOD["naics"], "a.b.c": GOOD["pay"], "e.f.g": GOOD["emp"], "e": [1, 2]}
    assert summed(parquet(tmp_path / "a.parquet", columns | {"e.f": ["x", "y"]}), named) == SUMS
    rows = "\n".join(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))
    assert summed(csv(tmp_path / "a.csv", ",".join(columns) + "\n" + rows), named) == SUMS


# -- nothing tells a value -------------------------------------------------------------------------------------------


def test_damaged_files_fail_in_words_without_values(tmp_path: Path) -> None:
    whole = parquet(tmp_path / "a.parquet", GOOD | {"naics": [CANARY, CANARY]}, compression="none").read_bytes()
    pages = csv(tmp_path / "pages.parquet", whole[:4] + b"\xff" * 60 + whole[64:])
    with pytest.raises(MicrodataError, match="reading failed") as raised:
        summed(pages)
    assert raised.value.__context__ is None
    assert not leaked(told(raised.value), [CANARY])
    ragged = csv(tmp_path / "ragged.csv", f"{CANARY},{CANARY}\n311111,01001,5,1\n")
    with pytest.raises(PlanError, match="the first line is not a header") as broken:
        summed(ragged)
    assert not leaked(told(broken.value), [CANARY])


def test_the_search_finds_what_arrow_tells(tmp_path: Path) -> None:
    """The broken twin: reading without the task's wrapper."""
    path = csv(tmp_path / "ragged.csv", HEADER + f"311111,01001,5,1\n{CANARY},{CANARY}\n")
    with pytest.raises(pa.ArrowInvalid) as raised:
        pyarrow.csv.read_csv(path)
    assert leaked(told(raised.value), [CANARY])


@pytest.mark.parametrize("encoding", ["DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_delta_encoded_codes_are_read(tmp_path: Path, encoding: str) -> None:
    encodings = {"naics": encoding, "county": encoding}
    path = parquet(tmp_path / "a.parquet", GOOD, use_dictionary=False, column_encoding=encodings)
    assert summed(path) == SUMS
