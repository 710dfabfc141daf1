"""`prdp study kinds`: kinds are compared at equal losses within a plan's own limits, and what is pasted keeps them."""

import json
from collections.abc import Callable
from math import tanh
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import prdp
from jobs.cli import main
from tests.support.world import write_world

JOBS = {"name": "jobs", "sum": "employment", "by": ["county"]}
PLACES = {"name": "places", "count": "records", "by": ["state"], "mechanism": {"kind": "gaussian", "sigma": 3}}
SMALL, LARGE = {"employment": 10}, {"employment": 1000}


def world(folder: Path, mechanism: dict[str, Any], *limits: tuple[Any, float], **changes: Any) -> Path:
    """Write a plan of one table of jobs with a mechanism, and limits at references."""
    budget = [{"at": at, "rho": rho} for at, rho in limits]
    queries = changes.pop("queries", [JOBS | {"mechanism": mechanism}])
    return write_world(folder, None, queries=queries, budget=budget, **changes)


def kinds_of(ranking: Any, table: int = 0) -> dict[str, dict[str, Any]]:
    """Return the candidates of a table by family."""
    return {each["family"]: each for each in ranking["tables"][table]["kinds"]}


def laplace_loss(scale: float, shift: int) -> float:
    """Return sup over α of D_α(Z ‖ Z + shift)/α of discrete Laplace noise, from its probabilities alone."""
    z = np.arange(-8000, 8001)
    log_mass = -np.abs(z) / scale
    log_mass -= np.log(np.exp(log_mass).sum())
    moved = np.roll(log_mass, shift)[shift:]
    orders = 1 + np.geomspace(1e-6, 1e4, 500)
    falls = [float(np.logaddexp.reduce(a * log_mass[shift:] + (1 - a) * moved)) / ((a - 1) * a) for a in orders]
    return max(falls)


def test_gaussian_and_laplace_noise_are_compared_as_their_closed_forms_say(tmp_path: Path) -> None:
    plan = world(tmp_path / "a", {"kind": "gaussian", "sigma": 10}, (SMALL, 0.6))
    found = kinds_of(prdp.rank_kinds(plan, kinds=["gaussian", "laplace"]))
    assert found["gaussian"]["mechanism"]["sigma"] == pytest.approx(10, rel=1e-7)
    scale = found["laplace"]["mechanism"]["sigma"]
    assert laplace_loss(scale, 10) == pytest.approx(10**2 / (2 * 10**2), rel=2e-3)  # Δ²/(2σ²)
    q = np.exp(-1 / scale)
    assert found["laplace"]["error"] == pytest.approx(2 * q / (1 - q) ** 2, rel=1e-6)
    assert laplace_loss(0.97 * scale, 10) > 0.51  # the twin: less noise would lose more
    paper = world(tmp_path / "b", {"kind": "laplace", "sigma": 12, "policy": "paper"}, (SMALL, 0.6))
    rho = tanh(10 / 12 / 2) * (10 / 12)
    (gaussian,) = prdp.rank_kinds(paper, kinds=["gaussian"])["tables"][0]["kinds"]
    assert gaussian["mechanism"]["sigma"] == pytest.approx(10 / (2 * rho) ** 0.5, rel=1e-7)
    assert gaussian["losses"][0]["rho"] == pytest.approx(rho, rel=1e-7)


def test_losses_are_equal_where_the_limit_binds_and_within_all_others(tmp_path: Path) -> None:
    """Laplace noise of the same loss at 10 employees; Gaussian noise would lose too much at 1,000."""
    plan = world(tmp_path, {"kind": "laplace", "sigma": 20, "policy": "paper"}, (SMALL, 0.14), (LARGE, 60))
    ranking = prdp.rank_kinds(plan, kinds=["gaussian", "laplace", "generalized_gaussian"])
    (table,) = ranking["tables"]
    assert table["equal_at"] == 0
    used = [limit["spent"] / limit["rho"] for limit in ranking["limits"]]
    assert used[0] > used[1]
    now = [loss["rho"] for loss in table["now"]["losses"]]
    assert len(table["kinds"]) == 3
    for each in table["kinds"]:
        at_small, at_large = (loss["rho"] for loss in each["losses"])
        assert at_small <= now[0] * (1 + 1e-12)
        most = now[1] + 60 - ranking["limits"][1]["spent"]  # one table: all that is left of the limit
        assert at_large <= most * (1 + 1e-9)
        reached = at_small / now[0], at_large / most
        assert max(reached) > 1 - 1e-4, "no more noise than is needed"
    gaussian = kinds_of(ranking)["gaussian"]
    assert gaussian["losses"][0]["rho"] < 0.5 * now[0]  # the larger reference decides
    errors = [each["error"] for each in table["kinds"]]
    assert errors == sorted(errors)


def pasted(plan: Path, ranking: Any, weights: Path) -> Path:
    """Write the plan with the first line of each table in place of its mechanism."""
    data = yaml.safe_load(plan.read_text())
    for query, table in zip(data["queries"], ranking["tables"], strict=True):
        query["mechanism"] = yaml.safe_load(table["kinds"][0]["line"])["mechanism"]
    for file in weights.iterdir():
        (plan.parent / file.name).write_bytes(file.read_bytes())
    changed = plan.with_name("changed.yaml")
    changed.write_text(yaml.safe_dump(data, sort_keys=False))
    return changed


