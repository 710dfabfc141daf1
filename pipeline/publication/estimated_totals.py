"""Totals of picked cells from reconciled tables: best estimates of all tables together, as `derived` needs them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import Any

import numpy as np

from pipeline.base.errors import PlanError, arg
from pipeline.plan.domain.keys import Where
from pipeline.publication.public_totals import measure_of
from pipeline.publication.published_totals import CellTotals, Total
from pipeline.publication.reconciled import Reconciliation, Solved
from pipeline.publication.released_tables import ReleasedTable, Spread
from udfs.estimates.group import Contrast
from udfs.estimates.intervals import Law, Totals
from udfs.estimates.tables import EstimateError
from udfs.estimates.variances import Pool, order_of
from udfs.noise.keystream import SeededBits
from udfs.noise.lattice import CHUNK
from udfs.numbers.arrays import Floats


@dataclass(frozen=True, eq=False)
class Picked:
    """A sum of cells that a user picked: its estimate, standard error and interval, and the records it is of.

    `of`: what is totalled. `keys`: records without a listed code in one of these keys are not in it.
    `at_expected_totals`: the noise grows with totals, and the error is the one that it has at the expected ones.
    """

    of: str
    where: Mapping[str, tuple[str, ...]]
    keys: tuple[str, ...]
    value: float
    standard_error: float
    lower: float
    upper: float
    at_expected_totals: bool

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {name: value for name, value in vars(self).items() if name not in ("where", "keys")} | {
            "where": {level: list(codes) for level, codes in self.where.items()},
            "keys": list(self.keys),
        }


class Estimated(Reconciliation):
    """A reconciliation as a source of totals: errors of one group's totals are correlated, of two groups' independent.

    Each total takes one solve for its contrast. Totals of two groups are solved one after the other.
    """

    def picked(self, where: Where, of: str | None = None) -> Picked:
        """Return the sum of the cells that meet a filter; PlanError where the tables do not tell it."""
        group = self.group_of(where, of)
        total = self.total(measure_of(group.statistic), where, self.options.interval)
        return Picked(
            of=total.of,
            where={level: tuple(codes) for level, codes in where.items()},
            keys=total.keys,
            value=total.value,
            standard_error=float(np.sqrt(total.variance)),
            lower=total.lower,
            upper=total.upper,
            at_expected_totals=self.solved(group).expected,
        )

    def total(self, of: str, where: Where, coverage: float) -> Total:
        """Return the estimated total; PlanError where the tables do not tell it."""
        solved, contrast = self._contrast(of, where)
        weighted = _weighted(solved)
        spread = Spread.of(weighted, coverage)
        half = float(spread.half_width(contrast.variance))
        return Total(
            of=of,
            where=where,
            keys=tuple(sorted(solved.group.keys)),
            tables=tuple(table.name for table in weighted),
            value=contrast.value,
            variance=contrast.variance,
            law=spread.law,
            step=spread.step,
            lower=contrast.value - half,
            upper=contrast.value + half,
        )

    def covariance(self, of: str, where: Where, other: str, other_where: Where) -> float:
        """Return the covariance of the errors of two totals; 0 of two groups, which no noise has in common."""
        if self.group_of(where, of) is not self.group_of(other_where, other):
            return 0.0
        solved, contrast = self._contrast(of, where)
        return float(solved.estimates.covariance(contrast, solved.atoms.mask(other_where)))

    def _contrast(self, of: str, where: Where) -> tuple[Solved, Contrast]:
        solved = self.solved(self.group_of(where, of))
        try:
            return solved, solved.estimates.contrast(solved.atoms.mask(where))
        except EstimateError as error:
            raise PlanError(f"{measure_of(solved.group.statistic)}: {error}") from None

    def table(self, name: str, coverage: float) -> CellTotals:
        """Return the estimates of a table's cells; PlanError where it has none."""
        solved, table = self._solved(name)
        spread = Spread.of(_weighted(solved), coverage)
        values, variance = (
            self._flat(solved, table, of(name)) for of in (solved.estimates.table, solved.estimates.variances)
        )
        half = spread.half_width(variance)
        ends = values - half, values + half
        return CellTotals(table.facts, table.cells, Totals(values, variance), ends, spread.law, spread.step)

    def table_sum(self, name: str) -> tuple[Totals, Floats]:
        """Return the estimated sum of a table's cells, and of each cell the covariance with it, by one solve."""
        solved, table = self._solved(name)
        observed = solved.estimates.tables[name]
        if observed.variance is None or not (observed.variance > 0).all():
            raise PlanError(
                f"{arg('share', name)}: this table carries no weight, or is known: pick cells by {arg('where')}"
            )
        inside = (position >= 0 for position in observed.positions)
        contrast = solved.estimates.contrast(tuple(one.astype(np.float64) for one in inside))
        covariance = self._flat(solved, table, contrast.coefficients[name] * observed.variance)
        return Totals(np.asarray(contrast.value), np.asarray(contrast.variance)), covariance

    def _solved(self, name: str) -> tuple[Solved, ReleasedTable]:
        table = self.derived[name] if name in self.derived else self.named(name)
        group = next((group for group in self.groups if table in group.tables), None)
        solved = None if group is None else self.solved(group)
        if solved is None or table not in solved.tables:
            raise PlanError(f"{name}: the tables do not tell its cells: it is not reconciled")
        return solved, table

    def _flat(self, solved: Solved, table: ReleasedTable, cells: Floats) -> Floats:
        grid = np.broadcast_to(cells, solved.atoms.widths(table.cells))
        return solved.atoms.in_key_order(table.cells, grid)


def _weighted(solved: Solved) -> list[ReleasedTable]:
    return [table for table in solved.tables if table.name not in solved.why]


# Intervals of estimates from drawn errors: noise of the published laws, in the place of values, through the solver.

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
