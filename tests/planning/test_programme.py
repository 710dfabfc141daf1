"""A programme's scales make as many cells usable as a search finds, keep what is wished, and say the nearest."""

from dataclasses import replace
from fractions import Fraction
from math import sqrt
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import norm

from pipeline.accounting.allocation_problem import Problem
from pipeline.accounting.calibrate import Family
from pipeline.accounting.level_errors import Lattice, LatticeTable
from pipeline.accounting.targets import CalibrationError, Target
from pipeline.planning import allocation
from pipeline.planning.allocation import FEWER, Settled, settled
from pipeline.planning.programme import Curve, Curves, Programme, Stack
from pipeline.planning.programme_search import Unreached, is_programme
from tests.support.allocated import problem

GAUSSIAN = {"kind": "gaussian"}
POLYLOG = {"kind": "exponential_polylog", "p": 1, "d": 5, "a": 1}
SIZES = (
    ((5.0, 10.0), (50.0, 10.0), (200.0, 5.0)),
    ((40.0, 30.0), (900.0, 5.0)),
    ((200.0, 1.0), (1000.0, 9.0), (1e5, 2.0)),
)
ERRORS = [Target.of("unusable", within=Fraction("0.3"), sizes=sizes) for sizes in SIZES]


def programme(kinds: Any, limits: Any, lattices: Any = (), wishes: Any = (None, None, None), **more: Any) -> Problem:
    """Return a problem of usable cells, with a wished share of each table."""
    asked = problem(kinds, [1] * len(kinds), limits)
    unknowns = [
        replace(each, error=error, usable_share=None if wish is None else Fraction(wish))
        for each, error, wish in zip(asked.unknowns, ERRORS, wishes, strict=False)
    ]
    return replace(asked, unknowns=unknowns, lattices=list(lattices), **more)


def polylog() -> Family:
    fixed = (("a", 1), ("d", 5), ("p", 1))
    return Family("exponential_polylog", "sigma", fixed, Fraction(1), may_be_narrow=False)


def nested(*members: int) -> Lattice:
    """Three nested tables, the finest first, of 24 cells in 4 in 1."""
    tables = [LatticeTable.of(e, {i: 1.0}) for e, i in zip((2, 1, 0), members, strict=True)]
    return Lattice(np.array([1.0, 4.0, 24.0]), np.triu(np.ones((3, 3), dtype=bool)), tables)


def missed(variances: Any) -> float:
    """Return the mean over tables of P(|error| > 0.3·total), of normal errors, by SciPy."""
    shares = []
    for sizes, variance in zip(SIZES, variances, strict=True):
        totals, counts = np.array(sizes).T
        shares.append(np.average(2 * norm.sf(0.3 * totals / sqrt(variance)), weights=counts))
    return float(np.mean(shares))


def usable(sizes: Any, variance: float) -> float:
    totals, counts = np.array(sizes).T
    return float(counts[0.3 * totals >= sqrt(variance)].sum() / counts.sum())


def variances(of: Settled) -> Any:
    policy = of.problem.at(of.numbers)
    own = [each.mechanism.variance(0.0) for each in policy.queries]
    lattices = of.problem.lattices
    return lattices[0].reconciled(own) if lattices else own


@pytest.mark.parametrize("lattices", [(), (nested(0, 1, 2),)])
def test_as_many_cells_are_usable_as_a_search_over_all_shares_finds(lattices: Any) -> None:
    asked = programme([GAUSSIAN] * 3, [((10, 10, 10), "0.5")], lattices)
    assert is_programme(asked)
    result = settled(asked)
    assert result.problem.keeps(result.problem.at(result.numbers))
    grid = np.linspace(0.005, 0.99, 60)
    shares = [np.array([u, v, 1 - u - v]) for u in grid for v in grid if u + v < 1 - 1e-9]

    def of(share: Any) -> float:
        own = 100 / (2 * 0.5 * share)
        return missed(lattices[0].reconciled(own) if lattices else own)

    best = min(map(of, shares))
    assert missed(variances(result)) <= best + 2e-3
    assert of(np.ones(3) / 3) > best + 1e-2  # a broken twin: the limit in equal parts


def test_slopes_are_those_of_differences() -> None:
    asked = programme([GAUSSIAN, POLYLOG, GAUSSIAN], [((10, 40, 10), 1), ((90, 900, 500), 30)], (nested(0, 1, 2),))
    functions = Programme(asked, Curves({Fraction(1): Fraction(900)}), range(3))
    functions.add_worst(asked.policy)
    x = np.array([3.0, 4.0, 5.0])
    assert approx_fprime(x, lambda y: functions.missed(y)[0], 1e-6) == pytest.approx(functions.missed(x)[1], rel=1e-4)
    for row in range(len(functions.sets)):
        slopes = approx_fprime(x, lambda y, row=row: functions.spent(y)[0][row], 1e-6)
        assert slopes == pytest.approx(functions.spent(x)[1][row], rel=1e-4)


def test_curves_are_those_of_the_mechanisms_between_knots() -> None:
    family = polylog()
    curves = Curves({Fraction(1): Fraction(1000)})
    for x in (1.3, 4.1, 8.8):
        mechanism = family.at(family.number_at(x))
        assert mechanism is not None
        loss = np.exp(curves.loss(family, Fraction(100)).value(x))
        assert loss == pytest.approx(float(mechanism.loss_at(Fraction(100))), rel=5e-3)
        assert np.exp(curves.variance(family).value(x)) == pytest.approx(mechanism.variance(0.0), rel=5e-3)


