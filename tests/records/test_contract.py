import pickle
from collections.abc import Callable, Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.leaks import found, told
from udfs.records.contract import ContractBroken, Fault, MeasureColumn, Rule, text_codes, whole_steps

LARGEST = 2**63 - 1
STEPS = tuple(map(Fraction, ("1", "0.01", "0.25", "1/3", "7/10", "1000", str(10**30), f"1/{10**18}", str(LARGEST))))
FLOAT_STEPS = tuple(step for step in STEPS if Fraction(1, 1000) < step < 10**30)
INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
FLOATS: dict[pa.DataType, Any] = {pa.float16(): np.float16, pa.float32(): np.float32, pa.float64(): np.float64}
DECIMALS = (
    (pa.decimal32(9, 2), 9, 2),
    (pa.decimal64(18, 0), 18, 0),
    (pa.decimal64(18, 6), 18, 6),
    (pa.decimal128(38, 0), 38, 0),
    (pa.decimal128(38, 2), 38, 2),
    (pa.decimal128(38, 30), 38, 30),
    (pa.decimal256(38, 2), 38, 2),
    (pa.decimal256(76, 2), 76, 2),
    (pa.decimal256(76, 60), 76, 60),
)
CANARY = 777_123_456_789
Whole = Callable[[pa.Array, MeasureColumn], tuple[Any, list[Fault]]]

steps = st.sampled_from(STEPS)


def measure(step: Fraction, nonnegative: bool = False) -> MeasureColumn:
    return MeasureColumn("amount", "column", step, nonnegative)


def in_steps(value: Fraction | Rule, step: Fraction) -> int | Rule:
    """Return the number of steps in an exact value, or the rule that it breaks."""
    if isinstance(value, Rule):
        return value
    if abs(value / step) > LARGEST:
        return Rule.RANGE
    return int(value / step) if (value / step).denominator == 1 else Rule.STEP


def check(array: pa.Array, expected: Sequence[int | Rule], given: MeasureColumn, whole: Whole = whole_steps) -> None:
    """Compare with the expectation, at every offset that a slice may have."""
    junk = pa.concat_arrays([array[:1], array, array[:1]])
    for values in (array, junk[min(len(array), 1) :][: len(array)]):
        counted, faults = whole(values, given)
        assert counted.dtype == np.int64
        assert counted.tolist() == [0 if isinstance(e, Rule) else e for e in expected]
        told = {rule: rows.tolist() for column, rule, rows in faults if column == "column"}
        assert len(told) == len(faults)
        for rule in (Rule.EMPTY, Rule.WORD, Rule.SIGNS, Rule.STEP, Rule.RANGE):
            rows = [e is rule for e in expected]
            assert told.pop(rule, [False] * len(rows)) == rows
        below = [not isinstance(e, Rule) and e < 0 for e in expected] if given.nonnegative else []
        assert told.pop(Rule.NEGATIVE, [False] * len(below)) == below
        assert not told


def test_what_such_text_often_is() -> None:
    values = ["$500", "D", "12.37", "1,000", "(12)", "NA", "5 jobs", "", " ", "9" * 30, "7", "\u0663"]
    rules = [Rule.SIGNS, Rule.WORD, Rule.STEP, Rule.SIGNS, Rule.SIGNS, Rule.WORD, Rule.SIGNS, Rule.EMPTY, Rule.EMPTY]
    check(pa.array(values), [*rules, Rule.RANGE, 7, Rule.WORD], measure(Fraction(1)))


def expected(values: Sequence[Any], step: Fraction, exact: Callable[[Any], Fraction | Rule]) -> list[int | Rule]:
    return [Rule.EMPTY if value is None else in_steps(exact(value), step) for value in values]


@given(st.data(), st.sampled_from(INTEGERS), steps, st.booleans())
def test_integers(data: st.DataObject, kind: pa.DataType, step: Fraction, nonnegative: bool) -> None:
    ends = np.iinfo(kind.to_pandas_dtype())
    near = [n for k in (0, 1, 25, 1000, LARGEST, -LARGEST) for n in (k - 1, k, k + 1) if ends.min <= n <= ends.max]
    number = st.integers(int(ends.min), int(ends.max)) | st.sampled_from([*near, int(ends.min), int(ends.max)])
    values = data.draw(st.lists(st.none() | number))
    check(pa.array(values, kind), expected(values, step, Fraction), measure(step, nonnegative))


