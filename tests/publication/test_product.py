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
import pyarrow.parquet as pq
import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.publication.product.derived_columns import summed
from pipeline.publication.product.product_files import _short
from pipeline.publication.product.product_spec import load_product
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
    "layouts": [LAYOUT | {"rows": [{"by": ["region"], "values": {"sold": "sold", "farms": "farms"}}], "columns": BOTH}]
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
        ({"sold": SHORT}, ONLY, "the cells of the table sold are not the same in each region"),
        ({"sold": OTHER}, ONLY, "the cells of the table sold are not the same in each region"),
        ({"sold": SOLD, "farms": WIDER}, ONLY | BESIDE, "sales.csv: the tables sold and farms have not the same"),
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
            "one of codes, value, flag and notes is needed",
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
    (tmp_path / "areas.csv").write_text("REGION;KM2\nN;12.5\nS;7\n")
    read = load_product(tmp_path / "farms.yaml", 1999)
    assert [table.name for table in read.tables] == ["sales_region", "sales_district"]
    assert [layout.file for layout in read.layouts] == ["sales99.txt"]


def test_sums_are_held_where_they_would_wrap() -> None:
    most = 2**63 - 1
    cube = np.array([[most, most], [most, -5], [-most, -most]])
    assert summed(cube, (1,)).tolist() == [most, most - 5, -most]


def test_figures_for_people() -> None:
    errors = np.array([0.0, 1 / 3, 12345.6, 0.000123456, np.inf, 31.62277])
    assert _short(errors).tolist() == [0.0, 0.3333, 12350.0, 0.0001235, np.inf, 31.62]
    assert coefficient(np.array([0, 0, -4, 8]), np.array([0.0, 1, 1, 2])).tolist() == [0.0, np.inf, 25.0, 25.0]
    assert rounded_to(np.array([14.9, -15.1, 1e300]), 10).tolist() == [10, -20, int(np.nextafter(2.0**63, 0))]
    assert rounded_to(np.array([2**63 - 1])).tolist() == [2**63 - 1]
