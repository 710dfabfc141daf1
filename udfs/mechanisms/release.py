"""Totals of public cells → released values: the one place where a key meets totals."""

from collections.abc import Sequence
from dataclasses import fields
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from udfs.mechanisms.base import Mechanism, Released
from udfs.noise.keystream import CellBits, SecretKey
from udfs.noise.lattice import CHUNK
from udfs.numbers.floating import in_units


def release_cells(  # noqa: PLR0913 — a mechanism, an address in the keystream, and totals
    mechanism: Mechanism,
    *,
    key: SecretKey,
    query: int,
    cells: NDArray[np.uint64],
    totals: NDArray[np.int64],
    interval: Fraction,
    integer: bool,
) -> Released:
    """Return the released values of the cells with the numbers `cells` of query number `query`.

    Guarantee: the mechanism's, and the noise of a cell depends on (key, query, cell) alone (docs/architecture.md,
    rule 4). Values of additive mechanisms are int64 steps if `integer`; all others are float64 in the measure's unit.
    """
    here = (slice(first, first + CHUNK) for first in range(0, max(len(totals), 1), CHUNK))
    chunks = (mechanism.release(totals[i], CellBits(key=key, query=query, cells=cells[i]), interval) for i in here)
    released = _joined(list(chunks))
    if integer or not mechanism.additive:
        return released
    return Released(
        value=in_units(released.value, mechanism.step),
        lower=in_units(released.lower, mechanism.step),
        upper=in_units(released.upper, mechanism.step),
        standard_error=released.standard_error,
    )


def release_parts(  # noqa: PLR0913 — mechanisms, an address in the keystream, and totals
    mechanisms: Sequence[Mechanism],
    part_of: NDArray[np.int32] | None,
    *,
    key: SecretKey,
    query: int,
    first: int,
    totals: NDArray[np.int64],
    interval: Fraction,
    integer: bool,
) -> Released:
    """Return the released values of cells `first`, `first` + 1, …; cell first + i has mechanism number part_of[i].

    Guarantee: each cell's is that of its mechanism; parts are public and disjoint, so a record's loss is that of its
    own cell's mechanism (docs/mathematics.md, section 5). `mechanisms` are those of all the query's parts (`part_of`
    None: the only one): values are int64 where all of them are additive and the measure is an integer, else float64,
    in every block.
    """
    steps = integer and all(mechanism.additive for mechanism in mechanisms)
    cells = np.arange(first, first + len(totals), dtype=np.uint64)

    def part(mechanism: Mechanism, mine: NDArray[np.intp] | slice) -> Released:
        return release_cells(
            mechanism, key=key, query=query, cells=cells[mine], totals=totals[mine], interval=interval, integer=steps
        )

    if part_of is None:
        return part(mechanisms[0], slice(None))
    rows = [np.flatnonzero(part_of == number) for number in np.unique(part_of)]
    joined = _joined([part(mechanisms[part_of[mine[0]]], mine) for mine in rows])
    order = np.argsort(np.concatenate(rows))
    return Released(**{name: values[order] for name, values in vars(joined).items()})


def _joined(parts: Sequence[Released]) -> Released:
    return Released(
        **{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Released)}
    )


def rehearse(mechanism: Mechanism, interval: Fraction) -> None:
    """Release one cell that is thrown away: what the mechanism computes once is then pickled with it.

    Call it on the driver. Workers then get tables as integers, the same for all of them, whatever their processors.
    """
    bits = CellBits(key=SecretKey.fresh(), query=0, cells=np.zeros(1, dtype=np.uint64))
    mechanism.release(np.zeros(1, dtype=np.int64), bits, interval)
