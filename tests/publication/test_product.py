"""Products of other statistics, and what is refused: nothing of County Business Patterns is in the code."""

import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.publication.product.product_layouts import _summed
from pipeline.publication.product.product_spec import load_product
from pipeline.publication.product.products import _short
from pipeline.publication.release_folder import coefficient, rounded_to
from prdp import PlanError, StateError
from tests.support.published import Table, drawn, publish
from tests.support.submit import Place, submit
from tests.support.world import records, write_world

REGIONS, COMMODITIES = ("N", "S"), ("cattle", "hay, other", "wheat")
FARMS: dict[str, Any] = {
    "product": "farms",
    "title": "Farms",
    "levels": {
        "region": {"meaning": "Region", "texts": {"N": "North", "S": "South"}},
        "commodity": {"meaning": "What is sold"},
    },
    "measures": {"sold": {"meaning": "Sales", "unit": "$"}, "farms": {"meaning": "Farms", "unit": "farms"}},
    "basic": {"round": 10, "withhold_from": 50},
    "flags": [{"flag": "a", "under": 10, "meaning": "good"}, {"flag": "b", "meaning": "bad"}],
    "tables": [{"name": "sales", "values": {"sold": "sold", "farms": "farms"}}],
    "layouts": [
        {
            "file": "sales.csv",
            "about": "Sales by region",
            "rows": [
                {"by": ["region"], "values": {"sold": "sold"}},
                {"by": ["region", "commodity"], "values": {"sold": "sold"}},
            ],
            "order": ["WHAT"],
            "columns": [
                {"name": "REGION", "meaning": "Region", "codes": {"region": {"then": "."}}},
                {
                    "name": "WHAT",
                    "meaning": "Commodity",
                    "codes": {"commodity": {"characters": [1, 3]}},
                    "otherwise": "*",
                },
                {"name": "SOLD", "meaning": "Sales", "value": "sold"},
                {"name": "GOOD", "meaning": "How good it is", "flag": "sold"},
            ],
        }
    ],
}
KEYS = {"region": REGIONS, "commodity": COMMODITIES}
SOLD = Table(KEYS, np.array([1000, -400, 44, 66.6, 105, 0.4]), np.array([10, 10, 20, 30, 123.456, 0]))
COUNTED = Table(KEYS, np.array([1, 2, 3, 4, 5, 6]), np.full(6, 1.5))


def product(folder: Path, published: Mapping[str, Table], **changes: Any) -> Path:
    """Write a release and a product's file, make the product, and return its folder."""
    release = publish(folder, published)
    (folder / "farms.yaml").write_text(yaml.safe_dump(FARMS | changes, sort_keys=False))
    prdp.product(release, folder / "out", product=folder / "farms.yaml")
    return folder / "out"


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))[1:]


def test_another_agency_writes_its_own_product(tmp_path: Path) -> None:
    out = product(tmp_path, {"sold": SOLD, "farms": COUNTED})
    assert rows(out / "layouts" / "sales.csv") == [
        ["N.", "*", "644", "a"],  # error √600
        ["N.", "cat", "1000", "a"],
        ["N.", "hay", "-400", "b"],
        ["N.", "whe", "44", "b"],
        ["S.", "*", "172", "b"],
        ["S.", "cat", "67", "b"],
        ["S.", "hay", "105", "b"],
        ["S.", "whe", "0", "a"],
    ]
    basic = [row[:7] for row in rows(out / "basic" / "sales.csv")]
    assert basic == [
        ["N", "North", "cattle", "1000", "10", "1", ""],
        ["N", "North", "hay, other", "", "10", "", "S"],
        ["N", "North", "wheat", "40", "20", "45.5", ""],
        ["S", "South", "cattle", "70", "30", "45", ""],
        ["S", "South", "hay, other", "", "123.5", "", "S"],
        ["S", "South", "wheat", "0", "0", "0", ""],
    ]
    research = pq.read_table(out / "research" / "sales.parquet").to_pydict()
    assert research["sold"] == SOLD.values.tolist()
    assert research["sold_variance"] == (SOLD.errors**2).tolist()
    assert research["farms"] == [1, 2, 3, 4, 5, 6]
    assert "sales.csv, .parquet,WHAT,text,,Commodity" in (out / "dictionary.csv").read_text().replace('"', "")


