"""An example of every kind of mechanism, random parameters that keep its rules, and its policy in high precision."""

from collections.abc import Mapping
from fractions import Fraction
from random import Random
from typing import Any

from tests.support.kinds import REGISTRY, decimal
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.mechanisms.transformed_kinds import Root

ONE = Fraction(1)
INTERVAL = Fraction(19, 20)
EXAMPLES = {kind: known.example for kind, known in REGISTRY.items()}
KINDS = sorted(EXAMPLES)
ADDITIVE = [kind for kind in KINDS if CATALOGUE[kind].additive]


def example(kind: str, step: Fraction = ONE) -> Mechanism:
    return build({"kind": kind, **EXAMPLES[kind]}, step)


def numbers(kind: str) -> list[str]:
    return [p.name for p in CATALOGUE[kind].parameters().values() if p.kind == "number"]


def random_specs(kind: str, random: Random) -> dict[str, str]:
    """Every parameter of a kind at random, the numbers over ten orders of magnitude where its rules leave room."""

    declared = CATALOGUE[kind].parameters().values()
    spec = {p.name: decimal(random) if p.kind == "number" else random.choice(p.choices or ("",)) for p in declared}
    if "tight" in spec.values() and kind != "laplace":
        spec["policy"] = "paper"  # the tight one is a curve: tests of its own
    REGISTRY[kind].adjust(spec, random)
    return spec


def formulas(m: Mechanism, spec: Mapping[str, str], influence: Fraction) -> tuple[Any, Any]:
    """P of PRzCDP and the pure P (None: there is none), straight from docs/mathematics.md, sections 3, 4 and 6;
    influence > 0.
    """
    number = {name: Fraction(spec[name]) for name in numbers(m.kind)}
    return REGISTRY[m.kind].losses(number, spec, m.lattice_step, influence)


def root_of(k: int, a: str = "0", sigma: str = "2", step: str = "1", **words: str) -> Root:
    """A root mechanism from decimals; `words`: noise and estimator."""
    return Root(k=Fraction(k), a=Fraction(a), sigma=Fraction(sigma), step=Fraction(step), **words)
