"""Draws by the hundred thousand against exact probabilities; and adding them to totals."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.bits import TEST_KEY, cell_bits
from tests.support.false_alarms import binned_fit, chi_square, dependence, fit, level, moments, repeats
from tests.support.families import HEAVY, noise_fit, tail_bins, three, weights_of
from tests.support.heavy import GeneralizedGaussian, Polylog
from tests.support.lattice import LatticeNoise, Noise
from tests.support.stable import Stable
from udfs.noise import lattice
from udfs.noise.keystream import Bits, CellBits
from udfs.noise.lattice import CHUNK, REACH, LatticeTable, add_noise, build_table, draw_noise, interval_of
from udfs.numbers.arrays import LARGEST

DRAWS = 300_000
OTHER = Fraction(105, 100)
NARROW = [Noise(power, Fraction(scale)) for power in (1, 2) for scale in ("0.3", "1", "3.7")]
WIDE = [Noise(power, Fraction(2**30)) for power in (1, 2)]
Ints = NDArray[np.int64]


def table_of(noise: LatticeNoise) -> LatticeTable:
    return build_table.__wrapped__(weights_of(noise))  # anew: a test cuts one otherwise


def draws(noise: LatticeNoise, bits: Bits | None = None, size: int = DRAWS) -> Ints:
    return add_noise(np.zeros(size, dtype=np.int64), *draw_noise(table_of(noise), bits or cell_bits(size), size))


def narrow_fit(values: Ints, noise: Noise) -> float:
    reach = int(40 * noise.scale) + 5
    return fit(values, {k: float(noise.probability(k)) for k in range(-reach, reach + 1)})


def wide_fit(values: Ints, noise: Noise, bins: int = 64) -> float:
    """In bins of equal width, up to six scales on both sides."""
    ends = [int(noise.scale * 12 * i / bins) for i in range(-bins // 2, bins // 2 + 1)]
    above = [1.0, *(float(noise.from_on(end + 1)) for end in ends), 0.0]
    return binned_fit(values, ends, -np.diff(above))


@pytest.mark.parametrize("noise", NARROW, ids=str)
def test_narrow_noise_has_its_exact_distribution(noise: Noise) -> None:
    values = draws(noise)
    assert narrow_fit(values, noise) > level(1)
    assert moments(values.astype(np.float64), float(noise.moment(2)), float(noise.moment(4))) > level(1)
    wider = replace(noise, scale=noise.scale * Fraction(102, 100))  # the broken twin
    assert narrow_fit(draws(wider), noise) < level(1)


@pytest.mark.parametrize("noise", WIDE, ids=str)
def test_wide_noise_has_its_exact_distribution(noise: Noise) -> None:
    values = draws(noise)
    assert wide_fit(values, noise) > level(1)
    variance = float(noise.scale**2) * (2 if noise.power == 1 else 1)
    assert moments(values.astype(np.float64), variance, variance**2 * (6 if noise.power == 1 else 3)) > level(1)
    wider = replace(noise, scale=noise.scale * Fraction(102, 100))  # the broken twin
    assert wide_fit(draws(wider), noise) < level(1)
    assert moments(1.02 * values.astype(np.float64), variance, variance**2 * (6 if noise.power == 1 else 3)) < level(1)
    # Low bits are as fair as high ones: a double's rounding would show here.
    assert chi_square(np.bincount(values & 15), np.full(16, 1 / 16)) > level(1)


@pytest.mark.parametrize("noise", three(HEAVY), ids=str)
def test_heavy_tailed_noise_has_its_exact_distribution(noise: GeneralizedGaussian | Polylog | Stable) -> None:
    values, ends = draws(noise), tail_bins(noise, range(-6, 6))
    assert noise_fit(values, noise, ends) > level(1)
    # The broken twin: tails that are a little too light or too heavy.
    if isinstance(noise, Stable):
        shape = {"alpha": noise.alpha * OTHER}
    else:
        shape = {"p": noise.p * Fraction(97, 100)} if isinstance(noise, GeneralizedGaussian) else {"d": noise.d * OTHER}
    assert noise_fit(values, replace(noise, **shape), ends) < level(1)


def careless(table: LatticeTable, *, minus_zero: bool, keep_bucket: bool) -> Ints:
    """Draws of a sampler that may let minus zero pass, or may draw again within the bucket after a rejection."""
    bits, rows, noise = cell_bits(DRAWS), np.arange(DRAWS), np.zeros(DRAWS, dtype=np.int64)
    ends, starts = np.cumsum(np.array(table.masses, dtype=np.uint64)), np.array(table.starts, dtype=np.uint64)
    lengths, masses = (np.array(column, dtype=np.float64) for column in (table.lengths, table.masses))
    kept = np.full(DRAWS, -1)
    for draw in range(1000):
        words = bits.words(rows, draw)
        bucket = np.where(kept[rows] >= 0, kept[rows], np.searchsorted(ends, words[:, 0], side="right"))
        inside = bucket < len(ends)
        bucket = np.minimum(bucket, len(ends) - 1)
        k = starts[bucket] + (words[:, 1] & (lengths[bucket].astype(np.uint64) - np.uint64(1)))
        weight = np.exp(table.weights.fast(k.astype(np.float64)))
        accepted = words[:, 2] * 2.0**-64 < float(table.scale) * lengths[bucket] * weight / masses[bucket]
        if keep_bucket:
            kept[rows] = np.where(inside & ~accepted, bucket, -1)
        negative = (words[:, 3] & np.uint64(1)) == 1
        done = inside & accepted & (minus_zero | ~negative | (k != 0))
        noise[rows[done]] = np.where(negative, -k.astype(np.int64), k.astype(np.int64))[done]
        rows = rows[~done]
        if not rows.size:
            return noise
    raise AssertionError("a thousand rejections in a row")


def test_a_rejection_that_does_not_restart_the_whole_draw_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Noise(2, Fraction(9))  # of the Laplace, all buckets may lose equally: the mistake then cancels
    monkeypatch.setattr(lattice, "DROP", 2.0)  # any cut is right; in a coarse one the mistake is large
    table = table_of(noise)
    assert len(table.masses) < 110
    assert narrow_fit(draws(noise), noise) > level(1)
    assert narrow_fit(careless(table, minus_zero=False, keep_bucket=False), noise) > level(1)
    assert narrow_fit(careless(table, minus_zero=False, keep_bucket=True), noise) < level(1)
    assert narrow_fit(careless(table, minus_zero=True, keep_bucket=False), noise) < level(1)


@pytest.mark.parametrize("noise", WIDE, ids=str)
def test_cells_and_queries_have_independent_noise(noise: Noise) -> None:
    collision = 1 / (4 * float(noise.scale)) if noise.power == 1 else 1 / (2 * np.sqrt(np.pi) * float(noise.scale))
    values, other = draws(noise), draws(noise, cell_bits(DRAWS, query=1))
    assert repeats(np.concatenate([values, other]), collision) > level(1)
    lags = (1, 2, 128, CHUNK, 1 << 16)
    assert all(dependence(values[:-lag], values[lag:]) > level(len(lags)) for lag in lags)
    assert dependence(values, other) > level(1)
    # Broken twins: cell numbers cut to 16 bits; one query's noise under another's name.
    cut = CellBits(key=TEST_KEY, query=0, cells=np.arange(DRAWS, dtype=np.uint64) & np.uint64(0xFFFF))
    shared = draws(noise, cut)
    assert wide_fit(shared[: 1 << 16], noise) > level(1)
    assert repeats(shared, collision) < level(1)
    assert dependence(shared[: -(1 << 16)], shared[1 << 16 :]) < level(1)
    assert dependence(values, values) < level(1)


def test_draws_do_not_depend_on_order_partition_or_chunk() -> None:
    noise, size = Noise(2, Fraction(37, 10)), CHUNK + 1000
    whole = draws(noise, size=size)
    np.testing.assert_array_equal(whole, draws(noise, size=size))
    shuffled = np.random.default_rng(1).permutation(size)
    bits = CellBits(key=TEST_KEY, query=0, cells=shuffled.astype(np.uint64))
    np.testing.assert_array_equal(draws(noise, bits, size), whole[shuffled])
    for start, end in ((0, 1), (5, 5), (17, 9000), (CHUNK - 3, size)):
        part = CellBits(key=TEST_KEY, query=0, cells=np.arange(start, end, dtype=np.uint64))
        np.testing.assert_array_equal(draws(noise, part, end - start), whole[start:end])


POINTS = st.one_of(st.integers(-LARGEST, LARGEST), st.sampled_from([-LARGEST, 1 - LARGEST, -1, 0, 1, LARGEST]))
DISTANCES = st.one_of(st.integers(0, REACH), st.sampled_from([0, 1, LARGEST, LARGEST + 1, REACH - 2, REACH - 1, REACH]))


@settings(derandomize=True)
@given(st.lists(st.tuples(POINTS, DISTANCES, st.booleans()), max_size=40))
@example([(sign * LARGEST, REACH, minus) for sign in (-1, 0, 1) for minus in (False, True)])
@example(
    [(sign * LARGEST, 2 * LARGEST + by, minus) for sign in (-1, 1) for by in (-1, 0, 1) for minus in (False, True)]
)
def test_noise_is_added_in_integers_and_saturates(cells: list[tuple[int, int, bool]]) -> None:
    points = np.array([point for point, _, _ in cells], dtype=np.int64)
    distance = np.array([far for _, far, _ in cells], dtype=np.uint64)
    negative = np.array([minus for _, _, minus in cells], dtype=np.bool_)
    expected = [max(-LARGEST, min(LARGEST, p - d if minus else p + d)) for p, d, minus in cells]
    assert add_noise(points, distance, negative).tolist() == expected
    for far, largest in [(each, most) for _, each, _ in cells[:9] for most in (LARGEST, LARGEST // 7, 1)]:
        held = np.clip(points, -largest, largest)
        wanted = [(max(-largest, each - far), min(largest, each + far)) for each in held.tolist()]
        assert [*zip(*(ends.tolist() for ends in interval_of(held, far, largest)), strict=True)] == wanted


def test_the_chi_square_keeps_its_level() -> None:
    # 20 000 right samples, 20 rejections expected: outside 3…45 with probability 10⁻⁶
    masses = np.diff([0, *(float(1 - Noise(1, Fraction(3)).from_on(k)) for k in range(-20, 21)), 1])
    samples = np.random.default_rng(3).multinomial(20_000, masses, size=20_000)
    rejected = sum(chi_square(counts, masses) < 1e-3 for counts in samples)
    assert 3 <= rejected <= 45
