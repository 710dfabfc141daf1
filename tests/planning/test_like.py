"""Synthetic establishments like published figures, whose sums are read here anew; counts of what is withheld."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import prdp
from pipeline.base.errors import PlanError, PrdpError
from pipeline.microdata.source import is_marked
from pipeline.plan.load import load_plan
from pipeline.plan.total_policy import limits_of, losses_at, policy_of
from pipeline.planning.economy.like import shared
from pipeline.planning.economy.published import FIGURES, allocated, divided, published
from tests.support.pinned import prdp as command

FOLDER = Path(__file__).parents[2] / "conf" / "economy"
DOCS = Path(__file__).parents[2] / "docs"
PLANS = Path(__file__).parents[2] / "conf" / "plans"
STATES = ("50", "56")  # Vermont and Wyoming
# The Census Bureau's key of 2011: employment that a letter stands for.
LEAST = {"A": 0, "B": 20, "C": 100, "E": 250, "F": 500, "G": 1_000, "H": 2_500, "I": 5_000, "J": 10_000, "K": 25_000}
MOST = {letter: least - 1 for letter, least in zip(LEAST, [*LEAST.values()][1:], strict=False)}


def figures(year: int) -> pd.DataFrame:
    table: pd.DataFrame = pq.read_table(FOLDER / f"cbp_{year}.parquet").to_pandas()
    return table.set_index(["naics", "state"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("like") / "data"
    code, text, _ = command("generate", "--like", "cbp-2011", "--states", ",".join(STATES), "--seed", 3, "--out", out)
    assert code == 0
    assert "prdp release" in text
    return out


@pytest.fixture(scope="module")
def records(folder: Path) -> pd.DataFrame:
    table: pd.DataFrame = pq.read_table(folder / "microdata").to_pandas()
    return table.assign(state=table["county"].str[:2], establishments=1)


def misses(records: pd.DataFrame) -> list[tuple[str, str, str]]:
    """The published figures of 2011 (industry, state, measure), coarse or fine, that the records' sums do not meet."""
    published = figures(2011).query("state in @STATES").reset_index()
    sector = records["naics"].str[:2].replace({"32": "31", "33": "31", "45": "44", "49": "48"})
    total = pd.Series("00", index=records.index)
    codes = [total, sector, *(records["naics"].str[:digits] for digits in (3, 4, 5, 6))]
    measures = ["establishments", "employment", "payroll"]
    sums = pd.concat([records.groupby([code, "state"])[measures].sum() for code in codes])
    sums = sums.reindex(pd.MultiIndex.from_frame(published[["naics", "state"]]), fill_value=0)
    wrong = []
    for row, ours in zip(published.itertuples(), sums.itertuples(), strict=True):
        fits = {
            "establishments": ours.establishments == row.establishments,
            "employment": ours.employment == row.employment
            if row.employment_flag in "GH"
            else LEAST[row.size] <= ours.employment <= MOST[row.size],
            "payroll": row.payroll_flag == "D" or ours.payroll == row.payroll,
        }
        wrong += [(row.naics, row.state, measure) for measure, fit in fits.items() if not fit]
    return wrong


def test_sums_are_the_published_ones(records: pd.DataFrame) -> None:
    assert len(records) == 41_519
    assert misses(records) == []


def test_sums_of_other_records_are_not(records: pd.DataFrame) -> None:
    published = figures(2011)
    one = records.index[records["naics"] == "722110"][:1]
    moved = records.copy()
    moved.loc[one, "naics"] = "722211"
    state = records.loc[one[0], "state"]
    wrong = {code for code, where, measure in misses(moved) if (where, measure) == (state, "establishments")}
    assert wrong == {"7221", "7222", "722211"}
    larger = records.copy()
    larger.loc[one, "employment"] += 1
    assert {code for code, _, _ in misses(larger)} == {"00", "72", "722", "7221"}
    withheld = published.query("state == '56' and employment_flag == 'D' and size == 'A'").index
    code = next(code for code, _ in withheld if len(code) == 6)
    beyond = records.copy()
    beyond.loc[beyond.index[(beyond["naics"] == code) & (beyond["state"] == "56")][0], "employment"] += 20
    assert (code, "56", "employment") in misses(beyond)


