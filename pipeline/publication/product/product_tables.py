"""Research and Basic tables: released tables with the same cells, side by side.

Research: every value as it was released, and its variance; where there is an estimate, both of it before. Basic: names
of codes, rounded values, standard deviations and coefficients of variation; a value is withheld where it is negative
or its coefficient reaches the product's limit.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.base.errors import PlanError
from pipeline.publication.product.product_files import PIECE, Written, written
from pipeline.publication.product.product_spec import ProductSpec, TableSpec
from pipeline.publication.reconcile.sources import (
    ERROR,
    PUBLISHED,
    VALUE,
    Floats,
    Source,
    coefficient,
    column,
    needed,
    numbers,
    same_keys,
    text_of,
    whole,
)

RESEARCH, BASIC = "research", "basic"
FORMATS = ("parquet", "csv")
WITHHELD = "S"  # County Business Patterns' letter for what does not meet publication standards
DIGITS = 4  # of a standard deviation in a Basic table
Names = Mapping[str, Mapping[str, str]]  # level → code → name


def write_table(product: ProductSpec, table: TableSpec, sources: Mapping[str, Source], names: Names, home: Path) -> Any:
    """Write a table's Research and Basic files into the folder `home`; return them.

    Raises PlanError where no release has one of its tables, or they have not the same cells.
    """
    of_measure = needed(sources, table.values, table.name)
    first, *others = of_measure.values()
    for level in first.levels:
        if level not in product.levels:
            raise PlanError(f"{table.name}: levels.{level}: say what it is: the released table {first.name} has it")
    for other in others:
        if (other.levels, other.rows) != (first.levels, first.rows):
            raise _differ(table, first, other)
    with ExitStack() as open_files:
        made = {
            kind: open_files.enter_context(written(*(home / kind / f"{table.name}.{each}" for each in FORMATS)))
            for kind in (RESEARCH, BASIC)
        }
        for pieces in _side_by_side(table, of_measure):
            keys = next(iter(pieces.values()))
            made[RESEARCH].write(_research(keys, first.levels, pieces))
            made[BASIC].write(_basic(keys, first.levels, pieces, names, product))
    files: list[Written] = list(made.values())
    return [file for each in files for file in each.files]


def _side_by_side(table: TableSpec, sources: Mapping[str, Source]) -> Iterator[dict[str, pa.Table]]:
    readers = {measure: source.reader() for measure, source in sources.items()}
    (first, of_first), *others = sources.items()
    done = False
    while not done:
        pieces = {measure: reader.take(PIECE) for measure, reader in readers.items()}
        for measure, other in others:
            if not same_keys(pieces[first], pieces[measure], of_first.levels):
                raise _differ(table, of_first, other)
        done = len(pieces[first]) < PIECE
        yield pieces


def _differ(table: TableSpec, first: Source, other: Source) -> PlanError:
    return PlanError(
        f"{table.name}: the released tables {first.name} and {other.name} have not the same cells in the same order: "
        "they cannot stand side by side; give them tables of their own"
    )


def _research(keys: pa.Table, levels: tuple[str, ...], pieces: Mapping[str, pa.Table]) -> pa.Table:
    columns: dict[str, Any] = {level: column(keys, level).cast(pa.string()) for level in levels}
    for measure, piece in pieces.items():
        columns[measure] = column(piece, VALUE)
        columns[f"{measure}_variance"] = numbers(piece, ERROR) ** 2
        if PUBLISHED[0] in piece.column_names:
            columns[f"{measure}_published"] = column(piece, PUBLISHED[0])
            columns[f"{measure}_published_variance"] = numbers(piece, PUBLISHED[1]) ** 2
    return pa.table(columns)


def _basic(
    keys: pa.Table, levels: tuple[str, ...], pieces: Mapping[str, pa.Table], names: Names, product: ProductSpec
) -> pa.Table:
    columns: dict[str, Any] = {}
    for level in levels:
        coded = column(keys, level)
        columns[level] = coded.cast(pa.string())
        if names.get(level):
            columns[f"{level}_name"] = text_of(coded, names[level])
    for measure, piece in pieces.items():
        values, errors = numbers(piece, VALUE), numbers(piece, ERROR)
        found = coefficient(values, errors)
        withheld = (values < 0) | (found >= float(product.basic.withhold_from))
        columns[measure] = pa.array(whole(values, int(product.basic.round)), mask=withheld)
        columns[f"{measure}_sd"] = _short(errors)
        columns[f"{measure}_cv"] = pa.array(np.round(found, 1), mask=withheld)
        columns[f"{measure}_flag"] = pa.array([WITHHELD, ""]).take(pa.array((~withheld).astype(np.int8)))
    return pa.table(columns)


def _short(errors: Floats) -> Floats:
    """Return standard errors in DIGITS digits; infinite ones and 0 as they are."""
    usual = np.isfinite(errors) & (errors > 0)
    places = DIGITS - 1 - np.floor(np.log10(np.where(usual, errors, 1.0)))
    up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    return np.where(usual, np.rint(errors * up / down) / up * down, errors)
