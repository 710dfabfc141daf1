"""Whole numbers of 128 bits, as arrays of two words: sums of 64-bit numbers, exact for up to 2⁶³ of them.

So no sum over records can wrap: it would take more than 2⁶³ records of the largest value, 2⁶³ − 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from udfs.numbers.arrays import Int64s, Mask

LIMB = 32  # binary digits of a limb: fewer than 2³¹ limbs are added up in 64 bits without a carry
LOW = (1 << LIMB) - 1
LARGEST = 2**63 - 1  # of a number's magnitude, where it is held in 63 bits: of totals, and of released values in steps


@dataclass(frozen=True, eq=False, repr=False)
class Wide:
    """Numbers high·2⁶⁴ + low, of magnitude at most 2¹²⁶; `high` None: 0 throughout, so that `low` are the numbers."""

    low: Int64s
    high: Int64s | None = None

    @classmethod
    def of_limbs(cls, *limbs: Int64s) -> "Wide":
        """Return the numbers Σ limbs[i]·2³²ⁱ, of four limbs or the lower two, of magnitude below 2⁶³ − 2³² each."""
        l0, l1, l2, l3 = limbs if len(limbs) > 2 else (*limbs, *np.zeros((2, *limbs[0].shape), dtype=np.int64))
        l1 = l1 + (l0 >> LIMB)
        l2 = l2 + (l1 >> LIMB)
        l3 = l3 + (l2 >> LIMB)
        low = (l1 << LIMB) | (l0 & LOW)
        high = (l3 << LIMB) + (l2 & LOW) + (low < 0)
        return cls(low, high if high.any() else None)

    def limbs(self) -> tuple[Int64s, ...]:
        """Return limbs that make the same numbers, of magnitude at most 2³²: two where `high` is 0, else four."""
        words = (self.low,) if self.high is None else (self.low, self.high)
        return tuple(limb for word in words for limb in (word & LOW, word >> LIMB))

    def summed(self, add: Callable[[Int64s], Int64s]) -> "Wide":
        """Return the sums of these numbers that `add`, which adds up fewer than 2³¹ for each sum, makes of int64s."""
        return Wide.of_limbs(*map(add, self.limbs()))

    def __add__(self, other: "Wide") -> "Wide":
        pairs = zip_longest(self.limbs(), other.limbs(), fillvalue=np.zeros_like(self.low))
        return Wide.of_limbs(*(mine + others for mine, others in pairs))

    @property
    def nonzero(self) -> Mask:
        """Which numbers are not 0."""
        some: Mask = self.low != 0
        return some if self.high is None else some | (self.high != 0)

    @property
    def beyond(self) -> Mask:
        """Which numbers exceed 2⁶³ − 1 in magnitude."""
        off: Mask = self.low < -LARGEST
        if self.high is not None:
            off = (off & (self.high == 0)) | (self.high != 0)
        return off

    def held(self) -> Int64s:
        """Return the numbers held at ±(2⁶³ − 1): nearer to each other than before, or as near."""
        sign = self.low if self.high is None else np.where(self.high == 0, self.low, self.high)
        return np.where(self.beyond, np.where(sign < 0, -LARGEST, LARGEST), self.low)
