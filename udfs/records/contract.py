"""The contract of a record: text codes that are well formed, measures that are whole numbers of their step.

Checked record by record, never on totals, so that leaving bad records out is a per-record rule
(docs/architecture.md, rule 7). Nothing raised here shows a value: Arrow's and Python's own parsers would print it.
Names of records and of owners are text in UTF-8, compared exactly, and hashed to buckets alike on every worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from udfs.numbers.arrays import LARGEST, Floats, Int64s, Mask

REPLACED = "\ufffd"  # stands in text that was read from bytes that are not UTF-8


def is_text(kind: pa.DataType) -> bool:
    """Return whether values of this type are text, be it in views."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def in_utf8(values: pa.Array) -> pa.Array:
    """Return text with bytes that are not UTF-8 replaced (REPLACED), so that only their own record breaks the contract.

    Views of text become plain text; other values are returned as they are. Files and engines hand text on unchecked,
    and Arrow and Python would fail on it.
    """
    if pa.types.is_dictionary(values.type):
        texts = in_utf8(values.dictionary)
        return values if texts is values.dictionary else pa.DictionaryArray.from_arrays(values.indices, texts)
    if not is_text(values.type):
        return values
    try:
        values.validate(full=True)
        return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values
    except pa.ArrowInvalid:
        raw = values.cast(pa.large_binary()).to_pylist()
    kind = pa.string() if pa.types.is_string(values.type) else pa.large_string()
    return pa.array([None if text is None else text.decode(errors="replace") for text in raw], kind)


