"""Blocks: a table is cut by ranges of its public cells into files, which every engine makes the same way."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.plan.model import VALUES, Plan
from udfs.mechanisms.base import Mechanism, Released
from udfs.mechanisms.release import rehearse, release_cells
from udfs.noise.keystream import SecretKey

FILE_CELLS = 1 << 18

KeyColumn = tuple[tuple[str, ...], NDArray[np.int32]]  # codes, and the index of each cell's code among them


@dataclass(frozen=True, eq=False, repr=False)
class Block:
    """The cells of one file, with their confidential totals. It has no repr: engines log arguments of failed tasks."""

    query: str
    number: int
    first: int  # where the cells start in the query
    keys: dict[str, KeyColumn]
    totals: NDArray[np.int64]
    mechanisms: tuple[Mechanism, ...]  # of the query's parts
    part_of: NDArray[np.int32] | None  # which of them each cell has; None: the only one
    interval: Fraction
    integer: bool
    path: str
    notes: Mapping[str, str] = field(default_factory=dict)  # what the file says of its table, by the plan alone

    @property
    def size(self) -> int:
        """The number of cells."""
        return len(self.totals)

    def values(self, key: SecretKey) -> Released:
        """Return the released values of the block's cells under `key`; the same at every call."""
        cells = np.arange(self.first, self.first + self.size, dtype=np.uint64)
        partition = {"cell": cells, "total": self.totals, "part": self.part_of}
        return release_cells(
            partition,
            self.mechanisms,
            key=key,
            query=self.number,
            interval=self.interval,
            integer=self.integer,
        )

    def released(self, key: SecretKey) -> pa.Table:
        """Return the block's published rows under `key`: its keys as text, then VALUES; the same at every call."""
        released = self.values(key)
        columns = {
            level: pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(codes, pa.string())).cast(pa.string())
            for level, (codes, indices) in self.keys.items()
        }
        return pa.table(columns | {name: pa.array(getattr(released, name)) for name in VALUES})


def ranges(cells: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, first cell and end of each Parquet file of a table; they depend on the number of cells alone."""
    for part, first in enumerate(range(0, max(cells, 1), FILE_CELLS)):
        yield f"part-{part:05d}.parquet", first, min(first + FILE_CELLS, cells)


def rehearse_queries(plan: Plan) -> None:
    """Build every mechanism's table here, and release one cell that is thrown away.

    Tables are then shipped as integers, the same for all workers; and what a mechanism cannot compute is met before a
    draw is recorded.
    """
    for query in plan.queries:
        for mechanism in query.mechanisms:
            rehearse(mechanism, plan.interval)
