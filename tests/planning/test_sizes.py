"""Totals and sizes that a draft leaves open are those of its tables' synthetic cells."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

import prdp
from jobs.cli import main
from pipeline.base.errors import PlanError
from pipeline.diagnostics.synthetic_microdata import Economy, Origin
from pipeline.plan.load import load_plan
from tests.support.world import plan, write_world

RECORDS = 60_000
BIN = 0.12  # cells are counted in bins of 21 %; what stands for a bin is its mean
NAMES = ("establishments", "employment_sector_county", "payroll_state")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a domain and the small world's plan; there are no microdata, so that none can be read."""
    folder = tmp_path_factory.mktemp("world")
    write_world(folder, None)
    return folder


@pytest.fixture(scope="module")
def cells(world: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray[Any, Any]]:
    """The cells above 0 of each table, added up by pandas from the same establishments."""
    made = Economy(Origin(records=RECORDS), tmp_path_factory.mktemp("economy")).for_plan(load_plan(world / "plan.yaml"))
    rows = pd.read_parquet(made.path)
    rows = rows.assign(naics=rows.naics.astype(str), county=rows.county.astype(str))
    sector, state = rows.naics.str[:2].replace({"31": "31-33", "32": "31-33", "33": "31-33"}), rows.county.str[:2]
    inside = sector.isin(["31-33", "44", "45"])
    tables = (
        rows.groupby([rows.naics, rows.county]).size(),
        rows.groupby([sector.replace({"45": "44"}), rows.county]).employment.sum(),
        rows[inside].groupby([rows.naics.str[:3], state]).payroll.sum(),
    )
    return {name: table[table > 0].to_numpy() for name, table in zip(NAMES, tables, strict=True)}


def draft(calibrate: dict[str, Any], *, kind: dict[str, Any] | None = None) -> dict[str, Any]:
    whole = plan()
    noise = {**(kind or {"kind": "log", "a": 50}), "calibrate": "plan"}
    queries = [query | ({} if "count" in query else {"mechanism": noise}) for query in whole["queries"]]
    queries[0] = queries[0] | {"mechanism": {"kind": "gaussian", "calibrate": "plan"}}
    return whole | {"calibrate": calibrate, "queries": queries}


def found(world: Path, calibrate: dict[str, Any]) -> dict[str, Any]:
    allocation = prdp.allocate(draft(calibrate), folder=world, records=RECORDS)
    return {each["query"]: each for each in allocation.to_json()["found"]}


def test_open_totals_are_the_medians_of_synthetic_cells(world: Path, cells: dict[str, np.ndarray[Any, Any]]) -> None:
    totals = {name: each["for"]["total"] for name, each in found(world, {"minimise": "relative_error"}).items()}
    for name in NAMES:
        median, mean = np.quantile(cells[name], 0.5, method="inverted_cdf"), cells[name].mean()
        assert totals[name] == pytest.approx(median, rel=BIN)
        assert totals[name] != pytest.approx(mean, rel=BIN)  # what the check must tell apart


def test_open_sizes_are_those_of_synthetic_cells(world: Path, cells: dict[str, np.ndarray[Any, Any]]) -> None:
    wish = {"within": 0.25, "share": 0.8}
    chosen = found(world, {"queries": {"employment_sector_county": wish}, "minimise": "relative_error"})
    a, sigma = 50, chosen["employment_sector_county"]["sigma"]
    noise = np.random.default_rng(3).normal(0, sigma, (2_000, 1))
    drawn = ((cells["employment_sector_county"] + a) * np.exp(noise - sigma**2 / 2)) - a  # without the lattice
    within = float(np.mean(np.abs(drawn / cells["employment_sector_county"] - 1) <= 0.25))
    assert within == pytest.approx(0.8, abs=0.03)


def test_what_a_draft_states_stays(world: Path) -> None:
    chosen = found(world, {"minimise": "relative_error", "queries": {"payroll_state": {"weight": 3, "total": 123}}})
    assert chosen["payroll_state"]["for"] == {"weight": 3, "error": "relative_error", "total": 123}


def test_command_writes_where_totals_are_from(world: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = world / "draft.yaml", world / "chosen.yaml"
    source.write_text(yaml.safe_dump(draft({"minimise": "relative_error"}), sort_keys=False))
    assert main(["calibrate", str(source), "--out", str(out), "--records", str(RECORDS), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["sizes_of"] == "60,000 synthetic establishments (prdp generate, seed 0)"
    assert f"with totals and sizes of {result['sizes_of']}:" in out.read_text()
    assert load_plan(out).digest == result["plan_digest"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["draft.yaml", "--states", "56"], "they go with records or like alone"),
        (["draft.yaml", "--like", "cbp-1999"], "there are no figures cbp-1999; known: cbp-2010, cbp-2011"),
        (["plan.yaml", "--records", "100"], "--records: cannot be combined with a plan that is no draft"),
        (["stated.yaml", "--records", "100"], "no total and no sizes are left open"),
        (["wrong.yaml", "--records", "100"], "calibrate.queries.pay: unknown query"),
    ],
)
def test_wrong_calls_are_refused(
    world: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    drafts: dict[str, dict[str, Any]] = {
        "draft": {"minimise": "relative_error"},
        "stated": {"queries": {name: {"total": 10} for name in NAMES}},
        "wrong": {"queries": {"pay": {}}},
    }
    for name, calibrate in drafts.items():
        (world / f"{name}.yaml").write_text(yaml.safe_dump(draft(calibrate)))
    assert main(["calibrate", str(world / arguments[0]), *arguments[1:]]) == 2
    assert said in capsys.readouterr().err


def test_one_origin_of_totals_is_given(world: Path) -> None:
    with pytest.raises(PlanError, match="records and like: give one of them"):
        prdp.allocate(draft({"minimise": "relative_error"}), folder=world, records=100, like="cbp-2011")


def test_equal_weights_of_unlike_units_are_warned_of(world: Path) -> None:
    stated = {name: {"total": 10} for name in NAMES}
    told = {
        minimised: prdp.allocate(draft({"minimise": minimised, "queries": stated}), folder=world).to_json()["warnings"]
        for minimised in ("mean_absolute_error", "relative_error")
    }
    assert any("errors of different units" in line for line in told["mean_absolute_error"])
    assert not any("errors of different units" in line for line in told["relative_error"])
