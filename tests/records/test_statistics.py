"""What every statistic promises, for each of the registry: a new one is tested by being in it."""

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udfs.records.statistics import STATISTICS, Statistic, statistic_of

EACH = tuple(each("x") if each.reads_measure else each() for each in STATISTICS.values())
STEPS = st.integers(-(10**6), 10**6)


def at(value: Fraction) -> Mapping[str, Fraction]:
    return {"x": value}


@pytest.mark.parametrize("statistic", EACH, ids=lambda each: each.kind)
@given(steps=st.lists(STEPS, min_size=1), step=st.sampled_from([Fraction(1), Fraction(1, 4), Fraction(1000)]))
def test_addends_of_a_batch_are_those_of_each_record(statistic: Statistic, steps: list[int], step: Fraction) -> None:
    addends = statistic.addends({"x": np.array(steps, dtype=np.int64)}, len(steps))
    assert addends.dtype == np.int64
    exact = [statistic.addend_at(at(value * step)) for value in steps]
    assert [int(addend) * statistic.step(step) for addend in addends] == exact
    assert statistic.can_be_negative or min(exact) >= 0
    assert not statistic.counts or {abs(addend) for addend in exact} == {1}


@pytest.mark.parametrize("statistic", EACH, ids=lambda each: each.kind)
@given(one=STEPS.map(Fraction), other=STEPS.map(Fraction))
def test_influences_grow_with_values_and_factors_bound_addends(
    statistic: Statistic, one: Fraction, other: Fraction
) -> None:
    small, large = sorted((abs(one), abs(other)))
    assert statistic.influence(at(small)) == statistic.influence(at(-small)) <= statistic.influence(at(large))
    if small:
        bound = statistic.factor(large / small)
        assert statistic.influence(at(large)) <= bound * statistic.influence(at(small))


@pytest.mark.parametrize("statistic", EACH, ids=lambda each: each.kind)
def test_a_statistic_is_read_back_from_its_json(statistic: Statistic) -> None:
    assert statistic_of(statistic.to_json()) == statistic
    assert statistic.measures == (("x",) if statistic.reads_measure else ())
    with pytest.raises(ValueError, match="measure"):
        type(statistic)(None if statistic.reads_measure else "x")


def test_columns_of_addends_have_names_of_their_own() -> None:
    names = [statistic.addend for statistic in EACH]
    assert len(set(names)) == len(names)
    assert all(name.startswith("(") for name in names if name != "x")  # so that no measure has them
