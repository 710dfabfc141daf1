"""The test of records left out: what it costs, how often it refuses by chance, and what it lets through."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import accumulate, product
from typing import Any

import numpy as np
import pytest

from pipeline.accounting.accountant import (
    SHARE,
    LeftOutTest,
    left_out_test_alone,
    with_left_out_test,
    without_left_out_test,
)
from pipeline.accounting.policy import PolicySum, QueryPolicy
from pipeline.accounting.references import Reference
from pipeline.base.errors import StateError
from tests.support.divergence import max_divergence, renyi
from tests.support.lattice import CTX, Noise, real
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.noise.keystream import CellBits, SecretKey
from udfs.numbers.arrays import Int64s
from udfs.records.statistics import Count, Sum

RARE = CTX.mpf("1e-6")
SHARES = [Fraction(text) for text in ("0", "0.01", "0.3", "0.9", "0.999")]


GAUSSIAN, LAPLACE = 2, 1  # powers of noise
NOISE, SMALL = Noise(GAUSSIAN, Fraction(100)), Noise(LAPLACE, Fraction(10))
THREE = [Noise(power, Fraction(3)) for power in (GAUSSIAN, LAPLACE)]


@cache
def law(noise: Noise) -> tuple[dict[int, Any], dict[int, Any]]:
    """P(Z = k) and P(Z > k) by k: Gaussian mass beyond 14σ, Laplace beyond 80σ is < 10⁻³⁴."""
    reach = (80 if noise.power == LAPLACE else 14) * int(noise.scale)
    mass = {k: noise.probability(k) for k in range(-reach, reach + 1)}
    above = [CTX.mpf(0), *accumulate(mass[k] for k in range(reach, -reach, -1))]
    return mass, dict(zip(range(reach, -reach - 1, -1), above, strict=True))


def laplace_test(share: Fraction = SHARE, **changes: Any) -> LeftOutTest:
    """The test of a release whose queries are all pure."""
    return replace(LeftOutTest.beside([mechanism("laplace")], share), **changes)


def mechanism(kind: str, **parameters: Any) -> Mechanism:
    return build({"kind": kind, "sigma": 50, **parameters}, Fraction(1))


def refused(test: LeftOutTest, kept: int, left_out: int, noise: Noise = NOISE) -> Any:
    """The exact probability that the test refuses: a sum over the noise of both counts, by its own decision."""
    total, (masses, above) = CTX.mpf(0), law(noise)
    for on_kept, mass in masses.items():
        low, high = min(masses) - 1, max(masses)  # the largest noise on the other count that passes
        while low < high:
            middle = -(-(low + high) // 2)
            low, high = (middle, high) if test.passes(kept + on_kept, left_out + middle) else (low, middle - 1)
        total += mass * above.get(low, 1)
    return total


@pytest.mark.parametrize("share", SHARES)
def test_a_share_that_is_kept_is_refused_less_than_once_in_a_million(share: Fraction) -> None:
    """At the share itself, where refusals by chance are most likely."""
    whole = 1_000_000
    left_out = share * whole
    assert refused(LeftOutTest(share), int(whole - left_out), int(left_out)) < RARE


def test_chance_refuses_as_often_as_the_document_says() -> None:
    assert refused(LeftOutTest(), 990_000, 10_000) == pytest.approx(5.8e-8, rel=0.02)
    assert CTX.exp(-(CTX.mpf("5.3") ** 2) / 2) < RARE  # for every share and scale: sub-Gaussian tails


@pytest.mark.parametrize("share", [*SHARES, Fraction("0.45"), Fraction("0.5")])
def test_laplace_noise_refuses_a_share_that_is_kept_less_than_once_in_a_million_too(share: Fraction) -> None:
    """At a scale of 10, for the multiple goes for every scale; the twin has the Gaussian multiple."""
    left_out = share * 1_000_000
    counts = int(1_000_000 - left_out), int(left_out)
    assert refused(laplace_test(share, sigma=Fraction(10)), *counts, SMALL) < RARE
    twin = laplace_test(share, sigma=Fraction(10), multiple=Fraction("5.3"))
    assert refused(twin, *counts, SMALL) > RARE


def test_laplace_chance_refuses_as_often_as_the_document_says() -> None:
    assert refused(laplace_test(sigma=Fraction(10)), 990_000, 10_000, SMALL) == pytest.approx(4.2e-7, rel=0.1)
    assert CTX.exp(-14) < RARE


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


def divergence(order: float, shifts: tuple[int, ...], noise: Noise) -> Any:
    """D_α of independent discrete noises shifted by whole numbers."""
    return sum(renyi(noise, shift, Fraction(order)) for shift in shifts)


def moves_one_count(n: int) -> list[tuple[int, int]]:
    """How n records together change (kept, left out)."""
    return [(k, n - k) for k in range(n + 1)]


def moves_the_whole_too(n: int) -> list[tuple[int, int]]:
    """A broken twin: counts of left out and of all, in which a record left out is twice."""
    return [(n, left_out) for left_out in range(n + 1)]


def closed_form(n: int, noise: Noise) -> Any:
    """What n records lose in one count: n²/(2σ²), or x − (s/sinh s)·(1 − e^(−x)) with x = n/σ and s = 1/σ."""
    s = 1 / real(noise.scale)
    x = n * s
    return x - s / CTX.sinh(s) * (1 - CTX.exp(-x)) if noise.power == LAPLACE else x**2 / 2


def losses_hold(moves: Callable[[int], list[tuple[int, int]]], noise: Noise) -> bool:
    test = replace(laplace_test() if noise.power == LAPLACE else LeftOutTest(), sigma=noise.scale)
    policy = with_left_out_test(PolicySum((), (frozenset(),)), test)
    for n, order in product((1, 2, 5), (1.5, 2.0, 8.0)):
        stated = policy.loss_at(Reference.of([{}] * n))
        assert CTX.mpf("-1e-38") < real(stated) - closed_form(n, noise) < CTX.mpf("1e-11")
        if any(divergence(order, shifts, noise) > order * float(stated) * (1 + 1e-9) for shifts in moves(n)):
            return False
    return True


@pytest.mark.parametrize("noise", THREE)
def test_records_lose_no_more_than_is_stated_however_they_are_counted(noise: Noise) -> None:
    assert losses_hold(moves_one_count, noise)
    assert not losses_hold(moves_the_whole_too, noise)


def largest_ratio(shifts: tuple[int, ...], noise: Noise) -> Any:
    """The max divergence of independent noises."""
    return sum(max_divergence(noise, shift) for shift in shifts)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_pure_loss_is_the_largest_ratio_however_records_are_counted(n: int) -> None:
    noise = THREE[1]
    policy = with_left_out_test(PolicySum((), (frozenset(),)), laplace_test(sigma=Fraction(3)))
    stated = policy.pure_loss_at(Reference.of([{}] * n))
    assert stated == Fraction(n, 3)
    assert all(largest_ratio(shifts, noise) <= float(stated) * (1 + 1e-12) for shifts in moves_one_count(n))
    assert largest_ratio((n, 0), noise) == pytest.approx(float(stated))
    assert max(largest_ratio(shifts, noise) for shifts in moves_the_whole_too(n)) > float(stated) * 1.5
    assert with_left_out_test(PolicySum((), ()), LeftOutTest()).queries[0].mechanism.pure_loss_at(Fraction(n)) is None


def hockey_stick(shifts: tuple[int, ...], noise: Noise, epsilon: float) -> float:
    """The least δ of (ε, δ) for independent noises, over all pairs of near outputs."""
    laws = []
    for shift in shifts:
        k = np.arange(-12 * int(noise.scale), 12 * int(noise.scale) + shift + 1)
        mass = np.exp([[float(noise.log_weight(int(i) - m)) for i in k] for m in (0, shift)])
        laws.append(mass / mass.sum(axis=1, keepdims=True))
    p, q = (np.multiply.outer(laws[0][side], laws[1][side]) for side in (0, 1))
    return float(np.maximum(p - np.exp(epsilon) * q, 0).sum())


def test_two_counts_are_told_apart_no_better_than_one() -> None:
    """Every test of an attacker's: δ(ε) of (k, l) is at most that of (n, 0) at all ε; (n, n) would be above."""
    noise = THREE[1]
    for n, epsilon in product((2, 5), np.linspace(0, 2, 9)):
        one = hockey_stick((n, 0), noise, epsilon) + 1e-5  # the masses that are cut off
        assert all(hockey_stick(shifts, noise, epsilon) <= one for shifts in moves_one_count(n))
        assert hockey_stick((n, n), noise, 0.0) > hockey_stick((n, 0), noise, 0.0) + 0.02


