"""What a plan's shape cannot say: names that must fit together, levels and codes that the domain must have."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

from pipeline.base.errors import PlanError, hint, nearest
from pipeline.plan.domain import ALL_LEVELS, Domain
from pipeline.plan.messages import Mistake, missing
from pipeline.plan.model import RECORD
from pipeline.plan.plan_mechanisms import Use, allocation_mistakes, mechanism_mistakes
from pipeline.plan.plan_schema import (
    DatasetSpec,
    DerivedSpec,
    DomainSpec,
    LimitSpec,
    ListSpec,
    MeasureSpec,
    PartsSpec,
    PlanSpec,
    QuerySpec,
    RecordValues,
)
from pipeline.plan.plan_text import KeyPath, public_file
from pipeline.plan.values import ClassesSpec, MainSpec, level_name_rule
from pipeline.storage.local import LocalPath
from pipeline.storage.location import Location, LocationError
from pipeline.storage.paths import locate
from udfs.mechanisms.base import SMALLEST
from udfs.numbers.arrays import LARGEST
from udfs.records.codes import LEVELS
from udfs.records.statistics import OWNERS, RECORDS, STATISTICS, Count

MOST_SHOWN = 5  # codes that a message names
OF_OWNERS = "dataset.unit must name the owner's column, not the record, so that all records of an owner are protected"


def plan_mistakes(plan: PlanSpec, domain: Domain, folder: Path) -> Iterator[Mistake]:
    """Yield what contradicts itself, another part of the plan, or the domain.

    Other files that the plan names are relative to `folder`.
    """
    if plan.supersedes == plan.release:
        yield Mistake(("supersedes",), "must name an earlier release")
    yield from dataset_mistakes(plan.dataset, domain.nameable)
    check = _Check(plan, domain, folder)
    yield from check.queries_mistakes()
    if plan.calibrate is not None:
        yield from allocation_mistakes(plan.calibrate, plan.queries, bool(plan.budget))
    limits: list[tuple[KeyPath, LimitSpec]] = [(("budget", i, "at"), limit) for i, limit in enumerate(plan.budget)]
    stated = plan.calibrate.limits if plan.calibrate else []
    limits += [(("calibrate", "limits", i, "at"), limit) for i, limit in enumerate(stated)]
    for path, limit in limits:
        if not isinstance(limit.at, list):
            yield from check.record_mistakes(limit.at, path)
            continue
        if plan.dataset.unit == RECORD:
            yield Mistake(path, "must be a mapping; a list is for a dataset whose unit is an owner column")
        for number, record in enumerate(limit.at):
            yield from check.record_mistakes(record, (*path, number))


def dataset_mistakes(dataset: DatasetSpec, levels: Collection[str] = ALL_LEVELS) -> Iterator[Mistake]:
    """Yield what contradicts itself in the key dataset."""
    if (dataset.path is None) == (dataset.source is None):
        either = (("dataset", "path"), ("dataset", "source"))
        yield Mistake(
            ("dataset",), "must have either path (files) or source (a table of Spark's catalog)", absent=either
        )
    try:
        locate(dataset.path or "")
    except LocationError as error:
        yield Mistake(("dataset", "path"), error.rule)
    for name, measure in dataset.measures.items():
        path: KeyPath = ("dataset", "measures", name)
        if name in (*levels, RECORDS):
            yield Mistake(path, "this name has another meaning; choose another")
        if measure.type == "decimal" and measure.step is None:
            yield missing((*path, "step"), " (every value is a whole multiple of it)")
        if measure.type == "integer" and measure.step not in (None, 1):
            yield Mistake((*path, "step"), "must be 1 or left out, for integers")
        if measure.step is not None and not SMALLEST <= measure.step <= 1 / SMALLEST:
            yield Mistake((*path, "step"), "must be between 1e-50 and 1e50")


@dataclass(frozen=True)
class _Check:
    """What queries and limits are checked against."""

    plan: PlanSpec
    domain: Domain
    folder: Path

    @property
    def measures(self) -> Mapping[str, MeasureSpec]:
        return self.plan.dataset.measures

    def queries_mistakes(self) -> Iterator[Mistake]:
        names: set[str] = set()
        queries = [(("queries", i), query) for i, query in enumerate(self.plan.queries)]
        path: KeyPath
        for path, query in [*queries, *((("derived", i), table) for i, table in enumerate(self.plan.derived))]:
            if query.name in names:
                yield Mistake((*path, "name"), "another table has this name")
            if query.name.endswith(".csv"):
                yield Mistake((*path, "name"), "must not end in .csv, the ending of a table's text file")
            names.add(query.name)
            yield from self.statistic_mistakes(query, path)
            yield from self.by_mistakes(query.by, (*path, "by"))
            yield from self.where_mistakes(query.where, (*path, "where"))
            if isinstance(query, QuerySpec):
                yield from self.mechanisms_mistakes(query, (*path, "mechanism"))

    def statistic_mistakes(self, query: DerivedSpec, path: KeyPath) -> Iterator[Mistake]:
        if len(query.statistics) != 1:
            known = " or ".join(
                f"{kind} (a measure)" if each.reads_measure else f"{kind}: {RECORDS} or {OWNERS}"
                for kind, each in STATISTICS.items()
            )
            yield Mistake(path, f"must have either {known}", absent=tuple((*path, kind) for kind in STATISTICS))
        else:
            (statistic,) = query.statistics
            if not statistic.adds_up:
                yield from self._owners_mistakes(query, (*path, statistic.kind))
            for name in statistic.measures:
                if name not in self.measures:
                    yield Mistake((*path, statistic.kind), f"unknown measure{hint(name, self.measures, 'measure')}")

    def _owners_mistakes(self, query: DerivedSpec, path: KeyPath) -> Iterator[Mistake]:
        dataset = self.plan.dataset
        if not isinstance(query, QuerySpec):
            yield Mistake(path, "counts of owners do not add up over cells: let a query count them")
        if OWNERS in self.measures:
            yield Mistake(("dataset", "measures", OWNERS), "this name has another meaning; choose another")
        if dataset.unit == RECORD:
            yield Mistake(path, OF_OWNERS)

    def by_mistakes(self, by: Sequence[str], path: KeyPath) -> Iterator[Mistake]:
        first: dict[str, str] = {}
        for i, level in enumerate(by):
            rule = self.domain.level_rule(level)
            if not rule:
                key = self.domain.dimension(level).key
                if first.setdefault(key, level) != level or level in by[:i]:
                    rule = f"must be the only level of {key}; {first[key]} stands before it"
            if rule:
                yield Mistake((*path, i), rule)

    def where_mistakes(self, where: Mapping[str, Sequence[str]], path: KeyPath) -> Iterator[Mistake]:
        wrong = False
        for level, codes in where.items():
            rule = self.domain.level_rule(level)
            if rule:
                wrong = True
                yield Mistake((*path, level), rule)
                continue
            first = {code: i for i, code in reversed(tuple(enumerate(codes)))}
            for i, code in enumerate(codes):
                rule = "this code stands twice" if first[code] < i else self.domain.code_rule(level, code)
                if rule:
                    wrong = True
                    yield Mistake((*path, level, i), rule)
        if where and not wrong and not self.domain.meets(where):
            yield Mistake(path, "no cell of the domain meets it")

    def mechanisms_mistakes(self, query: QuerySpec, path: KeyPath) -> Iterator[Mistake]:
        spec, use = query.mechanism, self._use(query)
        if not isinstance(spec, PartsSpec):
            yield from mechanism_mistakes(spec, use, path)
            return
        parts = [((*path, "parts", code), part) for code, part in spec.parts.items()]
        for key, part in (*parts, ((*path, "others"), spec.others)):
            if part is not None:
                yield from mechanism_mistakes(part, use, key)
        yield from self.partition_mistakes(query, spec, path)

    def _use(self, query: QuerySpec) -> Use:
        measures = self.measures
        statistic = next(iter(query.statistics), Count())
        steps = [measures[name].step or Fraction(1) for name in statistic.measures if name in measures]
        known = len(steps) == len(statistic.measures)
        step = statistic.step(steps[0] if steps else Fraction(1)) if known else None
        return Use(statistic, step, measures, self.plan.interval, self.folder, self.plan.calibrate is not None)

    def partition_mistakes(self, query: QuerySpec, spec: PartsSpec, path: KeyPath) -> Iterator[Mistake]:
        """Yield what keeps the parts of a query's mechanism from being a partition of its public cells.

        Parallel composition rests on it: a record lies in one cell, its cell in one part, and its loss is that of this
        part's mechanism (docs/mathematics.md, section 5).
        """
        level, codes = spec.by, spec.parts
        rule = self.domain.level_rule(level) or self._roll_up_rule(level, query.by)
        if rule:
            yield Mistake((*path, "by"), rule)
            return
        try:
            met = self.domain.codes_met(level, query.where)
        except PlanError:
            return  # reported at the filter
        if not met:
            return
        rules = {
            code: self.domain.code_rule(level, code) or "no cell of the query has this code"
            for code in codes
            if code not in met
        }
        yield from (Mistake((*path, "parts", code), rule) for code, rule in rules.items())
        rest = [code for code in met if code not in codes]
        if rest and not rules and spec.others is None:
            shown = ", ".join(rest[:MOST_SHOWN]) + (", …" if len(rest) > MOST_SHOWN else "")
            yield missing((*path, "others"), f" (the mechanism of the codes that have no part: {shown})")
        if not rest and spec.others is not None:
            yield Mistake((*path, "others"), "must be left out: the parts name every code that the query has")

    def record_mistakes(self, at: RecordValues, path: KeyPath) -> Iterator[Mistake]:
        mistakes = [self._value_mistake(name, value, (*path, name)) for name, value in at.items()]
        yield from filter(None, mistakes)
        wrong = any(mistakes)
        read = (name for query in self.plan.queries for statistic in query.statistics for name in statistic.measures)
        for measure in dict.fromkeys(read):
            if measure in self.measures and measure not in at:
                yield Mistake(path, f"must also name {measure}, which a query sums", absent=((*path, measure),))
        for key in () if wrong else self.domain.dimensions:
            size = None if key.classes is None else at.get(key.classes.measure)
            code = key.codes[key.classes.class_of(size)] if key.classes and isinstance(size, Fraction) else None
            if code is not None and at.get(key.key) not in (None, code, size):
                wrong = True
                yield Mistake((*path, key.key), f"its class is {code}: leave {key.key} out")
        codes = {name: (value,) for name, value in at.items() if isinstance(value, str)}
        if codes and not wrong and not self.domain.meets(codes):
            yield Mistake(path, "no cell of the domain has these codes")

    def _value_mistake(self, name: str, value: str | Fraction, path: KeyPath) -> Mistake | None:
        if name in self.measures:
            return None if isinstance(value, Fraction) else Mistake(path, "must be a number")
        if name not in self.domain.nameable:
            rule = f"unknown measure or level{hint(name, (*self.measures, *self.domain.nameable))}"
            return Mistake(path, rule, unknown=True)
        if not isinstance(value, str):
            return Mistake(path, "must be text; put the code in quotes")
        broken = self.domain.level_rule(name) or self.domain.code_rule(name, value)
        return Mistake(path, broken) if broken else None

    def _roll_up_rule(self, level: str, by: Sequence[str]) -> str | None:
        """Return the rule that a known level breaks: every cell of the query must have one code at it."""
        if any(own not in self.domain.levels for own in by):
            return None
        dimension = self.domain.dimension(level)
        own = next((own for own in by if own in dimension.levels), None)
        if own is None:
            return f"must be a level of the query's by ({', '.join(by)}), or a coarser one of the same key"
        if dimension.between(own, level) is None:
            if level in dimension.further:
                return f"some codes of {own} have none at it, or several: each cell must lie in one part"
            return f"must be {own}, by which the query's cells are made, or a coarser level"
        return None


# What contradicts itself in a plan's choice of keys, levels and classes, before any of their files is read.


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
    for key, each in codes.items():
        if isinstance(each, MainSpec) or (isinstance(each, ClassesSpec) and each.per == "owner"):
            yield from _of_owner_mistakes(each, ("domain", key), dataset)
    if lists and all(each.optional for each in lists.values()):
        yield Mistake(("domain", next(iter(lists)), "optional"), "some key must have a code for every record")
    yield from _other_mistakes(spec, lists)
    yield from _level_mistakes(lists, codes if spec.cells is None else {**columns, **codes})
    yield from _class_mistakes(codes, dataset.measures)


def _of_owner_mistakes(each: ClassesSpec | MainSpec, path: KeyPath, dataset: DatasetSpec) -> Iterator[Mistake]:
    """Yield what keeps a code from following from all records of an owner.

    Where single records are protected, one would decide in which cells others are: no policy function bounds that.
    """
    if dataset.unit == RECORD:
        rule = f"follows from all records of an owner, so that one may move others to other cells: {OF_OWNERS}"
        yield Mistake((*path, "main" if isinstance(each, MainSpec) else "per"), rule)


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
    owner = {level: key for key in LEVELS.keys() & codes.keys() for level in LEVELS[key]}
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


def _class_mistakes(
    codes: Mapping[str, ListSpec | ClassesSpec | MainSpec], measures: Mapping[str, MeasureSpec]
) -> Iterator[Mistake]:
    for key, each in codes.items():
        if isinstance(each, ListSpec):
            continue
        path: KeyPath = ("domain", key)
        if rule := level_name_rule(key):
            yield Mistake(path, f"the key's name {rule}")
        if key in LEVELS:
            yield Mistake(path, f"{key} is a key of codes; give the classes another name")
        if each.of not in measures:
            yield Mistake((*path, "of"), f"unknown measure{hint(each.of, measures, 'measure')}")
            continue
        if isinstance(each, MainSpec):
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


# The public files that a plan names, and which of them are refused by name as parts of microdata.
#
# Whether a file is there, and what is wrong with it, is said to whoever wrote the plan. So none is looked at that lies
# in the dataset's own microdata, or is named as parts of microdata are.

VERSION = re.compile(r"@v[0-9]+$")  # of a table, which it is no part of the location of
CONFIDENTIAL = "may lie in no microdata: neither below dataset.path, nor in a folder such as county=…, nor in Parquet"


def confidential_files(spec: PlanSpec, folder: Path) -> Iterator[Mistake]:
    """Yield a mistake for each file, named relative to `folder`, that may be a part of microdata by its name.

    Nothing is looked at but links.
    """
    path = spec.dataset.path
    try:
        microdata = None if path is None else locate(VERSION.sub("", path), folder=folder)
    except PlanError:  # of another mistake
        microdata = None
    for key, name in _named(spec):
        file = LocalPath(Path(os.path.abspath(public_file(folder, name))))
        is_part = "=" in name or name.lower().endswith(".parquet")
        if is_part or (microdata is not None and _lies_in(file, microdata)):
            yield Mistake(key, CONFIDENTIAL)


def _lies_in(file: Location, microdata: Location) -> bool:
    try:
        return file.is_relative_to(microdata) or file.resolve().is_relative_to(microdata.resolve())
    except PlanError:  # links in a circle: whoever follows them says so
        return False


def _named(spec: PlanSpec) -> Iterator[tuple[KeyPath, str]]:
    if spec.domain.cells:
        yield ("domain", "cells"), spec.domain.cells
    for key, each in spec.domain.codes.items():
        if isinstance(each, ListSpec):
            yield ("domain", key), each.list
    for number, query in enumerate(spec.queries):
        for _, mechanism in query.mechanisms:
            if isinstance(weights := getattr(mechanism, "weights", None), str):
                yield ("queries", number, "mechanism"), weights
    for name, wish in (spec.calibrate.queries if spec.calibrate else {}).items():
        if wish.sizes is not None:
            yield ("calibrate", "queries", name, "sizes"), wish.sizes
