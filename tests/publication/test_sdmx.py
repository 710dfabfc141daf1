"""`prdp export --to sdmx`: another's reader finds structures as the standard has them, and all figures and codes."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import prdp
from jobs.cli import main
from pipeline.publication.product.sdmx import code_identifier
from tests.support.submit import Place, submit
from tests.support.world import COUNTIES, NAICS, records, write_world

GAUSSIAN = {"kind": "gaussian", "sigma": 3}
STABLE = {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 20}
QUERIES = [
    {"name": "jobs.all", "sum": "employment", "by": ["naics4", "county"], "mechanism": GAUSSIAN, "unit": "persons",
     "title": "Jobs, <all> & O'more"},
    {"name": "sizes", "count": "records", "by": ["state", "size"], "mechanism": GAUSSIAN,
     "where": {"naics2": ["31-33"]}},
    {"name": "heavy", "sum": "payroll", "by": ["cbsa"], "mechanism": STABLE},
]  # fmt: skip
FIGURES = {"value": "OBS_VALUE", "lower": "LOWER", "upper": "UPPER", "standard_error": "STANDARD_ERROR"}
ESTIMATES = FIGURES | {"published": "PUBLISHED", "display": "DISPLAY"}
SECTORS = {"31": "31-33", "32": "31-33", "33": "31-33", "44": "44-45", "48": "48-49"}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    domain = {
        "naics": "domain/naics.csv",
        "county": {"list": "domain/areas.csv", "levels": ["cbsa"]},
        "size": {"of": "employment", "classes": [0, 10, 100]},
        "other": ["naics"],
    }
    plan = write_world(folder, records(300), queries=QUERIES, domain=domain, title="A world", contact="a@b.org")
    areas = {county: "10001" if county < "09" else "99" for county in COUNTIES}
    areas["01001"] = "01003"  # an area with the code of a county
    lines = "".join(f"{county},In {county},{area}\n" for county, area in areas.items())
    (folder / "domain" / "areas.csv").write_text(f"code,name,cbsa\n{lines}")
    place = Place(plan, folder)
    return Path(place.out) / submit(place).release


@pytest.fixture(scope="module")
def exported(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sdmx") / "out"
    prdp.read_release(release).export("sdmx", out, agency="US.CENSUS", year=2023)
    return out


def structures(folder: Path) -> Any:
    """What pysdmx reads of the structure message, once the standard's schema holds."""
    from pysdmx import io

    return io.read_sdmx(folder / "sdmx-structure.json", validate=True)


def require_fitting(folder: Path, tables: Mapping[str, pd.DataFrame], figures: Mapping[str, str]) -> None:
    """Every file has the columns of its data structure, codes of their lists, and the figures of its table."""
    message = structures(folder)
    flows = {each.short_urn.removeprefix("Dataflow="): each for each in message.get_dataflows()}
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        [*(f"{name}.csv" for name in tables), "sdmx-structure.json", "export.json"]
    )
    for name, table in tables.items():
        rows = pd.read_csv(folder / f"{name}.csv", dtype=str, keep_default_na=False)
        assert list(rows.columns[:3]) == ["STRUCTURE", "STRUCTURE_ID", "ACTION"]
        assert (set(rows["STRUCTURE"]), set(rows["ACTION"]), rows["STRUCTURE_ID"].nunique()) == ({"dataflow"}, {"I"}, 1)
        components = flows[rows["STRUCTURE_ID"][0]].structure.components
        assert {each.id for each in components} == set(rows.columns[3:])
        for each in components:
            if each.enumeration is not None:
                assert set(rows[each.id]) <= {code.id for code in each.enumeration.codes}, each.id
            elif each.dtype.value in ("Long", "Integer"):
                assert rows[each.id].str.fullmatch(r"-?\d+").all(), each.id
            elif each.dtype.value == "Double":
                assert rows[each.id].str.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?|-?INF").all(), each.id
        for column, attribute in figures.items():
            assert np.array_equal(rows[attribute].astype(float), table[column].astype(float)), (name, column)
        for key in table.columns[: list(table.columns).index("value")]:
            assert [*map(plain, rows[key.upper()])] == list(table[key])


def plain(code: str) -> str:
    """The code that an identifier stands for, as the documents tell it."""
    return re.sub(r"\$(..)", lambda found: chr(int(found[1], 16)), code)


@pytest.mark.filterwarnings("ignore")
def test_released_tables_fit_their_structures(release: Path, exported: Path) -> None:
    require_fitting(exported, prdp.read_release(release), FIGURES)
    rows = pd.read_csv(exported / "heavy.csv", dtype=str)
    assert set(rows["STANDARD_ERROR"]) == {"INF"}
    assert set(rows["TIME_PERIOD"]) == {"2023"}
    sizes = pd.read_csv(exported / "sizes.csv", dtype=str)
    assert sizes["SIZE"][:3].tolist() == ["0-9", "10-99", "100$2B"]
    for attribute, value in {
        "UNIT_MEASURE": "records",
        "OBS_STATUS": "A",
        "CONF_STATUS": "F",
        "CONFIDENCE_LEVEL": "0.95",
    }.items():
        assert set(sizes[attribute]) == {value}


