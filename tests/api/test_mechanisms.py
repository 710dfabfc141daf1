"""prdp.mechanisms: the exact mechanisms, as floats and arrays."""

import doctest
from fractions import Fraction
from inspect import signature

import numpy as np
import pytest

import prdp.mechanisms
from pipeline.accounting.convert import approximate_epsilon
from tests.support.mechanisms import EXAMPLES, KINDS, example
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.noise.continuous import Gaussian, Laplace
from udfs.numbers.exact import up_float

CLOSED_FORMS = {"gaussian", "laplace", "generalized_gaussian", "exponential_polylog", "unit_splitting", "root", "log"}


def public(kind: str, **changes: object) -> prdp.mechanisms.Mechanism:
    of: type[prdp.mechanisms.Mechanism] = getattr(prdp.mechanisms, CATALOGUE[kind].__name__)
    return of(**EXAMPLES[kind] | changes)


def test_the_examples_of_its_docstrings_are_true() -> None:
    failed, tried = doctest.testmod(prdp.mechanisms)
    assert (failed, tried > 5) == (0, True)


def test_there_is_a_class_for_every_kind() -> None:
    assert set(prdp.mechanisms.__all__) == {"Mechanism", *(kind.__name__ for kind in CATALOGUE.values())}


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_and_arrays_are_those_of_the_exact_mechanism(kind: str) -> None:
    m, exact = public(kind), example(kind)
    assert m.mechanism == exact
    assert m.describe() == exact.describe() == {"kind": kind} | m.parameters
    assert list(signature(type(m)).parameters) == [*exact.parameters(), "step"]
    assert eval(repr(m)) == m
    for influence in (0, 1, 7.0):
        at = Fraction(influence)
        assert m.loss_at(influence) == up_float(exact.loss_at(at))
        pure = exact.pure_loss_at(at)
        assert m.pure_loss_at(influence) == (np.inf if pure is None else up_float(pure))
    influences = np.array([[0.0, 1.0], [2.0, 500.0]])
    np.testing.assert_array_equal(m.loss_at(influences), exact.loss(influences))
    np.testing.assert_array_equal(m.pure_loss_at(influences), exact.pure_loss(influences))
    totals = [0, 10, 1000]
    assert m.variance(totals).tolist() == [exact.variance(float(q)) for q in totals]
    assert m.mean_absolute_error(totals).tolist() == [exact.mean_absolute_error(float(q)) for q in totals]
    assert m.standard_error(10) == np.sqrt(exact.variance(10.0))
    assert type(m.standard_error()) is type(m.loss_at(1)) is float
    assert m.interval_around(10.0) == exact.interval_around(10.0, Fraction(19, 20))
    lower, upper = m.interval_around([10, 1000], 0.5)
    assert (lower[1], upper[1]) == exact.interval_around(1000.0, Fraction(1, 2))
    assert m.epsilon(3, 1e-6) <= approximate_epsilon(m.loss_at(3), 1e-6) * (1 + 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_continuous_laws_have_nearly_the_errors_of_wide_lattice_noise(kind: str) -> None:
    m = public(kind, **{"sigma": 2**12} if CATALOGUE[kind].additive and "sigma" in EXAMPLES[kind] else {})
    law = m.continuous
    if law is None:
        assert kind not in CLOSED_FORMS
    elif m.mechanism.additive:
        assert law.variance() == pytest.approx(m.variance(), rel=1e-2 if kind == "unit_splitting" else 1e-5)
        assert law.mean_absolute_error() == pytest.approx(m.mean_absolute_error(), rel=1e-2)
        assert law.cdf(law.quantile(0.3)) == pytest.approx(0.3)
        assert law.density(0.0) >= law.density(1.0) > 0
    else:
        assert law.variance(50.0) == pytest.approx(m.variance(50.0), rel=1e-9)
        assert law.mean_absolute_error(50.0) == pytest.approx(m.mean_absolute_error(50.0), rel=1e-4)


def test_laws_are_the_families() -> None:
    assert prdp.mechanisms.Gaussian(sigma=3).continuous == Gaussian(sigma=3)
    assert prdp.mechanisms.Laplace(sigma=3).continuous == Laplace(scale=3)
    assert prdp.mechanisms.Log(a=1, sigma=0.1, estimator="median").continuous is None


def test_what_has_no_meaning_is_refused() -> None:
    m = public("laplace")
    for wrong in (-1, float("nan"), [1, -1], [float("inf")]):
        with pytest.raises(ValueError, match="influence"):
            m.loss_at(wrong)
    with pytest.raises(ValueError, match="interval"):
        m.interval_around(1, 1.0)
    with pytest.raises(ValueError, match="total"):
        m.variance([float("nan")])
    with pytest.raises(ValueError, match="sigma"):
        prdp.mechanisms.Laplace(sigma=0)
    with pytest.raises(ValueError, match="scale"):
        prdp.mechanisms.Laplace(sigma=1, scale=2)


def test_small_influences_lose_something_and_large_ones_are_refused() -> None:
    m = public("gaussian")
    for small in (1e-300, 1e-160):
        assert m.loss_at([small])[0] >= m.loss_at(small) > 0
    assert m.loss_at([0.0])[0] == 0
    for large in (10**400, [10**400]):
        with pytest.raises(ValueError, match="influence"):
            m.loss_at(large)


def test_a_step_without_a_decimal_is_shown_as_a_fraction() -> None:
    m = public("gaussian", step=Fraction(1, 3))
    assert "step=Fraction(1, 3)" in repr(m)
    assert eval(repr(m)) == m
