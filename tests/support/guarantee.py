"""What the guarantee is checked on: parameters of every kind of mechanism, the noise that it states, neighbours."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import numpy as np

from tests.support.divergence import max_divergence, renyi
from tests.support.kinds import REGISTRY, three_a_kind
from tests.support.lattice import CTX, LatticeNoise, real
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.numbers.arrays import LARGEST
from udfs.numbers.exact import exact

ORDERS = [exact(order) for order in ("1.0001", "1.5", "2", "4", "16", "64", "256")]
ROUNDING = 1 + CTX.mpf(10) ** -12
Policy = Callable[[Fraction], Fraction]

PARAMETERS = {kind: known.guarantee for kind, known in REGISTRY.items()}
CASES = [build({"kind": kind, **given}, exact(step)) for kind, sets in PARAMETERS.items() for given, step in sets]


def three(cases: Iterable[Mechanism] = CASES) -> list[Any]:
    """Three of each kind in every run of the tests, the rest in the drill."""
    return three_a_kind(cases, lambda m: m.kind)


def named(m: object) -> str:
    return f"{' '.join(f'{v}' for v in m.describe().values())} / {m.step}" if isinstance(m, Mechanism) else str(m)


def noise_of(m: Mechanism) -> LatticeNoise:
    """The lattice noise that a mechanism's documentation states."""
    values = m.describe()
    number = {name: exact(value) for name, value in values.items() if isinstance(value, int | float)}
    return REGISTRY[m.kind].noise(number, values, m.lattice_step)


def is_pure(m: Mechanism) -> bool:
    """Whether the pure loss is the promise that is tight; tanh(P/2)·P is loose for Rényi divergences."""
    return m.pure_loss_at(m.step) is not None


@dataclass(frozen=True)
class Neighbours:
    """Two databases that differ in one record: its influence, and how far apart their noise is centred, in steps."""

    influence: Fraction
    shift: int


def neighbours(m: Mechanism) -> list[Neighbours]:
    """Every influence of a few steps, and larger ones; of transformations the widest shift that rounded totals show."""
    if adds(m):
        scale = int(3 * noise_of(m).scale / m.lattice_noise.fineness)
        scale = min(1000, scale) if is_pure(m) else scale
        steps = sorted({0, 1, 2, 3, 4, 5, 8, 10, 11, scale + 1, 10 * scale + 7})
        return [Neighbours(d * m.step, d * m.lattice_noise.fineness) for d in steps]
    random = Random(15)
    influences = [1, 2, 3, 10, 500, *(random.randrange(1, 1 << bits) for bits in (15, 30, 45, 60, 62))]
    totals = [*range(200), *(random.randrange(1 << bits) for bits in range(8, 62) for _ in range(5))]
    found = [Neighbours(Fraction(0), 0)]
    for d in influences:
        smaller = np.array([q for q in totals if q + d <= LARGEST], dtype=np.int64)
        shifts = centres(m, smaller + d) - centres(m, smaller)
        assert int(shifts.min()) >= 0
        found.append(Neighbours(d * m.step, int(shifts.max())))
    return found


def adds(m: Mechanism) -> bool:
    """Whether the noise that protects is added to the total itself."""
    return m.additive or m.kind == "groupwise_noisy"


def centres(m: Any, totals: np.ndarray) -> np.ndarray:
    """Where the noise is centred, in lattice steps: the totals themselves, or what they are transformed to."""
    return totals * m.lattice_noise.fineness if adds(m) else m.on_lattice(totals)


def violations(noise: LatticeNoise, pairs: Iterable[Neighbours], policy: Policy) -> Iterator[str]:
    """Where a Rényi divergence of some order, in either direction, exceeds order × policy."""
    for pair, order, sign in product(pairs, ORDERS, (1, -1)):
        promised = real(order * policy(pair.influence))
        if pair.shift and not renyi(noise, sign * pair.shift, order) <= promised * ROUNDING:
            yield f"influence {pair.influence}, shift {sign * pair.shift}, order {order}"


def pure_violations(
    noise: LatticeNoise, pairs: Iterable[Neighbours], policy: Callable[[Fraction], Fraction | None]
) -> list[str]:
    """Where the max divergence, in either direction, exceeds the pure policy (None promises nothing)."""
    found = []
    for pair, sign in product(pairs, (1, -1)):
        promised = policy(pair.influence)
        limit = CTX.inf if promised is None else real(promised) * (1 + CTX.ldexp(1, -300))
        if max_divergence(noise, sign * pair.shift) > limit:
            found.append(f"influence {pair.influence}, shift {sign * pair.shift}")
    return found


def finite(noise: Mapping[int, Any]) -> dict[int, Any]:
    """The masses divided by their sum."""
    norm = CTX.fsum(noise.values())
    return {k: w / norm for k, w in noise.items()}
