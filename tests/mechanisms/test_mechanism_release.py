"""What every kind releases: totals plus the drawn noise, saturated; pickles, types, units and steps."""

import pickle
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from tests.support.bits import TEST_KEY, Injected, cell_bits, words_that_draw
from tests.support.guarantee import noise_of
from tests.support.kinds import REGISTRY
from tests.support.lattice import CTX, real
from tests.support.mechanisms import ADDITIVE, INTERVAL, KINDS, example
from udfs.mechanisms.base import Mechanism
from udfs.mechanisms.catalogue import CATALOGUE
from udfs.mechanisms.release import release_cells, release_frame
from udfs.noise.lattice import CHUNK, draw_noise
from udfs.numbers.arrays import LARGEST


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_mechanism_carries_its_table_and_draws_the_same(kind: str) -> None:
    m = example(kind)
    table = m.lattice_noise.table
    again = pickle.loads(pickle.dumps(m))
    assert again == m
    assert hash(again) == hash(m)
    assert vars(again.lattice_noise)["table"] == table
    totals = np.arange(500, dtype=np.int64) ** 3
    one, two = (x.release(totals, cell_bits(500), INTERVAL) for x in (m, again))
    for name in ("value", "lower", "upper", "standard_error"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    with pytest.raises(AttributeError):
        m.sigma = Fraction(2)  # type: ignore[attr-defined]


class Meanwhile:
    """What, when it is pickled, adds an attribute to `of`, as another thread may."""

    def __init__(self, of: Mechanism) -> None:
        self.of = of

    def __reduce__(self) -> tuple[type, tuple[()]]:
        vars(self.of)["more"] = 1
        return int, ()


def test_a_mechanism_is_pickled_as_it_was_though_more_is_computed_meanwhile() -> None:
    m = example("gaussian")
    vars(m)["meanwhile"] = Meanwhile(m)
    assert vars(pickle.loads(pickle.dumps(m))).keys() == vars(m).keys() - {"more"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_cell_is_released_the_same_whatever_is_released_with_it(kind: str) -> None:
    m, size = example(kind), CHUNK + 100
    totals = np.where(np.arange(size) % 3 == 0, np.arange(size, dtype=np.int64) ** 2, 0)
    order = np.random.default_rng(1).permutation(size)[:300]

    def released(cells: np.ndarray) -> list[np.ndarray]:
        frame = {"cell": cells, "total": totals[cells]}
        columns = release_cells(frame, (m,), key=TEST_KEY, query=0, interval=INTERVAL, integer=True)
        return list(vars(columns).values())

    whole = released(np.arange(size))
    for cells in (order, np.arange(CHUNK - 1, CHUNK + 1), np.flatnonzero(totals == 0)[:1], order[:0]):
        for column, of_whole in zip(released(cells), whole, strict=True):
            assert column.tobytes() == of_whole[cells].tobytes()


@pytest.mark.parametrize("kind", ADDITIVE)
@pytest.mark.parametrize("step", ["1", "0.25", "0.01", "3"])
def test_additive_values_are_totals_plus_the_drawn_noise(kind: str, step: str) -> None:
    m, size = example(kind, Fraction(step)), 4000
    noise = noise_of(m)
    totals = np.random.default_rng(9).integers(-(1 << 62), 1 << 62, size)
    released = m.release(totals, cell_bits(size), INTERVAL)
    distance, negative = draw_noise(m.lattice_noise.table, cell_bits(size), size)
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


@pytest.mark.parametrize("kind", ADDITIVE)
def test_additive_values_and_intervals_saturate_and_still_cover(kind: str) -> None:
    m = example(kind)
    ends = np.array([LARGEST, LARGEST, LARGEST - 1, -LARGEST, -LARGEST, 1 - LARGEST], dtype=np.int64)
    noise = [1, -3, 5, -1, 3, -5]
    released = m.release(
        ends, Injected([[words_that_draw(m.lattice_noise.table, k) for k in noise]], lambda *_: 0), INTERVAL
    )
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
    how = {"key": TEST_KEY, "query": 4, "interval": INTERVAL, "integer": integer}
    released = release_cells({"cell": np.arange(1000, 1500), "total": totals}, (m,), **how)
    whole = m.additive and integer
    for column in (released.value, released.lower, released.upper):
        assert column.dtype == (np.int64 if whole else np.float64)
        assert column.shape == totals.shape
    assert released.standard_error.dtype == np.float64
    assert np.all(released.lower <= (released.value if m.additive else np.maximum(released.value, 0)))  # cut at 0
    assert np.all(released.value <= released.upper)
    unit = 1 if whole else Fraction(step)
    truth = np.array([float(int(total) * unit) for total in totals])
    inside = np.mean((released.lower <= truth) & (truth <= released.upper))
    assert inside > 0.89  # 500 cells at 95 %: fewer than 446 with probability 10⁻⁷
    if m.additive and not integer:
        assert all(Fraction(str(v)) % Fraction(step) == 0 for v in released.value.tolist())
    # The same cells in another partition, as a pandas frame: the same values.
    frame = pd.DataFrame({"cell": np.arange(1200, 1300), "total": totals[200:300]}, index=np.arange(7, 107))
    part = release_frame(frame, (m,), **how)
    assert part.index.equals(frame.index)
    assert list(part) == list(vars(released))
    for name, column in vars(released).items():
        assert part[name].to_numpy().tobytes() == column[200:300].tobytes()


def test_what_each_kind_asks_of_the_data_is_declared() -> None:
    for kind, m in CATALOGUE.items():
        assert (m.additive, m.needs_nonnegative) == (REGISTRY[kind].additive, not REGISTRY[kind].additive)
