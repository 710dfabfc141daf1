"""What every kind of mechanism owes beyond its divergences: policies as arrays, fair signs, and what it releases.

Of all mechanisms of tests/support/guarantee.py; nothing is sampled here.
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from tests.support.bits import Injected, words_that_draw
from tests.support.false_alarms import chi_square, level
from tests.support.families import noise_fit, tail_bins
from tests.support.guarantee import CASES, centres, named, noise_of, three
from tests.support.kinds import REGISTRY
from tests.support.lattice import real
from tests.support.mixture import ranks
from tests.support.submit import Place, submit
from tests.support.world import write_world
from udfs.mechanisms.base import Mechanism, Released
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.noise.lattice import draw_noise
from udfs.numbers.arrays import LARGEST

SHARE = Fraction(19, 20)
TOP = 1 << 62
COLUMNS = ("value", "lower", "upper", "standard_error")
ADDITIVE = [m for m in CASES if m.additive]
ONE_NOISE = [m for m in CASES if m.kind != "groupwise_noisy"]  # it draws two: tests/mechanisms/test_groupwise_noisy.py


def steps() -> list[int]:
    random = Random(19)
    return sorted(
        {0, *range(1, 40), *(random.randrange(1, 1 << bits) for bits in range(6, 63) for _ in range(4)), LARGEST}
    )


@pytest.mark.parametrize("m", three(), ids=named)
def test_policies_start_at_zero_and_never_fall(m: Mechanism) -> None:
    points = [d * m.step for d in steps()]
    array = np.array([float(x) for x in points])
    at, losses = [m.loss_at(x) for x in points], m.loss(array)
    assert at == sorted(at)
    assert at[0] == losses[0] == m.pure_loss_at(Fraction(0)) == 0 < at[1]
    assert np.all(np.diff(losses) >= 0)
    pures = m.pure_loss(array)
    assert np.all(pures[:-1] <= pures[1:])
    smaller = points[1:-1:17]  # a policy is monotone between the lattice's points too
    assert all(m.loss_at(x * Fraction(2, 3)) <= m.loss_at(x) <= m.loss_at(x * Fraction(4, 3)) for x in smaller)


def below(arrays: np.ndarray, exactly: list[Fraction]) -> list[int]:
    return [i for i, (up, least) in enumerate(zip(arrays.tolist(), exactly, strict=True)) if Fraction(up) < least]


@pytest.mark.parametrize("m", three(), ids=named)
def test_losses_of_arrays_are_upper_bounds_and_close(m: Mechanism) -> None:
    points = [d * m.step for d in steps()][1:]
    array = np.array([float(x) for x in points])
    forms = [(m.loss(array), [m.loss_at(x) for x in points])]
    pure = [at for at in map(m.pure_loss_at, points) if at is not None]
    if pure:
        forms.append((m.pure_loss(array), pure))
    else:
        assert np.all(np.isinf(m.pure_loss(array)))
    for arrays, exactly in forms:
        assert below(arrays, exactly) == []
        assert below(-arrays, [-loss * (1 + Fraction(1, 10**11)) for loss in exactly]) == []
        assert below(arrays * (1 - 2.0**-38), exactly)  # the broken twin, without what FLOAT_SLACK adds


@pytest.mark.parametrize("m", three(), ids=named)
def test_signs_are_fair_and_noise_is_centred_on_the_total(m: Mechanism) -> None:
    """Of the words of a draw one bit is the sign; so additive values are unbiased whatever their variance."""
    noise = noise_of(m)
    distances = [0, 1, 2, 3, *(int(noise.scale * z) for z in (0.5, 1, 3) if noise.scale * z > 1)]
    plus = [words_that_draw(m.lattice_noise.table, k) for k in distances]
    minus = [(*words[:3], 1) for words in plus]
    minus[0] = plus[0]  # minus zero is a rejection
    (k, positive), (same, negative) = (
        draw_noise(m.lattice_noise.table, Injected([words], lambda *_: 0), len(words)) for words in (plus, minus)
    )
    assert k.tolist() == same.tolist() == distances
    assert not positive.any()
    assert negative.tolist() == [False, *[True] * (len(distances) - 1)]
    if m.additive:
        up, down = (release(m, 12_345, [sign * d for d in distances], SHARE) for sign in (1, -1))
        n = m.lattice_noise.fineness  # noise of a finer lattice is rounded to whole steps
        moved = [(2 * d + n) // (2 * n) for d in distances]
        assert (up.value - 12_345).tolist() == (12_345 - down.value).tolist() == moved


def release(m: Mechanism, total: int, noise: list[int], interval: Fraction) -> Released:
    bits = Injected([[words_that_draw(m.lattice_noise.table, k) for k in noise]], lambda *_: 0)
    return m.release(np.full(len(noise), total, dtype=np.int64), bits, interval)


@pytest.mark.parametrize("m", three(ONE_NOISE), ids=named)
def test_what_is_released_depends_on_the_noisy_total_alone(m: Mechanism) -> None:
    """All columns are post-processing: two totals whose noise makes up the difference release the same bytes."""
    totals = np.array([0, 1, 2, 5, 7], dtype=np.int64)
    middles = centres(m, totals)
    meeting = int(middles.max()) + 1
    words = [words_that_draw(m.lattice_noise.table, meeting - int(middle)) for middle in middles]
    released = m.release(totals, Injected([words], lambda *_: 0), SHARE)
    for column in COLUMNS:
        assert len({value.tobytes() for value in getattr(released, column)}) == 1
    apart = m.release(totals * 10**6, Injected([words[:1] * len(totals)], lambda *_: 0), SHARE)  # the broken twin
    assert len({value.tobytes() for value in apart.value}) > 1


def coverage(m: Mechanism, total: int, interval: Fraction) -> float:
    """P(lower ≤ q ≤ upper), exactly: the noises whose interval misses q lie beyond one on either side."""
    noise, q, top = noise_of(m), total if m.additive else float(total * m.step), 1
    while top < TOP and noise.beyond(top) > 1e-7:
        top *= 2
    missed = 0.0
    for sign in (1, -1):
        low, high = -1, top  # the interval of noise sign·k holds q up to some k, and not beyond
        while low < high:
            ks = sorted({low + -(-(high - low) * i // 64) for i in range(1, 65)})
            found = release(m, total, [sign * k for k in ks], interval)
            good = int(np.sum(np.cumprod(found.lower <= q if sign > 0 else found.upper >= q)))
            low, high = (ks[good - 1] if good else low), (ks[good] - 1 if good < len(ks) else high)
        missed += float(noise.from_on(low + 1))
    return 1 - missed


@pytest.mark.parametrize("m", three(ONE_NOISE), ids=named)
@pytest.mark.parametrize("total", [0, 1, 12_345])
def test_intervals_cover(m: Mechanism, total: int) -> None:
    noise = noise_of(m)
    if noise.beyond(LARGEST) > 1 - real(SHARE):  # no interval within 63 bits would do: all of them are shown
        found = release(m, total, [0, 7], SHARE)
        assert (found.lower.tolist(), found.upper.tolist()) == ([-LARGEST] * 2, [LARGEST] * 2)
        return
    assert coverage(m, total, SHARE) >= float(SHARE)
    if total and noise.scale > 100 * m.lattice_noise.fineness:
        assert coverage(m, total, SHARE * Fraction(98, 100)) < float(SHARE)  # the broken twin


@pytest.mark.parametrize("m", three(ADDITIVE), ids=named)
def test_additive_intervals_are_no_wider_than_needed(m: Mechanism) -> None:
    n = m.lattice_noise.fineness  # |Z/n|, rounded, is above c where |Z| is above n·c + (n − 1)/2
    noise, released = noise_of(m), release(m, 5, [0, 3 * n], SHARE)
    c = int(released.upper[0]) - 5
    if c < LARGEST - 5:
        assert released.lower.tolist() == [5 - c, 8 - c]
        assert noise.beyond(n * c + n // 2) <= 1 - real(SHARE)
        least = c - 1 - c // 10_000  # wide Gaussian noise: barely above the smallest
        assert least < 0 or noise.beyond(n * least + n // 2) > 1 - real(SHARE)


# The noise of every kind, through a whole release on Dask: what is published less the truth fits its distribution.
#
# One query for every kind, and for both noises and estimators of the transformations, over cells of which some hold
# establishments. Broken twin of each: the same values against noise whose scale is 2 % off.

NAICS = tuple(f"{code}" for code in range(311000, 311600))
COUNTIES = tuple(f"{code:05d}" for code in range(1001, 1501))
CELLS, RECORDS = len(NAICS) * len(COUNTIES), 20_000
OFF = Fraction(102, 100)
Floats = NDArray[np.float64]

SPECS: dict[str, dict[str, Any]] = {
    name: {"kind": kind, **given} for kind, known in REGISTRY.items() for name, given in known.published.items()
}
COUNTED = ("groupwise_log", "groupwise_noisy")
# f(value + a) of the estimators, from docs/mathematics.md, section 4; totals are so far above 0 that a root's sign
# is not in doubt
NOISY: dict[str, Callable[[Floats], Floats]] = {
    "root_mean": lambda value: np.sqrt(value + 10_000 + 2 * 0.5**2),
    "root_median": lambda value: np.cbrt(value + 1000),
    "log_mean": lambda value: np.log(value + 50) + 0.5**2 / 2,
    "log_median": lambda value: np.log(value + 50),
    "groupwise_log": lambda value: np.log(value + 5) + 0.1**2 / 2,
}
TRUE: dict[str, Callable[[Floats], Floats]] = {
    "root_mean": lambda q: np.sqrt(q + 10_000),
    "root_median": lambda q: np.cbrt(q + 1000),
    "log_mean": lambda q: np.log(q + 50),
    "log_median": lambda q: np.log(q + 50),
    "groupwise_log": lambda q: np.log(q + 5),
}
Figures = tuple[dict[str, Floats], dict[str, Floats]]


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Figures:
    """Each query's true totals and its released values, in cell order."""
    random, folder = np.random.default_rng(23), tmp_path_factory.mktemp("kinds")
    cells, employment = random.integers(0, CELLS, RECORDS), random.integers(0, 3000, RECORDS)
    naics, county = np.divmod(cells, len(COUNTIES))
    microdata = pa.table(
        {
            "establishment_id": [f"E{i}" for i in range(RECORDS)],
            "naics": np.array(NAICS)[naics],
            "county": np.array(COUNTIES)[county],
            "employment": employment,
            "payroll": employment,
        }
    )
    queries = [
        {"name": name, "by": ["naics6", "county"], "mechanism": spec}
        | ({"count": "records"} if name in COUNTED else {"sum": "employment"})
        for name, spec in SPECS.items()
    ]
    plan = write_world(folder, microdata, naics=NAICS, counties=COUNTIES, queries=queries, budget=[])
    published = submit(Place(plan, folder))
    values = {name: pq.read_table(published.tables[name]["path"])["value"].to_numpy() for name in SPECS}
    counts, sums = (np.bincount(cells, weights=w, minlength=CELLS).astype(float) for w in (None, employment))
    return {name: counts if name in COUNTED else sums for name in SPECS}, values


