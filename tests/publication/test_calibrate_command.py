"""`prdp calibrate`: a plan, one mechanism, or all families; and what a wrong call is told."""

import json
from math import log1p, sqrt
from pathlib import Path
from typing import Any

import pytest

from jobs.cli import main
from pipeline.accounting import calibrate
from tests.support.mistakes import PLAN, write_domain


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["calibrate", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def test_one_mechanism(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "--kind", "log", "--set", "a=1", "--standard-error", sqrt(2), "--total", 2)
    assert found["mechanism"]["sigma"] ** 2 == pytest.approx(0.20067, abs=5e-6)
    assert [entry["total"] for entry in found["accuracy"]] == [0, 2, 100, 10_000, 1_000_000]
    assert found["accuracy"][1]["standard_error"] == pytest.approx(sqrt(2), rel=1e-6)
    assert [loss["influence"] for loss in found["losses"]][:3] == [1, 10, 100]
    text = run(capsys, "--kind", "gaussian", "--loss", "0.5", "--at", 10, "--step", "0.5")
    assert text.startswith("gaussian (sigma 10, policy paper)\n    P(Δ) = Δ²/(2σ²)\n")
    assert "influence 10           rho 0.5          epsilon -" in text


def test_a_mechanism_for_epsilon_and_delta_states_the_delta_that_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--kind", "gaussian", "--epsilon", 1, "--delta", "1e-5", "--at", 10)
    exact, closed = run_json(capsys, *asked), run_json(capsys, *asked, "--bound", "closed")
    assert exact["mechanism"]["sigma"] == pytest.approx(37.30596, rel=1e-6)
    assert closed["mechanism"]["sigma"] == pytest.approx(46.08852, rel=1e-6)
    assert exact["delta"] == {"epsilon": 1, "influence": 10, "bound": "exact", "delta": pytest.approx(1e-5, rel=1e-6)}
    assert closed["delta"]["delta"] < 1e-6
    assert "on this lattice (ε, δ) was checked" in run(capsys, *asked, "--bound", "closed")
    assert run_json(capsys, "--kind", "laplace", "--epsilon", 1, "--at", 10)["mechanism"]["sigma"] == 10


def test_scales_are_compared_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("--scales", "--epsilon", 10, "--delta", "1e-5", "--at", 3)
    found = run_json(capsys, *asked, "--plot", tmp_path / "scales.svg")
    assert found["ratio"] == pytest.approx(0.89, abs=0.005)  # the paper's remark
    assert found["classical_is_enough"] is False
    assert found["exact"] == pytest.approx(3 * 0.4998886, rel=1e-6)
    assert (tmp_path / "scales.svg").stat().st_size > 10_000
    assert "not proved from ε = 1 on, it is NOT enough here" in run(capsys, *asked)


def test_the_best_alpha_is_shown_among_those_tried(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "ALPHAS", calibrate.ALPHAS[::30])  # what the search finds: test_best_alpha.py
    monkeypatch.setattr(calibrate, "FIRST", (0, 1, 2, 3))
    asked = ("--kind", "symmetric_stable", "--set", "policy=paper", "--interval", 9, "--at", 30, "--best-alpha", "loss")
    found = run_json(capsys, *asked)
    tried = {entry["alpha"]: entry["value"] for entry in found["best_alpha"]["tried"]}
    assert tried[found["mechanism"]["alpha"]] == min(tried.values())
    assert "alpha is that of the least loss (rho); tried:\n    alpha   gamma" in run(capsys, *asked)


def test_kinds_for_counts_tell_losses_by_groups(capsys: pytest.CaptureFixture[str]) -> None:
    asked = (
        "--kind",
        "groupwise_log",
        "--relative-error",
        "0.1",
        "--total",
        10,
        "--group-loss",
        "0.01",
        "--group",
        100,
    )
    found = run_json(capsys, *asked)
    assert [loss["influence"] for loss in found["losses"]] == [1]  # no influences of ten million: it is a count
    losses = {group["count"]: group["rho"] for group in found["groups"]}
    assert list(losses) == [1, 10, 100, 1000, 10_000]
    a, sigma = found["mechanism"]["a"], found["mechanism"]["sigma"]
    assert losses[1000] == pytest.approx(log1p(1 / (999 + a)) ** 2 / (2 * sigma**2), rel=1e-5)
    assert losses[100] == pytest.approx(0.01, rel=1e-5)
    text = run(capsys, *asked)
    assert "in a group of   one record loses (rho)   mean error over the count" in text
    assert "influence" not in text
    noisy = run_json(capsys, "--kind", "groupwise_noisy", "--set", "r=0.06", "--relative-error", "0.1", "--total", 10)
    assert len({group["rho"] for group in noisy["groups"]}) == 1
    compared = run_json(capsys, "--compare", "--count", "--relative-error", "0.1", "--total", 50)
    grouped = next(family for family in compared["families"] if family["family"] == "groupwise_log")
    assert grouped["groups"][-1]["rho"] < grouped["groups"][0]["rho"] / 10


def test_words_and_numbers_are_fixed(capsys: pytest.CaptureFixture[str]) -> None:
    fixed = ("--set", "k=2", "--set", "a=0", "--set", "noise=laplace")
    found = run_json(capsys, "--kind", "root", *fixed, "--interval", 60, "--total", 500, "--coverage", "0.9")
    assert found["mechanism"]["noise"] == "laplace"
    at = next(entry for entry in found["accuracy"] if entry["total"] == 500)
    assert at["upper"] - at["lower"] == pytest.approx(60, rel=1e-6)


def test_a_plan_and_the_plan_that_says_it_outright(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = write_domain(tmp_path) / "plan.yaml"
    plan.write_text(PLAN.replace("sigma: 2}", "calibrate: {loss: 0.125}}"))
    text = run(capsys, plan)
    assert text.startswith("establishments: sigma 2   for loss 0.125\nplan     sha256:")
    found = run_json(capsys, plan, "--out", tmp_path / "resolved.yaml")
    assert found["out"] == str(tmp_path / "resolved.yaml")
    assert main(["explain", str(tmp_path / "resolved.yaml"), "--json"]) == 3  # this plan breaks its own budget
    assert json.loads(capsys.readouterr().out)["plan_digest"] == found["plan_digest"]
    assert "asks for no calibration" in run(capsys, tmp_path / "resolved.yaml")


def test_all_families(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sizes = tmp_path / "sizes.csv"
    sizes.write_text("value,count\n0,5\n1,60\n20,30\n4000,5\n")
    asked = ("--compare", "--standard-error", 30, "--total", 500, "--sizes", sizes)
    pictures = [tmp_path / name for name in ("a.svg", "b.svg")]
    found = run_json(capsys, *asked, "--plot", pictures[0])
    assert found["objective"] == "largest"
    assert found["largest_size"] == 4000
    losses = [family["largest"] for family in found["families"]]
    assert losses == sorted(losses)
    assert all(family["errors"][1]["error"] == pytest.approx(30, rel=1e-5) for family in found["families"])
    text = run(capsys, *asked, "--objective", "share", "--limit", "0.25", "--plot", pictures[1])
    assert "lose ≤ 0.25" in text
    assert pictures[0].stat().st_size > 10_000
    assert main(["calibrate", *map(str, asked), "--plot", str(tmp_path / "c.gif")]) == 2


def test_all_families_of_counts(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "--compare", "--count", "--standard-error", 30, "--total", 500)
    assert "; a count: each record's influence is 1; best by: largest\n" in text
    assert "groupwise_noisy" in text
    assert "Left out: symmetric_stable: the noise has no standard error" in text


ONE = "--kind gaussian"
WHICH = "give a plan, or --kind (one mechanism)"
WRONG = [
    ("", WHICH),
    ("plan.yaml --kind gaussian", "--kind: cannot be combined with a plan; leave it out"),
    ("--epsilon 1", "prdp study rho: the following arguments are required: --delta"),
    ("--rho 1", "prdp study epsilon: the following arguments are required: --delta"),
    ("--rho 1 --epsilon 1 --delta 0.1", "prdp study epsilon: unknown option --epsilon"),
    ("--epsilon 1 --delta 0.1 --at 3", "prdp study rho: unknown option --at"),
    ("nowhere.yaml", "nowhere.yaml: no such file"),
    (f"{ONE} --out x", "--out: cannot be combined with --kind; leave it out"),
    (f"{ONE} --limit 3", "prdp calibrate: unknown option --limit"),
    (
        ONE,
        "give exactly one of --standard-error, --mean-absolute-error, --relative-error, --interval, --loss, --epsilon",
    ),
    (f"{ONE} --loss 1", "--at: missing; give the influence of the record that may lose so much"),
    (f"{ONE} --loss 1 --total 4", "--total: cannot be combined with --loss; give --at"),
    (f"{ONE} --interval 1 --at 4", "--at: cannot be combined with --interval; give --total"),
    (f"{ONE} --epsilon 1 --at 3", "gaussian: this noise has no pure loss; name a delta beside epsilon"),
    (f"{ONE} --epsilon 1 --delta 1 --at 3", "--delta: must be below 1"),
    (f"{ONE} --epsilon 2000 --delta 0.1 --at 3", "--epsilon: must be at most 1000"),
    (f"{ONE} --loss 1 --at 3 --delta 0.1", "--delta: needs --epsilon beside it"),
    ("--kind laplace --epsilon 1 --at 3 --bound exact", "--bound: needs --delta beside it"),
    ("--compare --epsilon 1 --at 4", "--epsilon: a comparison is at equal accuracy; give --standard-error"),
    ("--kind symmetric_stable --interval 3 --best-alpha loss", "symmetric_stable: best alpha: loss needs at"),
    (f"{ONE} --loss 3 --at 9 --best-alpha error", "gaussian: best alpha: symmetric_stable alone has one"),
    ("--scales --epsilon 1", "prdp study scales: the following arguments are required: --delta"),
    ("--scales --epsilon 1 --delta 2", "--delta: must be above 0 and below 1"),
    ("--scales --epsilon 1 --delta 0.1 --at 0", "--at: must be a finite number above 0"),
    ("--scales --epsilon 1 --delta 0.1 --loss 3", "prdp study scales: unknown option --loss"),
    (f"{ONE} --relative-error 0.1 --total 0", "--total: must be above 0"),
    (f"{ONE} --relative-error 0.1 --group-loss 4", "prdp study group: the following arguments are required: --group"),
    (f"{ONE} --loss nan --at 3", "--loss: must be a number"),
    (f"{ONE} --loss 1 --at 0", "--at: must be above 0"),
    (f"{ONE} --standard-error 1e320", "--standard-error: must be between 1e-50 and 1e50"),
    (f"{ONE} --standard-error 3 --total -1", "--total: must be at least 0"),
    (f"{ONE} --interval 3 --coverage 2", "--coverage: must be below 1"),
    (f"{ONE} --standard-error 3 --step 0", "--step: must be between 1e-50 and 1e50"),
    (f"{ONE} --standard-error 3 --set sigma=1", "gaussian: sigma is what calibration solves for; leave it out"),
    (f"{ONE} --standard-error 3 --set a", "prdp calibrate: argument --set: a: write each name once, as NAME=VALUE"),
    (f"{ONE} --standard-error 3 --set a=1", "--set a: gaussian has no such parameter; known parameters: sigma, policy"),
    ("--kind log --standard-error 3 --total 5", "--set a: must be given: a number above 0"),
    ("--kind log --set a=1 --standard-error 3", "--total: missing; the error of this kind grows with the true total"),
    (
        "--kind groupwise_direct --relative-error 0.1 --total 10",
        "--kind groupwise_direct: no plan can release it: groupwise_direct",
    ),
    ("--kind logg --standard-error 3", "--kind logg: unknown kind; nearest known kind: log"),
    ("--compare --loss 1 --at 4", "--loss: a comparison is at equal accuracy; give --standard-error, for instance"),
    ("--compare --standard-error 30", "--total: missing; the true total of a typical cell"),
    ("--compare --standard-error 30 --total 9 --objective share", "--limit: the objective share needs one"),
    ("--compare --standard-error 30 --total 9 --limit 0", "--limit: must be above 0"),
    ("--compare --count --standard-error 30 --total 9 --sizes a.csv", "--sizes: cannot be combined with --count"),
    ("--compare --count --standard-error 30 --total 9 --plot a.svg", "--plot: cannot be combined with --count"),
    (f"{ONE} --standard-error 3 --count", "prdp calibrate: unknown option --count"),
    ("--compare --standard-error 30 --total 9 --sizes nowhere.csv", "nowhere.csv: cannot be read: No such file"),
]


@pytest.mark.parametrize(("call", "says"), WRONG)
def test_a_wrong_call_is_one_plain_line(call: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", *call.split()]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"error: {says}")
    assert len([line for line in lines if line.startswith("error")]) == 1


def test_an_accuracy_that_no_family_has(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.planning.study.comparison.shapes", lambda: iter([("gaussian", {}), ("laplace", {})]))
    assert main(["study", "compare", "--standard-error", "1e30", "--total", "9"]) == 2
    assert capsys.readouterr().err == "error: --compare: no family can have this accuracy; ask for another\n"
