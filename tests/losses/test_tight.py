"""Tight losses: above the supremum over all orders, and near it; each part of the proof, and what lacks one."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.divergence import renyi_laplace
from tests.support.families import E, weights_of
from tests.support.heavy import GeneralizedGaussian, HeavyNoise, Polylog
from tests.support.lattice import CTX, Noise, real
from tests.support.tight import HALF, SQUARE, divergence, falls_somewhere, largest, some_noise, wrong_bound
from udfs.losses import nodes
from udfs.losses import tight as loss
from udfs.losses import tight as orders
from udfs.losses.nodes import CONCAVE_FROM, CONCAVITY, GRID, Nodes, nodes_of
from udfs.losses.tight import MOST_STEPS, pure_above, renyi_curve, tight_loss
from udfs.noise.weights import GaussianWeights, LaplaceWeights

WIDE = GeneralizedGaussian(Fraction(1, 2), Fraction(1000))
PEAKS = Polylog(Fraction(2), Fraction("0.8"), E, Fraction(3))
SOME = [some_noise(Random(seed)) for seed in range(8)]
MATH_9 = [
    *((HALF, 1, {1: 0.01601, 2: 0.03167, 10: 0.19997, 50: 1.29643, 1000: 12.1613}),),
    *((SQUARE, 1, {10: 0.11561, 50: 1.57279, 200: 7.09575}),),
    *((HALF, finer, {2: rho}) for finer, rho in ((2, 0.0260), (4, 0.0224), (50, 0.0180))),
    *((WIDE, 1, {1: 3.0e-5}),),
]


def tight(noise: HeavyNoise, shift: int) -> float:
    """As `tight_loss`, but never remembered."""
    return tight_loss.__wrapped__(weights_of(noise), shift)


@pytest.mark.parametrize(("noise", "finer", "losses"), MATH_9)
def test_losses_of_math_section_9(noise: HeavyNoise, finer: int, losses: dict[int, float]) -> None:
    fine = replace(noise, scale=noise.scale * finer)  # type: ignore[type-var]
    for shift, rho in losses.items():
        assert tight(fine, shift * finer) == pytest.approx(rho, rel=4e-3)


@pytest.mark.parametrize(
    ("noise", "shift"),
    [
        *((HALF, shift) for shift in (1, 10, 1000)),
        *((SQUARE, shift) for shift in (1, 50, 200)),
        (GeneralizedGaussian(Fraction(1, 2), Fraction(100)), 1),  # the best order is near 116
        (GeneralizedGaussian(Fraction(1), Fraction("3.7")), 7),
        (Polylog(Fraction(2), Fraction(2), Fraction("2.7"), Fraction("0.3")), 3),  # a is below e
        *((noise, shift) for i, noise in enumerate(SOME) for shift in ((1, 300) if i % 2 else (20,))),
    ],
)
def test_losses_are_above_the_supremum_and_near_it(noise: HeavyNoise, shift: int) -> None:
    assert wrong_bound(tight(noise, shift), noise, shift) is None
    paper = pure_above(weights_of(noise), shift)
    assert tight(noise, shift) <= paper * np.tanh(paper / 2) * (1 + 1.1e-6)  # rounded up to seven digits


@pytest.mark.parametrize(
    ("noise", "shift", "reach"),
    [(HALF, 10, 1500), (Polylog(Fraction(3), Fraction(3), Fraction(8), Fraction("1.5")), 5, 500)],
)
def test_divergences_are_above_sums_in_high_precision(noise: HeavyNoise, shift: int, reach: int) -> None:
    given = [1.001, 1.5, 4.0, 20.0]
    found = renyi_curve(weights_of(noise), shift, np.array(given))
    for order, bound in zip(given, found, strict=True):
        exactly = divergence(noise, shift, CTX.mpf(order), reach)
        assert exactly <= CTX.mpf(float(bound)) <= exactly * 1.003
        assert CTX.mpf(float(bound)) * 0.99 < exactly  # a bound smaller by a hundredth would be wrong


def test_orders_that_stop_at_a_hundred_are_seen() -> None:
    stopped = 8.7e-7  # docs/tight.md
    assert largest(WIDE, 1, highest=100.0) < stopped < largest(WIDE, 1) / 30
    assert wrong_bound(stopped, WIDE, 1) == "below"
    assert wrong_bound(tight(WIDE, 1), WIDE, 1) is None


def broken(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Leave out one part of the proof."""

    def altered(change: Any) -> Any:
        return lambda weights: change(nodes_of.__wrapped__(weights))

    if part == "tail":
        monkeypatch.setattr(nodes, "TAIL", 0.02)
        monkeypatch.setattr(loss, "nodes_of", altered(lambda n: replace(n, mass=np.append(n.mass[:-1], 0.0))))
    elif part == "chords of places":
        monkeypatch.setattr(loss, "nodes_of", altered(_at_far_ends))
    elif part == "chords of orders":
        monkeypatch.setattr(orders, "FINENESS", 1)
        monkeypatch.setattr(orders, "interval_bounds", _at_ends)
    elif part == "places between":
        monkeypatch.setattr(Nodes, "ratios", _without_between(Nodes.ratios))
    elif part == "normaliser":
        monkeypatch.setattr(loss, "nodes_of", altered(lambda n: replace(n, mass=n.mass * 0.99)))


