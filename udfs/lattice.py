"""Exact noise on the integers from log-weights: a table of integers, a vectorised sampler, an exact slow path.

Result: `draw_noise` returns Z with P(Z = z) exactly proportional to exp(w(|z|)), distances of `REACH` and beyond
being one outcome, "saturated". Exact means: given independent uniform bits there is no approximation at all.

How (MATH section 8, with envelope masses made integers). Distances k ≥ 0 are cut into buckets of 2^m places. Let
F > 0 be one rational number, and give bucket b (places from s_b, 2^m_b of them) an integer mass

    M_b ≥ F·2^m_b·exp(w(s_b)),        Σ M_b < 2⁶⁴.

One try: a 64-bit word picks bucket b with probability M_b/2⁶⁴ (words beyond the masses reject), m_b bits pick the
place k, and k is accepted with probability F·2^m_b·exp(w(k))/M_b ≤ 1. So a try ends in k with probability exactly
F·exp(w(k))/2⁶⁴. A fair sign follows; minus zero rejects. Any rejection restarts the whole draw. The last bucket
stands for all distances from REACH on, accepted with probability F·Σ exp(w(j))/M.

Acceptance is the one comparison of random bits with a real number: double precision decides it where its error band
allows, else further bits and arbitrary precision do.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate, count

import numpy as np
from numpy.typing import NDArray

from udfs.highprec import context, fraction, real
from udfs.keystream import Bits
from udfs.weights import LogWeights

REACH = 2**64 - 1  # a total and a released value of 63 bits each differ by less: such noise always saturates
LARGEST = 2**63 - 1  # released lattice values lie in [−LARGEST, LARGEST]
WORD = 2**64
DROP = 0.125  # fall of w inside a bucket: about one try in twenty is rejected for it
BUILD_BITS = 192
CHUNK = 1 << 15  # rows handled at a time: their arrays stay in the processor's cache
MOST_PARTS = 16  # of 128 bits, for one decision
DIGITS = 53  # digits of the acceptance bits that double precision compares
BAND = 2.0**-48  # of exp, the products and the subtraction, for each nat of log-weight


@dataclass(frozen=True, kw_only=True)
class LatticeTable:
    """The buckets of one family: integer masses, places and scale; row −1 stands for all distances ≥ REACH."""

    weights: LogWeights
    scale: Fraction  # F
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    masses: tuple[int, ...]

    def __post_init__(self) -> None:
        if not sum(self.masses) < WORD:
            raise ValueError("the masses of a lattice table must stay below 2⁶⁴")

    def acceptance(self, bucket: int, k: int, bits: int) -> tuple[Fraction, Fraction]:
        """Return bounds of the probability that place `k` of `bucket` is accepted, from `bits` binary digits."""
        ctx = context(bits)
        if bucket == len(self.masses) - 1:
            low, high = self.weights.tail(REACH, ctx)
        else:
            log_weight = self.weights.high(k, ctx)
            error = (1 + abs(log_weight)) * ctx.ldexp(1, 14 - bits)
            middle = self.lengths[bucket] * ctx.exp(log_weight)
            low, high = middle * (1 - error), middle * (1 + error)
        factor = self.scale / self.masses[bucket]
        if ctx.mag(high) < -4 * bits:  # exp(−2¹²⁵) has no use for its digits: a bound that shrinks with `bits` does
            return Fraction(0), factor / (1 << 4 * bits)
        return factor * fraction(low), factor * fraction(high)


def build_table(weights: LogWeights) -> LatticeTable:
    """Return the table of `weights`; takes some hundredths of a second, once per release and mechanism."""
    starts, lengths = _cut(weights)
    ctx = context(BUILD_BITS)
    slack = 1 + ctx.ldexp(1, -BUILD_BITS // 2)  # beyond every error of exp: an envelope too high is harmless
    envelopes = [n * ctx.exp(weights.high(k, ctx)) * slack for k, n in zip(starts[:-1], lengths[:-1], strict=True)]
    envelopes.append(weights.tail(REACH, ctx)[1] * slack)
    total = ctx.fsum(envelopes)
    scale = fraction((WORD - 2 - len(starts)) / (total * slack))
    masses = tuple(max(1, int(ctx.ceil(real(ctx, scale) * e * slack))) for e in envelopes)
    return LatticeTable(weights=weights, scale=scale, starts=starts, lengths=lengths, masses=masses)


def _cut(weights: LogWeights) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cut [0, REACH) into buckets of 2^m places: the longest in which w falls by at most DROP, or whose mass is
    under half a unit of 2⁻⁶⁴ of the total (so that far tails take few buckets). Any cut is right; this is a quick one.
    """
    starts, lengths = [], []
    start, total = 0, 0.0
    powers = [1 << m for m in range(64)]
    while start < REACH:
        fitting = [n for n in powers if n <= REACH - start]
        ends = np.array([start, *(start + n - 1 for n in fitting)], dtype=np.float64)
        w = weights.fast(ends)
        flat = int(np.count_nonzero(w[0] - w[1:] <= DROP))
        total = max(total, np.exp(w[0]))
        light = np.log2(total) - 65 - w[0] / np.log(2)  # log₂ of the longest bucket of negligible mass
        m = min(max(flat - 1, int(np.clip(light, 0, 63))), len(fitting) - 1)
        starts.append(start)
        lengths.append(fitting[m])
        total += fitting[m] * np.exp(w[0])
        start += fitting[m]
    return (*starts, REACH), (*lengths, 1)


