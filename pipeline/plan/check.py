"""What a plan's shape cannot say: names that must fit together, levels and codes that the domain must have.

The parts checked may be incomplete: a key whose shape is broken is absent, was reported already, and is passed over,
so that all other mistakes are reported in the same run.
"""

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from pipeline.errors import PlanError, nearest
from pipeline.plan.calibration import Use, mechanism_mistakes
from pipeline.plan.domain import ALL_LEVELS, Domain, unknown_level
from pipeline.plan.messages import KeyPath, Mistake, missing
from pipeline.plan.model import RECORD
from pipeline.plan.schema import (
    INTERVAL,
    DatasetSpec,
    LimitSpec,
    MeasureSpec,
    PartsSpec,
    PlanSpec,
    QuerySpec,
    RecordValues,
    Spec,
)
from pipeline.storage.uri import locate
from udfs.mechanisms.parameters import SMALLEST
from udfs.numbers.exact import exact
from udfs.records.codes import LEVELS, dimension_of
from udfs.records.statistics import RECORDS, STATISTICS, Count


def _level_rule(level: str, domain: Domain | None) -> str | None:
    """Return the rule that `level` breaks: it must be known, and the domain (None: not read) as fine."""
    if domain is None:
        return None if level in ALL_LEVELS else unknown_level(level)
    return domain.level_rule(level)


def _code_rule(level: str, code: str, domain: Domain | None) -> str | None:
    """Return the rule that `code` breaks: the domain must have it at `level`, a level without a broken rule."""
    return None if domain is None else domain.code_rule(level, code)


# Mistakes in a mechanism by parts: the parts must be a partition of the query's public cells.
#
# Parallel composition rests on it: a record lies in one cell, its cell in one part, and its loss is that of this
# part's
# mechanism (docs/mathematics.md, section 5).


MOST_SHOWN = 5


def partition_mistakes(query: QuerySpec, spec: PartsSpec, path: KeyPath, domain: Domain | None) -> Iterator[Mistake]:
    """Yield what keeps the parts of a query's mechanism from being a partition of its cells."""
    level: str | None = getattr(spec, "by", None)
    if level is None:
        return
    rule = _level_rule(level, domain) or _roll_up_rule(level, getattr(query, "by", None))
    if rule:
        yield Mistake((*path, "by"), rule)
        return
    codes: Mapping[str, Any] | None = getattr(spec, "parts", None)
    met = _codes_met(level, query, domain)
    if codes is None or not met:
        return
    wrong = [
        Mistake((*path, "parts", code), rule)
        for code in codes
        if (rule := _code_rule(level, code, domain) or ("" if code in met else "no cell of the query has this code"))
    ]
    yield from wrong
    left = [code for code in met if code not in codes]
    if left and not wrong and getattr(spec, "others", spec) is None:
        shown = ", ".join(left[:MOST_SHOWN]) + (", …" if len(left) > MOST_SHOWN else "")
        yield missing((*path, "others"), f" (the mechanism of the codes that have no part: {shown})")
    if not left and getattr(spec, "others", spec) is not None:
        yield Mistake((*path, "others"), "must be left out: the parts name every code that the query has")


def _roll_up_rule(level: str, by: Sequence[str] | None) -> str | None:
    """Return the rule that a known level breaks: every cell of the query must have one code at it."""
    if by is None or any(own not in ALL_LEVELS for own in by):
        return None
    key = dimension_of(level)
    own = next((own for own in by if dimension_of(own) == key), None)
    if own is None:
        return f"must be a level of the query's by ({', '.join(by)}), or a coarser one of the same key"
    if LEVELS[key].index(level) > LEVELS[key].index(own):
        return f"must be {own}, by which the query's cells are made, or a coarser level"
    return None


def _codes_met(level: str, query: QuerySpec, domain: Domain | None) -> tuple[str, ...]:
    """Return the codes at `level` of the query's cells; none where that cannot be said, or the filter is wrong."""
    if domain is None or not hasattr(query, "where"):
        return ()
    try:
        return domain.codes_met(level, query.where)
    except PlanError:
        return ()  # reported at the filter


# What a plan's shape cannot say: names that must fit together, levels and codes that the domain must have.
#
# The parts checked may be incomplete: a key whose shape is broken is absent, was reported already, and is passed
# over, so that all other mistakes are found in the same run.


TAKEN = (*ALL_LEVELS, RECORDS)  # levels, and the count


