"""Exact noise on the integers from log-weights: a table of integers, a vectorised sampler, an exact slow path.

Result: `draw_noise` returns Z with P(Z = z) exactly proportional to exp(w(|z|)), distances of `REACH` and beyond
being one outcome, "saturated". Exact means: given independent uniform bits there is no approximation at all.

How (docs/mathematics.md, section 6, with envelope masses made integers). Distances k ≥ 0 are cut into buckets of 2^m
places. Let F > 0 be one rational number, and give bucket b (places from s_b, 2^m_b of them) an integer mass

    M_b ≥ F·2^m_b·exp(w(s_b)),        Σ M_b < 2⁶⁴.

One try: a 64-bit word picks bucket b with probability M_b/2⁶⁴ (words beyond the masses reject), m_b bits pick the
place k, and k is accepted with probability F·2^m_b·exp(w(k))/M_b ≤ 1. So a try ends in k with probability exactly
F·exp(w(k))/2⁶⁴. A fair sign follows; minus zero rejects. Any rejection restarts the whole draw. The last bucket
stands for all distances from REACH on, accepted with probability F·Σ exp(w(j))/M.

Acceptance is the one comparison of random bits with a real number: double precision decides it where its error band
allows, else further bits and arbitrary precision do.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from itertools import accumulate, count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from udfs.noise.keystream import Bits
from udfs.noise.weights import DIRECT, LARGEST_LOG, LogWeights, log_sum, moments
from udfs.numbers.arrays import LARGEST, Int64s, Mask, UInt64s
from udfs.numbers.exact import context, fraction

REACH = 2**64 - 1  # a total and a released value of 63 bits each differ by less: such noise always saturates
WORD = 2**64
POWERS = tuple(1 << m for m in range(64))
DROP = 0.125  # fall of w inside a bucket: about one try in twenty is rejected for it
LN_2 = np.log(2)
BUILD_BITS = 192
CHUNK = 1 << 15  # rows handled at a time: their arrays stay in the processor's cache
MOST_PARTS = 16  # of 128 bits, for one decision
DIGITS = 53  # digits of the acceptance bits that double precision compares
GUIDE_BITS = 12  # of a word: nearly always they tell its bucket
LATER_BITS = np.uint64(64 - GUIDE_BITS)
LATER = np.uint64(2**64 - 1) >> np.uint64(GUIDE_BITS)
BAND = 2.0**-48  # of exp, the products and the subtraction, for each nat of log-weight


@dataclass(frozen=True, kw_only=True)
class LatticeTable:
    """The buckets of one family: integer masses, places and scale; row −1 stands for all distances ≥ REACH.

    `heights` are 2^m·exp(w(s)) of each bucket's start s, to some last bits of BUILD_BITS; `beyond` bounds the last one.
    """

    weights: LogWeights
    scale: Fraction  # F
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    masses: tuple[int, ...]
    heights: tuple[Fraction, ...] = field(repr=False)
    beyond: tuple[Fraction, Fraction] = field(repr=False)

    def __post_init__(self) -> None:
        if not sum(self.masses) < WORD:
            raise ValueError("the masses of a lattice table must stay below 2⁶⁴")

    def __hash__(self) -> int:
        return hash(self.weights)  # each batch looks its table up, and numbers in hundreds take their time

    def acceptance(self, bucket: int, k: int, bits: int) -> tuple[Fraction, Fraction]:
        """Return bounds of the probability that place `k` of `bucket` is accepted, from `bits` binary digits."""
        ctx = context(bits)
        low, high = _bounds(_height(self.weights, k, self.lengths[bucket], ctx), ctx)
        factor = self.scale / self.masses[bucket]
        return factor * low, factor * high


@lru_cache(maxsize=64)
def build_table(weights: LogWeights) -> LatticeTable:
    """Return the table of `weights`: built in some hundredths of a second, kept for the process."""
    starts, lengths = _cut(weights)
    ctx = context(BUILD_BITS)
    slack = 1 + ctx.ldexp(1, -BUILD_BITS // 2)  # beyond every error of exp: an envelope too high is harmless
    beyond = _height(weights, REACH, 1, ctx)
    heights = [n * weights.term(k, ctx) for k, n in zip(starts[:-1], lengths[:-1], strict=True)]
    heights.append(beyond[0])
    scale = (WORD - 2 - len(starts)) / (ctx.fsum(heights) * slack**2)
    raised = scale * slack**2
    masses = tuple(1 + int(raised * height) for height in heights)
    return LatticeTable(
        weights=weights,
        scale=fraction(scale),
        starts=starts,
        lengths=lengths,
        masses=masses,
        heights=tuple(_above(height, ctx) for height in heights),
        beyond=_bounds(beyond, ctx),
    )


def _height(weights: LogWeights, k: int, length: int, ctx: Any) -> tuple[Any, Any, Any]:
    """Return length·exp(w(k)), and bounds of it; of REACH the upper bound and both, of all distances from there on."""
    if k == REACH:
        low, high = weights.tail(REACH, ctx)
        return high, low, high
    log_weight = weights.high(k, ctx)
    error = (1 + abs(log_weight)) * ctx.ldexp(1, 14 - ctx.prec)
    middle = length * ctx.exp(log_weight)
    return middle, middle * (1 - error), middle * (1 + error)


def _bounds(height: tuple[Any, Any, Any], ctx: Any) -> tuple[Fraction, Fraction]:
    _, low, high = height
    return Fraction(0) if _is_nothing(high, ctx) else fraction(low), _above(high, ctx)


def _above(height: Any, ctx: Any) -> Fraction:
    """Return a height, or what is above it: exp(−2¹²⁵) has no use for its digits, bounds that shrink with them have."""
    return Fraction(1, 1 << 4 * ctx.prec) if _is_nothing(height, ctx) else fraction(height)


def _is_nothing(height: Any, ctx: Any) -> bool:
    return bool(ctx.mag(height) < -4 * ctx.prec)


def _cut(weights: LogWeights) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Cut [0, REACH) into buckets of 2^m places: the longest in which w falls by at most DROP, or whose mass is
    under half a unit of 2⁻⁶⁴ of the total (so that far tails take few buckets). Any cut is right; this is a quick one.
    """
    starts, lengths = [], []
    start, total = 0, 0.0
    reaches = np.array([1, *(1 << m for m in range(64))], dtype=np.uint64) - np.uint64(1)
    while start < REACH:
        fitting = POWERS[: (REACH - start).bit_length()]
        w = weights.fast((reaches[: len(fitting) + 1] + np.uint64(start)).astype(np.float64))
        flat, mass = int(np.count_nonzero(w[0] - w[1:] <= DROP)), np.exp(w[0])
        total = max(total, mass)
        light = np.log2(total) - 65 - w[0] / LN_2  # log₂ of the longest bucket of negligible mass
        m = min(max(flat - 1, int(min(max(light, 0.0), 63.0))), len(fitting) - 1)
        starts.append(start)
        lengths.append(fitting[m])
        total += fitting[m] * mass
        start += fitting[m]
    return (*starts, REACH), (*lengths, 1)


