"""The values that plans, studies and files of limits may have: names, exact numbers, years; unknown keys are errors."""

import re
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, SchemaError, SchemaValidator, core_schema

from pipeline.plan.model import VALUES
from udfs.numbers.exact import as_json, exact
from udfs.records.statistics import RECORDS

NAME = r"[a-z0-9][a-z0-9._-]{0,99}"
VARIABLE_NAME = r"[a-z][a-z0-9_]{0,49}"
LEVEL_NAME = r"[a-z][a-z0-9_]{0,49}"
TABLE_NAME = r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+){0,3}"
LONGEST_LINE, LONGEST_PROSE = 200, 5000  # signs
OWN_RULE = "plan"  # the type of errors whose message is ready for people
RESERVED = ("cells", "vintage", "other", *VALUES, RECORDS)  # no key or level has one of these names


def broken(rule: str) -> PydanticCustomError:
    """Return the error that says `rule` and nothing else."""
    return PydanticCustomError(OWN_RULE, "{rule}", {"rule": rule})


def _name(text: str) -> str:
    if not re.fullmatch(NAME, text) or ".." in text:
        raise broken("must be 1 to 100 of a-z 0-9 . _ - and start with a letter or digit, without ..")
    return text


def level_name_rule(text: str) -> str | None:
    """Return the rule that the name of a key or a level breaks, in words; None for none."""
    if re.fullmatch(LEVEL_NAME, text) and text not in RESERVED:
        return None
    return f"must be 1 to 50 of a-z 0-9 _, start with a letter, and be none of {', '.join(RESERVED)}"


def _level_name(text: str) -> str:
    if rule := level_name_rule(text):
        raise broken(rule)
    return text


def _variable_name(text: str) -> str:
    if not re.fullmatch(VARIABLE_NAME, text):
        raise broken("must be 1 to 50 of a-z 0-9 _ and start with a letter")
    return text


def without_design(kinds: object) -> object:
    """Return kinds of noise to choose from, none of which is designed: that has no scale, but limits of one table."""
    if isinstance(kinds, list) and any(isinstance(each, dict) and each.get("kind") == "designed" for each in kinds):
        raise broken(
            "designed noise cannot be chosen with scales: it is made for one table's losses, which are chosen first; "
            "choose the plan, then ask prdp study kinds of it"
        )
    return kinds


def matches(pattern: str, text: str) -> bool:
    """Return whether the whole text matches; in time linear in its length, by Rust's regex, whatever the pattern."""
    return SchemaValidator(core_schema.str_schema(pattern=rf"\A(?:{pattern})\z")).isinstance_python(text)


def _pattern(text: str) -> str:
    try:
        re.compile(text)  # whole by itself: no bracket that closes another's
        matches(text, "")
    except (re.error, OverflowError, RecursionError, SchemaError):
        raise broken(
            "must be a regular expression, such as 20[0-9]{2}, without look-around and references back"
        ) from None
    return text


def _table_name(text: str) -> str:
    if not re.fullmatch(TABLE_NAME, text):
        raise broken("must be [catalog.][schema.]table, in letters, digits and _")
    return text


def _prose(text: str) -> str:
    paragraphs = " ".join(text.split("\n"))
    if not text.strip() or not paragraphs.isprintable():
        raise broken("must be text without control characters")
    return text.strip()


def _line(text: str) -> str:
    if "\n" in _prose(text):
        raise broken("must be one line")
    return text.strip()


def _number(value: object, rule: str, holds: Callable[[Fraction], bool]) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float | Fraction):
        raise broken("must be a number, without quotes" if _reads_as_number(value) else "must be a number")
    try:
        number = exact(value)
        as_json(number), float(number)
    except (ValueError, OverflowError):
        raise broken("must be a number that a double can hold") from None
    if not holds(number):
        raise broken(f"must be {rule}")
    return number


