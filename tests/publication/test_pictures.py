"""Pictures: one look for a family wherever it is drawn, curves at values that exist, labels that can be read."""

from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from jobs.cli import main
from pipeline.accounting.references import Reference
from pipeline.base import plots
from pipeline.base.plots import FAMILIES, PRACTICES, apart, family_look, family_styles
from pipeline.plan.load import load_plan
from pipeline.plan.total_policy import policy_of
from pipeline.planning.explanation import POINTS, influences, plot_policies, policy_curves, total_curve
from pipeline.planning.study import comparison as comparison_output
from pipeline.planning.study.equal_mechanisms import Entry, Equal, Panel, lines_of
from pipeline.planning.study.studies import errors_picture, losses_picture
from pipeline.planning.study.study_figures import Aggregates, Cells, PanelLosses, panel_errors
from pipeline.planning.study.todays_practice import FactorNoise
from tests.support.world import write_world
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.records.statistics import Sum

PARAMETERS: dict[str, dict[str, Any]] = {
    "gaussian": {"sigma": 40},
    "laplace": {"sigma": 30},
    "generalized_gaussian": {"p": 0.5, "sigma": 5},
    "exponential_polylog": {"p": 2, "d": 1.5, "a": 2.718281828459046, "sigma": 20},
    "root": {"k": 4, "a": 0, "sigma": 2},
    "log": {"a": 10, "sigma": 0.4},
}
MECHANISMS = [{"kind": kind} | values for kind, values in PARAMETERS.items()]


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are drawn, as matplotlib has them."""
    drawn: list[Figure] = []

    def kept(figure: Figure, suffix: str) -> bytes:
        drawn.append(figure)
        figure.draw_without_rendering()
        return suffix.encode()

    monkeypatch.setattr(plots, "_bytes", kept)
    return drawn


def planned(folder: Path, mechanisms: list[dict[str, Any]], **changes: Any) -> Path:
    queries = [
        {"name": f"of_{mechanism['kind']}_{i}", "sum": "employment", "by": ["naics3"], "mechanism": mechanism}
        for i, mechanism in enumerate(mechanisms)
    ]
    budget = [{"at": {"employment": 10}, "rho": 50}, {"at": {"employment": 30}, "rho": 70}]
    return write_world(folder, None, **{"queries": queries, "budget": budget} | changes)


def colours_of_labels(figure: Figure) -> dict[str, str]:
    """The colours of the lines that a legend names, by label."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    return {label: to_hex(handle.get_color()) for handle, label in zip(handles, labels, strict=True)}


def study_figures(entries: list[dict[str, Any]], figures: list[Figure]) -> list[Figure]:
    """A panel's pictures of losses and of errors."""
    named = tuple(Entry(str(i), {k: v for k, v in each.items() if k != "sigma"}) for i, each in enumerate(entries))
    panel = Panel("p", "A panel", Equal(Fraction(900), Fraction(500)), named, errors=True)
    sizes = np.array([0, 1, 5, 20, 400])
    squares = sizes.astype(np.float64) ** 2
    cells = Cells(np.arange(5), sizes, np.ones(5, int), np.ones(5, int), squares, squares)
    data = Aggregates(sizes, np.array([5, 20, 10, 4, 1]), cells, 5)
    losses = PanelLosses.of(panel, lines_of(panel), data)
    losses_picture(losses, data, "employment")
    errors_picture(panel_errors(losses, cells, FactorNoise(a=1.05, b=1.15)), named, "Errors", cells, "employment")
    return figures[-4::2]


def test_a_family_has_one_colour_in_all_pictures(tmp_path: Path, figures: list[Figure]) -> None:
    plan = load_plan(planned(tmp_path, MECHANISMS))
    plot_policies(plan, tmp_path / "policies.svg")
    texts = {text.get_text(): text.get_color() for text in figures[0].axes[0].texts}
    for i, mechanism in enumerate(MECHANISMS):
        assert texts[f"of_{mechanism['kind']}_{i}"] == FAMILIES[mechanism["kind"]][0]
    shuffled = [MECHANISMS[i] for i in (3, 0, 5, 4, 1, 2)]
    losses, errors = study_figures(shuffled, figures)
    for figure in (losses, errors):  # paired panels agree, though lines of equal errors lie on each other
        colours = colours_of_labels(figure)
        assert [colours[str(i)] for i in range(6)] == [FAMILIES[each["kind"]][0] for each in shuffled]
        left, right = figure.axes[:2]
        others = [line.get_color() for line in right.get_lines()[: len(left.get_lines())]]
        assert others == [line.get_color() for line in left.get_lines()]
    assert colours_of_labels(errors)["multiplicative noise (median cell)"] == PRACTICES["multiplicative noise"]
    compared(tmp_path, shuffled[::-1])
    for label, colour in colours_of_labels(figures[-1]).items():
        assert colour == FAMILIES[label.partition(" ")[0]][0]


