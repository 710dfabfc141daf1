"""The guarantee itself: exact probabilities of neighbouring totals stay within the policy, over all outputs.

Nothing is sampled here. Rényi divergences of seven orders, both directions, are summed over every integer (the ends
bounded, tests/support/lattice.py), for noise whose probabilities the tables are shown to hold. Each check also meets
mechanisms that break their promise a little, and must say so.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.bits import Injected, acceptance, bucket_of, words_that_draw
from tests.support.lattice import (
    CTX,
    Noise,
    clamped,
    max_divergence,
    max_divergence_of,
    real,
    renyi,
    renyi_of,
    renyi_wide,
)
from udfs.exact import exact
from udfs.lattice import LARGEST, WORD
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.mechanisms.log import Log

ORDERS = [exact(order) for order in ("1.0001", "1.5", "2", "4", "16", "64", "256")]
ROUNDING = 1 + CTX.mpf(10) ** -12
Policy = Callable[[Fraction], Fraction]

# kind → parameter sets, each with its measure's step. A kind without an entry fails below.
PARAMETERS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "gaussian": [
        ({"sigma": 0.3}, "1"),
        ({"sigma": 1}, "1"),
        ({"sigma": 3.7}, "1"),
        ({"sigma": 0.05}, "0.01"),
        ({"sigma": "1e9"}, "1"),
    ],
    "laplace": [({"sigma": 0.2}, "1"), ({"sigma": 1}, "1"), ({"sigma": 3.7}, "1"), ({"sigma": 0.05}, "0.01")],
    "log": [
        ({"a": 1, "sigma": 0.1}, "1"),
        ({"a": 0.5, "sigma": 2}, "0.01"),
        ({"a": 1000, "sigma": 0.001}, "1"),
        ({"a": "17179869184", "sigma": "3.5e-10"}, "1"),  # σ is three lattice steps, one record is half a step
        ({"a": "1e-6", "sigma": 1}, "0.25"),
    ],
}
CASES = [
    (build({"kind": kind, **given}, exact(step)), kind) for kind, sets in PARAMETERS.items() for given, step in sets
]
MECHANISMS = [m for m, _ in CASES]


def named(m: object) -> str:
    return " ".join(f"{v}" for v in m.describe().values()) if isinstance(m, Mechanism) else str(m)


def test_every_kind_is_checked_with_several_parameters() -> None:
    assert set(PARAMETERS) == set(CATALOGUE)
    assert all(len(sets) >= 3 for sets in PARAMETERS.values())


def noise_of(m: Mechanism) -> Noise:
    """The lattice noise that a mechanism's documentation states."""
    sigma = exact(m.describe()["sigma"])  # type: ignore[arg-type]
    return Noise(1 if m.kind == "laplace" else 2, sigma / m.lattice_step)


@pytest.mark.parametrize("m", MECHANISMS, ids=named)
def test_the_sampled_table_holds_the_noise_that_is_checked(m: Mechanism) -> None:
    noise, table = noise_of(m), m.table
    far = [int(noise.scale * z) for z in (0.1, 1, 2, 5)]
    for k in {*range(30), *far}:
        bucket = bucket_of(table, k)
        low, high = table.acceptance(bucket, k, 256)
        per_place = Fraction(table.masses[bucket], WORD * table.lengths[bucket])
        expected = real(table.scale) / WORD * noise.weight(k)
        assert real(low * per_place) * (1 - CTX.ldexp(1, -200)) <= expected
        assert expected <= real(high * per_place) * (1 + CTX.ldexp(1, -200))
        assert high - low <= Fraction(1, 1 << 100) * high or high < Fraction(1, 1 << 900)
        assert acceptance(table, noise, bucket, table.starts[bucket]) <= 1


@dataclass(frozen=True)
class Neighbours:
    """Two databases that differ in one record: its influence, and how far apart their noise is centred, in steps."""

    influence: Fraction
    shift: int


