"""Attack: exact Rényi divergences of random mechanisms, in extended precision, against every loss that is stated.

The noise is summed by the tests' own sums (tests/support/divergence.py), at random orders and in both directions, for
random influences and totals, for a record that comes or goes and for one whose value changes.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np

from tests.support.cases import cases, sizes
from tests.support.divergence import renyi
from tests.support.guarantee import ROUNDING, adds, centres, noise_of
from tests.support.kinds import REGISTRY, random_table
from tests.support.lattice import real
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.arrays import LARGEST
from udfs.numbers.exact import exact


def mechanism(random: Random) -> Mechanism:
    """One of the registry's sets, of every policy and lattice, its scale wider or narrower; or a random table."""
    kind = random.choice(sorted(REGISTRY))
    given, step = random.choice(REGISTRY[kind].guarantee)
    name = CATALOGUE[kind].scale_parameter
    if name == "weights":
        table: dict[str, Any] = {}
        random_table(table, random)
        return build({"kind": kind, **given, **table}, exact(step))
    while True:
        factor = Fraction(random.randint(40, 250), 100)
        with suppress(ParameterError):  # some kinds have a widest scale
            return build({"kind": kind, **given, name: exact(given[name]) * factor}, exact(step))


def order(random: Random) -> Fraction:
    return 1 + Fraction(random.choice([1, 3, 7])) * Fraction(10) ** random.randint(-4, 2)


def excess(m: Mechanism, noise: Any, shift: int, a: Fraction, stated: Any) -> str:
    """Return where the divergence of the shift, in some direction, is above what is stated; else nothing."""
    for sign in (1, -1):
        found = renyi(noise, sign * shift, a) if shift else real(Fraction(0))
        if found > stated * ROUNDING:
            return f"{m.describe()} / {m.step}: shift {sign * shift}, order {a}: {float(found)} > {float(stated)}"
    return ""


def of_presence(m: Mechanism, noise: Any, random: Random, promised: Callable[[Fraction, Fraction], Any]) -> list[str]:
    """Return excesses of records of random influences on random totals."""
    found = []
    largest = 300 if adds(m) else 1 << random.choice([3, 10, 30, 55])
    for _ in range(3):
        d, a = random.randint(1, largest), order(random)
        totals = np.array([random.randrange(1 << random.randrange(1, 62)) for _ in range(4)], dtype=np.int64)
        totals = np.concatenate([totals[totals <= LARGEST - d], [0]])
        shift = int((centres(m, totals + d) - centres(m, totals)).max())
        found.append(excess(m, noise, shift, a, promised(d * m.step, a)))
    return [text for text in found if text]


def of_change(m: Mechanism, random: Random, less: Fraction = Fraction(1)) -> str:
    """Return an excess of a record that changes from one random value to another, others being in its cell or not."""
    low, d, a = random.randint(0, 200), random.randint(1, 100), order(random)
    others = random.choice([0, 0, random.randrange(1 << 40)])
    shift = np.diff(centres(m, np.array([low + others, low + d + others], dtype=np.int64)))
    rho, _ = m.change_losses_at(low * m.step, (low + d) * m.step)
    return excess(m, noise_of(m), int(shift[0]), a, real(a * rho * less))


def curve(m: Mechanism) -> Callable[[Fraction, Fraction], Any]:
    """What is stated at one order: the curve, and never more than the order times the loss."""

    def stated(influence: Fraction, a: Fraction) -> Any:
        at_order = m.renyi_at(influence, np.array([float(a)]))
        return real(min(exact(float(at_order[0])), a * m.loss_at(influence)))

    return stated


@sizes(few=15, many=600)
def test_no_divergence_is_above_what_is_stated(count: int) -> None:
    for case, random in cases(count):
        m = mechanism(random)
        assert of_presence(m, noise_of(m), random, curve(m)) == [], case
        assert not of_change(m, random), case


def test_losses_and_noise_that_are_too_small_are_seen() -> None:
    """The broken twins: noise narrower by a tenth, and losses that forget a tenth."""
    narrow = less = changed = 0
    for _, random in cases(40):
        m = mechanism(random)
        if m.kind not in ("gaussian", "root", "groupwise_log", "unit_splitting"):
            continue
        noise = noise_of(m)
        narrow += bool(of_presence(m, replace(noise, scale=noise.scale * Fraction(9, 10)), random, curve(m)))
        less += bool(of_presence(m, noise, random, lambda x, a, m=m: real(a * m.loss_at(x) * Fraction(9, 10))))
        changed += bool(of_change(m, random, Fraction(9, 10)))
    assert min(narrow, less, changed) > 0
