"""Additive mechanisms: integer noise on the lattice of the measure's steps (MATH sections 4 and 8)."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.bounds import tanh_above
from udfs.keystream import Bits
from udfs.lattice import LARGEST, add_noise, draw_noise
from udfs.mechanisms.base import FLOAT_SLACK, Mechanism, ParameterError, Released, above, choice
from udfs.weights import GaussianWeights, LaplaceWeights, LogWeights

WIDEST = 2**55


def require_scale(sigma: Fraction, step: Fraction) -> None:
    """Refuse noise so wide that hardly any released value would lie in the range of 63 bits."""
    if sigma / step > WIDEST:
        raise ParameterError("sigma", "at most 2⁵⁵ steps of the measure")


def own_step(mechanism: Mechanism) -> Fraction:
    """The lattice of additive noise is that of the measure."""
    return mechanism.step


def lattice_variance(mechanism: Mechanism, total: float) -> float:
    """Return the variance of the lattice noise, whatever the total."""
    return mechanism.weights().variance() * float(mechanism.step) ** 2


def release_additive(mechanism: Mechanism, totals: NDArray[np.int64], bits: Bits, interval: Fraction) -> Released:
    """Return totals + noise in steps, saturated at the ends of int64, with ±(lattice quantile of |noise|)."""
    distance, negative = draw_noise(mechanism.table, bits, len(totals))
    value = add_noise(totals, distance, negative)
    width, error = _spread(mechanism, interval)
    lower = np.where(value < width - LARGEST, -LARGEST, value - width)
    upper_end = np.where(value > LARGEST - width, LARGEST, value + width)
    return Released(value, lower, upper_end, np.full(len(totals), error))


@lru_cache(maxsize=256)
def _spread(mechanism: Mechanism, interval: Fraction) -> tuple[int, float]:
    width = min(mechanism.weights().quantile(1 - interval), LARGEST)
    return width, float(np.sqrt(mechanism.variance(0.0)))


@final
@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Discrete Gaussian noise of scale `sigma`: PRzCDP with P(Δ) = Δ²/(2σ²) on every lattice; no pure loss.

    Source: paper 1, section 5 (its Δ²/σ² lacks the 2); Canonne, Kamath, Steinke 2020, theorem 4.
    """

    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("paper", doc="which proven bound states the loss")

    kind: ClassVar[str] = "gaussian"
    additive: ClassVar[bool] = True
    needs_nonnegative: ClassVar[bool] = False
    formula: ClassVar[str] = "Δ²/(2σ²)"
    pure_formula: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale(self.sigma, self.step)

    lattice_step = property(own_step)
    variance = lattice_variance
    release = release_additive

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return Δ²/(2σ²), exactly."""
        return influence**2 / (2 * self.sigma**2)

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return 0 at no influence, else None: Gaussian noise has no pure loss."""
        return None if influence else Fraction(0)

    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Δ²/(2σ²), rounded up."""
        return (influence / float(self.sigma)) ** 2 / 2 * (1 + FLOAT_SLACK)

    def pure_loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return 0 at no influence, else infinity."""
        return np.where(influence > 0, np.inf, 0.0)

    def weights(self) -> LogWeights:
        """Return −k²/(2s²), s = σ/step."""
        return GaussianWeights(scale=self.sigma / self.step)


@final
@dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    """Discrete Laplace noise of scale `sigma`: PRDP with P(Δ) = Δ/σ, PRzCDP with tanh(P/2)·P.

    Source: paper 1, theorem on additive mechanisms with w(z) = −z/σ (generalized Gaussian, p = 1), and its lemma
    that P-PRDP implies tanh(P/2)·P-PRzCDP. Influences are multiples of the step: the microdata contract sees to it.
    """

    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("paper", doc="which proven bound states the loss")

    kind: ClassVar[str] = "laplace"
    additive: ClassVar[bool] = True
    needs_nonnegative: ClassVar[bool] = False
    formula: ClassVar[str] = "tanh(P/2)·P with the pure loss P = Δ/σ"
    pure_formula: ClassVar[str | None] = "Δ/σ"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale(self.sigma, self.step)

    lattice_step = property(own_step)
    variance = lattice_variance
    release = release_additive

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return an upper bound of tanh(P/2)·P, P = Δ/σ."""
        pure = influence / self.sigma
        return tanh_above(pure / 2) * pure

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return Δ/σ, exactly."""
        return influence / self.sigma

    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return tanh(P/2)·P, rounded up."""
        pure = influence / float(self.sigma)
        return np.tanh(pure / 2) * pure * (1 + FLOAT_SLACK)

    def pure_loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Δ/σ, rounded up."""
        return influence / float(self.sigma) * (1 + FLOAT_SLACK)

    def weights(self) -> LogWeights:
        """Return −k/s, s = σ/step."""
        return LaplaceWeights(scale=self.sigma / self.step)
