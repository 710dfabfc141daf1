"""Functions that must be one function everywhere: the decided rounding of ln, and the reproducible exponential."""

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.support.lattice import CTX, real
from udfs.mechanisms.transformed_kinds import Log
from udfs.numbers.arrays import FINENESS, LARGEST, MARGIN, exp, floor_log2, lattice_step, round_decided

LOGS = [
    Log(a=Fraction(a), sigma=Fraction(sigma), step=Fraction(step))
    for a, sigma, step in [
        ("1", "0.1", "1"),
        ("1", "1e-4", "1"),  # the finest lattice: the slow path is met most often
        ("0.5", "2", "0.01"),
        ("1000", "1e-12", "0.25"),
        ("1e-9", "0.02", "1"),
        ("1e15", "1e-3", "1"),
    ]
]
Ints = NDArray[np.int64]


def rounded(m: Log, total: int) -> int:
    """⌊ln(q + a)/λ + ½⌋ with 400 bits, of which the answer leaves no doubt."""
    x = CTX.log(real(total * m.step + m.a)) / real(m.lattice_step) + CTX.mpf(1) / 2
    assert total * m.step + m.a == 1 or abs(x - CTX.nint(x)) > CTX.ldexp(1, -300)
    return int(CTX.floor(x))


def near_ties(m: Log, random: Random, size: int, least: int = 2**50, most: int = LARGEST) -> list[int]:
    """Totals whose ln(q + a)/λ lies as close to a half as whole totals allow: the larger, the closer."""
    bottom, top = (int(CTX.log(real(total * m.step + m.a)) / real(m.lattice_step)) for total in (least, most))
    halves = (random.randrange(bottom, top) for _ in range(size))
    found = (CTX.exp((n + CTX.mpf(1) / 2) * real(m.lattice_step)) - real(m.a) for n in halves)
    return [int(CTX.nint(x / real(m.step))) for x in found]


def totals_of(m: Log) -> Ints:
    random = Random(11)
    spread = [random.randrange(1 << random.randint(1, 63)) for _ in range(1500)]
    ends = [*range(200), LARGEST, LARGEST - 1, 2**53 - 1, 2**53, 2**53 + 1]
    return np.array([*spread, *ends, *near_ties(m, random, 500)], dtype=np.int64)


@pytest.mark.parametrize("m", LOGS, ids=str)
def test_logarithms_are_rounded_as_exact_arithmetic_rounds_them(m: Log) -> None:
    totals = totals_of(m)
    expected = [rounded(m, total) for total in totals.tolist()]
    assert m.on_lattice(totals).tolist() == expected
    assert [m.exactly_on_lattice(total) for total in totals[-600:].tolist()] == expected[-600:]
    # One function of the total: no matter where in which array it stands.
    for start, step in ((1, 1), (2, 3), (len(totals) - 3, 1), (7, 5)):
        part = np.ascontiguousarray(totals[start::step])
        assert m.on_lattice(part).tolist() == expected[start::step]


def rounding_of(m: Log, error_scale: float, last_bits: int) -> tuple[Callable[[Ints], Ints], list[int]]:
    """The mechanism's rounding with another error bound, f off by some last bits; and whom it asked about."""
    asked: list[int] = []

    def exactly(total: int) -> int:
        asked.append(total)
        return rounded(m, total)

    def of(totals: Ints) -> Ints:
        per_step = 1 / float(m.lattice_step)
        v = np.log(totals.astype(np.float64) * float(m.step) + float(m.a)) * (1 + last_bits * 2.0**-53) * per_step
        return round_decided(totals, v, float(m.evaluation_error) * per_step * error_scale, exactly)

    return of, asked


@pytest.mark.parametrize("m", LOGS[:3], ids=str)
@pytest.mark.parametrize("last_bits", [-6, 0, 6])
def test_a_few_last_bits_of_the_logarithm_change_nothing(m: Log, last_bits: int) -> None:
    totals = totals_of(m)
    expected = [rounded(m, total) for total in totals.tolist()]
    decided, asked = rounding_of(m, 1.0, last_bits)
    assert decided(totals).tolist() == expected
    assert len(asked) > 400  # the ties are near: the slow path is met
    assert len(set(asked)) == len(asked)  # once for each total
    undecided, unasked = rounding_of(m, 0.0, last_bits)  # the broken twin: no slow path
    if last_bits:
        assert undecided(totals).tolist() != expected
        assert not unasked


class Watched(Log):  # type: ignore[misc]  # no subclass but this one
    """Notes the totals that it decides exactly."""

    asked: ClassVar[list[int]] = []

    def exactly_on_lattice(self, total: int) -> int:
        self.asked.append(total)
        return super().exactly_on_lattice(total)


