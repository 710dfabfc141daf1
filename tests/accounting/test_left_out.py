"""The test of records left out: what it costs, how often it refuses by chance, and what it lets through."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import product

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from pipeline.accounting.left_out import (
    LeftOutTest,
    left_out_test_alone,
    with_left_out_test,
    without_left_out_test,
)
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import Reference
from udfs.mechanisms.catalogue import build
from udfs.noise.keystream import SecretKey
from udfs.records.statistics import Count, Sum

RARE = mpf("1e-6")
SHARES = [Fraction(text) for text in ("0", "0.01", "0.3", "0.9", "0.999")]


@dataclass(frozen=True)
class Discrete:
    """The discrete Gaussian on the integers, and its tails, in 30 digits: mass beyond 14σ is below 10⁻⁴²."""

    sigma: int

    def __post_init__(self) -> None:
        with mpmath.workdps(30):
            reach = 14 * self.sigma
            weights = [mpmath.exp(-mpf(k * k) / (2 * self.sigma**2)) for k in range(-reach, reach + 1)]
            whole = mpmath.fsum(weights)
            mass = {k: w / whole for k, w in zip(range(-reach, reach + 1), weights, strict=True)}
            above, sums = mpf(0), {}
            for k in range(reach, -reach - 1, -1):
                sums[k] = above
                above += mass[k]
        object.__setattr__(self, "mass", mass)
        object.__setattr__(self, "above", sums)  # the probability of more than k
        object.__setattr__(self, "reach", reach)


NOISE = Discrete(100)


def refused(test: LeftOutTest, kept: int, left_out: int, noise: Discrete = NOISE) -> mpf:
    """The exact probability that the test refuses: a sum over the noise of both counts, by its own decision."""
    total = mpf(0)
    for on_kept, mass in noise.mass.items():
        low, high = -noise.reach - 1, noise.reach  # the largest noise on the other count that passes
        while low < high:
            middle = -(-(low + high) // 2)
            low, high = (middle, high) if test.passes(kept + on_kept, left_out + middle) else (low, middle - 1)
        total += mass * noise.above.get(low, mpf(1))
    return total


@pytest.mark.parametrize("share", SHARES)
def test_a_share_that_is_kept_is_refused_less_than_once_in_a_million(share: Fraction) -> None:
    """At the share itself, where refusals by chance are most likely."""
    whole = 1_000_000
    left_out = share * whole
    assert refused(LeftOutTest(share), int(whole - left_out), int(left_out)) < RARE


def test_chance_refuses_as_often_as_the_document_says() -> None:
    assert refused(LeftOutTest(), 990_000, 10_000) == pytest.approx(5.8e-8, rel=0.02)
    assert mpmath.exp(-(mpf("5.3") ** 2) / 2) < RARE  # for every share and scale: sub-Gaussian tails


@pytest.mark.parametrize("share", [Fraction(0), Fraction("0.3")])
def test_a_smaller_multiple_would_refuse_too_often(share: Fraction) -> None:
    twin = LeftOutTest(share, multiple=Fraction(4))
    assert refused(twin, int(1_000_000 * (1 - share)), int(1_000_000 * share)) > RARE


@pytest.mark.parametrize(
    ("kept", "left_out", "passes"),
    [
        (2, 0, True),
        (0, 2, True),  # a trial of two records, whatever becomes of them
        (0, 30, True),
        (20_010, 0, True),
        (1_000_000, 10_000, True),
        (0, 50_000, False),  # retired codes
        (16_106, 3_904, False),  # a state whose codes lost their zeros
        (98_600, 3_000, False),
    ],
)
def test_trials_pass_and_what_is_beyond_chance_does_not(kept: int, left_out: int, passes: bool) -> None:
    refusal = refused(LeftOutTest(), kept, left_out)
    assert refusal < RARE if passes else refusal > 1 - RARE


def divergence(order: float, shifts: tuple[int, ...], sigma: int) -> float:
    """D_α of independent discrete Gaussians shifted by whole numbers, by direct sums."""
    total = mpf(0)
    for shift in shifts:
        reach = range(-20 * sigma, 20 * sigma + 1)
        log = [(-mpf(k * k) / (2 * sigma**2), -mpf((k - shift) ** 2) / (2 * sigma**2)) for k in reach]
        whole = mpmath.fsum(mpmath.exp(p) for p, _ in log)
        total += mpmath.log(mpmath.fsum(mpmath.exp(order * p + (1 - order) * q) for p, q in log) / whole) / (order - 1)
    return float(total)


def moves_one_count(n: int) -> list[tuple[int, int]]:
    """How n records together change (kept, left out)."""
    return [(k, n - k) for k in range(n + 1)]


def moves_the_whole_too(n: int) -> list[tuple[int, int]]:
    """A broken twin: counts of left out and of all, in which a record left out is twice."""
    return [(n, left_out) for left_out in range(n + 1)]


def losses_hold(moves: Callable[[int], list[tuple[int, int]]], sigma: int = 3) -> bool:
    policy = with_left_out_test(PolicySum((), (frozenset(),)), LeftOutTest(sigma=Fraction(sigma)))
    for n, order in product((1, 2, 5), (1.5, 2.0, 8.0)):
        stated = policy.loss_at(Reference.of([{}] * n))
        assert stated == Fraction(n * n, 2 * sigma**2)
        if any(divergence(order, shifts, sigma) > order * float(stated) * (1 + 1e-9) for shifts in moves(n)):
            return False
    return True


def test_records_lose_no_more_than_is_stated_however_they_are_counted() -> None:
    assert losses_hold(moves_one_count)
    assert not losses_hold(moves_the_whole_too)


def test_the_noise_of_the_two_counts_is_independent_and_of_its_scale() -> None:
    test, keys = LeftOutTest(), [SecretKey(i.to_bytes(32, "big")) for i in range(2000)]
    drawn = np.array([test.draw(1000, 30, key) for key in keys], dtype=float)
    assert list(drawn.mean(axis=0)) == pytest.approx([1000, 30], abs=5 * 100 / 2000**0.5)
    assert list(drawn.std(axis=0)) == pytest.approx([100, 100], rel=5 * (2 * 2000) ** -0.5)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 5 / 2000**0.5
    assert test.draw(1000, 30, keys[3]) == tuple(drawn[3])


def test_a_policy_takes_the_test_and_gives_it_back() -> None:
    gaussian = partial(build, step=Fraction(1))
    queries = (
        QueryPolicy("establishments", Count(), gaussian({"kind": "gaussian", "sigma": 2, "policy": "paper"})),
        QueryPolicy("employment", Sum("employment"), gaussian({"kind": "gaussian", "sigma": 50, "policy": "paper"})),
    )
    plain = PolicySum(queries, (frozenset({0}), frozenset({1})))
    tested = with_left_out_test(plain)
    assert tested.query_sets == (frozenset({0, 2}), frozenset({1, 2}))
    assert without_left_out_test(tested) == plain
    assert PolicySum.from_json(tested.to_json()) == tested
    at = Reference.of({"employment": Fraction(10)})
    assert tested.loss_at(at) == plain.loss_at(at) + Fraction(1, 20_000)
    assert left_out_test_alone(tested).loss_at(at) == Fraction(1, 20_000)
    assert LeftOutTest.from_json(LeftOutTest(Fraction("0.3")).to_json()) == LeftOutTest(Fraction("0.3"))
