"""The lists in conf/codes against facts known from elsewhere; plans whose domain is not of the vintage they declare."""

import csv
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.errors import PlanError
from pipeline.plan.domain.code_lists import TABLE, vintage_of, vintages
from pipeline.plan.load import load_plan
from tests.support.mistakes import without_numbers
from tests.support.world import write_world
from udfs.records.codes import is_code

CONNECTICUT = {f"{code:05d}" for code in range(9001, 9016, 2)}
PLANNING_REGIONS = {f"{code:05d}" for code in range(9110, 9191, 10)}
ROOT = Path(__file__).parents[2]
LISTS = ROOT / "conf" / "codes"
LISTS_OF_CODES = sorted(path for path in LISTS.glob("*.csv") if path.name not in (TABLE, "county_levels.csv"))
# From the Census Bureau's concordances: industries of NAICS 2017, and what became of them in 2022.
REPLACED = {
    "212111": "212114",
    "315220": "315250",
    "322122": "322120",
    "333314": "333310",
    "334614": "334610",
    "336111": "336110",
    "442110": "449110",
    "443142": "449210",
    "452311": "455211",
    "454110": "455110",
    "511210": "513210",
    "515120": "516120",
    "517311": "517111",
    "517312": "517112",
    "519130": "516210",
    "523120": "523150",
    "811118": "811114",
}
OF_2012 = ("211111", "333911", "454111", "512210", "517110", "517210", "532220", "541711")  # gone in 2017
IN_BOTH = ("113310", "311111", "512250", "512230", "541715", "622110", "722511")


def rows(name: str) -> dict[str, str]:
    with (LISTS / name).open(encoding="utf-8", newline="") as file:
        return {row["code"]: row["name"] for row in csv.DictReader(file)}


@pytest.mark.parametrize("path", LISTS_OF_CODES, ids=lambda path: path.name)
def test_lists_are_sorted_well_formed_and_named(path: Path) -> None:
    text = path.read_bytes()
    assert b"\r" not in text
    assert text.endswith(b"\n")
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    codes = [code for code, _ in lines]
    assert header == ["code", "name"]
    assert codes == sorted(set(codes))
    level = "naics6" if path.name.startswith("naics") else "county"
    assert all(is_code(code, level) for code in codes)
    assert all(name and name == " ".join(name.split()) for _, name in lines)


def test_the_table_names_every_list_and_its_years_do_not_meet() -> None:
    named = {file for key in ("naics", "county") for vintage in vintages(key) for file in vintage.files}
    assert named == {path.name for path in LISTS_OF_CODES}
    for key in ("naics", "county"):
        for one, next_one in combinations(vintages(key), 2):
            assert one.last is not None
            assert one.first <= one.last < next_one.first


def test_industries_number_what_the_census_bureau_counts() -> None:
    beyond = rows("naics_not_in_cbp.csv").keys()
    for year, count, manufacturing in ((2007, 1175, 472), (2017, 1057, 360), (2022, 1012, 346)):
        covered = rows(f"naics_{year}.csv").keys()
        assert not covered & beyond
        assert len(covered | beyond) == count
        assert sum(code[:2] in ("31", "32", "33") for code in covered) == manufacturing
        assert not [code for code in covered if code[:3] in ("111", "112", "482", "491", "814") or code[:2] == "92"]
    assert {code for code in beyond if code[:2] == "52"} == {"525110", "525120", "525190", "525920"}


def test_industries_that_changed() -> None:
    before, after = rows("naics_2017.csv"), rows("naics_2022.csv")
    assert not {*REPLACED, *OF_2012} & after.keys()
    assert not {*REPLACED.values(), *OF_2012} & before.keys()
    assert REPLACED.keys() <= before.keys()
    assert set(REPLACED.values()) <= after.keys()
    assert set(IN_BOTH) <= before.keys() & after.keys()
    assert before["454110"] == "Electronic Shopping and Mail-Order Houses"
    assert before["511210"] == after["513210"] == "Software Publishers"
    retail = [{code[:3] for code in codes if code[:2] in ("44", "45")} for codes in (before, after)]
    assert retail[0] == {"441", "442", "443", "444", "445", "446", "447", "448", "451", "452", "453", "454"}
    assert retail[1] == {"441", "444", "445", "449", "455", "456", "457", "458", "459"}


