"""Figures of one table as pages show them: in rows with names of codes, in words, and as bars on a common scale."""

import base64
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, isnan
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.plan.cells import Base, QueryCells, RollUp
from pipeline.plan.code_lists import CONF
from pipeline.plan.domain import Domain
from pipeline.plan.keys import Where
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

    @classmethod
    def read(cls, cells: QueryCells, batches: Iterator[pa.RecordBatch], most: int) -> "Figures":
        """Return the first `most` figures, read batch by batch."""
        read: list[pa.RecordBatch] = []
        while sum(map(len, read)) < most and (batch := next(batches, None)) is not None:
            read.append(batch.select(list(VALUES)))
        if not read:
            return cls(cells, {name: np.zeros(0) for name in VALUES})
        table = pa.Table.from_batches(read).slice(0, most).combine_chunks()
        return cls(cells, {name: table[name].to_numpy() for name in VALUES})

    def __len__(self) -> int:
        return len(self.columns[VALUES[0]])

    @property
    def complete(self) -> bool:
        """Whether these are all figures of the table."""
        return len(self) == self.cells.size

    def largest(self, most: int) -> list[int]:
        """Return the numbers of the cells with the largest values, the largest first, of equal ones the first."""
        order = np.argsort(-self.columns["value"].astype(np.float64), kind="stable")
        return [int(cell) for cell in order[:most]]

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
        }


def figure(value: float) -> str:
    """Return a figure for people: whole numbers in full, others with one decimal; beyond 10¹⁵ in four digits."""
    if isinstance(value, int):
        return f"{value:,}".replace("-", "−")
    if not isfinite(value):
        return "unknown" if isnan(value) else "unbounded"
    return (f"{value:,.1f}" if abs(value) < 1e15 else f"{value:.3e}").replace("-", "−")


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


def shades(values: Sequence[float], classes: int = 5) -> list[int]:
    """Return of each value its class among as many of equal numbers, 0 the lowest; equal values share one."""
    order = sorted(values)
    cuts = [order[len(order) * i // classes] for i in range(1, classes)]
    return [sum(value >= cut for cut in cuts) for value in values]


# A table's keys and numbers as scripts, which a page from a folder may load where it may read no other file.

PART = 1 << 16
FEW = 256
INT32, EXACT = 2**31 - 1, 2**53


def keys_script(figures: Figures, domain: Domain, facts: Facts) -> str:
    """Return keys.js: of each key its level and codes, their names, and the coarser levels that group them."""
    axes = []
    for axis in figures.cells.axes[: len(figures.cells.by)]:
        level = str(axis.level)
        dimension = domain.dimensions[axis.key]
        kept = axis.kept.tolist()
        names = facts["levels"][level]["names"]
        codes = [axis.codes[i] for i in kept]
        groups = []
        for group in coarser(domain, level):
            of = dimension.between(level, group)
            assert of is not None
            above, stated = dimension.level_codes(group), facts["levels"][group]
            titles = [stated["names"].get(code, "") for code in above]
            parents = {"label": stated["label"], "codes": above, "names": titles, "of": of[kept].tolist()}
            groups.append(parents)
        axes.append(
            {
                "level": level,
                "label": facts["levels"][level]["label"],
                "codes": codes,
                "names": [names.get(code, "") for code in codes],
                "groups": groups,
            }
        )
    return _call("keys", axes)


def part_scripts(figures: Figures) -> Iterator[str]:
    """Yield 0.js, 1.js, … of a table whose figures are complete."""
    value = _safe(figures.columns["value"])
    for first in range(0, len(figures), PART):
        here = slice(first, first + PART)
        columns = {"value": packed(value[here])}
        for name in ("lower", "upper"):
            columns[name] = packed(_safe(figures.columns[name][here]) - value[here])
        columns["standard_error"] = packed(figures.columns["standard_error"][here])
        if figures.cells.listed is not None:
            columns["cell"] = packed(figures.cells.listed[here])
        yield _call("part", first // PART, columns)


def packed(numbers: Numbers) -> list[Any]:
    """Return a column of numbers as the scripts hold it; nothing is rounded."""
    different, index = np.unique(numbers, return_inverse=True)
    if len(different) == 1:
        return ["c", _number(different[0])]
    if len(different) <= FEW:
        return ["d", [_number(each) for each in different], _base64(index.astype(np.uint8))]
    integral = np.issubdtype(numbers.dtype, np.integer)
    if integral and max(-int(different[0]), int(different[-1])) <= INT32:
        return ["i", _base64(numbers.astype("<i4"))]
    return ["f", _base64(numbers.astype("<f8"))]


def _safe(numbers: Numbers) -> Numbers:
    """Return integers beyond those that a double tells apart as doubles, which a browser knows alone."""
    integral = np.issubdtype(numbers.dtype, np.integer) and len(numbers) > 0
    large = integral and max(-int(numbers.min()), int(numbers.max())) > EXACT
    return numbers.astype(np.float64) if large else numbers


def _number(number: Any) -> float | str:
    value: float = number.item()
    return value if isfinite(value) else "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"


def _base64(numbers: Numbers) -> str:
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def _call(name: str, *arguments: Any) -> str:
    text = ",".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in arguments)
    return f"prdp.{name}({text});\n"


# Coarser levels in place of a table that is too large to be looked at: as another table has them, or added up.
#
# A table of the same release goes first: it has noise of its own, of one cell and not of many. Sums of published cells
# are post-processing, and are told apart from published figures wherever they stand.

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
    boundaries: dict[str, Any] = json.loads(CONF.joinpath("maps", MAPS[level]).read_text(encoding="utf-8"))
    shapes = boundaries["shapes"]
    for group in boundaries.pop("older", ()):
        if group["shapes"].keys() & codes and not set(group["instead_of"]) & codes:
            shapes = {code: rings for code, rings in shapes.items() if code not in group["instead_of"]} | group[
                "shapes"
            ]
    return f"prdp.map({json.dumps(boundaries | {'shapes': shapes}, separators=(',', ':'))});\n"


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


def state_grid(figures: Figures, names: Names, at: int) -> dict[str, Any] | None:
    """Return the squares of a table by state, for the other codes of the cell `at`; None where it has no states."""
    cells = figures.cells
    if "state" not in cells.by or not figures.complete:
        return None
    here = cells.positions_of(np.array([at]) if cells.listed is None else cells.listed[at : at + 1])
    which = cells.by.index("state")
    axis = cells.axes[which]
    number = {axis.codes[kept]: position for position, kept in enumerate(axis.kept.tolist())}
    states = {}
    for state in number.keys() & STATES.keys():
        (cell,) = cells.numbers([np.array([number[state]]) if i == which else each for i, each in enumerate(here)])
        if cell >= 0:
            states[state] = figures.columns["value"][cell].item()
    if len(states) < 2:
        return None
    shade = dict(zip(states, shades(list(states.values())), strict=True))
    others = [names[level].get(code, code) for level, code in figures.codes(at).items() if level != "state"]
    tiles = [
        {
            "letters": letters,
            "row": row,
            "column": column,
            "shade": f"q{shade[state]}" if state in states else "none",
            "text": f"{names['state'].get(state, state)}: {figure(states[state]) if state in states else 'no figure'}",
        }
        for state, (letters, row, column) in STATES.items()
    ]
    return {"of": " · ".join(others), "tiles": tiles}