def far_from_laplace(drawn: Int64s, scale: int = 100) -> bool:
    """Whether draws are farther from discrete Laplace noise than chance is but once in 10⁹ (Massart's DKW bound)."""
    values, counts = np.unique(drawn, return_counts=True)
    q = np.exp(-1 / scale)
    stated = np.where(values < 0, q ** (-values.astype(float)), 1 + q - q ** (values + 1.0)) / (1 + q)  # P(Z ≤ k)
    apart = np.abs(np.cumsum(counts) / len(drawn) - stated).max()
    return bool(apart > np.sqrt(np.log(2e9) / (2 * len(drawn))))


def test_the_laplace_noise_is_of_its_law_and_drawn_by_key_and_count() -> None:
    test, key, count = laplace_test(), SecretKey(bytes(range(32))), 60_000

    def drawn(noise: Mechanism) -> Int64s:
        bits = CellBits(key=key, query=0, cells=np.arange(count, dtype=np.uint64))
        return noise.release(np.zeros(count, dtype=np.int64), bits, Fraction(1, 2)).value

    noise = drawn(test.mechanism)
    assert test.draw(1000, 30, key) == (1000 + noise[0], 30 + noise[1])
    assert not far_from_laplace(noise)
    assert abs(np.corrcoef(noise.reshape(-1, 2).T)[0, 1]) < 6 / (count / 2) ** 0.5
    assert far_from_laplace(drawn(mechanism("laplace", sigma=90)))
    assert far_from_laplace(drawn(mechanism("gaussian", sigma=141, policy="paper")))