def test_ends_of_63_bits() -> None:
    values = [LARGEST, -LARGEST, -LARGEST - 1]
    check(pa.array(values, pa.int64()), [LARGEST, -LARGEST, Rule.RANGE], measure(Fraction(1)))
    check(pa.array([LARGEST, LARGEST + 1, 2**64 - 1], pa.uint64()), [LARGEST, *[Rule.RANGE] * 2], measure(Fraction(1)))
    third = LARGEST // 3  # 2⁶³ − 1 is no multiple of 4: beyond it by one is off by overflow alone
    check(pa.array([third, third + 1], pa.int64()), [third * 3, Rule.RANGE], measure(Fraction(1, 3)))
    check(pa.array([-1, 0, 1]), [-1, 0, 1], measure(Fraction(1), nonnegative=True))
    lowest = pa.array([Decimal(-LARGEST - 1)], pa.decimal128(38, 0))
    check(lowest, [Rule.RANGE], measure(Fraction(1)))
    wide = [Decimal(LARGEST), Decimal(-LARGEST), Decimal(LARGEST + 1), Decimal(-LARGEST - 1), Decimal(2**64 + 5)]
    check(pa.array(wide, pa.decimal128(38, 0)), [LARGEST, -LARGEST, *[Rule.RANGE] * 3], measure(Fraction(1)))


def nearest_multiple(x: Any, step: Fraction) -> int | Rule:
    """Return the multiple that a float stands for: the nearest one, if no float is nearer to that multiple."""
    if not np.isfinite(x):
        return Rule.WORD
    multiple = round(Fraction(float(x)) / step)
    if abs(multiple) * step.numerator >= 2**53:
        return Rule.RANGE
    exact = multiple * step
    distance, others = abs(Fraction(float(x)) - exact), [abs(n - exact) for n in neighbours(x)]
    if distance in others:  # midway between two floats: the even one, as in every rounding
        return multiple if type(x)(float(exact)) == x else Rule.STEP
    return multiple if distance < min(others) else Rule.STEP


def neighbours(x: Any) -> list[Fraction]:
    with np.errstate(over="ignore"):
        both = [np.nextafter(x, type(x)(end)) for end in (-np.inf, np.inf)]
    return [Fraction(float(n)) for n in both if np.isfinite(n)]


@given(st.data(), st.sampled_from(list(FLOATS)), st.sampled_from(FLOAT_STEPS), st.booleans())
def test_floats(data: st.DataObject, kind: pa.DataType, step: Fraction, nonnegative: bool) -> None:
    as_float = FLOATS[kind]
    largest = np.finfo(as_float).max
    # up to here doubles are at least 2³ times as dense as multiples
    most = min(2**49 // step.numerator, int(Fraction(float(largest)) / step))
    multiple = st.integers(-most, most).map(lambda k: as_float(float(k * step)))
    beside = st.tuples(multiple, st.integers(0, 1)).map(lambda m: as_float(float(neighbours(m[0])[m[1] - 1])))
    special = st.sampled_from([np.nan, np.inf, -np.inf, -0.0, 0.5, 5e-8, largest / 2]).map(as_float)
    values = data.draw(st.lists(st.none() | multiple | beside | special))
    exact = [Rule.EMPTY if v is None else nearest_multiple(v, step) for v in values]
    check(pa.array(values, kind), exact, measure(step, nonnegative))


def test_a_float_that_prints_as_a_multiple_counts_as_it() -> None:
    values = [0.1 + 0.2, 0.3, 1.1, 1.1 * 1.1, 4.35, 1e15 + 0.3]
    check(pa.array(values), [Rule.STEP, 30, 110, Rule.STEP, 435, Rule.RANGE], measure(Fraction("0.01")))
    check(pa.array(values, pa.float32()), [30, 30, 110, 121, 435, Rule.RANGE], measure(Fraction("0.01")))


@given(st.data(), st.sampled_from(DECIMALS), steps, st.booleans())
def test_decimals(data: st.DataObject, given: tuple[pa.DataType, int, int], step: Fraction, nonnegative: bool) -> None:
    kind, precision, scale = given
    most = 10**precision - 1
    unit = max(1, int(step * 10**scale))
    whole = st.integers(-most // unit, most // unit).map(lambda k: min(max(k * unit, -most), most))
    digits = st.integers(-most, most) | st.integers(-1000, 1000).map(lambda k: max(-most, min(most, k * unit))) | whole
    values = data.draw(st.lists(st.none() | digits.map(lambda n: Decimal(n).scaleb(-scale, Context(prec=80)))))
    check(pa.array(values, kind), expected(values, step, Fraction), measure(step, nonnegative))


def read_text(text: str) -> Fraction | Rule:
    """Return the number that plain decimal text writes, of at most 20 digits and 18 places; of other text the rule."""
    if not text.strip(" \t\n\v\f\r"):
        return Rule.EMPTY
    if not set(text) & set("0123456789"):
        return Rule.WORD
    whole, point, rest = text.removeprefix(text[:1] if text[:1] in ("+", "-") else "").partition(".")
    for part in (whole, rest) if point else (whole,):
        if not part or set(part) - set("0123456789"):
            return Rule.SIGNS
    if len(whole) > 20 or len(rest) > 18:
        return Rule.RANGE
    number = Fraction(int(whole or "0")) + (Fraction(int(rest), 10 ** len(rest)) if point else 0)
    return -number if text.startswith("-") else number


NUMERAL = st.from_regex(r"[+-]?[0-9]{1,21}(\.[0-9]{1,19})?", fullmatch=True)
PLAIN = st.tuples(st.integers(-(10**6), 10**6), st.sampled_from(["", ".0", ".00", ".25", ".333", ".5"])).map(
    lambda pair: f"{pair[0]}{pair[1]}"
)
OTHER = st.text(alphabet="0123456789+-.,eE_ \n\t٣５²x", max_size=8)
ODD = (
    *("+5", "00012", "5.00", "-0", "-0.0", "+-5", "5.", ".5", "", "-", "1e3", "0x10", "1_000", "1,000", "NaN"),
    *("inf", " 5", "5 ", "5\n", "\n5", "5\n6", "٣", "５", "5\0", "−5", "1" * 18, "1" * 19, "9" * 40),
)


@given(
    st.lists(st.none() | NUMERAL | PLAIN | OTHER | st.sampled_from(ODD)),
    st.sampled_from([pa.string(), pa.large_string()]),
    steps,
    st.booleans(),
)
@example(list(ODD), pa.string(), Fraction(1), True)
@example(["1" * 18, "1" * 19, "9" * 19, "0" * 19, str(LARGEST), str(LARGEST + 1)], pa.string(), Fraction(1), True)
@example([None, "5", "+7", "-3", "00012"], pa.large_string(), Fraction(1), False)
def test_text(values: list[str | None], kind: pa.DataType, step: Fraction, nonnegative: bool) -> None:
    check(pa.array(values, kind), expected(values, step, read_text), measure(step, nonnegative))


@pytest.mark.parametrize(
    "kind", [*INTEGERS, *FLOATS, *(d[0] for d in DECIMALS), pa.string(), pa.large_string()], ids=str
)
def test_no_records_and_nulls_alone(kind: pa.DataType) -> None:
    check(pa.array([], kind), [], measure(Fraction("0.01"), True))
    check(pa.array([None, None], kind), [Rule.EMPTY, Rule.EMPTY], measure(Fraction("0.01"), True))


def through_floats(values: pa.Array, given: MeasureColumn) -> tuple[Any, list[Fault]]:
    """The broken twin: 2⁵³ + 1 becomes 2⁵³."""
    return np.rint(np.asarray(values.cast(pa.float64(), safe=False)) / float(given.step)).astype(np.int64), []


def test_the_check_catches_sums_through_floats() -> None:
    for array in (pa.array([2**53 + 1]), pa.array([Decimal(2**53 + 1)]), pa.array([str(2**53 + 1)])):
        check(array, [2**53 + 1], measure(Fraction(1)))
        with pytest.raises(AssertionError):
            check(array, [2**53 + 1], measure(Fraction(1)), through_floats)


CODES = ("311111", None, "01001", "", "3111", " 311111", "３１１１１１")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_codes_of_every_text_type(kind: pa.DataType) -> None:
    codes = pa.array([*CODES, *CODES], kind)
    for values in (codes, codes[3:9], codes[:0]):
        coded = text_codes(values, "naics")
        assert pa.types.is_dictionary(coded.type)
        assert coded.to_pylist() == values.to_pylist()


def test_codes_in_dictionary_form_stay_as_they_are() -> None:
    for index in (pa.int8(), pa.uint32(), pa.int64()):
        dictionary = pa.array(["311111", None, "unused and malformed", "01001"])
        coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 3, None, 0], index), dictionary)
        for values in (coded, coded[1:4]):
            assert text_codes(values, "naics") is values