class _Fast:
    """The table as arrays for the double-precision path, with the error band of each bucket."""

    def __init__(self, table: LatticeTable) -> None:
        self.table = table
        self.ends = np.array(list(accumulate(table.masses)), dtype=np.uint64)
        leading = np.arange(1 << GUIDE_BITS, dtype=np.uint64) << LATER_BITS
        self.guide = self._searched(leading)
        self.split = self._searched(leading | LATER) > self.guide
        self.starts = np.array(table.starts, dtype=np.uint64)
        self.masks = np.array([n - 1 for n in table.lengths], dtype=np.uint64)
        first = self.starts.astype(np.float64)
        self.w = table.weights.fast(first)
        last_w = table.weights.fast(first + self.masks.astype(np.float64))
        nats = np.abs(self.w) + np.abs(last_w)
        self.band = BAND + nats * (BAND + 2 * table.weights.fast_error)
        factors = [table.scale / mass for mass in table.masses]
        low, high = table.beyond
        self.accept = np.array([float(factor * top) for factor, top in zip(factors, table.heights, strict=True)])
        self.band[-1] += float(factors[-1] * (high - low))

    def _searched(self, words: UInt64s) -> NDArray[np.intp]:
        return np.searchsorted(self.ends, words, side="right")

    def _bucket(self, words: UInt64s) -> NDArray[np.intp]:
        """Return the buckets that words pick: by their leading bits, searched for only where these leave a choice."""
        leading = (words >> LATER_BITS).astype(np.intp)
        bucket = self.guide[leading]
        split = np.flatnonzero(self.split[leading])
        bucket[split] = self._searched(words[split])
        return bucket

    def attempt(self, bits: Bits, rows: NDArray[np.intp], draw: int) -> tuple[UInt64s, Mask, Mask]:
        """Try once for each row: return distances, signs (true: negative) and which tries were accepted."""
        words = bits.words(rows, draw)
        bucket = self._bucket(words[:, 0])
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


def draw_noise(table: LatticeTable, bits: Bits, size: int) -> tuple[UInt64s, Mask]:
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


