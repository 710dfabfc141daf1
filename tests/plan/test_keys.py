"""Plans of several keys: their tables cell by cell against pandas, on both engines, from all forms of microdata."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import prdp
import udfs.records.decoding
from pipeline.engines.spark import SparkEngine
from pipeline.plan.load import load_plan
from tests.support.counted import counted
from tests.support.frames import know_the_key
from tests.support.frames import tables as tables_of
from tests.support.ledgers import ledger_file
from tests.support.many_keys import (
    ALL,
    CBSA,
    EDGES,
    NAICS,
    NOISE,
    ZIPS,
    coded,
    expected,
    in_files,
    met_by_any,
    microdata,
    public_cells,
    queries_of,
    tables,
    write,
)
from tests.support.prepare import prepared
from tests.support.spark import PYSPARKS_OWN
from tests.support.submit import Place, submit
from udfs.records.sums import RecordCounts

pytestmark = PYSPARKS_OWN


@pytest.mark.parametrize(
    ("keys", "seed"),
    [
        (ALL, 1),
        (("county", "form", "size"), 2),
        pytest.param(("form", "zip"), 3, marks=pytest.mark.drill),
        pytest.param(("naics", "zip", "band"), 4, marks=pytest.mark.drill),
    ],
)
def test_tables_are_those_of_pandas(tmp_path: Path, keys: Sequence[str], seed: int) -> None:
    """Levels with holes, codes in no list, no code, `other` and classes: each query leaves out whom it cannot place."""
    table, cells = microdata(seed=seed), public_cells(keys)
    queries = met_by_any(queries_of(seed, keys, cells, 30), cells)
    place = write(tmp_path, keys, queries)
    in_files(tmp_path, table)
    found, _ = tables(place)
    assert found.keys() == {query["name"] for query in queries}
    for query in queries:
        assert found[query["name"]] == expected(coded(table), query, cells), query


@pytest.mark.parametrize("keys", [("naics", "county"), ("naics", "form", "size")])
def test_listed_cells_and_plans_of_industry_and_county_alone_leave_a_record_out_of_all_tables(
    tmp_path: Path, keys: Sequence[str]
) -> None:
    table, cells, finest = microdata(), public_cells(keys, other=False), ["naics6", *keys[1:]]
    codes = coded(table, other=False)
    listed = len(keys) > 2
    if listed:  # every third cell, and so each code
        cells = cells.iloc[::3]
    kept = codes.merge(cells[finest].drop_duplicates(), on=finest)
    queries = met_by_any(queries_of(7, keys, cells, 20), cells)
    queries = [query for query in queries if "group" not in {*query["by"], *query["where"]}]
    for query in queries:
        query["mechanism"] = NOISE
    domain: dict[str, Any] = {}
    if listed:
        domain = {"domain": {"cells": "cells.csv", "size": {"of": "employment", "classes": EDGES["size"][1]}}}
    place = write(tmp_path, keys, queries, **domain)
    rename = {"naics6": "naics"}
    cells[finest].rename(columns=rename).to_csv(tmp_path / "cells.csv", index=False)
    in_files(tmp_path, table)
    found, _ = tables(place)
    for query in queries:
        assert found[query["name"]] == expected(kept, query, cells), query
    assert counted(place) == RecordCounts(len(kept), len(table) - len(kept))


def test_who_is_in_no_list_is_counted_as_left_out_and_who_has_no_code_is_not(tmp_path: Path) -> None:
    table = microdata()
    place = write(tmp_path, ALL, met_by_any(queries_of(5, ALL, public_cells(ALL), 5), public_cells(ALL)))
    in_files(tmp_path, table)
    outside = ~table.naics.isin(NAICS) | ~table.county.isin(CBSA) | (~table.zip.isin(ZIPS) & table.zip.notna())
    assert counted(place) == RecordCounts(int((~outside).sum()), int(outside.sum()))


def differs(folder: Path, key: str) -> bool:
    table, cells = microdata(), public_cells(ALL)
    query = {"name": "q", "count": "records", "by": [key], "where": {}, "mechanism": NOISE}
    place = write(folder, ALL, [query])
    in_files(folder, table)
    return tables(place)[0]["q"] != expected(coded(table), query, cells)


def test_codes_in_no_list_that_counted_as_the_last_one_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = udfs.records.decoding.CodeColumn.index_of

    def broken(column: Any, code: str | None) -> int:
        index = real(column, code)
        return len(column.index) - 1 if index == udfs.records.decoding.OUTSIDE else index

    monkeypatch.setattr(udfs.records.decoding.CodeColumn, "index_of", broken)
    assert differs(tmp_path, "zip")


def test_classes_that_begin_above_their_lowest_value_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(steps: Any, key: Any) -> Any:
        rows = np.searchsorted(np.array(key.lowest[1:]), steps, side="left")
        return udfs.records.decoding.RowCodes(np.arange(len(key.lowest)), rows, [])

    monkeypatch.setattr(udfs.records.decoding.RowCodes, "of_classes", broken)
    assert differs(tmp_path, "size")


@pytest.mark.parametrize("duplicates", ["combine", "reject"])
def test_rows_are_one_record_before_it_is_classed(tmp_path: Path, duplicates: str) -> None:
    """Two rows of 4 employees are an establishment of 8; of two rows with the same id, `reject` takes neither."""
    table, cells = microdata(900), public_cells(ALL)
    again = table.iloc[::3].assign(emp=4, pay=0.5)
    rows = pd.concat([table, again], ignore_index=True)
    summed = rows.groupby("id", sort=False)[["emp", "pay"]].sum()
    one = table.assign(emp=summed.emp.to_numpy(), pay=summed.pay.to_numpy())
    if duplicates == "reject":
        one = table[~table.id.isin(again.id)]
    queries = met_by_any(queries_of(11, ALL, cells, 12), cells)
    place = write(tmp_path / "raw", ALL, queries, dataset={"duplicates": duplicates, "bad_records": "drop"})
    raw = in_files(tmp_path / "raw", rows)
    found, files = tables(place)
    for query in queries:
        assert found[query["name"]] == expected(coded(one), query, cells), query
    ready = prepared(place, raw, tmp_path / "prepared")
    of_prepared = Place(place.plan, tmp_path / "again")
    attempt = submit(of_prepared, microdata=ready).attempt
    folder = of_prepared.out / "keys" / attempt / "tables"
    assert {f"{path.parent.name}/{path.name}": path.read_bytes() for path in folder.rglob("*.parquet")} == files


def test_files_frames_and_spark_give_the_same_bytes(
    tmp_path: Path, spark: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, cells = microdata(900), public_cells(ALL)
    queries = met_by_any(queries_of(13, ALL, cells, 12), cells)
    place = write(tmp_path / "files", ALL, queries)
    in_files(tmp_path / "files", table)
    found, files = tables(place)
    for query in queries:
        assert found[query["name"]] == expected(coded(table), query, cells), query
    csv = write(tmp_path / "csv", ALL, queries)
    (tmp_path / "csv" / "microdata").mkdir()
    table.to_csv(tmp_path / "csv" / "microdata" / "all.csv", index=False)  # no code is an empty field there
    assert tables(csv)[1] == files
    assert tables(Place(place.plan, tmp_path / "spark"), spark)[1] == files
    know_the_key(monkeypatch)
    plan = write(tmp_path / "frame", ALL, queries).plan
    frame = table.assign(pay=table.pay.astype(str))
    released = prdp.load_plan(plan).release(frame, ledger=ledger_file(tmp_path / "frame" / "state" / "l"), workers=2)
    assert tables_of(released) == files


def test_bad_codes_are_bad_records(tmp_path: Path) -> None:
    """A ZIP code of another length than all that are listed, a form with spaces, a negative measure of classes."""
    table, cells = microdata(300), public_cells(ALL)
    spoilt = table.copy()
    spoilt.loc[0, "zip"], spoilt.loc[1, "lfo"], spoilt.loc[2, "emp"], spoilt.loc[3, "naics"] = "501", " C", -3, "31111"
    spoilt.loc[4, "lfo"], spoilt.loc[5, "lfo"] = None, "other"
    query = {"name": "q", "count": "records", "by": ["nation", "size"], "where": {}, "mechanism": NOISE}
    refusing = write(tmp_path / "refuse", ALL, [query])
    in_files(tmp_path / "refuse", spoilt)
    with pytest.raises(prdp.MicrodataError) as refused:
        submit(refusing)
    message = str(refused.value)
    assert all(f"{column} " in message for column in ("zip", "lfo", "emp", "naics"))
    assert "31111" not in message
    assert "501" not in message
    dropping = write(tmp_path / "drop", ALL, [query], dataset={"bad_records": "drop"})
    in_files(tmp_path / "drop", spoilt)
    assert tables(dropping)[0]["q"] == expected(coded(table.iloc[6:]), query, cells)


def test_a_digest_says_of_which_measure_listed_classes_are(tmp_path: Path) -> None:
    (tmp_path / "cells.csv").write_text("naics,size\n311111,0-4\n722511,5+\n")
    query = {"name": "q", "count": "records", "by": ["naics2"], "where": {}, "mechanism": NOISE}
    measures = {name: {"column": name, "type": "integer"} for name in ("employment", "payroll")}
    digests = set()
    for measure in measures:
        domain = {"cells": "cells.csv", "size": {"of": measure, "classes": [0, 5]}}
        changes = {"domain": domain, "dataset": {"measures": measures}}
        digests.add(load_plan(write(tmp_path, ("naics",), [query], **changes).plan).digest)
    assert len(digests) == 2


def test_a_record_without_an_optional_county_is_left_out_where_counties_matter_alone(tmp_path: Path) -> None:
    table = microdata(900)
    table.loc[::4, "county"] = None
    keys = ("naics", "county")
    queries = [
        {"name": name, "count": "records", "by": by, "where": {}, "mechanism": NOISE}
        for name, by in (("all", ["naics2"]), ("placed", ["naics2", "state"]))
    ]
    domain = {"naics": "naics.csv", "county": {"list": "counties.csv", "levels": ["cbsa"], "optional": True}}
    place = write(tmp_path, keys, queries, domain=domain)
    in_files(tmp_path, table)
    found, _ = tables(place)
    for query in queries:
        assert found[query["name"]] == expected(coded(table), query, public_cells(keys)), query
    kept = table.naics.isin(NAICS) & (table.county.isna() | table.county.isin(CBSA))
    assert counted(place) == RecordCounts(int(kept.sum()), int((~kept).sum()))
