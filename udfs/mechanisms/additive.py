"""Additive mechanisms: integer noise on the lattice of the measure's steps (docs/mathematics.md, sections 3 and 6)."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from udfs.losses.curve import curve_at, laplace_zcdp
from udfs.losses.tight import MOST_STEPS, renyi_curve
from udfs.mechanisms.base import FLOAT_SLACK, Mechanism, Released, above, choice, require_scale
from udfs.noise.heavy import GeneralizedGaussianWeights
from udfs.noise.keystream import Bits
from udfs.noise.lattice import LARGEST, add_noise, draw_noise, rounded_distance, rounded_moments, rounded_quantile
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights
from udfs.numbers.bounds import laplace_zcdp_above, tanh_above
from udfs.numbers.exact import up_float

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
    """Return an upper bound of tanh(P/2)·P, the PRzCDP loss that a pure loss P implies (docs/mathematics.md, section
    1).
    """
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


# The policy that additive mechanisms of heavy tails state: the paper's, or their noise's own (docs/tight.md).


Floats = NDArray[np.float64]
NEAREST = 1 - 2.0**-48  # more than what a double of an influence, which may be rounded up, lies off a whole step
FEW = 64  # influences for which the whole curve is not computed

TIGHT = "sup D_α(Z ‖ Z + Δ)/α over α > 1, Z being the noise on its lattice (docs/tight.md); at most "


def states_tight(mechanism: Mechanism) -> bool:
    """Return whether the policy is the tight one."""
    return getattr(mechanism, "policy", None) == "tight"


def formula_by_policy(mechanism: Mechanism) -> str:
    """Return the policy function."""
    return (TIGHT if mechanism.tabled else "") + f"tanh(P/2)·P with the pure loss P = {mechanism.pure_formula}"


def loss_by_policy_at(mechanism: Mechanism, influence: Fraction) -> Fraction:
    """Return the paper's tanh(P/2)·P, or the smaller tight loss; an influence between two steps has the next one's."""
    paper = loss_of_pure_at(mechanism, influence)
    if not mechanism.tabled:
        return paper
    steps = ceil(influence / mechanism.step)
    curve = mechanism.__dict__.get("loss_curve")
    bound = curve_at(mechanism.weights(), steps, mechanism.fineness) if curve is None else curve.at(steps)
    return paper if bound >= paper else Fraction(bound)


def loss_by_policy(mechanism: Mechanism, influence: Floats) -> Floats:
    """Return the same of whole arrays: of multiples of the step, whose doubles may lie three last bits off them."""
    paper = loss_of_pure(mechanism, influence)
    if not mechanism.tabled:
        return paper
    steps = np.ceil(influence / float(mechanism.step) * NEAREST)
    return np.minimum(paper, _bounds(mechanism, steps))


def renyi_by_policy(mechanism: Mechanism, influence: Fraction, orders: Floats) -> Floats:
    """Return upper bounds of D_α: what the losses say, and of the tight policy those of the noise on its lattice."""
    by_losses = Mechanism.renyi_at(mechanism, influence, orders)
    if not states_tight(mechanism):
        return by_losses
    weights = mechanism.weights()
    if isinstance(weights, LaplaceWeights):
        weights = GeneralizedGaussianWeights(p=Fraction(1), scale=weights.scale)
    steps = ceil(influence / mechanism.step) * mechanism.fineness
    return np.minimum(by_losses, renyi_curve(weights, steps, orders)) if steps <= MOST_STEPS else by_losses


def _bounds(mechanism: Mechanism, steps: Floats) -> Floats:
    if "loss_curve" not in mechanism.__dict__ and steps.size <= FEW:
        weights, unit = mechanism.weights(), mechanism.fineness
        bounds = [curve_at(weights, int(n), unit) if n < inf else inf for n in steps.flat]
        return np.array([up_float(Fraction(b)) if b < inf else inf for b in bounds]).reshape(steps.shape)
    curve = mechanism.loss_curve
    if curve is None:
        raise TypeError(f"{mechanism.kind} has no curve of losses")
    return curve.over(steps)


# Laplace noise: pure per-record privacy that grows like the influence (docs/mathematics.md, section 3).


@final
@dataclass(frozen=True, kw_only=True)
class Laplace(Mechanism):
    """Discrete Laplace noise of scale `sigma`: PRDP with P(Δ) = Δ/σ, PRzCDP with tanh(P/2)·P.

    Source: paper 1, theorem on additive mechanisms with w(z) = −z/σ (generalized Gaussian, p = 1), and its lemma
    that P-PRDP implies tanh(P/2)·P-PRzCDP. Influences are multiples of the step: the microdata contract sees to it.
    With the tight policy PRzCDP with P − (s/sinh s)·(1 − e^{−P}), s = λ/σ, which no smaller one is (docs/tight.md).
    """

    sigma: Fraction = above(0, "noise scale, in the measure's unit")
    policy: str = choice("tight", "paper", doc=POLICY)
    lattice: str = choice(*LATTICES, doc=LATTICE)

    kind: ClassVar[str] = "laplace"
    additive: ClassVar[bool] = True
    needs_nonnegative: ClassVar[bool] = False
    pure_formula: ClassVar[str | None] = "Δ/σ"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale("sigma", self.sigma / self.lattice_step)

    fineness = property(own_fineness)
    lattice_step = property(own_step)
    variance = lattice_variance
    mean_absolute_error = lattice_mean_absolute_error
    interval_around = interval_of_width
    release = release_additive
    renyi_at = renyi_by_policy

    @property
    def formula(self) -> str:
        """The policy function."""
        if self.policy == "tight":
            return "P − (s/sinh s)·(1 − e^(−P)) with the pure loss P = Δ/σ and s = λ/σ"
        return "tanh(P/2)·P with the pure loss P = Δ/σ"

    def loss_at(self, influence: Fraction) -> Fraction:
        """Return the policy's loss, rounded up; the tight one is never above the paper's."""
        paper = loss_of_pure_at(self, influence)
        if self.policy == "paper":
            return paper
        return min(paper, laplace_zcdp_above(influence / self.sigma, self.lattice_step / self.sigma))

    def loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the policy's loss, rounded up."""
        if self.policy == "paper":
            return loss_of_pure(self, influence)
        return laplace_zcdp(influence / float(self.sigma), self.lattice_step / self.sigma) * (1 + FLOAT_SLACK)

    def pure_loss_at(self, influence: Fraction) -> Fraction | None:
        """Return Δ/σ, exactly."""
        return influence / self.sigma

    def pure_loss(self, influence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Δ/σ, rounded up."""
        return influence / float(self.sigma) * (1 + FLOAT_SLACK)

    def weights(self) -> LogWeights:
        """Return −k/s, s = σ in steps of the lattice."""
        return LaplaceWeights(scale=self.sigma / self.lattice_step)
