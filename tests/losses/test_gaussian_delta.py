"""δ(ε) of discrete Gaussian noise: against plain sums, against the integrals of wide noise, and against atoms."""

from fractions import Fraction
from typing import Any

import mpmath
import pytest

from udfs.losses.atoms import Shifted
from udfs.losses.distribution import SUMMED, delta_above, delta_of
from udfs.noise.weights import GaussianWeights

MP = mpmath.mp.clone()
MP.dps = 120


def summed(scale: Fraction, steps: int, epsilon: Fraction) -> Any:
    s, e = MP.mpf(scale.numerator) / scale.denominator, MP.exp(MP.mpf(epsilon.numerator) / epsilon.denominator)
    reach = int(30 * scale) + steps + 20
    p = {x: MP.exp(-(MP.mpf(x) ** 2) / (2 * s * s)) for x in range(-reach - steps, reach + 1)}
    return MP.fsum(max(p[x] - e * p[x - steps], 0) for x in range(-reach, reach + 1)) / MP.fsum(p.values())


@pytest.mark.parametrize(
    ("scale", "steps", "epsilon"),
    [
        ("0.3", 1, "2"),
        ("1", 1, "0"),
        ("3.740485", 1, "1"),
        ("10", 25, "0.7"),
        ("63.9", 40, "0.01"),
        ("64.1", 40, "0.01"),
        ("80", 1, "0.05"),
        ("100", 700, "30"),
    ],
)
def test_it_is_the_sum(scale: str, steps: int, epsilon: str) -> None:
    s, e = Fraction(scale), Fraction(epsilon)
    found, exactly = delta_above(GaussianWeights(scale=s), steps, e), summed(s, steps, e)
    bound = MP.mpf(found.numerator) / found.denominator
    assert exactly * (1 - MP.mpf(10) ** -100) <= bound
    assert bound <= exactly * (1 + MP.mpf(10) ** -15)


def test_wide_noise_is_that_of_the_integrals() -> None:
    for epsilon in (0, 1, 5):
        scale, steps = 2**30, 2**30
        z = MP.ncdf(MP.mpf("0.5") - epsilon) - MP.exp(epsilon) * MP.ncdf(-MP.mpf("0.5") - epsilon)
        assert float(delta_above(GaussianWeights(scale=Fraction(scale)), steps, Fraction(epsilon))) == pytest.approx(
            float(z), rel=1e-8
        )


def test_it_falls_with_epsilon_grows_with_the_shift_and_is_below_atoms() -> None:
    weights = GaussianWeights(scale=Fraction(SUMMED + 1))
    last = Fraction(1)
    for epsilon in (0, 1, 4):
        found = delta_above(weights, 100, Fraction(epsilon))
        assert found < last
        assert found < delta_above(weights, 101, Fraction(epsilon))
        atoms = delta_of(Shifted(weights, 100), float(epsilon), 1e-6)
        assert float(found) <= atoms <= float(found) * 1.001 + 1e-9
        last = found
    assert delta_above(weights, 0, Fraction(1)) == 0
    assert 0 < delta_above(weights, 1, Fraction(50)) < Fraction(1, 10**300)
