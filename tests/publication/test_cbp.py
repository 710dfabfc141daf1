"""conf/products/cbp.yaml on a tiny programme: every figure against sums by pandas of the released tables."""

import csv
import json
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import prdp
from tests.support.cbp import AREAS, INDUSTRIES, SIZES, STATISTICS, tables
from tests.support.published import Table, publish

TABLES = tables()
LEVELS = ("total", *INDUSTRIES)
COLUMNS = ("N<5", "N5_9", "N10_19", "N20_49", "N50_99", "N100_249", "N250_499", "N500_999", "N1000")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cbp")
    area = {name: table for name, table in TABLES.items() if not name.startswith("zip")}
    zips = {name: table for name, table in TABLES.items() if name.startswith("zip")}
    releases = [publish(folder, area, "areas"), publish(folder, zips, "zips")]
    prdp.product(releases, folder / "out", year=2023)
    return folder / "out"


def frame(table: Table) -> pd.DataFrame:
    return table.rows(0, len(table.values)).to_pandas().assign(variance=table.errors**2)


def dashed(level: str, code: str) -> str:
    return {"naics2": code[:2] + "----", "naics3": f"{code}///", "naics4": f"{code}//", "naics5": f"{code}/"}.get(
        level, code
    )


def letter(value: float, variance: float) -> str:
    relative = np.sqrt(variance) / value if value > 0 else np.inf
    return next(
        flag
        for flag, under in zip("GHJKL", (0.02, 0.05, 0.3, 1, np.inf), strict=True)
        if relative < under or flag == "L"
    )


def expected(area: str, *, alone: bool = False) -> dict[tuple[str, ...], dict[str, Any]]:
    """Rows of a layout by area, NAICS and, where it has them, form; `alone`: with errors of one cell."""
    level, _ = AREAS[area]
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for statistic, industry in product(STATISTICS, LEVELS):
        name = f"{area}_{statistic}_{industry}"
        cells = frame(TABLES[name])
        by = [level] if industry == "total" else [level, industry]
        for keys in [by, [*by, "form"]] if "form" in cells else [by]:
            whole = frame(TABLES.get(f"{name}_all", TABLES[name])) if keys == by else cells
            sizes = dict(iter(cells.groupby(keys)))
            for key, group in whole.groupby(keys):
                naics = "------" if industry == "total" else dashed(industry, key[1])
                form = (key[-1] if keys[-1] == "form" else "-",) if "form" in cells else ()
                row = rows.setdefault((key[0], naics, *form), {})
                value, variances = group["value"].sum(), group["variance"]
                row[statistic.upper()] = value
                if statistic != "est":
                    row[f"{statistic.upper()}_NF"] = letter(value, variances.max() if alone else variances.sum())
                elif "size" in cells:
                    of_size = sizes[key].groupby("size")["value"].sum()
                    row |= {name: of_size[size] for name, size in zip(COLUMNS, SIZES, strict=True)}
    return rows


FILES = {
    "us": ("cbp23us.txt", ("NAICS", "LFO")),
    "st": ("cbp23st.txt", ("FIPSTATE", "NAICS", "LFO")),
    "co": ("cbp23co.txt", ("FIPSTATE", "FIPSCTY", "NAICS")),
    "msa": ("cbp23msa.txt", ("MSA", "NAICS")),
}