def mistakes_of_meaning(plan: PlanSpec, domain: Domain | None) -> Iterator[Mistake]:
    """Yield what contradicts itself, another part of the plan, or the domain (None: it could not be read)."""
    if _given(plan, "supersedes") and plan.supersedes == _given(plan, "release"):
        yield Mistake(("supersedes",), "must name another release")
    dataset: DatasetSpec | None = _given(plan, "dataset")
    measures: Mapping[str, MeasureSpec] | None = _given(dataset, "measures")
    queries: Sequence[QuerySpec] = _given(plan, "queries") or []
    if dataset is not None:
        yield from dataset_mistakes(dataset, measures or {})
    coverage = _given(plan, "interval") or exact(INTERVAL)  # of a broken one another mistake is told
    yield from _queries(queries, measures, domain, coverage)
    for i, limit in enumerate(_given(plan, "budget") or []):
        path: KeyPath = ("budget", i, "at")
        if isinstance(_given(limit, "at"), list) and _given(dataset, "unit") == RECORD:
            yield Mistake(path, "must be a mapping; a list is for a dataset whose unit is an owner column")
        for place, record in _records(limit, path):
            yield from _limit(record, place, queries, measures, domain)


def _given(part: Any, key: str) -> Any:
    return getattr(part, key, None)


def dataset_mistakes(dataset: DatasetSpec, measures: Mapping[str, MeasureSpec]) -> Iterator[Mistake]:
    """Yield what contradicts itself in the key dataset; a broken part of it is absent, and passed over."""
    sound = hasattr(dataset, "path") and hasattr(dataset, "source")  # a broken one was reported, and is meant
    if sound and (dataset.path is None) == (dataset.source is None):
        either = (("dataset", "path"), ("dataset", "source"))
        yield Mistake(
            ("dataset",), "must have either path (files) or source (a table of Spark's catalog)", absent=either
        )
    try:
        locate(_given(dataset, "path") or "")
    except PlanError as error:
        yield Mistake(("dataset", "path"), str(error).removeprefix("the location: "))
    if _given(dataset, "source") and _given(dataset, "duplicates") in ("reject", "combine"):
        yield Mistake(("dataset", "duplicates"), "must be trust, where the microdata are a table of Spark's catalog")
    for name, measure in measures.items():
        path: KeyPath = ("dataset", "measures", name)
        if name in TAKEN:
            yield Mistake(path, "this name has another meaning; choose another")
        if measure.type == "decimal" and measure.step is None:
            yield missing((*path, "step"), " (every value is a whole multiple of it)")
        if measure.type == "integer" and measure.step not in (None, 1):
            yield Mistake((*path, "step"), "must be 1 or left out, for integers")
        if measure.step is not None and not SMALLEST <= measure.step <= 1 / SMALLEST:
            yield Mistake((*path, "step"), "must be between 1e-50 and 1e50")


def _queries(
    queries: Sequence[QuerySpec],
    measures: Mapping[str, MeasureSpec] | None,
    domain: Domain | None,
    coverage: Fraction,
) -> Iterator[Mistake]:
    seen: set[str] = set()
    for i, query in enumerate(queries):
        path: KeyPath = ("queries", i)
        name = _given(query, "name")
        if name in seen:
            yield Mistake((*path, "name"), "another query has this name")
        if name is not None and name.endswith(".csv"):
            yield Mistake((*path, "name"), "must not end in .csv, the ending of a table's text file")
        seen |= {name} - {None}
        yield from _statistic(query, path, measures)
        yield from _by(_given(query, "by") or [], (*path, "by"), domain)
        yield from _where(_given(query, "where") or {}, (*path, "where"), domain)
        use = _use_of(query, measures or {}, coverage)
        yield from _mechanisms(query, use, (*path, "mechanism"), domain)


def _statistic(query: QuerySpec, path: KeyPath, measures: Mapping[str, MeasureSpec] | None) -> Iterator[Mistake]:
    if not all(hasattr(query, kind) for kind in STATISTICS):
        return
    if len(query.statistics) != 1:
        known = " or ".join(
            f"{kind} (a measure)" if each.reads_measure else f"{kind}: {RECORDS}" for kind, each in STATISTICS.items()
        )
        yield Mistake(path, f"must have either {known}", absent=tuple((*path, kind) for kind in STATISTICS))
    elif measures is not None:
        (statistic,) = query.statistics
        for name in statistic.measures:
            if name not in measures:
                hint = f"; nearest known measure: {nearest(name, measures)}" if measures else ""
                yield Mistake((*path, statistic.kind), f"unknown measure{hint}")


