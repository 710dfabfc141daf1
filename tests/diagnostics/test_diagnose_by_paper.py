"""prdp diagnose where policies are tight: the paper's bound of the same noise beside the losses that are stated."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from pipeline.base.html import QUANTILES
from pipeline.diagnostics.diagnostics_page import draw_shares
from pipeline.plan.load import load_plan
from tests.support import firms
from tests.support.diagnostics import QUERIES, diagnosed, microdata, read
from tests.support.losses import in_domain, met, whole
from tests.support.world import write_world

ROOT = {"kind": "generalized_gaussian", "p": 0.5, "sigma": 5}
POLYLOG = {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 2.718281828459046, "sigma": 20}
MANY = [
    *QUERIES,
    {"name": "laplace", "sum": "employment", "by": ["state"], "mechanism": {"kind": "laplace", "sigma": 5}},
    {"name": "root", "sum": "employment", "by": ["naics3", "county"], "mechanism": ROOT},
    {"name": "polylog", "sum": "employment", "by": ["naics3", "state"], "mechanism": POLYLOG},
]
TIGHT = ["sectors", "laplace", "root", "polylog"]  # sectors: in some of its parts
TABLES = {"records": write_world, "firms": firms.world}


def told_by_paper(described: Any) -> Any:
    """Return queries whose heavy-tailed mechanisms ask for the paper's policy."""
    if isinstance(described, list):
        return [told_by_paper(one) for one in described]
    if not isinstance(described, dict):
        return described
    tight = described.get("kind") in ("laplace", "generalized_gaussian", "exponential_polylog", "symmetric_stable")
    return {key: told_by_paper(value) for key, value in described.items()} | ({"policy": "paper"} if tight else {})


@pytest.mark.parametrize("unit", TABLES)
def test_the_papers_bound_is_what_a_plan_of_the_papers_policies_would_state(unit: str, tmp_path: Path) -> None:
    tight, paper = (
        read(diagnosed(TABLES[unit](tmp_path / name, microdata=microdata(), queries=queries), tmp_path / f"{name} out"))
        for name, queries in (("tight", MANY), ("paper", told_by_paper(MANY)))
    )
    for made, other in ((tight["losses"], paper["losses"]), (tight["firms"], paper["firms"])):
        if made is None:
            assert unit == "records"
            continue
        assert other["by_paper"] is None
        beside = made["by_paper"]
        assert beside["total"] == other["total"]
        assert beside["by_size"] == other["by_size"]
        assert beside["by_query"] == {name: other["by_query"][name] for name in TIGHT}
        for name in TIGHT:
            stated, bound = made["by_query"][name], beside["by_query"][name]
            assert stated["count"] == bound["count"] > 0
            assert all(stated["quantiles"][q] <= bound["quantiles"][q] for q in QUANTILES)
            lower = any(stated["quantiles"][q] < bound["quantiles"][q] for q in QUANTILES)
            assert lower or name == "sectors"  # there Gaussian parts hide it; the twin, one bound twice, is never lower


def test_the_papers_bound_is_that_of_exact_fractions(tmp_path: Path) -> None:
    plan = write_world(tmp_path / "world", microdata(), queries=MANY)
    found = read(diagnosed(plan, tmp_path / "out"))["losses"]["by_paper"]
    loaded, losses = load_plan(plan), []
    for row in microdata().to_pylist():
        if in_domain(loaded, row):
            each = [met(loaded, query, row) for query in loaded.queries]
            losses.append(whole(one.mechanism.by_paper().loss_at(one.influence) for one in each if one))
    assert found["total"]["count"] == len(losses)
    assert 0 <= found["total"]["largest"] / float(max(losses)) - 1 < 1e-8
    half = float(np.sort(losses)[-(-len(losses) // 2) - 1])
    assert half <= found["total"]["quantiles"]["0.5"] <= half * (1 + 1 / 64) * (1 + 1e-8)


def test_the_page_shows_both_where_a_policy_is_tight(tmp_path: Path) -> None:
    pages = {}
    for name, queries in (("tight", MANY), ("paper", told_by_paper(MANY))):
        plan = firms.world(tmp_path / name, microdata=microdata(), queries=queries)
        pages[name] = (diagnosed(plan, tmp_path / f"{name} out") / "report.html").read_text(encoding="utf-8")
    for unit in ("records", "firms"):
        heading = f">Losses of {unit}: what tight policies gain</h2>"
        assert (heading in pages["tight"], heading in pages["paper"]) == (True, False)
    for name in ("all together", *TIGHT):
        assert f">{name}, tight<" in pages["tight"]
        assert f">{name}, paper<" in pages["tight"]


def test_lines_in_pairs_share_their_colour() -> None:
    curves = {name: [(1.0, 0.5), (10.0, 1.0)] for name in ("a, tight", "a, paper", "b, tight", "b, paper")}
    looks = {}
    for paired in (True, False):
        axes = Figure().subplots()
        draw_shares(axes, curves, "records", paired=paired)
        looks[paired] = [(line.get_color(), line.get_linestyle()) for line in axes.get_lines()]
    first, second, third, fourth = looks[True]
    assert first[0] == second[0] != third[0] == fourth[0]
    assert first[1] == third[1] != second[1] == fourth[1]
    assert len({colour for colour, _ in looks[False]}) == 4


def test_without_matplotlib_the_page_has_its_tables_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.diagnostics.diagnostics_page.can_draw", lambda: False)
    plan = write_world(tmp_path / "world", microdata(), queries=MANY)
    page = (diagnosed(plan, tmp_path / "out") / "report.html").read_text(encoding="utf-8")
    assert "Plots are left out" in page
    assert "<img" not in page
    assert ">all together, tight<" in page
