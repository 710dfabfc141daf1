"""The additive form: integer noise on the measure's own steps (docs/mathematics.md, sections 3 and 6)."""

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, final

import numpy as np

from udfs.mechanisms.base import Form, Released
from udfs.noise.keystream import Bits
from udfs.noise.lattice import add_noise
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.wide import LARGEST

if TYPE_CHECKING:
    from udfs.noise.continuous import ContinuousNoise


@final
@dataclass(frozen=True, kw_only=True)
class Additive(Form):
    """Total + noise in steps, saturated at both ends of a range, with ±(quantile of |noise|)."""

    def least_shift_at(self, influence: Fraction) -> Fraction:
        """Return the influence: every total moves by it."""
        return influence

    def renyi_at(self, influence: Fraction, orders: Floats) -> Floats:
        """Return those of the noise itself."""
        return self.noise.renyi_at(influence, orders)

    def variance(self, total: float) -> float:
        """Return the variance of the noise, whatever the total."""
        return self.noise.variance

    def mean_absolute_error(self, total: float) -> float:
        """Return E|noise|, whatever the total."""
        return self.noise.mean_absolute_error

    def error_quantile(self, total: float, level: Fraction) -> float:
        """Return the quantile of |noise|, whatever the total."""
        return self.noise.half_width(level) * float(self.noise.step)

    def error_share(self, total: float, most: float) -> float:
        """Return P(|noise| ≤ most), whatever the total."""
        return self.noise.share_within(most)

    def interval_around(self, total: float, interval: Fraction) -> tuple[float, float]:
        """Return total ± the quantile of |noise|."""
        width = self.error_quantile(total, interval)
        return total - width, total + width

    def continuous(self) -> "ContinuousNoise | None":
        """Return the distribution of the released value less the total."""
        return self.noise.continuous

    def release(self, totals: Int64s, bits: Bits, interval: Fraction) -> Released:
        """Return totals + noise.

        Noise of a fine lattice, n steps of which are one, is rounded to whole steps: the same as rounding the noisy
        value of the fine lattice, and so post-processing. All its values must be reached from every total: with 64-bit
        distances the range is ±(2⁶³ − 1 − n)/n, which totals are held in as well before noise is added. Holding them
        moves no two totals apart, so that no influence grows.
        """
        n = self.noise.fineness
        largest = LARGEST if n == 1 else (LARGEST - n) // n
        held = totals if n == 1 else np.clip(totals, -largest, largest)
        value = add_noise(held, *self.noise.draw(bits, len(held)))
        if n > 1:
            value = np.clip(value, -largest, largest)
        width, error = self.noise.half_width(interval), float(np.sqrt(self.noise.variance))
        if width > largest:  # the whole range, which every total lies in
            lower, upper = np.full_like(value, -largest), np.full_like(value, largest)
        else:
            lower = np.where(value < width - largest, -largest, value - width)
            upper = np.where(value > largest - width, largest, value + width)
        return Released(value, lower, upper, np.full(len(totals), error))
