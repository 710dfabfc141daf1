"""Injected random bits for the sampler, and what the sampler must make of them, decided in exact arithmetic."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate, count

import numpy as np
from numpy.typing import NDArray

from tests.support.lattice import CTX, LatticeNoise, real
from udfs.noise.keystream import CellBits, SecretKey
from udfs.noise.lattice import DIGITS, REACH, WORD, LatticeTable

TEST_KEY = SecretKey(bytes(range(32)))
Words = tuple[int, int, int, int]


def cell_bits(size: int, query: int = 0, key: SecretKey = TEST_KEY) -> CellBits:
    """The keystream of the cells 0, 1, … under a known key."""
    return CellBits(key=key, query=query, cells=np.arange(size, dtype=np.uint64))


def no_parts(row: int, draw: int, part: int) -> int:
    raise AssertionError("no further bits should be needed")


@dataclass
class Injected:
    """Bits as given: `tries[d][i]` are the words of row i's draw d (a short list: its last entry for ever)."""

    tries: Sequence[Sequence[Words]]
    parts: Callable[[int, int, int], int] = no_parts
    asked: list[tuple[int, int, int]] = field(default_factory=list)

    def words(self, rows: NDArray[np.intp], draw: int) -> NDArray[np.uint64]:
        words = np.array(self.tries[min(draw, len(self.tries) - 1)], dtype=np.uint64)
        return np.ascontiguousarray(words[rows])

    def more(self, row: int, draw: int, part: int) -> int:
        self.asked.append((row, draw, part))
        return self.parts(row, draw, part)


def bucket_of(table: LatticeTable, k: int) -> int:
    """The bucket of distance k; the last one for REACH."""
    return bisect_right(table.starts, k) - 1


def first_word(table: LatticeTable, bucket: int) -> int:
    """The smallest word that picks the bucket."""
    return sum(table.masses[:bucket])


def words_that_draw(table: LatticeTable, noise: int) -> Words:
    """Words whose draw is `noise` (never accepted in doubt, unless its acceptance is below 2⁻⁴⁰)."""
    bucket = bucket_of(table, abs(noise))
    return first_word(table, bucket), abs(noise) - table.starts[bucket], 0, int(noise < 0)


def acceptance(table: LatticeTable, noise: LatticeNoise, bucket: int, k: int) -> Fraction:
    """F·2^m·e^{w(k)}/M (the last bucket: F·Σe^{w}/M) to more digits than any test asks for."""
    weight = noise.weight_from(REACH) if bucket == len(table.masses) - 1 else noise.weight(k)
    p = table.lengths[bucket] * weight * real(table.scale) / table.masses[bucket]
    if CTX.mag(p) < -4000:
        return Fraction(1, 1 << 4000)  # some have 10⁴² digits; no test spells so many zeros
    _, mantissa, exponent, _ = p._mpf_
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


class ExactTries:
    """What tries must come to, by rational arithmetic on the table's integers and high-precision weights."""

    def __init__(self, table: LatticeTable, noise: LatticeNoise) -> None:
        self.table, self.noise = table, noise
        self.ends = list(accumulate(table.masses))

    def outcome(self, words: Words, parts: Callable[[int], int]) -> tuple[int, bool] | None:
        """None for a rejection, else the distance and whether the sign is negative."""
        bucket = bisect_right(self.ends, words[0])
        if bucket == len(self.ends):
            return None
        k = self.table.starts[bucket] + words[1] % self.table.lengths[bucket]
        p = acceptance(self.table, self.noise, bucket, k)
        digits, known = words[2] >> (64 - DIGITS), DIGITS
        for part in count():
            if (digits + 1) * Fraction(1, 1 << known) <= p:
                break
            if digits * Fraction(1, 1 << known) >= p:
                return None
            digits, known = digits << 128 | parts(part), known + 128
        negative = bool(words[3] & 1)
        return None if negative and k == 0 else (k, negative)


def word_of(digits: int) -> int:
    """The third word whose leading DIGITS digits are `digits`, held to their range; the unused ones are ones."""
    held = min(max(digits, 0), (1 << DIGITS) - 1)
    return held * (WORD >> DIGITS) | ((WORD >> DIGITS) - 1)
