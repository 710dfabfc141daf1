"""Ratios, shares and change of released totals: against pandas, dense least squares and Fieller's definition."""

import json
from collections.abc import Callable
from math import inf, isnan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import brentq

import prdp
from jobs.cli import main
from prdp import PlanError
from tests.support.ledgers import ledger_file
from tests.support.world import COUNTIES, records, write_world
from udfs.estimates.intervals import Law, Term, half_width, multiplier

GAUSSIAN = {"kind": "gaussian", "sigma": 60}
LAPLACE = {"kind": "laplace", "sigma": 40}
QUERIES = [
    {"name": "records_state", "count": "records", "by": ["state"], "mechanism": {"kind": "gaussian", "sigma": 8}},
    {"name": "employment_state", "sum": "employment", "by": ["state"], "mechanism": GAUSSIAN},
    {"name": "employment_county", "sum": "employment", "by": ["naics2", "county"], "mechanism": LAPLACE},
    {
        "name": "payroll_county",
        "sum": "payroll",
        "by": ["naics2", "county"],
        "mechanism": {"kind": "laplace", "sigma": 99},
    },
]
OTHERS = [
    {"name": "stable", "sum": "employment", "by": ["naics3", "state"],
     "mechanism": {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 3}},
    {"name": "stable_nation", "sum": "employment", "by": ["naics2", "nation"],
     "mechanism": {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 9}},
    {"name": "log", "sum": "payroll", "by": ["naics3", "state"], "mechanism": {"kind": "log", "a": 50, "sigma": 0.1}},
]  # fmt: skip
STATES = ("01", "02", "06", "09", "36", "48")


def released(folder: Path, name: str, queries: list[dict[str, Any]] = QUERIES, **changes: Any) -> str:
    path = write_world(folder / name, records(2000), release=name, queries=queries, max_left_out=0.99, **changes)
    made = prdp.load_plan(path).release(ledger=ledger_file(folder / name / "state" / "ledger.sqlite"), workers=1)
    return made.path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("derived")


@pytest.fixture(scope="module")
def before(folder: Path) -> str:
    return released(folder, "y2010")


@pytest.fixture(scope="module")
def after(folder: Path) -> str:
    """A year in which one county is gone and two are new."""
    return released(folder, "y2011", dataset={"name": "world-2011"}, counties=(*COUNTIES[1:], "06039", "48203"))


@pytest.fixture(scope="module")
def others(folder: Path) -> str:
    return released(folder, "others", OTHERS, budget=[{"at": {"employment": 10, "payroll": 500}, "rho": 1000}])


def fieller(n: float, d: float, variance: Callable[[float], float], k: float) -> tuple[float, float]:
    """Both ends of {θ: (N − θD)² ≤ k²·Var}, found by bisection from the estimate outwards."""

    def beyond(theta: float) -> float:
        return (n - theta * d) ** 2 - k**2 * variance(theta)

    middle = n / d
    ends = (brentq(beyond, middle, middle + sign * abs(middle), xtol=1e-14) for sign in (-1, 1))
    return next(ends), next(ends)


def dense(release: str) -> tuple[list[tuple[str, str]], np.ndarray, np.ndarray]:
    """The counties' employment by least squares over both tables, and its covariances: a dense solution."""
    tables = prdp.read_release(release)
    cells = [(n, c) for n, c in tables["employment_county"][["naics2", "county"]].itertuples(index=False)]
    states = tables["employment_state"]
    rows = np.array([[float(county[:2] == state) for _, county in cells] for state in states["state"]])
    a = np.vstack([np.eye(len(cells)), rows])
    y = np.concatenate([tables["employment_county"]["value"], states["value"]])
    errors = np.concatenate([tables[name]["standard_error"] for name in ("employment_county", "employment_state")])
    covariance = np.linalg.inv((a.T / errors**2) @ a)
    return cells, covariance @ (a.T / errors**2) @ y, covariance


def test_shares_of_reconciled_totals_count_what_numerator_and_denominator_share(before: str) -> None:
    cells, estimates, covariance = dense(before)
    one = np.array([naics == "31-33" and county[:2] == "06" for naics, county in cells], dtype=float)
    whole = np.array([county[:2] == "06" for _, county in cells], dtype=float)
    found = prdp.reconcile(before).share("employment", "naics2=31-33, state=06", "state=06")

    def variance(theta: float) -> float:
        c = one - theta * whole
        return float(c @ covariance @ c)

    n, d = float(one @ estimates), float(whole @ estimates)
    assert found.value == pytest.approx(n / d, rel=1e-6)
    assert found.standard_error == pytest.approx(sqrt(variance(n / d)) / d, rel=1e-6)
    low, high = fieller(n, d, variance, multiplier(0.05, Law.SYMMETRIC))
    assert low * 0.99 < found.lower <= low * (1 + 1e-5)  # half a step is added on both sides
    assert high * (1 - 1e-5) <= found.upper < high * 1.01
    alone = float(one @ covariance @ one + (n / d) ** 2 * (whole @ covariance @ whole))
    assert found.standard_error < 0.97 * sqrt(alone) / d  # what leaving the covariance out would say


