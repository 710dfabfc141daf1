"""Mistakes in a mechanism by parts: the parts must be a partition of the query's public cells.

Parallel composition rests on it: a record lies in one cell, its cell in one part, and its loss is that of this part's
mechanism (MATH section 2).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.domain import Domain
from pipeline.errors import PlanError
from pipeline.plan.codes import ALL_LEVELS, code_rule, level_rule
from pipeline.plan.messages import KeyPath, Mistake, missing
from pipeline.plan.schema import PartsSpec, QuerySpec
from udfs.codes import LEVELS, dimension_of

MOST_SHOWN = 5


def partition_mistakes(query: QuerySpec, spec: PartsSpec, path: KeyPath, domain: Domain | None) -> Iterator[Mistake]:
    """Yield what keeps the parts of a query's mechanism from being a partition of its cells."""
    level: str | None = getattr(spec, "by", None)
    if level is None:
        return
    rule = level_rule(level, domain) or _roll_up_rule(level, getattr(query, "by", None))
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
        if (rule := code_rule(level, code, domain) or ("" if code in met else "no cell of the query has this code"))
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
