"""All that the tests know of each kind of mechanism: the one registry that a new kind joins with one entry.

Its mathematics is in tests/support/kinds_mathematics.py; nothing of either is from udfs.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate
from math import ceil, exp
from random import Random
from typing import Any, TypeVar

import pytest

from tests.support.kinds_mathematics import (
    Losses,
    Numbers,
    area_sinh,
    fall_of_table,
    gaussian_noise,
    generalized_noise,
    laplace_noise,
    linear,
    named_noise,
    pieces_noise,
    pieces_squared,
    polylog_noise,
    polylogarithm,
    power,
    rise_of_log,
    rise_of_root,
    square,
    stable_noise,
    table_noise,
)
from tests.support.lattice import LatticeNoise

Case = TypeVar("Case")
E = "2.718281828459045"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Parameter sets of one kind for each suite, and its mathematics.

    `guarantee`: at least five sets, each with its measure's step; the first three run in `make test`. `released`,
    `published`: named sets for releases on all engines, and for one whose cells are held against the noise. `shipped`:
    sets that other processors compute. `stated`: sets of an additive kind whose stated errors are checked. `refusals`:
    the parameters that are refused for the sake of others. `noise`: the lattice noise that the documentation states,
    from the numbers, the words and the lattice step. `losses`: what an influence > 0 loses, from the same. `adjust`:
    makes random parameters keep the kind's rules.
    """

    example: dict[str, Any]
    guarantee: list[tuple[dict[str, Any], str]]
    released: dict[str, dict[str, Any]]
    published: dict[str, dict[str, Any]]
    shipped: list[dict[str, Any]]
    refusals: set[str]
    noise: Callable[[Numbers, Mapping[str, Any], Fraction], LatticeNoise]
    losses: Callable[[Numbers, Mapping[str, Any], Fraction, Fraction], Losses]
    stated: list[dict[str, Any]] = field(default_factory=list)
    adjust: Callable[[dict[str, str], Random], None] = lambda spec, random: None
    additive: bool = True


def three_a_kind(cases: Iterable[Case], kind: Callable[[Case], object]) -> list[Any]:
    """Return the cases as parameters of a test: three of each kind in every run, the rest in the drill."""
    seen: Counter[object] = Counter()
    params = []
    for case in cases:
        seen[kind(case)] += 1
        params.append(pytest.param(case, marks=[pytest.mark.drill] if seen[kind(case)] > 3 else []))
    return params