def test_records_and_lists(folder: Path, records: pd.DataFrame) -> None:
    lists = {path.stem: pd.read_csv(path, dtype=str).set_index("code") for path in (folder / "domain").iterdir()}
    assert set(lists) == {"naics", "counties", "zips", "forms"}
    assert records["establishment_id"].is_unique
    assert records["naics"].isin(lists["naics"].index).all()
    assert set(records["county"]) == set(lists["counties"].index)
    assert set(records["lfo"]) == set(lists["forms"].index)
    assert (lists["zips"].loc[records["zip"], "county"].to_numpy() == records["county"].to_numpy()).all()
    assert lists["zips"]["name"].str.startswith("Made-up ZIP code ").all()
    assert lists["zips"].index.is_unique
    assert ((records["payroll_q1"] >= 0) & (records["payroll_q1"] <= records["payroll"])).all()
    assert records["payroll_q1"].sum() / records["payroll"].sum() == pytest.approx(0.24, abs=0.01)
    several = records["firm_id"] >= "F900000000"
    assert (records.loc[~several, "firm_id"].str[1:] == records.loc[~several, "establishment_id"].str[1:]).all()
    assert 0.2 < several.mean() < 0.3
    owned = records[several].groupby("firm_id")
    assert (owned["naics"].agg(lambda codes: codes.str[:4].nunique()) == 1).all()
    for path in (folder / "microdata").iterdir():
        assert is_marked(pq.read_schema(path).metadata)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_same_seed_same_bytes_and_a_state_is_the_same_alone(folder: Path, tmp_path: Path) -> None:
    wyoming = prdp.generate_like("cbp-2011", tmp_path / "alone", states=["56"], seed=3).parent
    assert digest(wyoming / "microdata/part-00000.parquet") == digest(folder / "microdata/part-00001.parquet")
    other = prdp.generate_like("cbp-2011", tmp_path / "other", states=STATES, seed=4).parent
    drawn = pq.read_table(other / "microdata").to_pandas()
    assert misses(drawn.assign(state=drawn["county"].str[:2], establishments=1)) == []
    assert digest(other / "microdata/part-00001.parquet") != digest(folder / "microdata/part-00001.parquet")


def detailed(folder: Path) -> Path:
    """Return the plan that measures every table, beside the folder's own domain."""
    return Path(shutil.copy(PLANS / "cbp-detailed.yaml", folder))


def test_the_plan_is_the_whole_programme(folder: Path) -> None:
    plan = load_plan(folder / "plan.yaml")
    assert plan.release == "cbp-2011-synthetic"
    levels = {"us": "nation", "st": "state", "co": "county", "msa": "cbsa"}
    industries = ["total", *(f"naics{digits}" for digits in range(2, 7))]
    statistics = ["est", "emp", "qp1", "ap"]
    asked = {query.name: query.by for query in (*plan.queries, *plan.derived)}
    expected = {f"zip_{statistic}_total": {"zip"} for statistic in statistics}
    expected["zip_est_naics2"] = {"zip", "naics2", "size"}
    for (area, level), statistic, industry in product(levels.items(), statistics, industries):
        detail = {"us": {"form", "size"}, "st": {"form", "size"}, "co": {"size"} if statistic == "est" else set()}
        by = {level, industry} - {"total"}
        expected[f"{area}_{statistic}_{industry}"] = by | detail.get(area, set())
        if area in ("us", "st") or (area, statistic) == ("co", "est"):
            expected[f"{area}_{statistic}_{industry}_all"] = by
    assert {name: set(by) for name, by in asked.items()} == expected
    few = {name: by for name, by in expected.items() if not name.endswith("_all") or name.startswith("st")}
    assert {query.name: set(query.by) for query in load_plan(detailed(folder)).queries} == few


