"""conf/products/cbp.yaml on a tiny programme: every figure against sums by pandas of the released tables."""

import csv
import io
import json
import zipfile
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
SUFFIXES = ("<5", "5_9", "10_19", "20_49", "50_99", "100_249", "250_499", "500_999", "1000")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cbp")
    area = {name: table for name, table in TABLES.items() if not name.startswith("zip")}
    zips = {name: table for name, table in TABLES.items() if name.startswith("zip")}
    releases = [publish(folder, area, "areas"), publish(folder, zips, "zips")]
    prdp.product(releases, folder / "out", year=2023, released=True)
    return folder / "out"


def frame(table: Table) -> pd.DataFrame:
    return table.rows(0, len(table.values)).to_pandas().assign(variance=table.errors**2)


def dashed(level: str, code: str) -> str:
    return {"naics2": code[:2] + "----", "naics3": f"{code}///", "naics4": f"{code}//", "naics5": f"{code}/"}.get(
        level, code
    )


def cell(value: int, variances: "pd.Series[float]", *, alone: bool) -> tuple[Any, str]:
    """The value that is shown, None where it is withheld, and its flag; `alone`: with the error of one cell."""
    error = np.sqrt(variances.max() if alone else variances.sum())
    reach = 2 if len(variances) == 1 else np.sqrt(4 / (9 * 0.05))  # the fixture's own intervals; Camp and Meidell's
    if value - reach * error <= 0 or error >= value:
        return None, "S"
    return value, "G" if error < 0.02 * value else "H" if error < 0.05 * value else "J"


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
                parts = {"": (statistic, group)}
                if "size" in cells:
                    of_size = dict(iter(sizes[key].groupby("size")))
                    parts |= {f: (statistic[0], of_size[size]) for f, size in zip(SUFFIXES, SIZES, strict=True)}
                for suffix, (begin, of) in parts.items():
                    column = f"{'n' if suffix and statistic == 'est' else begin}{suffix}"
                    row[column], flag = cell(of["value"].sum(), of["variance"], alone=alone)
                    if statistic != "est":
                        row[f"{column}nf" if suffix else f"{column}_nf"] = flag
    return {key: row for key, row in rows.items() if any(v is not None for k, v in row.items() if not k.endswith("nf"))}


FILES = {
    "us": ("cbp23us", ("uscode", "naics", "lfo")),
    "st": ("cbp23st", ("fipstate", "naics", "lfo")),
    "co": ("cbp23co", ("fipstate", "fipscty", "naics")),
    "msa": ("cbp23msa", ("msa", "naics")),
}
NAMES = {"stname", "ctyname", "msaname"}


def lines(path: Path) -> list[dict[str, str]]:
    with zipfile.ZipFile(path) as archive:
        (member,) = archive.namelist()
        assert member == f"{path.stem}.txt"
        return list(csv.DictReader(io.StringIO(archive.read(member).decode(), newline="")))


def shown(path: Path, keys: tuple[str, ...]) -> dict[tuple[str, ...], dict[str, Any]]:
    return {
        tuple(row[key] for key in keys): {
            name: cell if name.endswith("nf") else int(cell) if cell else None
            for name, cell in row.items()
            if name not in keys and name not in NAMES and not name.startswith("n1000_")
        }
        for row in lines(path)
    }


def keyed(area: str, rows: dict[tuple[str, ...], dict[str, Any]]) -> dict[tuple[str, ...], dict[str, Any]]:
    split = {"us": lambda code: ("98",), "co": lambda code: (code[:2], code[2:])}.get(area, lambda code: (code,))
    return {(*split(key[0]), *key[1:]): row for key, row in rows.items()}


@pytest.mark.parametrize("area", FILES)
def test_a_layout_holds_the_sums_of_the_released_cells(made: Path, area: str) -> None:
    name, keys = FILES[area]
    found = shown(made / "layouts" / f"{name}.zip", keys)
    assert found == keyed(area, expected(area))
    assert list(found) == sorted(found)


def test_errors_of_sums_are_not_those_of_one_cell(made: Path) -> None:
    assert shown(made / "layouts" / "cbp23us.zip", FILES["us"][1]) != keyed("us", expected("us", alone=True))