def _at_far_ends(found: Nodes) -> Nodes:
    """Each block's mass at its far end: a sum from below."""
    density = np.exp(found.weights.fast(found.k))
    counts = np.append(1.0, np.diff(found.k))
    norm = found.mass[0] / density[0]
    return replace(found, mass=counts * density * norm)


def _at_ends(*given: Any) -> Any:
    first, last = orders.excess_order(given[0]), orders.excess_order(given[1])
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.nan_to_num(given[2] / (first * (1 + first)))
    return np.maximum(left, given[3] / (last * (1 + last)))


def _without_between(ratios: Any) -> Any:
    def outer_only(self: Nodes, steps: Any) -> Any:
        mass, found, rest = ratios(self, steps)
        return mass[:, : len(self.k)], found[:, : len(self.k)], rest

    return outer_only


@pytest.mark.parametrize(
    ("part", "noise", "shift"),
    [
        ("tail", GeneralizedGaussian(Fraction(1), Fraction(50)), 3),
        ("chords of places", SQUARE, 10),
        ("chords of orders", GeneralizedGaussian(Fraction(1, 2), Fraction(100)), 1),
        ("places between", HALF, 50),
        ("normaliser", HALF, 10),
    ],
)
def test_a_bound_that_lacks_a_part_of_its_proof_is_seen(
    monkeypatch: pytest.MonkeyPatch, part: str, noise: HeavyNoise, shift: int
) -> None:
    assert wrong_bound(tight(noise, shift), noise, shift) is None
    broken(monkeypatch, part)
    assert wrong_bound(tight(noise, shift), noise, shift) == "below"


def test_losses_never_fall() -> None:
    random, noises = Random(3), [*SOME[:5], HALF, SQUARE, WIDE, PEAKS]
    for noise in noises:
        first = random.choice([1, 30, 1000, 10**6])
        near = list(range(first, first + 40))
        far = sorted(random.randrange(1, 1 << random.randint(1, 60)) for _ in range(40))
        assert not falls_somewhere(lambda step, noise=noise: tight(noise, step), near)  # type: ignore[misc]
        assert not falls_somewhere(lambda step, noise=noise: tight(noise, step), far)  # type: ignore[misc]
    assert falls_somewhere(lambda step: float(-step), [1, 2])


@pytest.mark.parametrize("noise", [HALF, WIDE, SQUARE, PEAKS, *SOME])
def test_falls_of_log_weights_do_not_cancel(noise: HeavyNoise) -> None:
    weights: Any = weights_of(noise)
    random = Random(4)
    places = [(random.randrange(1 << random.randint(1, 62)), random.randrange(1, 1 << 40)) for _ in range(60)]
    k, steps = (np.array(column, dtype=np.float64) for column in zip(*places, strict=True))
    differences = weights.fast(k) - weights.fast(k + steps)
    errors = []
    for found in (weights.fall(k, steps), differences):
        exactly = [noise.log_weight(int(i)) - noise.log_weight(int(i) + int(n)) for i, n in zip(k, steps, strict=True)]
        errors.append(max(abs(CTX.mpf(float(f)) / e - 1) for f, e in zip(found, exactly, strict=True)))
    assert errors[0] <= 4 * weights.fast_error
    assert errors[1] > 4 * weights.fast_error  # a plain difference would not do


@pytest.mark.parametrize("noise", [SQUARE, PEAKS, Polylog(Fraction(5, 2), Fraction(3), Fraction("4.5"), Fraction(100))])
@pytest.mark.parametrize("share", [1.0, 0.05])
def test_bends_bound_second_differences(noise: Polylog, share: float) -> None:
    weights: Any = weights_of(noise)
    seen = []
    for k, steps in product((1, 2, 10, 100, 1000), (1, 10, 1000)):

        def ratio(j: int, steps: int = steps) -> Any:
            return noise.log_weight(j) - noise.log_weight(j + steps)

        bound = share * float(weights.bend(np.array([float(k)]), np.array([float(steps)]))[0])
        farther = (k, k + 1, 2 * k, 5 * k)
        seen.append(all(2 * ratio(j + 1) - ratio(j) - ratio(j + 2) <= bound for j in farther))
    assert all(seen) if share == 1 else not all(seen)


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_terms_are_convex_but_for_their_allowance(share: float) -> None:
    # Ψ″ = ε²·e^{εL} − e^{−L} + α²·e^{−αL} ≥ −ε·e^{−L}·(L − 2)⁺ ≥ −ε·e^{−3}
    worst = CTX.mpf(0)
    for excess, ratio in product((1e-9, 1e-3, 0.01, 0.1, 0.5, 2, 30), np.linspace(0.01, 20, 400)):
        e, x = CTX.mpf(excess), CTX.mpf(float(ratio))
        second = e**2 * CTX.exp(e * x) - CTX.exp(-x) + (1 + e) ** 2 * CTX.exp(-(1 + e) * x)
        assert second >= 0 or x > CONCAVE_FROM
        worst = max(worst, -second / e)
    assert (worst <= share * CONCAVITY) == (share == 1)