def _by(by: Sequence[str], path: KeyPath, domain: Domain | None) -> Iterator[Mistake]:
    first: dict[str, str] = {}
    for i, level in enumerate(by):
        rule = _level_rule(level, domain)
        key = dimension_of(level) if level in ALL_LEVELS else ""
        if not rule and key in first:
            rule = f"must be the only level of {key}; {first[key]} stands before it"
        if rule:
            yield Mistake((*path, i), rule)
        first.setdefault(key, level)


def _where(where: Mapping[str, Sequence[str]], path: KeyPath, domain: Domain | None) -> Iterator[Mistake]:
    found = []
    for level, codes in where.items():
        rule = _level_rule(level, domain)
        if rule:
            found.append(Mistake((*path, level), rule))
            continue
        first = {code: i for i, code in reversed(tuple(enumerate(codes)))}
        for i, code in enumerate(codes):
            rule = "this code stands twice" if first[code] < i else _code_rule(level, code, domain)
            if rule:
                found.append(Mistake((*path, level, i), rule))
    yield from found
    if where and not found and domain is not None and not domain.meets(where):
        yield Mistake(path, "no cell of the domain meets it")


def _mechanisms(query: QuerySpec, use: Use, path: KeyPath, domain: Domain | None) -> Iterator[Mistake]:
    spec = _given(query, "mechanism")
    if not isinstance(spec, PartsSpec):
        yield from _mechanism(spec, use, path)
        return
    for code, part in (_given(spec, "parts") or {}).items():
        yield from _mechanism(part, use, (*path, "parts", code))
    yield from _mechanism(_given(spec, "others"), use, (*path, "others"))
    yield from partition_mistakes(query, spec, path, domain)


def _mechanism(spec: Spec | None, use: Use, path: KeyPath) -> Iterator[Mistake]:
    if spec is not None:
        yield from mechanism_mistakes(spec, use, path)


def _use_of(query: QuerySpec, measures: Mapping[str, MeasureSpec], coverage: Fraction) -> Use:
    statistic = next(iter(query.statistics), Count())
    steps = [measures[name].step or Fraction(1) for name in statistic.measures if name in measures]
    known = len(steps) == len(statistic.measures)
    return Use(statistic, statistic.step(steps[0] if steps else Fraction(1)) if known else None, measures, coverage)


def _records(limit: LimitSpec, path: KeyPath) -> Iterator[tuple[KeyPath, RecordValues]]:
    at = _given(limit, "at")
    if isinstance(at, list):
        yield from (((*path, i), record) for i, record in enumerate(at))
    elif at is not None:
        yield path, at


def _limit(
    at: RecordValues,
    path: KeyPath,
    queries: Sequence[QuerySpec],
    measures: Mapping[str, MeasureSpec] | None,
    domain: Domain | None,
) -> Iterator[Mistake]:
    if measures is None:
        return
    found = [_reference(name, value, path, measures, domain) for name, value in at.items()]
    wrong = [mistake for mistake in found if mistake is not None]
    yield from wrong
    named = (measure for query in queries for statistic in query.statistics for measure in statistic.measures)
    for measure in dict.fromkeys(named):
        if measure in measures and measure not in at:
            yield Mistake(path, f"must also name {measure}, which a query sums", absent=((*path, measure),))
    codes = {name: (value,) for name, value in at.items() if isinstance(value, str)}
    if codes and not wrong and domain is not None and not domain.meets(codes):
        yield Mistake(path, "no cell of the domain has these codes")


def _reference(
    name: str, value: str | Fraction, path: KeyPath, measures: Mapping[str, MeasureSpec], domain: Domain | None
) -> Mistake | None:
    place = (*path, name)
    if name not in measures and name not in ALL_LEVELS:
        known = nearest(name, (*measures, *ALL_LEVELS))
        return Mistake(place, f"unknown measure or level; nearest known: {known}", unknown=True)
    if name in measures:
        return None if isinstance(value, Fraction) else Mistake(place, "must be a number")
    if not isinstance(value, str):
        return Mistake(place, "must be text; put the code in quotes")
    rule = _level_rule(name, domain) or _code_rule(name, value, domain)
    return Mistake(place, rule) if rule else None
