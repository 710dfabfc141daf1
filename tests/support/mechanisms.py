"""An example of every kind of mechanism, random parameters that keep its rules, and its policy in high precision."""

from collections.abc import Mapping
from fractions import Fraction
from math import ceil, exp
from random import Random
from typing import Any

from tests.support.lattice import CTX, real
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.mechanisms.root import Root

ONE = Fraction(1)
INTERVAL = Fraction(19, 20)
EXAMPLES: dict[str, dict[str, Any]] = {
    "gaussian": {"sigma": 2.5},
    "laplace": {"sigma": 2.5},
    "generalized_gaussian": {"p": 0.5, "sigma": 2.5},
    "exponential_polylog": {"p": 2, "d": 1.5, "a": 2.718281828459045, "sigma": 2.5},
    "symmetric_stable": {"alpha": 1.2, "gamma": 2.5},
    "root": {"k": 2, "a": 400, "sigma": 0.5},
    "log": {"a": 1, "sigma": 0.2},
    "unit_splitting": {"threshold": 10, "rho": 2},
    "groupwise_log": {"a": 1, "sigma": 0.2},
    "groupwise_noisy": {"r": 0.1, "sigma": 2.5},
}
KINDS = sorted(EXAMPLES)
ADDITIVE = [kind for kind in KINDS if CATALOGUE[kind].additive]


def example(kind: str, step: Fraction = ONE) -> Mechanism:
    return build({"kind": kind, **EXAMPLES[kind]}, step)


def numbers(kind: str) -> list[str]:
    return [p.name for p in CATALOGUE[kind].parameters().values() if p.kind == "number"]


def random_specs(kind: str, random: Random) -> dict[str, str]:
    """Every parameter of a kind at random, the numbers over ten orders of magnitude where its rules leave room."""

    def number(low: int = -6, high: int = 4) -> str:
        return f"{random.uniform(1, 10):.4f}e{random.randint(low, high)}"

    declared = CATALOGUE[kind].parameters().values()
    spec = {p.name: number() if p.kind == "number" else random.choice(p.choices) for p in declared}
    if "tight" in spec.values() and kind != "laplace":
        spec["policy"] = "paper"  # the tight one is a curve: tests of its own
    if kind == "generalized_gaussian":
        spec["p"] = random.choice(["1", f"{random.uniform(0.2, 1):.4f}"])
    elif kind == "exponential_polylog":
        p = random.choice(["1", "2", f"{random.uniform(1, 4):.4f}"])
        least = 0.1 if float(p) >= 2 else 1.05  # of d, else hardly a value lies in the range
        a = ceil(1e4 * exp(float(p) - 1) * random.choice([1, random.uniform(1, 100)])) / 1e4
        spec |= {"p": p, "d": f"{random.uniform(least, 20):.4f}", "a": f"{a:.4f}"}
    elif kind == "symmetric_stable":
        spec["alpha"] = random.choice(["1", "1", "1.2", "1.5", "1.99"])
    elif kind == "root":
        k = random.choice([1, 2, 3, 4, random.randint(5, 12), random.randint(13, 100)])
        spec |= {"k": str(k), "a": random.choice(["0", number()])}
        if k > 12:  # σ^{2k} is a double
            spec["sigma"] = number(-6, -2)
    elif kind == "groupwise_noisy":
        spec["r"] = number(-6, -1)
    elif kind == "log" and spec["noise"] == "laplace":
        spec["sigma"] = number(-6, -1)  # the mean needs σ < 1
    return spec


def formulas(m: Mechanism, spec: Mapping[str, str], influence: Fraction) -> tuple[Any, Any]:
    """P of PRzCDP and the pure P (None: there is none), straight from docs/mathematics.md, sections 3, 4 and 6;
    influence > 0.
    """
    x = real(influence)
    given = {name: Fraction(spec[name]) for name in numbers(m.kind)}
    number = {name: real(value) for name, value in given.items()}
    if m.kind == "unit_splitting":
        return number["rho"] * int(-(-influence // given["threshold"])) ** 2, None
    if m.kind == "symmetric_stable":
        assert given["alpha"] == 1  # others have no closed form: tests/losses/test_stable_policy.py
        pure = 2 * CTX.asinh(x / (2 * number["gamma"]))
        return CTX.tanh(pure / 2) * pure, pure
    sigma = number["sigma"]
    if m.kind in ("gaussian", "groupwise_noisy"):
        return x**2 / (2 * sigma**2), None
    if m.additive:
        return additive(m, number, x, tight=spec.get("policy") == "tight")
    step = real(m.lattice_step)
    if m.kind in ("log", "groupwise_log"):
        rise = CTX.log(1 + x / number["a"]) + step
    else:
        power = 1 / number["k"]
        rise = (x + number["a"]) ** power - number["a"] ** power + step if given["k"] > 1 else x
    if spec.get("noise") != "laplace":
        return rise**2 / (2 * sigma**2), None
    pure, s = rise / sigma, step / sigma
    return pure + s / CTX.sinh(s) * CTX.expm1(-pure), pure


def additive(m: Mechanism, number: Mapping[str, Any], x: Any, *, tight: bool) -> tuple[Any, Any]:
    sigma = number["sigma"]
    pure = {
        "laplace": lambda: x / sigma,
        "generalized_gaussian": lambda: (x / sigma) ** number["p"],
        "exponential_polylog": lambda: polylog(number, x),
    }[m.kind]()
    if tight:
        s = real(m.lattice_step) / sigma
        return pure + s / CTX.sinh(s) * CTX.expm1(-pure), pure
    return CTX.tanh(pure / 2) * pure, pure


def polylog(number: Mapping[str, Any], x: Any) -> Any:
    return number["d"] * (
        CTX.log(x / number["sigma"] + number["a"]) ** number["p"] - CTX.log(number["a"]) ** number["p"]
    )


def root_of(k: int, a: str = "0", sigma: str = "2", step: str = "1", **words: str) -> Root:
    """A root mechanism from decimals; `words`: noise and estimator."""
    return Root(k=Fraction(k), a=Fraction(a), sigma=Fraction(sigma), step=Fraction(step), **words)
