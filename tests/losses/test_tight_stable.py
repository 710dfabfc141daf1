"""Tight losses of symmetric stable noise: above sums over outputs and near them; and what lacks a part of the proof."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.support.families import weights_of
from tests.support.lattice import CTX
from tests.support.stable import Stable
from tests.support.tight import COARSE, FINE, divergence, falls_somewhere, order_at
from udfs.losses import tight as loss
from udfs.losses.curve import TightCurve, tight_curve
from udfs.losses.nodes import StableNodes, stable_nodes
from udfs.losses.stable_policy import bends_of
from udfs.losses.tight import pure_above, renyi_curve, tight_loss
from udfs.mechanisms.catalogue import build

REACH = 1 << 15  # what lies beyond adds to a sum from below
ROUNDING = 1e-10  # far above that of the sums in doubles
CLOSE = 1.004  # promised is 1.01
CAUCHY, MIDDLE, LIGHT = (
    Stable(Fraction(alpha), Fraction(scale)) for alpha, scale in (("1", 20), ("1.5", 3), ("1.9", 5))
)
NOISES = [CAUCHY, MIDDLE, LIGHT, Stable(Fraction("1.05"), Fraction("0.4")), Stable(Fraction("1.99"), Fraction(4))]


def at_least(noise: Stable, shift: int) -> float:
    """A lower bound of sup D_α/α, near it: Σ p·(e^{εL} − 1)(1 − e^{−(1 + ε)L}) over x < shift/2, every term ≥ 0."""
    x = np.arange(-REACH, (shift + 1) // 2, dtype=np.float64)
    here, there = noise.log_weights(np.abs(x)), noise.log_weights(np.abs(x - shift))
    p, ratio = np.exp(here) / float(noise.normaliser), here - there

    def quotient(place: float) -> float:
        excess = float(order_at(place)) - 1
        terms = p * np.expm1(excess * ratio) * -np.expm1(-(1 + excess) * ratio)
        return float(np.log1p(np.sum(terms) * (1 - ROUNDING)) / excess / (1 + excess))

    best, place, i = quotient(1e-3), 0.0, 1
    while float(order_at(i / COARSE)) <= min(500 / ratio.max(), ratio.max() / best):
        best, place, i = *max((best, place), (quotient(i / COARSE), i / COARSE)), i + 1
    near = (place + j / (COARSE * FINE) for j in range(-FINE, FINE + 1, 4))
    return max([best, *(quotient(at) for at in near if at > 0)])


def wrong(claimed: float, noise: Stable, shift: int) -> str | None:
    known = at_least(noise, shift)
    return "below" if not claimed >= known else None if claimed <= CLOSE * known else "above"


def tight(noise: Stable, shift: int) -> float:
    """As `tight_loss`, but never remembered."""
    return tight_loss.__wrapped__(weights_of(noise), shift)


@pytest.mark.parametrize("noise", NOISES)
def test_losses_are_above_sums_over_outputs_and_near_them(noise: Stable) -> None:
    for shift in (1, 2, 7, 40, 1000):
        assert wrong(tight(noise, shift), noise, shift) is None
        pure = pure_above(weights_of(noise), shift)
        assert tight(noise, shift) <= pure * np.tanh(pure / 2) * (1 + 1.1e-6)


@pytest.mark.parametrize("noise", [CAUCHY, MIDDLE])
def test_divergences_are_above_sums_in_high_precision(noise: Stable) -> None:
    given = [1.001, 2.0, 20.0]
    for order, bound in zip(given, renyi_curve(weights_of(noise), 4, np.array(given)), strict=True):
        exactly = divergence(noise, 4, CTX.mpf(order), 600)  # short of it by what lies beyond: |L| < 0.03 there
        assert exactly <= CTX.mpf(float(bound))
    higher = divergence(noise, 4, CTX.mpf(20), 600)
    assert CTX.mpf(float(bound)) <= higher * 1.005
    assert CTX.mpf(float(bound)) * 0.99 < higher  # a bound smaller by a hundredth would be wrong


def _cut(found: StableNodes) -> StableNodes:
    """Without what lies beyond four scales."""
    last = int(np.searchsorted(found.k, 4 * float(found.weights.scale)))
    near, far = (np.where(np.arange(len(found.near)) < last, part, 0.0) for part in (found.near, found.far))
    return replace(found, near=near, far=far, tail=0.0)


def _at_far_ends(found: StableNodes) -> StableNodes:
    """Each block's mass and log-ratio at its far end, nothing raised: no chord."""
    norm = found.near[0] / np.exp(found.w[0])
    flat = np.zeros_like(found.far)
    return replace(
        found, near=flat, far=np.diff(found.k) * np.exp(found.w[1:]) * norm, second=flat, third=flat, allowance=flat
    )