def three_of(cases: Sequence[Case]) -> list[Any]:
    """Return a row of cases as parameters of a test: the ends and the middle in every run, the rest in the drill."""
    always = (0, len(cases) // 2, len(cases) - 1)
    return [pytest.param(case, marks=[] if n in always else [pytest.mark.drill]) for n, case in enumerate(cases)]


# Random parameters that keep each kind's rules.


def decimal(random: Random, low: int = -6, high: int = 4) -> str:
    return f"{random.uniform(1, 10):.4f}e{random.randint(low, high)}"


def random_generalized_gaussian(spec: dict[str, str], random: Random) -> None:
    spec["p"] = random.choice(["1", f"{random.uniform(0.2, 1):.4f}"])


def random_exponential_polylog(spec: dict[str, str], random: Random) -> None:
    p = random.choice(["1", "2", f"{random.uniform(1, 4):.4f}"])
    least = 0.1 if float(p) >= 2 else 1.05  # of d, else hardly a value lies in the range
    a = ceil(1e4 * exp(float(p) - 1) * random.choice([1, random.uniform(1, 100)])) / 1e4
    spec |= {"p": p, "d": f"{random.uniform(least, 20):.4f}", "a": f"{a:.4f}"}


def random_symmetric_stable(spec: dict[str, str], random: Random) -> None:
    spec["alpha"] = random.choice(["1", "1", "1.2", "1.5", "1.99"])


def random_table(spec: dict[str, Any], random: Random) -> None:
    steps = [0, *sorted(random.sample(range(1, 60), 6))]
    falls = [random.choice([0, random.randint(1, 2000)]) for _ in steps[2:]]
    logs = accumulate([0, *falls, random.randint(1, 2000)])
    spec["weights"] = {"steps": steps, "log_weights": [-log / 1000 for log in logs]}


def random_root(spec: dict[str, str], random: Random) -> None:
    k = random.choice([1, 2, 3, 4, random.randint(5, 12), random.randint(13, 100)])
    spec |= {"k": str(k), "a": random.choice(["0", decimal(random)])}
    if k > 12:  # σ^{2k} is a double
        spec["sigma"] = decimal(random, -6, -2)


def random_groupwise_noisy(spec: dict[str, str], random: Random) -> None:
    spec["r"] = decimal(random, -6, -1)


def random_log(spec: dict[str, str], random: Random) -> None:
    if spec["noise"] == "laplace":
        spec["sigma"] = decimal(random, -6, -1)  # the mean needs σ < 1


STAIRS = {"steps": [0, 1, 4, 9, 10, 20, 40, 41, 100], "log_weights": [0, -0.2, -0.2, -1.5, -2, -2.5, -4, -5, -9]}
NARROW = {"steps": [0, 1, 2], "log_weights": [0, -2.5, -6]}
FLAT = {"steps": [0, 30, 31, 60], "log_weights": [0, 0, -3, -4.25]}
WIDE = {"steps": [0, 30, 100, 250], "log_weights": [0, -0.5, -0.5, -8]}
STEEP = {"steps": [0, 5, 6, 50, 200], "log_weights": [0, -0.000001, -12, -12.5, -20]}


REGISTRY: dict[str, Kind] = {
    "gaussian": Kind(
        example={"sigma": 2.5},
        guarantee=[
            ({"sigma": 1}, "1"),
            ({"sigma": 0.05}, "0.01"),
            ({"sigma": "1e9"}, "1"),
            ({"sigma": 0.3}, "1"),
            ({"sigma": 3.7}, "1"),
        ],
        released={"gaussian": {"sigma": 7.5}},
        published={"gaussian": {"sigma": 3}},
        shipped=[{"sigma": 12}, {"sigma": 1.6}],
        stated=[{"sigma": "0.4"}, {"sigma": "25.5"}],
        refusals={"sigma"},
        noise=gaussian_noise,
        losses=square,
    ),
    "laplace": Kind(
        example={"sigma": 2.5},
        guarantee=[
            ({"sigma": 1}, "1"),
            ({"sigma": 0.05, "policy": "paper", "lattice": "fine"}, "0.01"),
            ({"sigma": 2.5, "policy": "tight", "lattice": "measure"}, "0.5"),
            ({"sigma": 0.2}, "1"),
            ({"sigma": 3.7}, "1"),
            ({"sigma": 2.5, "policy": "tight", "lattice": "fine"}, "1"),
            ({"sigma": "1e9", "policy": "paper", "lattice": "measure"}, "1"),
        ],
        released={"laplace": {"sigma": 3}},
        published={"laplace": {"sigma": 4}},
        shipped=[{"sigma": 0.7}],
        stated=[{"sigma": "0.4"}, {"sigma": "1e4"}],
        refusals={"sigma"},
        noise=laplace_noise,
        losses=linear,
    ),
    "generalized_gaussian": Kind(
        example={"p": 0.5, "sigma": 2.5},
        guarantee=[
            ({"p": 0.5, "sigma": 5}, "1"),
            ({"p": 0.5, "sigma": 5, "policy": "paper", "lattice": "fine"}, "1"),
            ({"p": 0.8, "sigma": 40, "policy": "tight", "lattice": "measure"}, "1"),
            ({"p": 0.05, "sigma": "1e-20"}, "1"),
            ({"p": 0.5, "sigma": 5, "policy": "tight", "lattice": "fine"}, "1"),
            ({"p": 0.5, "sigma": 1000, "policy": "paper"}, "1"),
            ({"p": 1, "sigma": 0.7}, "0.25"),
            ({"p": 0.9, "sigma": 0.003}, "0.01"),
            (
                {"p": 0.3, "sigma": "1e9", "policy": "paper", "lattice": "measure"},
                "1",
            ),  # wider than the sums of tests.support.divergence reach
        ],
        released={"generalized_gaussian": {"p": 0.5, "sigma": 4}},
        published={"generalized": {"p": 0.7, "sigma": 3}},
        shipped=[{"p": 0.5, "sigma": 12}, {"p": 0.05, "sigma": "1e-24"}],
        stated=[{"p": "0.5", "sigma": "0.17735"}, {"p": "0.3", "sigma": "12"}, {"p": "1", "sigma": "3"}],
        refusals={"sigma"},
        noise=generalized_noise,
        losses=power,
        adjust=random_generalized_gaussian,
    ),
    "exponential_polylog": Kind(
        example={"p": 2, "d": 1.5, "a": 2.718281828459045, "sigma": 2.5},
        guarantee=[
            ({"p": 1, "d": 1.05, "a": 1, "sigma": 3, "policy": "paper"}, "1"),
            ({"p": 2, "d": 1.5, "a": E, "sigma": 20}, "1"),
            ({"p": 2, "d": 50, "a": E, "sigma": 2, "policy": "paper", "lattice": "fine"}, "0.25"),
            ({"p": 1, "d": 3.5, "a": 2, "sigma": 100}, "1"),
            ({"p": 2, "d": 0.3, "a": E, "sigma": 0.02}, "0.01"),
            ({"p": 2, "d": 50, "a": E, "sigma": 2}, "0.25"),
            ({"p": 2, "d": 1.5, "a": E, "sigma": 20, "policy": "tight", "lattice": "fine"}, "1"),
            ({"p": 1.5, "d": 2, "a": 1.7, "sigma": 0.5}, "1"),
            ({"p": 1.5, "d": 2, "a": 1.7, "sigma": 0.5, "policy": "paper"}, "1"),
            ({"p": 3, "d": 0.5, "a": 7.4, "sigma": 10}, "1"),
        ],
        released={"exponential_polylog": {"p": 2, "d": 1.5, "a": 3, "sigma": 20, "lattice": "fine"}},
        published={"polylog": {"p": 2, "d": 3, "a": 3, "sigma": 20}},
        shipped=[
            {"p": 1, "d": 3.5, "a": 1, "sigma": 20},
            {"p": 2, "d": 1.5, "a": 2.718281828459045, "sigma": 20},
            {"p": 1.5, "d": 2, "a": 1.7, "sigma": 3},
        ],
        stated=[
            {"p": "2", "d": "1.5", "a": "2.8", "sigma": "20"},
            {"p": "1", "d": "3.5", "a": "4", "sigma": "2"},
            {"p": "1", "d": "2.5", "a": "4", "sigma": "2"},
            {"p": "1", "d": "1.5", "a": "1", "sigma": "2"},
            {"p": "3", "d": "0.2", "a": "8", "sigma": "0.5"},
        ],
        refusals={"d", "a", "sigma"},
        noise=polylog_noise,
        losses=polylogarithm,
        adjust=random_exponential_polylog,
    ),
    "symmetric_stable": Kind(
        example={"alpha": 1.2, "gamma": 2.5},
        guarantee=[
            ({"alpha": 1, "gamma": 3, "policy": "paper"}, "1"),
            ({"alpha": 1, "gamma": 0.05}, "0.01"),
            ({"alpha": 1.9, "gamma": 6}, "1"),
            ({"alpha": 1.5, "gamma": 0.5}, "0.25"),
            ({"alpha": 1.99, "gamma": 4}, "1"),
        ],
        released={"cauchy": {"alpha": 1, "gamma": 40}, "symmetric_stable": {"alpha": 1.5, "gamma": 4000}},
        published={"stable": {"alpha": 1, "gamma": 4}},
        shipped=[{"alpha": 1, "gamma": 4}, {"alpha": 1.7, "gamma": 12}],
        stated=[{"alpha": "1", "gamma": "2"}, {"alpha": "1.2", "gamma": "0.3"}],
        refusals={"alpha", "gamma"},
        noise=stable_noise,
        losses=area_sinh,
        adjust=random_symmetric_stable,
    ),
    "designed": Kind(
        example={"weights": STAIRS},
        guarantee=[
            ({"weights": STAIRS}, "1"),
            ({"weights": FLAT, "policy": "paper"}, "0.25"),
            ({"weights": STEEP}, "1"),
            ({"weights": NARROW}, "1"),
            ({"weights": WIDE}, "0.01"),
        ],
        released={"designed": {"weights": STAIRS}},
        published={"designed": {"weights": STAIRS}},
        shipped=[{"weights": STAIRS}],
        stated=[{"weights": STAIRS, "policy": "paper"}, {"weights": NARROW, "policy": "paper"}],
        refusals={"weights"},
        noise=table_noise,
        losses=fall_of_table,
        adjust=random_table,
    ),
    "root": Kind(
        example={"k": 2, "a": 400, "sigma": 0.5},
        guarantee=[
            (
                {"k": 2, "a": "288230376151711744", "sigma": "5e-9"},
                "1",
            ),  # σ is some lattice steps, one record is half a step
            ({"k": 3, "a": 0.5, "sigma": 0.2, "noise": "laplace", "estimator": "median"}, "0.01"),
            ({"k": 4, "a": 0, "sigma": 2, "estimator": "median"}, "1"),
            ({"k": 1, "a": 5, "sigma": 3.7}, "1"),
            ({"k": 1, "a": 0, "sigma": 0.02, "noise": "laplace", "estimator": "median"}, "0.01"),
            ({"k": 2, "a": 0, "sigma": 2}, "1"),
            ({"k": 2, "a": 100, "sigma": 0.3, "noise": "laplace"}, "0.25"),
            ({"k": 4, "a": 1, "sigma": 0.15, "noise": "laplace"}, "1"),
            ({"k": 7, "a": 1000, "sigma": 0.01}, "0.25"),
            ({"k": 50, "a": 0, "sigma": 0.1, "noise": "laplace", "estimator": "median"}, "1"),
            ({"k": 50, "a": 3, "sigma": 0.02}, "0.01"),
        ],
        released={
            "root": {"k": 2, "a": 10, "sigma": 2},
            "root_median": {"k": 4, "a": 100, "sigma": 0.5, "noise": "laplace", "estimator": "median"},
        },
        published={
            "root_mean": {"k": 2, "a": 10_000, "sigma": 0.5, "noise": "laplace"},
            "root_median": {"k": 3, "a": 1000, "sigma": 0.2, "estimator": "median"},
        },
        shipped=[
            {"k": 1, "a": 0, "sigma": 3},
            {"k": 2, "a": 0, "sigma": 2},
            {"k": 4, "a": 1, "sigma": 0.5, "noise": "laplace"},
            {"k": 7, "a": 100, "sigma": 0.01, "estimator": "median"},
            {"k": 50, "a": 0, "sigma": 0.1, "noise": "laplace", "estimator": "median"},
        ],
        stated=[
            {"k": 1, "a": "3", "sigma": "7", "noise": "laplace"},
            {"k": 1, "a": "3", "sigma": "7", "noise": "gaussian"},
        ],
        refusals={"sigma"},
        additive=False,
        noise=named_noise,
        losses=rise_of_root,
        adjust=random_root,
    ),
    "log": Kind(
        example={"a": 1, "sigma": 0.2},
        guarantee=[
            ({"a": 1, "sigma": 0.1}, "1"),
            ({"a": "17179869184", "sigma": "3.5e-10"}, "1"),  # σ is three lattice steps, one record is half a step
            ({"a": 0.5, "sigma": 2, "noise": "laplace", "estimator": "median"}, "0.25"),
            ({"a": 0.5, "sigma": 2}, "0.01"),
            ({"a": 1000, "sigma": 0.001}, "1"),
            ({"a": "1e-6", "sigma": 1}, "0.25"),
            ({"a": 1, "sigma": 0.1, "noise": "laplace"}, "1"),
            ({"a": 50, "sigma": 0.7, "noise": "laplace"}, "0.01"),
            ({"a": "17179869184", "sigma": "3.5e-10", "noise": "laplace", "estimator": "median"}, "1"),
            ({"a": 10, "sigma": 0.5, "estimator": "median"}, "1"),
        ],
        released={
            "log": {"a": 50, "sigma": 0.5},
            "log_laplace": {"a": 5, "sigma": 0.2, "noise": "laplace", "estimator": "median"},
        },
        published={
            "log_mean": {"a": 50, "sigma": 0.5},
            "log_median": {"a": 50, "sigma": 0.3, "noise": "laplace", "estimator": "median"},
        },
        shipped=[
            {"a": 1, "sigma": 1e-4},
            {"a": 0.5, "sigma": 2},
            {"a": 50, "sigma": 0.3, "noise": "laplace"},
            {"a": 50, "sigma": 2, "noise": "laplace", "estimator": "median"},
        ],
        refusals={"sigma"},
        additive=False,
        noise=named_noise,
        losses=rise_of_log,
        adjust=random_log,
    ),
    "unit_splitting": Kind(
        example={"threshold": 10, "rho": 2},
        guarantee=[
            ({"threshold": 10, "rho": 1, "policy": "paper"}, "1"),
            ({"threshold": 2.5, "rho": 0.3}, "1"),
            ({"threshold": 0.75, "rho": 0.07}, "0.25"),
            ({"threshold": 0.03, "rho": 2}, "0.01"),
            ({"threshold": 0.4, "rho": 0.01}, "1"),
        ],
        released={"unit_splitting": {"threshold": 100, "rho": 0.1}},
        published={"splitting": {"threshold": 10, "rho": 2}},
        shipped=[{"threshold": 7, "rho": 0.3}],
        stated=[{"threshold": "10", "rho": "0.01"}],
        refusals={"threshold"},
        noise=pieces_noise,
        losses=pieces_squared,
    ),
    "groupwise_log": Kind(
        example={"a": 1, "sigma": 0.2},
        guarantee=[
            ({"a": 1, "sigma": 0.1}, "1"),
            ({"a": "17179869184", "sigma": "3.5e-10"}, "1"),  # σ is three lattice steps, one record is half a step
            ({"a": 0.5, "sigma": 2}, "0.25"),
            ({"a": 5, "sigma": "0.0208889278"}, "1"),
            ({"a": 1000, "sigma": 0.001}, "1"),
        ],
        released={"groupwise_log": {"a": 5, "sigma": 0.1}},
        published={"groupwise_log": {"a": 5, "sigma": 0.1}},
        shipped=[{"a": 5, "sigma": 0.02}],
        refusals=set(),
        additive=False,
        noise=gaussian_noise,
        losses=rise_of_log,
    ),
    "groupwise_noisy": Kind(
        example={"r": 0.1, "sigma": 2.5},
        guarantee=[
            ({"r": 0.1, "sigma": 0.3}, "1"),
            ({"r": 0.01, "sigma": 1}, "1"),
            ({"r": 1, "sigma": 3.7}, "1"),
            ({"r": 0.5, "sigma": 0.05}, "0.01"),
            ({"r": 0.1, "sigma": "1e9"}, "1"),
        ],
        released={"groupwise_noisy": {"r": 0.1, "sigma": 3}},
        published={"groupwise_noisy": {"r": 0.5, "sigma": 3}},
        shipped=[{"r": 0.1, "sigma": 1.6}, {"r": 0.3, "sigma": 40}],
        refusals={"sigma"},
        additive=False,
        noise=gaussian_noise,
        losses=square,
        adjust=random_groupwise_noisy,
    ),
}
