"""Parameters of every kind: descriptions that build again, rules that are named, ends that can be released."""

import json
from decimal import Decimal
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.bits import cell_bits
from tests.support.kinds import REGISTRY
from tests.support.mechanisms import EXAMPLES, INTERVAL, KINDS, ONE, numbers, random_specs
from udfs.mechanisms.base import Mechanism, Parameter, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.numbers.arrays import LARGEST


@pytest.mark.parametrize("kind", KINDS)
def test_descriptions_build_the_same_mechanism(kind: str) -> None:
    random = Random(8)
    for _ in range(30):
        m = build({"kind": kind, **random_specs(kind, random)}, Fraction("0.01"))
        told = m.describe()
        assert next(iter(told)) == "kind"
        assert set(told) == {"kind", *m.parameters()}
        assert build(json.loads(json.dumps(told)), Fraction("0.01")) == m
    spec = random_specs(kind, random)
    forms = [spec | {n: form(Decimal(spec[n])) for n in numbers(kind)} for form in (str, Decimal, Fraction, float)]
    assert len({build({"kind": kind, **given}, ONE) for given in forms}) == 1


BAD_NUMBERS = [
    float("nan"),
    float("inf"),
    float("-inf"),
    0,
    0.0,
    -1,
    -0.5,
    True,
    False,
    "many",
    "",
    "NaN",
    None,
    [1],
    1j,
]


@pytest.mark.parametrize("kind", KINDS)
def test_bad_parameters_are_named_with_their_rule(kind: str) -> None:
    declared = CATALOGUE[kind].parameters()
    for name, parameter in declared.items():
        zero_is_bad = parameter.kind == "choice" or not parameter.allows(Fraction(0))
        refused = [bad for bad in BAD_NUMBERS if zero_is_bad or bad is False or bad != 0]
        if parameter.kind == "number":
            refused += [1.5] if parameter.integral else []
            refused += [parameter.maximum + 0.001] if parameter.maximum is not None else []
        for bad in refused if parameter.kind == "number" else ["none", "", None, 1, True, ["paper"]]:
            with pytest.raises(ParameterError) as caught:
                build({"kind": kind, **EXAMPLES[kind], name: bad}, ONE)
            assert caught.value.parameter == name
            assert parameter.rule in caught.value.rule
            assert "\n" not in str(caught.value)
        if parameter.default is None:
            with pytest.raises(ParameterError) as caught:
                build({n: v for n, v in {"kind": kind, **EXAMPLES[kind]}.items() if n != name}, ONE)
            assert caught.value.parameter == name
    for unknown in ("step", "table", "sgima", "__class__"):
        with pytest.raises(ParameterError, match="no such parameter"):
            build({"kind": kind, **EXAMPLES[kind], unknown: 1}, ONE)


@pytest.mark.parametrize("kind", KINDS)
def test_parameters_that_doubles_cannot_hold_are_refused(kind: str) -> None:
    for name, bad in product(
        numbers(kind), ["9e-51", "1.1e50", "1e-400", "1e400", "1e999999999", 10**60, Fraction(1, 10**60)]
    ):
        with pytest.raises(ParameterError) as caught:
            build({"kind": kind, **EXAMPLES[kind], name: bad}, ONE)
        assert caught.value.parameter == name


def extremes(parameter: Parameter) -> list[Any]:
    """What a parameter may be at most and at least, and something between."""
    if parameter.kind == "choice":
        return list(parameter.choices)
    if parameter.kind == "table":
        return [given[parameter.name] for given, _ in REGISTRY["designed"].guarantee]
    ends = ["1e-50", "0", "1", "1e50" if parameter.maximum is None else str(parameter.maximum)]
    return [end for end in dict.fromkeys(ends) if parameter.allows(Fraction(end))]


def built_or_refused(spec: dict[str, Any], step: Fraction) -> Mechanism | str:
    try:
        return build(spec, step)
    except ParameterError as refused:
        return refused.parameter


@pytest.mark.parametrize("kind", KINDS)
def test_every_allowed_parameter_can_be_released(kind: str) -> None:
    declared = CATALOGUE[kind].parameters()
    totals = np.array([0, 1, 12_345, LARGEST], dtype=np.int64)
    built = 0
    for *values, step in product(*map(extremes, declared.values()), ("1e-50", "1e50")):
        m = built_or_refused({"kind": kind, **dict(zip(declared, values, strict=True))}, Fraction(step))
        if isinstance(m, str):
            assert m in REGISTRY[kind].refusals
            continue
        built += 1
        released = m.release(totals, cell_bits(len(totals)), INTERVAL)
        assert np.all(released.lower <= released.upper)
        assert np.all(released.standard_error >= 0)  # narrow noise has an error that no double holds
        influence = totals.astype(np.float64) * float(step)
        exactly = [m.loss_at(int(total) * m.step) for total in totals]
        assert all(loss >= up for loss, up in zip(m.loss(influence).tolist(), exactly, strict=True))
    assert built >= 4


