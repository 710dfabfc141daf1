"""How many cells of a table have which true total: what a page needs to say which of them become unusable."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from pipeline.engines.blocks import Block
from pipeline.plan.model import Query
from udfs.numbers.arrays import Floats, Int64s
from udfs.numbers.floating import in_units

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
        at, size = of_part * (len(EDGES) + 1) + bins, parts * (len(EDGES) + 1)
        sums: Floats = np.bincount(at, totals, size).astype(np.float64)
        return SizedCells(np.bincount(at, minlength=size).reshape(parts, -1), sums.reshape(parts, -1))
