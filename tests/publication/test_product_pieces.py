"""Layouts and tables of a product piece by piece: each table read once, rows in order, columns as files state them."""

import csv
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

import prdp
from pipeline.engines.writers import Written
from pipeline.publication import release_folder
from prdp import PlanError
from tests.support.published import Table, publish
from udfs.estimates.intervals import whole_range

KEYS = {"region": ("N", "S", "other"), "crop": ("wheat", "other", "hay")}
SOLD = np.array([100, 7, 1, 40, 8, 200, 5, 6, 7])
CODES = [
    {"name": "REGION", "meaning": "Region", "codes": {"region": {}}, "otherwise": "all"},
    {"name": "CROP", "meaning": "Crop", "codes": {"crop": {}}, "otherwise": "all"},
]
SALES = {"name": "SALES", "meaning": "Sales", "value": "sold"}
LAYOUT: dict[str, Any] = {
    "file": "sales.csv",
    "about": "Sales",
    "rows": [
        {"by": ["region", "crop"], "values": {"sold": "sold"}},
        {"by": ["region"], "values": {"sold": "sold"}},
    ],
    "order": ["CROP"],
    "columns": [*CODES, SALES, {"name": "GOOD", "meaning": "Its flag", "flag": "sold"}],
    "withhold": {"interval_holds_zero": True},
    "ranges": True,
}
PRODUCT: dict[str, Any] = {
    "product": "farms",
    "title": "Farms",
    "levels": {"region": {"meaning": "Region"}, "crop": {"meaning": "Crop"}},
    "measures": {"sold": {"meaning": "Sales", "unit": "t"}, "farms": {"meaning": "Farms", "unit": "farms"}},
    "basic": {"round": 1, "withhold_from": 100},
    "flags": [{"flag": "a", "under": 3, "meaning": "good"}, {"flag": "b", "meaning": "others"}],
    "tables": [{"name": "sales", "values": {"sold": "sold"}}],
    "layouts": [LAYOUT],
}
BESIDE = LAYOUT | {
    "rows": [{"by": ["region", "crop"], "values": {"sold": "sold", "farms": "farms"}}],
    "columns": [*CODES, SALES, {"name": "FARMS", "meaning": "Farms", "value": "farms"}],
}


def table(values: Any = SOLD, errors: Any = 1, cells: Any = None, kind: str = "gaussian") -> Table:
    return Table(KEYS, np.asarray(values), np.broadcast_to(errors, 9), kind, cells)


class Below(Table):
    """A table whose intervals end below its values, as those of estimates from the inverse of a root may."""

    def rows(self, first: int, end: int) -> pa.Table:
        rows = super().rows(first, end)
        return rows.set_column(rows.column_names.index("upper"), "upper", pa.array(self.values[first:end] - 2))


def made(folder: Path, tables: Mapping[str, Table], layout: Mapping[str, Any] = LAYOUT) -> Path:
    release = publish(folder, tables)
    (folder / "p.yaml").write_text(yaml.safe_dump(PRODUCT | {"layouts": [dict(layout)]}, sort_keys=False))
    prdp.product(release, folder / "out", product=folder / "p.yaml")
    return folder / "out"


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def test_rows_are_in_order_without_other_and_ranges_have_all_of_them(tmp_path: Path) -> None:
    out = made(tmp_path, {"sold": table()}, LAYOUT | {"leave_out_empty": True})
    shown = [["N", "all", "108", "a"], ["N", "wheat", "100", "a"]]  # hay of 1 ± 2 may be none
    shown += [["S", "all", "248", "a"], ["S", "hay", "200", "a"], ["S", "wheat", "40", "a"]]
    assert rows(out / "layouts" / "sales.csv") == shown
    ranges = rows(out / "layouts" / "sales_ranges.csv")
    assert [row[:2] for row in ranges] == [[r, c] for r in ("N", "S") for c in ("all", "hay", "wheat")]
    assert [row[2:] for row in ranges if row[1] != "all"] == [["-1", "3"], ["98", "102"], ["198", "202"], ["38", "42"]]
    whole = made(tmp_path / "all", {"sold": table()})
    assert ["N", "hay", "", "S"] in rows(whole / "layouts" / "sales.csv")
    assert rows(whole / "layouts" / "sales_ranges.csv") == ranges


def test_a_table_is_read_once_for_all_rows_of_a_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, part = Counter[str](), release_folder.published_part
    monkeypatch.setattr(
        release_folder, "published_part", lambda *args: read.update([args[1]["path"].split("/")[2]]) or part(*args)
    )
    columns = [*LAYOUT["columns"], {"name": "FARMS", "meaning": "Farms", "value": "farms"}]
    of = [each | {"values": {"sold": "sold", "farms": "farms"}} for each in LAYOUT["rows"]]
    made(tmp_path, {"sold": table(), "farms": table()}, LAYOUT | {"rows": of, "columns": columns})
    assert read == {"farms": 2, "sold": 3}  # its first area, then its rows; and for the product's table


def test_one_table_makes_rows_of_several_areas(tmp_path: Path) -> None:
    by = [{"by": [level], "values": {"sold": "sold"}} for level in KEYS]
    out = made(tmp_path, {"sold": table()}, LAYOUT | {"rows": by, "order": []})
    regions, crops = SOLD.reshape(3, 3).sum(axis=1), SOLD.reshape(3, 3).sum(axis=0)
    shown = [["N", "all", str(regions[0])], ["S", "all", str(regions[1])]]
    shown += [["all", "wheat", str(crops[0])], ["all", "hay", str(crops[2])]]
    assert [row[:3] for row in rows(out / "layouts" / "sales.csv")] == shown


