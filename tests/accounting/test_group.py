"""The loss of a group of records: worked values, exact upper bounds, and divergences of the real noise beneath them."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp

from pipeline.accounting.placements import ROOT_BITS, one_cell, pure, root_above, simple, tight
from tests.support.divergence import renyi
from tests.support.lattice import Noise
from udfs.mechanisms.additive_kinds import Gaussian, Laplace
from udfs.mechanisms.transformed_kinds import Log

TABLE_1 = [Fraction(p) for p in (1, 1, 1, 4, 9, 1_000_000)]  # unit splitting, paper 1, table 1
LOSSES = st.lists(st.fractions(min_value=0, max_value=10**6, max_denominator=10**9), max_size=6)
RECORDS = st.lists(st.integers(1, 10**6).map(Fraction), min_size=1, max_size=5)


def test_the_six_establishments_of_paper_1() -> None:
    assert simple(TABLE_1) == 6_000_096
    assert tight(TABLE_1) == 1_016_064  # (1 + 1 + 1 + 2 + 3 + 1000)²
    assert pure(TABLE_1) == 1_000_016


@pytest.mark.parametrize(
    ("losses", "exact"),
    [
        ([], 0),
        ([Fraction(3, 7)], Fraction(3, 7)),
        ([Fraction(2)] * 5, 50),
        ([Fraction(2), Fraction(0), Fraction(8)], 18),
    ],
)
def test_groups_whose_tight_loss_is_rational(losses: list[Fraction], exact: Fraction) -> None:
    assert tight(losses) == exact
    assert simple(losses) == len(losses) * sum(losses)


@given(losses=LOSSES)
def test_the_tight_loss_is_an_upper_bound_and_hardly_more(losses: list[Fraction]) -> None:
    with mp.workprec(4 * ROOT_BITS):
        exact = mp.fsum(mp.sqrt(mp.mpf(p.numerator) / p.denominator) for p in losses) ** 2
        bound = tight(losses)
        above = mp.mpf(bound.numerator) / bound.denominator - exact
        noise = exact * mp.mpf(2) ** (-3 * ROOT_BITS)
        assert -noise <= above <= exact * mp.mpf(2) ** (10 - ROOT_BITS) + noise
    # roots may be rounded up, so a group of equal losses is compared with its exact value
    assert bound <= simple(losses) * (1 + Fraction(1, 2**100))
    assert bound >= sum(losses)


def test_a_loss_with_many_digits_alone_is_itself_and_many_of_them_stay_short() -> None:
    losses = [Fraction(1, 3) ** (700 + i) * 2**1100 for i in range(50)]
    assert tight(losses[:1]) == losses[0]
    bound = tight(losses)
    assert bound.denominator.bit_length() < 2000
    with mp.workprec(600):
        exact = mp.fsum(mp.sqrt(mp.mpf(p.numerator) / p.denominator) for p in losses) ** 2
        assert exact <= mp.mpf(bound.numerator) / bound.denominator <= exact * (1 + mp.mpf(2) ** -100)


@given(x=st.fractions(min_value=0, max_value=10**40) | st.fractions(min_value=0, max_value=Fraction(1, 10**40)))
def test_roots_are_rounded_up(x: Fraction) -> None:
    root = root_above(x)
    assert root**2 >= x
    assert (root * (1 - Fraction(1, 2 ** (ROOT_BITS - 1)))) ** 2 <= x
    assert root_above(x**2) == x


def test_a_root_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 0"):
        root_above(Fraction(-1))


@given(influences=RECORDS)
def test_records_of_one_cell_lose_what_their_sum_does_and_the_tight_group_loss_bounds_it(
    influences: list[Fraction],
) -> None:
    mechanism = Gaussian(sigma=Fraction(3))
    together = one_cell(mechanism.loss_at, tight, influences)
    assert together == sum(influences) ** 2 / 18  # Gaussian noise: the tight form is attained
    assert tight(mechanism.loss_at(d) for d in influences) >= together
    alone = pure(mechanism.loss_at(d) for d in influences)  # a broken group loss, which adds up
    assert alone >= together if len(influences) == 1 else alone < together


@pytest.mark.parametrize("influences", [(3, 4), (1, 1, 1), (2, 9), (10, 10)])
def test_the_divergence_of_laplace_noise_lies_below_the_bounds_of_a_cell(influences: tuple[int, ...]) -> None:
    mechanism = Laplace(sigma=Fraction(8))
    steps = [Fraction(d) for d in influences]
    bound = float(one_cell(mechanism.loss_at, tight, steps))
    assert bound <= float(tight(mechanism.loss_at(d) for d in steps))
    noise, shift = Noise(1, Fraction(8)), sum(influences)
    for alpha in map(Fraction, ("1.01", "2", "5", "30")):
        divergence = renyi(noise, shift, alpha)
        assert divergence <= float(alpha) * bound
        assert divergence <= float(one_cell(mechanism.pure_loss_at, pure, steps))  # type: ignore[arg-type]
    largest = float(max(mechanism.loss_at(d) for d in steps))  # a group loss that forgets all but the largest
    assert renyi(noise, shift, Fraction("1.01")) > 1.01 * largest


def test_a_log_cell_of_many_records_loses_far_less_than_the_group_of_its_losses() -> None:
    mechanism = Log(a=Fraction(1), sigma=Fraction(2))
    influences = [Fraction(10)] * 20
    together = one_cell(mechanism.loss_at, tight, influences)
    assert together == mechanism.loss_at(Fraction(200))
    assert float(together) == pytest.approx(math.log(201) ** 2 / 8, rel=1e-7)
    assert float(tight(mechanism.loss_at(d) for d in influences)) == pytest.approx(
        400 * math.log(11) ** 2 / 8, rel=1e-7
    )


def test_a_cells_policy_that_is_worse_than_the_group_is_passed_over() -> None:
    def fourth_power(influence: Fraction) -> Fraction:
        return influence**4

    assert one_cell(fourth_power, tight, [Fraction(1), Fraction(2)]) == (1 + 4) ** 2 < 3**4