def test_every_total_whose_rounding_last_bits_could_change_is_decided_exactly() -> None:
    m = Watched(a=Fraction(1), sigma=Fraction(1, 10**4), step=Fraction(1), noise="gaussian", estimator="mean")
    totals = np.array(near_ties(m, Random(17), 1000, 2**45, 2**49))  # one total moves v by some last bits
    Watched.asked.clear()
    m.on_lattice(totals)
    doubtful = set()
    for total in totals.tolist():
        x = CTX.log(real(total * m.step + m.a)) / real(m.lattice_step) - CTX.mpf(1) / 2
        if abs(x - CTX.nint(x)) <= 4 * float(np.spacing(float(x))):
            doubtful.add(total)
    assert len(doubtful) > 400
    assert doubtful <= set(Watched.asked)


def test_the_slow_path_is_rare_for_totals_that_nobody_chose() -> None:
    m = LOGS[1]
    of, asked = rounding_of(m, 1.0, 0)
    of(np.random.default_rng(12).integers(0, LARGEST, 20_000))
    assert len(asked) < 20_000 * 2.0 ** (1 - MARGIN) * 1.5


def test_repeated_totals_are_decided_once_and_all_rounded_alike() -> None:
    m = LOGS[1]
    of, asked = rounding_of(m, 1.0, 0)
    tie = near_ties(m, Random(13), 1)[0]
    assert of(np.full(1000, tie)).tolist() == [rounded(m, tie)] * 1000
    assert asked == [tie]
    assert of(np.empty(0, dtype=np.int64)).shape == (0,)


def test_ln_one_is_exactly_zero() -> None:
    m = LOGS[0]
    assert m.exactly_on_lattice(0) == 0
    assert m.on_lattice(np.array([0])).tolist() == [0]


@settings(derandomize=True)
@given(st.fractions(min_value=Fraction(1, 10**40), max_value=10**40))
def test_floor_log2_is_exact(number: Fraction) -> None:
    e = floor_log2(number)
    assert Fraction(2) ** e <= number < Fraction(2) ** (e + 1)
    assert floor_log2(Fraction(2) ** e) == e


@settings(derandomize=True)
@given(*(st.fractions(min_value=Fraction(1, 10**15), max_value=10**6) for _ in range(2)))
def test_the_lattice_step_is_fine_and_far_above_the_error(sigma: Fraction, error: Fraction) -> None:
    step = lattice_step(sigma, error)
    assert step == Fraction(2) ** floor_log2(step)
    assert step >= error * 2**MARGIN
    assert step <= max(sigma / 2**FINENESS, error * 2 ** (MARGIN + 1))
    assert 2 * step > max(sigma / 2**FINENESS, error * 2**MARGIN)


def arguments() -> NDArray[np.float64]:
    rng = np.random.default_rng(14)
    halfway = (np.arange(-1022, 1023) + 0.5) * np.log(2)  # where the nearest power of two changes
    return np.concatenate([rng.uniform(-708, 709, 8000), rng.uniform(-1, 1, 4000), rng.normal(0, 1e-8, 500), halfway])


def last_bits_off(x: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    exact = [CTX.exp(CTX.mpf(value)) for value in x.tolist()]
    return max(float(abs(CTX.mpf(b) - e) / float(np.spacing(float(e)))) for b, e in zip(y.tolist(), exact, strict=True))


def test_the_exponential_errs_by_two_last_bits_at_most() -> None:
    x = arguments()
    assert last_bits_off(x, exp(x)) < 2
    assert last_bits_off(x[:500], exp(x[:500]) * (1 + 2.0**-51)) > 2  # the broken twin
    assert exp(np.array([0.0, -0.0])).tolist() == [1.0, 1.0]
    held = exp(np.array([-1e300, -745.5, 709.5, 1e300, -np.inf, np.inf]))
    np.testing.assert_array_equal(held, exp(np.array([-745.0, -745.0, 709.0, 709.0, -745.0, 709.0])))


def test_the_exponential_has_the_same_bits_at_every_place_of_every_array() -> None:
    x = arguments()[:2000]
    whole = exp(x)
    for start in range(33):
        assert exp(x[start : start + 40]).tobytes() == whole[start : start + 40].tobytes()
        assert exp(x[start : start + 1]).tobytes() == whole[start : start + 1].tobytes()
    for stride in (-3, -1, 2, 3, 7, 16):
        assert exp(x[::stride]).tobytes() == whole[::stride].tobytes()
    for other in (-745.0, -708.5, np.nan):  # 2^k is no usual double
        with np.errstate(invalid="ignore"):
            beside = exp(np.array([*x, -745.0, other]))
        assert beside[:-2].tobytes() == whole.tobytes()
        assert beside[-2] == exp(np.array([-745.0])) > 0
    square = exp(x.reshape(40, 50).T)
    assert np.ascontiguousarray(square.T).tobytes() == whole.tobytes()
    unaligned = np.frombuffer(b"\0" + x.tobytes(), dtype=np.float64, offset=1)
    assert exp(unaligned).tobytes() == whole.tobytes()