def shown(path: Path, keys: tuple[str, ...]) -> dict[tuple[str, ...], dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = (*keys, *(name for name in rows[0] if name.endswith("_NF")))
    return {
        tuple(row[key] for key in keys): {
            name: cell if name in texts else int(cell) for name, cell in row.items() if name not in keys
        }
        for row in rows
    }


def keyed(area: str, rows: dict[tuple[str, ...], dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    split = {"us": lambda code: (), "co": lambda code: (code[:2], code[2:])}.get(area, lambda code: (code,))
    return {(*split(key[0]), *key[1:]): row for key, row in rows.items()}


@pytest.mark.parametrize("area", FILES)
def test_a_layout_holds_the_sums_of_the_released_cells(made: Path, area: str) -> None:
    name, keys = FILES[area]
    found = shown(made / "layouts" / name, keys)
    assert found == keyed(area, expected(area))
    order = list(found)
    assert order == sorted(order, key=lambda key: key if area not in ("us", "st") else (*key[:-2], key[-1], key[-2]))


def test_errors_of_sums_are_not_those_of_one_cell(made: Path) -> None:
    assert shown(made / "layouts" / "cbp23us.txt", FILES["us"][1]) != keyed("us", expected("us", alone=True))


def test_zip_codes_have_totals_and_establishments_by_sector(made: Path) -> None:
    totals = shown(made / "layouts" / "zbp23totals.txt", ("ZIP",))
    for place, code in enumerate(AREAS["zip"][1]):
        assert all(totals[code,][s.upper()] == TABLES[f"zip_{s}_total"].values[place] for s in STATISTICS)
    detail = shown(made / "layouts" / "zbp23detail.txt", ("ZIP", "NAICS"))
    cells = TABLES["zip_est_naics2"].values.reshape(2, 2, 9)
    assert list(detail) == [(code, naics) for code in AREAS["zip"][1] for naics in ("11----", "31----")]
    assert [[row["EST"], *(row[name] for name in COLUMNS)] for row in detail.values()] == [
        [of_sizes.sum(), *of_sizes] for of_sizes in cells.reshape(4, 9)
    ]


def test_research_tables_hold_what_was_released(made: Path) -> None:
    read = pq.read_table(made / "research" / "us_naics6.parquet").to_pandas()
    assert len(read) == 4 * 3 * 9
    for statistic in STATISTICS:
        table = frame(TABLES[f"us_{statistic}_naics6"])
        assert (read[statistic] == table["value"]).all()
        assert (read[f"{statistic}_variance"] == table["variance"]).all()
    assert (read[["nation", "naics6", "form", "size"]] == table[["nation", "naics6", "form", "size"]]).all(axis=None)
    text = pd.read_csv(made / "research" / "us_naics6.csv", dtype={"naics6": str})
    pd.testing.assert_frame_equal(text, read, check_dtype=False)


def test_basic_tables_withhold_what_is_noise(made: Path) -> None:
    read = pq.read_table(made / "basic" / "st_naics6.parquet").to_pandas()
    table = frame(TABLES["st_emp_naics6"])
    withheld = (table["value"] < 0) | (table["value"].abs() <= 60)
    assert 0 < withheld.sum() < len(read)
    assert (read["emp"].isna() == withheld).all()
    assert (read["emp_cv"].isna() == withheld).all()
    assert (read["emp_flag"] == np.where(withheld, "S", "")).all()
    assert (read["emp"][~withheld] == table["value"][~withheld]).all()
    assert (read["emp_cv"][~withheld] == (6000 / table["value"][~withheld]).round(1)).all()
    assert (read["emp_sd"] == 60).all()


def test_basic_tables_name_codes(made: Path) -> None:
    read = pq.read_table(made / "basic" / "co_est_naics6.parquet").to_pandas()
    assert list(read["county_name"].unique()) == [
        "Autauga County, AL",
        "Baldwin County, AL",
        "Los Angeles County, CA",
    ]
    assert (read["naics6_name"][0], read["size_name"][0]) == ("Timber Tract Operations", "fewer than 5 employees")


def test_the_dictionary_names_every_column_and_the_manifest_every_file(made: Path) -> None:
    with (made / "dictionary.csv").open(newline="") as file:
        listed = {(row["file"].split(".")[0], row["column"]) for row in csv.DictReader(file)}
    files = [path.relative_to(made) for path in made.rglob("*.parquet")]
    assert listed == {(str(path.with_suffix("")), name) for path in files for name in pq.read_schema(made / path).names}
    manifest = json.loads((made / "product.json").read_text())
    named = {file["path"]: (file["bytes"], file["sha256"]) for file in manifest["files"]}
    present = {
        path.relative_to(made).as_posix(): (path.stat().st_size, sha256(path.read_bytes()).hexdigest())
        for path in made.rglob("*")
        if path.is_file() and path.name != "product.json"
    }
    assert named == present
    assert [release["release"] for release in manifest["releases"]] == ["areas", "zips"]
    assert manifest["year"] == 2023
    assert "| LFO | text |" in (made / "dictionary.md").read_text()
