"""The additive mechanisms: integer noise on the measure's own steps (docs/mathematics.md, sections 3 and 6)."""

from abc import abstractmethod
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, inf
from typing import Any, ClassVar, Self

import numpy as np

from udfs.losses import atoms, curve, tight
from udfs.mechanisms.base import Mechanism, ParameterError, Released
from udfs.noise import lattice
from udfs.noise.heavy_weights import GeneralizedGaussianWeights, PolylogWeights
from udfs.noise.keystream import Bits
from udfs.noise.lattice import LatticeTable
from udfs.noise.weights import GaussianWeights, LaplaceWeights, LogWeights, beyond
from udfs.numbers.arrays import LARGEST, Floats, Int64s, Mask, UInt64s
from udfs.numbers.exact import tanh_above, up_float

WIDEST = 2**55
MOST_BEYOND = 1 - 1e-9
FLOAT_SLACK = 2.0**-40  # losses of whole arrays are computed in doubles and raised by this: far above their error
LATTICES = ("measure", "fine")
LATTICE = "where noise is drawn: on the measure's steps, or on a finer lattice and rounded to them"
POLICY = "which proven bound states the loss: paper, that of all pure mechanisms; tight, that of this noise"
TIGHT = "sup D_α(Z ‖ Z + Δ)/α over α > 1, Z being the noise on its lattice (docs/tight.md); at most "
FINE = 1000  # steps of the fine lattice in a noise scale, where the measure's are fewer
NEAREST = 1 - 2.0**-48  # more than what a double of an influence, which may be rounded up, lies off a whole step
FEW = 1 << 14  # influences for which the whole curve is not computed


