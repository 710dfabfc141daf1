"""How many cells of a table have which true total: what a page needs to say which of them become unusable."""

import csv
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import ValidationError

from pipeline.accounting.targets import BUILT_IN, HEADER
from pipeline.base.errors import PlanError
from pipeline.engines.writers import Block
from pipeline.plan.load import draft_of, filled
from pipeline.plan.model import Plan, Query
from pipeline.plan.plan_mechanisms import goes_by_sizes, open_parts, wish_of
from pipeline.plan.plan_schema import PlanSpec
from pipeline.plan.plan_text import PlanText
from udfs.numbers.arrays import Floats, Int64s, in_units

A_DECADE: Final = 12  # bins of totals above 0: a bin is 21 % wide
DECADES: Final = (-2, 15)
EDGES: Final = np.geomspace(10.0 ** DECADES[0], 10.0 ** DECADES[1], (DECADES[1] - DECADES[0]) * A_DECADE + 1)


@dataclass(frozen=True, eq=False)
class SizedCells:
    """Of each part of a table: how many cells have a total of 0, and how many lie in each bin of totals above 0.

    `counts` has a row for each part and a column for each bin, `totals` the mean total of each; column 0 is for 0.
    Negative totals count by their magnitude.
    """

    counts: Int64s
    totals: Floats

    @classmethod
    def of(cls, parts: Sequence["SizedCells"]) -> "SizedCells":
        """Return the cells of all blocks of a table."""
        counts = np.sum([part.counts for part in parts], axis=0)
        sums = np.sum([part.totals for part in parts], axis=0)
        return cls(counts, sums / np.maximum(counts, 1))


@dataclass(frozen=True, eq=False, repr=False)
class SizedTask:
    """Counts the cells of a block; `totals` of what it returns are sums."""

    query: Query

    def __call__(self, block: Block) -> SizedCells:
        """Return the block's cells."""
        totals = np.abs(in_units(block.totals, self.query.parts[0].mechanism.step))
        bins = np.where(totals > 0, np.clip(np.searchsorted(EDGES, totals, "right"), 1, len(EDGES)), 0)
        parts = len(self.query.parts)
        of_part = np.zeros(block.size, dtype=np.int64) if block.part_of is None else block.part_of
        numbers, size = of_part * (len(EDGES) + 1) + bins, parts * (len(EDGES) + 1)
        sums: Floats = np.bincount(numbers, totals, size).astype(np.float64)
        return SizedCells(np.bincount(numbers, minlength=size).reshape(parts, -1), sums.reshape(parts, -1))


PLACEHOLDERS = {"total": 1, "sizes": str(BUILT_IN)}  # by which a draft is read before they are known


@contextmanager
def sized_draft(
    text: PlanText, path: Path, variables: Mapping[str, str], cells_of: Callable[[Plan], Sequence[SizedCells]]
) -> Iterator[PlanText]:
    """Yield a draft with each `total` and each `sizes` that it leaves open, for a block: files of sizes end with it.

    A total is the median of the table's cells above 0, within 11 %: cells are counted in bins of 21 %. Sizes are those
    of all its cells above 0. `cells_of` counts the cells of a plan's tables, on microdata that are not the plan's.

    Raises PlanError on a wrong draft, where it leaves nothing open, and where a table has no cell above 0.
    """
    absent = _absent(text, path, variables)
    with tempfile.TemporaryDirectory(prefix="prdp-sizes-") as name:
        folder = Path(name)
        meant = _with(text, {query: {key: PLACEHOLDERS[key]} for query, key in absent.items()})
        plan = draft_of(meant, path, variables)[0]  # says every other mistake
        if not absent:
            raise PlanError(f"{path}: calibrate: no total and no sizes are left open: leave out where they come from")
        cells = dict(zip((query.name for query in plan.queries), cells_of(plan), strict=True))
        wishes: dict[str, dict[str, Any]] = {}
        for number, (query, key) in enumerate(absent.items()):
            counts, totals = cells[query].counts[:, 1:].ravel(), cells[query].totals[:, 1:].ravel()
            if not counts.any():
                raise PlanError(f"{path}: calibrate.queries.{query}.{key}: all its synthetic cells are 0: state it")
            file = folder / f"{number}.csv"
            wishes[query] = {key: _written(file, totals, counts) if key == "sizes" else _median(totals, counts)}
        yield _with(text, wishes)


def _absent(text: PlanText, path: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return for each query whose scale is to be chosen which of `total` and `sizes` it leaves open."""
    try:
        spec = PlanSpec.model_validate(filled(text, path, variables).data)
    except ValidationError:
        return {}  # whoever reads the draft next says what is wrong
    if spec.calibrate is None:
        raise PlanError(f"{path}: calibrate: missing key; only a draft has totals and sizes to be found")
    wishes = {query.name: wish_of(spec.calibrate, query.name) for query in spec.queries if open_parts(query)}
    keys = {name: "sizes" if goes_by_sizes(spec.calibrate, wish) else "total" for name, wish in wishes.items()}
    return {name: key for name, key in keys.items() if getattr(wishes[name], key) is None}


def _with(text: PlanText, wishes: Mapping[str, Mapping[str, Any]]) -> PlanText:
    """Return the draft with keys added to what is wanted of its queries."""
    draft = text.data.get("calibrate")
    if not wishes or not isinstance(draft, dict):
        return text
    stated = draft.get("queries", {})
    queries = stated | {name: stated.get(name, {}) | dict(added) for name, added in wishes.items()}
    return replace(text, data=text.data | {"calibrate": draft | {"queries": queries}})


def _median(totals: Floats, counts: Int64s) -> float:
    middle = totals[np.searchsorted(np.cumsum(counts), counts.sum() / 2)]
    rounded = float(f"{middle:.3g}")
    return int(rounded) if rounded.is_integer() else rounded


def _written(file: Path, totals: Floats, counts: Int64s) -> str:
    with file.open("w", encoding="utf-8", newline="") as lines:
        rows = zip(totals[counts > 0].tolist(), counts[counts > 0].tolist(), strict=True)
        csv.writer(lines).writerows([HEADER, *rows])
    return str(file)
