"""Policies against their formulas in high precision; parameters, descriptions, pickles, types and steps."""

import json
import pickle
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.bits import TEST_KEY, Injected, cell_bits, words_that_draw
from tests.support.lattice import CTX, Noise, real
from udfs.exact import exact
from udfs.lattice import LARGEST, draw_noise
from udfs.mechanisms.base import Mechanism, ParameterError
from udfs.mechanisms.catalogue import CATALOGUE, build
from udfs.noise import release_cells

ONE = Fraction(1)
INTERVAL = Fraction(19, 20)
EXAMPLES: dict[str, dict[str, Any]] = {
    "gaussian": {"sigma": 2.5},
    "laplace": {"sigma": 2.5},
    "log": {"a": 1, "sigma": 0.2},
}
KINDS = sorted(EXAMPLES)


def example(kind: str, step: Fraction = ONE) -> Mechanism:
    return build({"kind": kind, **EXAMPLES[kind]}, step)


def test_every_kind_has_an_example_here() -> None:
    assert set(EXAMPLES) == set(CATALOGUE)


def test_the_worked_example_of_math_section_11() -> None:
    log = build({"kind": "log", "a": 1, "sigma": 2}, ONE)
    losses = [round(float(log.loss_at(Fraction(employees))), 4) for employees in (5, 5, 10, 20, 30, 10_000)]
    assert losses == [0.4013, 0.4013, 0.7187, 1.1586, 1.4740, 10.6040]


def formulas(m: Mechanism, spec: Mapping[str, str], influence: Fraction) -> tuple[Any, Any]:
    """P of PRzCDP and the pure P (None: there is none), straight from MATH sections 3, 4 and 8."""
    sigma, x = real(Fraction(spec["sigma"])), real(influence)
    if m.kind == "gaussian":
        return x**2 / (2 * sigma**2), None
    if m.kind == "laplace":
        return CTX.tanh(x / sigma / 2) * x / sigma, x / sigma
    return (CTX.log(1 + x / real(Fraction(spec["a"]))) + real(m.lattice_step)) ** 2 / (2 * sigma**2), None


def random_specs(kind: str, random: Random) -> dict[str, str]:
    """Every numeric parameter of a kind at random, over ten orders of magnitude."""
    numbers = [p.name for p in CATALOGUE[kind].parameters().values() if p.kind == "number"]
    return {name: f"{random.uniform(1, 10):.4f}e{random.randint(-6, 4)}" for name in numbers}