def test_the_lines_make_a_plan_within_its_limits_with_the_errors_that_were_said(tmp_path: Path) -> None:
    jobs = JOBS | {"mechanism": {"kind": "laplace", "sigma": 20}}
    plan = world(tmp_path, {}, (SMALL, 0.3), (LARGE, 70), queries=[jobs, PLACES])
    ranking = prdp.rank_kinds(plan, kinds=["designed", "laplace", "gaussian"], out=tmp_path / "weights")
    assert ranking["together"]
    changed = prdp.load_plan(pasted(plan, ranking, tmp_path / "weights"))
    verdict = changed.explain().to_json()["verdict"]
    assert verdict["within_limits"]
    before = prdp.load_plan(plan).explain().to_json()["verdict"]["references"]
    for one, other in zip(before, verdict["references"], strict=True):
        assert other["rho"] <= other["limit"]
        assert one["limit"] == other["limit"]
    errors = {each["name"]: each["errors"][0]["standard_error"] for each in verdict["tables"]}
    for table in ranking["tables"]:
        best = table["kinds"][0]
        assert errors[table["table"]] ** 2 == pytest.approx(best["error"], rel=1e-9)
        assert table["gain"] == pytest.approx(max(0, 1 - best["error"] / table["now"]["error"]))
    first = ranking["tables"][0]["kinds"][0]
    assert first["family"] == "designed"
    assert 0 < first["lower_bound"] < first["error"] < 0.7 * ranking["tables"][0]["now"]["error"]


def test_errors_that_grow_with_the_total_need_one(tmp_path: Path) -> None:
    plan = world(tmp_path / "a", {"kind": "gaussian", "sigma": 10}, (SMALL, 0.6))
    without = prdp.rank_kinds(plan, kinds=["gaussian", "log"])["tables"][0]
    assert [each["kind"] for each in without["left_out"]] == ["log"]
    small, large = (prdp.rank_kinds(plan, kinds=["gaussian", "log"], total=total) for total in (1, 1000))
    assert small["tables"][0]["kinds"][0]["family"].startswith("log")
    assert large["tables"][0]["kinds"][0]["family"] == "gaussian"
    plan = world(tmp_path / "b", {"kind": "log", "a": 1, "sigma": 1}, (SMALL, 9))
    with pytest.raises(prdp.PlanError, match="query jobs: its error grows with the true total"):
        prdp.rank_kinds(plan)


def test_firms_are_compared_by_what_the_plan_states_of_them(tmp_path: Path) -> None:
    firm = [{"employment": 10}, {"employment": 5}]
    plan = world(tmp_path, {"kind": "laplace", "sigma": 40}, (firm, 1), dataset={"unit": "owner"})
    ranking = prdp.rank_kinds(plan, kinds=["gaussian", "designed"])
    (table,) = ranking["tables"]
    assert [each["kind"] for each in table["left_out"]] == ["designed"]
    (gaussian,) = table["kinds"]
    assert gaussian["losses"][0]["rho"] == pytest.approx(table["now"]["losses"][0]["rho"], rel=1e-6)


def test_a_draft_keeps_its_word_that_scales_are_chosen(tmp_path: Path) -> None:
    chosen = {"mechanism": {"kind": "gaussian", "calibrate": "plan"}}
    draft = world(
        tmp_path,
        {},
        ({"employment": 10}, 0.5),
        queries=[JOBS | chosen, PLACES | {"mechanism": {"kind": "gaussian", "sigma": 5}}],
        calibrate={"minimise": "standard_error", "years": 2},
    )
    ranking = prdp.rank_kinds(draft, kinds=["gaussian", "laplace"])
    assert ranking["limits"][0]["times"] == 2
    assert ranking["limits"][0]["spent"] <= 0.5
    lines = [table["kinds"][0]["line"] for table in ranking["tables"]]
    assert "calibrate: plan" in lines[0]
    assert "sigma" not in lines[0]
    assert "sigma: " in lines[1]


def test_tables_without_a_limit_and_wrong_names_are_refused(tmp_path: Path) -> None:
    plan = world(tmp_path, {"kind": "gaussian", "sigma": 10})
    with pytest.raises(prdp.PlanError, match="no limit counts a record of it"):
        prdp.rank_kinds(plan)
    calls: list[Callable[[], Any]] = [
        lambda: prdp.rank_kinds(plan, kinds=["gausian"]),
        lambda: prdp.rank_kinds(plan, tables=["job"]),
        lambda: prdp.rank_kinds(plan, minimise="bias"),
    ]
    for call, words in zip(calls, ("did you mean gaussian|nearest known.*gaussian", "jobs", "variance"), strict=True):
        with pytest.raises(prdp.PlanError, match=words):
            call()


def test_the_command_prints_what_python_returns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = world(tmp_path, {"kind": "laplace", "sigma": 20}, (SMALL, 0.3))
    assert main(["study", "kinds", str(plan), "--kinds", "gaussian,laplace", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == prdp.rank_kinds(plan, kinds=["gaussian", "laplace"]).to_json()
    assert main(["study", "kinds", str(plan), "--kinds", "gaussian,laplace"]) == 0
    text = capsys.readouterr().out
    assert "limit 1, at employment=10: rho" in text
    assert "to paste:\n      mechanism: {kind: gaussian, sigma: " in text
    assert "% less variance" in text
    assert "All lines together keep all limits" in text