def compared(folder: Path, mechanisms: list[dict[str, Any]]) -> None:
    """Draw the picture of `prdp study compare` for these mechanisms."""
    built = [build(each, Fraction(1)) for each in mechanisms]
    value = np.array([1.0, 10.0, 100.0])
    best = [SimpleNamespace(family=m.kind, mechanism=m, losses=m.loss(value)) for m in built]
    comparison: Any = SimpleNamespace(
        sizes=SimpleNamespace(value=value, count=np.ones(3), records=3.0),
        objective=SimpleNamespace(limit=Fraction(1)),
        best=best,
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparison_output, "summary", lambda _: "equal")
        comparison_output.plot(comparison, folder / "compared.svg")


def test_looks_depend_on_the_family_alone() -> None:
    assert set(FAMILIES) >= set(CATALOGUE)
    assert len({colour for colour, _ in FAMILIES.values()}) == len(FAMILIES)
    forward, backward = family_styles(MECHANISMS), family_styles(MECHANISMS[::-1])[::-1]
    assert forward == backward  # the broken twin, looks by place in the picture, fails here
    twin = [plots.line_style(i) for i in range(6)]
    assert twin != [plots.line_style(5 - i) for i in range(6)]
    curve = {"kind": "log", "a": 1}
    heavy = curve | {"noise": {"kind": "exponential_polylog", "p": 2}}
    assert family_look(curve)[0] == family_look(heavy)[0] == FAMILIES["log"][0]
    assert family_look(heavy)[1] == FAMILIES["exponential_polylog"][1]
    assert family_look({"kind": "root", "k": 1, "noise": "laplace"}) == FAMILIES["laplace"]
    alike = family_styles([curve, curve | {"a": 100}])
    assert alike[0]["color"] == alike[1]["color"]
    assert "marker" not in alike[0]
    assert alike[1]["marker"]


def test_curves_of_a_study_start_where_data_start(figures: list[Figure]) -> None:
    losses, _ = study_figures(MECHANISMS[:2], figures)
    (gaussian, *_), least = losses.axes[0].get_lines(), 1 / (2 * 30**2)
    assert float(gaussian.get_xdata()[0]) == pytest.approx(least, rel=1e-6)
    assert float(gaussian.get_ydata()[0]) == pytest.approx(5 / 40)  # records of size 0 lose nothing


@pytest.mark.parametrize("step", ["1", "0.25", "5"])
def test_every_drawn_influence_is_a_multiple_of_the_step(tmp_path: Path, step: str) -> None:
    kind = "integer" if step == "1" else "decimal"
    measures = {"employment": {"column": "employment", "type": kind} | ({} if step == "1" else {"step": float(step)})}
    plan = load_plan(planned(tmp_path, MECHANISMS[:4], dataset={"measures": measures}))
    policy = policy_of(plan)
    curves = [*policy_curves(policy, Sum("employment"), 1e5), total_curve(plan, policy, Sum("employment"), 1e5)]
    for curve in curves:
        steps = curve.influence / float(step)
        assert (steps == np.rint(steps)).all()
        assert (np.diff(curve.rho) >= 0).all()
        assert 100 < len(curve.influence) <= POINTS
        assert curve.influence[0] >= 1
    twin = np.geomspace(1, 1e5, POINTS)  # what was drawn before
    assert not (twin == np.rint(twin)).all()
    assert influences(Fraction(step), 1e5)[-1] == 1e5


def test_tight_policies_have_no_stairs(tmp_path: Path) -> None:
    (curve,) = policy_curves(policy_of(load_plan(planned(tmp_path, [MECHANISMS[2]]))), Sum("employment"), 1e5)
    assert (np.diff(curve.rho) > 0).all()
    between = np.geomspace(1, 30, POINTS)  # the broken twin: between whole employees the loss is that of the next one
    twin = build(MECHANISMS[2], Fraction(1)).loss(between)
    assert (np.diff(twin) == 0).any()


