"""What `prdp explain` tells: the paper's table 1, groups of records, errors of the noise, warnings of its tails."""

import json
from fractions import Fraction
from math import exp, factorial, inf, log, sqrt
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import norm

from jobs.cli import main
from pipeline.accounting.convert import exact_scale
from pipeline.accounting.references import Reference
from pipeline.plan.load import load_plan
from pipeline.plan.model import Plan
from pipeline.plan.total_policy import parse_at
from pipeline.planning.explain_text import render
from pipeline.planning.explanation import explain
from pipeline.publication.description import OF_INFINITE, OF_MEANS, OF_MEDIANS, oddities
from tests.support.world import records, write_world
from udfs.numbers.exact import up_text

TABLE_1 = Path(__file__).parents[2] / "conf" / "plans" / "table-1.yaml"
EMPLOYEES = (5, 5, 10, 20, 30, 10_000)
LOSSES = {  # paper 1, table 1
    "unit_splitting": (1, 1, 1, 4, 9, 1_000_000),
    "fourth_root": (0.2795, 0.2795, 0.3953, 0.5590, 0.6847, 12.5),
    "logarithm": (0.4013, 0.4013, 0.7187, 1.1586, 1.4740, 10.6040),
}


def told_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["explain", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def plan_with(folder: Path, *mechanisms: dict[str, Any]) -> Plan:
    queries = [
        {"name": f"q{i}", "sum": "employment", "by": ["naics3", "county"], "mechanism": mechanism}
        for i, mechanism in enumerate(mechanisms)
    ]
    return load_plan(write_world(folder, records(10), queries=queries, budget=[]))


def test_the_papers_table_1(capsys: pytest.CaptureFixture[str]) -> None:
    told = told_of(capsys, str(TABLE_1), *(part for size in EMPLOYEES for part in ("--at", f"employment={size}")))
    for query in told["queries"]:
        assert [round(loss["rho"], 4) for loss in query["losses"]] == list(LOSSES[query["name"]])
        assert [loss["influence"] for loss in query["losses"]] == list(EMPLOYEES)
    assert told["total"][5]["rho"] == pytest.approx(1_000_000 + 12.5 + 10.6040, abs=1e-4)


def test_a_group_of_records_loses_by_the_tight_and_the_simple_bound(capsys: pytest.CaptureFixture[str]) -> None:
    group = ";".join(f"employment={size}" for size in EMPLOYEES)
    told = told_of(capsys, str(TABLE_1), "--at", group, "--at", "employment=5")
    splitting = told["queries"][0]["losses"][0]
    assert splitting["rho_simple"] == 6_000_096  # J·ΣP by hand
    assert 1007**2 <= splitting["rho"] <= 1008**2  # all in one cell, 10,070 employees, and (Σ√P)²
    roots = told["queries"][1]["losses"][0]
    assert roots["rho"] == pytest.approx(sum(LOSSES["fourth_root"]), rel=1e-3)  # each in a cell of its own
    assert roots["rho_simple"] == pytest.approx(6 * sum(LOSSES["fourth_root"]), rel=1e-3)
    assert told["total"][0]["at"] == [{"employment": size} for size in EMPLOYEES]
    assert "rho_simple" not in told["total"][1]
    plan = load_plan(TABLE_1)
    shown = render(explain(plan, [parse_at(group, plan)]), plan)
    assert "simple group bound 6.00010e+6" in shown
    assert "J·ΣP" in shown


def test_how_far_above_the_true_loss_each_mechanism_may_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    told = told_of(capsys, str(TABLE_1), "--at", "employment=5", "--at", "employment=10")
    shares = {query["name"]: query["excess"] for query in told["queries"]}
    # P is 1 at both, Δ²/(2σ²) a quarter and 1; three digits, rounded up
    assert shares["unit_splitting"] == pytest.approx([3, 0], rel=4e-3, abs=1e-6)
    assert max(shares["fourth_root"] + shares["logarithm"]) < 1e-8
    assert main(["explain", str(TABLE_1), "--at", "employment=5", "--detail"]) == 0
    assert "too high by a factor of 4.01 at most" in capsys.readouterr().out
    plan = plan_with(tmp_path, {"kind": "symmetric_stable", "alpha": 1.5, "gamma": 20})
    explained = explain(plan, [Reference.of({"employment": 10}), Reference.of([{"employment": 10}, {"employment": 3}])])
    alone, together = explained["queries"][0]["excess"]
    assert 0 < alone < 0.002
    assert together is None
    assert "too high by: not known" in render(explained, plan)


def test_errors_of_additive_noise_are_those_of_the_lattice(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, {"kind": "gaussian", "sigma": 0.5}, {"kind": "laplace", "sigma": 2})
    gaussian, laplace = (query["accuracy"] for query in explain(plan, [])["queries"])
    assert len(gaussian) == len(laplace) == 1
    weights = {k: exp(-(k**2) / (2 * 0.25)) for k in range(-40, 41)}
    total = sum(weights.values())
    variance, mean = (sum(abs(k) ** n * w for k, w in weights.items()) / total for n in (2, 1))
    assert gaussian[0]["standard_error"] == pytest.approx(sqrt(variance), rel=1e-12)
    assert gaussian[0]["mean_absolute_error"] == pytest.approx(mean, rel=1e-10)
    assert (gaussian[0]["lower"], gaussian[0]["upper"]) == (-1, 1)  # P(|Z| > 1) = 0.0005, P(|Z| > 0) = 0.21
    q = exp(-0.5)
    assert laplace[0]["standard_error"] == pytest.approx(sqrt(2 * q) / (1 - q), rel=1e-12)
    assert laplace[0]["mean_absolute_error"] == pytest.approx(2 * q / (1 - q * q), rel=1e-10)
    assert laplace[0]["standard_error"] != pytest.approx(2 * sqrt(2), rel=1e-3)  # the twin: continuous noise


def test_errors_of_transformations_grow_with_the_total(tmp_path: Path) -> None:
    log = {"kind": "log", "a": 1}
    plan = plan_with(tmp_path, log | {"sigma": 0.5}, log | {"sigma": 0.6, "noise": "laplace"})
    told = explain(plan, [])
    gaussian, laplace = (query["accuracy"] for query in told["queries"])
    for entry in gaussian:
        q = entry["total"] + 1
        assert entry["standard_error"] == pytest.approx(q * sqrt(exp(0.25) - 1), rel=1e-12)
        assert entry["lower"] == pytest.approx(max(0, q * exp(-1.959964 * 0.5) - 1), rel=1e-5)
        assert entry["upper"] == pytest.approx(q * exp(1.959964 * 0.5) - 1, rel=1e-5)
    assert [entry["standard_error"] for entry in laplace] == [None] * 4  # σ ≥ ½ has no variance
    assert all(0 < entry["mean_absolute_error"] < inf for entry in laplace)
    assert "infinite" in render(told, plan)


def test_tails_beyond_the_range_are_warned_of(tmp_path: Path) -> None:
    heavy = {"kind": "exponential_polylog", "p": 1, "d": 1.5, "a": 1, "sigma": 20}
    wide = {"kind": "exponential_polylog", "p": 1, "d": 3.05, "a": 1, "sigma": 20}
    light = {"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": 3, "sigma": 20}
    plan = plan_with(tmp_path, heavy, wide, light)
    told = explain(plan, [])
    # P(|Z| > z) ≈ (z/σ + 1)^{1−d}: 2⁶³/20 to the power −½
    probability = (2**63 / 20) ** -0.5
    (first,), (second,), none = (query["warnings"] for query in told["queries"])
    assert f"with probability {up_text(probability, 2)}, which" in first
    assert "of the variance lies beyond" in second
    assert none == []
    assert render(told, plan).count("\nwarning: ") == 2


def test_the_page_tells_the_oddities_of_the_plans_mechanisms(tmp_path: Path) -> None:
    log = {"kind": "log", "a": 1, "sigma": 0.4}
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"kind": "gaussian", "sigma": 3}, set()),
        (log, {OF_MEANS}),
        (log | {"estimator": "median"}, {OF_MEDIANS}),
        (log | {"estimator": "median", "noise": "laplace", "sigma": 0.6}, {OF_MEDIANS, OF_INFINITE}),
        ({"kind": "root", "k": 2, "a": 0, "sigma": 1}, {OF_MEANS}),
        ({"kind": "exponential_polylog", "p": 1, "d": 3, "a": 1, "sigma": 1}, {OF_INFINITE}),
    ]
    for i, (mechanism, expected) in enumerate(cases):
        told = oddities(plan_with(tmp_path / str(i), mechanism))
        assert {text for text in (OF_MEANS, OF_MEDIANS, OF_INFINITE) if text in told} == expected


