"""Plans of several keys: their tables cell by cell against pandas, on both engines, from all forms of microdata."""

import random
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import yaml

import prdp
import udfs.records.keys
from pipeline.engines.spark import SparkEngine
from pipeline.plan.load import load_plan
from tests.support.counted import counted
from tests.support.frames import know_the_key
from tests.support.frames import tables as tables_of
from tests.support.ledgers import ledger_file
from tests.support.prepare import prepared
from tests.support.spark import PYSPARKS_OWN
from tests.support.submit import Place, submit
from udfs.records.sums import RecordCounts

pytestmark = PYSPARKS_OWN
NAICS = ("311111", "311811", "445110", "722511")
CBSA = {"01001": "33860", "01003": "", "06037": "31080", "36061": "35620", "36005": "35620"}
GROUP = {"C": "firm", "S": "firm", "P": ""}
ZIPS = ("00501", "10001", "90001")
EDGES = {"size": ("employment", [0, 5, 10, 50], ["0-4", "5-9", "10-49", "50+"])}
EDGES["band"] = ("payroll", [0, 0.5, 100], ["0", "0.5-99.5", "100+"])
SECTOR = {"31": "31-33", "44": "44-45"}
NOISE = {"kind": "gaussian", "sigma": 0.001, "policy": "paper"}  # so narrow that values are the totals
OUTSIDE = {"naics": "999999", "county": "56045", "form": "X", "zip": "99999"}

KEYS: Mapping[str, Sequence[str]] = {  # by key its levels
    "naics": ["naics2", "naics3", "naics6"],
    "county": ["nation", "state", "county", "cbsa"],
    "form": ["form", "group"],
    "zip": ["zip"],
    "size": ["size"],
    "band": ["band"],
}


def microdata(count: int = 3000, seed: int = 1) -> pd.DataFrame:
    """Establishments, some with codes in no list, and some without a ZIP code."""
    draw = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "id": [f"E{i}" for i in range(count)],
        "naics": draw.choice([*NAICS, OUTSIDE["naics"]], count),
        "county": draw.choice([*CBSA, OUTSIDE["county"]], count),
        "lfo": draw.choice([*GROUP, OUTSIDE["form"]], count),
        "zip": draw.choice(np.array([*ZIPS, OUTSIDE["zip"], None], dtype=object), count),
        "emp": draw.integers(0, 70, count),
        "pay": draw.integers(0, 300, count) / 2,
    }
    return pd.DataFrame(columns)


def coded(table: pd.DataFrame, other: bool = True) -> pd.DataFrame:
    """The codes of all records at all levels by pandas, None where they have none, and what is summed."""
    naics = table.naics.where(table.naics.isin(NAICS))
    county = table.county.where(table.county.isin(CBSA))
    form = table.lfo.where(table.lfo.isin(GROUP), "other" if other else None)
    found = pd.DataFrame(
        {
            "naics6": naics,
            "naics3": naics.str[:3],
            "naics2": naics.str[:2].replace(SECTOR),
            "county": county,
            "state": county.str[:2],
            "nation": county.where(county.isna(), "US"),
            "cbsa": county.map(CBSA),
            "form": form,
            "group": form.map(GROUP | {"other": "other"}),
            "zip": table.zip.where(table.zip.isin(ZIPS)),
            "employment": table.emp,
            "payroll": table.pay,
        }
    )
    for key, (measure, edges, names) in EDGES.items():
        classes = pd.cut(found[measure], [*edges, np.inf], right=False, labels=names)
        found[key] = classes.astype(object)
    return found.replace({"": None}).astype(object).where(lambda frame: frame.notna(), None)


