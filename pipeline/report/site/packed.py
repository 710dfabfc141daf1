"""A table's keys and numbers as scripts, which a page from a folder may load where it may read no other file.

keys.js calls prdp.keys with the codes of each key and what they roll up to; 0.js, 1.js, … call prdp.part with PART
cells each. A column of numbers is one of

    ["c", number]                        the same everywhere
    ["d", numbers, bytes]                few numbers, and the index of each
    ["i", bytes], ["f", bytes]           32-bit integers, doubles

with bytes little-endian in base 64. `lower` and `upper` are told by their distance from `value`. Of tables whose cells
are listed a part has the numbers of its cells among all combinations of codes, as a column.
"""

import base64
import json
from collections.abc import Iterator
from math import isfinite
from typing import Any

import numpy as np

from pipeline.plan.domain import Domain
from pipeline.report.site.facts import Facts, coarser
from pipeline.report.site.figures import Figures, Numbers

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
