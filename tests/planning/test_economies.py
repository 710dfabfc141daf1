"""Economies as data, the three example products that they make, and five years of one template plan."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import prdp
from benchmarks.examples import EXAMPLES, Example, layouts_against_truth, make
from jobs.cli import main
from pipeline.plan.plan_text import written
from pipeline.planning.economy.inventories import HOME, economies
from prdp import PlanError, StateError

BY_NAME = {each.name: each for each in EXAMPLES}


def small(name: str, folder: Path, **changes: Any) -> Path:
    """Write an economy with the lists of a few industries and one state, as a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    data = yaml.safe_load((HOME / f"{name}.yaml").read_text())
    for key in ("plan", "product", "family"):
        if key in data:
            data[key] = str((HOME / data[key]).resolve())
    for key, spec in data["lists"].items():
        if "copy" in spec:
            rows = (HOME / spec["copy"]).read_text().splitlines()
            kept = {
                "naics": ("111", "236", "3118", "722"),
                "counties": ("56",),
                "inhabitants": ("56",),
                "states": ("19", "20", "31"),
            }[key]
            spec["copy"] = str(folder / f"{key}.csv")
            chosen = [row for row in rows[1:] if row.startswith(kept)]
            Path(spec["copy"]).write_text("\n".join([rows[0], *chosen]) + "\n")
    path = folder / "economy.yaml"
    path.write_text(written(data | changes))
    return path


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_each_example_is_made_and_held_against_the_truth(example: Example, tmp_path: Path) -> None:
    make(example, 4000, tmp_path / "made", small(example.name, tmp_path / "small"))