REFUSED = (
    pa.array([CANARY]),
    pa.array([float(CANARY)]),
    pa.array([Decimal(CANARY)]),
    pa.array([str(CANARY).encode()]),
    pa.array([CANARY]).dictionary_encode(),
    pa.array([True]),
    pa.nulls(1),
)
REFUSED_MEASURES = (
    pa.array([str(CANARY).encode()]),
    pa.array([str(CANARY)]).dictionary_encode(),
    pa.array([str(CANARY)], pa.string_view()),
    pa.array([CANARY], pa.timestamp("s")),
    pa.array([CANARY], pa.duration("s")),
    pa.array([[CANARY]]),
    pa.array([{"a": CANARY}]),
    pa.array([True]),
    pa.nulls(1),
)


def test_other_types_are_refused_without_a_word_on_values() -> None:
    # a value could be told as a number, as text, or as bytes of it
    canaries = [str(CANARY), f"{CANARY:,}", CANARY.to_bytes(8, "little").decode("latin-1")]
    calls: list[Callable[[], object]] = [partial(text_codes, array, "naics") for array in REFUSED]
    calls += [partial(whole_steps, array, measure(Fraction(1))) for array in REFUSED_MEASURES]
    for call in calls:
        with pytest.raises(ContractBroken) as raised:
            call()
        assert not found(told(raised.value), canaries)
        again = pickle.loads(pickle.dumps(raised.value))
        assert (again.column, again.rule) == (raised.value.column, raised.value.rule)
        assert again.column in ("naics", "column")


def test_the_search_for_values_finds_those_of_arrow() -> None:
    with pytest.raises(pa.ArrowInvalid) as raised:
        pc.cast(pa.array([f"x{CANARY}"]), pa.int64())
    assert found(told(raised.value), [str(CANARY)])
