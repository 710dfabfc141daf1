"""Mistakes in a plan, one plain line each: file, line, key, which rule, and the nearest known key."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Tag
from pydantic_core import ErrorDetails

from pipeline.base.errors import hint, in_a_line, nearest
from pipeline.plan.plan_schema import DomainSpec, KeyCodes, PlanSpec
from pipeline.plan.plan_text import KeyPath, PlanText
from pipeline.plan.values import NAME, OWN_RULE, Spec
from udfs.mechanisms.catalogue import DIRECT, WARNING

_RULES = {
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "list_type": "must be a list",
    "dict_type": "must be a mapping of keys to values",
    "model_type": "must be a mapping of keys to values",
    "model_attributes_type": "must be a mapping of keys to values",
}

NEVER_RELEASED = {DIRECT: f"no plan can release it: {WARNING}; choose groupwise_log"}


@dataclass(frozen=True)
class Mistake:
    """A rule that a plan breaks, and the key where it does.

    `absent`: keys, one of which would correct it; `unknown`: the key itself is not known.
    """

    path: KeyPath
    rule: str
    absent: tuple[KeyPath, ...] = ()
    unknown: bool = False


def missing(path: KeyPath, why: str = "") -> Mistake:
    """Return the mistake that the key `path` is missing."""
    return Mistake(path, "missing key" + why, absent=(path,))


def lines_of(
    mistakes: Iterable[Mistake], text: PlanText, path: Path, at: Iterable[tuple[KeyPath, str]] = ()
) -> list[str]:
    """Return a line for each mistake in `text`, the contents of the file `path`, in the order of the file.

    Such as "plan.yaml: line 19: queries[employment].by[1]: must be text". `at` are lines about other files, each with
    the key that names the file.
    """
    located = [(text.position(each.path), _line(each, text, path)) for each in without_echoes(mistakes)]
    located += [(text.position(key), line) for key, line in at]
    return [line for _, line in sorted(located, key=lambda each: each[0])]


def _line(mistake: Mistake, text: PlanText, path: Path) -> str:
    number = text.line(mistake.path)
    line = "" if number is None else f"line {number}"
    return ": ".join(filter(None, [str(path), line, shown(mistake.path, text), mistake.rule]))


def shown(path: KeyPath, text: PlanText | None = None) -> str:
    """Return a key path as people write it; of a list in `text` whose items have names, with the item's name."""
    part: Any = None if text is None else text.data
    steps = []
    for i, step in enumerate(path):
        items, part = part, _inside(part, step)
        if not isinstance(step, int):
            steps.append(f".{in_a_line(step)}")
        else:
            named = None if path[i + 1 :] == ("name",) else _name_among(items, step)
            steps.append(f"[{step if named is None else named}]")
    return "".join(steps).lstrip(".")


def _inside(part: Any, step: str | int) -> Any:
    try:
        return part[step]
    except (KeyError, IndexError, TypeError):
        return None


def _name_among(items: Any, number: int) -> str | None:
    """Return the name of an item of a list; None where it has none, or one that it shares."""
    names = [item.get("name") if isinstance(item, dict) else None for item in items or []]
    name = names[number] if number < len(names) else None
    return name if isinstance(name, str) and re.fullmatch(NAME, name) and names.count(name) == 1 else None


def without_echoes(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """Return the mistakes, except that a key is absent where an unknown key stands for it: that is one mistake."""
    mistakes = list(mistakes)
    unknown = [mistake.path for mistake in mistakes if mistake.unknown]
    return [mistake for mistake in mistakes if not any(_meant(a, u) for a in mistake.absent for u in unknown)]


def _meant(path: KeyPath, by: KeyPath) -> bool:
    return path[:-1] == by[:-1] and nearest(str(by[-1]), [str(path[-1])]) is not None


def shape_mistakes(errors: Iterable[ErrorDetails], root: type[Spec] = PlanSpec) -> Iterator[Mistake]:
    """Yield the mistakes that pydantic reports in the data of a plan, or of another file whose shape is `root`."""
    for error in errors:
        path, keys, expected = _resolve(error["loc"], root)
        kind = error["type"]
        meanings = DomainSpec.model_fields  # keys of the domain, which may have any name, may be meant as one of these
        if path[:1] == ("domain",) and len(path) > 1 and path[1] not in meanings and nearest(str(path[1]), meanings):
            yield _unknown_key(path[:2], tuple(meanings))
        elif kind == "extra_forbidden":
            yield _unknown_key(path, keys)
        elif kind == "missing":
            yield missing(path)
        elif kind == "union_tag_not_found":
            yield missing((*path, "kind"))
            # without a kind no other key is known: only one that stands for "kind" is surely wrong
            yield from (_unknown_key((*path, key), ("kind",)) for key in error["input"] if nearest(key, ("kind",)))
        elif kind == "union_tag_invalid":
            tag = error["ctx"]["tag"]
            kinds = [_tag(member) for member in get_args(expected)]
            yield Mistake((*path, "kind"), NEVER_RELEASED.get(tag, f"unknown kind{hint(str(tag), kinds, 'kind')}"))
        else:
            yield Mistake(path, _rule(error, expected))


def _unknown_key(path: KeyPath, known: Collection[str]) -> Mistake:
    return Mistake(path, f"unknown key{hint(str(path[-1]), known, 'key')}", unknown=True)


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
            further = _bare(KeyCodes) if here is DomainSpec else None
            here = _bare(here.model_fields[str(step)].annotation) if step in keys else further
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