def _reads_as_number(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(exact(value) or True)
    except ValueError:
        return False


def number_type(rule: str, holds: Callable[[Fraction], bool], **json_schema: object) -> Any:
    """Return the type of an exact number for which `holds`, `rule` in words and in JSON Schema."""
    return Annotated[
        Fraction,
        PlainValidator(partial(_number, rule=rule, holds=holds)),
        WithJsonSchema({"type": "number"} | json_schema),
    ]


def _reference_value(value: object) -> str | Fraction:
    return value if isinstance(value, str) else _number(value, "at least 0", lambda x: x >= 0)


def _year(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1900 <= value <= 2999:
        raise broken("must be a year, such as 2022")
    return value


if TYPE_CHECKING:
    Positive = Fraction
    NonNegative = Fraction
    Share = Fraction
    ShareOrNone = Fraction
    Years = Fraction
else:
    Positive = number_type("above 0", lambda x: x > 0, exclusiveMinimum=0)
    NonNegative = number_type("at least 0", lambda x: x >= 0, minimum=0)
    Share = number_type("above 0 and below 1", lambda x: 0 < x < 1, exclusiveMinimum=0, exclusiveMaximum=1)
    ShareOrNone = number_type("at least 0 and below 1", lambda x: 0 <= x < 1, minimum=0, exclusiveMaximum=1)
    Years = number_type(
        "a whole number from 1 to 1000", lambda x: x in range(1, 1001), minimum=1, maximum=1000, multipleOf=1
    )
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, AfterValidator(_name), Field(json_schema_extra={"pattern": rf"^(?!.*\.\.){NAME}$"})]
# A name in which variables may stand, and a year: a file may have them, the data that are checked no more.
_VARIABLE = rf"\{{\{{ *{VARIABLE_NAME} *\}}\}}"
NameWithVariables = Annotated[
    str,
    AfterValidator(_name),
    Field(json_schema_extra={"pattern": rf"^(?!.*\.\.)([a-z0-9]|{_VARIABLE})([a-z0-9._-]|{_VARIABLE}){{0,99}}$"}),
]
VariableName = Annotated[
    str, AfterValidator(_variable_name), Field(json_schema_extra={"pattern": f"^{VARIABLE_NAME}$"})
]
Pattern = Annotated[str, AfterValidator(_pattern), Field(min_length=1, max_length=100)]
LevelName = Annotated[str, AfterValidator(_level_name), Field(json_schema_extra={"pattern": f"^{LEVEL_NAME}$"})]
Line = Annotated[str, AfterValidator(_line), Field(min_length=1, max_length=LONGEST_LINE)]  # is published
Prose = Annotated[str, AfterValidator(_prose), Field(min_length=1, max_length=LONGEST_PROSE)]  # is published
TableName = Annotated[str, AfterValidator(_table_name), Field(json_schema_extra={"pattern": f"^{TABLE_NAME}$"})]
_YEAR = {"type": "integer", "minimum": 1900, "maximum": 2999}
Year = Annotated[int, PlainValidator(_year), WithJsonSchema(_YEAR)]
YearOrVariable = Annotated[
    int,
    PlainValidator(_year),
    WithJsonSchema({"anyOf": [_YEAR, {"type": "string", "pattern": rf"^([0-9]|{_VARIABLE})+$"}]}),
]
ReferenceValue = Annotated[
    str | Fraction,
    PlainValidator(_reference_value),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]}),
]


class Spec(BaseModel):
    """A mapping of known keys."""

    model_config = ConfigDict(extra="forbid", strict=True, defer_build=True)


MOST_CLASSES = 1000  # of a measure


class ClassesSpec(Spec):
    """The codes of a key as classes of a measure: the lowest value of each, rising from 0.

    `per`: of each record's value, or of the total of all records of its owner.
    """

    of: Name
    classes: Annotated[list[NonNegative], Field(min_length=1, max_length=MOST_CLASSES)]
    per: Literal["record", "owner"] = "record"


class MainSpec(Spec):
    """The code of an owner at the level `main` of another key: that of most of its total; of equal ones the first."""

    of: Name
    main: LevelName
