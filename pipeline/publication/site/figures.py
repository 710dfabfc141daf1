"""Figures of one table as pages show them: in rows with names of codes, in words, and as bars on a common scale."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import isfinite, isnan
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.engines.writers import largest_of
from pipeline.plan.domain import Domain
from pipeline.plan.domain.cells import Base, QueryCells, RollUp
from pipeline.plan.domain.code_lists import CONF
from pipeline.plan.domain.keys import Where
from pipeline.plan.model import VALUES
from pipeline.plan.structure import Structure
from pipeline.publication.description import Facts, coarser

Numbers = NDArray[Any]
Read = Callable[[str], Iterator[pa.RecordBatch]]  # the rows of a published table in key order, by its name
Names = Mapping[str, Mapping[str, str]]  # level → code → name


@dataclass(frozen=True, eq=False)
class Figures:
    """The first figures of a table, or all of them: its cells, and by name of VALUES their numbers in key order."""

    cells: QueryCells
    columns: Mapping[str, Numbers]
    nonnegative: bool = False  # whether the contract of records keeps totals from being negative

    @classmethod
    def read(
        cls, cells: QueryCells, batches: Iterator[pa.RecordBatch], most: int, *, nonnegative: bool = False
    ) -> "Figures":
        """Return the first `most` figures, read batch by batch."""
        read: list[pa.RecordBatch] = []
        while sum(map(len, read)) < most and (batch := next(batches, None)) is not None:
            read.append(batch.select(list(VALUES)))
        if not read:
            return cls(cells, {name: np.zeros(0) for name in VALUES}, nonnegative)
        table = pa.Table.from_batches(read).slice(0, most).combine_chunks()
        return cls(cells, {name: table[name].to_numpy() for name in VALUES}, nonnegative)

    def __len__(self) -> int:
        return len(self.columns[VALUES[0]])

    @property
    def complete(self) -> bool:
        """Whether these are all figures of the table."""
        return len(self) == self.cells.size

    def largest(self, most: int) -> list[int]:
        """Return the numbers of the cells with the largest values, the largest first, of equal ones the first."""
        cells: list[int] = largest_of(self.columns["value"].astype(np.float64), most).tolist()
        return cells

    def codes(self, cell: int) -> dict[str, str]:
        """Return the codes of a cell by level."""
        return {level: codes[index[0]] for level, (codes, index) in self.cells.keys(cell, cell + 1).items()}

    def row(self, cell: int, names: Names) -> dict[str, Any]:
        """Return a cell for a template: its keys, and its numbers as text."""
        keys = [{"code": code, "name": names[level].get(code, "")} for level, code in self.codes(cell).items()]
        numbers = {name: column[cell].item() for name, column in self.columns.items()}
        return {
            "keys": keys,
            "label": " · ".join(key["name"] or key["code"] for key in keys),
            "numbers": numbers,
            "text": {name: figure(value) for name, value in numbers.items()},
            "reading": (self.nonnegative and reading(numbers["lower"], numbers["upper"])) or outside(**numbers),
        }


def figure(value: float) -> str:
    """Return a figure for people: whole numbers in full, others with one decimal; beyond 10¹⁵ in four digits."""
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if not isfinite(value):
        return "unknown" if isnan(value) else "unbounded"
    return (f"{value:,.1f}" if abs(value) < 1e15 else f"{value:.3e}").replace("-", "−")


def reading(lower: float, upper: float) -> str:
    """Return how to read the interval of a total that cannot be negative; nothing where it is above 0.

    It is cut at 0: a total in the one is in the other, so that its coverage stays (docs/tables.md).
    """
    if not lower <= 0:
        return ""
    return f"less than the noise: read as {f'none to {figure(upper)}' if upper > 0 else 'none'}"


def outside(value: float, lower: float, upper: float, **_: float) -> str:
    """Return what to do where a figure lies outside its own interval, as small ones may; nothing elsewhere."""
    return "" if lower <= value <= upper else "the figure is outside: quote the interval"


def with_bars(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with the ends of their error bars, in per cent of one scale that holds them all and 0."""
    marks = [row["numbers"][name] for row in rows for name in ("value", "lower", "upper")]
    finite = [0.0, *(float(mark) for mark in marks if isfinite(mark))]
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0

    def at(mark: float) -> float:
        return round(100 * (min(max(float(mark), low), high) - low) / span, 2)

    return [
        row
        | {
            "from": at(row["numbers"]["lower"]),
            "to": at(row["numbers"]["upper"]),
            "at": at(row["numbers"]["value"]),
            "zero": at(0.0),
        }
        for row in rows
    ]


def clear(figures: Figures) -> NDArray[np.bool_]:
    """Return which cells are told from 0: their interval does not hold it, nor is below where no total can be."""
    result: NDArray[np.bool_] = figures.columns["lower"] > 0
    return result if figures.nonnegative else result | (figures.columns["upper"] < 0)