def test_shares_of_all_cells_are_those_of_each_cell(before: str, tmp_path: Path) -> None:
    made = prdp.derive_table(before, tmp_path / "out", share="employment_county")
    table = pd.read_parquet(tmp_path / "out" / made["files"][0]["path"])
    row = table[(table["naics2"] == "31-33") & (table["county"] == "06037")].iloc[0]
    cell = prdp.reconcile(before).share("employment", "naics2=31-33, county=06037")
    assert [row["value"], row["standard_error"]] == pytest.approx([cell.value, cell.standard_error], rel=1e-5)
    assert [row["lower"], row["upper"]] == pytest.approx([cell.lower, cell.upper], rel=2e-3)
    assert table["value"].sum() == pytest.approx(1)


def test_ratios_of_two_measures_are_fiellers(before: str, tmp_path: Path) -> None:
    tables = prdp.read_release(before)
    (published,) = prdp.derive(before, ratio="payroll/employment", where="naics2=31-33, county=06037", published=True)
    payroll, employment = (
        tables[name][lambda t: (t["naics2"] == "31-33") & (t["county"] == "06037")].iloc[0]
        for name in ("payroll_county", "employment_county")
    )
    n, d = payroll["value"], employment["value"]
    assert published.value == pytest.approx(n / d)

    def variance(theta: float) -> float:
        return float(payroll["standard_error"] ** 2 + theta**2 * employment["standard_error"] ** 2)

    low, high = fieller(n, d, variance, multiplier(0.05, Law.SYMMETRIC))
    assert [published.lower, published.upper] == pytest.approx([low, high], rel=2e-3)
    assert published.lower < low < high < published.upper
    made = prdp.derive_table(before, tmp_path / "out", ratio="payroll_county/employment_county", published=True)
    table = pd.read_parquet(tmp_path / "out" / made["files"][0]["path"])
    row = table[(table["naics2"] == "31-33") & (table["county"] == "06037")].iloc[0]
    assert [row["value"], row["lower"], row["upper"]] == pytest.approx(
        [published.value, published.lower, published.upper], rel=1e-6
    )
    estimated = prdp.reconcile(before)
    ratio = estimated.ratio("employment", "records", "state=06")
    sums = [estimated.sum("state=06", of) for of in ("employment", "records")]
    assert ratio.value == pytest.approx(sums[0].value / sums[1].value)
    assert ratio.lower < ratio.value < ratio.upper


def test_change_between_years_says_which_codes_changed(before: str, after: str, tmp_path: Path) -> None:
    new, old = prdp.reconcile(after), prdp.reconcile(before)
    change, relative = new.change(old, "employment", "state=06")
    sums = [each.sum("state=06", "employment") for each in (new, old)]
    assert change.value == pytest.approx(sums[0].value - sums[1].value)
    assert change.standard_error == pytest.approx(sqrt(sums[0].standard_error ** 2 + sums[1].standard_error ** 2))
    assert relative.value == pytest.approx(sums[0].value / sums[1].value - 1)
    assert change.notes == relative.notes == ("county: its codes at the level county differ: of 3, 1 new and 0 gone",)
    assert new.change(old, "employment", "state=09")[0].notes == ()
    made = prdp.derive_table(after, tmp_path / "out", total="employment_county", since=before, csv=True)
    assert made["notes"] == ["county: its codes at the level county differ: of 10, 2 new and 1 gone"]
    table = pd.read_csv(tmp_path / "out" / "tables" / "employment_county_change.csv", dtype={"county": str})
    assert table[table["county"].isin(["06039", "48203"])][["value", "change", "standard_error"]].isna().all(axis=None)
    kept = table[~table["county"].isin(["06039", "48203"])]
    assert kept["change"].notna().all()
    with pytest.raises(PlanError, match="on both sides"):
        old.change(old, "employment")


def test_sums_of_stable_noise_have_the_interval_of_their_law(others: str) -> None:
    stable = prdp.read_release(others)["stable"]
    (total,) = prdp.derive(others, total="employment", where="naics2=31-33, state in 06,36", published=True)
    cells = stable[stable["naics3"].str[:2].isin(["31", "32", "33"]) & stable["state"].isin(["06", "36"])]
    assert total.value == cells["value"].sum()
    assert isnan(total.standard_error)
    assert total.upper - total.value == half_width([Term(alpha=1.5, scale=3, count=len(cells))], 0.95)
    assert total.to_json()["standard_error"] is None
    (share,) = prdp.derive(others, share="employment", where="naics2=31-33", published=True)
    whole = share.totals["denominator"]
    assert whole.variance == inf
    assert 0 < share.lower < share.value < share.upper < 1