def test_what_the_detailed_plan_costs_is_what_it_states(folder: Path) -> None:
    plan = load_plan(detailed(folder))
    policy = policy_of(plan)
    table = re.findall(r"^# +([\d,]+)((?: +[\d.]+){6})$", detailed(folder).read_text(), re.MULTILINE)
    assert [int(employees.replace(",", "")) for employees, _ in table] == [10, 100, 10_000]
    for (employees, stated), limit, bound in zip(table, plan.budget, limits_of(plan), strict=True):
        values = limit.at.records[0].values
        assert [values[name] for name in ("employment", "payroll_q1", "payroll")] == [
            factor * int(employees.replace(",", "")) for factor in (1, 12, 48)
        ]
        queries, total = losses_at(plan, policy, limit.at)
        sums = dict.fromkeys(("est", "emp", "qp1", "ap"), 0.0)
        for query, (_, loss) in zip(plan.queries, queries, strict=True):
            sums[query.name.split("_")[1]] += float(loss.rho)
        most = policy.loss_at(bound.at)
        assert [*sums.values(), float(total.rho), float(most)] == pytest.approx([*map(float, stated.split())], rel=0.1)
        assert most <= limit.rho < most * Fraction(11, 10)


def test_some_of_its_tables_are_released(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = yaml.safe_load(detailed(folder).read_text())
    chosen = ("st_est_total", "st_emp_total_all", "co_ap_total", "msa_est_total", "zip_est_total")
    plan["queries"] = [query for query in plan["queries"] if query["name"] in chosen]
    (folder / "some.yaml").write_text(yaml.safe_dump(plan))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code, _, errors = command("release", folder / "some.yaml", "--out", tmp_path / "out")
    assert code == 0, errors
    tables = {path.parent.name: pq.read_table(path) for path in (tmp_path / "out").rglob("*.parquet")}
    assert set(tables) == set(chosen)
    areas = pd.read_csv(folder / "domain" / "counties.csv", dtype=str)["cbsa"].dropna()
    assert tables["msa_est_total"]["cbsa"].to_pylist() == [*sorted(set(areas)), "other"]
    assert sum(tables["zip_est_total"]["value"].to_pylist()) == pytest.approx(41_519, abs=6 * 4 * 123**0.5)


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_of_both_years_lies_within_its_bounds_and_adds_up(name: str) -> None:
    known = published(name)
    solved = allocated(known)
    for values, bounds in ((solved.employment, known.employment), (solved.payroll, known.payroll)):
        assert ((bounds.least <= values) & (values <= bounds.most)).all()
        for parent in np.unique(known.parent[1:]):
            assert (values[known.parent == parent].sum(axis=0) == values[parent]).all()
    if name == "cbp-2011":  # as the Census Bureau gives them for the United States
        totals = known.establishments[0].sum(), solved.employment[0].sum(), solved.payroll[0].sum()
        assert totals == (7_354_043, 113_425_965, 5_164_897_905)


def test_bounds_that_contradict_each_other_are_refused() -> None:
    known = published("cbp-2011")
    known.employment.least[known.codes.index("722"), 3] += 10
    with pytest.raises(PrdpError, match="contradict each other: 722 in state 05"):
        allocated(known)


CHILD = st.tuples(st.integers(0, 50), st.integers(0, 40), st.floats(0.01, 1_000))


@given(st.lists(st.lists(CHILD, min_size=1, max_size=6), min_size=1, max_size=5), st.floats(0, 1))
def test_children_add_up_within_their_bounds(families: list[list[tuple[int, int, float]]], where: float) -> None:
    children = [child for family in families for child in family]
    least = np.array([[low] for low, _, _ in children])
    most = least + np.array([[width] for _, width, _ in children])
    expected = np.array([[size] for _, _, size in children])
    starts = np.cumsum([0, *map(len, families)])[:-1]
    low, high = np.add.reduceat(least, starts), np.add.reduceat(most, starts)
    totals = np.rint(low + where * (high - low)).astype(np.int64)
    values = divided(totals, expected, least, most, starts)
    assert ((least <= values) & (values <= most)).all()
    assert (np.add.reduceat(values, starts) == totals).all()


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 20)), min_size=1, max_size=8), st.integers(0, 99))
def test_establishments_add_up_to_their_cell(cells: list[tuple[int, int]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = np.array([count for _, count in cells])
    totals = np.array([total if count else 0 for total, count in cells])
    weights = np.exp(3 * rng.standard_normal(counts.sum()))
    values = shared(rng, totals, counts, weights)
    cell = np.repeat(np.arange(len(cells)), counts)
    assert (values >= 0).all()
    assert np.bincount(cell, values, len(cells)).tolist() == totals.tolist()
    if len(values):
        ideal = totals[cell] * weights / np.bincount(cell, weights, len(cells))[cell]
        assert np.abs(values - ideal).max() < 1 + 1e-6


def test_what_is_withheld_today() -> None:
    code, text, _ = command("generate", "--like", "cbp-2011", "--describe", "--json")
    assert code == 0
    told = json.loads(text)
    assert told == prdp.withheld_today("cbp-2011")
    shares = {level["level"]: level for level in told["levels"]}
    table = figures(2011).reset_index()
    for digits in range(2, 7):
        listed = shares[f"naics{digits}"]["listed"]
        cells = table[(table["naics"].str.len() == digits) & (table["naics"] != "00")]
        withheld = cells["employment"].isna()
        assert listed["cells"] == len(cells)
        assert listed["flags"] == {flag: (cells["employment_flag"] == flag).sum() for flag in "GHDS"}
        assert listed["cells_share"] == pytest.approx(withheld.mean())
        assert listed["establishments_withheld"] == cells.loc[withheld, "establishments"].sum()

    def percent(level: str, kind: str) -> tuple[float, float]:
        counted = shares[level][kind]
        return round(100 * counted["cells_share"], 1), round(100 * counted["establishments_share"], 1)

    # counted by others from the published file
    assert [percent(level, "listed") for level in ("naics6", "naics4", "naics3")] == [
        (46.3, 4.1),
        (18.3, 1.2),
        (9.6, 0.2),
    ]
    assert percent("naics6", "filled_in") == (36.6, 3.2)
    assert shares["naics6"]["codes_listed"] == 635
    page = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("economy.md", "economy/figures.txt"))
    for name in FIGURES:
        assert command("generate", "--like", name, "--describe")[1] in page


@pytest.fixture(scope="module")
def beside(folder: Path) -> dict[str, Any]:
    return prdp.beside_today("cbp-2011", detailed(folder))


@cache
def true_totals(digits: int, flags: str, statistic: str) -> Any:
    known = published("cbp-2011")
    place = known.level(digits)
    totals = {"establishments": known.establishments, "employment": allocated(known).employment}[statistic][place]
    return totals[np.isin(known.flag[place], list(flags))]


def usable_by_hand(digits: int, flags: str, statistic: str, within: Callable[[Any], Any]) -> float:
    """The mean chance that noise of at most 30 % of a cell's total is drawn; `within`(t) is P(|noise| ≤ t)."""
    return float(within(0.3 * true_totals(digits, flags, statistic)).mean())


def test_errors_beside_today_are_those_of_the_noise(beside: dict[str, Any]) -> None:
    def polylog(sigma: float) -> Callable[[Any], Any]:
        return lambda t: 1 - (1 + (np.floor(t) + 0.5) / sigma) ** -4  # density ∝ (1 + |z|/σ)⁻⁵, rounded

    def discrete_gaussian(t: Any) -> Any:
        steps = np.arange(-60, 61)
        weights = np.exp(-(steps**2) / (2 * 3.0**2))
        return (weights * (np.abs(steps) <= np.floor(t)[:, None])).sum(axis=1) / weights.sum()

    levels = {level["level"]: level for level in beside["levels"]}
    for digits, sigma in ((4, 200.0), (6, 75.0)):
        level = levels[f"naics{digits}"]
        assert level["usable_employment"] == pytest.approx(
            usable_by_hand(digits, "DS", "employment", polylog(sigma)), abs=0.01
        )
        for flag in "GHDS":
            stated = level["flags"][flag]["employment"]
            assert stated["usable"] == pytest.approx(
                usable_by_hand(digits, flag, "employment", polylog(sigma)), abs=0.01
            )
            twice = usable_by_hand(digits, flag, "employment", polylog(2 * sigma))
            assert stated["usable"] != pytest.approx(twice, abs=0.01)  # noise twice as wide is noticed
    of_counts = levels["naics6"]["flags"]["D"]["establishments"]["usable"]
    assert of_counts == pytest.approx(usable_by_hand(6, "D", "establishments", discrete_gaussian), abs=0.01)
    # half of all errors are below the median, nine tenths below the other
    totals = true_totals(6, "G", "employment")
    stated = levels["naics6"]["flags"]["G"]["employment"]
    for quantile, chance in (("median", 0.5), ("ninety", 0.9)):
        assert polylog(75.0)(stated[quantile] * totals).mean() == pytest.approx(chance, abs=0.01)


def test_the_page_shows_what_is_beside_today(beside: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prdp.plans.load_plan", lambda path, set: path)
    monkeypatch.setattr("prdp.studies.beside_today", lambda figures, plan, reconciled: beside)
    code, text, _ = command("generate", "--like", "cbp-2011", "--describe", "--beside", "cbp-detailed.yaml")
    page = (DOCS / "economy" / "figures.txt").read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80
    assert (code, page.split("<!-- beside today -->\n")[1].split("<!-- end -->")[0]) == (0, f"```\n{text}```\n")
    shares = {level["level"]: level["filled_in"] for level in prdp.withheld_today("cbp-2011")["levels"]}
    for level in beside["levels"]:
        assert level["withheld_share"] == shares[level["level"]]["cells_share"]
        cells = {flag: each["cells"] for flag, each in level["flags"].items()}
        assert cells == shares[level["level"]]["flags"]
        assert sum(each["cells"] for each in level["sizes"]) == sum(cells.values())


def test_a_plan_without_the_tables_is_refused(tmp_path: Path) -> None:
    plan = prdp.generate(10, tmp_path / "data")
    with pytest.raises(PlanError, match=r"no table by \[naics2, state\] of count: records with one additive"):
        prdp.beside_today("cbp-2011", plan)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (["--like", "cbp-2012", "--out", "x"], "choose from 'cbp-2010', 'cbp-2011'"),
        (["--like", "cbp-2011", "--records", "5", "--out", "x"], "--records and --like is required"),
        (["--out", "x"], "one of the arguments --records and --like is required"),
        (["--like", "cbp-2011"], "arguments are required: --out"),
        (["--like", "cbp-2011", "--describe", "--out", "x"], "unknown option --out"),
        (["--records", "5", "--describe"], "unknown option --records"),
        (["--like", "cbp-2011", "--beside", "plan.yaml", "--out", "x"], "unknown option --beside"),
        (["--records", "5", "--states", "56", "--out", "x"], "--states: it goes with --like alone"),
        (["--like", "cbp-2011", "--states", "56,72", "--out", "x"], "--states: 72 is no state of the figures"),
    ],
)
def test_wrong_calls(call: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, errors = command("generate", *call)
    assert code == 2
    assert message in errors
    assert not list(tmp_path.iterdir())


def test_unknown_figures_and_seeds(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="known: cbp-2010, cbp-2011"):
        prdp.withheld_today("cbp-1999")
    with pytest.raises(PlanError, match="seed="):
        prdp.generate_like("cbp-2011", tmp_path, states=["56"], seed=-1)
