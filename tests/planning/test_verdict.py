"""The verdict of `prdp explain`: totals against limits, shares of tables, expected errors, what mends a limit."""

import json
from fractions import Fraction
from math import erf, log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import prdp
from jobs.cli import main
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import limits_of, parse_at, policy_of
from pipeline.planning import verdict as remedies
from pipeline.planning.explain_text import LINES, WIDTH, render_verdict
from pipeline.planning.verdict import table_errors, verdict
from tests.support.world import QUERIES, write_world

TEST = 1 / 20_000  # the test of records left out


def gaussian(name: str, sigma: float, **where: Any) -> dict[str, Any]:
    return {
        "name": name,
        "sum": "employment",
        "by": ["naics2", "county"],
        "mechanism": {"kind": "gaussian", "sigma": sigma},
    } | where


def planned(folder: Path, queries: list[dict[str, Any]], *limits: tuple[float, float]) -> Path:
    """Return a plan of these tables, with limits (employment, rho)."""
    budget = [{"at": {"employment": size}, "rho": rho} for size, rho in limits]
    return write_world(folder, None, queries=queries, budget=budget)


def at_most(text: str) -> None:
    lines = text.splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= WIDTH


def test_totals_shares_and_errors_of_gaussian_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = planned(tmp_path, [gaussian("fine", 20), gaussian("coarse", 10)], (10, 1), (40, 12))
    assert main(["explain", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["verdict"]
    fine, coarse = (10**2 / (2 * sigma**2) for sigma in (20, 10))
    small, large = told["references"]
    assert small["rho"] == pytest.approx(fine + coarse + TEST, rel=1e-12)
    assert large["rho"] == pytest.approx(16 * (fine + coarse) + TEST, rel=1e-12)
    assert (small["limit"], small["within"], told["within_limits"]) == (1, True, True)
    assert small["used"] == pytest.approx(small["rho"])
    assert list(small["shares"]) == ["coarse", "fine"]  # largest first
    assert small["shares"]["coarse"] == pytest.approx(coarse / small["rho"])
    errors = told["tables"][0]["errors"]
    assert [error["total"] for error in errors] == [10, 1_000, 100_000]
    half = errors[0]["median_relative_error"] * 10
    assert abs(half - 20 * norm.ppf(0.75)) <= 1  # a whole number of employees
    assert errors[0]["standard_error"] == pytest.approx(20, rel=1e-6)
    assert told["remedies"] == []


def test_a_broken_limit_ends_with_3_and_says_what_mends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = planned(tmp_path, [gaussian("fine", 20), gaussian("coarse", 10)], (10, 1), (40, 6))
    assert main(["explain", str(path)]) == 3
    shown = capsys.readouterr()
    assert "BREAKS 1 of its 2 limits" in shown.out
    assert "BROKEN: 1.67 times" in shown.out  # 10.00005 against 6
    assert shown.err == (
        "error: release small-release: breaks its plan's budget at employment=40: rho 10.0001, limit 6; "
        "ask for less loss (more noise), or raise the limit in the plan's budget\n"
    )
    at_most(shown.out)
    one, every = verdict(load_plan(path)).remedies
    # 40²/(2·20²) = 2, so the coarse table may lose 6 − 2 − TEST: closed form of its scale
    needed = 40 / sqrt(2 * (6 - 2 - TEST))
    assert (one.table, one.parameter, one.before) == ("coarse", "sigma", 10)
    assert needed <= float(one.after or 0) <= needed * 1.02
    assert sqrt(10 / (6 - TEST)) <= every.factor <= sqrt(10 / (6 - TEST)) * 1.02
    assert f"to mend it: sigma of coarse from 10 to {float(one.after or 0):g}; or all scales times" in shown.out
    # what is proposed, written into a plan, keeps the limits; a little less breaks them
    for sigma, code in ((float(one.after or 0), 0), (needed * 0.98, 3)):
        planned(tmp_path, [gaussian("fine", 20), gaussian("coarse", sigma)], (10, 1), (40, 6))
        assert main(["explain", str(path)]) == code
    assert [float(total) for total in one.totals] == pytest.approx(
        [0.125 + 50 / float(one.after or 0) ** 2, 6], rel=0.02
    )


def test_a_proposal_is_verified_before_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = load_plan(planned(tmp_path, [gaussian("one", 10)], (40, 6)))
    assert verdict(plan).remedies
    twin = remedies.with_scale_times  # the broken twin: a search that forgets to scale the plan's own noise
    monkeypatch.setattr(remedies, "with_mechanisms", lambda query, change: query)
    assert not verdict(plan).remedies
    assert twin(plan.queries[0].mechanisms[0], Fraction(123456, 100000), rounded=True).describe()["sigma"] == 12.4


@pytest.mark.parametrize("sigmas", [(3.37, 5.01), (10.9, 10.7), (2.221, 3.333)])
def test_a_factor_mends_as_it_is_printed(tmp_path: Path, sigmas: tuple[float, float]) -> None:
    path = planned(tmp_path, [gaussian("a", sigmas[0]), gaussian("b", sigmas[1])], (40, 6))
    every = verdict(load_plan(path)).remedies[-1]
    assert every.table is None
    times = [float(Fraction(str(sigma)) * every.factor) for sigma in sigmas]
    mended = load_plan(planned(tmp_path, [gaussian("a", times[0]), gaussian("b", times[1])], (40, 6)))
    assert verdict(mended).within


def test_a_scale_by_which_noise_falls_is_divided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    splitting = gaussian("b", 1) | {"mechanism": {"kind": "unit_splitting", "threshold": 10, "rho": 8}}
    path = planned(tmp_path, [gaussian("a", 10), splitting], (40, 6))
    assert main(["explain", str(path)]) == 3
    assert "(rho: divided by it, rounded down to three digits)" in " ".join(capsys.readouterr().out.split())


def test_no_scale_of_one_table_may_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = planned(tmp_path, [gaussian("a", 10), gaussian("b", 10)], (40, 6))
    assert main(["explain", str(path)]) == 3  # either one alone loses 8
    assert "(no scale of one table does)" in capsys.readouterr().out
    (every,) = verdict(load_plan(path)).remedies
    assert (every.table, every.parameter) == (None, None)
    assert sqrt(16 / 6) <= every.factor <= sqrt(16 / 6) * 1.02
    planned(tmp_path, [gaussian("a", 10)], (40, 0.00001))  # less than the test of records left out
    assert main(["explain", str(path)]) == 3
    assert "no larger scale does" in capsys.readouterr().out


def test_scales_of_every_kind_and_of_parts(tmp_path: Path) -> None:
    splitting = {"kind": "unit_splitting", "threshold": 10, "rho": 1}
    narrow = {"kind": "log", "a": 1, "sigma": 0.3, "noise": "laplace"}  # its scale must stay below 1
    parts = {
        "by": "naics2",
        "parts": {"31-33": {"kind": "gaussian", "sigma": 9}},
        "others": {"kind": "laplace", "sigma": 4},
    }
    for mechanism, limit, parameter in ((splitting, 0.5, "rho"), (narrow, 4, "sigma"), (parts, 0.4, None)):
        path = planned(tmp_path, [gaussian("t", 1) | {"mechanism": mechanism}], (10, limit))
        plan = load_plan(path)
        (one,) = verdict(plan).remedies
        assert one.parameter == parameter
        assert limit * 0.9 < one.totals[0] <= limit
        if parameter is None:
            mended = [remedies.with_scale_times(each, one.factor, rounded=False) for each in plan.queries[0].mechanisms]
            assert [float(each.sigma) for each in mended] == pytest.approx(  # type: ignore[attr-defined]
                [9 * float(one.factor), 4 * float(one.factor)], rel=0.01
            )
    assert not verdict(load_plan(planned(tmp_path, [gaussian("t", 1) | {"mechanism": narrow}], (10, 0.5)))).remedies


def test_references_that_are_asked_for_have_no_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = planned(tmp_path, [gaussian("one", 10)])
    assert main(["explain", str(path), "--at", "employment=10000"]) == 0
    shown = capsys.readouterr().out
    assert "none: the plan has no budget" in shown
    assert "no limit" in shown.splitlines()[5]
    assert main(["explain", str(path)]) == 0
    assert "give --at" in capsys.readouterr().out
    kept = planned(tmp_path, [gaussian("one", 10)], (10, 1))
    told = verdict(load_plan(kept), [parse_at(f"employment={size}", load_plan(kept)) for size in (10, 10_000)])
    assert [each.within for each in told.standings] == [True, None]  # the limit's own reference stands once
    assert main(["explain", str(kept), "--at", "employment=10000"]) == 0
    planned(tmp_path, [gaussian("one", 10)], (10, 0.1))
    assert main(["explain", str(kept), "--at", "employment=1"]) == 3  # its own limit is broken all the same


def test_shares_of_tables_that_exclude_each_other_are_each_of_the_whole(tmp_path: Path) -> None:
    made, sold = (gaussian(f"in_{code[:2]}", 10, where={"naics2": [code]}) for code in ("31-33", "44-45"))
    (standing,) = verdict(load_plan(planned(tmp_path, [made, sold], (10, 1)))).standings
    assert float(standing.rho) == pytest.approx(0.5 + TEST)
    assert list(standing.shares.values()) == pytest.approx([0.5 / (0.5 + TEST)] * 2)


def test_the_total_is_the_one_that_a_ledger_would_check(tmp_path: Path) -> None:
    classes = {"of": "employment", "classes": [0, 20, 100]}
    parts = {"0-19": {"kind": "gaussian", "sigma": 5}}
    query = gaussian("by_size", 1) | {
        "by": ["naics2", "county", "size"],
        "mechanism": {"by": "size", "parts": parts, "others": {"kind": "gaussian", "sigma": 50}},
    }
    keys = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "size": classes}
    path = write_world(tmp_path, None, queries=[query], domain=keys, budget=[{"at": {"employment": 30}, "rho": 1}])
    plan = load_plan(path)
    (standing,) = verdict(plan).standings
    # a record of 30 loses 0.18; one of 19, which is no larger, has the noise of its class
    assert float(standing.rho) == pytest.approx(19**2 / 50 + TEST)
    assert standing.rho == policy_of(plan).loss_at(limits_of(plan)[0].at)
    assert standing.within is False
    assert main(["explain", str(path)]) == 3


def test_medians_of_transformed_totals_are_those_of_their_estimates(tmp_path: Path) -> None:
    plan = load_plan(
        planned(tmp_path, [gaussian("t", 1) | {"mechanism": {"kind": "log", "a": 5, "sigma": 0.4}}], (10, 9))
    )
    for error in table_errors(plan.queries[0], (10.0, 1000.0)):
        y = error["median_relative_error"] * error["total"] / (error["total"] + 5)
        within = [(log(1 + sign * y) + 0.08) / 0.4 for sign in (-1, 1)]
        assert (erf(within[1] / sqrt(2)) - erf(within[0] / sqrt(2))) / 2 == pytest.approx(0.5, abs=1e-3)


MANY = [gaussian(f"a_table_with_a_name_that_is_long_{i}", 1000 + i) for i in range(126)]
AWKWARD = [
    (MANY, [(10, 2), (20, 2), (1000, 0.1), (3000, 1), (9000, 1), (12345, 3), (20000, 5)]),
    (MANY[:9], [(10, 2)]),
    ([gaussian("t", 1e-3)], [(1e9, 1)]),
    ([gaussian("t", 1e15) | {"mechanism": {"kind": "symmetric_stable", "alpha": 1.2, "gamma": 1e6}}], [(1, 1)]),
]


@pytest.mark.parametrize(("queries", "limits"), AWKWARD, ids=["many", "nine", "narrow", "stable"])
def test_every_verdict_fits_into_25_lines_of_80_columns(
    tmp_path: Path, queries: list[dict[str, Any]], limits: list[tuple[float, float]]
) -> None:
    at_most(render_verdict(verdict(load_plan(planned(tmp_path, queries, *limits)))))


def test_of_many_references_those_nearest_to_their_limits_are_shown(tmp_path: Path) -> None:
    limits = [(1, 1), (2, 1), (3, 1), (4, 1), (10, 0.1), (5, 1), (6, 1)]
    shown = render_verdict(verdict(load_plan(planned(tmp_path, [gaussian("t", 10)], *limits))))
    assert "5 employment=10" in shown
    assert "… 2 others" in shown
    assert "1 employment=1 " not in shown


def test_firms_are_judged_as_firms(tmp_path: Path) -> None:
    budget = [{"at": [{"employment": 10}, {"employment": 30}], "rho": 0.5}]
    path = write_world(tmp_path, None, dataset={"unit": "firm_id"}, queries=[gaussian("t", 20)], budget=budget)
    judged = verdict(load_plan(path))
    assert float(judged.standings[0].rho) == pytest.approx(40**2 / 800 + 2**2 / 20_000)  # both in one cell
    assert judged.remedies[0].table == "t"
    assert judged.remedies[0].totals[0] <= Fraction(1, 2)
    assert "every firm no larger" in render_verdict(judged)


def test_python_has_the_verdict(tmp_path: Path) -> None:
    plan = prdp.load_plan(planned(tmp_path, [gaussian("fine", 20), gaussian("coarse", 10)], (10, 1), (40, 6)))
    explained = plan.explain()
    assert explained.within_limits is False
    assert explained.verdict["within"].tolist() == [True, False]
    assert explained.verdict["used"].tolist()[1] == pytest.approx(10.00005 / 6)
    assert explained.shares["query"].tolist() == ["coarse", "fine"] * 2
    assert explained.errors["standard_error"].to_numpy() == pytest.approx(np.repeat([20, 10], 3), rel=1e-6)
    assert explained.remedies[0]["table"] == "coarse"
    assert explained.to_json()["verdict"]["remedies"] == explained.remedies
    assert "BREAKS" in str(explained)
    assert "P(Δ) = Δ²/(2σ²)" in explained.detail()
    assert "P(Δ)" not in str(explained)


def test_the_example_that_broke_its_budget_without_a_word(tmp_path: Path) -> None:
    path: Path = write_world(
        tmp_path, None, queries=QUERIES, budget=[{"at": {"employment": 10, "payroll": 500}, "rho": 3}]
    )
    plan: Plan = load_plan(path)
    judged = verdict(plan)
    assert (judged.within, judged.remedies[0].table) == (False, "payroll_state")


def test_the_page_of_commands_shows_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--records", "100", "--out", str(tmp_path / "data")]) == 0
    capsys.readouterr()
    assert main(["explain", str(tmp_path / "data" / "plan.yaml")]) == 0
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert f"$ prdp explain plan.yaml\n{capsys.readouterr().out}```" in page


def test_long_names_are_cut(tmp_path: Path) -> None:
    names = {"release": "r" * 60, "dataset": {"name": "d" * 60}}
    plan = load_plan(write_world(tmp_path, None, queries=[gaussian("q" * 90, 40)], budget=[], **names))
    shown = render_verdict(verdict(plan, [parse_at("employment=" + "1" * 100, plan)]))
    at_most(shown)
    assert shown.count("…") >= 3