def test_narrow_noise_is_warned_of_only_where_rounding_shows(tmp_path: Path) -> None:
    fine = [
        {"kind": "gaussian", "sigma": 0.005},  # no variance that a double holds, and none lost
        {"kind": "laplace", "sigma": 0.0001},
        {"kind": "root", "k": 2, "a": 0, "sigma": 1e-5},
        {"kind": "log", "a": 1, "sigma": 1e-6},
    ]
    coarse = [
        {"kind": "root", "k": 2, "a": 0, "sigma": 1e-9},  # σ is half a lattice step
        {"kind": "root", "k": 2, "a": 1e17, "sigma": 1e-5},  # doubles near √a are 6·10⁻⁸ apart
        {"kind": "log", "a": 1, "sigma": 1e-10},
    ]
    told = [query["warnings"] for query in explain(plan_with(tmp_path, *fine, *coarse), [])["queries"]]
    assert told[: len(fine)] == [[]] * len(fine)
    assert all("rounding shows beside the noise" in text for (text,) in told[len(fine) :])
    lower, upper = (told_interval(tmp_path / "ends", coarse[1])[end] for end in ("lower", "upper"))
    assert lower <= 0 <= upper


def told_interval(folder: Path, mechanism: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = explain(plan_with(folder, mechanism), [])["queries"][0]["accuracy"][0]
    return found


HIGH_ROOTS = [(86, "0.03", "laplace"), (100, "0.0295", "gaussian"), (98, "0.0301", "gaussian")]


@pytest.mark.parametrize(("k", "sigma", "noise"), HIGH_ROOTS)
def test_high_roots_are_explained(tmp_path: Path, k: int, sigma: str, noise: str) -> None:
    root = {"kind": "root", "k": k, "a": 0, "sigma": float(sigma), "noise": noise, "estimator": "median"}
    told = explain(plan_with(tmp_path, root), [])["queries"][0]["accuracy"]
    # at total 0: Var max(Z, 0)^k = m_{2k}/2 − (m_k/2)², m_n = (n − 1)!! or n!, in units of σ^{2k}
    twice, once = (factorial(n) // (1 if noise == "laplace" else 2 ** (n // 2) * factorial(n // 2)) for n in (2 * k, k))
    variance = (Fraction(twice, 2) - Fraction(once, 2) ** 2) * Fraction(sigma) ** (2 * k)
    assert told[0]["standard_error"] == pytest.approx(sqrt(float(variance)), rel=1e-12)
    assert all(entry["standard_error"] > 0 for entry in told)


def test_totals_are_told_in_words_of_people(capsys: pytest.CaptureFixture[str]) -> None:
    told = told_of(capsys, str(TABLE_1), "--at", "employment=10", "--delta", "1e-6")
    rho, (means,) = told["total"][0]["rho"], told["total_means"]
    assert (means["delta"], means["size"]) == (1e-6, 0.05)
    # all noise is Gaussian: together that of one scale, 1/√(2ρ) for a shift of 1
    assert (
        exact_scale(means["epsilon"] * 0.999, 1e-6) > 1 / sqrt(2 * rho) >= exact_scale(means["epsilon"] * 1.001, 1e-6)
    )
    assert means["power"] == pytest.approx(norm.cdf(sqrt(2 * rho) - norm.isf(0.05)), rel=1e-3)
    assert (means["by"], means["coarse"]) == ("distribution", [])
    assert means["epsilon_simple"] == pytest.approx(rho + 2 * sqrt(rho * 6 * log(10)), rel=1e-8)
    for told_of_prior, prior in zip(means["posteriors"], (0.01, 0.5), strict=True):
        odds = prior / (1 - prior)
        mean, largest = odds * exp(2 * rho), odds * exp(means["epsilon_simple"])
        assert told_of_prior["prior"] == prior
        assert told_of_prior["mean"] == pytest.approx(mean / (1 + mean), rel=1e-8)
        assert told_of_prior["largest"] == pytest.approx(largest / (1 + largest), rel=1e-8)
    assert main(["explain", str(TABLE_1), "--at", "employment=10", "--detail"]) == 0
    shown = capsys.readouterr().out
    assert "best test 0.6599" in shown
    told_to_people = next(line for line in shown.splitlines() if " / " in line)
    mean = told_to_people.split()[1]
    assert float(mean) == pytest.approx(0.01 * exp(2 * rho) / (0.99 + 0.01 * exp(2 * rho)), abs=1e-4)
    curve = [line.split()[1:] for line in shown.splitlines() if line.lstrip().startswith("fourth_root  ")][-2:]
    assert [float(loss) for half in curve for loss in half] == pytest.approx(  # paper 1: √Δ / (2·2²)
        [sqrt(10**power) / 8 for power in range(8)], rel=1e-3
    )


@pytest.mark.parametrize("delta", ["0", "1", "nan", "-1", "x"])
def test_a_delta_that_is_no_probability_is_refused(capsys: pytest.CaptureFixture[str], delta: str) -> None:
    assert main(["explain", str(TABLE_1), f"--delta={delta}"]) == 2
    assert "above 0 and below 1" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "begin"), [("curves.svg", b"<?xml"), ("curves.PNG", b"\x89PNG")])
