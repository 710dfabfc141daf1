"""What the guarantee is checked on: parameters of every kind of mechanism, the noise that it states, neighbours."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import numpy as np

from tests.support.divergence import max_divergence, renyi
from tests.support.heavy import GeneralizedGaussian, Polylog
from tests.support.lattice import CTX, LatticeNoise, Noise, real
from tests.support.stable import Stable
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import build
from udfs.noise.lattice import LARGEST
from udfs.numbers.exact import exact

ORDERS = [exact(order) for order in ("1.0001", "1.5", "2", "4", "16", "64", "256")]
ROUNDING = 1 + CTX.mpf(10) ** -12
Policy = Callable[[Fraction], Fraction]
E = "2.718281828459045"

# kind → parameter sets, each with its measure's step. A kind without one fails in tests/mechanisms/test_guarantee.py.
PARAMETERS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "gaussian": [
        ({"sigma": 0.3}, "1"),
        ({"sigma": 1}, "1"),
        ({"sigma": 3.7}, "1"),
        ({"sigma": 0.05}, "0.01"),
        ({"sigma": "1e9"}, "1"),
    ],
    "laplace": [
        ({"sigma": 0.2}, "1"),
        ({"sigma": 1}, "1"),
        ({"sigma": 3.7}, "1"),
        ({"sigma": 0.05, "policy": "paper", "lattice": "fine"}, "0.01"),
        ({"sigma": 2.5, "policy": "tight", "lattice": "fine"}, "1"),
        ({"sigma": 2.5, "policy": "tight", "lattice": "measure"}, "0.5"),
        ({"sigma": "1e9", "policy": "paper", "lattice": "measure"}, "1"),
    ],
    "generalized_gaussian": [
        ({"p": 0.05, "sigma": "1e-20"}, "1"),
        ({"p": 0.5, "sigma": 5}, "1"),
        ({"p": 0.5, "sigma": 5, "policy": "paper", "lattice": "fine"}, "1"),
        ({"p": 0.5, "sigma": 5, "policy": "tight", "lattice": "fine"}, "1"),
        ({"p": 0.8, "sigma": 40, "policy": "tight", "lattice": "measure"}, "1"),
        ({"p": 0.5, "sigma": 1000, "policy": "paper"}, "1"),
        ({"p": 1, "sigma": 0.7}, "0.25"),
        ({"p": 0.9, "sigma": 0.003}, "0.01"),
        (
            {"p": 0.3, "sigma": "1e9", "policy": "paper", "lattice": "measure"},
            "1",
        ),  # wider than the sums of tests.support.divergence reach
    ],
    "exponential_polylog": [
        ({"p": 1, "d": 1.05, "a": 1, "sigma": 3, "policy": "paper"}, "1"),
        ({"p": 1, "d": 3.5, "a": 2, "sigma": 100}, "1"),
        ({"p": 2, "d": 0.3, "a": E, "sigma": 0.02}, "0.01"),
        ({"p": 2, "d": 1.5, "a": E, "sigma": 20}, "1"),
        ({"p": 2, "d": 50, "a": E, "sigma": 2}, "0.25"),
        ({"p": 2, "d": 50, "a": E, "sigma": 2, "policy": "paper", "lattice": "fine"}, "0.25"),
        ({"p": 2, "d": 1.5, "a": E, "sigma": 20, "policy": "tight", "lattice": "fine"}, "1"),
        ({"p": 1.5, "d": 2, "a": 1.7, "sigma": 0.5}, "1"),
        ({"p": 1.5, "d": 2, "a": 1.7, "sigma": 0.5, "policy": "paper"}, "1"),
        ({"p": 3, "d": 0.5, "a": 7.4, "sigma": 10}, "1"),
    ],
    "symmetric_stable": [
        ({"alpha": 1, "gamma": 3}, "1"),
        ({"alpha": 1, "gamma": 0.05}, "0.01"),
        ({"alpha": 1.5, "gamma": 0.5}, "0.25"),
        ({"alpha": 1.9, "gamma": 6}, "1"),
        ({"alpha": 1.99, "gamma": 4}, "1"),
    ],
    "root": [
        ({"k": 1, "a": 5, "sigma": 3.7}, "1"),
        ({"k": 1, "a": 0, "sigma": 0.02, "noise": "laplace", "estimator": "median"}, "0.01"),
        ({"k": 2, "a": 0, "sigma": 2}, "1"),
        ({"k": 2, "a": 100, "sigma": 0.3, "noise": "laplace"}, "0.25"),
        ({"k": 3, "a": 0.5, "sigma": 0.2, "noise": "laplace", "estimator": "median"}, "0.01"),
        ({"k": 4, "a": 0, "sigma": 2, "estimator": "median"}, "1"),
        ({"k": 4, "a": 1, "sigma": 0.15, "noise": "laplace"}, "1"),
        ({"k": 7, "a": 1000, "sigma": 0.01}, "0.25"),
        ({"k": 50, "a": 0, "sigma": 0.1, "noise": "laplace", "estimator": "median"}, "1"),
        ({"k": 50, "a": 3, "sigma": 0.02}, "0.01"),
        (
            {"k": 2, "a": "288230376151711744", "sigma": "5e-9"},
            "1",
        ),  # σ is some lattice steps, one record is half a step
    ],
    "log": [
        ({"a": 1, "sigma": 0.1}, "1"),
        ({"a": 0.5, "sigma": 2}, "0.01"),
        ({"a": 1000, "sigma": 0.001}, "1"),
        ({"a": "17179869184", "sigma": "3.5e-10"}, "1"),  # σ is three lattice steps, one record is half a step
        ({"a": "1e-6", "sigma": 1}, "0.25"),
        ({"a": 1, "sigma": 0.1, "noise": "laplace"}, "1"),
        ({"a": 50, "sigma": 0.7, "noise": "laplace"}, "0.01"),
        ({"a": 0.5, "sigma": 2, "noise": "laplace", "estimator": "median"}, "0.25"),
        ({"a": "17179869184", "sigma": "3.5e-10", "noise": "laplace", "estimator": "median"}, "1"),
        ({"a": 10, "sigma": 0.5, "estimator": "median"}, "1"),
    ],
    "unit_splitting": [
        ({"threshold": 10, "rho": 1}, "1"),
        ({"threshold": 2.5, "rho": 0.3}, "1"),
        ({"threshold": 0.75, "rho": 0.07}, "0.25"),
        ({"threshold": 0.03, "rho": 2}, "0.01"),
        ({"threshold": 0.4, "rho": 0.01}, "1"),
    ],
    "groupwise_log": [
        ({"a": 1, "sigma": 0.1}, "1"),
        ({"a": 5, "sigma": "0.0208889278"}, "1"),
        ({"a": 1000, "sigma": 0.001}, "1"),
        ({"a": "17179869184", "sigma": "3.5e-10"}, "1"),  # σ is three lattice steps, one record is half a step
        ({"a": 0.5, "sigma": 2}, "0.25"),
    ],
    "groupwise_noisy": [
        ({"r": 0.1, "sigma": 0.3}, "1"),
        ({"r": 0.01, "sigma": 1}, "1"),
        ({"r": 1, "sigma": 3.7}, "1"),
        ({"r": 0.5, "sigma": 0.05}, "0.01"),
        ({"r": 0.1, "sigma": "1e9"}, "1"),
    ],
}
CASES = [build({"kind": kind, **given}, exact(step)) for kind, sets in PARAMETERS.items() for given, step in sets]


def named(m: object) -> str:
    return f"{' '.join(f'{v}' for v in m.describe().values())} / {m.step}" if isinstance(m, Mechanism) else str(m)


def noise_of(m: Mechanism) -> LatticeNoise:
    """The lattice noise that a mechanism's documentation states."""
    given = m.describe()
    number = {name: exact(value) for name, value in given.items() if isinstance(value, int | float)}
    if m.kind == "unit_splitting":  # σ² = T²/(2ρ), known to 60 digits
        square = number["threshold"] ** 2 / (2 * number["rho"])
        return Noise(2, nearest(CTX.sqrt(real(square))) / m.step)
    if m.kind == "symmetric_stable":
        return Stable(number["alpha"], number["gamma"] / m.lattice_step)
    scale = number["sigma"] / m.lattice_step
    if m.kind == "generalized_gaussian":
        return GeneralizedGaussian(number["p"], scale)
    if m.kind == "exponential_polylog":
        return Polylog(number["p"], number["d"], number["a"], scale)
    laplace = m.kind == "laplace" or (m.kind in ("root", "log") and given["noise"] == "laplace")
    assert laplace or m.kind in ("gaussian", "root", "log", "groupwise_log", "groupwise_noisy")
    return Noise(1 if laplace else 2, scale)


def nearest(number: Any) -> Fraction:
    """The rational number next to a positive real one, to 70 digits."""
    return Fraction(int(CTX.nint(CTX.ldexp(number, 233))), 1 << 233)


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
        scale = int(3 * noise_of(m).scale / m.form.noise.fineness)
        scale = min(1000, scale) if is_pure(m) else scale
        steps = sorted({0, 1, 2, 3, 4, 5, 8, 10, 11, scale + 1, 10 * scale + 7})
        return [Neighbours(d * m.step, d * m.form.noise.fineness) for d in steps]
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
    return totals * m.form.noise.fineness if adds(m) else m.form.curve.on_lattice(totals)


def violations(noise: LatticeNoise, pairs: Iterable[Neighbours], policy: Policy) -> list[str]:
    """Where a Rényi divergence of some order, in either direction, exceeds order × policy."""
    found = []
    for pair, order, sign in product(pairs, ORDERS, (1, -1)):
        promised = real(order * policy(pair.influence))
        if pair.shift and not renyi(noise, sign * pair.shift, order) <= promised * ROUNDING:
            found.append(f"influence {pair.influence}, shift {sign * pair.shift}, order {order}")
    return found


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
