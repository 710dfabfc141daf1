"""Mistakes in a plan, one plain line each: where, which rule, and the nearest known key."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Tag
from pydantic_core import ErrorDetails

from pipeline.errors import SAME_WORD, in_a_line, likeness, nearest
from pipeline.plan.schema import OWN_RULE, PlanSpec, Spec
from udfs.mechanisms import groupwise_direct

KeyPath = tuple[str | int, ...]

_RULES = {
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
}

NEVER_RELEASED = {
    groupwise_direct.KIND: f"no plan can release it: {groupwise_direct.WARNING}; choose groupwise_log",
}


@dataclass(frozen=True)
class Mistake:
    """A rule that a plan breaks, and the key where it does.

    `absent`: keys, one of which would correct it; `unknown`: the key itself is not known.
    """

    path: KeyPath
    rule: str
    absent: tuple[KeyPath, ...] = ()
    unknown: bool = False

    @property
    def line(self) -> str:
        """The mistake as "queries[0].by[1]: must be text"."""
        return f"{shown(self.path)}: {self.rule}" if self.path else self.rule


def missing(path: KeyPath, hint: str = "") -> Mistake:
    """Return the mistake that the key `path` is missing."""
    return Mistake(path, "missing key" + hint, absent=(path,))


def shown(path: KeyPath) -> str:
    """Return a key path as people write it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{in_a_line(step)}" for step in path).lstrip(".")


def without_echoes(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """Return the mistakes, except that a key is absent where an unknown key is much like it: that is one mistake."""
    mistakes = list(mistakes)
    unknown = [mistake.path for mistake in mistakes if mistake.unknown]
    return [mistake for mistake in mistakes if not any(_alike(a, u) for a in mistake.absent for u in unknown)]


def _alike(path: KeyPath, other: KeyPath) -> bool:
    return path[:-1] == other[:-1] and likeness(str(path[-1]), str(other[-1])) >= SAME_WORD


def shape_mistakes(errors: Iterable[ErrorDetails], root: type[Spec] = PlanSpec) -> Iterator[Mistake]:
    """Yield the mistakes that pydantic reports in the data of a plan, or of another file whose shape is `root`."""
    for error in errors:
        path, keys, expected = _resolve(error["loc"], root)
        kind = error["type"]
        if kind == "extra_forbidden":
            yield _unknown_key(path, keys)
        elif kind == "missing":
            yield missing(path)
        elif kind == "union_tag_not_found":
            yield missing((*path, "kind"))
            # without a kind no other key is known: only one that stands for "kind" is surely wrong
            yield from (_unknown_key((*path, key), ("kind",)) for key in error["input"] if _alike((key,), ("kind",)))
        elif kind == "union_tag_invalid":
            tag = error["ctx"]["tag"]
            hint = f"nearest known kind: {nearest(tag, map(_tag, get_args(expected)))}"
            yield Mistake((*path, "kind"), NEVER_RELEASED.get(tag, f"unknown kind; {hint}"))
        else:
            yield Mistake(path, _rule(error, expected))


def _unknown_key(path: KeyPath, known: Iterable[str]) -> Mistake:
    return Mistake(path, f"unknown key; nearest known key: {nearest(str(path[-1]), known)}", unknown=True)


def _rule(error: ErrorDetails, expected: Any) -> str:
    kind = error["type"]
    if kind == OWN_RULE:
        return error["msg"]
    if kind == "string_type" and isinstance(error["input"], int | float):
        return "must be text; put it in quotes"
    if kind == "too_long":
        return f"must hold at most {error['ctx']['max_length']}"
    if kind == "literal_error":
        choices = [str(choice) for choice in get_args(expected)]
        return "must be " + (choices[0] if len(choices) == 1 else "one of " + ", ".join(choices))
    return _RULES.get(kind, "has a wrong value")


def _resolve(loc: tuple[str | int, ...], root: type[Spec]) -> tuple[KeyPath, tuple[str, ...], Any]:
    """Return the path in the file of pydantic's location, the keys known there, and the type that is expected.

    The keys are those of the innermost mapping on the way.
    """
    path: list[str | int] = []
    here: Any = root
    keys: tuple[str, ...] = ()
    for step in loc:
        if step == "[key]":  # what is wrong is the key itself
            break
        if get_origin(here) is Union:  # pydantic names the member it chose, which is no step in the plan
            here = _bare(next(member for member in get_args(here) if _tag(member) == step))
            continue
        path.append(step)
        if isinstance(here, type) and issubclass(here, Spec):
            keys = tuple(here.model_fields)
            here = _bare(here.model_fields[str(step)].annotation) if step in keys else None
        else:
            here = _bare((get_args(here) or (None,))[-1])
    return tuple(path), keys, here


def _bare(annotation: Any) -> Any:
    """Return a type without what is annotated to it, and without None."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    members = [member for member in get_args(annotation) if member is not type(None)]
    union = get_origin(annotation) in (Union, UnionType)
    return _bare(members[0]) if union and len(members) == 1 else annotation


def _tag(member: Any) -> str:
    """Return the name by which pydantic calls the member of a union: its tag, or that of its class."""
    tags = [note.tag for note in get_args(member) if isinstance(note, Tag)]
    return str(tags[0] if tags else member.__name__)
