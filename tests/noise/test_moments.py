"""What lattice noise is like (udfs.noise.weights) against sums in high precision, for all families and scales."""

from fractions import Fraction
from itertools import product
from math import inf, isfinite, isnan
from time import process_time
from typing import Any

import numpy as np
import pytest

from tests.support.families import three, weights_of
from tests.support.heavy import GeneralizedGaussian, Polylog
from tests.support.lattice import CTX, LatticeNoise, Noise
from udfs.mechanisms.base import ParameterError
from udfs.mechanisms.catalogue import build
from udfs.noise import weights as measured
from udfs.noise.weights import ERROR, FARTHEST, RANGE

SCALES = ["0.1", "12345.6", "1e15", "1", "37.5", "1e9"]
POLYLOGS = [("1", "1.5", "1"), ("2", "1", "2.72"), ("1.5", "3", "1.65"), ("1", "3.01", "2"), ("1", "30", "100")]
POLYLOGS += [("2", "50", "1000"), ("3", "0.2", "8"), ("5", "0.01", "55")]
FAMILIES = [
    *(Noise(name, Fraction(s)) for name, s in product((2, 1), SCALES)),
    *(GeneralizedGaussian(Fraction(p), Fraction(s)) for p, s in product(("0.1", "0.5", "0.9"), SCALES)),
    *(Polylog(Fraction(p), Fraction(d), Fraction(a), Fraction(s)) for s, (p, d, a) in product(SCALES[::2], POLYLOGS)),
]


def off(found: float, exact: Any) -> float:
    """Relative error; an infinite or vanishing figure must be one."""
    if CTX.isinf(exact) or exact < 1e-300:
        return 0.0 if found == exact or found <= 1e-300 >= exact else inf
    return float(abs(CTX.mpf(found) / exact - 1))


@pytest.mark.parametrize("family", three(FAMILIES), ids=str)
def test_moments_are_the_sums(family: LatticeNoise) -> None:
    found = weights_of(family).moments
    variance = family.total(1, 2)
    exact = {
        "log_normaliser": CTX.log(family.normaliser),
        "mean_abs": family.moment(1),
        "variance": family.moment(2),
        "beyond": family.beyond(RANGE),
        "variance_beyond": family.total(RANGE + 1, 2) / variance if CTX.isfinite(variance) else CTX.mpf(1),
    }
    errors = {name: off(getattr(found, name), value) for name, value in exact.items()}
    assert max(errors.values()) < ERROR, errors
    # The broken twin: the same sums without what Euler and Maclaurin correct, an integral from the first step on.
    if 1 < family.scale < 10**4:
        assert off(found.log_normaliser, CTX.log(2 * family.integral(1, 0))) > ERROR


@pytest.mark.parametrize("family", three(FAMILIES[::3]), ids=str)
def test_quantiles_cover_and_are_the_smallest(family: LatticeNoise) -> None:
    weights = weights_of(family)
    for beta in map(Fraction, ("0.9", "0.5", "0.05", "0.001", "1e-9")):
        c = weights.quantile(beta)
        if c == FARTHEST:
            assert family.beyond(FARTHEST - 1) > float(beta) * (1 - 1e-9)
            continue
        assert family.beyond(c) <= float(beta)
        if c:
            assert family.beyond(c - 1) > float(beta) * (1 - 1e-10)
            assert measured.beyond(weights, c - 1) == pytest.approx(float(family.beyond(c - 1)), rel=ERROR)


@pytest.mark.parametrize("scale", ["0.5", "7", "1e6", "1e12"])
@pytest.mark.parametrize("a", ["1", "10"])
def test_power_tails_have_the_moments_they_should(scale: str, a: str) -> None:
    for d in ("1.001", "1.999", "2", "2.001", "2.999", "3", "3.001", "4", "3.1"):
        family = Polylog(Fraction(1), Fraction(d), Fraction(a), Fraction(scale))
        found = weights_of(family).moments
        assert isfinite(found.mean_abs) == (Fraction(d) > 2)
        assert isfinite(found.variance) == (Fraction(d) > 3)
        assert isfinite(found.log_normaliser)
        if isfinite(found.variance):
            assert off(found.variance, family.moment(2)) < ERROR


EXTREMES: list[dict[str, str]] = [
    *(
        {"kind": "generalized_gaussian", "p": p, "sigma": s}
        for p in ("1e-50", "0.02", "1")
        for s in ("1e-50", "1", "3e16")
    ),
    *(
        {"kind": "exponential_polylog", "p": p, "d": d, "a": a, "sigma": s}
        for p, a in (("1", "1"), ("1", "1e50"), ("1.0001", "1.001"), ("2", "1e50"), ("100", "1e50"))
        for d in ("1e-50", "1.000001", "1e50")
        for s in ("1e-50", "3e16")
    ),
]


def test_every_allowed_extreme_is_fast_and_never_undefined() -> None:
    built = 0
    for spec in EXTREMES:
        start = process_time()
        try:
            mechanism = build(spec, Fraction(1))
        except ParameterError:
            continue
        built += 1
        found = mechanism.log_weights.moments
        figures = (found.log_normaliser, found.mean_abs, found.variance, found.beyond, found.variance_beyond)
        assert not any(map(isnan, figures)), spec
        assert min(figures) >= 0, spec
        assert 0 <= mechanism.log_weights.quantile(Fraction(1, 20)) <= FARTHEST
        assert not isnan(mechanism.variance(0.0))
        mechanism.lattice_noise.table  # noqa: B018 — building it must not fail either
        assert np.all(np.diff(mechanism.log_weights.fast(np.array([0.0, 1, 2.0**30, 2.0**64]))) <= 0)
        assert process_time() - start < 5, spec
    assert built > 15