def expected(codes: pd.DataFrame, query: Mapping[str, Any], cells: pd.DataFrame) -> dict[tuple[str, ...], float]:
    """A query's table: its public cells from all finest cells, and their totals by a group-by."""
    by = query["by"]

    def met(frame: pd.DataFrame) -> pd.DataFrame:
        kept = frame[list({*by, *query["where"]})].notna().all(axis=1)
        for level, chosen in query["where"].items():
            kept &= frame[level].isin(chosen)
        return frame[kept]

    groups = met(codes).groupby(by, sort=False)
    sums = groups.size() if "count" in query else groups[query["sum"]].sum()
    totals = {key if isinstance(key, tuple) else (key,): value for key, value in sums.items()}
    public = sorted(set(met(cells)[by].itertuples(index=False, name=None)))
    assert totals.keys() <= {*public}
    return {cell: float(totals.get(cell, 0)) for cell in public}


def public_cells(keys: Sequence[str], other: bool = True) -> pd.DataFrame:
    """All combinations of finest public codes, as the rows of `coded`."""
    of_key = {
        "naics": NAICS,
        "county": tuple(CBSA),
        "form": (*GROUP, *([OUTSIDE["form"]] if other else [])),
        "zip": ZIPS,
        "size": (0, 5, 10, 50),
        "band": (0.0, 0.5, 100.0),
    }
    chosen = [of_key[key] if key in keys else of_key[key][:1] for key in of_key]
    rows = pd.DataFrame(product(*chosen), columns=["naics", "county", "lfo", "zip", "emp", "pay"])
    return coded(rows, other)


def queries_of(seed: int, keys: Sequence[str], codes: pd.DataFrame, number: int) -> list[dict[str, Any]]:
    """Random queries: levels of some keys, filters on others, noise by part."""
    draw = random.Random(seed)
    made: list[dict[str, Any]] = []
    for i in range(number):
        by = [draw.choice(KEYS[key]) for key in draw.sample([*keys], draw.randint(1, min(4, len(keys))))]
        where = {}
        for level in draw.sample([level for key in keys for level in KEYS[key]], draw.choice([0, 0, 1, 2])):
            known = sorted({*codes[level].dropna()})
            where[level] = draw.sample(known, draw.randint(1, len(known)))
        statistic = draw.choice([{"count": "records"}, {"sum": "employment"}, {"sum": "payroll"}])
        mechanism: dict[str, Any] = dict(NOISE)
        if "size" in by and len(known := where.get("size", EDGES["size"][2])) > 1:
            mechanism = {"by": "size", "parts": {known[0]: NOISE}, "others": NOISE | {"sigma": 0.0005}}
        made.append(statistic | {"name": f"q{i}", "by": by, "where": where, "mechanism": mechanism})
    return made


def met_by_any(queries: Sequence[dict[str, Any]], cells: pd.DataFrame) -> list[dict[str, Any]]:
    """The queries that some public cell meets: others are refused."""
    return [query for query in queries if expected(cells.iloc[:0], query, cells)]


