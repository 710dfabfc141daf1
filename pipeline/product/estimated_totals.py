"""Totals of picked cells from reconciled tables: best estimates of all tables together, as `derived` needs them."""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from pipeline.errors import PlanError, in_a_line
from pipeline.names import hint
from pipeline.plan.keys import Where
from pipeline.plan.structure import Structure
from pipeline.product.errors import Spread
from pipeline.product.public_totals import measure_of
from pipeline.product.published_totals import CellTotals, Total
from pipeline.product.reconcile import Reconciliation, Solved
from pipeline.product.released_tables import ReleasedTable
from udfs.estimates.ratios import Totals
from udfs.estimates.solve import Contrast
from udfs.estimates.tables import EstimateError
from udfs.numbers.arrays import Floats


@dataclass(frozen=True, eq=False)
class Estimated:
    """A reconciliation as a source of totals: errors of one group's totals are correlated, of two groups' independent.

    Each total takes one solve for its contrast. Totals of two groups are solved one after the other.
    """

    reconciliation: Reconciliation

    @property
    def structure(self) -> Structure:
        """The first release's: all have the same dataset and domain."""
        return self.reconciliation.structure

    @property
    def releases(self) -> list[dict[str, Any]]:
        """The releases that are reconciled."""
        return self.reconciliation.releases

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
        group = self.reconciliation.group_of
        if group(where, of) is not group(other_where, other):
            return 0.0
        solved, contrast = self._contrast(of, where)
        return float(solved.estimates.covariance(contrast, solved.atoms.mask(other_where)))

    def _contrast(self, of: str, where: Where) -> tuple[Solved, Contrast]:
        solved = self.reconciliation.solved(self.reconciliation.group_of(where, of))
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

    def whole(self, name: str) -> tuple[Totals, Floats]:
        """Return the estimated sum of a table's cells, and of each cell the covariance with it, by one solve."""
        solved, table = self._solved(name)
        observed = solved.estimates.tables[name]
        if observed.variance is None or not (observed.variance > 0).all():
            raise PlanError(f"--share {name}: this table carries no weight, or is known: pick cells by --where")
        inside = (position >= 0 for position in observed.positions)
        contrast = solved.estimates.contrast(reduce(np.multiply.outer, (one.astype(np.float64) for one in inside)))
        covariance = self._flat(solved, table, contrast.coefficients[name] * observed.variance)
        return Totals(np.asarray(contrast.value), np.asarray(contrast.variance)), covariance

    def _solved(self, name: str) -> tuple[Solved, ReleasedTable]:
        tables = self.reconciliation.tables
        if name not in tables:
            raise PlanError(f"{in_a_line(name)}: no release has this table{hint(name, list(tables), 'table')}")
        group = next((group for group in self.reconciliation.groups if tables[name] in group.tables), None)
        solved = None if group is None else self.reconciliation.solved(group)
        if solved is None or tables[name] not in solved.tables:
            raise PlanError(f"{name}: the tables do not tell its cells: it is not reconciled")
        return solved, tables[name]

    def _flat(self, solved: Solved, table: ReleasedTable, cells: Floats) -> Floats:
        whole = np.broadcast_to(cells, solved.atoms.widths(table.cells))
        return solved.atoms.in_key_order(table.cells, whole)


def _weighted(solved: Solved) -> list[ReleasedTable]:
    return [table for table in solved.tables if table.name not in solved.why]