def text_in_utf8(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch with all its text in UTF-8, as `in_utf8` makes it."""
    return pa.record_batch([in_utf8(column) for column in batch.columns], names=batch.schema.names)


def as_text(names: pa.Array) -> pa.Array:
    """Return names, which are text or whole numbers, as plain text."""
    plain = names.dictionary_decode() if pa.types.is_dictionary(names.type) else names
    return plain.cast(pa.large_string())


def as_coded_text(values: pa.Array) -> pa.DictionaryArray:
    """Return text or whole numbers as dictionary-coded text, in which no text stands twice."""
    if not pa.types.is_dictionary(values.type):
        return as_text(values).dictionary_encode()
    inner = values.dictionary.cast(pa.large_string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(inner.indices.take(values.indices), inner.dictionary)


def buckets_of(names: pa.Array, count: int) -> Int64s:
    """Return the bucket of each name, below `count`: a hash of its text, the same on every worker; of null it is 0."""
    import pandas as pd  # noqa: PLC0415 — a tenth of a second that records without ids to compare do not need

    texts = pc.fill_null(names, "").to_numpy(zero_copy_only=False)
    hashed = (pd.util.hash_array(texts, categorize=False) % np.uint64(count)).astype(np.int64)
    return np.where(np.asarray(names.is_null()), 0, hashed) if names.null_count else hashed


def distinct(names: pa.Array) -> tuple[pa.Array, Int64s]:
    """Return the distinct names in order, and each row's place among them; null comes last."""
    coded = names.dictionary_encode("encode")
    order = pc.sort_indices(coded.dictionary)
    rank = np.empty(len(order), dtype=np.int64)
    rank[np.asarray(order)] = np.arange(len(order))
    return coded.dictionary.take(order), rank[np.asarray(coded.indices)]


def ranked(values: pa.DictionaryArray) -> tuple[int, Int64s]:
    """Return how many texts there are, and the rank of each row's among them; null has the last."""
    order = pc.sort_indices(values.dictionary)
    rank = np.empty(len(order) + 1, dtype=np.int64)
    rank[np.asarray(order)] = np.arange(len(order))
    rank[-1] = len(order)
    return len(order), rank[np.asarray(values.indices.fill_null(len(order)))]


PLAIN_TEXT = r"^[+-]?[0-9]+(\.[0-9]+)?$"
INTEGER_TEXT = r"^[+-]?[0-9]{1,18}$"
DECIMAL_TEXT = r"^[+-]?[0-9]{1,20}(\.[0-9]{1,18})?$"
TEXT_DECIMAL = pa.decimal128(38, 18)


class ContractBroken(Exception):
    """The microdata break the contract in `column`: `rule` says how, without a value or a count."""

    def __init__(self, column: str, rule: str) -> None:
        super().__init__(column, rule)  # both in args, so that it survives pickling
        self.column = column
        self.rule = rule


class ColumnUnfit(ContractBroken):
    """A column is of a type that cannot hold what the plan reads from it, which tells of no record."""


@dataclass(frozen=True)
class MeasureColumn:
    """A measure as the kernel reads it: totals are counted in whole steps."""

    name: str
    column: str
    step: Fraction
    nonnegative: bool


class Rule(IntEnum):
    """How a record can break the contract in one column; RULE_TEXT says it in words."""

    CODE = 0
    EMPTY = 1
    STEP = 2
    NEGATIVE = 3
    OWNER = 4
    RECORD = 5
    TWICE = 6
    DIFFERS = 7
    BEYOND = 8
    LINE = 9
    WORD = 10
    SIGNS = 11
    RANGE = 12


RULE_TEXT: Mapping[Rule, str] = MappingProxyType(
    {
        Rule.CODE: "holds a code that is empty or malformed",
        Rule.EMPTY: "is empty (null)",
        Rule.WORD: "is not a number: it has no digits (often a withheld or missing figure, as D, S or NA)",
        Rule.SIGNS: "is not a plain number: beside digits it has other signs (often a currency sign or a separator)",
        Rule.STEP: "is not a whole number of its steps (often decimals where the step is 1)",
        Rule.RANGE: "is beyond the range (2⁶³ − 1 steps, as a float 2⁵⁰), or has more than 18 decimals",
        Rule.NEGATIVE: "is below zero, which a mechanism or class of the plan does not allow",
        Rule.OWNER: "names no owner: it is empty (null or blank), or not UTF-8",
        Rule.RECORD: "names no record: it is empty (null or blank), or not UTF-8",
        Rule.TWICE: "holds a row id that stands more than once",
        Rule.DIFFERS: "differs between rows of one id (combine adds up rows of one cell, else make the firm the unit)",
        Rule.BEYOND: "adds up to more than 63 bits over the rows of one id",
        Rule.LINE: "of a CSV file is no record: it has other fields than the header",
    }
)
LINE = "a line"  # stands where a column does: the whole line breaks Rule.LINE
NO_RECORDS = b"no records"  # in the metadata of a batch: a row of nulls for each line that breaks Rule.LINE

Fault = tuple[str, Rule, Mask]  # a column, the rule, and which records of a batch break it


def whole_steps(values: pa.Array, measure: MeasureColumn) -> tuple[Int64s, list[Fault]]:
    """Return the values as whole numbers of the measure's step (0 where bad), and what breaks the contract.

    Takes integers, floats, decimals and decimal text; raises ColumnUnfit on any other type. A float counts as the
    multiple of the step that it is nearest to among all floats of its type.
    """
    require_number_type(values.type, measure.column)
    kind = values.type
    if pa.types.is_integer(kind):
        steps, off = _from_integers(values, measure.step)
    elif pa.types.is_floating(kind):
        steps, off = _from_floats(values, measure.step)
    elif pa.types.is_decimal(kind):
        steps, off = _from_decimals(values, measure.step)
    else:
        steps, off = _from_text(values, measure.step)
    broken = {} if off is None or not off.any() else _rules(values, off, measure.step)
    if values.null_count:
        broken[Rule.EMPTY] = np.asarray(values.is_null()) | broken.get(Rule.EMPTY, np.False_)
    faults: list[Fault] = [(measure.column, rule, rows) for rule, rows in sorted(broken.items())]
    if measure.nonnegative and len(steps) and steps.min() < 0:
        faults.append((measure.column, Rule.NEGATIVE, steps < 0))
    return steps, faults


def text_codes(values: pa.Array, column: str) -> pa.DictionaryArray:
    """Return a column of codes in dictionary form; raises ColumnUnfit where it is not text."""
    require_code_type(values.type, column)
    return values if pa.types.is_dictionary(values.type) else pc.dictionary_encode(values)


def name_faults(values: pa.Array, column: str, rule: Rule) -> list[Fault]:
    """Return which records name no owner, or have no row id: null, or text without a sign, or of replaced signs.

    Text and whole numbers are names; raises ColumnUnfit on any other type. Who owns which record matters to no sum:
    a record without an owner belongs to no protected unit, so it may not be summed.
    """
    require_name_type(values.type, column)
    plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    if is_text(plain.type):
        bare = pc.utf8_trim_whitespace(plain.cast(pa.large_string()))
        none = np.asarray(pc.fill_null(pc.equal(bare, ""), True))
        # two names that are no text must not become one
        none = none | np.asarray(pc.fill_null(pc.match_substring(bare, REPLACED), False))
    else:
        none = np.asarray(plain.is_null())
    return [(column, rule, none)] if none.any() else []


def require_number_type(kind: pa.DataType, column: str) -> None:
    """Return if a type can hold a measure; raises ColumnUnfit otherwise."""
    types = pa.types
    numbers = types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
    if not numbers and not types.is_string(kind) and not types.is_large_string(kind):
        raise ColumnUnfit(column, "is not of a number type")


def require_code_type(kind: pa.DataType, column: str) -> None:
    """Return if a type can hold codes; raises ColumnUnfit otherwise."""
    if not is_text(_inner(kind)):
        raise ColumnUnfit(column, "is not text: codes are text, with their leading zeros")


def require_name_type(kind: pa.DataType, column: str) -> None:
    """Return if a type can hold names of records or owners; raises ColumnUnfit otherwise."""
    if not is_text(_inner(kind)) and not pa.types.is_integer(_inner(kind)):
        raise ColumnUnfit(column, "is neither text nor whole numbers, as records and owners are named")


def _inner(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _rules(values: pa.Array, off: Mask, step: Fraction) -> dict[Rule, Mask]:
    odd = values.filter(pa.array(off))
    if pa.types.is_floating(odd.type):
        floats = np.asarray(odd).astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            beyond = ~_inside(np.rint(floats / float(step)), step)
        rules = np.where(~np.isfinite(floats), Rule.WORD, np.where(beyond, Rule.RANGE, Rule.STEP))
    elif is_text(odd.type):
        rules = _rules_of_text(odd, step)
    else:
        rules = np.where(_beyond(odd, step), Rule.RANGE, Rule.STEP)
    broken: dict[Rule, Mask] = {}
    for rule in np.unique(rules).tolist():
        broken[Rule(rule)] = np.zeros(len(values), dtype=np.bool_)
        broken[Rule(rule)][off] = rules == rule
    return broken


def _rules_of_text(odd: pa.Array, step: Fraction) -> Int64s:
    blank = np.asarray(pc.equal(pc.ascii_trim_whitespace(odd), ""))
    digits, plain, readable = (
        np.asarray(pc.match_substring_regex(odd, pattern)) for pattern in ("[0-9]", PLAIN_TEXT, DECIMAL_TEXT)
    )
    rules = np.select([blank, ~digits, ~plain], [Rule.EMPTY, Rule.WORD, Rule.SIGNS], Rule.RANGE).astype(np.int64)
    numbers = _unsigned_text(odd.filter(pa.array(readable))).cast(TEXT_DECIMAL)
    rules[readable] = np.where(_beyond(numbers, step), Rule.RANGE, Rule.STEP)
    return rules


def _beyond(numbers: pa.Array, step: Fraction) -> Mask:
    """Return which integers or decimals exceed 2⁶³ − 1 steps in magnitude: doubles tell most, fractions the rest."""
    largest = LARGEST * step
    beyond: Mask = np.abs(np.asarray(numbers.cast(pa.float64(), safe=False))) > float(largest) * (1 - 2.0**-40)
    for row in np.flatnonzero(beyond):
        beyond[row] = abs(Fraction(numbers[int(row)].as_py())) > largest
    return beyond


def _filled(values: pa.Array, zero: object) -> NDArray[Any]:
    filled = pc.fill_null(values, pa.scalar(zero, values.type)) if values.null_count else values
    return np.asarray(filled)


def _from_integers(values: pa.Array, step: Fraction) -> tuple[Int64s, Mask | None]:
    numbers = _filled(values, 0)
    too_large = numbers > np.uint64(LARGEST) if numbers.dtype == np.uint64 else numbers < -LARGEST
    if not too_large.any():
        return _scaled(numbers.astype(np.int64, copy=False), 1 / step, None)
    return _scaled(np.where(too_large, 0, numbers).astype(np.int64), 1 / step, too_large)


def _scaled(numbers: Int64s, factor: Fraction, bad: Mask | None) -> tuple[Int64s, Mask | None]:
    """Return numbers·factor where that is a whole number within 63 bits, 0 and a mark elsewhere."""
    if factor == 1:
        return numbers, bad
    if factor.denominator > LARGEST or factor.numerator > LARGEST:
        return _scaled_exactly([int(n) for n in numbers], factor, bad)
    quotient, rest = np.divmod(numbers, np.int64(factor.denominator))
    off = (rest != 0) | (np.abs(quotient) > LARGEST // factor.numerator)
    steps = np.where(off, 0, quotient) * np.int64(factor.numerator)
    return steps, off if bad is None else off | bad


def _scaled_exactly(numbers: Sequence[int], factor: Fraction, bad: Mask | None) -> tuple[Int64s, Mask | None]:
    exact = [number * factor for number in numbers]
    off = np.array([x.denominator != 1 or abs(x) > LARGEST for x in exact], dtype=np.bool_)
    steps = np.array([0 if o else int(x) for x, o in zip(exact, off, strict=True)], dtype=np.int64)
    return steps, off if bad is None else off | bad


def _from_floats(values: pa.Array, step: Fraction) -> tuple[Int64s, Mask]:
    numbers = _filled(values, 0.0)
    with np.errstate(invalid="ignore", over="ignore"):
        steps = np.rint(numbers.astype(np.float64) / float(step))
        inside = _inside(steps, step)
        steps = np.where(inside, steps, 0.0)
        nearest = (steps * step.numerator / step.denominator).astype(numbers.dtype)
        good = inside & (nearest == numbers)
    return np.where(good, steps, 0.0).astype(np.int64), ~good


def _inside(steps: Floats, step: Fraction) -> Mask:
    exact = 2.0**53 if step == 1 else 2.0**50  # beyond, the quotient may be off by a step
    inside: Mask = np.abs(steps) * step.numerator < exact  # false for NaN and infinity too
    return inside


def _from_decimals(values: pa.Array, step: Fraction) -> tuple[Int64s, Mask | None]:
    if values.type.bit_width > 128:
        unscaled = [0 if value is None else _unscaled(value) for value in values.to_pylist()]
        return _scaled_exactly(unscaled, 1 / (step * 10**values.type.scale), None)
    values, lost = _shortened(values, step)
    steps, off = _from_words(values, 1 / (step * 10**values.type.scale))
    if lost is None:
        return steps, off
    return np.where(lost, 0, steps), lost if off is None else off | lost


def _shortened(values: pa.Array, step: Fraction) -> tuple[pa.Array, Mask | None]:
    """Return decimals with no more places than the step has, and which lost digits by it: those are off the step.

    Fewer places keep the unscaled numbers within 63 bits, where they are handled as whole arrays.
    """
    scale = values.type.scale
    digits = next((s for s in range(scale) if (step * 10**s).denominator == 1), None)
    if digits is None:
        return values, None
    wide = values.cast(pa.decimal128(38, scale)) if values.type.bit_width != 128 else values
    short = wide.cast(pa.decimal128(38, digits), safe=False)
    lost = pc.fill_null(pc.not_equal(short.cast(pa.decimal128(38, scale), safe=False), wide), False)
    return short, np.asarray(lost)


def _from_words(values: pa.Array, factor: Fraction) -> tuple[Int64s, Mask | None]:
    wide = pc.fill_null(values.cast(pa.decimal128(38, values.type.scale)), 0) if values.null_count else values
    if wide.type.bit_width != 128:
        wide = wide.cast(pa.decimal128(38, values.type.scale))
    words = np.frombuffer(wide.buffers()[1], dtype="<i8").reshape(-1, 2)[wide.offset : wide.offset + len(wide)]
    low, high = words[:, 0], words[:, 1]
    if (high == low >> 63).all() and not (low < -LARGEST).any():
        return _scaled(low, factor, None)
    return _scaled_exactly([int(h) << 64 | int(u) for h, u in zip(high, low.view("<u8"), strict=True)], factor, None)


def _unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    magnitude = int("".join(map(str, digits)))
    return -magnitude if sign else magnitude


def _from_text(values: pa.Array, step: Fraction) -> tuple[Int64s, Mask | None]:
    integers = pc.fill_null(pc.match_substring_regex(values, INTEGER_TEXT), True)
    if pc.all(integers, min_count=0).as_py():
        return _from_integers(_unsigned_text(values).cast(pa.int64()), step)
    decimal = np.asarray(pc.fill_null(pc.match_substring_regex(values, DECIMAL_TEXT), True))
    readable = pc.if_else(pa.array(decimal), _unsigned_text(values), pa.scalar(None, values.type))
    steps, off = _from_decimals(readable.cast(TEXT_DECIMAL), step)
    return steps, ~decimal if off is None else off | ~decimal


def _unsigned_text(values: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(values, r"^\+", "")


# Whole steps of a measure → typed values, from which `udfs.records.contract.whole_steps` reads the same steps again.

DIGITS = 38  # of a decimal of 128 bits
WORD = 64


def decimal_digits(step: Fraction) -> int | None:
    """Return the decimal places of a step; None where not every value of 63 bits fits DIGITS digits with them."""
    digits = next((s for s in range(DIGITS + 1) if (step * 10**s).denominator == 1), None)
    return digits if digits is not None and step * 10**digits * LARGEST < 10**DIGITS else None


def in_units(steps: Int64s, step: Fraction) -> pa.Array:
    """Return steps·step exactly: 64-bit integers for the step 1, else decimals with the places of the step.

    Raises ValueError on a step that has no `places`.
    """
    if step == 1:
        return pa.array(steps)
    scale = decimal_digits(step)
    if scale is None:
        raise ValueError("a step whose multiples do not fit a decimal of 38 digits")
    factor = int(step * 10**scale)
    words = np.empty((len(steps), 2), dtype=np.int64)
    if factor * max(int(steps.max(initial=1)), -int(steps.min(initial=-1))) > LARGEST:
        unscaled = [int(number) * factor for number in steps]
        words[:, 0] = np.array([number % (1 << WORD) for number in unscaled], dtype=np.uint64).view(np.int64)
        words[:, 1] = [number >> WORD for number in unscaled]
    else:
        words[:, 0] = steps * factor
        words[:, 1] = words[:, 0] >> (WORD - 1)
    return pa.Array.from_buffers(pa.decimal128(DIGITS, scale), len(steps), [None, pa.py_buffer(words.tobytes())])
