"""The columns of the microdata, by their names and types alone: those that a plan reads must be there, and fit.

Columns and formats are no confidential content, so what is wrong with them is told, with exit code 2.
"""

from collections.abc import Iterable, Sequence

import pyarrow as pa

from pipeline.base.errors import PlanError, in_a_line
from pipeline.base.names import nearest
from udfs.records.contract import ColumnUnfit, require_code_type, require_name_type, require_number_type
from udfs.records.decoding import SumSpec

SHOWN = 200  # characters of names that a message repeats
ADVICE = "correct the microdata, or the plan's columns"


def require_columns(where: str, found: Sequence[str], needed: Iterable[str]) -> None:
    """Return if each needed name stands once among the names `found`; raises PlanError, with the names found.

    They are told only where one of them is needed: others could be a record that was taken for a header.
    """
    wanted = list(dict.fromkeys(needed))
    missing = [name for name in wanted if name not in found]
    if missing and not set(wanted) & set(found):
        raise PlanError(f"{where}: none of its columns is one that the plan names; {ADVICE}")
    if missing:
        free = [name for name in found if name not in wanted]
        absent = ", ".join(_with_nearest(name, free) for name in missing)
        raise PlanError(f"{where}: it has no column {absent}; {ADVICE}", columns_line(found))
    twice = [in_a_line(name) for name in wanted if found.count(name) > 1]
    if twice:
        raise PlanError(f"{where}: column {twice[0]} stands twice; keep one")


def require_types(where: str, schema: pa.Schema, spec: SumSpec) -> None:
    """Return if those of the scan's columns that a schema has are of types that fit; raises PlanError otherwise."""
    kinds = dict(zip(schema.names, schema.types, strict=True))
    try:
        for key in spec.code_columns:
            if key in kinds:
                require_code_type(kinds[key], key)
        for name in (spec.owner, spec.record):
            if name is not None and name in kinds:
                require_name_type(kinds[name], name)
        for measure in spec.measures:
            if measure.column in kinds:
                require_number_type(kinds[measure.column], measure.column)
    except ColumnUnfit as error:
        column, rule = error.column, error.rule
    else:
        return
    raise PlanError(f"{where}: column {in_a_line(column)} {rule}; {ADVICE}")


def columns_line(found: Iterable[str]) -> str:
    """Return the line of a message that names columns."""
    names = [_shown(name) for name in found]
    shown = len(names)
    while shown > 1 and len(", ".join(names[:shown])) > SHOWN:
        shown -= 1
    more = f", … ({len(names)} in all)" if shown < len(names) else ""
    return f"its columns are {', '.join(names[:shown])}{more}"


def _with_nearest(name: str, found: Iterable[str]) -> str:
    near = nearest(name, found)
    return in_a_line(name) + ("" if near is None else f" (nearest: {_shown(near)})")


def _shown(name: str) -> str:
    return in_a_line(name) if name and name == name.strip() else f'"{in_a_line(name)}"'
