"""What docs/study.md and docs/comparisons.md say: figures by hand, by closed forms, and by the commands they name."""

import json
import re
from fractions import Fraction
from math import ceil, log, sqrt
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

import prdp
from jobs.cli import main
from pipeline.planning.study.equal_mechanisms import Line, lines_of
from pipeline.planning.study.study_spec import load_study
from udfs.mechanisms.additive_kinds import Gaussian

SIZES = np.unique(np.rint(np.geomspace(1, 1e6, 400)))
STUDY = load_study(Path(__file__).parents[2] / "conf" / "studies" / "slides.yaml")


def lines(panel: str) -> dict[str, Line]:
    (found,) = (own for own in STUDY.panels if own.name == panel)
    return {line.label: line for line in lines_of(found)}


def rho(line: Line, size: int) -> float:
    return float(line.mechanism.loss_at(Fraction(size)))


def test_fast_policies_lose_less_up_to_a_size_and_more_beyond() -> None:
    additive = lines("additive")
    gaussian = additive["Gaussian"].mechanism.loss(SIZES)
    for label in ("generalized Gaussian, paper", "exponential polylogarithmic, paper"):
        heavy = additive[label].mechanism.loss(SIZES)
        assert ((heavy < gaussian) == (SIZES >= 5)).all()
    wide = lines("larger")
    less = wide["exponential polylogarithmic, paper"].mechanism.loss(SIZES) < wide["Gaussian"].mechanism.loss(SIZES)
    assert 80 < SIZES[less].min() < 100
    assert less[SIZES > 100].all()


def test_gaussian_transformations_lose_more_at_every_size() -> None:
    additive, curves = lines("additive"), lines("transformation")
    for curve, noise in (("fourth root", "generalized Gaussian, paper"), ("log", "exponential polylogarithmic, paper")):
        assert (curves[curve].mechanism.loss(SIZES) > additive[noise].mechanism.loss(SIZES)).all()
    assert curves["identity"].mechanism.loss(SIZES) == pytest.approx(
        additive["Gaussian"].mechanism.loss(SIZES), rel=1e-6
    )
    of_laplace = lines("products")["log, Laplace"].mechanism.loss(SIZES)
    polylog = additive["exponential polylogarithmic, paper"].mechanism.loss(SIZES)
    assert ((of_laplace < polylog) == (SIZES >= 9)).all()


def test_orders_of_growth() -> None:
    growth = {
        ("additive", "Gaussian"): 100,
        ("additive", "generalized Gaussian, paper"): 10**0.5,
        ("transformation", "fourth root"): 10**0.5,
        ("transformation", "log"): (log(10_001) / log(1_001)) ** 2,
    }
    for (panel, label), factor in growth.items():
        line = lines(panel)[label]
        assert rho(line, 10_000) / rho(line, 1_000) == pytest.approx(factor, rel=1e-6)
    polylog = lines("additive")["exponential polylogarithmic, paper"]
    assert rho(polylog, 10_000) / rho(polylog, 1_000) == pytest.approx(1.72, abs=0.005)
    # the logarithm itself: a tenfold size adds a constant
    power_law = lines("tails")["exp. polylog. p = 1, d = 4, a = 1"]
    assert rho(power_law, 10**7) - rho(power_law, 10**6) == pytest.approx(4 * log(10), rel=1e-4)
    laplace = lines("products")["log, Laplace"]
    sigma = float(str(laplace.mechanism.describe()["sigma"]))
    assert rho(laplace, 10**7) - rho(laplace, 10**6) == pytest.approx(log(10) / sigma, rel=1e-4)


def test_unit_splitting_is_never_better_than_its_own_noise() -> None:
    baselines = lines("baselines")
    gaussian = baselines["Gaussian"].mechanism.loss(SIZES)
    for t in (1, 10, 100):
        split = baselines[f"unit splitting, T = {t}"].mechanism.loss(SIZES)
        assert (split >= gaussian * (1 - 1e-7)).all()
        assert split[SIZES % t == 0] == pytest.approx(gaussian[SIZES % t == 0], rel=1e-6)