def test_columns_and_their_case_are_those_of_the_latest_layouts(made: Path) -> None:
    of_file = {area: list(lines(made / "layouts" / f"{name}.zip")[0]) for area, (name, _) in FILES.items()}
    measures = ["emp_nf", "emp", "qp1_nf", "qp1", "ap_nf", "ap", "est"]
    by_size = [f"{name}{suffix}{end}" for suffix in SUFFIXES for name in "eqan" for end in ("nf", "")[name == "n" :]]
    assert of_file["us"] == ["uscode", "naics", "lfo", *measures, *by_size]
    assert of_file["st"] == ["fipstate", "naics", "lfo", *measures, *by_size, "stname"]
    sizes = [f"n{suffix}" for suffix in (*SUFFIXES, "1000_1", "1000_2", "1000_3", "1000_4")]
    assert of_file["co"] == ["fipstate", "fipscty", "naics", *measures, *sizes, "ctyname"]
    first = lines(made / "layouts" / "cbp23co.zip")[0]
    assert (first["fipstate"], first["fipscty"], first["naics"], first["ctyname"], first["n1000_1"]) == (
        *("01", "001", "------", "Autauga County, AL"),
        "",
    )


def test_ranges_hold_every_row_and_the_values_shown(made: Path) -> None:
    keys = FILES["co"][1]
    layout = {tuple(row[key] for key in keys): row for row in lines(made / "layouts" / "cbp23co.zip")}
    cells = expected_ranges()
    ranges = {tuple(row[key] for key in keys): row for row in lines(made / "layouts" / "cbp23co_ranges.zip")}
    assert len(ranges) == 3 * (1 + 2 + 3 + 3 + 3 + 4) >= len(layout)
    for key, row in ranges.items():
        low, high = int(row["emp_low"]), int(row["emp_high"])
        assert (low, high) == cells[key]
        assert not (key in layout and layout[key]["emp"]) or low <= int(layout[key]["emp"]) <= high


def expected_ranges() -> dict[tuple[str, ...], tuple[int, int]]:
    ranges = {}
    for industry in LEVELS:
        for row in frame(TABLES[f"co_emp_{industry}"]).to_dict("records"):
            naics = "------" if industry == "total" else dashed(industry, row[industry])
            ranges[row["county"][:2], row["county"][2:], naics] = (row["value"] - 120, row["value"] + 120)
    return ranges


def test_zip_codes_have_totals_and_establishments_by_sector(made: Path) -> None:
    totals = shown(made / "layouts" / "zbp23totals.zip", ("zip", "name"))
    for place, code in enumerate(AREAS["zip"][1]):
        for statistic in STATISTICS:
            table = TABLES[f"zip_{statistic}_total"]
            wanted, _ = cell(table.values[place], pd.Series([table.errors[place] ** 2]), alone=False)
            assert totals[code, ""][statistic] == wanted
    detail = shown(made / "layouts" / "zbp23detail.zip", ("zip", "name", "naics"))
    cells = TABLES["zip_est_naics2"].values.reshape(2, 2, 9)
    assert list(detail) == [(code, "", naics) for code in AREAS["zip"][1] for naics in ("11----", "31----")]
    assert [row["est"] for row in detail.values()] == cells.sum(axis=2).ravel().tolist()


def test_reconciled_figures_are_asked_for(made: Path, tmp_path: Path) -> None:
    with pytest.raises(prdp.PlanError, match="cbp shows reconciled figures: give the folder that prdp reconcile made"):
        prdp.product(made.parent / "areas", tmp_path / "out", year=2023)
    assert "as released" in (made / "README.md").read_text()


def test_research_tables_hold_what_was_released(made: Path) -> None:
    read = pq.read_table(made / "research" / "us_naics6.parquet").to_pandas()
    assert len(read) == 4 * 3 * 9
    for statistic in STATISTICS:
        table = frame(TABLES[f"us_{statistic}_naics6"])
        assert (read[statistic] == table["value"]).all()
        assert (read[f"{statistic}_variance"] == table["variance"]).all()
    assert (read[["nation", "naics6", "form", "size"]] == table[["nation", "naics6", "form", "size"]]).all(axis=None)


def test_basic_tables_withhold_what_is_noise(made: Path) -> None:
    read = pq.read_table(made / "basic" / "st_naics6.parquet").to_pandas()
    table = frame(TABLES["st_emp_naics6"])
    withheld = table["value"] <= 120  # its interval, two standard errors to both sides, reaches down to 0
    assert 0 < withheld.sum() < len(read)
    assert (read["emp"].isna() == withheld).all()
    assert (read["emp_cv"].isna() == withheld).all()
    assert (read["emp_flag"] == np.where(withheld, "S", "")).all()
    assert (read["emp"][~withheld] == table["value"][~withheld]).all()
    assert (read["emp_cv"][~withheld] == (6000 / table["value"][~withheld]).round(1)).all()
    assert (read["emp_sd"] == 60).all()


def test_basic_tables_name_codes(made: Path) -> None:
    read = pq.read_table(made / "basic" / "co_est_naics6.parquet").to_pandas()
    assert list(read["county_name"].unique()) == ["Autauga County, AL", "Baldwin County, AL", "Los Angeles County, CA"]
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
    assert "| lfo | text |" in (made / "dictionary.md").read_text()