CLASSES = {"of": "employment", "classes": [0, 20, 100]}
BY_CLASS = {
    "by": "size",
    "parts": {"0-19": {"kind": "gaussian", "sigma": 5}},
    "others": {"kind": "laplace", "sigma": 50},
}


@pytest.mark.parametrize("shape", ["plain", "filtered", "classes"])
def test_the_total_is_the_plans_own(tmp_path: Path, shape: str) -> None:
    def query(name: str, mechanism: dict[str, Any], **where: Any) -> dict[str, Any]:
        return {"name": name, "sum": "employment", "by": ["naics2", "county"], "mechanism": mechanism} | where

    count = {"name": "records", "count": "records", "by": ["county"], "mechanism": {"kind": "gaussian", "sigma": 2}}
    other = query("pay", {"kind": "log", "a": 50, "sigma": 0.5}) | {"sum": "payroll"}
    queries, changes = [query("a", MECHANISMS[1]), query("b", MECHANISMS[3]), count, other], {}
    if shape == "filtered":
        queries += [query(code[:2], MECHANISMS[0], where={"naics2": [code]}) for code in ("31-33", "44-45")]
    if shape == "classes":
        queries.append(query("c", BY_CLASS, by=["county", "size"]))
        domain = {"naics": "domain/naics.csv", "county": "domain/counties.csv", "size": CLASSES}
        changes = {"domain": domain}
    plan = load_plan(write_world(tmp_path, None, queries=queries, budget=[], **changes))
    policy = policy_of(plan)
    curve = total_curve(plan, policy, Sum("employment"), 1e4)
    for x, rho in list(zip(curve.influence.tolist(), curve.rho.tolist(), strict=True))[::40]:
        own = policy.loss_at(Reference.of({"employment": x, "payroll": 0}))
        assert rho == pytest.approx(float(own), rel=1e-9)
    if shape == "classes":
        parts = {c.label: c.influence for c in policy_curves(policy, Sum("employment"), 1e4)}
        assert parts["c (0-19)"].max() == 19  # a larger record is in another class
        assert parts["c (others)"].min() == 20


def test_lines_and_limits_are_named_and_names_do_not_overlap(tmp_path: Path, figures: list[Figure]) -> None:
    mechanisms = [{"kind": "gaussian", "sigma": 40 + i} for i in range(14)]
    plot_policies(load_plan(planned(tmp_path, mechanisms)), tmp_path / "many.svg")
    (axes,) = figures[0].axes
    texts = {text.get_text(): Text.get_window_extent(text) for text in axes.texts}  # without their lines
    ends = {name: box for name, box in texts.items() if not name.startswith("limit")}
    assert set(ends) == {f"of_gaussian_{i}" for i in range(9)} | {"all tables"}
    assert {name for name in texts if name.startswith("limit")} == {"limit 50", "limit 70"}
    assert axes.get_title(loc="right") == "faint: 5 with less"
    for group in (ends, {name: box for name, box in texts.items() if name not in ends}):
        boxes = sorted(group.values(), key=lambda box: box.y0)
        assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    at = [x for line in axes.get_lines() if line.get_marker() == "_" for x in np.atleast_1d(line.get_xdata())]
    assert at == [10, 30]


def test_labels_stand_in_the_file(tmp_path: Path) -> None:
    path, target = planned(tmp_path, MECHANISMS), tmp_path / "curves.svg"
    assert main(["explain", str(path), "--plot", str(target)]) == 0
    svg = target.read_text()  # text is outlines, with its words in a comment beside them
    for name in ("of_gaussian_0", "of_log_5", "all tables", "limit 50", "limit 70"):
        assert f"<!-- {name} -->" in svg


@given(st.lists(st.floats(0, 1), max_size=12), st.floats(0.01, 0.08))
def test_labels_are_moved_apart_and_keep_their_order(wanted: list[float], gap: float) -> None:
    places = apart(wanted, gap)
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    assert all(places[b] - places[a] >= gap - 1e-9 for a, b in pairwise(order))
    assert all(-1e-9 <= place <= 1 + 1e-9 for place in places)
    if len(wanted) == 1:
        assert places == wanted