class AdditiveMechanism(Mechanism):
    """Total + noise in whole steps, drawn there or on a finer lattice and rounded, saturated at both ends of a range.

    The noise Z is symmetric and has the log-weights `log_weights`. Its loss is the paper's tanh(P/2)·P of the pure
    loss P, or the smaller tight one (docs/tight.md). A kind declares its noise scale and `policy`, and `lattice`
    where there is a choice.

    `table`, `half_widths`, `noise_variance` and `loss_curve` are computed on first use, on the driver, and pickled with
    the mechanism: the last bits of some families depend on the processor, and all workers must publish the same ones.
    """

    additive: ClassVar[bool] = True
    policy: str
    lattice: str = "measure"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps > WIDEST:  # else hardly any released value would lie in the range of 63 bits
            raise ParameterError(self.scale_parameter, "at most 2⁵⁵ steps of the measure")

    @property
    @abstractmethod
    def log_weights(self) -> LogWeights: ...

    @property
    def scale(self) -> Fraction:
        """The noise scale, in the measure's unit."""
        return Fraction(getattr(self, self.scale_parameter))

    @property
    def lattice_noise(self) -> Self:
        return self

    @cached_property
    def fineness(self) -> int:
        """How many steps of the noise's lattice are one step of the totals (an odd number)."""
        return fineness_of(self.lattice, self.scale / self.step)

    @property
    def lattice_step(self) -> Fraction:
        return self.step / self.fineness

    @property
    def steps(self) -> Fraction:
        """The noise scale in steps of the lattice."""
        return self.scale / self.lattice_step

    @property
    def formula(self) -> str:
        return f"{TIGHT if self.tabled else ''}tanh(P/2)·P with the pure loss P = {self.pure_formula}"

    def loss_at(self, influence: Fraction) -> Fraction:
        # an influence between two steps has the next one's tight loss
        paper = self._paper_at(influence)
        if not self.tabled:
            return paper
        steps, known = ceil(influence / self.step), self._known_curve
        bound = curve.curve_at(self.log_weights, steps, self.fineness) if known is None else known.at(steps)
        return paper if bound >= paper else Fraction(bound)

    def loss(self, influence: Floats) -> Floats:
        # of multiples of the step, whose doubles may lie three last bits off them
        pure = self.pure_loss(influence)
        paper = np.tanh(pure / 2) * pure * (1 + FLOAT_SLACK)
        if not self.tabled:
            return paper
        return np.minimum(paper, self._bounds(np.ceil(influence / float(self.step) * NEAREST)))

    def _paper_at(self, influence: Fraction) -> Fraction:
        # tanh(P/2)·P, the PRzCDP loss that a pure loss P implies (docs/mathematics.md, section 1)
        pure = self.pure_loss_at(influence)
        assert pure is not None
        return tanh_above(pure / 2) * pure

    @abstractmethod
    def pure_loss_at(self, influence: Fraction) -> Fraction | None: ...

    @abstractmethod
    def pure_loss(self, influence: Floats) -> Floats: ...

    def renyi_at(self, influence: Fraction, orders: Floats) -> Floats:
        implied = curve.of_zcdp(up_float(self.loss_at(influence)), orders)
        own, pure = self.renyi_of_noise(influence, orders), self.pure_loss_at(influence)
        curves = [implied, own] if pure is None else [implied, own, curve.of_pure(up_float(pure), orders)]
        least: Floats = np.minimum.reduce(curves)
        return least

    def renyi_of_noise(self, influence: Fraction, orders: Floats) -> Floats:
        """Return upper bounds of D_α under the tight policy that losses do not imply; infinite under the paper's."""
        steps = ceil(influence / self.step) * self.fineness
        if not self.tight or steps > tight.MOST_STEPS:
            return np.full(np.shape(orders), inf)
        return tight.renyi_curve(self.log_weights, steps, orders)

    def pair_at(self, influence: Fraction) -> atoms.Pair | None:
        # of the noise itself, or of all mechanisms with its pure loss where its own laws are not known
        return atoms.pair_of(self.log_weights, ceil(influence / self.lattice_step), self.pure_loss_at(influence))

    def least_loss_at(self, influence: Fraction) -> float:
        return curve.loss_below(self.log_weights, floor(influence / self.step) * self.fineness)

    @property
    def tabled(self) -> bool:
        return self.tight

    @property
    def loss_curve(self) -> curve.TightCurve | None:
        if self.tabled and self._known_curve is None:  # cached_property would compute one at a time in Python 3.11
            vars(self)["loss_curve"] = curve.tight_curve(self.log_weights, self.fineness)
        return self._known_curve

    @property
    def _known_curve(self) -> curve.TightCurve | None:
        return vars(self).get("loss_curve")

    def _bounds(self, steps: Floats) -> Floats:
        if self._known_curve is None and steps.size <= FEW:
            return curve.curve_over(self.log_weights, steps, self.fineness)
        assert self.loss_curve is not None
        return self.loss_curve.over(steps)

    def _require_range(self, parameter: str, advice: str) -> None:
        if not self.saturation < MOST_BEYOND:
            raise ParameterError(parameter, f"{advice}: with these tails nearly every value would lie beyond 63 bits")

    @cached_property
    def table(self) -> LatticeTable:
        """The sampler's table."""
        return lattice.build_table(self.log_weights)

    def draw(self, bits: Bits, size: int) -> tuple[UInt64s, Mask]:
        """Return `size` draws: distances in whole steps, rounded, and signs (true: negative)."""
        distance, negative = lattice.draw_noise(self.table, bits, size)
        return distance if self.fineness == 1 else lattice.rounded_distance(distance, self.fineness), negative

    @cached_property
    def half_widths(self) -> dict[Fraction, int]:
        """What `half_width` has computed, by coverage."""
        return {}

    def half_width(self, coverage: Fraction) -> int:
        """Return a c with P(|rounded noise| > c steps) ≤ 1 − coverage: the smallest, or barely above it."""
        if coverage not in self.half_widths:
            self.half_widths[coverage] = lattice.rounded_quantile(self.log_weights, self.fineness, 1 - coverage)
        return self.half_widths[coverage]

    @cached_property
    def noise_variance(self) -> float:
        """The variance of the rounded noise, in squared units; infinite where there is none."""
        return lattice.rounded_moments(self.log_weights, self.fineness).variance * float(self.step) ** 2

    def variance(self, total: float) -> float:
        return self.noise_variance

    def mean_absolute_error(self, total: float) -> float:
        return lattice.rounded_moments(self.log_weights, self.fineness).mean_abs * float(self.step)

    def error_quantile(self, total: float, level: Fraction) -> float:
        return self.half_width(level) * float(self.step)

    def error_share(self, total: float, most: float) -> float:
        # |R| ≤ c steps says that the distance in fine ones is at most n·c + (n − 1)/2
        steps = min(floor(Fraction(most) / self.step), lattice.REACH)
        return 1 - beyond(self.log_weights, steps * self.fineness + (self.fineness - 1) // 2)

    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        width = self.error_quantile(total, interval)
        return total - width, total + width

    @property
    def continuous(self) -> Any:
        # raises ValueError where doubles do not reach (p below 0.02), or where a is below e^(p − 1)
        from udfs.noise import continuous, continuous_polylog  # noqa: PLC0415 — SciPy, which `prdp explain` does without

        match self.log_weights:
            case GaussianWeights():
                return continuous.Gaussian(sigma=float(self.scale))
            case LaplaceWeights():
                return continuous.Laplace(scale=float(self.scale))
            case GeneralizedGaussianWeights(p=p):
                return continuous.GeneralizedGaussian(p=float(p), sigma=float(self.scale))
            case PolylogWeights(p=p, d=d, a=a):
                return continuous_polylog.ExponentialPolylog(
                    p=float(p), d=float(d), a=float(a), sigma=float(self.scale)
                )
        return None

    def noisy(self, totals: Int64s, bits: Bits) -> Int64s:
        """Return totals + noise.

        Noise of a fine lattice, n steps of which are one, is rounded to whole steps: the same as rounding the noisy
        value of the fine lattice, and so post-processing. All its values must be reached from every total: with 64-bit
        distances the range is ±(2⁶³ − 1 − n)/n, which totals are held in as well before noise is added. Holding them
        moves no two totals apart, so that no influence grows.
        """
        held = totals if self.fineness == 1 else np.clip(totals, -self._largest, self._largest)
        value = lattice.add_noise(held, *self.draw(bits, len(held)))
        return value if self.fineness == 1 else np.clip(value, -self._largest, self._largest)

    @property
    def _largest(self) -> int:
        return LARGEST if self.fineness == 1 else (LARGEST - self.fineness) // self.fineness

    def release(self, totals: Int64s, bits: Bits, interval: Fraction) -> Released:
        """Return noisy totals and their intervals, which are as long for every total."""
        value, largest = self.noisy(totals, bits), self._largest
        width, error = self.half_width(interval), float(np.sqrt(self.noise_variance))
        # beyond it the whole range, which every total lies in
        lower, upper = lattice.interval_of(value, width if width <= largest else 2 * largest, largest)
        return Released(value, lower, upper, np.full(len(totals), error))


def fineness_of(lattice: str, scale: Fraction) -> int:
    """Return how many steps of the noise's lattice are one of the measure's, of which `scale` are the noise scale.

    An odd number, so that rounding has no ties: the smallest with FINE fine steps or more in a noise scale, at most
    FINE + 1.
    """
    if lattice == "measure":
        return 1
    wanted = min(FINE, -(-FINE // scale))  # ⌈FINE/scale⌉
    return wanted + 1 - wanted % 2