def test_the_check_sees_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: microdata that are not those of the release."""
    read = pd.read_parquet

    def other(path: Path, *arguments: Any, **options: Any) -> pd.DataFrame:
        frame = read(path, *arguments, **options)
        return frame.assign(sales=frame["sales"] * 100) if "farm_id" in frame else frame

    monkeypatch.setattr(pd, "read_parquet", other)
    with pytest.raises(AssertionError, match="state_commodity_sales"):
        make(BY_NAME["farms"], 4000, tmp_path / "made", small("farms", tmp_path / "small"))


def test_the_check_of_layouts_sees_numbers_of_others(tmp_path: Path) -> None:
    """The broken twin: figures per head over a third of the inhabitants."""
    out = tmp_path / "made"
    make(BY_NAME["labour"], 4000, out, small("labour", tmp_path / "small"))
    people = pd.read_csv(out / "domain" / "inhabitants.csv", dtype={"county": str})
    people.assign(population=people["population"] * 3).to_csv(out / "domain" / "inhabitants.csv", index=False)
    plan = prdp.load_plan(out / "plan.yaml", set=BY_NAME["labour"].values)
    with pytest.raises(AssertionError, match="emplvl_per_1000"):
        list(layouts_against_truth(plan, out))


def test_five_years_of_one_plan_cost_what_explain_says(tmp_path: Path) -> None:
    economy = small("labour", tmp_path / "small")
    ledger = prdp.create_ledger(tmp_path / "ledger" / "ledger.sqlite")
    years = [str(year) for year in range(2020, 2025)]
    micro = {}
    for seed, year in enumerate(years):
        micro[year] = prdp.generate(3000, tmp_path / year, economy=economy, seed=seed).parent
    plan_file = micro["2020"] / "plan.yaml"
    ledger.register("labour", micro["2020"] / "family.yaml")
    folders = {}
    for year in years:
        plan = prdp.load_plan(plan_file, set={"year": year, "quarter": "1"})
        data = micro[year] / "microdata"
        folders[year] = plan.release(data, ledger=ledger, out=tmp_path / "out").path
    at = {"month1": 10, "month2": 10, "month3": 10, "wages": 150000}
    (row,) = plan.explain(at, years=5).years.query("at.str.contains('month1=10,')").to_dict("records")
    spent = ledger.spent(at=at).by_year.query("kind == 'family' and year == 'all'")
    assert float(spent["spent"].iloc[0]) == pytest.approx(row["rho_same"], rel=1e-9)
    assert row["rho_growing"] > row["rho_same"]
    # changes between two members are columns of a product, and the true ones lie in their ranges
    product = yaml.safe_load((HOME.parent / "products" / "labour.yaml").read_text())
    product["derived"] = {
        "growth": {"meaning": "Change", "unit": "%", "change": "month3", "relative": True, "times": 100, "decimals": 1}
    }
    layout = product["layouts"][0]
    layout["rows"] = [{"by": ["state", "ownership"], "values": {"month3": "state_subsector_month3"}}]
    layout["columns"] = [*layout["columns"][:2], {"name": "growth", "meaning": "Change", "value": "growth"}]
    layout |= {"order": ["own_code"], "leave_out_empty": False}
    (tmp_path / "product.yaml").write_text(
        yaml.safe_dump(product | {"tables": [], "lists": {}, "layouts": [layout]}, sort_keys=False)
    )
    files = tmp_path / "files"
    prdp.product(folders["2024"], files, product=tmp_path / "product.yaml", since=folders["2023"])
    ranges = pd.read_csv(files / "layouts" / "labour24_ranges.csv", dtype=str).set_index("own_code")
    totals = [
        pd.read_parquet(micro[year] / "microdata").groupby("ownership")["month3"].sum() for year in ("2024", "2023")
    ]
    true = 100 * (totals[0] / totals[1] - 1)
    held = [
        float(ranges["growth_low"][own]) <= change <= float(ranges["growth_high"][own])
        for own, change in true.items()
        if pd.notna(ranges["growth_low"][own])
    ]
    assert len(held) >= 2
    assert sum(held) >= len(held) - 1


def test_microdata_follow_their_seed_and_their_file(tmp_path: Path) -> None:
    assert economies() == ["enterprises", "farms", "labour"]
    folders = [prdp.generate(5000, tmp_path / str(i), economy="farms", seed=s).parent for i, s in enumerate((3, 3, 4))]
    one, same, other = (
        hashlib.sha256(next(folder.glob("microdata/*.parquet")).read_bytes()).hexdigest() for folder in folders
    )
    assert one == same != other
    frame = pd.read_parquet(folders[0] / "microdata")
    assert len(frame) == 5000 == frame["farm_id"].nunique()
    assert 5000 / frame["holding_id"].nunique() == pytest.approx(1.15, rel=0.03)  # records of a holding, as stated
    assert (frame["sales"] == 0).mean() == pytest.approx(0.1, abs=0.02)
    assert frame["acres"].min() >= 1
    spread = np.log(frame.groupby("state")["acres"].median().clip(lower=1)).std()
    assert 0.2 < spread < 1  # of states, as stated about 0.5
    assert {path.name for path in folders[0].iterdir()} == {"microdata", "domain", "plan.yaml", "product.yaml"}
    with pytest.raises(StateError, match="no empty folder"):
        prdp.generate(10, folders[0], economy="farms")


FARMS = yaml.safe_load((HOME / "farms.yaml").read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colums": {}}, r"line \d+: colums: unknown key; nearest known key: columns"),
        ({"columns": {"state": {"codes": "states"}}}, r"line \d+: columns.state.id: missing key"),
        (
            {"columns": FARMS["columns"] | {"x": {"codes": "county"}}},
            r"line \d+: columns.x.codes: must be one of states",
        ),
        ({"columns": FARMS["columns"] | {"x": {}}}, r"line \d+: columns.x: one of id, codes and median is needed"),
        ({"columns": FARMS["columns"] | {"x": {"median": 1, "times": ["state"]}}}, "state is no column of numbers"),
        ({"columns": FARMS["columns"] | {"x": {"median": 1, "by": {"acres": 1}}}}, "acres is no column of codes"),
        ({"columns": FARMS["columns"] | {"x": {"median": 1, "zero": 1}}}, r"line \d+: columns.x.zero: must be below 1"),
        ({"columns": FARMS["columns"] | {"x": {"median": 0}}}, r"columns.x.median: must be above 0"),
        ({"lists": {**FARMS["lists"], "x": {}}}, r"line \d+: lists.x: must have either copy"),
        ({"lists": {**FARMS["lists"], "x": {"rows": [["a"], ["b"]]}}}, "lists.x.code: code is no column of its rows"),
        ({"plan": "nowhere.yaml"}, "plan: .*nowhere.yaml: no such file"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = small("farms", tmp_path / "small", **change)
    with pytest.raises(PlanError, match=message) as caught:
        prdp.generate(10, tmp_path / "out", economy=path)
    assert str(path) in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_lists_have_each_code_once(tmp_path: Path) -> None:
    """Else columns of microdata would have texts twice in their dictionaries (tests/engines/test_writers.py)."""
    states = {"rows": [["code"], ["19"], ["20"], ["19"]]}
    path = small("farms", tmp_path / "small", lists=FARMS["lists"] | {"states": states})
    with pytest.raises(PlanError) as caught:
        prdp.generate(10, tmp_path / "out", economy=path)
    assert str(caught.value) == f"{path}: lists.states: the code 19 stands there more than once"
    assert not any((tmp_path / "out").iterdir())


def test_the_command_takes_an_economy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["generate", "--economy", "farms", "--records", "100", "--out", out]) == 0
    assert f"next      prdp release {out}/plan.yaml\n" in capsys.readouterr().out
    assert main(["generate", "--economy", "labour", "--records", "10", "--out", f"{out}-labour"]) == 0
    assert "plan.yaml --set year=YEAR --set quarter=QUARTER\n" in capsys.readouterr().out
    for call in (
        ["--economy", "farm", "--records", "1"],
        ["--economy", "farms", "--like", "cbp-2011"],
        ["--economy", "farms"],
    ):
        assert main(["generate", *call, "--out", str(tmp_path / "no")]) == 2
    assert "one of enterprises, farms, labour" in capsys.readouterr().err
