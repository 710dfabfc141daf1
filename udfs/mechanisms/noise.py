"""Noise as mechanisms use it: how it is drawn, and what is lost when what it is added to moves.

A mechanism is made of one of these and, where it transforms totals, of a curve (udfs.mechanisms.transformed).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil, floor, inf
from typing import TYPE_CHECKING

import numpy as np

from udfs.losses.atoms import Pair, pair_of
from udfs.losses.below import loss_below
from udfs.losses.curve import TightCurve, curve_at, tight_curve
from udfs.losses.tight import MOST_STEPS, renyi_curve
from udfs.noise.keystream import Bits
from udfs.noise.lattice import (
    REACH,
    LatticeTable,
    build_table,
    draw_noise,
    rounded_distance,
    rounded_moments,
    rounded_quantile,
)
from udfs.noise.weights import LogWeights, beyond
from udfs.numbers.arrays import Floats, Mask, UInt64s
from udfs.numbers.bounds import tanh_above
from udfs.numbers.exact import up_float

if TYPE_CHECKING:
    from udfs.noise.continuous import ContinuousNoise

FLOAT_SLACK = 2.0**-40  # losses of whole arrays are computed in doubles and raised by this: far above their error
LATTICES = ("measure", "fine")
LATTICE = "where noise is drawn: on the measure's steps, or on a finer lattice and rounded to them"
POLICY = "which proven bound states the loss: paper, that of all pure mechanisms; tight, that of this noise"
FINE = 1000  # steps of the fine lattice in a noise scale, where the measure's are fewer
NEAREST = 1 - 2.0**-48  # more than what a double of an influence, which may be rounded up, lies off a whole step
FEW = 64  # influences for which the whole curve is not computed


def fineness_of(lattice: str, scale: Fraction) -> int:
    """Return how many steps of the noise's lattice are one of the measure's, of which `scale` are the noise scale.

    An odd number, so that rounding has no ties: the smallest with FINE fine steps or more in a noise scale, at most
    FINE + 1.
    """
    if lattice == "measure":
        return 1
    wanted = min(FINE, -(-FINE // scale))  # ⌈FINE/scale⌉
    return wanted + 1 - wanted % 2


@dataclass(frozen=True, kw_only=True)
class Noise(ABC):
    """Symmetric noise for centres that are whole numbers of `step`, drawn there or on a finer lattice and rounded.

    Guarantee: for two centres that are `shift` apart and every order α > 1, the Rényi divergence of centre + noise, in
    both directions, is at most α·loss_at(shift); the max divergence is at most pure_loss_at(shift) where that is not
    None. By default the loss is the paper's tanh(P/2)·P of the pure loss P, or the smaller tight one (docs/tight.md).

    `table`, `half_widths`, `variance` and `loss_curve` are computed on first use, on the driver, and pickled with the
    noise: the last bits of some families depend on the processor, and all workers must publish the same ones.

    Subclasses are final. `scale` and `step` are in one unit; `stored` is a tight curve that is not computed anew.
    """

    scale: Fraction
    step: Fraction
    lattice: str = "measure"
    policy: str = "paper"
    stored: TightCurve | None = field(default=None, compare=False, repr=False)

    @property
    @abstractmethod
    def weights(self) -> LogWeights:
        """The log-weights on the lattice, of a scale in lattice steps."""

    @abstractmethod
    def pure_loss_at(self, shift: Fraction) -> Fraction | None:
        """Return the PRDP loss of a shift: exact where it is rational, else an upper bound; None where there is none.

        It is 0 at 0 for every noise, and never falls.
        """

    @abstractmethod
    def pure_loss(self, shift: Floats) -> Floats:
        """Return the same for whole arrays, rounded up; infinite where there is none and the shift is above 0."""

    def loss_at(self, shift: Fraction) -> Fraction:
        """Return the PRzCDP loss of a shift; one between two steps has the next one's tight loss."""
        paper = self._paper_at(shift)
        if not self.tabled:
            return paper
        steps, curve = ceil(shift / self.step), self._computed
        bound = curve_at(self.weights, steps, self.fineness) if curve is None else curve.at(steps)
        return paper if bound >= paper else Fraction(bound)

    def loss(self, shift: Floats) -> Floats:
        """Return the same for whole arrays of multiples of the step, whose doubles may lie three last bits off them."""
        pure = self.pure_loss(shift)
        paper = np.tanh(pure / 2) * pure * (1 + FLOAT_SLACK)
        if not self.tabled:
            return paper
        return np.minimum(paper, self._bounds(np.ceil(shift / float(self.step) * NEAREST)))

    def renyi_at(self, shift: Fraction, orders: Floats) -> Floats:
        """Return upper bounds of D_α at the orders α > 1 under the tight policy; infinite under the paper's."""
        steps = ceil(shift / self.step) * self.fineness
        if self.policy != "tight" or steps > MOST_STEPS:
            return np.full(np.shape(orders), inf)
        return renyi_curve(self.weights, steps, orders)

    def pair_at(self, shift: Fraction) -> Pair | None:
        """Return two laws that are told apart at least as well as centres `shift` or less apart, in both directions.

        Those of the noise itself, or of all mechanisms with its pure loss where its own are not known.
        """
        return pair_of(self.weights, ceil(shift / self.lattice_step), self.pure_loss_at(shift))

    def least_loss_at(self, shift: Fraction) -> float:
        """Return a lower bound of the PRzCDP loss of the noise on its lattice, of the whole steps in a shift."""
        return loss_below(self.weights, floor(shift / self.step) * self.fineness)

    @property
    def tabled(self) -> bool:
        """Whether the loss is a curve that is computed, not a formula."""
        return self.policy == "tight"

    @cached_property
    def loss_curve(self) -> TightCurve | None:
        """The curve of a tabled loss."""
        if not self.tabled:
            return None
        return tight_curve(self.weights, self.fineness) if self.stored is None else self.stored

    @property
    def continuous(self) -> "ContinuousNoise | None":
        """The noise on the reals that the lattice noise approaches; None where it has no closed forms."""
        return None

    @cached_property
    def fineness(self) -> int:
        """How many steps of the noise's lattice are one step of the centres (an odd number)."""
        return fineness_of(self.lattice, self.scale / self.step)

    @property
    def lattice_step(self) -> Fraction:
        """The step of the lattice on which the noise is drawn (λ)."""
        return self.step / self.fineness

    @property
    def steps(self) -> Fraction:
        """The noise scale in steps of the lattice."""
        return self.scale / self.lattice_step

    @cached_property
    def table(self) -> LatticeTable:
        """The sampler's table."""
        return build_table(self.weights)

    def draw(self, bits: Bits, size: int) -> tuple[UInt64s, Mask]:
        """Return `size` draws: distances in whole steps, rounded, and signs (true: negative)."""
        distance, negative = draw_noise(self.table, bits, size)
        return distance if self.fineness == 1 else rounded_distance(distance, self.fineness), negative

    @cached_property
    def half_widths(self) -> dict[Fraction, int]:
        """What `half_width` has computed, by coverage."""
        return {}

    def half_width(self, coverage: Fraction) -> int:
        """Return a c with P(|rounded noise| > c steps) ≤ 1 − coverage: the smallest, or barely above it."""
        if coverage not in self.half_widths:
            self.half_widths[coverage] = rounded_quantile(self.weights, self.fineness, 1 - coverage)
        return self.half_widths[coverage]

    def share_within(self, most: float) -> float:
        """Return P(|rounded noise| ≤ most), in units.

        |R| ≤ c steps says that the distance in fine ones is at most n·c + (n − 1)/2.
        """
        whole = min(floor(Fraction(most) / self.step), REACH)
        return 1 - beyond(self.weights, whole * self.fineness + (self.fineness - 1) // 2)

    @cached_property
    def variance(self) -> float:
        """The variance of the rounded noise, in squared units; infinite where there is none."""
        return rounded_moments(self.weights, self.fineness).variance * float(self.step) ** 2

    @property
    def mean_absolute_error(self) -> float:
        """The mean of |rounded noise|, in units; infinite where there is none."""
        return rounded_moments(self.weights, self.fineness).mean_abs * float(self.step)

    def _paper_at(self, shift: Fraction) -> Fraction:
        # tanh(P/2)·P, the PRzCDP loss that a pure loss P implies (docs/mathematics.md, section 1)
        pure = self.pure_loss_at(shift)
        assert pure is not None
        return tanh_above(pure / 2) * pure

    @property
    def _computed(self) -> TightCurve | None:
        return self.stored or vars(self).get("loss_curve")

    def _bounds(self, steps: Floats) -> Floats:
        if self._computed is None and steps.size <= FEW:
            bounds = [curve_at(self.weights, int(n), self.fineness) if n < inf else inf for n in steps.flat]
            return np.array([up_float(Fraction(b)) if b < inf else inf for b in bounds]).reshape(steps.shape)
        assert self.loss_curve is not None
        return self.loss_curve.over(steps)
