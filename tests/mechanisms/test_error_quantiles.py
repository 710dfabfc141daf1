"""Quantiles of errors: how often |released value − total| stays within them, by scipy's laws and lattice sums."""

from fractions import Fraction
from math import exp, log, sqrt

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import laplace, norm

from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build

KINDS = (
    ({"kind": "gaussian", "sigma": 1.5}, 1e-9),
    ({"kind": "laplace", "sigma": 3, "lattice": "fine"}, 1e-9),
    ({"kind": "root", "k": 1, "a": 0, "sigma": 3}, 1e-9),
    ({"kind": "log", "a": 5, "sigma": 0.4}, 1e-3),
    ({"kind": "groupwise_noisy", "r": "0.1", "sigma": 30}, 5e-3),
)
LEVELS = (Fraction(1, 10), Fraction(1, 2), Fraction(9, 10))


def within_of_log(m: dict[str, float], law: object, total: float, x: float) -> float:
    """P(|c·e^Z·(q + a) − a − q| ≤ x) = P(1 − y ≤ c·e^Z ≤ 1 + y), y = x/(q + a)."""
    y = x / (total + m["a"])
    upper = law.cdf(log((1 + y) / m["c"]) / m["sigma"])  # type: ignore[attr-defined]
    lower = law.cdf(log((1 - y) / m["c"]) / m["sigma"]) if y < 1 else 0.0  # type: ignore[attr-defined]
    return float(upper - lower)


def within_of_square_root(sigma: float, a: float, total: float, x: float) -> float:
    """P(|ṽ² − σ² − a − q| ≤ x), ṽ normal about √(q + a)."""
    v, centre = sqrt(total + a), total + a + sigma**2
    outer, inner = sqrt(centre + x), sqrt(max(centre - x, 0.0))
    cdf = norm(v, sigma).cdf
    return float(cdf(outer) - cdf(inner) + cdf(-inner) - cdf(-outer))


@pytest.mark.parametrize("total", [0.0, 10.0, 100_000.0])
@pytest.mark.parametrize("level", LEVELS)
def test_the_quantiles_of_transformed_totals(level: Fraction, total: float) -> None:
    gaussian = build({"kind": "log", "a": 5, "sigma": 0.4}, 1)
    x = gaussian.error_quantile(total, level)
    assert within_of_log({"a": 5, "sigma": 0.4, "c": exp(-0.08)}, norm, total, x) == pytest.approx(level, abs=1e-3)
    wide = build({"kind": "log", "a": 1, "sigma": 0.6, "noise": "laplace"}, 1)  # no variance, but quantiles
    x = wide.error_quantile(total, level)
    assert within_of_log({"a": 1, "sigma": 0.6, "c": 1 - 0.36}, laplace, total, x) == pytest.approx(level, abs=1e-3)
    median = build({"kind": "log", "a": 5, "sigma": 0.4, "estimator": "median"}, 1)
    x = median.error_quantile(total, level)
    assert within_of_log({"a": 5, "sigma": 0.4, "c": 1}, norm, total, x) == pytest.approx(level, abs=1e-3)
    root = build({"kind": "root", "k": 2, "a": 3, "sigma": 2}, 1)
    x = root.error_quantile(total, level)
    assert within_of_square_root(2, 3, total, x) == pytest.approx(level, abs=1e-3)
    # the broken twin: the half-width of the interval that is published, which is no error's quantile
    lower, upper = gaussian.interval_around(total, level)
    twin = within_of_log({"a": 5, "sigma": 0.4, "c": exp(-0.08)}, norm, total, (upper - lower) / 2)
    assert twin != pytest.approx(level, abs=1e-3)


@pytest.mark.parametrize("level", LEVELS)
def test_the_quantiles_of_additive_noise_are_those_of_its_lattice(level: Fraction) -> None:
    k = np.arange(-400, 401)
    cases: list[tuple[Mechanism, np.ndarray]] = [
        (build({"kind": "gaussian", "sigma": 1.5}, 1), np.exp(-(k**2) / (2 * 2.25))),
        (build({"kind": "laplace", "sigma": 10}, 1), np.exp(-np.abs(k) / 10)),
        (build({"kind": "root", "k": 1, "a": 0, "sigma": 3}, 1), np.exp(-(k**2) / 18)),
    ]
    for mechanism, weights in cases:
        x = mechanism.error_quantile(1000.0, level)
        mass = weights / weights.sum()
        assert mass[np.abs(k) <= x].sum() >= level > mass[np.abs(k) < x].sum()


@pytest.mark.parametrize("total", [0.0, 10.0, 10_000.0])
@pytest.mark.parametrize(("r", "sigma"), [("0.1", 30), ("0.3", 400)])
def test_the_quantiles_of_noise_on_noise(r: str, sigma: int, total: float) -> None:
    share = float(r)
    mechanism = build({"kind": "groupwise_noisy", "r": r, "sigma": sigma}, 1)
    for level in LEVELS:
        x = mechanism.error_quantile(total, level)

        def likely(z: float, x: float = x) -> float:
            s = share * abs(total + z)
            inside = norm.cdf((x - z) / s) - norm.cdf((-x - z) / s) if s else float(abs(z) <= x)
            return float(inside * norm.pdf(z, scale=sigma))

        bends = sorted({-total, -x, x, 0.0})
        reached = sum(
            quad(likely, low, high, limit=200)[0]
            for low, high in zip([-9 * sigma, *bends], [*bends, 9 * sigma], strict=True)
            if low < high
        )
        assert reached == pytest.approx(float(level), abs=5e-3)


@pytest.mark.parametrize(("described", "slack"), KINDS)
def test_the_share_within_a_quantile_is_its_level(described: dict[str, object], slack: float) -> None:
    mechanism = build(described, 1)
    for level in LEVELS:
        x = mechanism.error_quantile(100.0, level)
        assert mechanism.error_share(100.0, x) >= float(level) - slack
        less = x - 1 if mechanism.additive or described["kind"] == "root" else x * 0.98
        if less >= 0:
            assert mechanism.error_share(100.0, less) < float(level)
