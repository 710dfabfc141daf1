"""Additive mechanisms: integer noise on the lattice of the measure's steps (MATH sections 4 and 8)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.bounds import tanh_above
from udfs.keystream import Bits
from udfs.lattice import LARGEST, add_noise, draw_noise
from udfs.mechanisms.base import FLOAT_SLACK, Mechanism, Released, above, choice, require_scale
from udfs.rounded import rounded_distance, rounded_moments, rounded_quantile
from udfs.weights import GaussianWeights, LogWeights

POLICY = "which proven bound states the loss: paper, that of all pure mechanisms; tight, that of this noise"


LATTICES = ("measure", "fine")
LATTICE = "where noise is drawn: on the measure's steps, or on a finer lattice and rounded to them"
FINE = 1000  # steps of the fine lattice in a noise scale, where the measure's are fewer


def own_step(mechanism: Mechanism) -> Fraction:
    """The lattice of additive noise is that of the measure, or the finer one that the mechanism names."""
    return mechanism.step / mechanism.fineness


def fineness_of(lattice: str, scale: Fraction) -> int:
    """Return how many steps of the noise's lattice are one of the measure's, of which `scale` are the noise scale.

    An odd number, so that rounding has no ties: the smallest with FINE fine steps or more in a noise scale, at most
    FINE + 1.
    """
    if lattice == "measure":
        return 1
    wanted = min(FINE, -(-FINE // scale))  # ⌈FINE/scale⌉
    return wanted + 1 - wanted % 2


def own_fineness(mechanism: Any) -> int:
    """As the mechanism's lattice says, for its scale."""
    return fineness_of(mechanism.lattice, mechanism.sigma / mechanism.step)


def lattice_variance(mechanism: Mechanism, total: float) -> float:
    """Return the variance of the noise that is added, whatever the total."""
    return rounded_moments(mechanism.weights(), mechanism.fineness).variance * float(mechanism.step) ** 2


def lattice_mean_absolute_error(mechanism: Mechanism, total: float) -> float:
    """Return E|noise| of the noise that is added, whatever the total."""
    return rounded_moments(mechanism.weights(), mechanism.fineness).mean_abs * float(mechanism.step)


def interval_of_width(mechanism: Mechanism, total: float, interval: Fraction) -> tuple[float, float]:
    """Return total ± the lattice quantile of |noise|."""
    width = spread(mechanism, interval)[0] * float(mechanism.step)
    return total - width, total + width


def release_additive(mechanism: Mechanism, totals: NDArray[np.int64], bits: Bits, interval: Fraction) -> Released:
    """Return totals + noise in steps, saturated at both ends of a range, with ±(lattice quantile of |noise|).

    Noise of a fine lattice, n steps of which are one, is rounded to whole steps: the same as rounding the noisy value
    of the fine lattice, and so post-processing. All its values must be reached from every total: with 64-bit distances
    the range is ±(2⁶³ − 1 − n)/n, which totals are held in as well before noise is added. Holding them moves no two
    totals apart, so that no influence grows.
    """
    n = mechanism.fineness
    largest = LARGEST if n == 1 else (LARGEST - n) // n
    held = totals if n == 1 else np.clip(totals, -largest, largest)
    distance, negative = draw_noise(mechanism.table, bits, len(held))
    value = add_noise(held, distance if n == 1 else rounded_distance(distance, n), negative)
    if n > 1:
        value = np.clip(value, -largest, largest)
    width, error = spread(mechanism, interval)
    if width > largest:  # the whole range, which every total lies in
        lower, upper = np.full_like(value, -largest), np.full_like(value, largest)
    else:
        lower = np.where(value < width - largest, -largest, value - width)
        upper = np.where(value > largest - width, largest, value + width)
    return Released(value, lower, upper, np.full(len(totals), error))


def spread(mechanism: Mechanism, interval: Fraction) -> tuple[int, float]:
    """Return the lattice quantile of |noise| in steps and the standard error.

    Computed where it is first asked for, on the driver, and pickled with the mechanism: some families' last bits depend
    on the processor, and all workers must publish the same ones.
    """
    known: dict[Fraction, tuple[int, float]] = mechanism.__dict__.setdefault("spreads", {})
    if interval not in known:
        width = rounded_quantile(mechanism.weights(), mechanism.fineness, 1 - interval)
        known[interval] = width, float(np.sqrt(mechanism.variance(0.0)))
    return known[interval]


def no_pure_loss_at(mechanism: Mechanism, influence: Fraction) -> Fraction | None:
    """Return 0 at no influence, else None: Gaussian noise has no pure loss."""
    return None if influence else Fraction(0)


def no_pure_loss(mechanism: Mechanism, influence: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return 0 at no influence, else infinity."""
    return np.where(influence > 0, np.inf, 0.0)


def loss_of_pure_at(mechanism: Mechanism, influence: Fraction) -> Fraction:
    """Return an upper bound of tanh(P/2)·P, the PRzCDP loss that a pure loss P implies (MATH 1)."""
    pure = mechanism.pure_loss_at(influence)
    if pure is None:
        raise TypeError(f"{mechanism.kind} has no pure loss")
    return tanh_above(pure / 2) * pure


def loss_of_pure(mechanism: Mechanism, influence: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tanh(P/2)·P, rounded up."""
    pure = mechanism.pure_loss(influence)
    return np.tanh(pure / 2) * pure * (1 + FLOAT_SLACK)


@final
@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Discrete Gaussian noise of scale `sigma`: PRzCDP with P(Δ) = Δ²/(2σ²) on every lattice; no pure loss.

    Source: paper 1, section 5 (its Δ²/σ² lacks the 2); Canonne, Kamath, Steinke 2020, theorem 4.
    """

    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("paper", doc="which proven bound states the loss: the paper's is exact")

    kind: ClassVar[str] = "gaussian"
    additive: ClassVar[bool] = True
    needs_nonnegative: ClassVar[bool] = False
    formula: ClassVar[str] = "Δ²/(2σ²)"
    pure_formula: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale("sigma", self.sigma / self.step)

    lattice_step = property(own_step)
    variance = lattice_variance
    mean_absolute_error = lattice_mean_absolute_error
    interval_around = interval_of_width
    release = release_additive
    pure_loss_at = no_pure_loss_at
    pure_loss = no_pure_loss

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return Δ²/(2σ²), exactly."""
        return influence**2 / (2 * self.sigma**2)

    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Δ²/(2σ²), rounded up."""
        return (influence / float(self.sigma)) ** 2 / 2 * (1 + FLOAT_SLACK)

    def weights(self) -> LogWeights:
        """Return −k²/(2s²), s = σ/step."""
        return GaussianWeights(scale=self.sigma / self.step)
