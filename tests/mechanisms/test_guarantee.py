"""The guarantee itself: exact probabilities of neighbouring totals stay within the policy, over all outputs.

Nothing is sampled here. Rényi divergences of seven orders, both directions, are summed over every integer (the ends
bounded, tests/support/divergence.py), for noise whose probabilities the tables are shown to hold. Each check also
meets mechanisms that break their promise a little, and must say so. A new kind joins by its entry in the
registry (tests/support/kinds.py), without which the first test fails.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product
from typing import Any

import pytest

from tests.support.bits import acceptance, bucket_of
from tests.support.divergence import (
    clamped,
    max_divergence_of,
    renyi,
    renyi_heavy,
    renyi_laplace,
    renyi_of,
    renyi_poisson,
    renyi_summed,
)
from tests.support.guarantee import (
    CASES,
    ORDERS,
    PARAMETERS,
    ROUNDING,
    Neighbours,
    finite,
    is_pure,
    named,
    neighbours,
    noise_of,
    pure_violations,
    three,
    violations,
)
from tests.support.heavy import GeneralizedGaussian
from tests.support.lattice import CTX, LatticeNoise, Noise, real
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.mechanisms.transformed_kinds import Log, Root
from udfs.noise.lattice import REACH, WORD, LatticeTable
from udfs.numbers.exact import exact

ROUNDED = [m for m in CASES if not m.additive and m.lattice_step != m.step]


def test_every_kind_is_checked_with_several_parameters() -> None:
    assert set(PARAMETERS) == set(CATALOGUE)
    assert all(len(sets) >= 5 for sets in PARAMETERS.values())
    for kind, sets in PARAMETERS.items():  # and with every word that it knows
        for name, parameter in CATALOGUE[kind].parameters().items():
            words = [given.get(name, parameter.default) for given, _ in sets]
            assert all(choice in words for choice in parameter.choices)


def wrong_places(table: LatticeTable, noise: LatticeNoise) -> list[int]:
    """The distances whose outcome does not have the probability F·exp(w(k))/2⁶⁴ in a try; REACH: that or farther."""
    far = [int(noise.scale * z) for z in (0.1, 1, 2, 5)]
    found = []
    for k in {*range(30), *(k for k in far if k < REACH), *(1 << bits for bits in range(5, 64, 9)), REACH}:
        bucket = bucket_of(table, k)
        low, high = table.acceptance(bucket, k, 256)
        per_place = Fraction(table.masses[bucket], WORD * table.lengths[bucket])
        weight = noise.weight_from(REACH) if k == REACH else noise.weight(k)
        expected, digits = real(table.scale) / WORD * weight, 70 if k == REACH else 200
        inside = real(low * per_place) * (1 - CTX.ldexp(1, -digits)) <= expected
        inside &= expected <= real(high * per_place) * (1 + CTX.ldexp(1, -digits))
        close = high - low <= Fraction(1, 1 << (48 if k == REACH else 100)) * high or high < Fraction(1, 1 << 900)
        if not (inside and close and acceptance(table, noise, bucket, table.starts[bucket]) <= 1):
            found.append(k)
    return sorted(found)


@pytest.mark.parametrize("m", three(), ids=named)
def test_the_sampled_table_holds_the_noise_that_is_checked(m: Mechanism) -> None:
    noise = noise_of(m)
    assert wrong_places(m.lattice_noise.table, noise) == []
    assert wrong_places(m.lattice_noise.table, replace(noise, scale=noise.scale * Fraction(10**9 + 1, 10**9)))  # type: ignore[type-var]


class Stopping:
    """Log-weights of a table that ends: nothing from REACH on."""

    def __init__(self, m: Mechanism) -> None:
        self.high = m.log_weights.high

    def tail(self, k: int, ctx: Any) -> tuple[Any, Any]:
        return ctx.mpf(0), ctx.mpf(0)


@pytest.mark.parametrize("kind", ["generalized_gaussian", "exponential_polylog"])
def test_a_table_that_stops_is_seen(kind: str) -> None:
    m: Any = min((m for m in CASES if m.kind == kind), key=lambda m: exact(m.describe()["p"]))  # the heaviest tail
    assert wrong_places(replace(m.lattice_noise.table, weights=Stopping(m)), noise_of(m)) == [REACH]
    near = finite({k: noise_of(m).probability(k) for k in range(-50, 51)})
    assert renyi_of({k + 1: mass for k, mass in near.items()}, near, Fraction(2)) == CTX.inf


@pytest.mark.parametrize("m", three(), ids=named)
def test_divergences_of_neighbouring_totals_stay_within_the_policy(m: Mechanism) -> None:
    pairs = neighbours(m)
    assert len({pair.shift for pair in pairs}) >= 6
    assert list(violations(noise_of(m), pairs, m.loss_at)) == []
    assert pure_violations(noise_of(m), pairs, m.pure_loss_at) == []
    assert [(p.shift, m.loss_at(p.influence), m.pure_loss_at(p.influence)) for p in pairs if not p.influence] == [
        (0, 0, 0)
    ]


@pytest.mark.parametrize("m", three(), ids=named)
def test_noise_smaller_by_a_twentieth_is_seen(m: Mechanism) -> None:
    noise = noise_of(m)
    less = replace(noise, scale=noise.scale * Fraction(95, 100))  # type: ignore[type-var]
    found = [p for p in neighbours(m) if p.shift]
    if is_pure(m):
        seen = pure_violations(less, found, m.pure_loss_at)
        every = m.additive and m.kind != "designed"  # whose losses need not rise at every shift
        assert len(seen) == 2 * len(found) if every else seen
    else:
        assert any(violations(less, found, m.loss_at))


@pytest.mark.parametrize("m", three(), ids=named)
def test_a_policy_for_an_influence_smaller_by_a_step_is_seen(m: Mechanism) -> None:
    noise, found = noise_of(m), [p for p in neighbours(m) if p.shift and p.influence > m.step]
    if is_pure(m):
        seen = pure_violations(noise, found, lambda x: m.pure_loss_at(x - m.step))
        assert len(seen) == 2 * len(found) if m.additive else seen
    else:
        assert any(violations(noise, found, lambda x: m.loss_at(x - m.step)))


def test_the_laplace_policy_is_as_tight_as_promised() -> None:
    # At one step tanh(P/2)·P is the Kullback–Leibler divergence itself, which the orders reach as they fall to 1.
    one = [Neighbours(Fraction(1), 1)]
    for spec in ({"kind": "laplace", "sigma": 1}, {"kind": "generalized_gaussian", "p": 1, "sigma": 1}):
        m = build(spec, Fraction(1))
        assert any(violations(noise_of(m), one, lambda x, m=m: m.loss_at(x) * Fraction(999, 1000)))  # type: ignore[misc]
        assert pure_violations(noise_of(m), one, lambda x: x * Fraction(999_999, 1_000_000))


@pytest.mark.parametrize("m", [m for m in ROUNDED if m.kind.endswith("log") and m.lattice_step * m.a > 1], ids=named)
def test_the_log_policy_needs_its_rounding_step(m: Log) -> None:
    assert 0.4 < 1 / (float(m.a) * float(m.lattice_step)) < 0.6
    needs_its_step(m, lambda x: real(x / m.a))  # above ln(1 + Δ/a)


@pytest.mark.parametrize("m", [m for m in ROUNDED if m.kind == "root" and m.a > 10**15], ids=named)
def test_the_root_policy_needs_its_rounding_step(m: Root) -> None:
    needs_its_step(m, lambda x: real(x) / (2 * CTX.sqrt(real(m.a))))  # above √(Δ + a) − √a


def needs_its_step(m: Any, rise: Any) -> None:
    pairs = neighbours(m)
    assert [p.shift for p in pairs if p.influence == 1] == [1]  # from some totals; from others nothing moves
    assert list(violations(noise_of(m), pairs, m.loss_at)) == []
    bare = {p.influence: Fraction(float(rise(p.influence)) * (1 + 1e-15)) / m.sigma for p in pairs}
    if m.noise == "laplace":
        assert pure_violations(noise_of(m), pairs, lambda x: bare[x])
    else:
        assert any(violations(noise_of(m), pairs, lambda x: bare[x] ** 2 / 2))


@pytest.mark.parametrize("m", three(m for m in CASES if 0.1 < noise_of(m).scale < 5), ids=named)
@pytest.mark.parametrize(("low", "high"), [(-3, 5), (0, 12), (-40, 40)])
def test_saturation_costs_nothing(m: Mechanism, low: int, high: int) -> None:
    noise = noise_of(m)
    pairs = [p for p in neighbours(m) if 0 < p.shift <= 10][: 2 if high - low < 20 else 1]
    assert pairs
    for pair, at in product(pairs, (0, low, high)):
        here, there = clamped(noise, at, low, high), clamped(noise, at + pair.shift, low, high)
        assert abs(sum(here.values()) - 1) < CTX.mpf(10) ** -25
        for one, other, order in product((here, there), (here, there), ORDERS[::2]):
            if one is not other:
                limit = real(order * m.loss_at(pair.influence))
                assert renyi_of(one, other, order) <= min(limit, renyi(noise, pair.shift, order)) * ROUNDING
        pure = m.pure_loss_at(pair.influence)
        if pure is not None:
            assert max(max_divergence_of(here, there), max_divergence_of(there, here)) <= real(pure) * ROUNDING


def test_a_check_of_one_direction_would_miss_one_sided_noise() -> None:
    """Geometric noise on 0, 1, 2, … alone: bounded from the larger total to the smaller, infinite the other way."""
    scale, top, shift = 2, 60, 3
    weights = [CTX.exp(CTX.mpf(-k) / scale) for k in range(top)]

    def total(q: int) -> dict[int, Any]:
        held = {q + k: w for k, w in enumerate(weights[: top - 1 - q])}
        held[top - 1] = CTX.exp(CTX.mpf(-(top - 1 - q)) / scale) / (1 - CTX.exp(CTX.mpf(-1) / scale))
        return finite(held)

    smaller, larger, promised = total(0), total(shift), CTX.mpf(shift) / scale
    assert all(renyi_of(larger, smaller, order) <= real(order) * promised for order in ORDERS)
    assert max_divergence_of(larger, smaller) <= promised * ROUNDING
    assert renyi_of(smaller, larger, Fraction(2)) == CTX.inf
    assert max_divergence_of(smaller, larger) == CTX.inf


def test_sums_over_all_outputs_agree_with_poisson_summation() -> None:
    for scale, shift, order in product(("0.3", "1", "3.7"), (1, 2, 7), ORDERS):
        noise = Noise(2, Fraction(scale))
        assert abs(renyi_summed(noise, shift, order) / renyi_poisson(noise, shift, order) - 1) < CTX.mpf(10) ** -40


def test_sums_over_all_outputs_agree_for_laplace_noise() -> None:
    for scale, shift, order in product(("0.3", "1", "2.7"), (1, -7), ORDERS):
        closed = renyi_laplace(Noise(1, Fraction(scale)), shift, order)
        assert abs(renyi_summed(Noise(1, Fraction(scale)), shift, order) / closed - 1) < CTX.mpf(10) ** -40
        low, high = renyi_heavy(GeneralizedGaussian(Fraction(1), Fraction(scale)), shift, order)
        assert low <= closed <= high
        assert high - low < 1e-11 * low
    divergences = [renyi(Noise(1, Fraction(2)), 3, order) for order in ORDERS]
    assert all(a < b <= CTX.mpf(3) / 2 for a, b in pairwise(divergences))  # rising to the max divergence Δ/s
