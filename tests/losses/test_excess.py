"""How far above the true loss each kind's stated one may be: against divergences of the noise by sums of their own."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.support.divergence import renyi
from tests.support.kinds import REGISTRY, three_a_kind
from tests.support.lattice import CTX, LatticeNoise, real
from tests.support.mechanisms import KINDS, ONE, numbers
from tests.support.stable import Stable
from tests.support.tight import order_at
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build

REACH = 1 << 15
FLAT: dict[str, Any] = {"steps": [0, 10, 20], "log_weights": [0, -5e-6, -2e-5]}  # noise a million steps wide
LOWEST = 1e-3  # the first place: the order is this squared above 1
NEAR = 1e-5  # relative, of the best of the orders tried to the supremum


def divergence(noise: LatticeNoise, shift: int, place: float) -> float:
    """D_α/α."""
    order = order_at(place)
    if not isinstance(noise, Stable):
        return float(renyi(noise, shift, order) / real(order))
    e, x = float(order) - 1, np.arange(-REACH, (shift + 1) // 2, dtype=np.float64)
    here, there = noise.log_weights(np.abs(x)), noise.log_weights(np.abs(x - shift))
    sums = np.exp(here) @ (np.expm1(e * (here - there)) * -np.expm1((1 + e) * (there - here)))
    return float(np.log1p(float(sums) / float(noise.normaliser)) / e / float(order))


def true_loss(noise: LatticeNoise, shift: int, pure: float) -> float:
    """sup D_α/α over α > 1, from below but for NEAR: D_α ≤ `pure`, so orders end where pure/α is below the best."""
    best, place, at = divergence(noise, shift, LOWEST), LOWEST, 0.25
    while at < 30 and pure > best * float(order_at(at)):
        best, place, at = *max((best, place), (divergence(noise, shift, at), at)), at + 0.25
    for finer in (0.05, 0.01, 0.002):
        around = (place + i * finer for i in range(-4, 5) if place + i * finer >= LOWEST)
        best, place = max((divergence(noise, shift, near), near) for near in around)
    return best


def shift_of(m: Mechanism, spec: dict[str, Any], influence: int) -> int:
    """How many steps of the lattice a record of this influence moves what the noise is added to, at the total 0."""
    step = real(m.lattice_step)
    if m.kind == "root":
        root = 1 / CTX.mpf(spec["k"])
        places = [CTX.nint(real(Fraction(spec["a"] + total)) ** root / step) for total in (0, influence)]
    elif m.kind in ("log", "groupwise_log"):
        places = [CTX.nint(CTX.log(real(Fraction(spec["a"] + total))) / step) for total in (0, influence)]
    else:
        return int(Fraction(influence) / m.lattice_step)
    return int(places[1] - places[0])


def specs() -> list[dict[str, Any]]:
    """Every kind's example under each of its policies, on each lattice, and with each noise."""
    found: list[dict[str, Any]] = [{"kind": "designed", "weights": FLAT, "policy": "tight"}]
    for kind in KINDS:
        parameters = CATALOGUE[kind].parameters()
        words = [parameters[name].choices if name in parameters else ("",) for name in ("policy", "lattice", "noise")]
        for given in [(p, lattice, n) for p in words[0] for lattice in words[1] for n in words[2]]:
            chosen = {name: word for name, word in zip(("policy", "lattice", "noise"), given, strict=True) if word}
            found.append({"kind": kind, **REGISTRY[kind].example, **chosen})
    return found


# What groupwise_noisy draws after its first noise: tests/mechanisms/test_groupwise_noisy.py.
@pytest.mark.parametrize(
    "spec",
    three_a_kind(specs(), lambda spec: spec["kind"]),
    ids=lambda spec: "-".join(v for v in spec.values() if isinstance(v, str)),
)
def test_a_stated_loss_is_above_the_true_one_by_no_more_than_is_said(spec: dict[str, Any]) -> None:
    m = build(spec, ONE)
    number = {name: getattr(m, name) for name in numbers(m.kind)}
    noise = REGISTRY[m.kind].noise(number, spec, m.lattice_step)
    for influence in (1, 12):
        shift = shift_of(m, spec, influence)
        # without a pure loss the noise is Gaussian: D_α/α is largest as α → 1
        true = true_loss(noise, shift, float(m.pure_loss_at(Fraction(influence)) or 0))
        stated, excess = float(m.loss_at(Fraction(influence))), m.excess_at(Fraction(influence))
        assert excess is not None
        assert true * (1 - NEAR) <= stated <= true * (1 + excess) * (1 + NEAR)
        if excess > 20 * NEAR:
            assert stated > true * (1 + excess / 20)  # the twin: a twentieth of it would be too little
        assert excess < 0.012 or spec.get("policy") == "paper" or stated < 1e-6
