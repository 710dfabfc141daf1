"""Public classes and methods say what they do: a method by itself, or by the one that it overrides."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pipeline.engines
import pipeline.microdata
import udfs

ROOMS = (udfs, pipeline.engines, pipeline.microdata)  # others' methods all have their own: ruff's D102


def undocumented(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        method = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
        if inspect.isfunction(method) and not name.startswith("_"):
            bases = (vars(base)[name] for base in kind.__mro__ if name in vars(base))
            if not any(inspect.getdoc(each) for each in bases):
                yield f"{kind.__module__}.{kind.__qualname__}.{name}"


def test_methods_have_a_docstring_or_override_one_that_has() -> None:
    names = [info.name for room in ROOMS for info in pkgutil.walk_packages(room.__path__, f"{room.__name__}.")]
    kinds = [k for module in map(importlib.import_module, names) for k in vars(module).values() if inspect.isclass(k)]
    assert [
        name for kind in kinds if kind.__module__ in names and kind.__name__[0] != "_" for name in undocumented(kind)
    ] == []


class Base:
    def stated(self) -> None:
        """Do it."""


class Bare(Base):
    def stated(self) -> None: ...

    @property
    def silent(self) -> None: ...


def test_a_method_without_one_is_seen() -> None:
    assert [name.rpartition(".")[2] for name in undocumented(Bare)] == ["silent"]