def neighbours(m: Mechanism) -> list[Neighbours]:
    """Every influence of a few steps, and larger ones; of transformations the widest shift that rounded totals show."""
    if not isinstance(m, Log):
        scale = int(3 * noise_of(m).scale)
        return [Neighbours(d * m.step, d) for d in sorted({0, 1, 2, 3, 5, 8, scale + 1, 10 * scale + 7})]
    random = Random(15)
    influences = [1, 2, 3, 10, 500, *(random.randrange(1, 1 << bits) for bits in (15, 30, 45, 60, 62))]
    totals = [*range(200), *(random.randrange(1 << bits) for bits in range(8, 62) for _ in range(5))]
    found = [Neighbours(Fraction(0), 0)]
    for d in influences:
        smaller = np.array([q for q in totals if q + d <= LARGEST], dtype=np.int64)
        shifts = m.transformed(smaller + d) - m.transformed(smaller)
        assert int(shifts.min()) >= 0
        found.append(Neighbours(d * m.step, int(shifts.max())))
    return found


def divergence(noise: Noise, shift: int, order: Fraction) -> Any:
    if noise.scale > 100 or abs(shift) > 1000 * noise.scale:
        return renyi_wide(noise, shift, order)
    return renyi(noise, shift, order)


def violations(noise: Noise, pairs: Iterable[Neighbours], policy: Policy) -> list[str]:
    """Where a Rényi divergence of some order, in either direction, exceeds order × policy."""
    found = []
    for pair, order, sign in product(pairs, ORDERS, (1, -1)):
        promised = real(order * policy(pair.influence))
        if pair.shift and not divergence(noise, sign * pair.shift, order) <= promised * ROUNDING:
            found.append(f"influence {pair.influence}, shift {sign * pair.shift}, order {order}")
    return found


def pure_violations(
    noise: Noise, pairs: Iterable[Neighbours], policy: Callable[[Fraction], Fraction | None]
) -> list[str]:
    """Where the max divergence, in either direction, exceeds the pure policy (None promises nothing)."""
    found = []
    for pair, sign in product(pairs, (1, -1)):
        promised, reach = policy(pair.influence), 3 * abs(pair.shift) + 20
        if promised is not None and max_divergence(noise, sign * pair.shift, reach) > promised:
            found.append(f"influence {pair.influence}, shift {sign * pair.shift}")
    return found


@pytest.mark.parametrize("m", MECHANISMS, ids=named)
def test_divergences_of_neighbouring_totals_stay_within_the_policy(m: Mechanism) -> None:
    pairs = neighbours(m)
    assert len(pairs) >= 6
    assert violations(noise_of(m), pairs, m.loss_at) == []
    assert pure_violations(noise_of(m), pairs, m.pure_loss_at) == []
    for pair in pairs:
        if not pair.influence:
            assert pair.shift == 0 == m.loss_at(pair.influence) == m.pure_loss_at(pair.influence)


@pytest.mark.parametrize("m", MECHANISMS, ids=named)
def test_noise_smaller_by_a_twentieth_is_seen(m: Mechanism) -> None:
    noise = noise_of(m)
    less = Noise(noise.power, noise.scale * Fraction(95, 100))
    found = [p for p in neighbours(m) if p.shift]
    if m.kind == "laplace":  # tanh(P/2)·P is loose for Rényi divergences: the pure loss is the tight one
        assert len(pure_violations(less, found, m.pure_loss_at)) == 2 * len(found)
    else:
        assert violations(less, found, m.loss_at)


@pytest.mark.parametrize("m", MECHANISMS, ids=named)
def test_a_policy_for_an_influence_smaller_by_a_step_is_seen(m: Mechanism) -> None:
    found = [p for p in neighbours(m) if p.shift and p.influence > m.step]

    def late(influence: Fraction) -> Fraction:
        return m.loss_at(influence - m.step)

    if m.kind == "laplace":
        assert len(pure_violations(noise_of(m), found, lambda x: m.pure_loss_at(x - m.step))) == 2 * len(found)
    else:
        assert violations(noise_of(m), found, late)


def test_the_laplace_policy_is_as_tight_as_promised() -> None:
    # At one step tanh(P/2)·P is the Kullback–Leibler divergence itself, which the orders reach as they fall to 1.
    m = build({"kind": "laplace", "sigma": 1}, Fraction(1))
    one = [Neighbours(Fraction(1), 1)]
    assert violations(noise_of(m), one, lambda x: m.loss_at(x) * Fraction(999, 1000))
    assert pure_violations(noise_of(m), one, lambda x: x * Fraction(999_999, 1_000_000))


