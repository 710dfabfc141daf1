"""Whole publications with other noise: equal accuracies, the losses of records and firms by hand, drawn errors."""

import json
import math
from collections.abc import Mapping
from fractions import Fraction
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import prdp
from jobs.cli import main
from pipeline.base.errors import PlanError
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.planning.study.equal_publication import ACCURACIES, KINDS, SizedCells, Wanted, as_accurate, wanted_of
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build

PLAN = Path(__file__).parents[2] / "conf" / "plans" / "state-industry.yaml"
TABLES = ("us_naics2", "st_total", "st_naics2")
CHOSEN = ("gaussian", "stable")


@pytest.fixture(scope="module")
def like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wyoming, and a plan of three tables."""
    plan = prdp.generate_like("cbp-2011", tmp_path_factory.mktemp("like") / "data", states=["56"])
    kept = [
        line for line in PLAN.read_text().splitlines() if "{name: " not in line or f"{line.split()[2][:-1]}" in TABLES
    ]
    text = "\n".join(kept).replace("*middle", "{kind: exponential_polylog, p: 1, d: 5, a: 1, sigma: 500}")
    plan.write_text(text.replace("*coarse", "{kind: exponential_polylog, p: 1, d: 5, a: 1, sigma: 1000}"))
    return plan


def accuracy(mechanism: Mechanism, equal: str, total: float, coverage: Fraction) -> float:
    if equal == "variance":
        return sqrt(mechanism.variance(total))
    if equal == "mean_absolute_error":
        return mechanism.mean_absolute_error(total)
    if equal == "interval":
        lower, upper = mechanism.interval_around(total, coverage)
        return upper - lower
    return mechanism.error_quantile(total, Fraction(1, 2)) / total


def sized(plan: Plan, total: float) -> list[SizedCells]:
    counts, totals = np.zeros((1, 3), dtype=np.int64), np.zeros((1, 3))
    counts[0, 0], counts[0, 2], totals[0, 2] = 100, 1, total  # cells without anybody do not count
    return [SizedCells(counts, totals) for _ in plan.queries]


@pytest.mark.parametrize("equal", ACCURACIES)
def test_every_kind_is_as_accurate_in_every_table(like: Path, equal: str) -> None:
    plan = load_plan(like)
    wanted = wanted_of(plan, equal, sized(plan, 20_000.0))
    assert {each.total for each in wanted} == {20_000.0}
    for name, kind in KINDS.items():
        slow = equal == "median_relative_error" and name not in (
            "gaussian",
            "stable",
            "polylog_2",
            "fourth_root_laplace",
        )
        if slow or (name == "stable" and equal == "variance"):
            continue
        made = as_accurate(plan, kind, wanted, name)
        for own, query in zip(plan.queries, made.queries, strict=True):
            other = query.mechanisms[0]
            assert other.kind == kind["kind"]
            figures = [accuracy(m, equal, 20_000.0, plan.interval) for m in (own.mechanisms[0], other)]
            assert figures[1] == pytest.approx(figures[0], rel=2e-3, abs=2 / 20_000 if "relative" in equal else 0)
            wider = build(
                other.describe() | {other.scale_parameter: getattr(other, other.scale_parameter) * 2}, other.step
            )
            assert accuracy(wider, equal, 20_000.0, plan.interval) > 1.2 * figures[0]  # the twin


def test_a_plan_without_such_an_accuracy_is_told(like: Path) -> None:
    text = like.read_text().replace(
        "kind: exponential_polylog, p: 1, d: 5, a: 1", "kind: exponential_polylog, p: 1, d: 2, a: 1"
    )
    other = like.with_name("heavy.yaml")
    other.write_text(text)
    plan = load_plan(other)  # P(|Z| > z) falls as 1/z: neither variance nor mean
    for equal in ("variance", "mean_absolute_error"):
        with pytest.raises(PlanError, match=f"query us_naics2: its noise has no finite {equal.replace('_', ' ')}"):
            wanted_of(plan, equal, sized(plan, 10.0))
    assert isinstance(wanted_of(plan, "interval", sized(plan, 10.0))[0], Wanted)


@pytest.fixture(scope="module")
def found(like: Path) -> Mapping[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "pipeline.diagnostics.plan_trials.release", None
        )  # no release is rehearsed of plans that nobody will release
        return prdp.publication(
            like, equal="mean_absolute_error", kinds=CHOSEN, like="cbp-2011", states=["56"], draws=40, workers=2
        )


def loss_of_test(records: Any, *, pure: bool) -> Any:
    """rho of the test of records left out, scale 100: Gaussian noise, or Laplace noise on the integers."""
    if not pure:
        return records**2 / 20_000
    return records / 100 - 0.01 / math.sinh(0.01) * -np.expm1(-records / 100)


def test_losses_are_those_of_records_and_firms(found: Mapping[str, Any], like: Path) -> None:
    """Every record lies in one cell of each table; a firm's establishments in one cell count together."""
    data = pd.read_parquet(like.parent / "microdata")  # the seed's, as the study's own
    data["naics2"] = data.naics.str[:2].replace({"32": "31", "33": "31", "45": "44", "49": "48"})
    keys = {"us_naics2": ["naics2"], "st_total": [], "st_naics2": ["naics2"]}
    plan, wanted = load_plan(like), found["wanted"]
    totals = {each["table"]: each["total"] for each in wanted}
    sums = data.groupby("naics2").employment.sum()
    assert totals["us_naics2"] == pytest.approx(float(np.sort(sums)[(len(sums) - 1) // 2]), rel=0.21)  # to a bin
    for entry in found["entries"][:2]:
        tables = {table["name"]: table["mechanism"] for table in entry["tables"]}
        curves = {name: build(tables[name], Fraction(1)) for name in keys}
        records = sum(curve.loss(data.employment.to_numpy(float)) for curve in curves.values())
        counts = data.groupby("firm_id").size()
        pure = all(curve.pure_formula is not None for curve in curves.values())
        records, firms = records + loss_of_test(1, pure=pure), loss_of_test(counts.astype(float), pure=pure)
        for name, levels in keys.items():
            sums = data.groupby(["firm_id", *levels]).employment.sum()
            losses = pd.Series(curves[name].loss(sums.to_numpy(float)), index=sums.index)
            firms += losses.groupby("firm_id").sum()
        for losses, stated in ((records, entry["losses"]["records"]), (firms.to_numpy(), entry["losses"]["firms"])):
            assert stated["count"] == len(losses)
            assert stated["largest"] == pytest.approx(losses.max(), rel=1e-6)
            for q in ("0.5", "0.99"):
                true = np.quantile(losses, float(q), method="inverted_cdf")
                assert true * (1 - 1e-9) <= stated["quantiles"][q] <= true * (1 + 1 / 32)
    assert len(plan.queries) == len(keys)


def test_errors_are_drawn(found: Mapping[str, Any]) -> None:
    assert [entry["name"] for entry in found["entries"]] == ["the plan", *CHOSEN]
    assert found["left_out"] == {}
    wanted = {each["table"]: each["value"] for each in found["wanted"]}
    for entry in found["entries"][:3]:
        for table in entry["tables"]:
            row = table["classes"][-1]
            draws = row["cells"] * 40
            spread = 6 / sqrt(draws)  # of heavy noise; a scale twice as large would be at 1
            found_error, right = row["mean_absolute_error"], wanted[table["name"]]
            if entry["name"] == "stable":  # a mean of finitely many draws settles nothing without a variance
                median = build(table["mechanism"], Fraction(1)).error_quantile(0.0, Fraction(1, 2))
                found_error, right = row["median_absolute_error"], float(median)
            assert abs(found_error / right - 1) < max(spread, 0.05)
        assert abs(entry["coverage"] - found["interval"]) < 0.05
    assert found["entries"][1]["bias_in_mc"] < 5
    assert found["entries"][2]["bias_in_mc"] is None  # stable noise has no variance


def test_the_command(like: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    call = ["evaluate", "--publication", str(like), "--like", "cbp-2011", "--states", "56", "--draws", "0"]
    assert main([*call, "--kinds", "gaussian,stable", "--out", str(out)]) == 0
    text, made = capsys.readouterr().out, json.loads((out / "publication.json").read_text())
    assert {path.name for path in out.iterdir()} == {"publication.json", "publication.svg", "publication.png"}
    assert [entry["name"] for entry in made["entries"]] == ["the plan", "gaussian"]
    assert "Left out: stable: us_naics2: " in text
    assert made["left_out"]["stable"].startswith("us_naics2: the noise has no standard error")
    for options, says in (
        (["--equal", "bias"], "--equal: must be one of variance, mean_absolute_error"),
        (["--kinds", "gaussian,laplac"], "--kinds laplac: unknown; nearest known kind: laplace"),
        (["--rules", "p=3"], "unknown option --rules"),
        (["--suppression", str(like)], "unknown option --publication"),
    ):
        assert main([*call, *options, "--out", str(tmp_path / "other")]) == 2
        assert says in capsys.readouterr().err