def test_sums_over_nodes_are_above_sums_over_places() -> None:
    weights = weights_of(HALF)
    found = nodes_of(weights)  # type: ignore[arg-type]
    assert np.all(np.diff(GRID) > 0)
    assert float(found.mass.sum() * 2 - found.mass[0]) == pytest.approx(1, abs=2e-3)
    assert float(found.mass.sum() * 2 - found.mass[0]) >= 1
    assert found.k[-1] < 1e5  # all but a millionth of the mass is nearer


@pytest.mark.parametrize("terms", [44, 16])
def test_sums_of_many_orders_in_one_pass_are_those_of_each(monkeypatch: pytest.MonkeyPatch, terms: int) -> None:
    monkeypatch.setattr(loss, "TERMS", terms)
    monkeypatch.setattr(loss, "BEYOND", 1.05 if terms == 44 else 1.0)  # the twin: too few terms, nothing in their place
    weights: Any = weights_of(WIDE)
    steps = [1, 2, 40]
    moments = loss.LogMoments.of(weights, steps, np.array([pure_above(weights, n) for n in steps]))
    found = moments.series()
    assert found.shape[1] > 100
    assert float(moments.ratios.max() * orders.excess_order(np.array([found.shape[1]]))[0]) > loss.REACH
    too_low = []
    for row, place in product(range(3), (1, 40, found.shape[1] - 1)):
        e = CTX.mpf(float(orders.excess_order(np.array([place]))[0]))
        exactly = CTX.log1p(e * moments.rest[row] + CTX.fdot(_terms(moments, row, e)))
        assert float(found[row, place]) <= min(float(exactly), float(e) * moments.pure[row]) * (1 + 1e-12)
        too_low.append(float(found[row, place]) < min(float(exactly), float(e) * moments.pure[row]) * (1 - 1e-12))
    assert any(too_low) == (terms != 44)


def _terms(moments: Any, row: int, e: Any) -> list[tuple[Any, Any]]:
    ratios = [CTX.mpf(ratio) for ratio in moments.ratios[row].tolist()]
    terms = [CTX.expm1(e * ratio) * -CTX.expm1(-(1 + e) * ratio) for ratio in ratios]
    return list(zip(map(CTX.mpf, moments.mass[row].tolist()), terms, strict=True))


@pytest.mark.parametrize("scale", ["0.05", "1", "3.7", "1000"])
def test_the_laplace_loss_is_the_divergence_of_lowest_order(scale: str) -> None:
    noise = Noise(1, Fraction(scale))
    for shift in (1, 2, 3, 10, 1000):
        claimed = CTX.mpf(tight_loss(LaplaceWeights(scale=noise.scale), shift))
        quotients = [renyi_laplace(noise, shift, order) / real(order) for order in laplace_orders()]
        assert quotients == sorted(quotients, reverse=True)  # D_α/α falls
        assert quotients[0] <= claimed <= quotients[0] * (1 + CTX.mpf(10) ** -8)


def laplace_orders() -> list[Fraction]:
    return [1 + Fraction(2) ** i for i in range(-40, 12)]


def test_gaussian_and_no_shifts_and_other_families() -> None:
    assert tight_loss(GaussianWeights(scale=Fraction(2)), 3) == 9 / 8
    assert tight_loss(weights_of(HALF), 0) == 0
    assert renyi_curve(weights_of(HALF), 0, np.array([2.0])).tolist() == [0.0]
    for steps in (-1, MOST_STEPS + 1):
        with pytest.raises(ValueError, match="steps"):
            tight_loss(weights_of(HALF), steps)
        with pytest.raises(ValueError, match="steps"):
            renyi_curve(weights_of(HALF), steps, np.array([2.0]))
    for bad in ([1.0], [2.0, float("nan")]):
        with pytest.raises(ValueError, match="orders"):
            renyi_curve(weights_of(HALF), 1, np.array(bad))
    other: Any = object()
    for asked in (lambda: tight_loss.__wrapped__(other, 1), lambda: renyi_curve(other, 1, np.array([2.0]))):
        with pytest.raises(TypeError, match="object"):
            asked()


@pytest.mark.parametrize("scale", ["1e-30", "1e-3"])
def test_narrow_noise_loses_nearly_its_pure_loss(scale: str) -> None:
    weights = weights_of(GeneralizedGaussian(Fraction(1, 2), Fraction(scale)))
    pure = pure_above(weights, 3)
    assert 0.99 * pure < tight_loss(weights, 3) <= pure * (1 + 1.1e-6)
