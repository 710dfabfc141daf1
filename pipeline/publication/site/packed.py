"""A table's keys and numbers as scripts, which a page from a folder may load where it may read no other file."""

import base64
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from isal import isal_zlib

from pipeline.engines.writers import LEVEL, in_text
from pipeline.plan.domain import Domain
from pipeline.publication.description import Facts, coarser
from pipeline.publication.site.figures import STATES, Figures, Numbers

PART, FEW = 1 << 16, 256  # figures of a script; different ones that are listed
INT32, EXACT = 2**31 - 1, 2**53
ALIKE = 1e10  # below it Arrow writes doubles without an exponent
GZIP = zlib.MAX_WBITS + 16  # a gzip file, whose header then holds neither time nor machine


def keys_script(figures: Figures, domain: Domain, facts: Facts) -> str:
    """Return keys.js: the axes of a table."""
    return _call("keys", axes_of(figures, domain, facts))


def index_script(levels: Sequence[Facts], tables: Sequence[Facts]) -> str:
    """Return index.js: all levels of tables as axes with ranks, and what scripts need of tables."""
    return _call("index", {"levels": levels, "tables": tables})


def ranked(axes: Sequence[Facts], figures: Figures) -> Iterator[Facts]:
    """Yield the axes with the rank of each code by the sum of its figures, the largest first."""
    value, cells = np.nan_to_num(figures.columns["value"].astype(np.float64)), figures.cells
    positions = cells.positions_of(np.arange(cells.size) if cells.listed is None else cells.listed)
    for axis, position in zip(axes, positions, strict=False):
        order = np.argsort(-np.bincount(position, value, len(axis["codes"])), kind="stable")
        yield axis | {"rank": np.argsort(order).tolist()}


def axes_of(figures: Figures, domain: Domain, facts: Facts) -> list[Facts]:
    """Return of each key its level and codes, their names, and the coarser levels that group them."""
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
            parents = {"level": group, "label": stated["label"], "codes": above, "names": titles}
            groups.append(parents | {"of": of[kept].tolist()} | _letters(group, above))
        axes.append(
            {
                "level": level,
                "label": facts["levels"][level]["label"],
                "codes": codes,
                "names": [names.get(code, "") for code in codes],
                "groups": groups,
            }
            | _letters(level, codes)
        )
    return axes


def _letters(level: str, codes: Sequence[str]) -> dict[str, list[str]]:
    """Return the postal letters by which people call the states; nothing of other levels."""
    return {"letters": [STATES[code][0] if code in STATES else "" for code in codes]} if level == "state" else {}


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
        texts = (f'"{name}":{text}' for name, text in columns.items())
        yield f"prdp.part({first // PART},{{{','.join(texts)}}});\n"


def csv_of(figures: Figures) -> bytes:
    """Return all figures as compressed CSV in the published columns, the same bytes on one kind of processor."""
    keys, text = in_text(figures.cells.keys(0, len(figures))), io.BytesIO()
    columns = {name: _as_integers(column) for name, column in figures.columns.items()}
    pa.csv.write_csv(pa.table(keys | columns), text, pa.csv.WriteOptions(batch_size=1 << 14))
    return isal_zlib.compress(text.getbuffer(), LEVEL, GZIP)


def _as_integers(numbers: Numbers) -> Numbers:
    """Return doubles as integers where Arrow writes these as the same text, which takes half of the time."""
    same = numbers.dtype == np.float64 and (np.abs(numbers) < ALIKE).all() and (np.rint(numbers) == numbers).all()
    return numbers.astype(np.int64) if same and not np.signbit(numbers[numbers == 0]).any() else numbers


def packed(numbers: Numbers) -> str:
    """Return a column of numbers as the scripts hold it; nothing is rounded."""
    if (numbers == numbers[0]).all():
        return f'["c",{json.dumps(_number(numbers[0]))}]'
    if len(np.unique(numbers[: 4 * FEW])) <= FEW:  # else there are more in all, and they need no sorting
        different, index = np.unique(numbers, return_inverse=True)
        if len(different) <= FEW:
            few = json.dumps([_number(each) for each in different], separators=(",", ":"))
            return f'["d",{few},{_base64(index.astype(np.uint8))}]'
    integral = np.issubdtype(numbers.dtype, np.integer)
    if integral and max(-int(numbers.min()), int(numbers.max())) <= INT32:
        return f'["i",{_base64(numbers.astype("<i4"))}]'
    return f'["f",{_base64(numbers.astype("<f8"))}]'


def _safe(numbers: Numbers) -> Numbers:
    """Return integers beyond those that a double tells apart as doubles, which a browser knows alone."""
    integral = np.issubdtype(numbers.dtype, np.integer) and len(numbers) > 0
    large = integral and max(-int(numbers.min()), int(numbers.max())) > EXACT
    return numbers.astype(np.float64) if large else numbers


def _number(number: Any) -> float | str:
    value: float = number.item()
    return value if isfinite(value) else "Infinity" if value > 0 else "-Infinity" if value < 0 else "NaN"


def _base64(numbers: Numbers) -> str:
    return f'"{base64.b64encode(numbers.tobytes()).decode("ascii")}"'


def _call(name: str, *arguments: Any) -> str:
    text = ",".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in arguments)
    return f"prdp.{name}({text});\n"
