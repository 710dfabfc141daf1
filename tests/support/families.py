"""Independent models of noise beside the product's log-weights of the same family, and fits of draws to a model."""

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.false_alarms import binned_fit
from tests.support.heavy import GeneralizedGaussian, Polylog
from tests.support.kinds import three_a_kind
from tests.support.lattice import LatticeNoise, Noise
from tests.support.piecewise import Piecewise
from tests.support.stable import Stable
from udfs.noise.heavy_weights import CauchyWeights, GeneralizedGaussianWeights, PolylogWeights, StableWeights
from udfs.noise.piecewise import PiecewiseWeights
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights

E = Fraction("2.718281828459045")
TAILS = [Fraction(tail) for tail in ("0.001", "0.005", "0.02", "0.05", "0.1", "0.2", "0.3", "0.4")]
HEAVY: list[GeneralizedGaussian | Polylog | Stable] = [
    GeneralizedGaussian(Fraction("0.05"), Fraction("1e-20")),
    GeneralizedGaussian(Fraction("0.5"), Fraction(5)),
    GeneralizedGaussian(Fraction("0.9"), Fraction("0.3")),
    GeneralizedGaussian(Fraction(1), Fraction("3.7")),
    GeneralizedGaussian(Fraction("0.3"), Fraction(10**9)),
    Polylog(Fraction(2), Fraction("0.3"), E, Fraction(2)),
    Polylog(Fraction(1), Fraction("3.5"), Fraction(2), Fraction(100)),
    Polylog(Fraction("1.5"), Fraction(2), Fraction("1.7"), Fraction("0.5")),
    Polylog(Fraction(1), Fraction("1.05"), Fraction(1), Fraction(3)),
    Polylog(Fraction(2), Fraction("1.5"), E, Fraction(2**30)),
    Polylog(Fraction(2), Fraction(50), E, Fraction(20)),
    Polylog(Fraction(3), Fraction("0.5"), Fraction("7.4"), Fraction(10)),
    Stable(Fraction(1), Fraction(3)),
    Stable(Fraction("1.5"), Fraction("2.5")),
]


def three(noises: Iterable[LatticeNoise]) -> list[Any]:
    """Three of each family in every run of the tests, the rest in the drill: name first a polylog of each power."""
    return three_a_kind(noises, lambda noise: (type(noise), getattr(noise, "power", 0)))


def weights_of(noise: LatticeNoise) -> LogWeights:
    """The product's log-weights of the noise."""
    if isinstance(noise, GeneralizedGaussian):
        return GeneralizedGaussianWeights(p=noise.p, scale=noise.scale)
    if isinstance(noise, Polylog):
        return PolylogWeights(p=noise.p, d=noise.d, a=noise.a, scale=noise.scale)
    if isinstance(noise, Stable):
        kind = {"scale": noise.scale}
        return CauchyWeights(**kind) if noise.alpha == 1 else StableWeights(alpha=noise.alpha, **kind)
    if isinstance(noise, Piecewise):
        return PiecewiseWeights(steps=noise.steps, logs=noise.logs)
    assert isinstance(noise, Noise)
    return LaplaceWeights(scale=noise.scale) if noise.power == 1 else GaussianWeights(scale=noise.scale)


def tail_bins(noise: LatticeNoise, near: Iterable[int] = ()) -> list[int]:
    """Ends of bins on both sides of 0, of tails near TAILS, and the ends `near`: any will do, masses are exact."""
    far = [min(weights_of(noise).quantile(2 * tail), 1 << 62) for tail in TAILS]
    return sorted({*far, *(-1 - c for c in far), *near})


def noise_fit(drawn: NDArray[np.int64], noise: LatticeNoise, ends: list[int]) -> float:
    """The p-value of draws in these bins."""
    above = [1.0, *(float(noise.from_on(end + 1)) for end in ends), 0.0]
    return binned_fit(drawn, ends, -np.diff(above))