class _Outer:
    """Without the places between the two totals."""

    def __init__(self, found: StableNodes) -> None:
        self.found = found

    def ratios(self, steps: Any) -> Any:
        mass, ratios, rest = self.found.ratios(steps)
        return mass[:, : len(self.found.k)], ratios[:, : len(self.found.k)], rest


BROKEN: dict[str, tuple[Any, Stable, int]] = {
    "tail": (_cut, MIDDLE, 3),
    "chords": (_at_far_ends, CAUCHY, 40),
    "places between": (_Outer, LIGHT, 40),
    "normaliser": (lambda found: replace(found, near=found.near * 0.99, far=found.far * 0.99), MIDDLE, 7),
}


@pytest.mark.parametrize("part", BROKEN)
def test_a_bound_that_lacks_a_part_of_its_proof_is_seen(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    change, noise, shift = BROKEN[part]
    assert wrong(tight(noise, shift), noise, shift) is None
    monkeypatch.setattr(loss, "stable_nodes", lambda weights: change(stable_nodes(weights)))
    assert wrong(tight(noise, shift), noise, shift) == "below"


@pytest.mark.parametrize("noise", [CAUCHY, Stable(Fraction("1.8"), Fraction(1000))])
def test_losses_never_fall(noise: Stable) -> None:
    for steps in (range(1, 60), range(10**6, 10**6 + 30), [3**i for i in range(1, 40)]):
        assert not falls_somewhere(lambda step: tight(noise, step), list(steps))


def test_a_curve_is_above_every_loss_and_one_whose_knots_are_one_too_far_is_not() -> None:
    curve = tight_curve(weights_of(MIDDLE))
    late = TightCurve(tuple(step + 1 for step in curve.steps), curve.rho)
    for shift in (2, 9, 30):
        assert float(curve.at(shift)) >= at_least(MIDDLE, shift) > float(late.at(shift))


@pytest.mark.parametrize("alpha", ["1", "1.2", "1.99"])
def test_bounds_of_derivatives_hold_where_differences_see_them(alpha: str) -> None:
    bends, scale = bends_of(Fraction(alpha)), 16
    w = Stable(Fraction(alpha), Fraction(scale)).log_weights(np.arange(25.0 * scale))
    for order in (1, 2, 3):
        steep = np.abs(np.diff(w, order)) * scale**order  # a derivative somewhere between k and k + order
        bounds = bends.bound(order, np.arange(len(steep)) / scale)
        assert np.all(steep <= bounds * (1 + 1e-6))
        assert not np.all(steep <= bounds * 0.5)


def test_the_default_policy_is_the_tight_one() -> None:
    given = {"kind": "symmetric_stable", "alpha": "1.75", "gamma": "15.2"}
    stated, paper = build(given, Fraction(1)), build(given | {"policy": "paper"}, Fraction(1))
    assert stated.describe()["policy"] == "tight"
    assert stated.by_paper() == paper
    # the ratio that sums show at the median size of generated establishments, 4: 3.17
    assert float(paper.loss_at(Fraction(4)) / stated.loss_at(Fraction(4))) == pytest.approx(3.17, abs=0.03)
    assert np.all(stated.loss(np.arange(200.0)) <= paper.loss(np.arange(200.0)))
