"""What each parameter of a public function means: said once, for Python, the command line and its page of reference.

Locations among them are paths or URIs, as users write them.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from inspect import Parameter, signature
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_args, get_origin

from pipeline.base.errors import PlanError, arg
from pipeline.base.plain import reference_text
from udfs.numbers.exact import exact

if TYPE_CHECKING:
    import pandas as pd

    from pipeline.storage.location import Location

LocationLike = str | os.PathLike[str]
Number = int | float | str | Fraction
Value = int | float | Fraction | Decimal
Record = str | Mapping[str, Value | str]
Reference = Record | tuple[Record, ...]  # a tuple: the records of one firm, or a group
Change = str | Mapping[str, tuple[Value, Value] | str]
LARGEST = 10**300


def number_of(name: str, value: Number) -> Fraction:
    """Return the number that an argument stands for; PlanError where it is none, not above 0, or above 1e300."""
    try:
        number = exact(value)
    except (TypeError, ValueError):
        raise PlanError(f"{arg(name)}: must be a number") from None
    if not 0 < number <= LARGEST:
        raise PlanError(f"{arg(name)}: must be above 0 and at most 1e300")
    return number


def location(at: LocationLike, what: str) -> "Location":
    """Return the location that a path or URI names, without links; PlanError begins with `what`."""
    return located(at, what).resolve(what)


def located(at: LocationLike, what: str) -> "Location":
    """Return the location that a path or URI names, as it is written; PlanError begins with `what`."""
    from pipeline.storage.paths import locate  # noqa: PLC0415

    if not isinstance(at, str | os.PathLike):
        raise PlanError(f"{what}: a {type(at).__name__} is no location; write it to a file, and give its path")
    return locate(os.fspath(at), what=what)


def locations(of: Sequence[LocationLike] | LocationLike, what: str) -> "list[Location]":
    """Return the locations of one or several paths or URIs, without links."""
    return [location(each, what) for each in ([of] if isinstance(of, str | os.PathLike) else of)]


Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Arg:
    """A parameter: what it is, and how the command line takes it."""

    about: str
    metavar: str | None = None
    kind: str = "text"  # how its text is read: a name of jobs.options.KINDS
    choices: Sequence[str] | None = None
    option: bool | None = None  # whether it is an option of the command; None: where Python takes it by name
    many: bool = False  # may be repeated
    several: bool = False  # takes several words
    flag: str | None = None  # the option's name, where it is not the parameter's
    default: str | None = None  # what holds without it, in words

    def __repr__(self) -> str:
        return repr(self.about)


class Declared(NamedTuple):
    """A parameter of a function: its name, declaration and default (`Parameter.empty`: it is required)."""

    name: str
    arg: Arg
    default: Any
    by_position: bool


def declarations(function: Callable[..., Any]) -> Iterator[Declared]:
    """Yield the declared parameters of a function, those of its keyword arguments' TypedDict last."""
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            for group in get_args(parameter.annotation):
                for key, annotation in group.__annotations__.items():
                    default = False if get_args(annotation)[:1] == (bool,) else None
                    yield from _declared(key, annotation, default, by_position=False)
        else:
            by_position = parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
            without: Any = () if parameter.kind is Parameter.VAR_POSITIONAL else parameter.default
            yield from _declared(name, parameter.annotation, without, by_position=by_position)


def logs(function: Callable[..., Any]) -> bool:
    """Whether a function takes the log of the command line, `command_log`."""
    groups = (group for each in signature(function).parameters.values() for group in get_args(each.annotation))
    return any("command_log" in getattr(group, "__annotations__", ()) for group in groups)


def _declared(name: str, annotation: Any, default: Any, *, by_position: bool) -> Iterator[Declared]:
    if get_origin(annotation) is Annotated:
        for arg in annotation.__metadata__:
            yield Declared(name, arg, default, by_position if arg.option is None else not arg.option)


def documented(function: Function) -> Function:
    """Add the declared parameters to a function's docstring."""
    lines = [f"    {name}: {arg.about[0].upper()}{arg.about[1:]}." for name, arg, *_ in declarations(function)]
    function.__doc__ = "\n".join([function.__doc__ or "", "", "Args:", *lines])
    return function


class Result(dict[str, Any]):
    """What a call made: a mapping, as `--json` prints it; `str()` is what the command prints for people."""

    def __init__(self, facts: Mapping[str, Any], text: Callable[[Any], str] = repr) -> None:
        super().__init__(facts)
        self._text = text

    def to_json(self) -> dict[str, Any]:
        """Return the mapping."""
        return dict(self)

    def __str__(self) -> str:
        return self._text(self)

    def __repr__(self) -> str:
        return f"<prdp.{type(self).__name__}: {', '.join(self)}>"


def table(rows: Sequence[tuple[Any, ...]], **types: str) -> "pd.DataFrame":
    """Return rows as a DataFrame whose columns have these types."""
    import pandas as pd  # noqa: PLC0415 — text and JSON are had without it

    kinds = {name: {"str": "object", "float": "float64"}.get(kind, kind) for name, kind in types.items()}
    return pd.DataFrame(rows, columns=list(types)).astype(kinds)


def frame(records: Iterable[Mapping[str, Any]], *path: str, **columns: str) -> "pd.DataFrame":
    """Return the records of a JSON document as a DataFrame: those along a path of lists, with the facts around them.

    A column is its type, then the key where that has another name: "str name". A type "reference" stands for a
    reference in words, "infinite" for a number that is infinite where it is null.
    """
    for step in path:
        records = [{**each, **one} for each in records for one in each[step]]
    kinds = {name: [*kind.split(), name][:2] for name, kind in columns.items()}
    shown: dict[str, Callable[[Any], Any]] = {
        "reference": reference_text,
        "infinite": lambda x: inf if x is None else x,
    }
    rows = [tuple(shown.get(kind, lambda x: x)(each.get(key)) for kind, key in kinds.values()) for each in records]
    types = {name: {"reference": "str", "infinite": "float"}.get(kind, kind) for name, (kind, _) in kinds.items()}
    return table(rows, **types)


FIGURES = ("cbp-2010", "cbp-2011")
Data = Annotated[Any, Arg("location of the microdata", "URI", option=True, default="dataset.path of the plan")]
NewFolder = Annotated[Any, Arg("folder to write, new or empty", "DIR", option=True)]
KeyFile = Annotated[
    str | os.PathLike[str] | None, Arg("the publisher's public key: the manifest must be signed by it", "PUBLIC")
]
ReleaseFolders = Annotated[
    Sequence[LocationLike] | LocationLike, Arg("folders or URIs that hold release.json", "OUT/RELEASE", several=True)
]
ReleaseFolder = Annotated[LocationLike, Arg("the folder or URI that holds release.json", "OUT/RELEASE")]
