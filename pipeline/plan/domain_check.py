"""What contradicts itself in a plan's choice of keys, levels and classes, before any of their files is read."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise

from pipeline.base.names import hint, nearest
from pipeline.plan.messages import KeyPath, Mistake, missing
from pipeline.plan.plan_schema import ClassesSpec, DatasetSpec, DomainSpec, ListSpec, MeasureSpec
from pipeline.plan.values import level_name_rule
from udfs.numbers.wide import LARGEST
from udfs.records.codes import LEVELS


def domain_mistakes(spec: DomainSpec, dataset: DatasetSpec) -> Iterator[Mistake]:
    """Yield what is wrong with the choice of keys and files."""
    columns, codes = dataset.keys, spec.codes
    lists = {key: each for key, each in codes.items() if isinstance(each, ListSpec)}
    for key in columns:
        if key in lists and spec.cells is not None:
            yield Mistake(("domain", key), "must be left out beside cells")
        elif key not in codes and spec.cells is None:
            yield missing(("domain", key), f" (give {' and '.join(columns)}, or cells)")
        elif key in codes and key not in lists:
            yield Mistake(("domain", key), f"classes of a measure have no column: leave out dataset.keys.{key}")
    for key in [key for key in lists if key not in columns]:
        meant = nearest(key, dict.fromkeys((*columns, *DomainSpec.model_fields)))
        if meant is None or meant == key:
            yield missing(("dataset", "keys", key), f" (the column of the codes that domain.{key} lists)")
        else:
            yield Mistake(("domain", key), f"unknown key; nearest known key: {meant}", unknown=True)
    first: dict[str, str] = {}
    for column, key in ((column, key) for key, column in columns.items()):
        if column in first:
            yield Mistake(("dataset", "keys", key), f"must have another column than {first[column]}")
        first.setdefault(column, key)
    if lists and all(each.optional for each in lists.values()):
        yield Mistake(("domain", next(iter(lists)), "optional"), "some key must have a code for every record")
    yield from _other_mistakes(spec, lists)
    yield from _level_mistakes(lists, codes)
    yield from _class_mistakes(codes, dataset.measures)


def _other_mistakes(spec: DomainSpec, lists: Mapping[str, ListSpec]) -> Iterator[Mistake]:
    if spec.other and spec.cells is not None:
        yield Mistake(("domain", "other"), "must be left out beside cells; only lists of codes have other cells")
        return
    for i, key in enumerate(spec.other):
        if key in spec.other[:i]:
            yield Mistake(("domain", "other", i), "this key stands twice")
        elif key not in lists:
            yield Mistake(("domain", "other", i), f"must be one of {', '.join(lists)}")


def _level_mistakes(lists: Mapping[str, ListSpec], codes: Mapping[str, object]) -> Iterator[Mistake]:
    """Yield levels that have no one key: each name is that of one level of one key."""
    owner = {level: key for key, levels in LEVELS.items() for level in levels}
    for key in codes:
        if owner.setdefault(key, key) != key:
            yield Mistake(("domain", key), f"{key} is a level of key {owner[key]}; give the key another name")
    for key, each in lists.items():
        for i, level in enumerate(each.levels):
            if level in each.levels[:i]:
                yield Mistake(("domain", key, "levels", i), "this level stands twice")
            elif owner.get(level, key) != key or level == key:
                rule = f"{level} is a level of key {owner.get(level, key)} too; rename the column of one of them"
                yield Mistake(("domain", key, "levels", i), rule)
            owner.setdefault(level, key)


def _class_mistakes(codes: Mapping[str, object], measures: Mapping[str, MeasureSpec]) -> Iterator[Mistake]:
    for key, each in codes.items():
        if not isinstance(each, ClassesSpec):
            continue
        path: KeyPath = ("domain", key)
        if rule := level_name_rule(key):
            yield Mistake(path, f"the key's name {rule}")
        if key in LEVELS:
            yield Mistake(path, f"{key} is a key of codes; give the classes another name")
        if each.of not in measures:
            yield Mistake((*path, "of"), f"unknown measure{hint(each.of, measures, 'measure')}")
            continue
        if each.classes[0] != 0:
            yield Mistake((*path, "classes", 0), "must be 0: the classes must hold every value that a record may have")
        for i, (low, high) in enumerate(pairwise(each.classes), 1):
            if not low < high:
                yield Mistake((*path, "classes", i), "must be above the one before it")
        step = measures[each.of].step or Fraction(1)
        for i, low in enumerate(each.classes):
            if (low / step).denominator != 1 or low / step > LARGEST:
                yield Mistake((*path, "classes", i), f"must be a whole multiple of {each.of}'s step, below 2⁶³ of it")