CELLS = [(region, crop) for region in KEYS["region"] for crop in KEYS["crop"]]


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([*CELLS[:3], CELLS[4], CELLS[3], *CELLS[5:]], "the cells of the table farms are not the same in each region"),
        ([*CELLS[3:6], *CELLS[:3], *CELLS[6:]], "the tables sold and farms have not the same codes in the same order"),
    ],
    ids=["cells of an area", "areas"],
)
def test_a_second_table_is_held_against_the_first(tmp_path: Path, cells: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        made(tmp_path, {"sold": table(), "farms": table(cells=tuple(cells))}, BESIDE)


def test_files_say_which_columns_have_a_value_in_every_row(tmp_path: Path) -> None:
    stable = table(errors=np.full(9, np.inf), kind="symmetric_stable")  # has no variance, and its sums no ends
    sums = made(tmp_path / "sums", {"sold": stable}, LAYOUT | {"withhold": None})
    assert {row[2] for row in rows(sums / "layouts" / "sales_ranges.csv")} == {""}
    out = made(tmp_path, {"sold": table(), "farms": table(kind="groupwise_log")}, BESIDE)
    optional = {
        "research/sales": set(),
        "basic/sales": {"sold", "sold_cv"},
        "layouts/sales": {"SALES", "FARMS"},
        "layouts/sales_ranges": {"FARMS_low", "FARMS_high"},  # those of additive noise always end
    }
    for name, empty in optional.items():
        schema = pq.read_schema(out / f"{name}.parquet")
        assert {field.name for field in schema if field.nullable} == empty, name
    columns = [pq.read_metadata(out / "research" / "sales.parquet").row_group(0).column(each) for each in range(4)]
    assert [each.statistics is not None for each in columns] == [True, False, False, False]
    with pytest.raises(pa.ArrowInvalid, match="non-nullable"), Written(tmp_path / "x.parquet", empty=()) as file:
        file.write(pa.table({"a": pa.array([1, None])}))


def test_a_column_without_cells_has_the_type_of_its_measure(tmp_path: Path) -> None:
    none = {"name": "RYE", "meaning": "Rye", "value": "sold", "of": {"crop": "rye"}, "optional": True}
    by = [{"by": ["region"], "values": {"sold": "sold"}}]
    out = made(tmp_path, {"sold": table()}, LAYOUT | {"rows": by, "columns": [*CODES[:1], SALES, none], "order": []})
    for name, columns in {"sales": ["RYE"], "sales_ranges": ["RYE_low", "RYE_high"]}.items():
        read = pq.read_table(out / "layouts" / f"{name}.parquet")
        assert [(read.schema.field(each).type, read[each].null_count) for each in columns] == [
            (pa.int64(), 2) for _ in columns
        ]
    dictionary = rows(out / "dictionary.csv")
    assert {row[2] for row in dictionary if row[1] in ("SALES", "RYE")} == {"whole number"}


@pytest.mark.parametrize(("kind", "hidden"), [("groupwise_log", True), ("gaussian", False)])
def test_a_value_beyond_its_interval_is_withheld_where_noise_may_put_it_there(
    tmp_path: Path, kind: str, *, hidden: bool
) -> None:
    sold = Below(KEYS, SOLD + 100, np.ones(9), kind)  # of additive noise no release has such an interval
    out = made(tmp_path, {"sold": sold}, LAYOUT | {"rows": LAYOUT["rows"][:1]})
    layout = pq.read_table(out / "layouts" / "sales.parquet")["SALES"]
    basic = pq.read_table(out / "basic" / "sales.parquet")["sold"]
    assert (layout.null_count, basic.null_count) == ((4, 9) if hidden else (0, 0))


def test_ranges_beyond_whole_numbers_end_at_the_last_ones(tmp_path: Path) -> None:
    sold = table(SOLD.astype(float) * 1e18, 1e17)
    out = made(tmp_path, {"sold": sold}, LAYOUT | {"rows": LAYOUT["rows"][:1]})
    read = pq.read_table(out / "layouts" / "sales_ranges.parquet")
    most = 2**63 - 1024  # the last double below 2⁶³
    assert read["SALES_high"].to_pylist() == [1_200_000_001_200_000_000, most, most, most]
    shown = pq.read_table(out / "layouts" / "sales.parquet")["SALES"].to_pylist()
    assert shown == [10**18, None, None, None]  # what cannot be shown is withheld


NUMBERS = st.integers(-(2**52), 2**52) | st.integers(10**9 - 100, 10**9 + 100) | st.integers(-1000, 1000)


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 2**40) | st.integers(0, 50)), min_size=1, max_size=5))
@example([(999_999_942, 2)])  # 1e-9 of it rounds to 1
def test_ranges_of_whole_numbers_are_those_of_the_same_doubles(pairs: list[tuple[int, int]]) -> None:
    lower = np.array([low for low, _ in pairs], np.int64)
    upper = lower + np.array([width for _, width in pairs], np.int64)
    whole, doubles = whole_range(lower, upper, 1.0), whole_range(lower.astype(float), upper.astype(float), 1.0)
    assert all(np.array_equal(a, b) for a, b in zip(whole, doubles, strict=True))
