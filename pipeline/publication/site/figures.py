"""Figures of one table as pages show them: in rows with names of codes, in words, and as bars on a common scale."""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isnan
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.plan.cells import QueryCells
from pipeline.plan.domain import Domain
from pipeline.plan.model import VALUES
from pipeline.publication.site.facts import Facts, coarser

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
    whole = np.issubdtype(numbers.dtype, np.integer)
    if whole and max(-int(different[0]), int(different[-1])) <= INT32:
        return ["i", _base64(numbers.astype("<i4"))]
    return ["f", _base64(numbers.astype("<f8"))]


def _safe(numbers: Numbers) -> Numbers:
    """Return integers beyond those that a double tells apart as doubles, which a browser knows alone."""
    whole = np.issubdtype(numbers.dtype, np.integer) and len(numbers) > 0
    large = whole and max(-int(numbers.min()), int(numbers.max())) > EXACT
    return numbers.astype(np.float64) if large else numbers


def _number(number: Any) -> float | str:
    value: float = number.item()
    return value if isfinite(value) else "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"


def _base64(numbers: Numbers) -> str:
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def _call(name: str, *arguments: Any) -> str:
    text = ",".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in arguments)
    return f"prdp.{name}({text});\n"