def add_noise(points: Int64s, distance: UInt64s, negative: Mask) -> Int64s:
    """Return points ± distance in integers, saturated at ±LARGEST; the points must lie in that range too."""
    unsigned = points.view(np.uint64)  # two's complement: sums modulo 2⁶⁴ are right wherever they are used
    flip = -negative.astype(np.uint64)  # (x ^ flip) − flip is −x where negative, else x: no branch on random signs
    moved = (unsigned + ((distance ^ flip) - flip)).view(np.int64)
    room = np.uint64(LARGEST) - ((unsigned ^ flip) - flip)
    beyond = np.flatnonzero(distance > room)
    moved[beyond] = np.where(negative[beyond], -LARGEST, LARGEST)
    return moved


def interval_of(points: Int64s, distance: int, largest: int = LARGEST) -> tuple[Int64s, Int64s]:
    """Return points ∓ distance, which is ≥ 0, saturated at ±largest; the points must lie in that range too."""
    most = min(distance, 2 * largest)
    lower = np.maximum(points, most - largest).view(np.uint64) - np.uint64(most)  # two's complement, as above
    upper = np.minimum(points, largest - most).view(np.uint64) + np.uint64(most)
    return lower.view(np.int64), upper.view(np.int64)


# Noise of a fine lattice, rounded to whole numbers of `n` fine steps: its moments, quantiles and the rounding itself.
#
# n is odd, so that the nearest multiple of n is unique: rounding depends on the noisy value alone, which makes it
# post-processing, and it is symmetric, which keeps the mean. With h = (n − 1)/2 a distance of k fine steps becomes
# ⌊(k + h)/n⌋ whole ones.


@dataclass(frozen=True, kw_only=True)
class RoundedMoments:
    """Of the rounded noise R, in whole steps: E|R| and Var R, infinite where there is none."""

    mean_abs: float
    variance: float


@lru_cache(maxsize=1024)
def rounded_moments(weights: LogWeights, n: int) -> RoundedMoments:
    """Return the moments of noise with `weights` on the fine lattice, rounded to multiples of n, which is odd.

    The first DIRECT distances are summed term by term, k as ⌊(k + h)/n⌋. Beyond, over whole blocks of n places that
    begin at x₀, with k − e the multiple of n next to k (Euler–Maclaurin, to second order in n/x₀, relatively):

        Σ |k − e|·f(k)  = Σ k·f(k)  + (n² − 1)/12·f(x₀)
        Σ (k − e)²·f(k) = Σ k²·f(k) + (n² − 1)/12·[Σ f(k) + 2·x₀·f(x₀)],        f(k) = exp(w(k)).
    """
    if n == 1:
        known = moments(weights)
        return RoundedMoments(mean_abs=known.mean_abs, variance=weights.variance())
    last = n * math.ceil(DIRECT / n) + (n - 1) // 2
    start = last + 0.5
    density = float(weights.fast(np.array([start]))[0])
    spread = math.log((n * n - 1) / 12)
    mass, first, second = (log_sum(weights, last + 1, order) for order in (0, 1, 2))
    beyond_first = _log_added(first, spread + density)
    beyond_second = _log_added(second, spread + mass, spread + math.log(2 * start) + density)
    near_first, near_second = _near(weights, n, last)
    normaliser = moments(weights).log_normaliser

    def mean(near: float, beyond: float, order: int) -> float:
        log = math.log(2) + _log_added(near, beyond - order * math.log(n)) - normaliser
        return math.exp(log) if log < LARGEST_LOG else math.inf

    return RoundedMoments(mean_abs=mean(near_first, beyond_first, 1), variance=mean(near_second, beyond_second, 2))


def _near(weights: LogWeights, n: int, last: int) -> tuple[float, float]:
    """Return ln Σ R·f(k) and ln Σ R²·f(k) over the distances k up to `last` that do not become 0."""
    k = np.arange((n + 1) // 2, last + 1, dtype=np.float64)
    log_steps = np.log(np.floor((k + (n - 1) // 2) / n))
    w = weights.fast(k)
    return float(np.logaddexp.reduce(w + log_steps)), float(np.logaddexp.reduce(w + 2 * log_steps))


def _log_added(*logs: float) -> float:
    return float(np.logaddexp.reduce(np.array(logs)))


def rounded_quantile(weights: LogWeights, n: int, beta: Fraction) -> int:
    """Return a c, in whole steps, with P(|R| > c) ≤ `beta`: that of the fine lattice, rounded up where it must be.

    |R| > c says that the fine distance is above n·c + h.
    """
    return max(0, math.ceil(Fraction(weights.quantile(beta) - (n - 1) // 2, n)))


def rounded_distance(distance: UInt64s, n: int) -> UInt64s:
    """Return distances in fine steps as whole ones: ⌊(k + h)/n⌋, without leaving 64 bits."""
    quotient, rest = np.divmod(distance, np.uint64(n))
    return quotient + (rest > np.uint64((n - 1) // 2))
