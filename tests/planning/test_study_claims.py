"""What docs/study.md says of policy functions, on the study's own mechanisms; closed forms where there are any."""

from fractions import Fraction
from math import log
from pathlib import Path

import numpy as np
import pytest

from pipeline.planning.study.equal_mechanisms import Line, lines_of
from pipeline.planning.study.study_spec import load_study

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
    for curve, noise in (
        ("fourth root", "generalized Gaussian, paper"),
        ("log", "exponential polylogarithmic, paper"),
    ):
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