def test_tight_policies_are_nowhere_larger() -> None:
    policies = lines("policies")
    for label in ("Laplace", "generalized Gaussian", "exponential polylogarithmic"):
        paper, tight = (policies[f"{label}, {policy}"].mechanism.loss(SIZES) for policy in ("paper", "tight"))
        assert (tight <= paper).all()
        assert (tight < paper * 0.99)[(SIZES > 1) & (SIZES < 100)].all()


def test_what_the_median_record_gains() -> None:
    """The page's figures; a record of 4 employees is the median one, with Gaussian noise of variance 2 it loses 4."""
    medians = {
        ("policies", "Laplace"): (0.0177, 0.0168),
        ("policies", "generalized Gaussian"): (0.647, 0.150),
        ("policies", "exponential polylogarithmic"): (0.0325, 0.0256),
        ("baselines", "Laplace"): (3.69, 3.01),
        ("additive", "generalized Gaussian"): (4.67, 3.93),
        ("additive", "exponential polylogarithmic"): (4.02, 3.21),
    }
    for (panel, label), told in medians.items():
        found = lines(panel)
        losses = [rho(found[f"{label}, {policy}"], 4) for policy in ("paper", "tight")]
        assert losses == pytest.approx(told, rel=5e-3)
    additive = lines("additive")
    gaussian = additive["Gaussian"].mechanism.loss(SIZES)
    for label in ("generalized Gaussian", "exponential polylogarithmic"):
        for policy, crossing in (("paper", 5), ("tight", 4)):
            heavy = additive[f"{label}, {policy}"].mechanism.loss(SIZES)
            assert ((heavy < gaussian) == (crossing <= SIZES)).all()


def test_a_large_offset_is_the_gaussian_mechanism_for_small_records() -> None:
    offsets = lines("offsets")
    for label in ("log, a = 100", "fourth root, a = 100"):
        for size in (1, 2, 5, 10):
            assert rho(offsets[label], size) == pytest.approx(rho(offsets["identity (Gaussian)"], size), rel=0.06)


ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "comparisons.md").read_text()
LARGEST = 56_611


