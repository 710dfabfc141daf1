"""Intervals of estimates from drawn errors: noise of the published laws, in the place of values, through the solver."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import count

import numpy as np

from pipeline.publication.reconcile.reconciled import Solved
from pipeline.publication.reconcile.released_tables import ReleasedTable
from udfs.estimates.intervals import Law
from udfs.estimates.variances import Pool, order_of
from udfs.noise.keystream import SeededBits
from udfs.noise.lattice import CHUNK
from udfs.numbers.arrays import Floats

INTERVAL = Fraction(1, 2)  # of drawn values: not used


def worth_drawing(solved: Solved, draws: int) -> bool:
    """Whether drawn errors may make intervals shorter: of additive noise that is not all Gaussian, enough draws."""
    return solved.spread.law is Law.SYMMETRIC and order_of(draws, solved.spread.interval) is not None


def multipliers_of(solved: Solved, variances: Mapping[str, Floats], draws: int) -> dict[str, Floats]:
    """Return by table how many of its standard errors, the roots of `variances`, an interval of a cell takes.

    It holds with at least the coverage of the intervals, of cells that are alike together; infinite where too many
    cells differ. Errors are those of the solution for drawn noise, the same in each run: what is drawn follows from the
    number of the draw and of the table.
    """
    weighted = [table for table in solved.tables if table.name not in solved.why]
    parts = {
        table.name: solved.atoms.placed(table.cells, table.part_numbers())
        for table in weighted
        if len(table.mechanisms) > 1
    }
    pools = {name: Pool(solved.estimates.alike(name, parts)) for name in variances}
    able = {name: pool for name, pool in pools.items() if pool.able}
    streams = count()
    for _ in range(draws if able else 0):
        noise = {table.name: _noise(table, solved, streams) for table in weighted}
        for name, errors in solved.estimates.errors(noise, able):
            error = np.sqrt(np.broadcast_to(variances[name], errors.shape))
            able[name].add(np.divide(errors, error, out=np.zeros(errors.shape), where=error > 0))
    off = solved.estimates.rounding + 2 * solved.estimates.residual  # of estimates and of drawn errors
    return {name: pool.multipliers(solved.spread.interval) + off for name, pool in pools.items()}


def _noise(table: ReleasedTable, solved: Solved, streams: Iterator[int]) -> Floats:
    """Return noise of the table's mechanisms, in the measure's unit, on the base's axes."""
    out = np.empty(solved.atoms.widths(table.cells))
    part = np.broadcast_to(solved.atoms.placed(table.cells, table.part_numbers()), out.shape)
    for number, mechanism in enumerate(table.mechanisms.values()):
        mine = np.flatnonzero(part == number)
        for start in range(0, len(mine), CHUNK):
            cells = mine[start : start + CHUNK]
            bits = SeededBits(len(cells), 0, next(streams))
            steps = mechanism.release(np.zeros(len(cells), dtype=np.int64), bits, INTERVAL).value
            out.reshape(-1)[cells] = steps * float(mechanism.step)
    return out
