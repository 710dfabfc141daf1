"""Lower bounds of losses: never above a divergence, and near the upper ones; how far above the true ones stated are."""

from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.divergence import renyi_heavy
from tests.support.families import weights_of
from tests.support.heavy import GeneralizedGaussian, HeavyNoise
from tests.support.lattice import CTX, real
from tests.support.mechanisms import ONE
from tests.support.stable import Stable
from tests.support.tight import HALF, SQUARE, some_noise
from udfs.losses import curve
from udfs.losses.curve import loss_below
from udfs.losses.tight import best_order, pure_above, tight_loss
from udfs.mechanisms.catalogue import build
from udfs.noise.weights import LaplaceWeights

REACH = 1 << 15
STABLE = Stable(Fraction("1.5"), Fraction(200))


def at_most(noise: HeavyNoise, shift: int, excess: float) -> float:
    """An upper bound of D_α/α at α = 1 + ε, by sums over outputs that owe nothing to the product."""
    if not isinstance(noise, Stable):
        return renyi_heavy(noise, shift, Fraction(1 + excess))[1] / (1 + excess)
    x = np.arange(-REACH, (shift + 1) // 2, dtype=np.float64)
    here, there = noise.log_weights(np.abs(x)), noise.log_weights(np.abs(x - shift))
    terms = np.expm1(excess * (here - there)) * -np.expm1((1 + excess) * (there - here))
    beyond = float(noise.from_on(REACH + 1)) * terms[0]  # L falls there
    return float(np.log1p(np.exp(here) @ terms / float(noise.normaliser) + beyond)) / excess / (1 + excess) * (1 + 1e-9)


@pytest.mark.parametrize(
    "noise", [HALF, SQUARE, STABLE, GeneralizedGaussian(Fraction(1), Fraction(30)), some_noise(Random(3))]
)
def test_losses_from_below_are_below_a_divergence_and_near_the_stated_ones(noise: HeavyNoise) -> None:
    weights: Any = weights_of(noise)
    for shift in (1, 30, 700):
        found = loss_below.__wrapped__(weights, shift)
        most = at_most(noise, shift, best_order(weights, shift, pure_above(weights, shift)))
        assert found <= most < found * 1.01  # the twin: a hundredth more would be wrong
        assert found <= tight_loss(weights, shift) <= found * 1.01


def test_masses_at_the_nearer_ends_of_blocks_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    noise, weights = HALF, weights_of(HALF)
    grid = np.array([0.0, 1.0, *np.round(1.3 ** np.arange(1, 80) + 1)])
    monkeypatch.setattr(curve, "GRID", np.unique(grid))
    least = curve._distances.__wrapped__(weights)
    monkeypatch.setattr(curve, "_distances", lambda weights: least)
    most = at_most(noise, 700, best_order(weights, 700, pure_above(weights, 700)))
    assert loss_below.__wrapped__(weights, 700) < most
    k, density = least
    monkeypatch.setattr(curve, "_distances", lambda weights: (k, np.append(density[:1], density[:-1])))
    assert loss_below.__wrapped__(weights, 700) > most


def test_where_no_bound_is_known_it_is_nothing() -> None:
    other: Any = object()
    assert loss_below(weights_of(HALF), 0) == loss_below.__wrapped__(other, 1) == 0
    assert loss_below(weights_of(HALF), 1 << 62) == 0
    assert loss_below(LaplaceWeights(scale=Fraction(3)), 1 << 62) > 0


def stated(kind: str, **given: Any) -> Any:
    return build({"kind": kind, **given}, ONE)


def test_a_rounding_step_shows_where_it_is_large_beside_the_shift() -> None:
    m = stated("log", a=10**9, sigma="0.5", noise="laplace")
    steps = [int(CTX.nint(CTX.log(10**9 + total) / real(m.lattice_step))) for total in (0, 3)]
    exact = real(m.lattice_step) * (steps[1] - steps[0])
    widest = CTX.log1p(real(Fraction(3, 10**9))) + real(m.lattice_step)
    assert m.excess_at(Fraction(3)) == pytest.approx(float((widest / exact) ** 2 - 1), rel=0.01)
    assert m.excess_at(Fraction(10**9)) < 1e-8
