"""The log mechanism's estimators and intervals, by sums over the lattice rather than by sampling.

Sums over all lattice points are taken over every h-th one, h = s/32. Both sums of a function as smooth as a Gaussian
differ from its integral by e^{−2π²(s/h)²} relatively (Poisson summation), which is nothing.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import exp, expm1, fsum

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.lattice import Noise, real
from tests.support.released import INTERVAL, coverage, release
from udfs.mechanisms.base import Released
from udfs.mechanisms.transformed_kinds import Log

CLOSE = 2.0**-25  # the bias that rounding ln(q + a) may leave, relative to q + a
CASES = [
    (Log(a=Fraction(a), sigma=Fraction(sigma), step=Fraction(step)), total)
    for a, sigma, step in [("1", "0.02", "1"), ("0.5", "0.5", "0.01"), ("100", "1.5", "1")]
    for total in (0, 1, 2, 10, 12_345, 2**40 + 1, 2**60 - 1)
]


def named(value: object) -> str:
    return f"a{value.a}-sigma{value.sigma}" if isinstance(value, Log) else str(value)


@dataclass(frozen=True)
class Sums:
    """What a mechanism releases for one total at the noises j·h, with their probabilities."""

    released: Released
    masses: NDArray[np.float64]
    q: float

    def mean(self, values: NDArray[np.float64]) -> float:
        return fsum((self.masses * values).tolist()) / fsum(self.masses.tolist())


def over_the_lattice(m: Log, total: int) -> Sums:
    scale = m.sigma / m.lattice_step
    h, reach = int(scale / 32), int(32 * (13 + 2 * m.sigma))
    noise = [j * h for j in range(-reach, reach + 1)]
    masses = np.array([exp(-float(Fraction(k) ** 2 / (2 * scale**2))) for k in noise])
    return Sums(release(m, total, noise), masses, float(total * m.step))


@pytest.mark.parametrize(("m", "total"), CASES, ids=named)
def test_value_and_squared_error_are_mean_unbiased(m: Log, total: int) -> None:
    sums, shifted = over_the_lattice(m, total), float(total * m.step + m.a)
    values = sums.released.value
    assert abs(sums.mean(values) - sums.q) < CLOSE * shifted
    assert m.variance(sums.q) == pytest.approx(expm1(m.sigma**2) * shifted**2, rel=1e-12)
    assert sums.mean((values - sums.q) ** 2) == pytest.approx(m.variance(sums.q), rel=1e-6)
    assert sums.mean(sums.released.standard_error**2) == pytest.approx(m.variance(sums.q), rel=1e-6)
    # The broken twins: e^ṽ − a, and its plug-in variance.
    median = (values + float(m.a)) * exp(float(m.sigma**2) / 2) - float(m.a)
    assert abs(sums.mean(median) - sums.q) > CLOSE * shifted
    plug_in = expm1(m.sigma**2) * (values + float(m.a)) ** 2
    assert abs(sums.mean(plug_in) / m.variance(sums.q) - 1) > 1e-6


@pytest.mark.parametrize("interval", ["0.55", "0.7", "0.92", "0.97"])
def test_intervals_cover_on_a_lattice_so_coarse_that_rounding_counts(interval: str) -> None:
    m = Log(a=Fraction(2**34), sigma=Fraction("3.5e-10"))  # σ is three lattice steps, a record is half a step
    share = real(Fraction(interval))
    noise = Noise(2, m.sigma / m.lattice_step)
    assert min(coverage(m, total, Fraction(interval)) for total in range(1, 40)) >= share
    # The broken twin, not widened: where ln(q + a) lies between two steps, the noise c (or −c) would be left out.
    c = next(c for c in range(100) if noise.beyond(c) <= 1 - share)
    assert 1 - noise.from_on(c) - noise.from_on(c + 1) < share


def test_at_zero_the_lower_end_is_cut_and_only_the_upper_one_can_miss() -> None:
    m = CASES[0][0]
    covered = coverage(m, 0, INTERVAL)
    assert 0.975 <= covered < 0.975 + 1e-7


@pytest.mark.parametrize("sigma", ["20", "1e6"])
def test_wide_noise_saturates_and_never_raises(sigma: str) -> None:
    m = Log(a=Fraction(1), sigma=Fraction(sigma))
    top = int(9 * m.sigma / m.lattice_step)
    released = release(m, 2**62, [-top, 0, top])
    for column in (released.value, released.lower, released.upper, released.standard_error):
        assert np.all(np.isfinite(column))
    assert m.variance(1.0) > 1e100