@pytest.mark.filterwarnings("ignore")
def test_a_code_that_lost_its_zero_is_in_no_list(release: Path, exported: Path, tmp_path: Path) -> None:
    """The twin."""
    for path in exported.iterdir():
        (tmp_path / path.name).write_text(path.read_text().replace(',"01",', ',"1",').replace('"I","01"', '"I","1"'))
    with pytest.raises(AssertionError, match="STATE"):
        require_fitting(tmp_path, prdp.read_release(release), FIGURES)


@pytest.mark.filterwarnings("ignore")
def test_another_reader_takes_rows_and_structures_together(exported: Path) -> None:
    structures(exported)
    from pysdmx.io import get_datasets

    (rows,) = get_datasets(exported / "sizes.csv", exported / "sdmx-structure.json")
    assert rows.structure.short_urn == "Dataflow=US.CENSUS:DF_SMALL_RELEASE_SIZES(1.0.0)"
    assert rows.attributes == {"UNIT_MEASURE": "records", "UNIT_MULT": "0", "CONFIDENCE_LEVEL": "0.95"}
    assert set(rows.data["SIZE"]) == {"0-9", "10-99", "100$2B"}


@pytest.mark.filterwarnings("ignore")
def test_reconciled_tables_fit_their_structures(release: Path, tmp_path: Path) -> None:
    prdp.reconcile(release, tmp_path / "reconciled", leave_out=["heavy", "sizes"])
    reconciled = prdp.read_reconciled(tmp_path / "reconciled")
    reconciled.export("sdmx", tmp_path / "out")
    require_fitting(tmp_path / "out", reconciled, ESTIMATES)
    rows = pd.read_csv(tmp_path / "out" / "jobs.all.csv", dtype=str)
    assert "TIME_PERIOD" not in rows
    assert (rows["OBS_STATUS"][0], rows["STRUCTURE_ID"][0]) == ("E", "PRDP:DF_RECONCILED_SMALL_RELEASE_JOBS_ALL(1.0.0)")


def code_lists(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    message = json.loads((folder / "sdmx-structure.json").read_text())
    return {each["id"]: {code["id"]: code for code in each["codes"]} for each in message["data"]["codelists"]}


def test_lists_have_names_and_parents(exported: Path) -> None:
    lists = {name.removeprefix("CL_SMALL_RELEASE_"): codes for name, codes in code_lists(exported).items()}
    parents = {name: {code: each.get("parent") for code, each in codes.items()} for name, codes in lists.items()}
    states = {county[:2]: "US" for county in COUNTIES}
    assert parents["STATE"] == {"US": None} | states
    assert parents["COUNTY"] == parents["STATE"] | {county: county[:2] for county in COUNTIES}
    sectors = {SECTORS.get(code[:2], code[:2]): None for code in NAICS}
    three = {code[:3]: SECTORS.get(code[:2], code[:2]) for code in NAICS}
    four = {code[:4]: code[:3] for code in NAICS}
    assert parents["NAICS4"] == sectors | three | four | {"other": None}
    assert parents["CBSA"] == {"US": None, "01003": "US", "10001": "US", "99": "US"}
    assert parents["SIZE"] == {"0-9": None, "10-99": None, "100$2B": None}
    assert lists["COUNTY"]["01"]["name"] == "Alabama"
    assert lists["COUNTY"]["01003"]["name"] == "In 01003"
    assert lists["SIZE"]["100$2B"]["name"] == "100+"
    for codes in lists.values():
        order = list(codes)
        assert all(order.index(each["parent"]) < order.index(code) for code, each in codes.items() if "parent" in each)


def test_dataflows_say_what_the_table_is(release: Path, exported: Path) -> None:
    message = json.loads((exported / "sdmx-structure.json").read_text())
    flow = next(each for each in message["data"]["dataflows"] if each["id"] == "DF_SMALL_RELEASE_SIZES")
    notes = {each["type"]: each["text"] for each in flow["annotations"]}
    assert notes["PLAN_DIGEST"] == json.loads((release / "release.json").read_text())["plan_digest"]
    assert (notes["RELEASE"], notes["CONTACT"]) == ("small-release", "a@b.org")
    assert "31-33" in notes["FILTER"]
    assert notes["MECHANISM"].startswith("gaussian")


def test_no_two_codes_have_one_identifier() -> None:
    codes = ["10+", "10$2B", "10$", "1 0", "10é", "$", "a_b", "a.b", "31-33", "x@y"]
    found = [code_identifier(code) for code in codes]
    assert len(set(found)) == len(codes)
    assert all(re.fullmatch(r"[A-Za-z0-9_@$\-]+", each) for each in found)
    assert (found[-2:], code_identifier("06037")) == (["31-33", "x@y"], "06037")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--to", "sdmx", "--agency", "3 x"], "--agency 3 x: use letters"),
        (["--to", "sdmx", "--year", "23"], "--year 23: must be a year"),
        (["--to", "csv", "--year", "2023"], "--year: it belongs to --to sdmx alone"),
    ],
)
def test_a_wrong_call_is_told(
    release: Path, tmp_path: Path, options: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(release), *options, "--out", str(tmp_path / "out")]) == 2
    assert line in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*"))