def test_policy_curves_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, begin: bytes) -> None:
    for target in (tmp_path / name, tmp_path / f"again-{name}"):
        assert main(["explain", str(TABLE_1), "--plot", str(target)]) == 0
    picture = (tmp_path / name).read_bytes()
    assert picture.startswith(begin)
    assert picture == (tmp_path / f"again-{name}").read_bytes()  # a document to be kept with a plan
    if begin == b"<?xml":
        assert all(query.encode() in picture for query in LOSSES)  # the legend, as comments beside its outlines


@pytest.mark.parametrize("name", ["curves.pdf", "curves", "missing/curves.svg"])
def test_a_picture_that_cannot_be_written_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["explain", str(TABLE_1), "--plot", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.startswith("error: --plot")


def test_group_wise_losses_are_shown_at_public_counts_alone(tmp_path: Path) -> None:
    grouped, plain = {"kind": "groupwise_log", "a": 5, "sigma": 0.02}, {"kind": "gaussian", "sigma": 2}
    split = {"by": "naics2", "parts": {"31-33": grouped}, "others": plain}
    queries = [
        {"name": f"q{i}", "count": "records", "by": ["naics3", "county"], "mechanism": mechanism}
        for i, mechanism in enumerate((grouped, plain, split))
    ]
    plan = load_plan(write_world(tmp_path, records(10), queries=queries, budget=[]))
    explained = explain(plan, [])
    whole, none, parts = explained["queries"]
    assert [entry["count"] for entry in whole["groups"]] == [1, 10, 100, 1_000, 10_000]
    for entry in whole["groups"]:
        assert entry["rho"] == pytest.approx((log(1 + 1 / (entry["count"] + 4)) / 0.02) ** 2 / 2, rel=1e-5)
    assert whole["groups"][0]["rho"] == whole["losses"][0]["rho"]  # the policy, which every record has
    assert "groups" not in none
    assert {entry["part"] for entry in parts["groups"]} == {"31-33"}
    shown = render(explained, plan)
    assert shown.count("in a cell of n records   1: 41.56") == 2
    assert "31-33, in a cell of n records   1: 41.56" in shown
    assert "must not be published cell by cell" in " ".join(shown.split())
    assert OF_MEANS in oddities(plan)
    alone = load_plan(write_world(tmp_path / "alone", records(10), queries=queries[1:2], budget=[]))
    assert "cell by cell" not in render(explain(alone, []), alone)
    assert OF_MEANS not in oddities(alone)