def test_the_log_policy_needs_its_rounding_step() -> None:
    m = CASES[-2][0]
    assert isinstance(m, Log)
    assert 0.4 < 1 / (float(m.a) * float(m.lattice_step)) < 0.6
    pairs = neighbours(m)
    assert [p.shift for p in pairs if p.influence == 1] == [1]  # from some totals; from others nothing moves
    assert violations(noise_of(m), pairs, m.loss_at) == []

    def without_the_step(influence: Fraction) -> Fraction:
        return (Fraction(float(influence / m.a)) ** 2) / (2 * m.sigma**2)  # above ln²(1 + Δ/a)/(2σ²)

    assert violations(noise_of(m), pairs, without_the_step)


@pytest.mark.parametrize("m", [m for m in MECHANISMS if noise_of(m).scale < 5], ids=named)
@pytest.mark.parametrize(("low", "high"), [(-3, 5), (0, 12), (-40, 40)])
def test_saturation_costs_nothing(m: Mechanism, low: int, high: int) -> None:
    noise = noise_of(m)
    pairs = [p for p in neighbours(m) if 0 < p.shift <= 10][:4]
    assert pairs
    for pair, at in product(pairs, (0, low, high)):
        here, there = clamped(noise, at, low, high), clamped(noise, at + pair.shift, low, high)
        assert abs(sum(here.values()) - 1) < CTX.mpf(10) ** -40
        for one, other, order in product((here, there), (here, there), ORDERS):
            if one is not other:
                limit = real(order * m.loss_at(pair.influence))
                assert renyi_of(one, other, order) <= min(limit, divergence(noise, pair.shift, order)) * ROUNDING
        pure = m.pure_loss_at(pair.influence)
        if pure is not None:
            assert max(max_divergence_of(here, there), max_divergence_of(there, here)) <= real(pure) * ROUNDING


@pytest.mark.parametrize("m", MECHANISMS, ids=named)
def test_what_is_released_depends_on_the_noisy_total_alone(m: Mechanism) -> None:
    """All columns are post-processing: two totals whose noise makes up the difference release the same bytes."""
    totals = np.array([0, 1, 2, 7, 11], dtype=np.int64)
    centres = m.transformed(totals) if isinstance(m, Log) else totals
    meeting = int(centres.max()) + 1
    words = [words_that_draw(m.table, meeting - int(centre)) for centre in centres]
    released = m.release(totals, Injected([words], lambda *_: 0), Fraction(19, 20))
    for column in (released.value, released.lower, released.upper, released.standard_error):
        assert len({value.tobytes() for value in column}) == 1


def test_a_check_of_one_direction_would_miss_one_sided_noise() -> None:
    """Geometric noise on 0, 1, 2, … alone: bounded from the larger total to the smaller, infinite the other way."""
    scale, top, shift = 2, 60, 3
    weights = [CTX.exp(CTX.mpf(-k) / scale) for k in range(top)]

    def total(q: int) -> dict[int, Any]:
        held = {q + k: w for k, w in enumerate(weights[: top - 1 - q])}
        held[top - 1] = CTX.exp(CTX.mpf(-(top - 1 - q)) / scale) / (1 - CTX.exp(CTX.mpf(-1) / scale))
        norm = CTX.fsum(held.values())
        return {k: w / norm for k, w in held.items()}

    smaller, larger, promised = total(0), total(shift), CTX.mpf(shift) / scale
    assert all(renyi_of(larger, smaller, order) <= real(order) * promised for order in ORDERS)
    assert max_divergence_of(larger, smaller) <= promised * ROUNDING
    assert renyi_of(smaller, larger, Fraction(2)) == CTX.inf
    assert max_divergence_of(smaller, larger) == CTX.inf


def test_sums_over_all_outputs_agree_with_poisson_summation() -> None:
    for scale, shift, order in product(("0.3", "1", "3.7"), (1, 2, 7), ORDERS):
        noise = Noise(2, Fraction(scale))
        assert abs(renyi(noise, shift, order) / renyi_wide(noise, shift, order) - 1) < CTX.mpf(10) ** -40
    divergences = [renyi(Noise(1, Fraction(2)), 3, order) for order in ORDERS]
    assert all(a < b <= CTX.mpf(3) / 2 for a, b in pairwise(divergences))  # rising to the max divergence Δ/s