def test_counties_before_and_after_connecticuts_change() -> None:
    before, after = rows("counties_2020.csv"), rows("counties_2022.csv")
    assert (len(before), len(after)) == (3143, 3144)
    assert before.keys() - after.keys() == CONNECTICUT
    assert after.keys() - before.keys() == PLANNING_REGIONS
    assert (len(CONNECTICUT), len(PLANNING_REGIONS)) == (8, 9)
    assert before["09001"] == "Fairfield County, CT"
    assert after["09190"] == "Western Connecticut Planning Region, CT"
    assert all(before[code] == after[code] for code in before.keys() & after.keys())
    by_state = {"02": 30, "06": 58, "10": 3, "11": 1, "13": 159, "15": 5, "21": 120, "44": 5, "48": 254, "51": 133}
    for counties in (before, after):
        assert {state: sum(code[:2] == state for code in counties) for state in by_state} == by_state
        assert {"02063", "02066", "02158", "12086", "46102"} <= counties.keys()
        assert not {"02261", "02270", "12025", "46113", "51515"} & counties.keys()


def test_every_county_has_its_state_and_areas_add_up_to_combined_ones() -> None:
    with (LISTS / "county_levels.csv").open(encoding="utf-8", newline="") as file:
        levels = {row["code"]: row for row in csv.DictReader(file)}
    assert levels.keys() == rows("counties_2020.csv").keys() | rows("counties_2022.csv").keys()
    assert all(row["state"] == code[:2] for code, row in levels.items())
    combined: dict[str, set[str]] = {}
    for row in levels.values():
        combined.setdefault(row["cbsa"], set()).add(row["csa"])
    assert combined.pop("") == {""}
    assert all(len(areas) == 1 for areas in combined.values())
    # Bulletin 13-01: 381 metropolitan and 536 micropolitan areas, 166 combined ones, without Puerto Rico's
    assert (len(combined), len(set.union(*combined.values()) - {""})) == (381 + 536, 166)
    known = {"36061": ("35620", "408"), "11001": ("47900", "548"), "06037": ("31080", "348"), "01005": ("", "")}
    assert {code: (levels[code]["cbsa"], levels[code]["csa"]) for code in known} == known


def test_statewide_and_unclassified_are_valid_besides_the_lists() -> None:
    states = {code[:2] for code in rows("counties_2020.csv")}
    assert len(states) == 51
    assert rows("counties_statewide.csv").keys() == {f"{state}999" for state in states}
    assert rows("naics_unclassified.csv").keys() == {"999990"}
    for year in (2017, 2022):
        vintage = vintage_of("naics", year)
        assert vintage is not None
        assert not vintage.lacks(["999990", "111110"], "naics6")
        assert not vintage.lacks(["99", "92", "31-33"], "naics2")
        assert vintage.lacks(["99", "98", "31"], "naics2") == ["98", "31"]
    for year in (2020, 2023):
        vintage = vintage_of("county", year)
        assert vintage is not None
        assert vintage.lacks(["01999", "09999", "72999", "01001", "02001"], "county") == ["72999", "02001"]


@pytest.mark.parametrize(
    ("key", "year", "first"),
    [
        ("naics", 2006, None),
        ("naics", 2011, 2007),
        ("naics", 2012, None),
        ("naics", 2016, None),
        ("naics", 2017, 2017),
        ("naics", 2021, 2017),
        ("naics", 2022, 2022),
        ("naics", 2026, 2022),
        ("naics", 2027, None),  # NAICS changes every five years
        ("county", 2019, None),
        ("county", 2021, 2020),
        ("county", 2022, 2022),
        ("county", 2024, 2022),
    ],
)
def test_the_vintage_of_a_year(key: str, year: int, first: int | None) -> None:
    vintage = vintage_of(key, year)
    assert (vintage and vintage.first) == first


def test_the_packed_code_finds_the_lists(tmp_path: Path) -> None:
    packed = tmp_path / "prdp.zip"
    subprocess.run([sys.executable, "-m", "jobs.submit", "pack", packed], cwd=ROOT, check=True)
    ask = (
        "import pipeline.plan.domain.code_lists as v; print(v.__file__); "
        "print(v.vintages('naics') + v.vintages('county')); "
        "print(v.vintage_of('county', 2023).lacks(['09001', '09110', '36999'], 'county'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask], cwd=tmp_path, env={"PYTHONPATH": str(packed)}, capture_output=True, check=True
    )
    where, known, lacking = done.stdout.decode().splitlines()
    assert where.startswith(str(packed))
    assert known == str(vintages("naics") + vintages("county"))
    assert lacking == "['09001']"


# --- plans

OLD = {"naics": ("311111", "454110", "722511"), "counties": ("01001", "09001", "09003")}
NEW = {"naics": ("311111", "455110", "722511"), "counties": ("01001", "09110", "09190")}
QUERIES = [{"name": "all", "count": "records", "by": ["nation"], "mechanism": {"kind": "gaussian", "sigma": 1}}]


def write(folder: Path, vintage: dict[str, int], lists: dict[str, tuple[str, ...]], **domain: Any) -> Path:
    files = {"naics": "domain/naics.csv", "county": "domain/counties.csv"}
    whole = {"vintage": vintage} | (domain if "cells" in domain else files | domain)
    return write_world(folder, None, queries=QUERIES, budget=[], domain=whole, **lists)