def test_the_mean_of_stable_tables_has_the_least_scale(others: str) -> None:
    """The nation's sector from one cell of scale 9, and from 18 of scale 3, by the closed forms."""
    tables = prdp.read_release(others)
    parts = tables["stable"][tables["stable"]["naics3"].str[:2].isin(["31", "32", "33"])]["value"]
    whole = tables["stable_nation"][tables["stable_nation"]["naics2"] == "31-33"]["value"].iloc[0]
    scales = np.array([3 * len(parts) ** (1 / 1.5), 9.0])
    weights = scales**-3 / (scales**-3).sum()
    (mean,) = prdp.derive(others, total="employment", where="naics2=31-33", published=True, mean=True)
    assert mean.value == pytest.approx(weights @ [parts.sum(), whole])
    assert mean.totals["total"].tables == ("stable", "stable_nation")
    least = half_width([Term(alpha=1.5, scale=float((scales**-3).sum() ** (-1 / 3)))], 0.95)
    assert mean.upper - mean.value == pytest.approx(least, rel=0.05)
    (one,) = prdp.derive(others, total="employment", where="naics2=31-33", published=True)
    assert mean.upper - mean.value < one.upper - one.value
    with pytest.raises(PlanError, match="no two tables"):
        prdp.derive(others, total="employment", where="naics3=311", published=True, mean=True)
    with pytest.raises(PlanError, match="mean="):
        prdp.derive(others, total="employment", mean=True)


def test_noise_that_depends_on_the_total_gives_single_cells_alone(others: str) -> None:
    log = prdp.read_release(others)["log"]
    row = log[(log["naics3"] == "311") & (log["state"] == "06")].iloc[0]
    (cell,) = prdp.derive(others, total="payroll", where="naics3=311, state=06", published=True)
    assert [cell.value, cell.lower, cell.upper] == [row["value"], row["lower"], row["upper"]]
    with pytest.raises(PlanError, match="sums of its cells"):
        prdp.derive(others, total="payroll", where="naics3=311", published=True)
    with pytest.raises(PlanError, match="smaller interval="):
        prdp.derive(others, ratio="payroll/employment", where="naics3=311, state=06", published=True)
    (ratio,) = prdp.derive(
        others, ratio="payroll/employment", where="naics3=311, state=06", published=True, interval=0.9
    )
    assert ratio.lower < ratio.value < ratio.upper


def test_a_denominator_near_0_has_no_interval(before: str, capsys: pytest.CaptureFixture[str]) -> None:
    empty = "naics2=11, county=02020"
    (found,) = prdp.derive(before, ratio="payroll/employment", where=empty, interval=0.9999999, published=True)
    assert isnan(found.lower)
    assert isnan(found.standard_error)
    call = [
        "derive",
        before,
        "--ratio",
        "payroll/employment",
        "--where",
        empty,
        "--published",
        "--interval",
        "0.9999999",
    ]
    assert main(call) == 0
    assert "no interval: the denominator is not told from 0" in capsys.readouterr().out
    assert main([*call, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["lower"] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--ratio", "payroll"], "write one over the other"),
        (["--ratio", "payroll/payroll"], "is 1"),
        (["--ratio", "payroll/jobs", "--published"], "jobs: no table is of it"),
        (["--share", "employment"], "--where picks a part"),
        (["--share", "employment", "--where", "state=06", "--inside", "state=48"], "not among"),
        (["--total", "employment", "--where", "county=99999"], "99999"),
        (["--total", "employment", "--where", "naics6=311111", "--published"], "no published table"),
        (["--total", "employment", "--where", "naics3=311, naics2=44-45", "--published"], "no published table"),
        (["--total", "employment", "--where", "naics2=31-33, county=06037, state=48"], "no cell of the tables meets"),
        (["--total", "employment", "--inside", "state=06"], "goes with --share"),
        (["--total", "employment", "--published", "--leave-out", "employment_state"], "--leave-out"),
        (["--total", "employment", "--csv"], "--out"),
        (["--total", "employment_state", "--out", "OUT"], "--since"),
        (["--ratio", "payroll_county/employment_state", "--out", "OUT"], "different cells"),
        (["--share", "jobs", "--out", "OUT"], "no release has this table"),
        (["--share", "employment_county", "--out", "OUT", "--where", "state=06"], "all cells"),
    ],
)
def test_what_cannot_be_is_a_plain_line(
    before: str, words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["derive", before, *(str(tmp_path / "out") if word == "OUT" else word for word in words)]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") <= 2
    assert not (tmp_path / "out").exists()
