"""Coarser levels in place of a table that is too large to be looked at: as another table has them, or added up.

A table of the same release goes first: it has noise of its own, of one cell and not of many. Sums of published cells
are post-processing, and are told apart from published figures wherever they stand.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.plan.cells import Base, QueryCells, RollUp
from pipeline.plan.domain import Domain
from pipeline.plan.keys import Where
from pipeline.plan.structure import Structure
from pipeline.publication.site.facts import Facts, coarser
from pipeline.publication.site.figures import PART, Figures, Read

MOST_SUMS = PART  # cells of coarser levels that are added up, so that a page loads them at once
WHOLE_NUMBERS = 2.0**53  # below it sums of doubles are exact


@dataclass(frozen=True, eq=False)
class Coarse:
    """What is shown in place of a table: what is said of it, as of a table, and all its figures.

    `summed`: whether they are sums of the table's own cells.
    """

    about: Facts
    figures: Figures
    summed: bool


def coarse_of(
    about: Mapping[str, Any], facts: Facts, shown: Collection[str], structure: Structure, read: Read
) -> Coarse | None:
    """Return what is shown in place of a table, where there is something: the largest of the tables `shown` whose cells
    its cells add up to, else sums of its own cells, if their errors are known."""
    of, domain = structure.tables[about["name"]], structure.domain
    cells = of.cells(domain)
    for other in sorted(facts["tables"], key=lambda each: -int(each["cells"])):
        name, table = other["name"], structure.tables[other["name"]]
        alike = (table.statistic, table.where) == (of.statistic, of.where)
        if name in shown and alike and other["cells"] and _rolls_up(cells, table.cells(domain)):
            figures = Figures.read(table.cells(domain), read(name), other["cells"])
            return Coarse(other, figures, summed=False)
    by = coarse_levels(domain, of.by, of.where)
    if by is None or by == of.by or not about.get("sums") or about.get("reconciled"):
        return None
    figures = added_up(cells, domain.query_cells(by, of.where), read(about["name"]), **about["sums"])
    return Coarse(dict(about) | {"by": list(by), "cells": figures.cells.size}, figures, summed=True)


def coarse_levels(domain: Domain, by: tuple[str, ...], where: Where) -> tuple[str, ...] | None:
    """Return levels that have few enough cells: the one with most codes is made coarser until there are."""
    levels = list(by)
    while domain.query_cells(levels, where).size > MOST_SUMS:
        sizes = {level: len(domain.dimension(level).index(level)) for level in levels}
        above = {level: coarser(domain, level) for level in levels}
        finest = max((level for level in levels if above[level]), key=lambda level: sizes[level], default=None)
        if finest is None:
            return None
        codes = {each: len(domain.dimension(each).index(each)) for each in above[finest]}
        levels[levels.index(finest)] = max(codes, key=lambda each: codes[each])
    return tuple(levels)


def added_up(
    cells: QueryCells, to: QueryCells, batches: Iterator[pa.RecordBatch], multiplier: float, half_step: float
) -> Figures:
    """Return the sums of a table's figures by coarser cells.

    Errors are independent, so variances add up. `multiplier` standard errors and `half_step` hold the error of a sum
    with the table's coverage (docs/mathematics.md, section 15).
    """
    roll_up, first, whole = RollUp.of(Base(cells, ()), to), 0, True
    value, size, variance = (np.zeros(to.size) for _ in range(3))
    for batch in batches:
        into = roll_up.cells(np.arange(first, first + len(batch)))
        first += len(batch)
        given, errors = (batch[name].to_numpy(zero_copy_only=False)[into >= 0] for name in ("value", "standard_error"))
        whole = whole and np.issubdtype(given.dtype, np.integer)
        given = given.astype(np.float64)
        value += np.bincount(into[into >= 0], given, to.size)
        size += np.bincount(into[into >= 0], np.abs(given), to.size)
        variance += np.bincount(into[into >= 0], errors**2, to.size)
    error = np.sqrt(variance)
    half = multiplier * error + half_step
    columns = {"value": value, "lower": value - half, "upper": value + half}
    if whole and float((size + half).max(initial=0)) < WHOLE_NUMBERS:
        rounded = (value, np.floor(columns["lower"]), np.ceil(columns["upper"]))
        columns = {name: x.astype(np.int64) for name, x in zip(columns, rounded, strict=True)}
    return Figures(to, columns | {"standard_error": error})


def _rolls_up(cells: QueryCells, to: QueryCells) -> bool:
    try:
        RollUp.of(Base(cells, ()), to)
    except ValueError:
        return False
    return to.size < cells.size