def influences(random: Random, step: Fraction, size: int) -> list[Fraction]:
    return [random.randrange(1, 1 << random.randint(1, 62)) * step for _ in range(size)]


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_their_formulas_rounded_up(kind: str) -> None:
    random, tight = Random(6), 1 + CTX.mpf(10) ** -19  # what udfs.bounds promises
    for _ in range(60):
        spec, step = random_specs(kind, random), Fraction(random.choice(["1", "0.01", "0.25"]))
        m = build({"kind": kind, **spec}, step)
        points = sorted(influences(random, step, 12))
        array = np.array([float(x) for x in points])
        losses, pures = m.loss(array), m.pure_loss(array)
        for x, loss, pure in zip(points, losses, pures, strict=True):
            exactly, purely = formulas(m, spec, x)
            assert exactly * (1 - CTX.mpf(10) ** -100) <= real(m.loss_at(x)) <= exactly * tight
            assert exactly <= CTX.mpf(float(loss)) <= exactly * (1 + 1e-11)
            at = m.pure_loss_at(x)
            if purely is None:
                assert at is None
                assert pure == np.inf
            else:
                assert at is not None
                assert purely * (1 - CTX.mpf(10) ** -100) <= real(at) <= purely * tight
                assert purely <= CTX.mpf(float(pure)) <= purely * (1 + 1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_policies_start_at_zero_and_never_fall(kind: str) -> None:
    random = Random(7)
    for _ in range(10):
        m = build({"kind": kind, **random_specs(kind, random)}, ONE)
        assert m.loss_at(Fraction(0)) == 0
        assert m.pure_loss_at(Fraction(0)) == 0
        assert m.loss(np.zeros(3)).tolist() == m.pure_loss(np.zeros(3)).tolist() == [0, 0, 0]
        points = sorted({Fraction(0), *influences(random, ONE, 40)})
        at = [m.loss_at(x) for x in points]
        assert at == sorted(at)
        assert at[1] > 0
        assert np.all(np.diff(m.loss(np.array([float(x) for x in points]))) >= 0)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_rational_losses_are_exact(kind: str) -> None:
    m = build({"kind": kind, "sigma": 0.1}, Fraction("0.01"))
    assert m.pure_loss_at(Fraction("0.07")) == (Fraction(7, 10) if kind == "laplace" else None)
    if kind == "gaussian":
        assert m.loss_at(Fraction("0.07")) == Fraction(49, 200)


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
    forms = [{n: form(Decimal(v)) for n, v in spec.items()} for form in (str, Decimal, Fraction, float)]
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
        for bad in BAD_NUMBERS if parameter.kind == "number" else ["none", "", None, 1, True, ["paper"]]:
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
    numbers = list(random_specs(kind, Random(0)))
    for name, bad in product(
        numbers, ["9e-51", "1.1e50", "1e-400", "1e400", "1e999999999", 10**60, Fraction(1, 10**60)]
    ):
        with pytest.raises(ParameterError) as caught:
            build({"kind": kind, **EXAMPLES[kind], name: bad}, ONE)
        assert caught.value.parameter == name


@pytest.mark.parametrize("kind", KINDS)
def test_every_allowed_parameter_can_be_released(kind: str) -> None:
    numbers, ends = list(random_specs(kind, Random(0))), ("1e-50", "1e50")
    totals = np.array([0, 1, 12_345, LARGEST], dtype=np.int64)
    for *values, step in product(*[("1e-50", "1", "1e50") for _ in numbers], ends):
        if kind != "log" and Fraction(values[0]) / Fraction(step) > 2**55:
            continue  # refused: test_noise_wider_than_the_range_of_values_is_refused
        m = build({"kind": kind, **dict(zip(numbers, values, strict=True))}, Fraction(step))
        released = m.release(totals, cell_bits(len(totals)), INTERVAL)
        assert np.all(released.lower <= released.upper)
        assert np.all(np.isfinite(released.standard_error))
        influence = totals.astype(np.float64) * float(step)
        exactly = [m.loss_at(int(total) * m.step) for total in totals]
        assert all(loss >= up for loss, up in zip(m.loss(influence).tolist(), exactly, strict=True))


@pytest.mark.parametrize("spec", [{}, {"kind": "gauss"}, {"kind": None}, {"kind": "Gaussian", "sigma": 1}])
def test_unknown_kinds_are_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="kind"):
        build(spec, ONE)


