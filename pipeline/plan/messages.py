"""Mistakes in a plan, one plain line each: where, which rule, and the nearest known key."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import Tag
from pydantic_core import ErrorDetails

from pipeline.errors import SAME_WORD, in_a_line, likeness, nearest
from pipeline.plan.schema import OWN_RULE, PlanSpec, Spec
from udfs.mechanisms import groupwise

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
    groupwise.KIND: f"no plan can release it: {groupwise.WARNING}; choose groupwise_log",
}


@dataclass(frozen=True)
class Mistake:
    """What is wrong, and where in the plan.

    `absent`: keys, one of which would mend it; `unknown`: the key itself is not known.
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
    """Return the mistake that the key `path` is not there."""
    return Mistake(path, "missing key" + hint, absent=(path,))


def without_echoes(mistakes: Iterable[Mistake]) -> list[Mistake]:
    """Return the mistakes, except that a key is absent where an unknown key is much like it: that is one mistake."""
    found = list(mistakes)
    unknown = [mistake.path for mistake in found if mistake.unknown]
    return [mistake for mistake in found if not any(_alike(a, u) for a in mistake.absent for u in unknown)]


def _alike(path: KeyPath, other: KeyPath) -> bool:
    return path[:-1] == other[:-1] and likeness(str(path[-1]), str(other[-1])) >= SAME_WORD


def shown(path: KeyPath) -> str:
    """Return a key path as people write it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{in_a_line(step)}" for step in path).lstrip(".")


def shape_mistakes(errors: Iterable[ErrorDetails], root: type[Spec] = PlanSpec) -> Iterator[Mistake]:
    """Yield the mistakes that pydantic found in the data of a plan, or of another file whose shape is `root`."""
    for error in errors:
        path, known = _place(error["loc"], root)
        if error["type"] == "extra_forbidden":
            yield _unknown(path, known)
        elif error["type"] == "missing":
            yield missing(path)
        elif error["type"] == "union_tag_not_found":
            yield missing((*path, "kind"))
            # without a kind no other key is known: only one that stands for "kind" is surely wrong
            yield from (_unknown((*path, key), ("kind",)) for key in error["input"] if _alike((key,), ("kind",)))
        else:
            yield _mistake(error, path)


def _unknown(path: KeyPath, known: tuple[str, ...]) -> Mistake:
    return Mistake(path, f"unknown key; nearest known key: {nearest(str(path[-1]), known)}", unknown=True)


def _mistake(error: ErrorDetails, path: KeyPath) -> Mistake:
    kind, facts = error["type"], error.get("ctx", {})
    rule = _RULES.get(kind, "has a wrong value")
    if kind == OWN_RULE:
        rule = error["msg"]
    elif kind == "string_type" and isinstance(error["input"], int | float):
        rule = "must be text; put it in quotes"
    elif kind == "too_long":
        rule = f"must hold at most {facts['max_length']}"
    elif kind == "literal_error":
        words = _words(facts["expected"].replace(" or ", ", "))
        rule = "must be " + (words[0] if len(words) == 1 else "one of " + ", ".join(words))
    elif kind == "union_tag_invalid":
        known = f"nearest known kind: {nearest(facts['tag'], _words(facts['expected_tags']))}"
        rule = NEVER_RELEASED.get(facts["tag"], f"unknown kind; {known}")
    return Mistake((*path, "kind") if kind == "union_tag_invalid" else path, rule)


def _words(quoted: str) -> list[str]:
    return quoted.replace("'", "").split(", ")


def _place(loc: tuple[str | int, ...], root: type[Spec]) -> tuple[KeyPath, tuple[str, ...]]:
    """Return where in the file an error lies, and the keys known there (of the innermost mapping on the way)."""
    path: list[str | int] = []
    here: Any = root
    known: tuple[str, ...] = ()
    for step in loc:
        if step == "[key]":  # what is wrong is the key itself
            break
        here = _bare(here)
        if get_origin(here) is Union:  # pydantic names the member it chose, which is no step in the plan
            here = next(member for member in get_args(here) if _name(member) == step)
            continue
        path.append(step)
        if isinstance(here, type) and issubclass(here, Spec):
            known = tuple(here.model_fields)
            here = here.model_fields[str(step)].annotation if step in known else None
        else:
            here = (get_args(here) or (None,))[-1]
    return tuple(path), known


def _bare(annotation: Any) -> Any:
    """Return a type without what is annotated to it, and without None."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    members = [member for member in get_args(annotation) if member is not type(None)]
    union = get_origin(annotation) in (Union, UnionType)
    return _bare(members[0]) if union and len(members) == 1 else annotation


def _name(member: Any) -> str:
    """Return the name by which pydantic tells the member of a union: its tag, or that of its class."""
    tags = [fact.tag for fact in get_args(member) if isinstance(fact, Tag)]
    return str(tags[0] if tags else member.__name__)