def test_curves_evaluated_at_once_are_those_of_scipy_to_the_last_bit() -> None:
    random = np.random.default_rng(3)
    curves = [Curve(np.cumsum(random.uniform(0.4, 0.6, n)), random.normal(0, 3, n)) for n in (2, 9, 30)]
    some = [curves[k] for k in (1, 0, 2, 1, 1, 2)]
    ends = np.array([[each.knots[0], each.knots[-1]] for each in some]).T
    for x in (*ends, *random.uniform(ends[0] - 0.1, ends[1] + 0.1, (200, len(some)))):
        values, slopes = Stack(some)(x)
        assert values.tolist() == [float(each.value(y)) for each, y in zip(some, x, strict=True)]
        assert slopes.tolist() == [float(each.slope(y)) for each, y in zip(some, x, strict=True)]


def test_wished_shares_are_met_and_cost_the_others() -> None:
    free = settled(programme([GAUSSIAN] * 3, [((10, 10, 10), "0.5")]))
    wish = 0.6
    assert usable(SIZES[0], variances(free)[0]) < wish
    held = settled(programme([GAUSSIAN] * 3, [((10, 10, 10), "0.5")], wishes=(wish, None, None)))
    assert held.problem.keeps(held.problem.at(held.numbers))
    assert usable(SIZES[0], variances(held)[0]) >= wish
    assert missed(variances(held)) >= missed(variances(free)) - 1e-6


def test_what_cannot_be_had_is_refused_with_the_nearest_in_closed_form() -> None:
    """One table spends all: σ = Δ/√(2ρ) = 100, but 0.3·50 = 15 is wished."""
    asked = programme([GAUSSIAN], [((10,), "0.005")], wishes=("0.6",))
    with pytest.raises(Unreached, match=r": 0 in place of 0\.6") as refused:
        settled(asked)
    times = float(str(refused.value).split("standard errors ")[1].split(" times")[0])
    assert times == pytest.approx(100 / (0.3 * 50), rel=1e-2)


def test_another_kind_is_taken_where_a_large_record_loses_less_by_it() -> None:
    limits = [((10, 10, 10), 1), ((100_000, 100_000, 100_000), 60)]
    plain = settled(programme([GAUSSIAN] * 3, limits))
    choice = programme([GAUSSIAN] * 3, limits)
    unknowns = [replace(each, choices=[{v: polylog()}]) for v, each in enumerate(choice.unknowns)]
    better = settled(replace(choice, unknowns=unknowns))
    assert "exponential_polylog" in {each.family.kind for each in better.problem.unknowns}
    assert better.problem.keeps(better.problem.at(better.numbers))
    assert missed(variances(better)) < missed(variances(plain)) - 0.1


def test_a_table_that_finer_ones_tell_is_derived_and_one_that_nothing_tells_is_not() -> None:
    asked = programme([GAUSSIAN] * 3, [((10, 10, 10), 2)], (nested(0, 1, 2),), derive=True)
    everything = settled(replace(asked, derive=False))
    fewer = settled(asked)
    assert fewer.derived
    assert 0 in [i for each in fewer.problem.unknowns for i in each.members]  # the finest is told by nothing else
    assert missed(variances(fewer)) <= missed(variances(everything)) + 1e-3
    apart = settled(programme([GAUSSIAN] * 3, [((10, 10, 10), 2)], derive=True))
    assert not apart.derived


def test_of_a_table_with_parts_none_is_left_out_alone() -> None:
    """Two parts of the nation's table have scales of their own: leaving one out would leave half a table."""
    split = LatticeTable.of(0, {2: 0.5, 3: 0.5})
    lattice = replace(nested(0, 1, 2), tables=[LatticeTable.of(2, {0: 1.0}), LatticeTable.of(1, {1: 1.0}), split])
    asked = problem([GAUSSIAN] * 4, [1] * 4, [((10, 10, 10, 10), 2)])
    large = Target.of("unusable", within=Fraction("0.3"), sizes=((1e9, 1.0),))  # usable whatever is measured
    errors = [ERRORS[0], large, ERRORS[2], ERRORS[2]]
    unknowns = [replace(each, error=error) for each, error in zip(asked.unknowns, errors, strict=True)]
    result = settled(replace(asked, unknowns=unknowns, lattices=[lattice], derive=True))
    left_out = {i for each in result.derived for i in each.members}
    assert left_out.isdisjoint({2, 3})
    assert left_out == {1}  # a whole table is


def test_a_wish_that_rounding_would_miss_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = programme([GAUSSIAN] * 3, [((10, 10, 10), "0.5")], wishes=("0.6", None, None))
    assert settled(asked).numbers
    rounded = allocation._rounded
    monkeypatch.setattr(allocation, "_rounded", lambda *given: {v: n + 500 * FEWER for v, n in rounded(*given).items()})
    with pytest.raises(Unreached, match=r"in place of 0\.6"):
        settled(asked)


def test_what_only_programmes_have_is_refused_elsewhere() -> None:
    asked = programme([{"kind": "log", "a": 100}, GAUSSIAN], [((10, 10), 2)], wishes=("0.6", None))
    with pytest.raises(CalibrationError, match="usable, kinds and derive go with"):
        settled(asked)