def refused(folder: Path, path: Path) -> list[str]:
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert caught.value.exit_code == 2
    return without_numbers(line.removeprefix(f"{folder}/") for line in caught.value.lines)


@pytest.mark.parametrize(
    ("vintage", "lists"),
    [
        ({}, OLD),
        ({}, {**OLD, "counties": ("09001", "09110")}),
        ({"naics": 2017}, OLD),
        ({"naics": 2017, "county": 2020}, OLD),
        ({"naics": 2019, "county": 2021}, OLD),
        ({"naics": 2017, "county": 2023}, {**OLD, "counties": NEW["counties"]}),  # published by the older NAICS
        ({"naics": 2022, "county": 2023}, NEW),
        ({"naics": 2023, "county": 2022}, NEW),
        ({"county": 2023}, {**NEW, "naics": OLD["naics"]}),
        ({"naics": 2022, "county": 2023}, {"naics": ("311111", "999990", "111110"), "counties": ("01999", "09110")}),
        ({"naics": 2022}, {"naics": ("11", "31-33", "99"), "counties": ("72001",)}),
    ],
)
@pytest.mark.parametrize("other", [[], ["naics", "county"]])
def test_domains_of_the_declared_vintage(
    tmp_path: Path, vintage: dict[str, int], lists: dict[str, tuple[str, ...]], other: list[str]
) -> None:
    assert load_plan(write(tmp_path, vintage, lists, other=other)).domain.vintage == vintage


WHOLE = "the whole list is of {0}: take another list, or write such a year as domain.vintage.{1}"


@pytest.mark.parametrize(
    ("vintage", "lists", "lines"),
    [
        (
            {"naics": 2022, "county": 2023},
            OLD,
            [
                "domain/naics.csv: no naics codes of the vintage 2022: 454110; "
                + WHOLE.format("2017 to 2021", "naics"),
                "domain/counties.csv: no county codes of the vintage 2023: 09001, 09003; "
                + WHOLE.format("2020 to 2021", "county"),
            ],
        ),
        (
            {"naics": 2017, "county": 2021},
            {"naics": OLD["naics"], "counties": NEW["counties"]},
            [
                "domain/counties.csv: no county codes of the vintage 2021: 09110, 09190; "
                + WHOLE.format("2022 and later", "county")
            ],
        ),
        (
            {"county": 2023},
            {"naics": ("311111",), "counties": ("01001", "09001", "72001")},
            [
                "domain/counties.csv: no county codes of the vintage 2023: 09001, 72001; correct the list, or leave "
                "domain.vintage.county out"
            ],
        ),
        (
            {"county": 2023},
            {"naics": ("311111",), "counties": ("01001", "09110", *sorted(CONNECTICUT))},
            [
                "domain/counties.csv: no county codes of the vintage 2023: 09001, 09003, 09005, 09007, 09009, … "
                "(8 in all); they are of 2020 to 2021, and a list must not mix vintages: correct it"
            ],
        ),
    ],
)
def test_mixed_and_wrong_lists_are_refused(
    tmp_path: Path, vintage: dict[str, int], lists: dict[str, tuple[str, ...]], lines: list[str]
) -> None:
    assert refused(tmp_path, write(tmp_path, vintage, lists)) == lines


def test_listed_cells_are_checked_too(tmp_path: Path) -> None:
    path = write(tmp_path, {"county": 2023}, {}, cells="domain/cells.csv")
    (tmp_path / "domain" / "cells.csv").write_text("naics,county\n311111,01001\n311111,09001\n")
    assert refused(tmp_path, path) == [
        "domain/cells.csv: no county codes of the vintage 2023: 09001; "
        "the whole list is of 2020 to 2021: take another list, or write such a year as domain.vintage.county"
    ]


@pytest.mark.parametrize(
    ("vintage", "lines"),
    [
        (
            {"naics": 2012, "county": 2019},
            [
                "plan.yaml: domain.vintage.naics: no list of this year; known years: 2007 to 2011, 2017 to 2021, "
                "2022 to 2026; or leave it out",
                "plan.yaml: domain.vintage.county: no list of this year; known years: 2020 to 2021, 2022 and later; "
                "or leave it out",
            ],
        ),
        (
            {"naics": 2017, "county": 2024},
            [
                "plan.yaml: domain.vintage: counties of 2024 do not go with NAICS 2017, which is for data of 2017 to "
                "2023; give both the year of the data, or leave one out"
            ],
        ),
    ],
)
def test_years_without_a_list_and_years_of_different_data(
    tmp_path: Path, vintage: dict[str, int], lines: list[str]
) -> None:
    lists = {"naics": ("311111", "722511"), "counties": ("01001", "36061")}  # codes of every vintage
    assert refused(tmp_path, write(tmp_path, vintage, lists)) == lines