def noise_in_steps(name: str, truth: Floats, values: Floats) -> NDArray[np.int64]:
    if name not in NOISY:
        return values.astype(np.int64) - truth.astype(np.int64)
    m = build(SPECS[name], Fraction(1))
    return np.rint((NOISY[name](values) - TRUE[name](truth)) / float(m.lattice_step)).astype(np.int64)


def test_every_kind_is_released() -> None:
    assert {spec["kind"] for spec in SPECS.values()} == set(CATALOGUE)


@pytest.mark.parametrize("name", sorted(SPECS.keys() - {"groupwise_noisy"}))
def test_released_values_less_the_truth_fit_the_noise(released: Figures, name: str) -> None:
    truth, value = (each[name] for each in released)
    noise = noise_of(build(SPECS[name], Fraction(1)))
    drawn = noise_in_steps(name, truth, value)
    assert np.count_nonzero(truth) > RECORDS / 2
    ends = tail_bins(noise)
    assert noise_fit(drawn, noise, ends) > level(1)
    assert noise_fit(drawn, replace(noise, scale=noise.scale * OFF), ends) < level(1)  # type: ignore[type-var]
    assert noise_fit(noise_in_steps(name, np.roll(truth, 1), value), noise, ends) < level(1)  # another truth


def test_counts_with_noise_on_noise_fit_their_mixture(released: Figures) -> None:
    truth, value = (each["groupwise_noisy"] for each in released)
    one = value[truth == 1]
    assert len(one) > 0.9 * RECORDS
    ends = np.array([-12, -8, -5, -3, -2, -1, -0.5, -1e-9, 1e-9, 0.5, 1, 2, 3, 4, 6, 9, 13])
    counts = np.bincount(np.searchsorted(ends, one), minlength=len(ends) + 1)

    def p_value(x: int, r: float, sigma: str) -> float:
        return chi_square(counts, np.diff([0.0, *ranks(ends, x, r, sigma), 1.0]))

    assert counts[8] == np.count_nonzero(one == 0)  # the noise has taken the record away
    assert p_value(1, 0.5, "3") > level(1)
    assert p_value(2, 0.5, "3") < level(1)  # another truth
    assert p_value(1, 0.5, "3.2") < level(1)
    assert p_value(1, 0.6, "3") < level(1)


def test_the_release_wrote_every_cell(released: Figures) -> None:
    assert {len(values) for values in released[1].values()} == {CELLS}