def test_other_has_no_row_in_a_layout_but_is_in_its_sums(tmp_path: Path) -> None:
    keys = {"region": (*REGIONS, "other"), "commodity": ("cattle", "other")}
    sold = Table(keys, np.array([7, 4, 30, 2, 1000, 5000]), np.full(6, 0.1))
    out = product(tmp_path, {"sold": sold, "farms": sold})
    shown = [["N.", "*", "11", "a"], ["N.", "cat", "7", "a"], ["S.", "*", "32", "a"], ["S.", "cat", "30", "a"]]
    assert rows(out / "layouts" / "sales.csv") == shown
    assert len(pq.read_table(out / "research" / "sales.parquet")) == 6


def test_the_same_releases_give_the_same_bytes(tmp_path: Path) -> None:
    out = product(tmp_path, {"sold": SOLD, "farms": COUNTED})
    prdp.product([tmp_path / "made-up"], tmp_path / "again", product=tmp_path / "farms.yaml")
    files = sorted(path.relative_to(out) for path in out.rglob("*") if path.is_file())
    assert len(files) == 10
    assert all((out / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files)


def test_tables_of_several_files_are_read_on(tmp_path: Path) -> None:
    keys = {"region": tuple(f"{i:05d}" for i in range(3001)), "commodity": tuple(f"{i:03d}" for i in range(100))}
    sold = drawn(keys)
    out = product(tmp_path, {"sold": sold, "farms": drawn(keys, 2)})
    assert pq.read_table(out / "research" / "sales.parquet")["sold"].to_pylist() == sold.values.tolist()
    layout = pq.read_table(out / "layouts" / "sales.parquet")
    values = sold.values.reshape(3001, 100)
    wanted = np.concatenate([values.sum(axis=1, keepdims=True), values], axis=1)
    assert (layout["SOLD"].to_numpy().reshape(3001, 101) == wanted).all()
    assert layout["REGION"].to_pylist()[::101] == [f"{code}." for code in keys["region"]]


CELLS = tuple((r, c) for r in REGIONS for c in COMMODITIES)
GROUPWISE = Table(KEYS, SOLD.values, SOLD.errors, "groupwise_log")
SHORT = Table(KEYS, SOLD.values[:5], SOLD.errors[:5], cells=CELLS[:5])
OTHER = Table(KEYS, SOLD.values, SOLD.errors, cells=(*CELLS[:5], ("S", "zebra")))
TURNED = Table(KEYS, SOLD.values, SOLD.errors, cells=(*CELLS[3:], *CELLS[:3]))
LISTED = Table(
    dict(reversed(KEYS.items())), SOLD.values[:5], SOLD.errors[:5], cells=tuple((c, r) for r, c in CELLS[:5])
)
LAYOUT = FARMS["layouts"][0]
ONLY = {"tables": [{"name": "sales", "values": {"sold": "sold"}}]}
BESIDE = {
    "layouts": [LAYOUT | {"rows": [LAYOUT["rows"][1], {"by": ["region", "commodity"], "values": {"sold": "farms"}}]}]
}

WIDER = drawn(KEYS | {"region": (*REGIONS, "W")})
BOTH = [*LAYOUT["columns"], {"name": "FARMS", "meaning": "Farms", "value": "farms"}]
TOGETHER = {
    "layouts": [
        LAYOUT | {"rows": [{"by": ["region"], "values": {"sold": "sold", "farms": "farms"}}], "columns": BOTH},
    ]
}


@pytest.mark.parametrize(
    ("tables", "changes", "message"),
    [
        ({"sold": SOLD}, {}, r"^sales: no folder has the table farms$"),
        ({"farms": COUNTED}, ONLY, r"^sales.csv: no folder has the table sold$"),
        (
            {"sold": GROUPWISE, "farms": COUNTED},
            {},
            "sum over commodity of the table sold, whose noise is not additive",
        ),
        ({"sold": SOLD, "farms": TURNED}, {}, "sales: the tables sold and farms have not the same cells"),
        ({"sold": SOLD, "farms": SHORT}, {}, "sales: the tables sold and farms have not the same cells"),
        ({"sold": SHORT}, ONLY, "the cells of the table sold are not the same in each region"),
        ({"sold": OTHER}, ONLY, "the cells of the table sold are not the same in each region"),
        (
            {"sold": SOLD, "farms": TURNED},
            ONLY | BESIDE,
            "sales.csv: the tables sold and farms have not the same",
        ),
        (
            {"sold": SOLD, "farms": WIDER},
            ONLY | BESIDE,
            "sales.csv: the tables sold and farms have not the same",
        ),
        ({"sold": SOLD, "farms": WIDER}, ONLY | TOGETHER, "sales.csv: the tables sold and farms have not"),
        ({"sold": WIDER, "farms": SOLD}, ONLY | TOGETHER, "sales.csv: the tables sold and farms have not"),
        ({"sold": LISTED}, ONLY, "sales.csv: the table sold is a list of cells with the keys commodity, region"),
        ({"sold": drawn({"region": REGIONS})}, ONLY, "needs commodity, which the table sold has not"),
        ({"sold": drawn(KEYS | {"year": ("1",)})}, ONLY | {"layouts": []}, "levels.year: say what it is"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, tables: dict[str, Table], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        product(tmp_path, tables, **changes)
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"titel": "x"}, r"farms.yaml: line \d+: titel: unknown key; nearest known key: title"),
        ({"flags": FARMS["flags"][:1]}, r"line \d+: flags\[0\].under: all flags but the last"),
        ({"measures": {"region": {"meaning": "x", "unit": "y"}}}, "measures.region: must be no level's name"),
        ({"basic": {"round": 0}}, "basic.round: must be a whole number from 1"),
        ({"layouts": [LAYOUT | {"file": "../x.csv"}]}, r"layouts\[0\].file: must be a name that ends with"),
        ({"layouts": [LAYOUT | {"order": ["SOLD"]}]}, r"order\[0\]: must be a column of codes"),
        (
            {"layouts": [LAYOUT | {"columns": [{"name": "A", "meaning": "a"}]}]},
            "one of codes, value and flag is needed",
        ),
        (
            {
                "layouts": [
                    LAYOUT | {"columns": [{"name": "A", "meaning": "a", "value": "sold", "of": {"region": "N"}}]}
                ]
            },
            r"columns\[0\].of.region: must not be a level of the rows",
        ),
        ({"tables": [{"name": "a{yy}", "values": {"sold": "sold"}}]}, "year: the names of files hold it"),
        ({"tables": FARMS["tables"] * 2}, "two of its files are called sales"),
        ({"layouts": [LAYOUT, LAYOUT | {"file": "sales.txt"}]}, "two of its files are called sales"),
        ({"tables": [{"name": "../x", "values": {"sold": "sold"}}]}, r"file '../x': use letters"),
        ({"levels": {"region": {"meaning": "x", "names": ["nowhere.csv"]}}}, "nowhere.csv: no list of names"),
    ],
)
def test_mistakes_in_a_product_name_file_and_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        product(tmp_path, {"sold": SOLD, "farms": COUNTED}, **changes)


