"""Tight losses from the mathematics alone: sup D_α/α by sums over the lattice, and what checks a bound of it."""

from collections.abc import Callable
from fractions import Fraction
from math import cosh, inf
from random import Random
from typing import Any

from tests.support.divergence import renyi_heavy
from tests.support.families import E
from tests.support.heavy import GeneralizedGaussian, HeavyNoise, Polylog
from tests.support.lattice import CTX

COARSE, FINE = 5, 40  # orders α = cosh²(i/COARSE), and near the best of them cosh²(i/(COARSE·FINE))
LOWEST = Fraction(1_000_001, 1_000_000)
CLOSE = 1.005  # promised is 1.01
HALF = GeneralizedGaussian(Fraction(1, 2), Fraction(5))
SQUARE = Polylog(Fraction(2), Fraction("1.5"), E, Fraction(20))


def order_at(place: float) -> Fraction:
    return Fraction(cosh(place) ** 2)


def largest(noise: HeavyNoise, shift: int, highest: float = inf) -> float:
    """A lower bound of sup D_α/α over orders α up to `highest`, near the supremum: the best of many orders."""

    def quotient(order: Fraction) -> float:
        return renyi_heavy(noise, shift, order)[0] / float(order)

    pure = float(-noise.log_weight(shift))
    best, place, i = quotient(LOWEST), 0.0, 1
    while order_at(i / COARSE) <= min(highest, pure / best):
        found = quotient(order_at(i / COARSE))
        best, place = max((best, place), (found, i / COARSE))
        i += 1
    near = (order_at(place + j / (COARSE * FINE)) for j in range(-FINE, FINE + 1, 4) if place + j / (COARSE * FINE) > 0)
    return max([best, *(quotient(order) for order in near if order <= highest)])


def wrong_bound(claimed: float, noise: HeavyNoise, shift: int) -> str | None:
    """What is wrong with a bound that is claimed of sup D_α/α: that it is below, or far above."""
    known = largest(noise, shift)
    if not claimed >= known:
        return "below"
    return None if claimed <= CLOSE * known else "above"


def divergence(noise: HeavyNoise, shift: int, order: Any, reach: int) -> Any:
    """A lower bound of D_α, term by term over |k| ≤ reach in high precision: Σ p^α·q^{1−α} lacks its ends."""
    logs = [noise.log_weight(k) for k in range(reach + shift + 1)]
    sums = CTX.fsum(
        CTX.exp(order * logs[abs(k)] + (1 - order) * logs[abs(k - shift)]) for k in range(-reach, reach + 1)
    )
    return CTX.log(sums / noise.normaliser) / (order - 1)


def some_noise(random: Random) -> HeavyNoise:
    """A family's parameters at random, of noise some steps to a thousand wide."""
    scale = Fraction(f"{10 ** random.uniform(-0.7, 3):.4f}")
    if random.random() < 0.5:
        return GeneralizedGaussian(Fraction(f"{random.uniform(0.4, 1):.3f}"), scale)
    p = random.choice([1.0, 2.0, random.uniform(1, 4)])
    a = Fraction(f"{CTX.exp(p - 1) * random.choice([1, random.uniform(1, 10)]) + 1e-4:.4f}" if p > 1 else "1.5")
    return Polylog(Fraction(f"{p:.3f}"), Fraction(f"{random.uniform(3 if p == 1 else 1, 8):.3f}"), a + 1, scale)


def falls_somewhere(losses: Callable[[int], float], steps: list[int]) -> bool:
    """Whether a loss falls as the influence rises."""
    found = [losses(step) for step in steps]
    return found != sorted(found)