class _Fast:
    """The table as arrays for the double-precision path, with the error band of each bucket."""

    def __init__(self, table: LatticeTable) -> None:
        self.table = table
        self.ends = np.array(list(accumulate(table.masses)), dtype=np.uint64)
        self.starts = np.array(table.starts, dtype=np.uint64)
        self.masks = np.array([n - 1 for n in table.lengths], dtype=np.uint64)
        first = self.starts.astype(np.float64)
        self.w = table.weights.fast(first)
        last_w = table.weights.fast(first + self.masks.astype(np.float64))
        nats = np.abs(self.w) + np.abs(last_w)
        self.band = BAND + nats * (BAND + 2 * table.weights.fast_error)
        bounds = [table.acceptance(b, k, BUILD_BITS) for b, k in enumerate(table.starts)]
        self.accept = np.array([float(high) for _, high in bounds])
        self.band[-1] += float(bounds[-1][1] - bounds[-1][0])

    def attempt(
        self, bits: Bits, rows: NDArray[np.intp], draw: int
    ) -> tuple[NDArray[np.uint64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Try once for each row: return distances, signs (true: negative) and which tries were accepted."""
        words = bits.words(rows, draw)
        bucket = np.searchsorted(self.ends, words[:, 0], side="right")
        inside = bucket < len(self.ends)
        bucket = np.minimum(bucket, len(self.ends) - 1)
        k = self.starts[bucket] + (words[:, 1] & self.masks[bucket])
        ratio = self.accept[bucket] * np.exp(self.table.weights.fast(k.astype(np.float64)) - self.w[bucket])
        digits = words[:, 2] >> np.uint64(64 - DIGITS)
        lead = ratio - digits * 2.0**-DIGITS
        band = self.band[bucket]
        accepted = lead >= band + 2.0**-DIGITS
        doubtful = inside & ~accepted & (lead > -band)
        for i in np.flatnonzero(doubtful):
            more = partial(bits.more, int(rows[i]), draw)
            accepted[i] = decide(self.table, int(bucket[i]), int(k[i]), int(digits[i]), more)
        negative = (words[:, 3] & np.uint64(1)).astype(np.bool_)
        return k, negative, accepted & inside & ~(negative & (k == 0))


@lru_cache(maxsize=64)
def _fast(table: LatticeTable) -> _Fast:
    return _Fast(table)


def decide(table: LatticeTable, bucket: int, k: int, digits: int, more: Callable[[int], int]) -> bool:
    """Return whether U < the acceptance probability of `k`, exactly.

    U's first DIGITS binary digits are `digits`; `more(0)`, `more(1)`, … give 128 further ones each, as many as the
    comparison needs. Raises ArithmeticError where MOST_PARTS of them do not decide: of a place that has no probability;
    of all distances ≥ REACH, whose mass is known to one part in 10¹⁸ at least, less than once in 10²⁰ draws.
    """
    known = DIGITS
    for part in range(MOST_PARTS):
        low, high = table.acceptance(bucket, k, 2 * known + 128)
        if Fraction(digits + 1, 1 << known) <= low:
            return True
        if Fraction(digits, 1 << known) >= high:
            return False
        digits = digits << 128 | more(part)
        known += 128
    raise ArithmeticError("a draw of noise could not be decided; run the release again")


def draw_noise(table: LatticeTable, bits: Bits, size: int) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return `size` independent draws: distances (REACH: that or farther) and signs (true: negative)."""
    fast = _fast(table)
    distance = np.empty(size, dtype=np.uint64)
    negative = np.empty(size, dtype=np.bool_)
    for start in range(0, size, CHUNK):
        rows = np.arange(start, min(start + CHUNK, size))
        for draw in count():
            k, minus, accepted = fast.attempt(bits, rows, draw)
            done = rows[accepted]
            distance[done], negative[done] = k[accepted], minus[accepted]
            rows = rows[~accepted]
            if not rows.size:
                break
    return distance, negative


def add_noise(
    points: NDArray[np.int64], distance: NDArray[np.uint64], negative: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return points ± distance in integers, saturated at ±LARGEST; the points must lie in that range too."""
    at = points.view(np.uint64)  # two's complement: sums modulo 2⁶⁴ are right wherever they are used
    largest = np.uint64(LARGEST)
    room = np.where(negative, at + largest, largest - at)
    moved = np.where(negative, at - distance, at + distance).view(np.int64)
    end = np.where(negative, np.int64(-LARGEST), np.int64(LARGEST))
    return np.where(distance > room, end, moved)