def test_what_is_not_published_is_no_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = product(tmp_path, {"sold": SOLD, "farms": COUNTED})
    release, yaml_file = tmp_path / "made-up", tmp_path / "farms.yaml"
    with pytest.raises(StateError, match="it exists and is no empty folder"):
        prdp.product(release, out, product=yaml_file)
    with pytest.raises(StateError, match="which is a release's folder"):
        prdp.product(release, release / "out", product=yaml_file)
    with pytest.raises(PlanError, match="both releases have a table sold"):
        prdp.product([release, release], tmp_path / "twice", product=yaml_file)
    with pytest.raises(PlanError, match="product='cpb': unknown product"):
        prdp.product(release, tmp_path / "none", product="cpb")
    part = next(release.rglob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-1] + b"\0")
    with pytest.raises(StateError, match="differs from the manifest"):
        prdp.product(release, tmp_path / "changed", product=yaml_file)
    assert not list((tmp_path / "changed").glob("*"))


def test_a_run_that_stops_leaves_nothing_that_looks_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.publication.product.products.code_digest", stop)
    with pytest.raises(KeyboardInterrupt):
        product(tmp_path, {"sold": SOLD, "farms": COUNTED})
    assert not list((tmp_path / "out").iterdir())


def test_a_real_release_becomes_a_product_without_ledger_microdata_or_engine(tmp_path: Path) -> None:
    place = Place(write_world(tmp_path, records(100)), tmp_path)
    submit(place)
    for folder in ("microdata", "state"):
        shutil.rmtree(tmp_path / folder)
    levels = ("naics6", "naics3", "naics2", "county", "state")
    spec = {
        "product": "small",
        "title": "Small",
        "levels": {level: {"meaning": level} for level in levels},
        "measures": {"total": {"meaning": "Total", "unit": "1"}},
        "tables": [{"name": name, "values": {"total": name}} for name in ("establishments", "payroll_state")],
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(spec))
    call = ["product", str(place.out / "small-release"), "--out", str(tmp_path / "made")]
    program = (
        "import sys; from jobs.cli import main; code = main(sys.argv[1:]); "
        "print(code, sorted({'dask', 'pyspark', 'distributed'} & set(sys.modules)))"
    )
    words = [sys.executable, "-c", program, *call, "--product", str(tmp_path / "small.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
    released = prdp.read_release(place.out / "small-release")
    for name in ("establishments", "payroll_state"):
        read = pq.read_table(tmp_path / "made" / "research" / f"{name}.parquet").to_pandas()
        assert (read["total"] == released[name]["value"]).all()
        assert (read["total_variance"] == released[name]["standard_error"] ** 2).all()
    manifest = json.loads((tmp_path / "made" / "product.json").read_text())
    assert manifest["releases"][0]["attempt"] == released.verified.attempt


def test_the_command_prints_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    product(tmp_path, {"sold": SOLD, "farms": COUNTED})
    call = ["product", str(tmp_path / "made-up"), "--product", str(tmp_path / "farms.yaml"), "--json"]
    assert main([*call, "--out", str(tmp_path / "json")]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "json" / "product.json").read_text())
    assert main([*call, "--out", str(tmp_path / "json")]) == 5
    assert main(["product", str(tmp_path / "made-up"), "--out", str(tmp_path / "x")]) == 2
    assert "give --year" in capsys.readouterr().err
    assert main([*call, "--out", str(tmp_path / "x"), "--year", "23"]) == 2
    assert "--year 23: a year such as 2023 is needed" in capsys.readouterr().err


def test_the_example_of_the_page_is_a_product(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "product.md").read_text()
    (tmp_path / "farms.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    read = load_product(tmp_path / "farms.yaml", 1999)
    assert [table.name for table in read.tables] == ["sales_region", "sales_district"]
    assert [layout.file for layout in read.layouts] == ["sales99.txt"]


def test_sums_are_held_where_they_would_wrap() -> None:
    most = 2**63 - 1
    cube = np.array([[most, most], [most, -5], [-most, -most]])
    assert _summed(cube, (1,)).tolist() == [most, most - 5, -most]


def test_figures_for_people() -> None:
    errors = np.array([0.0, 1 / 3, 12345.6, 0.000123456, np.inf, 31.62277])
    assert _short(errors).tolist() == [0.0, 0.3333, 12350.0, 0.0001235, np.inf, 31.62]
    assert coefficient(np.array([0, 0, -4, 8]), np.array([0.0, 1, 1, 2])).tolist() == [0.0, np.inf, 25.0, 25.0]
    assert rounded_to(np.array([14.9, -15.1, 1e300]), 10).tolist() == [10, -20, int(np.nextafter(2.0**63, 0))]
    assert rounded_to(np.array([2**63 - 1])).tolist() == [2**63 - 1]


def test_reconciled_figures_go_before_released_ones(tmp_path: Path) -> None:
    queries: list[dict[str, Any]] = [
        {"name": "people_county", "sum": "employment", "by": ["county", "naics2"]},
        {"name": "people_state", "sum": "employment", "by": ["state", "naics2"]},
    ]
    for each in queries:
        each["mechanism"] = {"kind": "gaussian", "sigma": 40}
    place = Place(write_world(tmp_path, records(500), queries=queries), tmp_path)
    release = Path(place.out) / submit(place).release
    made = prdp.reconcile(release, tmp_path / "reconciled")
    columns = [
        {"name": "STATE", "meaning": "State", "codes": {"state": {}}},
        {"name": "PEOPLE", "meaning": "All", "value": "people"},
        {"name": "GOOD", "meaning": "How good it is", "flag": "people"},
    ]
    spec: dict[str, Any] = {
        "product": "people",
        "title": "People",
        "levels": {level: {"meaning": level} for level in ("county", "state", "naics2")},
        "measures": {"people": {"meaning": "People", "unit": "people"}},
        "flags": [{"flag": "a", "under": 3, "meaning": "good"}, {"flag": "b", "meaning": "bad"}],
        "tables": [{"name": "counties", "values": {"people": "people_county"}}],
        "layouts": [
            {
                "file": "states.csv",
                "about": "States",
                "rows": [{"by": ["state"], "values": {"people": "people_state"}}],
                "columns": columns,
            }
        ],
    }
    (tmp_path / "people.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    call = ["product", release, "--product", tmp_path / "people.yaml", "--reconciled", tmp_path / "reconciled"]
    assert main([*map(str, call), "--out", str(tmp_path / "made")]) == 0
    research = pq.read_table(tmp_path / "made" / "research" / "counties.parquet").to_pandas()
    table = made["people_county"]
    np.testing.assert_array_equal(research.people, table.value)
    np.testing.assert_array_equal(research.people_published, table.published)
    np.testing.assert_array_equal(research.people_variance, table.standard_error**2)
    assert (research.people_published_variance == 1600).all()
    basic = pq.read_table(tmp_path / "made" / "basic" / "counties.parquet").to_pandas()
    np.testing.assert_array_equal(basic.people.dropna(), table.display[basic.people.notna()])
    # A layout's sum over industries is that of estimates, rounded; its flag takes the less of two bounds of its error.
    how = {"value": "sum", "standard_error": "sum", "published": "size"}
    states = made["people_state"].groupby("state").agg(how)
    found = rows(tmp_path / "made" / "layouts" / "states.csv")
    assert [[state, int(value)] for state, value, _ in found] == [[s, round(v)] for s, v in states.value.items()]
    errors = np.minimum(40 * states.published**0.5, states.standard_error)
    assert [flag for *_, flag in found] == ["a" if each < 3 else "b" for each in 100 * errors / states.value]
    manifest = json.loads((tmp_path / "made" / "product.json").read_text())
    assert manifest["reconciled"]["tables"] == ["people_county", "people_state"]
    dictionary = (tmp_path / "made" / "dictionary.csv").read_text()
    for told in ('people,number,people,"People, reconciled"', "people_published_variance,number,(people)²"):
        assert told in dictionary
    # Of other releases it is refused.
    place = Place(write_world(tmp_path / "2", records(500), queries=queries), tmp_path / "2")
    call[1] = Path(place.out) / submit(place, key=None).release
    with pytest.raises(PlanError, match="was made of the release small-release, which is not given, or differs"):
        prdp.product(call[1], tmp_path / "x", product=tmp_path / "people.yaml", reconciled=tmp_path / "reconciled")


SIZED = ("0-4", "5-999", "1000-1499", "1500-2499", "2500-4999", "5000+")


def test_a_file_of_reconciled_tables_adds_up_in_each_row(tmp_path: Path) -> None:  # noqa: PLR0915 — one run for all
    classes = [0, 5, 1000, 1500, 2500, 5000]
    micro = records(3000)
    people = np.random.default_rng(7).choice([2, 50, 1200, 2000, 3000, 9000], 3000)
    districts = np.where(np.arange(3000) % 3 == 0, "0101", "0602")
    micro = micro.set_column(3, "employment", pa.array(people)).append_column("district", pa.array(districts))
    for code in ("0101", "0602"):
        (tmp_path / "domain").mkdir(exist_ok=True)
        with (tmp_path / "domain" / "cd.csv").open("a") as file:
            file.write(("" if file.tell() else "code,name\n") + f"{code},District {code}\n")
    gaussian = {"kind": "gaussian", "sigma": 3}
    queries = [
        {"name": "est", "count": "records", "by": ["naics2", "size", "county"], "mechanism": gaussian},
        {"name": "est_state", "count": "records", "by": ["state", "size"], "mechanism": gaussian},
        {"name": "cd_est", "count": "records", "by": ["cd"], "mechanism": gaussian},
        {"name": "emp", "sum": "employment", "by": ["naics2", "county", "size"], "mechanism": gaussian},
    ]
    world = write_world(
        tmp_path,
        micro,
        dataset={"keys": {"naics": "naics", "county": "county", "cd": "district"}},
        domain={
            **{"naics": "domain/naics.csv", "county": "domain/counties.csv", "cd": "domain/cd.csv"},
            "size": {"of": "employment", "classes": classes},
        },
        queries=queries,
        derived=[{"name": "est_all", "count": "records", "by": ["naics2", "county"]}],
    )
    place = Place(world, tmp_path)
    release = Path(place.out) / submit(place).release
    made = prdp.reconcile(release, tmp_path / "reconciled")
    sizes = [
        {"name": f"n{number}", "meaning": size, "value": "sizes", "of": {"size": size}}
        for number, size in enumerate(SIZED)
    ]
    emp = [
        {"name": f"e{number}{end}", "meaning": size, show: "emp", "of": {"size": size}}
        for number, size in enumerate(SIZED[:2])
        for end, show in (("nf", "flag"), ("", "value"))
    ]
    thousand: dict[str, Any] = {
        "name": "n1000",
        "meaning": "1000+",
        "value": "sizes",
        "of": {"size": ["1000+", *SIZED[2:]]},
    }
    absent = {"name": "n9", "meaning": "none", "value": "sizes", "of": {"size": "9+"}, "optional": True}
    columns: list[Any] = [
        {"name": "naics", "meaning": "Sector", "codes": {"naics2": {}}, "otherwise": "--"},
        {"name": "fips", "meaning": "County", "codes": {"county": {"characters": [3, 5]}}},
        {"name": "est_nf", "meaning": "Flag", "flag": "est"},
        {"name": "est", "meaning": "All", "value": "est"},
        [*sizes, thousand, absent, *emp],
    ]
    layout = {
        "file": "co.txt",
        "about": "Counties",
        "rows": [
            {"by": ["county", "naics2"], "values": {"est": ["nowhere", "est_all", "est"], "sizes": "est", "emp": "emp"}}
        ],
        "columns": columns,
        "sums": {"est": [each["name"] for each in sizes], "n1000": ["n2", "n3", "n4", "n5"]},
        "withhold": {"interval_holds_zero": True},
        "ranges": True,
    }
    district = {
        "file": "cd.txt",
        "about": "Districts",
        "optional": True,
        "rows": [{"by": ["cd"], "values": {"est": "cd_est"}}],
        "columns": [
            {"name": "cd", "meaning": "District", "codes": {"cd": {"characters": [3, 4]}}},
            {"name": "name", "meaning": "Its name", "codes": {"cd": {"name": True}}},
            {"name": "est", "meaning": "All", "value": "est"},
        ],
    }
    other = district | {"file": "none.txt", "rows": [{"by": ["cd"], "values": {"est": "cd_est_total"}}]}
    spec = {
        "product": "small",
        "title": "Small",
        "reconciled": True,
        "zip": True,
        "csv": False,
        "levels": {level: {"meaning": level} for level in ("county", "naics2", "cd", "size")},
        "measures": {name: {"meaning": name, "unit": name} for name in ("est", "sizes", "emp")},
        "flags": [{"flag": "G", "under": 2, "meaning": "low"}, {"flag": "J", "meaning": "high"}],
        "tables": [{"name": "all", "by": ["county", "size", "naics2"], "values": {"est": "est", "emp": "emp"}}],
        "layouts": [layout, district, other],
    }
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    done = prdp.product(tmp_path / "reconciled", tmp_path / "made", product=tmp_path / "small.yaml")
    assert done["left_out"] == ["none.txt"]
    assert prdp.verify(tmp_path / "made").files == len(done["files"])
    prdp.product([tmp_path / "reconciled", release], tmp_path / "again", product=tmp_path / "small.yaml")
    archives = [tmp_path / folder / "layouts" / "cd.zip" for folder in ("made", "again")]
    assert archives[0].read_bytes() == archives[1].read_bytes()
    layouts = tmp_path / "made" / "layouts"
    found = pq.read_table(layouts / "co.parquet").to_pandas()
    ranges = pq.read_table(layouts / "co_ranges.parquet").to_pandas()
    cells = made["est_all"].sort_values(["county", "naics2"])
    assert found.fips.tolist() == [county[2:] for county in cells.county]
    outside = (cells.display < np.floor(cells.lower)) | (cells.display > np.ceil(cells.upper))
    withheld = ((cells.lower <= 0) | (cells.standard_error >= cells.value) | outside).to_numpy()
    assert 0 <= withheld.sum() < len(found)
    assert (found.est.isna() == withheld).all()
    assert (found.est_nf[withheld] == "S").all()
    assert (found.est[~withheld] == cells.display.to_numpy()[~withheld]).all()
    assert (ranges.est_low == np.maximum(np.floor(cells.lower), 0).to_numpy()).all()
    assert (ranges.est_high == np.ceil(cells.upper).to_numpy()).all()
    complete = found.dropna(subset=["est", *(each["name"] for each in sizes)])
    assert len(complete)
    assert (complete[[each["name"] for each in sizes]].sum(axis=1) == complete.est).all()
    assert (complete[["n2", "n3", "n4", "n5"]].sum(axis=1) == complete.n1000).all()
    assert found.n9.isna().all()
    wanted = made["emp"].query("size == '5-999'").sort_values(["county", "naics2"]).display.to_numpy()
    assert (found.e1 == wanted)[found.e1.notna()].all()
    assert pq.read_table(layouts / "cd.parquet").to_pydict()["name"] == ["District 0101", "District 0602"]
    research = pq.read_table(tmp_path / "made" / "research" / "all.parquet").to_pandas()
    turned = made["est"].set_index(["county", "size", "naics2"]).value
    assert (
        turned[list(zip(research.county, research["size"], research.naics2, strict=True))] == research.est.to_numpy()
    ).all()
    # Released figures do not add up, and are shown where they are asked for alone; a class left out is noticed.
    with pytest.raises(PlanError, match="small shows reconciled figures"):
        prdp.product(release, tmp_path / "refused", product=tmp_path / "small.yaml")
    spec["tables"], spec["layouts"] = [], [layout | {"sums": {"est": ["n0", "n1"]}}]
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    with pytest.raises(PlanError, match=r"co.txt: est is not the sum of n0, n1: the tables est_all and est"):
        prdp.product(tmp_path / "reconciled", tmp_path / "short", product=tmp_path / "small.yaml")
    prdp.product(release, tmp_path / "released", product=tmp_path / "small.yaml", released=True)