def row(name: str) -> list[float | None]:
    """The numbers of the page's row; None where there is none."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name}")]
    cells = [cell.strip().replace(",", "") for cell in line.strip("|").split("|")[1:]]
    return [float(cell) if re.fullmatch(r"[\d.e+]+", cell) else None for cell in cells]


def test_unit_splitting_has_the_accuracy_of_its_pieces() -> None:
    (panel,) = load_study(ROOT / "conf" / "studies" / "related.yaml").panels
    lines = {line.label: line.mechanism for line in lines_of(panel)}
    assert lines["unit splitting, 100"].describe()["rho"] == 1
    for size in (1, 10, 100, 1000, 10_000):
        pieces = lines["unit splitting, 100"].loss_at(size)
        assert pieces == ceil(size / 100) ** 2
        assert lines["Gaussian"].loss_at(size) <= pieces * (1 + 1e-6)  # never better than its own noise
        for name, scale in (("Gaussian", "70.711"), ("exponential polylogarithmic, p = 1", "122.48")):
            stated = row(f"{name} | {scale}")[1 + [1, 10, 100, 1000, 10_000].index(size)]
            assert float(lines[name].loss_at(size)) == pytest.approx(stated, rel=2e-3)


def test_a_privacy_function_and_the_noise_that_keeps_it() -> None:
    def stated(size: float) -> float:
        return 5 * log(1 + size / sigma)

    found = prdp.calibrate(kind="exponential_polylog", parameters={"p": 1, "d": 5, "a": 1}, epsilon=1, at=10)
    sigma = found["mechanism"]["sigma"]
    assert stated(10) == pytest.approx(1)
    scales = [sigma, LARGEST / stated(LARGEST), LARGEST / stated(1)]
    sizes = np.arange(1, LARGEST + 1)
    assert (sizes / scales[1] <= 5 * np.log1p(sizes / sigma) * (1 + 1e-12)).all()  # binding at the largest alone
    for name, scale in zip(
        ("exponential polylogarithmic, p = 1, d", "Laplace, Δ/b", "Laplace with one"), scales, strict=True
    ):
        assert row(name)[0] == pytest.approx(scale, rel=1e-3)
        # P(|Z| > z) = (1 + z/sigma)^-4 has the variance sigma²·2/(3·2)
        assert row(name)[1] == pytest.approx(scale / sqrt(3) if scale == sigma else scale * sqrt(2), rel=6e-3)


def test_changes_are_those_that_explain_states(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["explain", str(ROOT / "conf" / "plans" / "table-1.yaml"), "--json", "--change", "employment=10:12"]
    assert main([*call, "--change", "employment=10000:11000", "--factor", "1.1"]) == 0
    changes = json.loads(capsys.readouterr().out)["changes"]
    rows = ("10 and 12 employees", "10,000 and 11,000 employees", "any two within a factor of 1.1")
    for name, change in zip(rows, changes, strict=True):
        losses = {query["name"]: query["rho"] for query in change["queries"]}
        for stated, query in zip(row(name), ("unit_splitting", "fourth_root", "logarithm"), strict=True):
            rho = losses[query]
            assert (stated is None) == (rho is None)
            if rho is not None:
                assert stated == pytest.approx(sqrt(2 * rho), rel=5e-3)


def test_noise_on_a_scale_whose_slope_is_the_inverse_distance_is_gaussian_dp() -> None:
    """D = f(q + x') − f(q + x) ≤ 1 for every q ≥ 0 and every neighbour x' ≤ x + d(x)."""
    scales = {
        "shares": (lambda x: 0.1 * (x + 5), lambda x: np.log(x + 5) / 0.1),
        "square roots": (lambda x: np.sqrt(x + 1), lambda x: 2 * np.sqrt(x + 1)),
        "constant": (lambda x: 3.0 + 0 * x, lambda x: x / 3.0),
    }
    random = np.random.default_rng(1)
    x, q, share = (random.random(20_000) ** 4 * 1e5, random.random(20_000) ** 8 * 1e6, random.random(20_000))
    for distance, f in scales.values():
        moved = f(q + x + share * distance(x)) - f(q + x)
        assert moved.max() <= 1 + 1e-6  # of differences of large numbers
        twice = f(x + 2.2 * distance(x)) - f(x)  # the twin: no neighbours
        assert twice.max() > 1
    narrower = np.log(x + 5 + 0.1 * (x + 5)) / 0.08 - np.log(x + 5) / 0.08
    assert narrower.max() > 1  # the twin: a slope that is not 1/d


def test_lattice_noise_has_the_trade_off_of_its_mu() -> None:
    """The best test between two lattice laws errs as G_μ says, up to the lattice's rounding; μ too small is seen."""
    sigma, shift = 7.07, 2
    mu = shift / sigma
    assert float(Gaussian(sigma=str(sigma)).loss_at(shift)) == pytest.approx(mu**2 / 2)
    points = np.arange(-200, 203)
    weights = np.exp(-(points**2) / (2 * sigma**2))
    null, other = weights / weights.sum(), np.exp(-((points - shift) ** 2) / (2 * sigma**2)) / weights.sum()
    first, second = 1 - np.cumsum(null), np.cumsum(other)  # reject above a threshold
    kept = (first > 0.01) & (first < 0.99)
    gaussian = ndtr(ndtri(1 - first[kept]) - mu)
    assert np.abs(second[kept] - gaussian).max() < 2e-3
    assert np.abs(second[kept] - ndtr(ndtri(1 - first[kept]) - mu / 2)).max() > 0.03