def test_the_noise_of_the_two_counts_is_independent_and_of_its_scale() -> None:
    test, keys = LeftOutTest(), [SecretKey(i.to_bytes(32, "big")) for i in range(2000)]
    drawn = np.array([test.draw(1000, 30, key) for key in keys], dtype=float)
    assert list(drawn.mean(axis=0)) == pytest.approx([1000, 30], abs=5 * 100 / 2000**0.5)
    assert list(drawn.std(axis=0)) == pytest.approx([100, 100], rel=5 * (2 * 2000) ** -0.5)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 5 / 2000**0.5
    assert test.draw(1000, 30, keys[3]) == tuple(drawn[3])


def test_a_policy_takes_the_test_and_gives_it_back() -> None:
    queries = (
        QueryPolicy("establishments", Count(), mechanism("gaussian", sigma=2)),
        QueryPolicy("employment", Sum("employment"), mechanism("gaussian")),
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


PURE = [mechanism("laplace"), mechanism("log", a=1, noise="laplace", sigma=1, estimator="median")]


@pytest.mark.parametrize(
    ("beside", "noise"), [([], "gaussian"), ([mechanism("gaussian")], "gaussian"), (PURE, "laplace")]
)
def test_the_noise_is_laplace_where_all_queries_are_pure(beside: list[Mechanism], noise: str) -> None:
    mechanisms = [*PURE, mechanism("log", a=1, sigma=1), *beside] if noise == "gaussian" else beside
    test = LeftOutTest.beside(mechanisms)
    assert (test.noise, test.pure, test.mechanism.kind) == (noise, noise == "laplace", noise)
    assert LeftOutTest.from_json(test.to_json()) == test
    assert test.to_json().get("noise") == (None if noise == "gaussian" else noise)  # as older versions wrote it
    policy = PolicySum(tuple(QueryPolicy(str(i), Count(), each) for i, each in enumerate(mechanisms)), (frozenset(),))
    assert with_left_out_test(policy).queries[-1].mechanism == test.mechanism


def test_a_later_versions_noise_is_not_taken_for_another() -> None:
    with pytest.raises(StateError, match="the noise cauchy is unknown"):
        LeftOutTest.from_json(LeftOutTest().to_json() | {"noise": "cauchy"})
