"""How a mechanism's parameters are declared and checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal

from udfs.numbers.exact import exact

SMALLEST = Fraction(1, 10**50)  # parameters and steps lie between it and its inverse: doubles hold all they imply


class ParameterError(ValueError):
    """A mechanism's parameter breaks its rule; carries both, so that a plan's error can name the key."""

    def __init__(self, parameter: str, rule: str) -> None:
        super().__init__(f"{parameter}: must be {rule}")
        self.parameter = parameter
        self.rule = rule


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What a plan may say about one parameter of a mechanism."""

    name: str
    kind: Literal["number", "choice", "table"]
    rule: str
    doc: str
    default: object | None = None
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    exclusive: bool = False
    maximum: float | None = None
    whole: bool = False
    read: Callable[[object], Any] | None = None  # of a table: what the mechanism holds of it; raises ValueError

    def allows(self, number: Fraction) -> bool:
        """Return whether a number keeps the rule."""
        return (
            (self.minimum is None or number > self.minimum or (number == self.minimum and not self.exclusive))
            and (self.maximum is None or number <= self.maximum)
            and (number.denominator == 1 or not self.whole)
        )

    def checked(self, value: object) -> Any:
        """Return the value as an exact number, the word, or the table; ParameterError where it breaks the rule."""
        if self.read is not None:
            try:
                return self.read(value)
            except ValueError as error:
                raise ParameterError(self.name, str(error)) from None
        if self.kind == "choice":
            if value not in self.choices:
                raise ParameterError(self.name, self.rule)
            return str(value)
        try:
            number = exact(value)  # type: ignore[arg-type]  # it checks the type itself
        except (TypeError, ValueError):
            raise ParameterError(self.name, self.rule if self.whole else f"a number {self.rule}") from None
        if number and not SMALLEST <= abs(number) <= 1 / SMALLEST:
            raise ParameterError(self.name, "between 1e-50 and 1e50")
        if not self.allows(number):
            raise ParameterError(self.name, self.rule)
        return number


def above(minimum: int, doc: str, *, at_most: int | None = None) -> Any:
    """Declare a number that must lie above `minimum`."""
    return _number(f"above {minimum}", at_most, minimum=minimum, exclusive=True, doc=doc)


def at_least(minimum: int, doc: str, *, at_most: int | None = None, whole: bool = False) -> Any:
    """Declare a number that may be `minimum` or more, or a whole one."""
    rule = f"a whole number of at least {minimum}" if whole else f"at least {minimum}"
    return _number(rule, at_most, minimum=minimum, whole=whole, doc=doc)


def _number(rule: str, at_most: int | None, **facts: Any) -> Any:
    limit = "" if at_most is None else f" and at most {at_most}"
    return field(metadata={"kind": "number", "rule": rule + limit, "maximum": at_most} | facts)


def choice(*choices: str, doc: str) -> Any:
    """Declare one of the given words; the first is the default."""
    rule = choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    return field(default=choices[0], metadata={"kind": "choice", "rule": rule, "choices": choices, "doc": doc})


def table(doc: str, read: Callable[[object], Any]) -> Any:
    """Declare a table of numbers; `read` returns what the mechanism holds of it, and raises ValueError."""
    return field(metadata={"kind": "table", "rule": "a table", "doc": doc, "read": read})


def declared(mechanism: type) -> Mapping[str, Parameter]:
    """Return the parameters that a mechanism's class declares, by name."""
    result = {}
    for declaration in fields(mechanism):
        if declaration.metadata:
            default = declaration.default if declaration.metadata["kind"] == "choice" else None
            result[declaration.name] = Parameter(name=declaration.name, default=default, **declaration.metadata)
    return MappingProxyType(result)
