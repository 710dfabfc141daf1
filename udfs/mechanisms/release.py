"""The one vectorised function by which all noise is drawn: a frame of public cells and totals in, released values out.

A query partitions the microdata by its keys, such as NAICS × county: a record adds to one cell. Cells have independent
bits, so mechanisms of the cells compose in parallel: a record loses what the mechanism of its own cell loses. Any cut
of the frame into partitions gives the same values, so Dask's tasks and Spark's `mapInPandas` run this function
partition by partition, and `prdp.spark.mechanism_udf` runs it on frames of one's own. Losses of several queries add up:
the total policy of a plan is the sum of policy functions over its queries (docs/mathematics.md, section 5).
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from udfs.mechanisms.base import Mechanism, Released
from udfs.noise.keystream import CellBits, SecretKey
from udfs.noise.lattice import CHUNK
from udfs.numbers.arrays import in_units

if TYPE_CHECKING:
    import pandas as pd


class Frame(Protocol):
    """Columns of equal length by name: a pandas DataFrame, or a mapping of arrays where pandas need not be loaded."""

    def __getitem__(self, name: str) -> Any:
        """Return a column."""


def release_cells(  # noqa: PLR0913 — mechanisms, an address in the keystream, and how values are shown
    frame: Frame, mechanisms: Sequence[Mechanism], *, key: SecretKey, query: int, interval: Fraction, integer: bool
) -> Released:
    """Return the released values of a frame's rows, in their order.

    The frame has the numbers of public cells (`cell`), exact totals in steps (`total`) and, where the query has several
    mechanisms, which of them the cell has (`part`).

    Guarantee: each cell's is that of its mechanism, and its noise depends on (key, query, cell) alone
    (docs/architecture.md, rule 4). Parts are public and disjoint, so that they compose in parallel. `mechanisms` are
    those of all the query's parts: values are int64 steps where all of them are additive and the measure is an
    `integer`, else float64 in the measure's unit, in every partition.
    """
    steps = integer and all(mechanism.additive for mechanism in mechanisms)
    cells, totals = np.asarray(frame["cell"]).astype(np.uint64, copy=False), np.asarray(frame["total"])
    released: dict[str, NDArray[Any]] = {}
    for mechanism, rows in _chunks(mechanisms, frame, len(totals)):
        bits = CellBits(key=key, query=query, cells=cells[rows])
        shown = _shown(mechanism.release(totals[rows], bits, interval), mechanism, steps)
        for name, values in vars(shown).items():
            if name not in released:
                released[name] = np.zeros(len(totals), values.dtype)
            released[name][rows] = values
    return Released(**released)


def _chunks(mechanisms: Sequence[Mechanism], frame: Frame, size: int) -> Iterator[tuple[Mechanism, Any]]:
    """Yield each mechanism with some of its rows at a time, at least once."""
    if len(mechanisms) == 1:
        yield from ((mechanisms[0], slice(i, i + CHUNK)) for i in range(0, max(size, 1), CHUNK))
        return
    parts = np.asarray(frame["part"])
    for number in np.unique(parts) if size else (0,):
        rows = np.flatnonzero(parts == number)
        yield from ((mechanisms[number], rows[i : i + CHUNK]) for i in range(0, max(len(rows), 1), CHUNK))


def release_frame(frame: "pd.DataFrame", mechanisms: Sequence[Mechanism], **how: Any) -> "pd.DataFrame":
    """Return `release_cells` of a pandas frame as one with the columns value, lower, upper and standard_error."""
    import pandas as pd  # noqa: PLC0415 — a third of a second that a release from files does without

    return pd.DataFrame(vars(release_cells(frame, mechanisms, **how)), index=frame.index)


def _shown(released: Released, mechanism: Mechanism, steps: bool) -> Released:
    if steps or not mechanism.additive:
        return released
    ends = {name: in_units(getattr(released, name), mechanism.step) for name in ("value", "lower", "upper")}
    return Released(**ends, standard_error=released.standard_error)


def rehearse(mechanism: Mechanism, interval: Fraction) -> None:
    """Release one cell that is thrown away: what the mechanism computes once is then pickled with it.

    Call it on the driver. Workers then get tables as integers, the same for all of them, whatever their processors.
    """
    bits = CellBits(key=SecretKey.fresh(), query=0, cells=np.zeros(1, dtype=np.uint64))
    mechanism.release(np.zeros(1, dtype=np.int64), bits, interval)