def write(folder: Path, keys: Sequence[str], queries: Sequence[dict[str, Any]], **changes: Any) -> Place:
    """The plan of the keys, with its lists."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "naics.csv").write_text("code\n" + "".join(f"{code}\n" for code in NAICS))
    (folder / "counties.csv").write_text("code,cbsa\n" + "".join(f"{code},{of}\n" for code, of in CBSA.items()))
    (folder / "forms.csv").write_text("code,name,group\n" + "".join(f"{code},x,{of}\n" for code, of in GROUP.items()))
    (folder / "zips.csv").write_text("code\n" + "".join(f"{code}\n" for code in ZIPS))
    domain: dict[str, Any] = {
        "naics": "naics.csv",
        "county": {"list": "counties.csv", "levels": ["cbsa"]},
        "form": {"list": "forms.csv", "levels": ["group"]},
        "zip": {"list": "zips.csv", "optional": True},
        "size": {"of": "employment", "classes": EDGES["size"][1]},
        "band": {"of": "payroll", "classes": EDGES["band"][1]},
    }
    columns = {"naics": "naics", "county": "county", "form": "lfo", "zip": "zip"}
    plan = {
        "release": "keys",
        "dataset": {
            "name": "keys",
            "path": "microdata",
            "record": "id",
            "keys": {key: column for key, column in columns.items() if key in keys},
            "measures": {
                "employment": {"column": "emp", "type": "integer"},
                "payroll": {"column": "pay", "type": "decimal", "step": 0.5},
            },
            **changes.pop("dataset", {}),
        },
        "domain": {key: domain[key] for key in keys} | ({"other": ["form"]} if "form" in keys else {}),
        "max_left_out": 0.99,
        "queries": list(queries),
        "budget": [{"at": {"employment": 10, "payroll": 50}, "rho": 1e20}],
        **changes,
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan, sort_keys=False))
    return Place(folder / "plan.yaml", folder)


def in_files(folder: Path, table: pd.DataFrame) -> Path:
    (folder / "microdata").mkdir(parents=True)
    for i in range(3):
        part = pa.Table.from_pandas(table.iloc[i::3], preserve_index=False)
        pq.write_table(part, folder / "microdata" / f"{i}.parquet", row_group_size=200)
    return folder / "microdata"


def tables(place: Place, engine: Any = None) -> tuple[dict[str, dict[tuple[str, ...], float]], dict[str, bytes]]:
    """Release under the known key: every table's values by cell, and the bytes of its files."""
    folder = place.out / "keys" / submit(place, engine=engine).attempt / "tables"
    found, files = {}, {}
    for path in sorted(folder.iterdir()):
        table = pq.read_table(path)
        columns = [table.column(name).to_pylist() for name in table.column_names[:-4]]
        assert table.column_names[-4:] == ["value", "lower", "upper", "standard_error"]
        keys = list(zip(*columns, strict=True))
        assert keys == sorted(keys, key=lambda cell: list(map(rank, table.column_names, cell)))
        found[path.name] = dict(zip(keys, map(round_to_step, table.column("value").to_pylist()), strict=True))
        files |= {f"{path.name}/{each.name}": each.read_bytes() for each in sorted(path.iterdir())}
    return found, files


def rank(level: str, code: str) -> tuple[int, str]:
    """Where a code stands among those of its level: classes in their order, `other` last."""
    return (EDGES[level][2].index(code), "") if level in EDGES else (code == "other", code)


def round_to_step(value: float) -> float:
    return round(value * 2) / 2


ALL = ("naics", "county", "form", "zip", "size", "band")


@pytest.mark.parametrize(
    ("keys", "seed"), [(ALL, 1), (("county", "form", "size"), 2), (("form", "zip"), 3), (("naics", "zip", "band"), 4)]
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


def test_codes_in_no_list_that_counted_as_the_last_one_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = udfs.records.keys.CodeColumn.index_of

    def broken(column: Any, code: str | None) -> int:
        index = real(column, code)
        return len(column.index) - 1 if index == udfs.records.keys.OUTSIDE else index

    table, cells = microdata(), public_cells(ALL)
    query = {"name": "q", "count": "records", "by": ["zip"], "where": {}, "mechanism": NOISE}
    place = write(tmp_path, ALL, [query])
    in_files(tmp_path, table)
    monkeypatch.setattr(udfs.records.keys.CodeColumn, "index_of", broken)
    assert tables(place)[0]["q"] != expected(coded(table), query, cells)


def test_classes_that_begin_above_their_lowest_value_would_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(steps: Any, key: Any) -> Any:
        rows = np.searchsorted(np.array(key.lowest[1:]), steps, side="left")
        return udfs.records.keys.RowCodes(np.arange(len(key.lowest)), rows, [])

    table, cells = microdata(), public_cells(ALL)
    query = {"name": "q", "count": "records", "by": ["size"], "where": {}, "mechanism": NOISE}
    place = write(tmp_path, ALL, [query])
    in_files(tmp_path, table)
    monkeypatch.setattr(udfs.records.keys.RowCodes, "of_classes", broken)
    assert tables(place)[0]["q"] != expected(coded(table), query, cells)


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