@pytest.mark.parametrize(
    ("spec", "parameter"),
    [
        ({"kind": "exponential_polylog", "p": 1, "d": 1, "a": 1, "sigma": 1}, "d"),  # no distribution
        ({"kind": "exponential_polylog", "p": 1, "d": "1.000000000001", "a": 1, "sigma": 1}, "d"),  # all beyond 63 bits
        ({"kind": "exponential_polylog", "p": 2, "d": 1, "a": 2.718, "sigma": 1e9}, "a"),  # below e: not convex
        ({"kind": "exponential_polylog", "p": 1.5, "d": 1, "a": 1, "sigma": 1}, "a"),
        ({"kind": "generalized_gaussian", "p": 0.03, "sigma": 1}, "sigma"),  # all beyond 63 bits
        ({"kind": "symmetric_stable", "alpha": 1.005, "gamma": 1}, "alpha"),  # a series too long to sum
        ({"kind": "symmetric_stable", "alpha": 2, "gamma": 1}, "alpha"),  # the Gaussian
        ({"kind": "log", "a": 1, "sigma": 1, "noise": "laplace"}, "sigma"),  # no mean
        ({"kind": "root", "k": 100, "a": 0, "sigma": 1e4}, "sigma"),  # no variance that a double holds
    ],
)
def test_parameters_that_do_not_go_together_are_refused(spec: dict[str, Any], parameter: str) -> None:
    with pytest.raises(ParameterError) as caught:
        build(spec, ONE)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "exponential_polylog", "p": 1, "d": 1.05, "a": 1, "sigma": 1},
        {"kind": "exponential_polylog", "p": 2, "d": 1, "a": 2.718281828459045, "sigma": 1e9},  # a decimal of e
        {"kind": "generalized_gaussian", "p": 0.05, "sigma": "1e-24"},
        {"kind": "symmetric_stable", "alpha": 1, "gamma": 1},
        {"kind": "symmetric_stable", "alpha": 1.01, "gamma": 1},
        {"kind": "symmetric_stable", "alpha": 1.999, "gamma": 1},
        {"kind": "log", "a": 1, "sigma": 1, "noise": "laplace", "estimator": "median"},
        {"kind": "root", "k": 100, "a": 0, "sigma": 0.1},
    ],
)
def test_parameters_at_the_edge_of_these_rules_are_taken(spec: dict[str, Any]) -> None:
    assert build(spec, ONE).kind == spec["kind"]


@pytest.mark.parametrize("spec", [{}, {"kind": "gauss"}, {"kind": None}, {"kind": "Gaussian", "sigma": 1}])
def test_unknown_kinds_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="kind"):
        build(spec, ONE)


@pytest.mark.parametrize("step", [0, -1, Fraction(-1, 100)])
def test_a_step_must_be_positive(step: Any) -> None:
    with pytest.raises(ParameterError, match="step"):
        build({"kind": "gaussian", "sigma": 1}, step)


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "generalized_gaussian", "exponential_polylog"])
def test_noise_wider_than_the_range_of_values_is_refused(kind: str) -> None:
    spec = {"kind": kind, **EXAMPLES[kind]}
    spec |= {"a": 3} if kind == "exponential_polylog" else {}  # its noise is so wide that a decimal of e is too small
    assert build(spec | {"sigma": 2**55}, ONE)
    with pytest.raises(ParameterError, match="sigma"):
        build(spec | {"sigma": 2**55 + 1}, ONE)
    with pytest.raises(ParameterError, match="sigma"):
        build(spec | {"sigma": 1}, Fraction(1, 2**56))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_the_identity_root_has_the_rule_of_additive_scales(noise: str) -> None:
    spec = {"kind": "root", "k": 1, "a": 0, "noise": noise}
    assert build(spec | {"sigma": 2**55}, ONE)
    with pytest.raises(ParameterError, match="sigma"):
        build(spec | {"sigma": 2**55 + 1}, ONE)
    assert build(spec | {"k": 2, "sigma": 2**56}, ONE)  # its lattice grows with the noise


def test_unit_splitting_with_noise_wider_than_the_range_is_refused() -> None:
    assert build({"kind": "unit_splitting", "threshold": 2**55 - 1, "rho": 0.5}, ONE)  # σ = T/√(2ρ) = T
    with pytest.raises(ParameterError, match="threshold"):
        build({"kind": "unit_splitting", "threshold": 2**55 + 1, "rho": 0.5}, ONE)
