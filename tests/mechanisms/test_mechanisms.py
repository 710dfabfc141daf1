"""Policies against their formulas in high precision, and the papers' numbers."""

from fractions import Fraction
from random import Random

import numpy as np
import pytest

from tests.support.cases import sizes
from tests.support.lattice import CTX, real
from tests.support.mechanisms import EXAMPLES, KINDS, ONE, formulas, random_specs
from udfs.mechanisms.catalogue import CATALOGUE, build

EMPLOYEES = (5, 5, 10, 20, 30, 10_000)
E = 2.718281828459045


def test_every_kind_has_an_example_here() -> None:
    assert set(EXAMPLES) == set(CATALOGUE)


@pytest.mark.parametrize(
    ("spec", "losses"),
    [
        ({"kind": "unit_splitting", "threshold": 10, "rho": 1, "policy": "paper"}, [1, 1, 1, 4, 9, 1_000_000]),
        ({"kind": "root", "k": 4, "a": 0, "sigma": 2}, [0.2795, 0.2795, 0.3953, 0.5590, 0.6847, 12.5]),
        ({"kind": "log", "a": 1, "sigma": 2}, [0.4013, 0.4013, 0.7187, 1.1586, 1.4740, 10.6040]),
    ],
)
def test_table_1_of_the_paper(spec: dict[str, object], losses: list[float]) -> None:
    m = build(spec, ONE)
    assert [round(float(m.loss_at(Fraction(employees))), 4) for employees in EMPLOYEES] == losses


@pytest.mark.parametrize(
    ("spec", "losses"),
    [
        ({"kind": "generalized_gaussian", "p": 0.5, "sigma": 5}, {2: 0.1936, 10: 0.8611, 50: 2.905, 1000: 14.14}),
        ({"kind": "exponential_polylog", "p": 2, "d": 1.5, "a": E, "sigma": 20}, {10: 0.1472, 50: 2.234, 200: 8.196}),
    ],
)
def test_the_papers_bounds_of_math_section_9(spec: dict[str, object], losses: dict[int, float]) -> None:
    m = build(spec | {"policy": "paper"}, ONE)
    assert {x: float(f"{float(m.loss_at(Fraction(x))):.4g}") for x in losses} == losses


def test_unit_splitting_needs_no_more_noise_than_its_pieces() -> None:
    m = build({"kind": "unit_splitting", "threshold": 10, "rho": 1}, ONE)
    assert m.variance(0.0) == pytest.approx(50, rel=1e-12)  # T²/(2ρ)


def test_unit_splitting_states_the_loss_of_its_noise_or_that_of_its_pieces() -> None:
    given: dict[str, object] = {"kind": "unit_splitting", "threshold": 10, "rho": 1}
    m, sizes = build(given, ONE), np.arange(200.0)
    assert m.describe()["policy"] == "tight"
    assert m.loss(sizes) == pytest.approx(sizes**2 / 100, rel=1e-11)  # Δ²/(2·50)
    assert m.by_paper().loss(sizes) == pytest.approx(np.ceil(sizes / 10) ** 2, rel=1e-11)
    assert [float(m.loss_at(Fraction(x))) for x in (1, 15)] == [0.01, 2.25]
    assert m.by_paper() == build(given | {"policy": "paper"}, ONE)


def influences(random: Random, step: Fraction, size: int) -> list[Fraction]:
    return [random.randrange(1, 1 << random.randint(1, 62)) * step for _ in range(size)]


@sizes(few=20, many=60)
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_their_formulas_rounded_up(kind: str, count: int) -> None:
    random, tight = Random(6), 1 + CTX.mpf(10) ** -19  # what udfs.numbers.exact promises
    for _ in range(count):
        spec, step = random_specs(kind, random), Fraction(random.choice(["1", "0.01", "0.25"]))
        spec |= {"alpha": "1"} if kind == "symmetric_stable" else {}  # others have no formula
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