ENDS = (0, 1 / 2, 3 / 4, 7 / 8, 15 / 16, 1)  # of classes: each has half of what lower ones leave, since few are large


def classes(values: Numbers, lower: Numbers, upper: Numbers) -> list[int]:
    """Return of each value its class, 0 the lowest: classes differ by more than the errors of what is in them.

    Of classes that end at `ENDS` of the values in order, neighbours become one as long as their middle intervals meet:
    the medians of lower and of upper ends.
    """
    order = np.argsort(values, kind="stable")
    ranks = [int(len(order) * end) for end in ENDS]
    groups = [order[first:last] for first, last in pairwise(ranks) if first < last]
    i = 0
    while i + 1 < len(groups):
        if _middle(upper[groups[i]]) < _middle(lower[groups[i + 1]]):
            i += 1
        else:
            groups[i : i + 2] = [np.concatenate(groups[i : i + 2])]
            i = max(0, i - 1)
    cuts = [values[group[0]] for group in groups[1:]]
    return [sum(bool(value >= cut) for cut in cuts) for value in values]


def _middle(ends: Numbers) -> float:
    return float(np.sort(ends)[len(ends) // 2])


def clearest(figures: Figures, level: str) -> int:
    """Return a cell whose codes beside `level` have something to see there: the largest share of cells told from 0.

    Of equal shares it is where the figures are largest, of equal figures the first.
    """
    cells = figures.cells
    positions = cells.positions_of(np.arange(cells.size) if cells.listed is None else cells.listed)
    others = [each for name, each in zip(cells.by, positions[: len(cells.by)], strict=True) if name != level]
    if not others:
        return 0
    group = np.ravel_multi_index(others, [int(each.max()) + 1 for each in others])
    if cells.listed is not None:  # else every combination of codes is there
        _, group = np.unique(group, return_inverse=True)
    share = np.bincount(group, clear(figures)) / np.bincount(group)
    value = np.bincount(group, np.nan_to_num(figures.columns["value"].astype(np.float64)))
    return int(np.argmax(group == np.lexsort((-value, -share))[0]))


# Coarser levels in place of a table that is too large to be looked at: as another table has them, or added up.
#
# A table of the same release goes first: it has noise of its own, of one cell and not of many. Sums of published cells
# are post-processing, and are told apart from published figures wherever they stand.

MOST_SUMS = 1 << 16  # cells of coarser levels that are added up, so that a page loads them at once
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
        alike = of.statistic.adds_up and (table.statistic, table.where) == (of.statistic, of.where)
        if name in shown and alike and other["cells"] and _rolls_up(cells, table.cells(domain)):
            nonnegative = other.get("nonnegative", False)
            figures = Figures.read(table.cells(domain), read(name), other["cells"], nonnegative=nonnegative)
            return Coarse(other, figures, summed=False)
    by = coarse_levels(domain, of.by, of.where)
    if by is None or by == of.by or not about.get("sums") or about.get("reconciled"):
        return None
    figures = added_up(cells, domain.query_cells(by, of.where), read(about["name"]), **about["sums"])
    figures = replace(figures, nonnegative=about.get("nonnegative", False))
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
    roll_up, first, integral = RollUp.of(Base(cells, ()), to), 0, True
    value, size, variance = (np.zeros(to.size) for _ in range(3))
    for batch in batches:
        into = roll_up.cells(np.arange(first, first + len(batch)))
        first += len(batch)
        values, errors = (batch[name].to_numpy(zero_copy_only=False)[into >= 0] for name in ("value", "standard_error"))
        integral = integral and np.issubdtype(values.dtype, np.integer)
        values = values.astype(np.float64)
        value += np.bincount(into[into >= 0], values, to.size)
        size += np.bincount(into[into >= 0], np.abs(values), to.size)
        variance += np.bincount(into[into >= 0], errors**2, to.size)
    error = np.sqrt(variance)
    half = multiplier * error + half_step
    columns = {"value": value, "lower": value - half, "upper": value + half}
    if integral and float((size + half).max(initial=0)) < WHOLE_NUMBERS:
        rounded = (value, np.floor(columns["lower"]), np.ceil(columns["upper"]))
        columns = {name: x.astype(np.int64) for name, x in zip(columns, rounded, strict=True)}
    return Figures(to, columns | {"standard_error": error})


def _rolls_up(cells: QueryCells, to: QueryCells) -> bool:
    try:
        RollUp.of(Base(cells, ()), to)
    except ValueError:
        return False
    return to.size < cells.size


# Boundaries of a site's map: those in effect for the codes of its domain, of conf/maps alone.

MAPS = {"county": "counties.json", "state": "states.json"}  # boundaries in conf/maps, by level


def map_script(level: str, codes: Collection[str]) -> str:
    """Return the script that calls prdp.map with the boundaries of a level, for a domain that has these codes there.

    Areas that were divided anew are drawn as the codes have them: the earlier ones where these alone are among them,
    else the later ones, which no earlier one then covers.
    """
    return _script(level, frozenset(codes))


@lru_cache(maxsize=4)
def _script(level: str, codes: frozenset[str]) -> str:
    text = CONF.joinpath("maps", MAPS[level]).read_text(encoding="utf-8").strip().removesuffix("}")
    later, _, older = text.partition(',"older":')  # its last name: most maps are made without reading them
    for group in json.loads(older or "[]"):
        if group["shapes"].keys() & codes and not set(group["instead_of"]) & codes:
            drawn = json.loads(later + "}")
            kept = {code: rings for code, rings in drawn["shapes"].items() if code not in group["instead_of"]}
            later = json.dumps(drawn | {"shapes": kept | group["shapes"]}, separators=(",", ":")).removesuffix("}")
    return f"prdp.map({later}}});\n"


# A plain grid of the states: one square each, about where it lies, for tables by state.

# FIPS code → postal letters, row and column.
STATES: Mapping[str, tuple[str, int, int]] = {
    "02": ("AK", 1, 1), "23": ("ME", 1, 12),
    "50": ("VT", 2, 11), "33": ("NH", 2, 12),
    "53": ("WA", 3, 2), "16": ("ID", 3, 3), "30": ("MT", 3, 4), "38": ("ND", 3, 5), "27": ("MN", 3, 6),
    "55": ("WI", 3, 7), "26": ("MI", 3, 8), "36": ("NY", 3, 10), "25": ("MA", 3, 11), "44": ("RI", 3, 12),
    "41": ("OR", 4, 2), "32": ("NV", 4, 3), "56": ("WY", 4, 4), "46": ("SD", 4, 5), "19": ("IA", 4, 6),
    "17": ("IL", 4, 7), "18": ("IN", 4, 8), "39": ("OH", 4, 9), "42": ("PA", 4, 10), "34": ("NJ", 4, 11),
    "09": ("CT", 4, 12),
    "06": ("CA", 5, 2), "49": ("UT", 5, 3), "08": ("CO", 5, 4), "31": ("NE", 5, 5), "29": ("MO", 5, 6),
    "21": ("KY", 5, 7), "54": ("WV", 5, 8), "51": ("VA", 5, 9), "24": ("MD", 5, 10), "10": ("DE", 5, 11),
    "04": ("AZ", 6, 3), "35": ("NM", 6, 4), "20": ("KS", 6, 5), "05": ("AR", 6, 6), "47": ("TN", 6, 7),
    "37": ("NC", 6, 8), "45": ("SC", 6, 9), "11": ("DC", 6, 10),
    "40": ("OK", 7, 5), "22": ("LA", 7, 6), "28": ("MS", 7, 7), "01": ("AL", 7, 8), "13": ("GA", 7, 9),
    "15": ("HI", 8, 1), "48": ("TX", 8, 5), "12": ("FL", 8, 10),
}  # fmt: skip


SHADES = ((), (3,), (1, 4), (0, 2, 4), (0, 1, 3, 4), (0, 1, 2, 3, 4))  # of so many classes: as far apart as can be


def state_grid(figures: Figures, names: Names) -> dict[str, Any] | None:
    """Return the squares of a table by state, where most is told from 0; None where it has few."""
    cells = figures.cells
    if not figures.complete or not len(figures):
        return None
    shown = clearest(figures, "state")
    here = cells.positions_of(np.array([shown]) if cells.listed is None else cells.listed[shown : shown + 1])
    which = cells.by.index("state")
    axis = cells.axes[which]
    number = {axis.codes[kept]: position for position, kept in enumerate(axis.kept.tolist())}
    cell_of = {}
    for state in sorted(number.keys() & STATES.keys()):
        (cell,) = cells.numbers([np.array([number[state]]) if i == which else each for i, each in enumerate(here)])
        if cell >= 0:
            cell_of[state] = int(cell)
    if len(cell_of) < 2:
        return None
    value = figures.columns["value"]
    seen = clear(figures)
    told_apart = [state for state, cell in cell_of.items() if seen[cell]]
    there = [cell_of[state] for state in told_apart]
    of_state = classes(value[there], figures.columns["lower"][there], figures.columns["upper"][there])
    spread = SHADES[max(of_state, default=-1) + 1]
    shade = {state: f"q{spread[number]}" for state, number in zip(told_apart, of_state, strict=True)}
    others = [names[level].get(code, code) for level, code in figures.codes(shown).items() if level != "state"]
    tiles = [
        {
            "letters": letters,
            "row": row,
            "column": column,
            "shade": shade.get(state, "noise" if state in cell_of else "none"),
            "text": f"{names['state'].get(state, state)}: "
            + (figure(value[cell_of[state]].item()) if state in cell_of else "no figure")
            + (", not told from 0" if state in cell_of.keys() - shade.keys() else ""),
        }
        for state, (letters, row, column) in STATES.items()
    ]
    return {"of": " · ".join(others), "tiles": tiles, "noise": len(cell_of) - len(told_apart)}