@pytest.mark.parametrize("step", [0, -1, Fraction(-1, 100)])
def test_a_step_must_be_positive(step: Any) -> None:
    with pytest.raises(ParameterError, match="step"):
        build({"kind": "gaussian", "sigma": 1}, step)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_mechanism_carries_its_table_and_draws_the_same(kind: str) -> None:
    m = example(kind)
    table = m.table
    again = pickle.loads(pickle.dumps(m))
    assert again == m
    assert hash(again) == hash(m)
    assert again.__dict__["table"] == table
    totals = np.arange(500, dtype=np.int64) ** 3
    one, two = (x.release(totals, cell_bits(500), INTERVAL) for x in (m, again))
    for name in ("value", "lower", "upper", "standard_error"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    with pytest.raises(AttributeError):
        m.sigma = Fraction(2)  # type: ignore[attr-defined]


def additive_noise(m: Mechanism) -> Noise:
    return Noise(1 if m.kind == "laplace" else 2, exact(EXAMPLES[m.kind]["sigma"]) / m.step)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("step", ["1", "0.25", "0.01", "3"])
def test_additive_values_are_totals_plus_the_drawn_noise(kind: str, step: str) -> None:
    m, size = example(kind, Fraction(step)), 4000
    noise = additive_noise(m)
    totals = np.random.default_rng(9).integers(-(1 << 62), 1 << 62, size)
    released = m.release(totals, cell_bits(size), INTERVAL)
    distance, negative = draw_noise(m.table, cell_bits(size), size)
    drawn = np.where(negative, -distance.astype(np.int64), distance.astype(np.int64))
    assert released.value.dtype == np.int64
    np.testing.assert_array_equal(released.value - totals, drawn)
    # The interval: ±c with P(|Z| > c) ≤ 1 − interval < P(|Z| > c − 1), independent of the value.
    c = int(released.upper[0] - released.value[0])
    assert noise.beyond(c) <= real(1 - INTERVAL) < noise.beyond(c - 1)
    assert np.all(released.upper - released.value == c)
    assert np.all(released.value - released.lower == c)
    deviation = CTX.sqrt(noise.moment(2)) * real(m.step)
    assert released.standard_error == pytest.approx(np.full(size, float(deviation)), rel=1e-12)
    assert m.variance(5.0) == pytest.approx(float(deviation**2), rel=1e-12)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_additive_values_and_intervals_saturate_and_still_cover(kind: str) -> None:
    m = example(kind)
    ends = np.array([LARGEST, LARGEST, LARGEST - 1, -LARGEST, -LARGEST, 1 - LARGEST], dtype=np.int64)
    noise = [1, -3, 5, -1, 3, -5]
    released = m.release(ends, Injected([[words_that_draw(m.table, k) for k in noise]], lambda *_: 0), INTERVAL)
    assert released.value.tolist() == [LARGEST, LARGEST - 3, LARGEST, -LARGEST, 3 - LARGEST, -LARGEST]
    assert np.all(released.lower <= ends)
    assert np.all(ends <= released.upper)
    assert int(released.upper.max()) == LARGEST
    assert int(released.lower.min()) == -LARGEST


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", ["1", "0.25", "0.01"])
@pytest.mark.parametrize("integer", [True, False])
def test_released_columns_have_their_types_and_units(kind: str, step: str, integer: bool) -> None:
    m, totals = example(kind, Fraction(step)), np.arange(0, 50_000, 100, dtype=np.int64)
    released = release_cells(m, key=TEST_KEY, query=4, first=1000, totals=totals, interval=INTERVAL, integer=integer)
    whole = m.additive and integer
    for column in (released.value, released.lower, released.upper):
        assert column.dtype == (np.int64 if whole else np.float64)
        assert column.shape == totals.shape
    assert released.standard_error.dtype == np.float64
    assert np.all(released.lower <= released.value)
    assert np.all(released.value <= released.upper)
    unit = 1 if whole else Fraction(step)
    truth = np.array([float(int(total) * unit) for total in totals])
    inside = np.mean((released.lower <= truth) & (truth <= released.upper))
    assert inside > 0.89  # 500 cells at 95 %: fewer than 446 with probability 10⁻⁷
    if m.additive and not integer:
        assert all(Fraction(str(v)) % Fraction(step) == 0 for v in released.value.tolist())
    # The same cells in another block: the same values.
    part = release_cells(
        m, key=TEST_KEY, query=4, first=1200, totals=totals[200:300], interval=INTERVAL, integer=integer
    )
    assert part.value.tobytes() == released.value[200:300].tobytes()
    assert part.standard_error.tobytes() == released.standard_error[200:300].tobytes()


def test_what_each_kind_asks_of_the_data_is_declared() -> None:
    assert {kind: (m.additive, m.needs_nonnegative) for kind, m in CATALOGUE.items()} == {
        "gaussian": (True, False),
        "laplace": (True, False),
        "log": (False, True),
    }


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_noise_wider_than_the_range_of_values_is_refused(kind: str) -> None:
    assert build({"kind": kind, "sigma": 2**55}, Fraction(1))
    with pytest.raises(ParameterError, match="sigma"):
        build({"kind": kind, "sigma": 2**55 + 1}, Fraction(1))
    with pytest.raises(ParameterError, match="sigma"):
        build({"kind": kind, "sigma": 1}, Fraction(1, 2**56))
